"""The training loop: iterations, evaluations, checkpoints, summaries, and their end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alf_lite.algorithms.learning.actor_copy import create_remote_environment
from alf_lite.algorithms.learning.create_algorithm import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig, default_settings
from alf_lite.config import files as config_files
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.environments.worker_environments import RemoteEnvironment
from alf_lite.errors import ConfigError
from alf_lite.trainers import rebuilding, run_record, train_summaries
from alf_lite.trainers.hooks import Hook, Hooks, build_hooks
from alf_lite.trainers.progress_display import NoDisplay, ProgressDisplay, Status
from alf_lite.trainers.run_checkpoints import RunCheckpoints, config_texts
from alf_lite.trainers.run_directory import RunDirectory
from alf_lite.trainers.run_evaluations import RunEvaluations
from alf_lite.trainers.run_record import RunRecord, TrainResult
from alf_lite.trainers.schedule import SpeedMeter
from alf_lite.trainers.signals import STACKS_FILE, BrokenOffError, StopSignals
from alf_lite.trainers.training_state import RunState
from alf_lite.utils import random_state, summary
from alf_lite.utils.interruption import interruption
from alf_lite.utils.progress import Limits

_logger = logging.getLogger(__name__)


class Trainer:
    """Trains the algorithm of a configuration in a directory of its own.

    A directory that holds a run is resumed. Everything is built, used and closed within
    :meth:`train`, which is called once.

    Args:
        what: an algorithm that was built with ``env`` and ``config``, or a
            configuration that names one. The algorithm is finished with the training.
        root_dir: of the run; that of the configuration by default. Without any,
            nothing is kept.
        hooks: called at fixed places, see :class:`Hook`; beside those of the config.
        display: shows the progress; nothing by default.
        create_env: builds the environments. Called with ``seed``, and for evaluation
            with ``num_parallel_environments`` too. By default as the environment of the
            algorithm was made by ``create_environment``, or as the conf says.

    Raises:
        ConfigError: if something else is given, or it cannot be trained.
    """

    def __init__(
        self,
        what: TrainerConfig | RLAlgorithm,
        root_dir: str | os.PathLike[str] | None = None,
        *,
        hooks: Sequence[Hook] = (),
        display: ProgressDisplay | None = None,
        create_env: Callable[..., Environment] | None = None,
    ) -> None:
        _check_root_dir(root_dir)
        config, self._algorithm = _what_to_train(what)
        env = None if self._algorithm is None else self._algorithm.env
        built_from = None if self._algorithm is None else self._algorithm.built_from
        root_dir = root_dir or config.root_dir
        self._temporary: tempfile.TemporaryDirectory | None = None
        if not root_dir:
            self._temporary = tempfile.TemporaryDirectory(prefix="alf_lite-")
            root_dir = self._temporary.name
        self._run_directory = RunDirectory(root_dir)
        self.root_dir = self._run_directory.path
        self._limits = _limits_of(config)
        create_env = create_env or _create_env_as(env)
        _check_evaluation(config, env, create_env)
        self._given = rebuilding.what_was_given(
            config, create_env, hooks, built_from, env
        )
        if self._given.left_out and self._temporary is None and built_from is not None:
            _logger.warning("%s", rebuilding.only_from_python(self._given.left_out))
        self.config = dataclasses.replace(config, root_dir=str(self.root_dir))
        self._hooks = Hooks(hooks)
        self._display = display or NoDisplay()
        if create_env is create_environment:
            defaults = default_settings(config.algorithm_ctor)
            create_env = functools.partial(
                create_env, default_num_environments=defaults.num_parallel_environments
            )
        self._create_env = create_env
        self._signals = StopSignals()
        self._stop_reason = ""
        self._is_checkpoint_requested = False
        self._was_finished = False
        self._was_called = False
        self._seconds_before = 0.0
        self._note = ""

    @property
    def owns_root_dir(self) -> bool:
        """False if it was deleted, or is another run's now."""
        return not self._run_directory.lock.is_lost()

    def request_stop(self, reason: str) -> None:
        """Ends the run after this iteration, with a checkpoint."""
        self._stop_reason = reason

    def request_checkpoint(self) -> None:
        """Writes a checkpoint after this iteration; the run goes on."""
        self._is_checkpoint_requested = True

    def train(self) -> TrainResult:
        """Trains until a limit, a threshold, a hook or a signal ends the run.

        Whatever else ends it, what was learned until the last whole iteration is saved
        if it is still there, and a note of the exception says what is kept.

        Raises:
            ConfigError: if the configuration or ``root_dir`` cannot be used.
            CheckpointError: if the run in ``root_dir`` cannot be continued, a
                checkpoint not be written, or ``root_dir`` is not the run's any more.
            EnvError: if an environment fails.
            WorkerError: if an unroll worker fails and is not replaced.
            DivergedError: if something becomes NaN or infinite; the last good
                checkpoint stays.
            Exception: what user code raises.
        """
        if self._was_called:
            raise ConfigError(
                "this trainer has trained already. To go on, build another Trainer of "
                "the same root_dir with a new algorithm and a larger limit."
            )
        self._was_called = True
        with contextlib.ExitStack() as stack:
            if self._temporary is not None:
                stack.callback(self._temporary.cleanup)
            stack.enter_context(self._signals)
            try:
                self._train()
            except BrokenOffError:
                assert self._signals.received is not None
                self._stop_reason = self._signals.received.name
            return self._result()

    def _train(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._run_directory)
            self._build(stack)
            self._was_finished = self._is_finished()
            if self._was_finished:
                return
            self._begin(stack)
            error: BaseException | None = None
            try:
                if not self.algorithm.episodes_have_begun:
                    self._checkpoints.begin_episodes(self.algorithm, self.run)
                self._hooks.call("before_train", self)
                self._loop()
                self._finish()
            except BaseException as caught:
                error = caught
                # The algorithm has advanced it already.
                self.algorithm.progress.global_counter = self.run.iterations
                summary.set_global_counter(self.run.iterations)
                self._note = run_record.keep_what_is_whole(
                    error, self.run.iterations, self._checkpoints, self._save
                )
                interruption.end_iteration()
                raise
            finally:
                self._hooks.finish(self, error)

    # Begin

    def _build(self, stack: contextlib.ExitStack) -> None:
        """Builds everything and restores the run; writes nothing."""
        config = self.config
        self._checkpoints = RunCheckpoints(
            self._run_directory, config.keep_checkpoints, self._given.statements
        )
        with config_files.gin_errors():
            seed = self._build_algorithm(stack)
            config = self.config
            self._evaluations = RunEvaluations(
                config, self._create_env, seed, self._signals, self._display
            )
            stack.callback(self._evaluations.close)
            self.algorithm.setup_training()
            self._evaluations.load_data(self.algorithm)
            self._hooks = Hooks([*self._hooks, *build_hooks(config.hook_ctors)])
        config_files.check_unused_bindings()
        done = self.algorithm.progress
        if done.iterations and self._checkpoints.has_any():
            raise ConfigError(
                f"{self.root_dir} holds a run, but {self.algorithm.name} has been "
                "trained elsewhere. Use another root_dir."
            )
        resumed = self._checkpoints.resume(self.algorithm, self._hooks)
        self._is_resumed = resumed is not None
        self.run = resumed or RunState(
            seed=seed, iterations=done.iterations, env_steps=done.env_steps
        )
        # A run may be resumed with other limits.
        self.algorithm.progress.move_to(
            self.run.iterations, self.run.env_steps, self._limits
        )

    def _build_algorithm(self, stack: contextlib.ExitStack) -> int:
        """Builds what was not given; returns the seed of the run."""
        seed = self.config.random_seed
        if seed is None:
            seed = random_state.new_seed()
        self.config = dataclasses.replace(self.config, random_seed=seed)
        if self._algorithm is not None:
            if self._algorithm.is_finished:
                raise ConfigError(
                    f"{self._algorithm.name} has been trained to its end, and its "
                    "environment is closed. Build a new environment and algorithm; "
                    "with the same root_dir and a larger limit the run goes on."
                )
            self.algorithm = self._algorithm
            stack.callback(self.algorithm.finish_train)
            return seed
        random_state.seed_everything(seed)
        env = self._create_training_env(seed)
        stack.callback(env.close)
        self.algorithm = create_algorithm(self.config, env)
        stack.callback(self.algorithm.finish_train)
        if isinstance(env, RemoteEnvironment):
            env.release()
        return seed

    def _create_training_env(self, seed: int) -> Environment:
        """The environment to train in, or what is known of those of the workers."""
        env_seed = random_state.derive_seed(seed, "environments")
        if self.config.async_unroll:
            return create_remote_environment(self.config, self._create_env, env_seed)
        return self._create_env(seed=env_seed)

    def _is_finished(self) -> bool:
        return self._limits.are_reached(
            self.run.iterations, self.run.env_steps
        ) or self._evaluations.is_threshold_reached(self.run)

    def _begin(self, stack: contextlib.ExitStack) -> None:
        """Opens the summaries, writes down what runs here, handles signals."""
        run, directory = self.run, self._run_directory
        if self._is_resumed:
            _logger.info(
                "Resuming from %s: iteration %d, %d environment steps, seed %d.",
                self._checkpoints.last_path,
                run.iterations,
                run.env_steps,
                run.seed,
            )
        elif directory.run_file.exists():
            _logger.warning(
                "%s holds a run that ended before its first checkpoint: starting from "
                "the beginning.",
                directory.path,
            )
        run_id = self._checkpoints.run_id
        record = RunRecord(
            directory,
            self.config.device,
            run_id=run_id,
            seed=run.seed,
            resumed_iterations=run.iterations,
            **{rebuilding.GIVEN_IN_PYTHON: self._given.left_out},
        )
        record.begin()
        stack.push(
            lambda kind, error, traceback: record.end(
                run_record.end_entries(self._result(), error)
            )
        )
        directory.write_config_texts(config_texts(self._given.statements))
        self._checkpoints.rewind_summaries()
        stack.enter_context(
            summary.writer_to(
                directory.train_summaries, self.config.summaries_flush_secs, run_id
            )
        )
        summary.set_global_counter(run.iterations)
        self._speed = SpeedMeter(run.env_steps)
        self._is_measuring = False
        self._display.start(self._status())
        self._shown_iteration = run.iterations
        stack.callback(self._display.close)
        interruption.end_iteration()
        self._signals.install(self._stacks_path)
        self._seconds_before = run.seconds
        self._begin_time = time.monotonic() - run.seconds

    # Iterations

    def _loop(self) -> None:
        slot = self._checkpoint_slot()
        if self._evaluations.is_due(self.run):
            self._evaluate()
            self._mark_if_best()
        while not self._must_stop():
            self._hooks.call("before_iter", self)
            self._iterate()
            if self._evaluations.is_due(self.run):
                self._evaluate()
            self._hooks.call("after_iter", self)
            if self._must_stop():
                break  # the last checkpoint is written after the last evaluation
            self._run_directory.lock.check(at_once=False)
            if self._take_checkpoint_request() or self._checkpoint_slot() > slot:
                slot = self._checkpoint_slot()
                self._save(required=False)
            elif self.run.best_iteration == self.run.iterations:
                with self._signals.held_off():
                    self._checkpoints.save_best(self.algorithm, self.run)
            if self._display.is_due(self._fraction()):
                self._show_progress()

    def _iterate(self) -> None:
        """One iteration of the algorithm, and its summaries."""
        iteration = self.run.iterations + 1
        with summary.record_if(train_summaries.is_due(iteration, self.config)):
            begin = time.perf_counter()
            interruption.begin_iteration()
            self.algorithm.train_iter()
            self.run.iterations = iteration
            self.run.env_steps = self.algorithm.num_env_steps
            self.run.seconds = time.monotonic() - self._begin_time
            train_summaries.summarize_iteration(
                self.algorithm, self._speed, time.perf_counter() - begin
            )
            interruption.end_iteration()
        if not self._is_measuring:
            # In the first one workers start and code is compiled.
            self._is_measuring = True
            self._speed = SpeedMeter(self.run.env_steps)
            self._display.begin_measuring(self._status())
        if iteration == 1:
            # Only now is known what the parts that are built on first use have read.
            self._run_directory.lock.check()
            texts = config_texts(self._given.statements)
            self._run_directory.write_config_texts(texts, required=False)
            train_summaries.summarize_config(texts)

    def _must_stop(self) -> bool:
        run = self.run
        if self._signals.received is not None:
            self._stop_reason = self._signals.received.name
        elif self._limits.are_reached(run.iterations, run.env_steps):
            self._stop_reason = "finished"
        elif self._evaluations.is_threshold_reached(run):
            self._stop_reason = (
                f"early_stop_return: {run.early_stop_score:.4g} reaches "
                f"{self.config.early_stop_return:.4g}"
            )
        return bool(self._stop_reason)

    # Evaluations and checkpoints

    def _evaluate(self) -> None:
        result = self._evaluations.evaluate(self.algorithm, self.run)
        if result is not None:
            self._hooks.call("after_eval", self, result)

    def _checkpoint_slot(self) -> int:
        run = self.run
        return self._limits.slot(
            run.iterations, run.env_steps, self.config.num_checkpoints
        )

    def _take_checkpoint_request(self) -> bool:
        """Whether a hook or SIGUSR2 has asked for a checkpoint."""
        requested, self._is_checkpoint_requested = self._is_checkpoint_requested, False
        return self._signals.take_checkpoint_request() or requested

    def _save(self, *, required: bool, with_hooks: bool = True) -> None:
        begin = time.perf_counter()
        with self._signals.held_off():
            hooks = self._hooks.state_dict() if with_hooks else {}
            self._checkpoints.save(self.algorithm, self.run, hooks, required=required)
        summary.scalar("time/checkpoint", time.perf_counter() - begin)

    def _mark_if_best(self) -> None:
        """After an evaluation of what the last checkpoint holds."""
        if self.run.best_iteration == self.run.iterations:
            with self._signals.held_off():
                self._checkpoints.mark_best(self.algorithm, self.run)

    # End

    def _finish(self) -> None:
        """Saves, and evaluates for the last time."""
        if self._shown_iteration != self.run.iterations:
            self._show_progress()
        self._save(required=True)
        if self._evaluations.is_final_one_missing(self.run):
            # After the checkpoint, because a run that goes on from there makes none.
            self._evaluate()
            self._mark_if_best()
        self.algorithm.finish_train()

    def _result(self) -> TrainResult:
        run = self.run
        return TrainResult(
            root_dir=self._run_directory.path,
            iterations=run.iterations,
            env_steps=run.env_steps,
            num_updates=self.algorithm.num_updates,
            seconds=run.seconds,
            seconds_now=run.seconds - self._seconds_before,
            stop_reason=self._stop_reason,
            stop_signal=self._signals.received,
            was_finished=self._was_finished,
            evaluation=self._evaluations.latest,
            average_return=train_summaries.average_return(self.algorithm),
            best_score=self._checkpoints.best_score(run),
            checkpoint=None if self._temporary else self._checkpoints.last_path,
            note=self._note,
        )

    # Helpers

    def _fraction(self) -> float:
        return self._limits.fraction(self.run.iterations, self.run.env_steps)

    def _stacks_path(self) -> Path | None:
        directory = self._run_directory
        return None if directory.lock.is_lost() else directory.path / STACKS_FILE

    def _status(self) -> Status:
        return Status(
            fraction=self._fraction(),
            iterations=self.run.iterations,
            env_steps=self.run.env_steps,
            average_return=train_summaries.average_return(self.algorithm),
            num_updates=self.algorithm.num_updates,
        )

    def _show_progress(self) -> None:
        self._shown_iteration = self.run.iterations
        self._display.show(self._status())


def _limits_of(config: TrainerConfig) -> Limits:
    """How long a run shall be; ConfigError if for ever."""
    limits = Limits(config.num_iterations, config.num_env_steps)
    if limits == (0, 0):
        raise ConfigError(
            "TrainerConfig.num_iterations and num_env_steps are both 0, the run would "
            "never end: set at least one of them."
        )
    return limits


def train(
    what: str | os.PathLike[str] | TrainerConfig | RLAlgorithm,
    root_dir: str | os.PathLike[str] | None = None,
    *,
    gin_params: Sequence[str] = (),
    seed: int | None = None,
    hooks: Sequence[Hook] = (),
    display: ProgressDisplay | None = None,
    create_env: Callable[..., Environment] | None = None,
) -> TrainResult:
    """Trains what a conf, a configuration or an algorithm says.

    Args:
        what: the path of a conf or the name of one that comes with the library;
            otherwise see :class:`Trainer`.
        root_dir: see :class:`Trainer`, as for what follows.
        gin_params: override the conf, ``"TrainerConfig.num_env_steps = 10_000"``.
        seed: of everything random.
        hooks: see :class:`Trainer`.
        display: see :class:`Trainer`.
        create_env: see :class:`Trainer`.

    Raises:
        ConfigError: for a conf or settings that cannot be used; and see
            :meth:`Trainer.train`.
    """
    others: dict[str, Any] = {
        "hooks": hooks,
        "display": display,
        "create_env": create_env,
    }
    if not isinstance(what, str | os.PathLike):
        if gin_params:
            raise ConfigError("gin_params override a conf: change the config instead")
        if seed is not None:
            if not isinstance(what, TrainerConfig):
                raise ConfigError("seed: an algorithm has that of its TrainerConfig")
            config = dataclasses.replace(what, random_seed=seed)
            return Trainer(config, root_dir, **others).train()
        return Trainer(what, root_dir, **others).train()
    parameters = [*gin_params]
    if seed is not None:
        parameters.append(f"TrainerConfig.random_seed = {seed}")
    with config_files.own_config():
        config_files.parse_config(os.fspath(what), parameters)
        with config_files.gin_errors():
            config = TrainerConfig()
        return Trainer(config, root_dir, **others).train()


def _what_to_train(
    what: TrainerConfig | RLAlgorithm,
) -> tuple[TrainerConfig, RLAlgorithm | None]:
    if isinstance(what, TrainerConfig):
        return what, None
    if not isinstance(what, RLAlgorithm):
        shown = what.__name__ if isinstance(what, type) else repr(what)
        raise ConfigError(
            f"Trainer: expected an algorithm or a TrainerConfig, got {shown}. Write "
            "Trainer(PPOAlgorithm(env=env, config=config), root_dir)."
        )
    if what.env is None or what.built_from is None:
        raise ConfigError(
            f"{what.name} was built without an environment to train in. Write "
            f"{type(what).__name__}(env=env, config=config)."
        )
    return what.built_from.config, what


def _check_root_dir(root_dir: Any) -> None:
    if root_dir is not None and not isinstance(root_dir, str | os.PathLike):
        hint = " Name it: create_env=..." if callable(root_dir) else ""
        raise ConfigError(
            f"Trainer: root_dir must be the path of a directory, got {root_dir!r}."
            f"{hint}"
        )


def _create_env_as(env: Environment | None) -> Callable[..., Environment]:
    """What builds environments as ``env`` was built."""
    if env is None or env.created_with is None:
        return create_environment
    return functools.partial(
        create_environment,
        **{k: v for k, v in env.created_with.items() if k != "seed"},
    )


def _check_evaluation(
    config: TrainerConfig, env: Environment | None, create_env: Callable[..., Any]
) -> None:
    is_unknown = env is not None and env.created_with is None
    if config.evaluate and is_unknown and create_env is create_environment:
        raise ConfigError(
            "TrainerConfig.evaluate needs environments of its own, and nothing says "
            "how to build them: give Trainer a create_env, or build the environment "
            "with create_environment(env_ctor=...)."
        )
