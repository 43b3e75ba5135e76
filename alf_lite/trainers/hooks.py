"""Hooks: a user's code at fixed places of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.errors import ConfigError
from alf_lite.trainers.evaluator import EvalResult
from alf_lite.trainers.training_state import RunState


class Training(Protocol):
    """What a hook may use of the trainer."""

    algorithm: RLAlgorithm
    run: RunState
    root_dir: Path

    def request_stop(self, reason: str) -> None: ...


class Hook:
    """Override what you need; given to the trainer, or in ``TrainerConfig.hook_ctors``.

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

    def after_eval(self, training: Training, result: EvalResult) -> None:
        """Called with the episodes, the losses on held-out data, or both."""

    def after_train(self, training: Training) -> None: ...


def in_order(hooks: Iterable[Hook]) -> list[Hook]:
    """The hooks as they are called."""
    return sorted(hooks, key=lambda hook: hook.priority)


def build_hooks(ctors: Sequence[Callable[..., Any]]) -> list[Hook]:
    """The hooks of ``TrainerConfig.hook_ctors``.

    Raises:
        ConfigError: if one is no hook.
    """
    hooks = [ctor() for ctor in ctors]
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise ConfigError(
                "TrainerConfig.hook_ctors must build Hooks, got a "
                f"{type(hook).__name__}"
            )
    return hooks
