"""How a run begins to write files, and how it ends: what is saved, kept and told."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from alf_lite.errors import AlfLiteError, CheckpointError, ConfigError, DivergedError
from alf_lite.policies.evaluator import EvalResult
from alf_lite.runs.checkpoints import RunCheckpoints, config_texts
from alf_lite.runs.directory import GIVEN_IN_PYTHON, SCRIPT
from alf_lite.runs.record import RunRecord, conf_of, script_of
from alf_lite.runs.training_state import RunState
from alf_lite.trainers import train_summaries
from alf_lite.trainers.run_plan import RunPlan
from alf_lite.trainers.signals import BrokenOffError
from alf_lite.utils import summary
from alf_lite.utils.interruption import interruption
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)
# What ended the run would end the saving, too, or is in the parameters already.
_NOT_TO_BE_SAVED = (DivergedError, CheckpointError)


class TrainResult(NamedTuple):
    """How a run ended; stands for its directory where a path is expected."""

    root_dir: Path
    iterations: int  # of the whole run, earlier processes included
    env_steps: int
    num_updates: int  # of gradients
    seconds: float  # of the whole run
    seconds_now: float  # of them, in this process
    stop_reason: str
    stop_signal: signal.Signals | None  # SIGINT, SIGTERM or SIGHUP, if that ended it
    was_finished: bool  # there was nothing left to do
    evaluation: EvalResult | None  # the final one
    average_return: float  # of the latest training episodes; NaN if there was none
    best_score: float | None
    checkpoint: Path | None  # the last one
    note: str  # what is kept, if the last iteration was broken off

    @property
    def exit_code(self) -> int:
        """Of a program that did nothing but train."""
        return 0 if self.stop_signal is None else 128 + self.stop_signal

    def __fspath__(self) -> str:
        if self.checkpoint is None:
            raise ConfigError("this run kept nothing: give Trainer a root_dir")
        return os.fspath(self.root_dir)


def open_files(
    stack: contextlib.ExitStack,
    checkpoints: RunCheckpoints,
    run: RunState,
    plan: RunPlan,
    result: Callable[[], TrainResult],
) -> None:
    """Writes down what runs here, and how it ends; opens the summaries.

    Args:
        stack: closes everything.
        checkpoints: of the run, the last one of them resumed.
        run: its counters.
        plan: what is trained.
        result: of the run, to be called at its end.
    """
    directory = checkpoints.run_directory
    checkpoints.check_logs()
    if checkpoints.last_path is not None:
        _logger.info(
            "Resuming from %s: iteration %d, %d environment steps, seed %d.",
            checkpoints.last_path,
            run.iterations,
            run.env_steps,
            run.seed,
        )
    elif directory.run_file.exists():
        _logger.warning(
            "%s holds a run that ended before its first checkpoint: starting from the "
            "beginning.",
            directory.path,
        )
    record = RunRecord(
        directory,
        plan.config.device,
        run_id=checkpoints.run_id,
        conf=conf_of(directory),
        seed=run.seed,
        resumed_iterations=run.iterations,
        **{
            SCRIPT: script_of(directory, plan.given.statements),
            GIVEN_IN_PYTHON: plan.given.left_out,
        },
    )
    record.begin()
    stack.push(lambda kind, error, traceback: record.end(end_entries(result(), error)))
    directory.write_config_texts(config_texts(plan.given.statements))
    checkpoints.rewind_summaries()
    stack.enter_context(
        summary.writer_to(
            directory.train_summaries,
            plan.config.summaries_flush_secs,
            checkpoints.run_id,
            log_directory=directory.path,
            axis=train_summaries.axis(plan.config),
        )
    )


def keep_what_is_whole(
    error: BaseException,
    iterations: int,
    checkpoints: RunCheckpoints,
    save: Callable[..., None],
) -> str:
    """Saves the last whole iteration if it is still there.

    Args:
        error: what ended the run; gets a note that says what is kept.
        iterations: that are complete.
        checkpoints: of the run.
        save: writes a checkpoint of the last whole iteration, see ``Trainer``.

    Returns:
        The note.
    """
    text = f"Stopped in iteration {iterations + 1}."
    if isinstance(error, _NOT_TO_BE_SAVED) or iterations == 0 or ranks.size > 1:
        pass  # ranks save together or not at all
    elif interruption.parameters_changed:
        text += " Its updates had begun, and half of them cannot be saved."
    else:
        text += _try_to(save)
    kept = checkpoints.last_path
    if kept is not None and kept.is_dir():
        text += f" Kept: {kept}. The same command continues from there."
    else:
        text += " There is no checkpoint."
    error.add_note(text)
    return text


def _try_to(save: Callable[..., None]) -> str:
    """Returns what failed, after a space."""
    try:
        save(required=True)
    except (CheckpointError, DivergedError) as error:
        return f" Saving failed: {error}"
    except Exception as error:
        # Perhaps the state of a hook, which is worth less than the rest.
        with contextlib.suppress(Exception):
            save(required=True, with_hooks=False)
            return f" Saved without the states of the hooks: {error}"
        return f" Saving failed: {type(error).__name__}: {error}"
    return ""


def end_entries(result: TrainResult, error: BaseException | None) -> dict[str, Any]:
    """What ``run.json`` says about the end.

    Args:
        result: what there is at the end.
        error: that ended the run, if one did.
    """
    evaluation = result.evaluation
    if error is None or isinstance(error, BrokenOffError):
        exit_code = result.exit_code
        stop_reason = result.stop_reason
        if result.stop_signal is not None:
            stop_reason = result.stop_signal.name
    else:
        exit_code = error.exit_code if isinstance(error, AlfLiteError) else 1
        stop_reason = type(error).__name__
    return {
        "stop_reason": stop_reason,
        "exit_code": exit_code,
        "error": None if error is None else str(error) or None,
        "note": result.note or None,
        "iterations": result.iterations,
        "env_steps": result.env_steps,
        "num_updates": result.num_updates,
        "seconds": result.seconds,
        "average_return": result.average_return,
        "evaluation": None if evaluation is None else evaluation.score,
        "best_score": result.best_score,
        "checkpoint": result.checkpoint,
    }
