"""How a training run ended, for its caller and for ``run.json``."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, NamedTuple

from alf_lite.errors import AlfLiteError
from alf_lite.trainers.evaluator import EvalResult
from alf_lite.trainers.signals import BrokenOffError


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
