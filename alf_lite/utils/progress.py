"""How far the training of a run has come: what schedulers and summaries read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from alf_lite.errors import CheckpointError


class Limits(NamedTuple):
    """The length of a run; it ends when the first of the two is reached."""

    num_iterations: int  # 0: no limit
    num_env_steps: int  # 0: no limit

    def are_reached(self, iterations: int, env_steps: int) -> bool:
        return (0 < self.num_iterations <= iterations) or (
            0 < self.num_env_steps <= env_steps
        )

    def fraction(self, iterations: int, env_steps: int) -> float:
        """How much of the run is done, in [0, 1]."""
        fractions = [0.0]
        if self.num_iterations:
            fractions.append(iterations / self.num_iterations)
        if self.num_env_steps:
            fractions.append(env_steps / self.num_env_steps)
        return min(1.0, max(fractions))

    def slot(self, iterations: int, env_steps: int, num_slots: int) -> int:
        """Which of ``num_slots`` equal parts of the run has been completed."""
        slots = [0]
        if self.num_iterations:
            slots.append(iterations * num_slots // self.num_iterations)
        if self.num_env_steps:
            slots.append(env_steps * num_slots // self.num_env_steps)
        return min(num_slots, max(slots))


class Progress:
    """The counters of a training run, which belong to its root algorithm.

    ``train_iter`` moves them, and what holds schedules follows them. The slots make a
    misspelt counter an AttributeError.
    """

    __slots__ = ("env_steps", "global_counter", "iterations", "percent")

    percent: float  # of the whole run, in [0, 1]
    iterations: int  # finished iterations
    env_steps: int  # of all environments; FIRST steps are not counted
    global_counter: int  # the x-axis of the summaries

    def __init__(self) -> None:
        self.percent = 0.0
        self.iterations = 0
        self.env_steps = 0
        self.global_counter = 0

    def move_to(self, iterations: int, env_steps: int, limits: Limits) -> None:
        """Sets what is counted, and how much of the run that is."""
        self.iterations, self.env_steps = iterations, env_steps
        self.percent = limits.fraction(iterations, env_steps)

    def state_dict(self) -> dict[str, float]:
        """The counters as plain numbers."""
        return {name: getattr(self, name) for name in self.__slots__}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Takes over the counters that ``state_dict`` returned.

        Raises:
            CheckpointError: naming the counters that are missing or unknown.
        """
        if set(state) != set(self.__slots__):
            raise CheckpointError(
                f"progress: expected the counters {sorted(self.__slots__)}, "
                f"got {sorted(state)}"
            )
        for name, value in state.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        counters = ", ".join(f"{k}={v}" for k, v in self.state_dict().items())
        return f"Progress({counters})"


class FollowsProgress:
    """Base of what holds schedules, such as optimizers and exploration noise.

    An algorithm has the attributes of all its modules follow its progress, those in
    lists, tuples and dicts too.
    """

    def follow(self, progress: Progress) -> None:
        """From now on this is the progress of the schedules in here."""
        follow_progress(vars(self).values(), progress)


def follow_progress(values: Iterable[Any], progress: Progress) -> None:
    """Has everything in ``values`` that can follow this progress."""
    for value in followers(values):
        value.follow(progress)


def followers(values: Iterable[Any], depth: int = 2) -> Iterator[FollowsProgress]:
    """What can follow a progress, in containers that are nested up to ``depth``."""
    for value in values:
        if isinstance(value, FollowsProgress):
            yield value
        elif depth and isinstance(value, list | tuple):
            yield from followers(value, depth - 1)
        elif depth and isinstance(value, Mapping):
            yield from followers(value.values(), depth - 1)
