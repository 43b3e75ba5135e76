"""The training loop: iterations, evaluations, checkpoints, summaries, and their end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from alf_lite.algorithms.parts.reward_weights import learns_reward_weights
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig, rules
from alf_lite.config import files as config_files
from alf_lite.environments.env_indices import create_after
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.runs.checkpoints import RunCheckpoints
from alf_lite.runs.directory import RunDirectory
from alf_lite.runs.training_state import RunState
from alf_lite.trainers import run_end, train_summaries
from alf_lite.trainers.evaluations import RunEvaluations
from alf_lite.trainers.hooks import Hook, Hooks, build_hooks, check_hooks
from alf_lite.trainers.progress_display import (
    ProgressDisplay,
    RunDisplay,
    choose_display,
)
from alf_lite.trainers.progress_measures import SpeedMeter, Status
from alf_lite.trainers.run_end import TrainResult
from alf_lite.trainers.run_plan import RunPlan, trainable
from alf_lite.trainers.run_ranks import (
    Agreement,
    agree,
    check_same_config,
    directory_of_rank,
    hooks_of_rank,
)
from alf_lite.trainers.signals import STACKS_FILE, BrokenOffError, StopSignals
from alf_lite.utils import summary
from alf_lite.utils.interruption import interruption
from alf_lite.utils.leftover_threads import watch_end_of_program
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)

OnSignal = Literal["raise", "return"]


class Trainer:
    """Trains the algorithm of a configuration in a directory of its own.

    A directory that holds a run is resumed. Everything is built, used and closed within
    :meth:`train`, which is called once.

    Args:
        what: an algorithm that was built with ``env`` and ``config``, or a
            configuration that names one. The algorithm is finished with the training.
        root_dir: of the run; that of the configuration by default. Without any,
            nothing is kept: no checkpoints, no summaries.
        hooks: called at fixed places, see :class:`Hook`; beside those of the config.
        display: shows the progress; False shows nothing, True what the command line
            shows. None: the same on a terminal and in a notebook, else nothing.
        create_env: builds the environments. Called with ``seed``, and for evaluation
            with ``num_parallel_environments`` too. By default as the environment of the
            algorithm was made by ``create_environment``, or as the conf says.
        on_signal: what :meth:`train` does after Ctrl-C, SIGTERM or SIGHUP, when all is
            saved. ``"raise"``: ends the program as without training, with
            KeyboardInterrupt or SystemExit(143), or 129: a loop over seeds ends, and
            ``finally`` and ``atexit`` do their work. ``"return"``: returns the result,
            whose ``stop_signal`` says which one it was, and the program goes on.

    Raises:
        ConfigError: if something else is given, or it cannot be trained.
    """

    def __init__(
        self,
        what: TrainerConfig | RLAlgorithm,
        root_dir: str | os.PathLike[str] | None = None,
        *,
        hooks: Sequence[Hook] = (),
        display: ProgressDisplay | bool | None = None,
        create_env: Callable[..., Environment] | None = None,
        on_signal: OnSignal = "raise",
    ) -> None:
        ranks.join()
        if on_signal not in get_args(OnSignal):
            raise ConfigError(
                f'Trainer: on_signal must be "raise" or "return", got {on_signal!r}'
            )
        check_hooks(hooks, "Trainer: hooks are objects of classes derived from Hook")
        self._plan = RunPlan(what, root_dir, hooks, create_env)
        root_dir, self._temporary = self._plan.root_dir, None
        if not root_dir:
            # For what hooks write.
            self._temporary = tempfile.TemporaryDirectory(prefix="alf_lite-")
            root_dir = self._temporary.name
        root_dir = directory_of_rank(Path(root_dir))
        self._run_directory = RunDirectory(root_dir)
        self.root_dir = self._run_directory.path
        self._plan.config = dataclasses.replace(
            self._plan.config, root_dir=str(self.root_dir)
        )
        self._hooks = Hooks(hooks_of_rank(hooks))
        display = display if ranks.is_first else False
        self._display = RunDisplay(choose_display(display), self._status)
        self._signals = StopSignals()
        self._on_signal = on_signal
        self._stop_reason = ""
        self._is_checkpoint_requested = False
        self._is_checkpoint_due = False  # on all ranks
        self._was_finished = False
        self._was_called = False
        self._has_begun = False
        self._seconds_before = 0.0
        self._note = ""
        self._summarized: dict[str, Any] = {}  # the latest number of every tag

    @property
    def config(self) -> TrainerConfig:
        """Of the run; with its seed as soon as it is trained."""
        return self._plan.config

    @property
    def owns_root_dir(self) -> bool:
        """False if there is none, if it was deleted, or is another run's now."""
        return self._temporary is None and not self._run_directory.lock.is_lost()

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
            KeyboardInterrupt: after Ctrl-C, unless ``on_signal`` is ``"return"``; and
                while the run is built, when there is nothing to return yet.
            SystemExit: likewise, after SIGTERM with code 143, after SIGHUP with 129.
            Exception: what user code raises.
        """
        if self._was_called:
            raise ConfigError(
                "this trainer has trained already. To go on, build an environment and "
                "an algorithm with a larger limit, such as num_env_steps=..., and "
                "another Trainer of the same root_dir."
            )
        self._was_called = True
        with contextlib.ExitStack() as stack:
            stack.callback(watch_end_of_program)
            if self._temporary is not None:
                stack.callback(self._temporary.cleanup)
            stack.enter_context(self._signals)
            self._signals.install(self._stacks_path)
            try:
                self._train()
            except BrokenOffError:
                if not self._has_begun:
                    raise
                self._signals.uninstall()
                assert self._signals.received is not None
                self._stop_reason = self._signals.received.name
            result = self._result()
        end = self._signals.usual_end()
        if end is not None and self._on_signal == "raise":
            end.add_note(_end_of(result))
            raise end
        return result

    def _train(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._run_directory)
            self._build(stack)
            self._signals.check()
            self._was_finished = self._is_finished()
            if self._was_finished:
                return
            self._begin(stack)
            error: BaseException | None = None
            try:
                self._hooks.call("before_episodes", self)
                if not self.algorithm.episodes_have_begun:
                    self._checkpoints.begin_episodes(self.algorithm, self.run)
                self._hooks.call("before_train", self)
                self._signals.start_is_over()
                self._loop()
                self._finish()
            except BaseException as caught:
                error = caught
                # The algorithm has advanced it already.
                self.algorithm.progress.global_counter = self.run.iterations
                summary.set_global_counter(self.run.iterations)
                self._note = run_end.keep_what_is_whole(
                    error, self.run.iterations, self._checkpoints, self._save
                )
                interruption.end_iteration()
                raise
            finally:
                self._hooks.finish(self, error)

    # Begin

    def _build(self, stack: contextlib.ExitStack) -> None:
        """Builds everything and restores the run; writes nothing."""
        plan = self._plan
        given_seed = plan.config.random_seed
        check_same_config(plan.given.statements, given_seed)
        self._checkpoints = RunCheckpoints(
            self._run_directory,
            plan.config.keep_checkpoints,
            plan.given.statements,
            uninterrupted=self._signals.held_off,
            is_kept=self._temporary is None,
        )
        with config_files.gin_errors():
            self.algorithm = plan.build_algorithm(stack)
            hooks = hooks_of_rank(build_hooks(plan.config.hook_ctors))
            self._hooks = Hooks([*self._hooks, *hooks])
            is_resumed = ranks.broadcast_data(self._checkpoints.has_any())
            pool: Any = getattr(self.algorithm, "opponent_pool", None)
            rules.check(
                plan.config,
                "hooks",
                hooks_of_environments=self._hooks.of_environments(),
                learns_reward_weights=learns_reward_weights(self.algorithm),
                # A resumed run may play against those that it has.
                num_snapshots=0 if pool is None or is_resumed else len(pool.ids),
                takes_snapshots=self._hooks.take_snapshots,
            )
            env = self.algorithm.env
            num_environments = 0 if env is None else ranks.size * env.batch_size
            self._evaluations = RunEvaluations(
                plan.eval_config,
                functools.partial(create_after, num_environments, plan.create_env),
                plan.seed,
                self._signals,
                self._display.show_evaluation,
                self._hooks.score,
                self._hooks.recording,
            )
            stack.callback(self._evaluations.close)
            self.algorithm.setup_training(is_resumed=is_resumed)
            with ranks.alone():
                self._evaluations.set_up(self.algorithm)
        config_files.check_unused_bindings()
        done = self.algorithm.progress
        if done.iterations and self._checkpoints.has_any():
            raise ConfigError(
                f"{self.root_dir} holds a run, but {self.algorithm.name} has been "
                "trained elsewhere. Use another root_dir."
            )
        resumed = self._checkpoints.resume(self.algorithm, self._hooks)
        if resumed is not None and given_seed not in (None, resumed.seed):
            raise ConfigError(
                f"TrainerConfig.random_seed is {given_seed}, but {self.root_dir} holds "
                f"a run with seed {resumed.seed}, whose random numbers go on. "
                f"Give {resumed.seed} to continue it, or another root_dir."
            )
        self.run = resumed or RunState(
            seed=plan.seed, iterations=done.iterations, env_steps=done.env_steps
        )
        self._checkpoints.note_later_best(self.run)
        # A run may be resumed with other limits.
        self.algorithm.progress.move_to(
            self.run.iterations, self.run.env_steps, plan.limits
        )

    def _is_finished(self) -> bool:
        reason = self._evaluations.reason_to_stop(self.run)
        is_finished = self._is_at_limit() or bool(reason)
        # What ended a run before, or in, its last evaluation has left that to do.
        if is_finished and self._evaluations.is_final_one_missing(self.run):
            is_finished = self._run_directory.earlier_record.get("exit_code") == 0
        return ranks.broadcast_data(is_finished)

    def _begin(self, stack: contextlib.ExitStack) -> None:
        """Opens the summaries, writes down what runs here."""
        self._has_begun = True
        run = self.run
        if self._temporary is None and ranks.is_first:
            run_end.open_files(stack, self._checkpoints, run, self._plan, self._result)
            summary.listen(self._summarized.update)
        self._plan.advise(self.algorithm, run.iterations, run.env_steps)
        summary.set_global_counter(run.iterations)
        self._tell_position()
        self._speed = SpeedMeter(run.env_steps)
        self._display.start()
        stack.callback(self._display.close)
        interruption.end_iteration()
        self._seconds_before = run.seconds
        self._begin_time = time.monotonic() - run.seconds

    # Iterations

    def _loop(self) -> None:
        slot = self._checkpoint_slot()
        if self._evaluations.is_due(self.run):
            self._evaluate(is_final=self._fraction() == 1.0)
            self._checkpoints.save_if_best(self.algorithm, self.run)
        if self._must_stop():
            return
        # Ranks agree once in an iteration; alone, a signal may come at any time.
        while ranks.size > 1 or not self._must_stop():
            self._hooks.call("before_iter", self)
            self._iterate()
            self._take_late_result()
            if self._evaluations.is_due(self.run):
                self._evaluate(is_final=self._fraction() == 1.0)
            self._hooks.call("after_iter", self)
            if self._must_stop():
                break  # the last checkpoint is written after the last evaluation
            self._run_directory.lock.check(at_once=False)
            is_due = self._is_checkpoint_due or self._checkpoint_slot() > slot
            if is_due and not self._checkpoints.would_replace_better(self.run):
                self._is_checkpoint_due = False
                slot = self._checkpoint_slot()
                self._save(required=False)
            else:
                self._checkpoints.save_if_best(self.algorithm, self.run)
            self._display.show_if_due(self._fraction())

    def _iterate(self) -> None:
        """One iteration of the algorithm, and its summaries."""
        iteration = self.run.iterations + 1
        with summary.record_if(train_summaries.is_due(iteration, self.config)):
            begin, waited = time.perf_counter(), ranks.seconds
            interruption.begin_iteration()
            self.algorithm.train_iter()
            self.run.iterations = iteration
            self.run.env_steps = self.algorithm.num_env_steps
            self.run.seconds = time.monotonic() - self._begin_time
            self._tell_position()
            train_summaries.summarize_iteration(
                self.algorithm, self._speed, time.perf_counter() - begin
            )
            if ranks.size > 1:
                summary.scalar("time/ranks", ranks.seconds - waited)
            interruption.end_iteration()
        if self._display.begin_measuring():
            # In the first one workers start and code is compiled.
            self._speed = SpeedMeter(self.run.env_steps)
        if iteration == 1 and ranks.is_first:
            # Only now is known what the parts that are built on first use have read.
            texts = self._checkpoints.update_config_texts()
            train_summaries.summarize_config(texts, self.config)

    def _must_stop(self) -> bool:
        """Whether the run ends here; notes whether it is saved."""
        run, reason = self.run, self._stop_reason
        if self._is_at_limit():
            reason = "finished"
        else:
            reason = self._evaluations.reason_to_stop(run) or reason
        own = Agreement(self._signals.received, reason, self._take_checkpoint_request())
        agreed = agree(own)
        self._is_checkpoint_due |= agreed.wants_checkpoint
        if agreed.signal is not None:
            self._signals.hear_of(agreed.signal)
            self._stop_reason = agreed.signal.name
        elif agreed.reason:
            self._stop_reason = agreed.reason
        return agreed.signal is not None or bool(agreed.reason)

    # Evaluations and checkpoints

    def _evaluate(self, *, is_final: bool = False) -> None:
        with ranks.alone():  # the others wait
            result = self._evaluations.evaluate(
                self.algorithm, self.run, is_final=is_final
            )
        if result is not None:
            self._hooks.call("after_eval", self, result)

    def _take_late_result(self, *, wait: bool = False) -> None:
        """Looks for, or waits for, what an evaluation in another process has found."""
        evaluations, run = self._evaluations, self.run
        if wait:
            taken = evaluations.wait(run, is_at_limit=self._is_at_limit())
        else:
            taken = evaluations.poll(run)
        if taken is not None:
            result, policy = taken
            self._hooks.call("after_eval", self, result)
            if self.run.best_iteration == result.iterations:
                self._checkpoints.keep_best(self.algorithm, self.run, policy)

    def _checkpoint_slot(self) -> int:
        run = self.run
        return self._plan.limits.slot(
            run.iterations, run.env_steps, self.config.num_checkpoints
        )

    def _take_checkpoint_request(self) -> bool:
        """Whether a hook or SIGUSR2 has asked for a checkpoint."""
        requested, self._is_checkpoint_requested = self._is_checkpoint_requested, False
        return self._signals.take_checkpoint_request() or requested

    def _save(self, *, required: bool, with_hooks: bool = True) -> None:
        hooks = self._hooks if with_hooks else Hooks([])
        self._checkpoints.save(self.algorithm, self.run, hooks, required=required)

    # End

    def _finish(self) -> None:
        """Saves, and evaluates for the last time."""
        self._display.show_last()
        if self._fraction() == 1.0 and self.algorithm.num_updates == 0:
            _logger.warning(
                "Nothing was trained: the run had %d environment steps, and training "
                "waits for initial_collect_steps=%d and for all windows of an "
                "iteration (SamplingOptions). Run longer, or collect less.",
                self.run.env_steps,
                self.config.initial_collect_steps,
            )
        self._save(required=True)
        self._take_late_result(wait=True)
        if self._evaluations.is_final_one_missing(self.run):
            # After the checkpoint, because a run that goes on from there makes none.
            self._evaluate(is_final=True)
            self._checkpoints.mark_if_best(self.run)
            self._take_late_result(wait=True)
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
            checkpoint=self._checkpoints.last_path,
            note=self._note,
        )

    # Helpers

    def _tell_position(self) -> None:
        run = self.run
        summary.set_position(run.env_steps, self.algorithm.num_updates, run.seconds)

    def _is_at_limit(self) -> bool:
        return self._plan.limits.are_reached(self.run.iterations, self.run.env_steps)

    def _fraction(self) -> float:
        return self._plan.limits.fraction(self.run.iterations, self.run.env_steps)

    def _stacks_path(self) -> Path | None:
        directory = self._run_directory
        is_ours = self._has_begun and not directory.lock.is_lost()
        return directory.path / STACKS_FILE if is_ours else None

    def _status(self) -> Status:
        evaluation = self._evaluations.latest
        return Status(
            fraction=self._fraction(),
            iterations=self.run.iterations,
            env_steps=self.run.env_steps,
            average_return=train_summaries.average_return(self.algorithm),
            num_updates=self.algorithm.num_updates,
            losses=train_summaries.losses_in(self._summarized, self.algorithm.name),
            evaluation=math.nan if evaluation is None else evaluation.score,
        )


def _end_of(result: TrainResult) -> str:
    """What a signal has left of a run."""
    where = "" if result.checkpoint is None else f", and saved in {result.checkpoint}"
    return f"The run was stopped after {result.iterations} iterations{where}."


def train(
    what: str | os.PathLike[str] | TrainerConfig | RLAlgorithm,
    root_dir: str | os.PathLike[str] | None = None,
    *,
    gin_params: Sequence[str] = (),
    seed: int | None = None,
    **others: Any,
) -> TrainResult:
    """Trains what a conf, a configuration or an algorithm says.

    Args:
        what: the path of a conf or the name of one that comes with the library;
            otherwise see :class:`Trainer`.
        root_dir: see :class:`Trainer`.
        gin_params: override the conf, ``"TrainerConfig.num_env_steps = 10_000"``.
        seed: of everything random.
        **others: see :class:`Trainer`.

    Raises:
        ConfigError: for a conf or settings that cannot be used; and see
            :meth:`Trainer.train`.
    """
    with contextlib.ExitStack() as stack:
        with StopSignals() as signals:  # one is not lost before the trainer has them
            signals.install()
            given = stack.enter_context(trainable(what, gin_params, seed))
            trainer = Trainer(given, root_dir, **others)
            signals.check()
        return trainer.train()
