"""The end of a training run: what is kept, and how it is told."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from alf_lite.errors import AlfLiteError, CheckpointError, DivergedError
from alf_lite.trainers.evaluator import EvalResult
from alf_lite.trainers.run_checkpoints import RunCheckpoints
from alf_lite.trainers.signals import BrokenOffError
from alf_lite.utils.interruption import interruption

# What ended the run would end the saving, too, or is in the parameters already.
_NOT_TO_BE_SAVED = (DivergedError, CheckpointError)


class TrainResult(NamedTuple):
    """How a run ended."""

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


class Save(Protocol):
    """Writes a checkpoint of the last whole iteration."""

    def __call__(self, *, required: bool, with_hooks: bool = True) -> None: ...


def keep_what_is_whole(
    error: BaseException, iterations: int, checkpoints: RunCheckpoints, save: Save
) -> str:
    """Saves the last whole iteration if it is still there.

    Args:
        error: what ended the run; gets a note that says what is kept.
        iterations: that are complete.
        checkpoints: of the run.
        save: see there.

    Returns:
        The note.
    """
    text = f"Stopped in iteration {iterations + 1}."
    if isinstance(error, _NOT_TO_BE_SAVED) or iterations == 0:
        pass
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


def _try_to(save: Save) -> str:
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


def entries(result: TrainResult, error: BaseException | None) -> dict[str, Any]:
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
        "evaluation": None if evaluation is None else evaluation.mean,
        "best_score": result.best_score,
        "checkpoint": result.checkpoint,
    }
