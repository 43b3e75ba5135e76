"""Exploration: ε-greedy for discrete actions, noise for continuous ones."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.devices import moved_tensor
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.schedulers import Scheduled, as_scheduler, extreme_values

# So many coins are looked at: as a rule all explore, or nobody does.
MAX_TO_READ = 16
Nest = Any


def masked_argmax(values: Tensor, allowed: Tensor | None) -> Tensor:
    """The index [...] of the largest of the allowed values [..., A].

    Args:
        values: [..., A].
        allowed: bool that broadcasts to ``values``; None: all are.
    """
    if allowed is not None:
        values = values.masked_fill(~allowed, -math.inf)
    return values.argmax(-1)


def random_index(
    shape: Sequence[int],
    num_values: int,
    allowed: Tensor | None,
    device: torch.device | None = None,
) -> Tensor:
    """Any of the allowed values, each with the same probability.

    Args:
        shape: [B, C], of C components.
        num_values: A, of each component.
        allowed: bool that broadcasts to [B, C, A]; None: all are.
        device: of the result.

    Returns:
        [B, C] int64.
    """
    if allowed is None:
        return torch.randint(num_values, shape, device=device)
    return masked_argmax(torch.rand((*shape, num_values), device=device), allowed)


def toss_coins(
    epsilon: float | Sequence[float] | Tensor,
    shape: Sequence[int],
    device: torch.device,
) -> Tensor | bool:
    """Who explores, each with probability ε, on its own.

    Args:
        epsilon: ε in [0, 1], or one for each of the B rows. A tensor [] or [B] is not
            looked at, which a GPU would be waited for.
        shape: [B, C], of C components.
        device: of the result.

    Returns:
        [B, C] bool; or True where everybody explores, and False where nobody does, if
        that is known. At ε = 0 no random number is drawn.
    """
    if isinstance(epsilon, Tensor):
        return torch.rand(shape, device=device) < epsilon.unsqueeze(-1)
    if epsilon == 0:
        return False
    coins = torch.rand(shape, device=device)
    # On a GPU, and of large batches, asking costs more than it saves.
    if device.type != "cpu" or coins.numel() > MAX_TO_READ:
        if isinstance(epsilon, float | int):
            return coins < epsilon
        return coins < moved_tensor(torch.tensor(epsilon), device).unsqueeze(-1)
    epsilons = [epsilon] * shape[0] if isinstance(epsilon, float | int) else epsilon
    if coins.numel() == 1:
        return coins.item() < epsilons[0]
    explores = [
        [coin < limit for coin in row]
        for row, limit in zip(coins.tolist(), epsilons, strict=True)
    ]
    if all(map(all, explores)):
        return True
    return torch.tensor(explores) if any(map(any, explores)) else False


def choose(values: Tensor, explores: Tensor | bool, allowed: Tensor | None) -> Tensor:
    """The best value or, for those who explore, any allowed one.

    Args:
        values: [B, C, A], of C components with A values.
        explores: from :func:`toss_coins`.
        allowed: bool that broadcasts to ``values``; None: all are.

    Returns:
        [B, C] int64. A random value may be the best one, too.
    """
    if explores is False:
        return masked_argmax(values, allowed)
    random = random_index(values.shape[:-1], values.shape[-1], allowed, values.device)
    if explores is True:
        return random
    return torch.where(explores, random, masked_argmax(values, allowed))


def epsilon_greedy(
    values: Tensor, epsilon: float, allowed: Tensor | None = None
) -> Tensor:
    """:func:`choose`, where each explores with probability ε."""
    coins = toss_coins(epsilon, values.shape[:-1], values.device)
    return choose(values, coins, allowed)


class EpsilonGreedy(FollowsProgress):
    """:func:`toss_coins` with a schedule, or one for every environment.

    Args:
        epsilon: a number in [0, 1], the points of a line over the run or a scheduler;
            or a sequence of them, one for each environment of a batch.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(self, epsilon: Scheduled | Sequence[Scheduled]) -> None:
        # Whether every environment has its own ε
        own = isinstance(epsilon, Sequence) and not _are_points(epsilon)
        self.is_of_each_environment = own
        entries: Any = epsilon if own else [epsilon]
        self._schedulers = [as_scheduler(entry) for entry in entries]
        self._table: tuple[list[float], Tensor | None] = ([], None)  # on a device
        for scheduler in self._schedulers:
            for value in extreme_values(scheduler):
                _checked(value)

    def toss(
        self,
        shape: Sequence[int],
        device: torch.device,
        env_ids: Tensor | tuple[()] = (),
    ) -> Tensor | bool:
        """:func:`toss_coins` with ε at the current progress of training.

        Args:
            shape: [B, C].
            device: of the result.
            env_ids: [B], which environments these are; (): all, in their order.

        Raises:
            ValueError: if there is not one ε for each of the B environments.
        """
        if not self.is_of_each_environment:
            return toss_coins(_checked(self._schedulers[0]()), shape, device)
        if device.type != "cpu":
            return toss_coins(self._on_device(shape, device, env_ids), shape, device)
        epsilons = self._current()
        if isinstance(env_ids, Tensor):
            epsilons = [epsilons[env_id] for env_id in env_ids.tolist()]
        else:
            self.check_number(shape[0])
        return toss_coins(epsilons, shape, device)

    @property
    def epsilon(self) -> float | None:
        """ε at the current progress; None if every environment has its own."""
        return None if self.is_of_each_environment else _checked(self._schedulers[0]())

    def check_number(self, num_environments: int, name: str = "epsilon") -> None:
        """Raises ConfigError, if there is neither one ε nor one for each of them."""
        if self.is_of_each_environment and len(self._schedulers) != num_environments:
            raise ConfigError(
                f"{name}: {len(self._schedulers)} values were given for a batch of "
                f"{num_environments} environments. Give one number, or one for each."
            )

    def _on_device(
        self, shape: Sequence[int], device: torch.device, env_ids: Tensor | tuple[()]
    ) -> Tensor:
        """ε of every row [B], without waiting for the device."""
        epsilons: list[Any] = self._current()
        table: Any
        if any(isinstance(epsilon, Tensor) for epsilon in epsilons):
            table = torch.stack([torch.as_tensor(e, device=device) for e in epsilons])
        else:
            known, table = self._table
            if known != epsilons or table is None or table.device != device:
                table = moved_tensor(torch.tensor(epsilons), device)
                self._table = epsilons, table
        if isinstance(env_ids, Tensor):
            return table[env_ids.long()]
        self.check_number(shape[0])
        return table

    def _current(self) -> list[float]:
        return [_checked(scheduler()) for scheduler in self._schedulers]


def _are_points(values: Sequence[Any]) -> bool:
    """Whether these are points (progress, ε) of one schedule, not one ε for each."""
    return all(
        isinstance(value, Sequence) and all(isinstance(x, int | float) for x in value)
        for value in values
    )


def _checked(value: float) -> float:
    if isinstance(value, Tensor):  # what asks is captured for a GPU to repeat
        return value
    epsilon = float(value)
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must lie in [0, 1], got {epsilon}")
    return epsilon


class ActionNoise(FollowsProgress, abc.ABC):
    """Noise for the exploration of continuous actions.

    A noise process works on action vectors whose elements lie in [-1, 1]. Its state has
    a row for every environment and is zero where an episode begins, as every state of a
    policy: each environment has a process of its own, which starts anew with its
    episodes.

    Args:
        std: a number, or a scheduler of it; 1 is half of the range of an action.
    """

    state_spec: NestedTensorSpec = ()

    def __init__(self, std: Scheduled) -> None:
        self._std = as_scheduler(std)
        for value in extreme_values(self._std):
            _checked_std(value)

    def perturb(self, action: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Adds noise and clips the result to [-1, 1].

        Args:
            action: [B, size].
            state: [B, ...], zeros where the step is FIRST.

        Returns:
            the noisy action [B, size] and the new state.
        """
        noise, state = self._draw(torch.randn_like(action), state)
        return (action + noise).clamp(-1.0, 1.0), state

    @abc.abstractmethod
    def _draw(self, normal: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """The noise [B, size] made from a standard normal sample, and the new state."""

    def _current_std(self) -> float:
        return _checked_std(self._std())


def _checked_std(std: float) -> float:
    if isinstance(std, Tensor):
        return std
    if not std >= 0:
        raise ValueError(f"std must not be negative, got {std}")
    return std


@configurable
class GaussianNoise(ActionNoise):
    """Independent normal noise in every step.

    Args:
        size: number of elements of an action.
    """

    def __init__(self, size: int, std: Scheduled = 0.1) -> None:
        super().__init__(std)

    def _draw(self, normal: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        return self._current_std() * normal, state


@configurable
class SpreadGaussianNoise(ActionNoise):
    """Independent normal noise, as strong as is drawn anew for every episode.

    Of many environments some explore and others hardly do, whichever scale is right;
    Seo et al. 2025, "FastTD3" (arXiv:2505.22642).

    Args:
        size: number of elements of an action.
        min_std: the least that is drawn, above 0; 1 is half of the range of an action.
        max_std: the most, evenly between both.

    Raises:
        ValueError: if they are none.
    """

    def __init__(self, size: int, min_std: float = 0.001, max_std: float = 0.4) -> None:
        super().__init__(max_std)
        if not 0 < min_std <= max_std:
            raise ValueError(
                f"expected 0 < min_std <= max_std, got {min_std} and {max_std}"
            )
        self._min_std, self._max_std = min_std, max_std
        self.state_spec = TensorSpec(())  # of the episode; 0 where it begins

    def _draw(self, normal: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        drawn = torch.empty_like(state).uniform_(self._min_std, self._max_std)
        std = torch.where(state > 0, state, drawn)
        return std.unsqueeze(-1) * normal, std


@configurable
class OrnsteinUhlenbeckNoise(ActionNoise):
    """Noise that is correlated over time and drawn back to 0.

        x_0 = 0,   x_t = (1 − θ) x_{t-1} + σ ε_t,   ε_t ~ N(0, 1)

    Uhlenbeck and Ornstein 1930, as in Lillicrap et al. 2016 (arXiv:1509.02971). In the
    long run its standard deviation is σ / √(1 − (1 − θ)²), 1.9 σ for θ = 0.15.

    Args:
        size: number of elements of an action.
        std: σ, of one step.
        damping: θ in (0, 1].
    """

    def __init__(
        self,
        size: int,
        std: Scheduled = 0.2,
        damping: float = 0.15,
    ) -> None:
        super().__init__(std)
        if not 0 < damping <= 1:
            raise ValueError(f"damping must lie in (0, 1], got {damping}")
        self._damping = damping
        self.state_spec = TensorSpec((size,))

    def _draw(self, normal: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        x = (1 - self._damping) * state + self._current_std() * normal
        return x, x
