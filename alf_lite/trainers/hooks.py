"""Hooks: a user's code at fixed places of the training loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.trainers.evaluator import EvalResult
from alf_lite.trainers.training_state import RunState


class Training(Protocol):
    """What a hook may use of the trainer."""

    algorithm: RLAlgorithm
    run: RunState

    def request_stop(self, reason: str) -> None: ...


class Hook:
    """Override what you need.

    The places, in their order: ``before_train``; per iteration ``before_iter``, the
    iteration, ``after_eval`` if an evaluation was due, ``after_iter``, and then a
    checkpoint if one is due; ``after_train``, also after an error.

    A hook may call ``training.request_stop(reason)``: the run then ends after the hooks
    of this iteration, with a checkpoint.

    Args:
        priority: lower comes first; equal ones in the order they were given.
    """

    def __init__(self, priority: int = 50) -> None:
        self.priority = priority

    def before_train(self, training: Training) -> None: ...

    def before_iter(self, training: Training) -> None: ...

    def after_iter(self, training: Training) -> None: ...

    def after_eval(self, training: Training, result: EvalResult) -> None: ...

    def after_train(self, training: Training) -> None: ...


def in_order(hooks: Iterable[Hook]) -> list[Hook]:
    """The hooks as they are called."""
    return sorted(hooks, key=lambda hook: hook.priority)
