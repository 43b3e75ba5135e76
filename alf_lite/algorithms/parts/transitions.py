"""From windows of replayed steps to transitions, the data of temporal differences.

A transition leads from step t to step t+m, where the target of step t bootstraps:

    target_t = G_t + Γ_t V(s_{t+m})
    G_t = Σ_{k=1..m} (Π_{j=1..k-1} γ_{t+j}) r_{t+k},   Γ_t = Π_{j=1..m} γ_{t+j}

with γ_t = γ · discount_t. m is n, or less where the episode ends before: at a time
limit the target bootstraps from the last observation, and where the episode terminated
Γ is 0. A step of type LAST starts no transition; what stands there is not used.

In a window of T steps, the first T-n have n steps ahead of them. They are trained, the
others are only looked at. So ``mini_batch_length`` must be at least n+1.

Networks without memory get every step with the observation it bootstraps from, so that
none is evaluated that is not needed (:func:`to_transitions`). Networks with memory are
evaluated at all T steps, and the values are brought together afterwards
(:func:`to_sequence` and :func:`align`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Field, StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.utils.tensor_utils import expand_dims_as

Nest = Any
_Info = TypeVar("_Info", bound=Any)

_LAST = int(StepType.LAST)


class Transition(NamedTuple):
    """What the training of a step needs besides its observation."""

    action: Nest  # [B, T-n, ...] a_t
    reward: Tensor  # [B, T-n] or [B, T-n, D], G_t
    discount: Tensor  # [B, T-n] Γ_t
    num_steps: Field = ()  # [B, T-n] int64, m; 0 where t is LAST; only in a sequence
    next_observation: Nest = ()  # [B, T-n, ...] s_{t+m}; () in a sequence
    is_offline: Field = ()  # [B, T-n] bool, if a loss asks for it: mark_offline


def to_transitions(
    time_step: TimeStep, n: int, gamma: float
) -> tuple[TimeStep, Transition]:
    """The steps that are trained, and their transitions.

    Args:
        time_step: [B, T, ...], a window of replayed steps.
        n: of the n-step return.
        gamma: γ.

    Returns:
        the first T-n steps [B, T-n, ...], and as many transitions.

    Raises:
        ValueError: if T < n+1.
    """
    num_rows = _num_rows(time_step, n)
    first_steps = nest.narrow(time_step, 0, num_rows, dim=1)
    if n == 1:
        return first_steps, _to_next_steps(time_step, gamma)
    transition = _returns(time_step, n, gamma)
    row = torch.arange(num_rows, device=transition.num_steps.device)
    next_observation = _take(time_step.observation, row + transition.num_steps, dim=1)
    return first_steps, transition._replace(
        num_steps=(), next_observation=next_observation
    )


def to_sequence(
    time_step: TimeStep, n: int, gamma: float
) -> tuple[TimeStep, Transition]:
    """All steps, with transitions [B, T, ...] whose last n rows are of no use.

    See :func:`to_transitions`; :func:`align` removes the rows after the networks have
    been evaluated.
    """
    transition = _returns(time_step, n, gamma)

    def pad(rows: Tensor) -> Tensor:
        nothing = rows.new_zeros((rows.shape[0], n, *rows.shape[2:]))
        return torch.cat([rows, nothing], dim=1)

    return time_step, nest.map_structure(pad, transition)


def mark_offline(transition: Transition, batch_info: BatchInfo) -> Transition:
    """Says which transitions come from offline buffers, for losses on these alone.

    Args:
        transition: [B, T-n, ...].
        batch_info: of the B rows. Where it names no source, they are the run's own.
    """
    shape, device = transition.discount.shape, transition.discount.device
    if isinstance(batch_info.source, Tensor):
        is_offline = (batch_info.source != 0).to(device).unsqueeze(1).expand(shape)
    else:
        is_offline = torch.zeros(shape, dtype=torch.bool, device=device)
    return transition._replace(is_offline=is_offline)


def align(info: _Info, next_fields: tuple[str, ...], n: int) -> _Info:
    """Brings the values of the step that is bootstrapped from to the step itself.

    Args:
        info: a NamedTuple of [T, B, ...] with a field ``num_steps``.
        next_fields: those that hold at row t what belongs to s_t in its role as the
            end of transitions; the result holds there what belongs to s_{t+m}.
        n: of the n-step return.

    Returns:
        the same type, [T-n, B, ...].
    """
    num_rows = info.num_steps.shape[0] - n
    num_steps = info.num_steps[:num_rows]
    row = torch.arange(num_rows, device=num_steps.device).unsqueeze(1)
    moved = {
        name: _take(getattr(info, name), row + num_steps, dim=0) for name in next_fields
    }
    return nest.map_structure(lambda t: t[:num_rows], info)._replace(**moved)


def sequence_priority(
    td_error: Tensor, valid: Tensor, max_weight: float = 0.9
) -> Tensor:
    """The priority of a sequence: η max_t |δ_t| + (1 − η) mean_t |δ_t|.

    Kapturowski et al. 2019 (R2D2), section 2.3. Only valid steps count; a sequence
    without any has priority 0, one of a single step |δ|.

    Args:
        td_error: [T, B], δ or |δ|.
        valid: [T, B] bool.
        max_weight: η.

    Returns:
        [B].
    """
    size = torch.where(valid, td_error.detach().abs(), 0.0)
    if size.shape[0] == 1:
        return size[0]
    mean = size.sum(0) / valid.sum(0).clamp(min=1)
    return max_weight * size.amax(0) + (1 - max_weight) * mean


def _num_rows(time_step: TimeStep, n: int) -> int:
    """T-n.

    Raises:
        ValueError: if T < n+1.
    """
    length = time_step.step_type.shape[1]
    if length <= n:
        raise ValueError(
            f"a {n}-step return needs windows of at least {n + 1} steps, got {length}. "
            f"Set TrainerConfig.mini_batch_length = {n + 1}."
        )
    return length - n


def _to_next_steps(time_step: TimeStep, gamma: float) -> Transition:
    """The transitions of n = 1, where nothing is summed up."""
    later = (
        time_step.prev_action,
        time_step.reward,
        time_step.discount,
        time_step.observation,
    )
    action, reward, discount, observation = nest.narrow(later, 1, None, dim=1)
    return Transition(action, reward, gamma * discount, next_observation=observation)


def _returns(time_step: TimeStep, n: int, gamma: float) -> Transition:
    """The transitions of the first T-n steps, without their next observation."""
    sums = _few_returns if n <= _FEW else _many_returns
    num_rows = _num_rows(time_step, n)
    is_no_end = time_step.step_type != _LAST
    return Transition(
        # The action that led to the next step is the one that was executed, whoever
        # chose it.
        nest.narrow(time_step.prev_action, 1, num_rows + 1, dim=1),
        *sums(time_step.reward, gamma * time_step.discount, is_no_end, n, num_rows),
    )


# Up to this n, summing up one after the other takes less time than the arrays of n
# steps do that later take the same time whatever n is.
_FEW = 5


def _few_returns(
    rewards: Tensor, discounts: Tensor, is_no_end: Tensor, n: int, num_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """G [B, T-n], Γ and the number of steps m, step by step."""
    reward, discount = (x.narrow(1, 1, num_rows) for x in (rewards, discounts))
    goes_on = is_no_end.narrow(1, 0, num_rows)
    num_steps = goes_on.long()
    for k in range(1, n):
        goes_on = goes_on & is_no_end.narrow(1, k, num_rows)
        weight = torch.where(goes_on, discount, 0.0)
        next_reward = rewards.narrow(1, k + 1, num_rows)
        reward = reward + expand_dims_as(weight, reward) * next_reward
        next_discount = discounts.narrow(1, k + 1, num_rows)
        discount = torch.where(goes_on, discount * next_discount, discount)
        num_steps = num_steps + goes_on
    return reward, discount, num_steps


def _many_returns(
    rewards: Tensor, discounts: Tensor, is_no_end: Tensor, n: int, num_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`_few_returns`, on arrays of the n steps [B, T-n, ..., n]."""

    def windows(x: Tensor, begin: int) -> Tensor:
        return x.narrow(1, begin, num_rows + n - 1).unfold(1, n, 1)

    # Whether the episode has not ended by each of the n steps.
    goes_on = windows(is_no_end, 0).cummin(-1).values
    discounts, rewards = windows(discounts, 1), windows(rewards, 1)
    factors = torch.where(goes_on, discounts, 1.0)
    # The first transition is there in any case.
    factors.select(-1, 0).copy_(discounts.select(-1, 0))
    products = factors.cumprod(-1)
    weights = goes_on[..., 1:] * products[..., :-1]
    if rewards.ndim > weights.ndim:
        weights = weights.unsqueeze(-2)
    reward = rewards[..., 0] + (weights * rewards[..., 1:]).sum(-1)
    return reward, products[..., -1], goes_on.sum(-1)


def _take(values: Nest, index: Tensor, dim: int) -> Nest:
    """For every row of the other dimension, the entries ``index`` of dimension ``dim``.

    Args:
        values: nest of [B, T, ...] with ``dim=1``, of [T, B, ...] with ``dim=0``.
        index: [B, T'] or [T', B].
    """
    other = torch.arange(index.shape[1 - dim], device=index.device)

    def take(t: Tensor) -> Tensor:
        if dim == 0:
            rows = index * t.shape[1] + other
        else:
            rows = index + other.unsqueeze(1) * t.shape[1]
        # For images many times faster than t[other, index].
        return t.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)

    return nest.map_structure(take, values)


def check_coefficients(
    gamma: float, n_step: int, config: TrainerConfig | None = None
) -> None:
    """Checks what the targets of an algorithm are computed with.

    Args:
        gamma: γ.
        n_step: n.
        config: of the run, if there is one.

    Raises:
        ValueError: unless γ lies in [0, 1] and n is a positive integer.
        ConfigError: if windows have no step that has n steps ahead of it.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
    if not isinstance(n_step, int) or isinstance(n_step, bool) or n_step < 1:
        raise ValueError(f"n_step must be a positive integer, got {n_step!r}")
    check_windows(config, n_step)


def check_windows(config: TrainerConfig | None, n_step: int) -> None:
    """Raises ConfigError if no step of a window has ``n_step`` steps ahead of it."""
    if config is None or config.mini_batch_length is None:
        return
    least = config.burn_in_length + n_step + 1
    if config.mini_batch_length < least:
        burn_in = f" after burn_in_length={config.burn_in_length}"
        raise ConfigError(
            f"TrainerConfig.mini_batch_length={config.mini_batch_length} is too short: "
            f"windows of steps that are seen {n_step} ahead (n_step)"
            f"{burn_in if config.burn_in_length else ''} take {least} or more."
        )
