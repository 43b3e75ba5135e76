"""ε-greedy exploration of discrete actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from alf_lite.utils.schedulers import as_scheduler

# So many coins are looked at, before anything depends on them.
_MAX_TO_READ = 16

# A number or a scheduler.
Epsilon = float | Callable[[], float]


def masked_argmax(values: Tensor, allowed: Tensor | None) -> Tensor:
    """The index [...] of the largest of the allowed values [..., A].

    Args:
        values: [..., A].
        allowed: bool that broadcasts to ``values``; None: all are.
    """
    if allowed is not None:
        values = values.masked_fill(~allowed, -math.inf)
    return values.argmax(-1)


def epsilon_greedy(
    values: Tensor, epsilon: float | Tensor, allowed: Tensor | None = None
) -> Tensor:
    """The best value or, with probability ε, any allowed one.

    Every row and every component draws a coin of its own. A random value may be the
    best one, too. At ε = 0 no random number is drawn.

    Args:
        values: [B, C, A], of C components with A values.
        epsilon: ε in [0, 1], or [B], one for each row.
        allowed: bool that broadcasts to ``values``; None: all are.

    Returns:
        [B, C] int64.
    """
    if isinstance(epsilon, Tensor):
        epsilon = epsilon.unsqueeze(-1)  # [B, 1]
    elif epsilon == 0:
        return masked_argmax(values, allowed)
    coins = torch.rand(values.shape[:-1], device=values.device)
    # As a rule nobody explores; on a GPU, and in large batches, asking costs more.
    is_cheap = coins.device.type == "cpu" and coins.numel() <= _MAX_TO_READ
    if is_cheap and isinstance(epsilon, float) and coins.min().item() >= epsilon:
        return masked_argmax(values, allowed)
    explores = (coins < epsilon).unsqueeze(-1)
    random = torch.rand_like(values)
    return masked_argmax(torch.where(explores, random, values), allowed)


class EpsilonGreedy:
    """:func:`epsilon_greedy` with a schedule, or one for every environment.

    Args:
        epsilon: a number in [0, 1] or a scheduler; or a sequence of them, one for each
            environment of a batch.
        num_environments: if it is known already.

    Raises:
        ValueError: if a number is out of range, or there is not one for each.
    """

    def __init__(
        self,
        epsilon: Epsilon | Sequence[Epsilon],
        num_environments: int | None = None,
    ) -> None:
        self._is_sequence = isinstance(epsilon, Sequence)
        entries = list(epsilon) if isinstance(epsilon, Sequence) else [epsilon]
        self._schedulers = [as_scheduler(entry) for entry in entries]
        self._current()
        if num_environments is not None:
            self._check_number(num_environments)

    def __call__(
        self,
        values: Tensor,
        allowed: Tensor | None = None,
        env_ids: Tensor | tuple[()] = (),
    ) -> Tensor:
        """[B, C, A] → [B, C], with ε at the current progress of training.

        Args:
            values: as for :func:`epsilon_greedy`.
            allowed: likewise.
            env_ids: [B], which environments these are; (): all, in their order.

        Raises:
            ValueError: if there is not one ε for each of the B environments.
        """
        if not self._is_sequence:
            return epsilon_greedy(values, _value_of(self._schedulers[0]), allowed)
        epsilons = torch.tensor(self._current(), device=values.device)
        if isinstance(env_ids, Tensor):
            epsilons = epsilons[env_ids.long()]
        else:
            self._check_number(values.shape[0])
        return epsilon_greedy(values, epsilons, allowed)

    def _check_number(self, num_environments: int) -> None:
        if self._is_sequence and len(self._schedulers) != num_environments:
            raise ValueError(
                f"epsilon: {len(self._schedulers)} values were given for a batch of "
                f"{num_environments} environments. Give one number, or one for each."
            )

    def _current(self) -> list[float]:
        return [_value_of(scheduler) for scheduler in self._schedulers]


def _value_of(scheduler: Callable[[], float]) -> float:
    """ε now."""
    epsilon = float(scheduler())
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must lie in [0, 1], got {epsilon}")
    return epsilon
