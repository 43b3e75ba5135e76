"""Hooks: a user's code at fixed places of the training loop, and one of our own."""

from __future__ import annotations

import collections
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.files import new_output
from alf_lite.config import configurable
from alf_lite.config.values import shorten
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.policies.evaluator import EpisodeRecording, EvalResult
from alf_lite.runs.training_state import RunState
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)
_REPLAY_NAME = re.compile(r"replay-(\d+)")


class Training(Protocol):
    """What a hook may use of the trainer."""

    algorithm: RLAlgorithm
    run: RunState
    root_dir: Path

    @property
    def owns_root_dir(self) -> bool:
        """False if it was deleted or replaced: write nothing there."""
        ...

    def request_stop(self, reason: str) -> None: ...

    def request_checkpoint(self) -> None: ...


class Hook:
    """Override what you need; given to the trainer, or in ``TrainerConfig.hook_ctors``.

    The places, in their order: ``before_episodes``, ``before_train``; per iteration
    ``before_iter``, the iteration, ``after_eval`` if there is an evaluation,
    ``after_iter``, and then a checkpoint if one is due; ``after_train``.

    ``after_train`` is called exactly once for every hook of a run that has begun,
    whatever ended it: also after an error of another hook, and of its own. An exception
    at any other place ends the run; what was learned is saved first.

    A hook may call ``training.request_stop(reason)``: the run then ends after the hooks
    of this iteration, with a checkpoint. ``training.request_checkpoint()`` writes one
    after the hooks of this iteration, and the run goes on.

    What a hook wants to find again when the run is resumed, it returns from
    ``state_dict``: dicts, lists and tuples of tensors, numbers and strings. Every
    checkpoint that can be resumed holds it, under the name of the hook's class;
    ``load_state_dict`` gets it back before all other places.

    Args:
        priority: lower comes first; equal ones in the order they were given.
    """

    # With several ranks: whether each has it, as what changes its environments. The
    # others are those of the first rank, which writes and evaluates: ``after_eval`` and
    # ``score`` are called there alone.
    on_all_ranks: ClassVar[bool] = False

    # Whether it changes the environments, which then are in this process.
    changes_environments: bool = False

    # Whether it fills the pool of an environment with ``num_snapshots``.
    takes_snapshots: ClassVar[bool] = False

    # What it wants to have recorded of evaluations; one hook of a run may want that.
    recording: EpisodeRecording | None = None

    # Also of one whose constructor does not call that of Hook
    priority: int = 50

    def __init__(self, priority: int = 50) -> None:
        self.priority = priority

    def before_episodes(self, training: Training) -> None:
        """Before the first episodes begin, or those of the checkpoint are continued.

        The hook has its state back; here it may change the environments.
        """

    def before_train(self, training: Training) -> None: ...

    def before_iter(self, training: Training) -> None: ...

    def after_iter(self, training: Training) -> None: ...

    def after_eval(self, training: Training, result: EvalResult) -> None:
        """Called with the episodes, the losses on held-out data, or both."""

    def after_train(self, training: Training) -> None: ...

    def score(self, result: EvalResult) -> float | None:
        """How good an evaluation is: the policy with the largest score is the best.

        None leaves that to the other hooks; without any it is ``EvalResult.score``, the
        mean return or that of games, or, on held-out data alone, the loss with a minus
        sign. Where the weights of the reward are learned, none is the best then.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` needs, as plain data; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what ``state_dict`` returned, if that was not empty.

        Raises:
            ValueError, KeyError, TypeError: if it does not fit; the run then does not
                begin.
        """


class Hooks:
    """All hooks of a run, in the order in which they are called.

    Args:
        hooks: in any order.

    Raises:
        ConfigError: if several want to have evaluations recorded.
    """

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = sorted(hooks, key=lambda hook: hook.priority)
        recorders = [name for name, hook in self._named() if hook.recording]
        if len(recorders) > 1:
            raise ConfigError(
                f"evaluations are recorded by one hook, got {', '.join(recorders)}: "
                "leave the others out"
            )
        self._is_score_told = False  # that one of several counts

    def __iter__(self) -> Any:
        return iter(self._hooks)

    def of_environments(self) -> list[str]:
        """Names of those that change the environments."""
        return [type(h).__name__ for h in self._hooks if h.changes_environments]

    @property
    def take_snapshots(self) -> bool:
        """Whether there is one that does."""
        return any(hook.takes_snapshots for hook in self._hooks)

    def call(self, place: str, training: Training, *arguments: object) -> None:
        """Calls them all; the first exception ends that."""
        for hook in self._hooks:
            getattr(hook, place)(training, *arguments)

    @property
    def recording(self) -> EpisodeRecording | None:
        """What is recorded of evaluations, if a hook wants it."""
        return next((hook.recording for hook in self._hooks if hook.recording), None)

    def score(self, result: EvalResult) -> float | None:
        """What the first hook says that has an opinion, see ``Hook.score``.

        Raises:
            ConfigError: if that is no number.
        """
        scores = [
            (name, score)
            for name, hook in self._named()
            if (score := hook.score(result)) is not None
        ]
        if not scores:
            return None
        (name, score), *others = scores
        if others and not self._is_score_told:
            self._is_score_told = True
            _logger.warning(
                "%s comes first and decides which policy is the best; leave out %s, "
                "whose score has no effect.",
                name,
                ", ".join(other for other, _ in others),
            )
        try:
            return float(score)  # also of a bool, of numpy or of a tensor
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(
                f"{name}.score must return a number or None, got {shorten(score)}"
            ) from error

    def finish(self, training: Training, error: BaseException | None) -> None:
        """Calls ``after_train`` of every hook, even if others raise.

        Args:
            training: the trainer.
            error: what ended the run; it is raised again by the caller.

        Raises:
            Exception: the first one of a hook, unless there is an ``error`` already.
                All others are logged with their traceback.
        """
        first = error
        for hook in self._hooks:
            try:
                hook.after_train(training)
            except (Exception, SystemExit) as its_error:
                if first is None:
                    first = its_error
                else:
                    _logger.error(
                        "%s.after_train failed, too:",
                        type(hook).__name__,
                        exc_info=its_error,
                    )
        if first is not None and first is not error:
            raise first

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Name -> state of every hook that has one."""
        states = {name: hook.state_dict() for name, hook in self._named()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, states: dict[str, dict[str, Any]]) -> None:
        """Gives the hooks their states back; a line tells what nobody wants.

        Raises:
            CheckpointError: naming a hook that cannot use what it is given.
        """
        hooks = dict(self._named())
        for name, state in states.items():
            hook = hooks.pop(name, None)
            if hook is None:
                if ranks.is_first:  # others may have read its state for all its hooks
                    _logger.warning(
                        "The checkpoint holds the state of a hook %s, which this run "
                        "does not have: it is dropped.",
                        name,
                    )
                continue
            try:
                hook.load_state_dict(state)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CheckpointError(
                    f"the state of the hook {name} in the checkpoint does not fit: "
                    f"{type(error).__name__}: {error}. Use the hook as it was then, "
                    "leave it out, or begin a new run in another root_dir."
                ) from error

    def _named(self) -> Iterable[tuple[str, Hook]]:
        """Each with the name of its class, numbered from the second one on."""
        count: collections.Counter[str] = collections.Counter()
        for hook in self._hooks:
            name = type(hook).__name__
            count[name] += 1
            yield (name if count[name] == 1 else f"{name}-{count[name]}"), hook


def build_hooks(ctors: Sequence[Callable[..., Any]]) -> list[Hook]:
    """The hooks of ``TrainerConfig.hook_ctors``.

    Raises:
        ConfigError: if one is no hook.
    """
    hooks = [ctor() for ctor in ctors]
    check_hooks(hooks, "TrainerConfig.hook_ctors must build Hooks")
    return hooks


def check_hooks(hooks: Any, expected: str) -> None:
    """Finds what is no hook, or no sequence of them.

    Raises:
        ConfigError: saying what was expected.
    """
    for hook in hooks if isinstance(hooks, Sequence) else [hooks]:
        if isinstance(hook, type):
            raise ConfigError(f"{expected}, got the class {hook.__name__}: call it")
        if not isinstance(hook, Hook):
            raise ConfigError(f"{expected}, got a {type(hook).__name__}")
    if not isinstance(hooks, Sequence):
        raise ConfigError(f"{expected}, got one without a list: hooks=[...]")


@configurable
class ReplaySaver(Hook):
    """Keeps the newest files ``replay-<iterations>`` below ``root_dir/replay``.

    Each is a source for ``TrainerConfig.offline_buffer_dir`` of another run. It appears
    when it is complete, and older ones are deleted only after that. The run goes on if
    one cannot be written. The last one is written when the run ends, however it does.
    Every rank of a run writes its part, which are read together.

    Args:
        interval: iterations between two files; 0 writes only the last one.
        keep: how many files.
        priority: see :class:`Hook`.
    """

    on_all_ranks = True

    def __init__(self, interval: int = 0, keep: int = 1, priority: int = 50) -> None:
        super().__init__(priority)
        if interval < 0 or keep < 1:
            raise ValueError(
                "interval must be at least 0 and keep at least 1, got "
                f"{interval} and {keep}"
            )
        self._interval = interval
        self._keep = keep
        self._saved_iteration: int | None = None

    def before_train(self, training: Training) -> None:
        """Raises ConfigError if there is nothing to be saved, or no place for it."""
        if training.algorithm.on_policy:
            raise ConfigError(
                f"ReplaySaver: {training.algorithm.name} is on-policy and has no "
                "replay buffer. Use an off-policy algorithm, or alf_lite.bin.collect."
            )
        if not training.owns_root_dir:
            raise ConfigError(
                "ReplaySaver: there is nowhere to write to. Give Trainer a root_dir."
            )

    def after_iter(self, training: Training) -> None:
        if self._interval and training.run.iterations % self._interval == 0:
            self._save(training)

    def after_train(self, training: Training) -> None:
        if not training.algorithm.on_policy:
            self._save(training)

    def _save(self, training: Training) -> None:
        iteration, buffer = training.run.iterations, training.algorithm.replay_buffer
        if iteration == self._saved_iteration or buffer is None:
            return
        if not training.owns_root_dir:
            _logger.error("The replay buffer was not saved: there is no root_dir.")
            return
        directory = training.root_dir / "replay"
        try:
            # A run that is resumed comes to the same iteration again.
            with new_output(
                directory / f"replay-{iteration}", replace_file=True
            ) as temporary:
                buffer.save().write_to(temporary)
        except ConfigError as error:
            _logger.error("The replay buffer was not saved: %s", error)
            return
        self._saved_iteration = iteration
        for path in _saved_buffers(directory)[: -self._keep]:
            path.unlink(missing_ok=True)


def _saved_buffers(directory: Path) -> list[Path]:
    """The saved buffers, oldest first."""
    found = [
        (int(match[1]), path)
        for path in directory.iterdir()
        if (match := _REPLAY_NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]
