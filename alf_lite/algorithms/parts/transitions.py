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

import functools
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from alf_lite import nest
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Field, StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.fast import quick
from alf_lite.utils.checks import check_count, check_unit_interval
from alf_lite.utils.schedulers import Scheduled
from alf_lite.utils.value_ops import lambda_return

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
    episode_return: Field = ()  # [B, T-n] of the rest of the episode, likewise
    next_action: Nest = ()  # [B, T-n, ...], likewise: see next_action


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
    num_rows = num_trained(time_step, n)
    first_steps = nest.narrow(time_step, 0, num_rows, dim=1)
    if n == 1:
        return first_steps, _to_next_steps(time_step, gamma)
    transition = _returns(time_step, n, gamma)
    assert isinstance(transition.num_steps, Tensor)
    return first_steps, transition._replace(
        num_steps=(),
        next_observation=_steps_ahead(time_step.observation, transition.num_steps, n),
    )


def next_action(time_step: TimeStep, n: int, gamma: float) -> tuple[Nest, Tensor]:
    """What was done at the ends of transitions.

    Args:
        time_step: [B, T, ...], a window with one step more than transitions need.
        n: of the n-step return.
        gamma: γ.

    Returns:
        a_{t+m} [B, T-1-n, ...]; and [B, T-1-n] bool, whether s_{t+m} is the LAST of its
        episode, where nothing was done.
    """
    length = time_step.step_type.shape[1]
    steps = nest.narrow(time_step, 0, length - 1, dim=1)
    num_steps = _returns(steps, n, gamma).num_steps
    assert isinstance(num_steps, Tensor)
    following = nest.narrow(time_step.prev_action, 1, None, dim=1)
    ends = following, steps.step_type == _LAST
    return _steps_ahead(ends, num_steps, n)


def _steps_ahead(values: Nest, num_steps: Tensor, n: int) -> Nest:
    """The steps t + m [B, T-n, ...] of windows [B, T, ...], for m [B, T-n]."""
    batch_size, num_rows = num_steps.shape
    first = _first_rows(batch_size, num_rows + n, n, num_steps.device)
    return _take_rows(values, first + num_steps)


@functools.lru_cache(maxsize=32)
def _first_rows(batch_size: int, length: int, n: int, device: torch.device) -> Tensor:
    """The places [B, T-n] of the steps that are trained among all B·T; read-only."""
    rows = torch.arange(batch_size * length, device=device)
    return rows.view(batch_size, length)[:, : length - n]


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
    batch_size, device = num_steps.shape[1], num_steps.device
    # Row t + m of column b, among the T·B steps.
    column = torch.arange(batch_size, device=device)
    begin = torch.arange(num_rows, device=device).unsqueeze(1)
    rows = (begin + num_steps) * batch_size + column
    moved = {name: _take_rows(getattr(info, name), rows) for name in next_fields}
    return nest.map_structure(lambda t: t[:num_rows], info)._replace(**moved)


def with_lambda_returns(info: _Info, td_lambda: float) -> _Info:
    """Lets the targets of one step go on along the stored steps: Peng's λ-returns.

        y_t = r_{t+1} + Γ_t ((1 − λ) V(s_{t+1}) + λ y_{t+1})

    where Γ_t V is the end at the last row, and where step t+1 is LAST. What was done is
    not weighted by how likely it is now, as in Peng and Williams 1994; see Kozuno et
    al. 2021, arXiv:2103.00107.

    Args:
        info: a NamedTuple of [T, B, ...] of transitions of one step, with fields
            ``reward``, ``discount``, ``next_value`` and ``step_type``. A value may have
            more dimensions than the reward, whose rewards are 0.
        td_lambda: λ.

    Returns:
        the same, whose ``next_value`` is what Γ_t is multiplied with.
    """
    reward, value = info.reward, info.next_value
    if value.ndim > 2:
        reward = F.pad(reward, (0, value.shape[-1] - reward.shape[-1]))
    # Rows of transitions as steps that arrive: nothing is read of the first one, nor of
    # the type of the last one.
    rewards, values, discounts = (
        torch.cat([x[:1], x]) for x in (reward, value, info.discount)
    )
    step_types = torch.cat([info.step_type, info.step_type[-1:]])
    returns = lambda_return(rewards, values, step_types, discounts, td_lambda)
    later = torch.cat([returns[1:], value[-1:]])
    return info._replace(next_value=value.lerp(later, td_lambda))


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


def num_trained(time_step: TimeStep, n: int) -> int:
    """T-n, the steps of a window that have n steps ahead of them.

    Raises:
        ValueError: if T < n+1.
    """
    length = time_step.step_type.shape[1]
    if length <= n:
        raise ValueError(
            f"to see {n} ahead takes windows of at least {n + 1} steps, got {length}. "
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
    num_rows = num_trained(time_step, n)
    if n == 1:
        num_steps = (time_step.step_type[:, :-1] != _LAST).long()
        next_steps = _to_next_steps(time_step, gamma)
        return next_steps._replace(num_steps=num_steps, next_observation=())
    steps = time_step.reward, time_step.discount, time_step.step_type
    return Transition(
        # The action that led to the next step is the one that was executed, whoever
        # chose it.
        nest.narrow(time_step.prev_action, 1, num_rows + 1, dim=1),
        *_sums(*steps, n, gamma),
    )


@quick
def _sums(
    reward: Tensor, discount: Tensor, step_type: Tensor, n: int, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """G [B, T-n] or [B, T-n, D], Γ and the number of steps m, on any device."""
    # Whether the episode has not ended by each of the n steps.
    goes_on = (step_type != _LAST).unfold(1, n, 1)[:, :-1].cummin(-1).values
    discounts = (gamma * discount).unfold(1, n, 1)[:, 1:]
    rewards = reward.unfold(1, n, 1)[:, 1:]
    products = torch.where(goes_on, discounts, 1.0).cumprod(-1)
    weights = goes_on[..., 1:] * products[..., :-1]
    if rewards.ndim > weights.ndim:
        weights = weights.unsqueeze(-2)
    sums = rewards[..., 0] + torch.linalg.vecdot(weights, rewards[..., 1:])
    return sums, products[..., -1], goes_on.sum(-1)


def _take_rows(values: Nest, rows: Tensor) -> Nest:
    """The steps ``rows`` [N, M] of [B, T, ...], counted through the first two dims."""
    flat = rows.flatten()

    def take(t: Tensor) -> Tensor:
        # For images many times faster than t[row, column].
        return t.flatten(0, 1).index_select(0, flat).unflatten(0, rows.shape)

    return nest.map_structure(take, values)


def check_coefficients(
    gamma: Scheduled, n_step: int, config: TrainerConfig | None = None
) -> None:
    """Checks what the targets of an algorithm are computed with.

    Args:
        gamma: γ, or a schedule of it.
        n_step: n.
        config: of the run, if there is one.

    Raises:
        ValueError: unless γ lies in [0, 1] and n is a positive integer.
        ConfigError: if windows have no step that has n steps ahead of it.
    """
    check_unit_interval(gamma=gamma)
    check_count(n_step=n_step)
    check_windows(config, n_step)


def check_windows(
    config: TrainerConfig | None, n_step: int, what: str = "n_step"
) -> None:
    """Raises ConfigError if no step of a window has ``n_step`` steps ahead of it."""
    if config is None or config.mini_batch_length is None:
        return
    least = config.burn_in_length + n_step + 1
    if config.mini_batch_length < least:
        burn_in = f" after burn_in_length={config.burn_in_length}"
        raise ConfigError(
            f"TrainerConfig.mini_batch_length={config.mini_batch_length} is too short: "
            f"windows of steps that are seen {n_step} ahead ({what})"
            f"{burn_in if config.burn_in_length else ''} take {least} or more."
        )
