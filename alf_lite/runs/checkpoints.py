"""The checkpoints of a training run: when one is written, and how one is resumed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from alf_lite.algorithms.learning.rank_share import equal_on_all_ranks
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer, LoadedCheckpoint
from alf_lite.checkpoints.data import NUM_RANKS
from alf_lite.config import files as config_files
from alf_lite.environments.specs_only_environment import saved_spaces
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.runs import training_state
from alf_lite.runs.directory import (
    INOPERATIVE_CONFIG,
    OPERATIVE_CONFIG,
    USER_CONFIG,
    RunDirectory,
)
from alf_lite.runs.rank_checkpoints import (
    RANKS,
    load_together,
    part_of_rank,
    ranks_entry,
    write_together,
)
from alf_lite.runs.training_state import EvaluatedPolicy, RunState
from alf_lite.utils import event_writer, random_state, row_log, summary
from alf_lite.utils.plain_data import check_like, check_numbers
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)
# A full disk may be emptied; a run is not ended by one checkpoint that failed.
_MAX_FAILURES = 3


class KeepsState(Protocol):
    """Hooks: plain data that a checkpoint keeps beside that of the algorithm."""

    def state_dict(self) -> dict[str, dict[str, Any]]: ...

    def load_state_dict(self, states: dict[str, dict[str, Any]]) -> None: ...


class RunCheckpoints:
    """Saves and resumes one run.

    A checkpoint changes nothing in the run that it is taken from. The run that is
    resumed from it brings the open episodes back by repeating them; where that comes to
    the same step, both do exactly the same afterwards.

    Args:
        run_directory: where to write; locked by the caller.
        keep_latest: how many resumable checkpoints to keep beside the best one.
        given: what was given in Python, see :func:`config_texts`.
        uninterrupted: what stops the run waits in this block, while a checkpoint is
            written.
        is_kept: False to write nothing at all.

    Attributes:
        run_id: what the event files of this run end with.
        last_path: the newest checkpoint that the run can be resumed from.
    """

    def __init__(
        self,
        run_directory: RunDirectory,
        keep_latest: int,
        given: Mapping[str, str] = MappingProxyType({}),
        *,
        uninterrupted: Callable[[], AbstractContextManager[None]],
        is_kept: bool,
    ) -> None:
        self.run_directory = run_directory
        self._uninterrupted = uninterrupted
        self._is_kept = is_kept
        self._given = given
        self._checkpointer = Checkpointer(run_directory.checkpoints, keep_latest)
        # Where those of the run are; a rank has parts of its own.
        root = run_directory.path if ranks.is_first else run_directory.path.parents[1]
        self._of_run = root / run_directory.checkpoints.name
        self.run_id = event_writer.new_run_id()
        self._event_files: dict[str, int] = {}
        self._log_sizes: dict[str, int] = {}
        self._is_new = False
        self.last_path: Path | None = None
        self._last_iteration: int | None = None
        self._failures = 0

    def has_any(self) -> bool:
        """Whether there is something to resume.

        The best policy of a run that ended before its first checkpoint is nothing.
        """
        record = self.run_directory.earlier_record
        ended_before = (
            record.get("resumed_iterations") == 0
            and record.get("checkpoint") is None
            and self._checkpointer.has_policies_only()
        )
        return self._checkpointer.has_checkpoint() and not ended_before

    def resume(self, algorithm: RLAlgorithm, hooks: KeepsState) -> RunState | None:
        """Restores the newest valid checkpoint; None if this is a new run.

        Args:
            algorithm: gets its state back.
            hooks: those with a state, too.

        Raises:
            CheckpointError: if there are checkpoints but none can be used.
        """
        if not ranks.broadcast_data(self.has_any()):
            if not ranks.is_first:
                self._checkpointer.drop_after(-1)  # of another run
            # A run that died before its first checkpoint begins anew.
            earlier = self.run_directory.earlier_record.get("run_id")
            earlier = earlier if event_writer.is_run_id(earlier) else None
            self.run_id = earlier or self.run_id
            self._is_new = earlier is None
            return None
        loaded = load_together(self._checkpointer, self._of_run, algorithm)
        run_id, sizes, log_sizes = _event_files_of(loaded)
        hook_states = _hook_states_of(loaded)
        run = training_state.restore(algorithm, loaded)
        equal_on_all_ranks(algorithm)
        algorithm.metrics.share()
        self.last_path = self._of_run / loaded.path.name
        self._last_iteration = run.iterations
        self.run_id, self._event_files = run_id or self.run_id, sizes
        self._log_sizes = log_sizes
        hooks.load_state_dict(hook_states)
        return run

    def note_later_best(self, run: RunState) -> None:
        """Notes the best policy if it was saved after what the run goes on from."""
        for info in self._checkpointer.list_checkpoints():
            is_later = info.step > run.iterations
            if is_later and _is_better(info.best_score, run.best_score):
                run.best_score, run.best_iteration = info.best_score, info.step

    def check_logs(self) -> None:
        """Raises ConfigError if a new run would add to logs that are there already."""
        there = [path for path in self.run_directory.logs.values() if path.exists()]
        if self._is_new and there:
            raise ConfigError(
                f"{there[0]} is there, but no run that has written it. Move it away, "
                "or use another root_dir."
            )

    def rewind_summaries(self) -> None:
        """Drops what was summarised after the checkpoint that was resumed."""
        for name, path in self.run_directory.logs.items():
            row_log.rewind_rows(path, self._log_sizes.get(name, 0))
        event_writer.rewind_event_files(
            self.run_directory.train_summaries, self.run_id, self._event_files
        )

    def update_config_texts(self) -> dict[str, str]:
        """Writes the configuration as it is known now, and returns its texts."""
        texts = config_texts(self._given)
        if self._is_kept:
            self.run_directory.lock.check()
            self.run_directory.write_config_texts(texts, required=False)
        return texts

    def save(
        self,
        algorithm: RLAlgorithm,
        run: RunState,
        hooks: KeepsState,
        *,
        required: bool,
    ) -> None:
        """Writes a checkpoint to resume from; nothing if the last one is of now.

        Args:
            algorithm: between two iterations.
            run: its counters.
            hooks: those whose state is kept.
            required: raise at once if it cannot be written, instead of waiting for the
                next one.

        Raises:
            DivergedError: if a parameter is not finite.
            CheckpointError: if it could not be written, if ``required`` or for the
                third time in a row; or if the directory is not the run's any more.
        """
        begin = time.perf_counter()
        with self._uninterrupted():
            self._save(algorithm, run, hooks, required)
        summary.scalar("time/checkpoint", time.perf_counter() - begin)

    def _save(
        self, algorithm: RLAlgorithm, run: RunState, hooks: KeepsState, required: bool
    ) -> None:
        hook_states = hooks.state_dict()
        if self._last_iteration == run.iterations:
            return
        self._check(algorithm)
        if not self._is_kept:
            return
        summary.flush()
        directory, run_id = self.run_directory.train_summaries, self.run_id
        sizes = event_writer.event_file_sizes(directory, run_id)
        logs = self.run_directory.logs.items()
        log_sizes = {name: row_log.row_log_size(path) for name, path in logs}
        files = {"run_id": run_id, "sizes": sizes, "log_sizes": log_sizes}
        state = training_state.capture(algorithm, run, files, hook_states)
        state[training_state.TRAINER][RANKS] = ranks_entry(algorithm)
        if not ranks.is_first:
            state = part_of_rank(state, algorithm)
        score = _score_of(run) if ranks.is_first else None
        self._keep_better(run)
        try:
            path = write_together(
                lambda: self._write(algorithm, run, state, score, resumable=True),
                self._of_run,
            )
        except CheckpointError as error:
            self._failures += 1
            if required or self._failures >= _MAX_FAILURES:
                raise
            _logger.error("%s Trying again at the next checkpoint.", error)
            return
        if not ranks.is_first:  # only now that the run has its checkpoint
            self._checkpointer.prune()
        self._failures = 0
        self.last_path, self._last_iteration = path, run.iterations

    def _check(self, algorithm: RLAlgorithm) -> None:
        self.run_directory.lock.check()
        algorithm.raise_late_errors()
        training_state.check_finite(algorithm)

    def would_replace_better(self, run: RunState) -> bool:
        """Whether a checkpoint of now would take the place of a better policy.

        That is one of a part that was killed. The next iteration has room; if there is
        none, that policy moves to an earlier one.
        """
        there = self._checkpointer.score_at(run.iterations)
        return ranks.broadcast_data(_is_better(there, _score_of(run)))

    def _keep_better(self, run: RunState) -> None:
        there = self._checkpointer.score_at(run.iterations)
        if ranks.is_first and _is_better(there, _score_of(run)):
            try:
                self._checkpointer.make_room(run.iterations)
            except CheckpointError as error:
                _logger.error("%s The best policy is not kept.", error)

    def save_if_best(self, algorithm: RLAlgorithm, run: RunState) -> None:
        """Writes the best policy so far, to be played but not resumed from.

        Resuming from it would not repeat the uninterrupted run, whose environments go
        on undisturbed by an evaluation. If the last checkpoint is of now, it is said to
        hold it.
        """
        score = _score_of(run)
        if score is None or not self._is_kept or not ranks.is_first:
            return
        if self._last_iteration == run.iterations:
            self.mark_if_best(run)
            return
        with self._uninterrupted():
            self._check(algorithm)
            state = {training_state.ALGORITHM: algorithm.state_dict()}
            try:
                self._write(algorithm, run, state, score, resumable=False)
            except CheckpointError as error:
                _logger.error("%s The best policy is not kept.", error)

    def mark_if_best(self, run: RunState) -> None:
        """Says that the last checkpoint holds the best policy, as was found after it.

        What a run that is resumed from it reads stays as it is: the evaluation is not
        one that the uninterrupted run makes, or is repeated.
        """
        score = _score_of(run)
        if score is None or not self._is_kept:
            return
        assert self._last_iteration == run.iterations, "nothing was trained since"
        with self._uninterrupted():
            self.run_directory.lock.check()
            try:
                self._checkpointer.mark_best(run.iterations, score)
            except CheckpointError as error:
                _logger.error("%s It is not known as that of the best policy.", error)

    def keep_best(
        self, algorithm: RLAlgorithm, run: RunState, policy: EvaluatedPolicy
    ) -> None:
        """Keeps the policy that was the best some iterations ago, as was found now.

        The checkpoint of that iteration, if there is one, is said to hold it.
        """
        if not self._is_kept:
            return
        assert run.best_score is not None, run
        with self._uninterrupted():
            self.run_directory.lock.check()
            try:
                if self._checkpointer.mark_best(policy.iterations, run.best_score):
                    return
                state = {training_state.ALGORITHM: dict(policy.state)}
                self._write(algorithm, policy, state, run.best_score, resumable=False)
            except CheckpointError as error:
                _logger.error("%s The best policy is not kept.", error)

    def best_score(self, run: RunState) -> float | None:
        """The highest score of the run, and of the checkpoints that there are."""
        best = run.best_score
        for info in self._checkpointer.list_checkpoints():
            if _is_better(info.best_score, best):
                best = info.best_score
        return best

    def begin_episodes(self, algorithm: RLAlgorithm, run: RunState) -> None:
        """Starts the first episodes of a run, or continues those of the checkpoint."""
        own_seed = ranks.seed_of(run.seed)
        seed = random_state.derive_seed(own_seed, "environments", run.iterations)
        if self.last_path is None:
            algorithm.reset_environment(seed)
            return
        new = algorithm.training_run.resume_environment(seed)
        if new:
            _logger.warning(
                "New episodes begin in %s: what they had begun counts as cut off by a "
                "time limit, and from here on this is not to the bit the run that was "
                "not interrupted.",
                new,
            )

    def _write(
        self,
        algorithm: RLAlgorithm,
        where: RunState | EvaluatedPolicy,
        state: dict[str, Any],
        best_score: float | None,
        *,
        resumable: bool,
    ) -> Path:
        parameters = algorithm.named_parameters(remove_duplicate=False)
        return self._checkpointer.save(
            where.iterations,
            state,
            config_texts(self._given),
            {
                **training_state.fingerprint(algorithm),
                "environment": saved_spaces(algorithm.env),
                "iterations": where.iterations,
                "env_steps": where.env_steps,
                **({NUM_RANKS: ranks.size} if ranks.is_first else {}),
                "buffers": sorted(
                    # Parameters are what else there is in the state.
                    algorithm.state_dict().keys() - dict(parameters).keys()
                ),
            },
            best_score=best_score,
            mapped_files=algorithm.training_run.files() if resumable else None,
            resumable=resumable,
            prunes=ranks.is_first,
        )


def _event_files_of(
    loaded: LoadedCheckpoint,
) -> tuple[str | None, dict[str, int], dict[str, int]]:
    """The id of the run, if the checkpoint has one, and the sizes of its files.

    Those of its event files by their names, and those of its logs.
    """
    trainer = training_state.part_of(loaded, training_state.TRAINER)
    files: Any = trainer.get("event_files")
    what = training_state.entry(loaded, training_state.TRAINER, "event_files")
    check_like(files, {}, what)
    if "run_id" not in files:
        return None, {}, {}  # written before runs had one
    sizes: Any = files.get("sizes")
    log_sizes: Any = files.get("log_sizes", {})
    for name, found in (("sizes", sizes), ("log_sizes", log_sizes)):
        check_like(found, {}, f"{what}[{name!r}]")
        check_numbers(found, f"{what}[{name!r}]")
    all_sizes = [*sizes.values(), *log_sizes.values()]
    is_like = all(type(size) is int for size in all_sizes)
    if not (event_writer.is_run_id(files["run_id"]) and is_like):
        raise CheckpointError(f"{what}: expected the id of a run, and sizes of files")
    return files["run_id"], sizes, log_sizes


def _hook_states_of(loaded: LoadedCheckpoint) -> dict[str, dict[str, Any]]:
    """Name -> state of every hook that had one."""
    trainer = training_state.part_of(loaded, training_state.TRAINER)
    states: Any = trainer.get("hooks", {})
    if not isinstance(states, dict) or not all(
        isinstance(state, dict) for state in states.values()
    ):
        what = training_state.entry(loaded, training_state.TRAINER, "hooks")
        raise CheckpointError(f"{what}: expected the states of hooks by their names")
    return states


def _score_of(run: RunState) -> float | None:
    """The score of the policy that there is now, if it was evaluated as the best."""
    is_best = run.best_iteration == run.iterations == run.last_eval_iteration
    return run.best_score if is_best else None


def _is_better(score: float | None, best: float | None) -> bool:
    return score is not None and (best is None or score > best)


def config_texts(given: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The configuration as it was given, what of it was used, and what was not.

    Args:
        given: in Python, as a conf writes it.
    """
    return {
        USER_CONFIG: config_files.user_config_text(given),
        OPERATIVE_CONFIG: config_files.operative_config_text(given),
        INOPERATIVE_CONFIG: config_files.inoperative_config_text(),
    }
