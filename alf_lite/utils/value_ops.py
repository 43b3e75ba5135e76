"""Returns, advantages and V-trace targets of sequences.

All functions share one set of inputs, with T the number of steps and B of sequences:

* ``rewards`` [T, B] or, with D reward dimensions, [T, B, D]: arrived with step t.
* ``values`` of the shape of ``rewards``: the estimate V(s_t).
* ``step_types`` [T, B]: a ``StepType``.
* ``discounts`` [T, B]: arrived with step t and already multiplied with γ; 0 where s_t
  is terminal. Written γ_t below.

A single sequence may leave out B. With ``time_major=False``, inputs and outputs have
their first two dimensions swapped.

The target of step t reads index t+1, so the results are for the first T-1 steps; the
last step only bootstraps. A time limit is LAST with discount γ, hence bootstraps from
the value of the final observation. A LAST step itself has no transition: its return is
its value and its advantage is 0, whatever follows. Results carry no gradient, and the
inputs are left as they were.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alf_lite.data_structures import StepType
from alf_lite.fast import quick
from alf_lite.utils.recurrences import reverse_linear_scan
from alf_lite.utils.tensor_utils import expand_dims_as

_LAST = int(StepType.LAST)


class VTraceReturns(NamedTuple):
    """What :func:`vtrace` returns."""

    targets: Tensor  # [T-1, B], v_t, the regression target of V(s_t)
    advantages: Tensor  # [T-1, B], weighted by ρ_t, for the policy gradient at t


class _Transitions(NamedTuple):
    """Inputs by transition: from step t to step t+1, for t < T-1. Time-major."""

    next_rewards: Tensor  # [T-1, B, ...], r_{t+1}
    next_discounts: Tensor  # [T-1, B, ...] or [T-1, B, 1], γ_{t+1}
    values: Tensor  # [T-1, B, ...], V(s_t)
    next_values: Tensor  # [T-1, B, ...], V(s_{t+1})
    valid: Tensor  # [T-1, B, ...] or [T-1, B, 1] bool, step t is not LAST


def one_step_discounted_return(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    time_major: bool = True,
) -> Tensor:
    """TD(0) target of the first T-1 steps.

        G_t = r_{t+1} + γ_{t+1} V(s_{t+1}),   G_t = V(s_t) where step t is LAST

    Returns:
        [T-1, B, ...].

    Raises:
        ValueError: if T < 2 or the shapes do not fit.
    """
    steps = _transitions(rewards, values, step_types, discounts, time_major)
    return _restore(_backup(steps, steps.next_values), time_major)


def n_step_return(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    n: int,
    time_major: bool = True,
) -> Tensor:
    """Discounted sum of n rewards and the value after them, for the first T-1 steps.

    It is the one-step backup, applied n times:

        G⁰_t = V(s_t)
        Gⁿ_t = r_{t+1} + γ_{t+1} Gⁿ⁻¹_{t+1},   Gⁿ_t = V(s_t) where t is LAST or T-1

    so that it sums fewer than n rewards where the episode or the sequence ends earlier.

    Returns:
        [T-1, B, ...].

    Raises:
        ValueError: if n < 1, T < 2, or the shapes do not fit.
    """
    if n < 1:
        raise ValueError(f"n_step_return: n must be at least 1, got {n}")
    steps = _transitions(rewards, values, step_types, discounts, time_major)
    bootstrap = steps.next_values[-1:]
    # From n = T-1 on, every target reaches the end of the sequence.
    returns = _backup(steps, steps.next_values)
    for _ in range(min(n, steps.values.shape[0]) - 1):
        returns = _backup(steps, torch.cat([returns[1:], bootstrap]))
    return _restore(returns, time_major)


def lambda_return(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    td_lambda: float,
    time_major: bool = True,
) -> Tensor:
    """TD(λ) target of the first T-1 steps (Sutton and Barto 2018, section 12.1).

        G_t = r_{t+1} + γ_{t+1} ((1 − λ) V(s_{t+1}) + λ G_{t+1})
        G_t = V(s_t) where step t is LAST,   G_{T-1} = V(s_{T-1})

    Equal to the generalized advantage estimate plus V(s_t).

    Returns:
        [T-1, B, ...].

    Raises:
        ValueError: if λ is not in [0, 1], T < 2, or the shapes do not fit.
    """
    _check_lambda(td_lambda, "lambda_return")
    inputs = rewards, values, step_types, discounts
    _check_shapes(*inputs, time_major)
    return _lambda_sums(*inputs, td_lambda, time_major, True)


def discounted_return(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    time_major: bool = True,
) -> Tensor:
    """Discounted sum of all rewards up to the end of the episode or sequence.

        G_t = r_{t+1} + γ_{t+1} G_{t+1}
        G_t = V(s_t) where step t is LAST,   G_{T-1} = V(s_{T-1})

    Returns:
        [T-1, B, ...], of the first T-1 steps.

    Raises:
        ValueError: if T < 2 or the shapes do not fit.
    """
    return lambda_return(rewards, values, step_types, discounts, 1.0, time_major)


def generalized_advantage_estimation(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    td_lambda: float = 1.0,
    time_major: bool = True,
) -> Tensor:
    """Generalized advantage estimate of the first T-1 steps.

    Schulman et al. 2016 (arXiv:1506.02438), eq. 16, with arrival-time indices:

        δ_t = r_{t+1} + γ_{t+1} V(s_{t+1}) − V(s_t)
        A_t = δ_t + γ_{t+1} λ A_{t+1},   A_t = 0 where step t is LAST,   A_{T-1} = 0

    Returns:
        [T-1, B, ...].

    Raises:
        ValueError: if λ is not in [0, 1], T < 2, or the shapes do not fit.
    """
    _check_lambda(td_lambda, "generalized_advantage_estimation")
    inputs = rewards, values, step_types, discounts
    _check_shapes(*inputs, time_major)
    return _lambda_sums(*inputs, td_lambda, time_major, False)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    importance_ratios: Tensor,
    *,
    td_lambda: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    policy_gradient_rho_clip: float = 1.0,
    time_major: bool = True,
) -> VTraceReturns:
    """V-trace targets and policy gradient advantages of the first T-1 steps.

    Espeholt et al. 2018 (arXiv:1802.01561), eq. 1, as the recursion of its Remark 1,
    with λ of Remark 2 and arrival-time indices:

        ρ_t = min(ρ̄, π(a_t|s_t) / μ(a_t|s_t)),   c_t = λ min(c̄, π(a_t|s_t) / μ(a_t|s_t))
        v_t = V(s_t) + ρ_t δ_t + γ_{t+1} c_t (v_{t+1} − V(s_{t+1}))
        A_t = ρ'_t (r_{t+1} + γ_{t+1} v_{t+1} − V(s_t)),   ρ'_t clipped at ρ̄'

    with δ_t as in :func:`generalized_advantage_estimation`; v_t = V(s_t) where t is T-1
    or LAST, and A_t = 0 where LAST. With all ratios 1 this is the λ-return.

    Args:
        rewards, values, step_types, discounts: see the top of this module.
        importance_ratios: [T, B], π/μ of the action taken at step t.
        td_lambda: λ in [0, 1].
        rho_clip: ρ̄ > 0; decides which policy's value is learnt. inf: no clipping.
        c_clip: c̄ > 0; how far corrections reach back. At most ρ̄ in the paper.
        policy_gradient_rho_clip: ρ̄' > 0.
        time_major: see the top of this module.

    Raises:
        ValueError: if λ is not in [0, 1], a clip is not positive, T < 2, or the shapes
            do not fit.
    """
    _check_lambda(td_lambda, "vtrace")
    clips = {
        "rho_clip": rho_clip,
        "c_clip": c_clip,
        "policy_gradient_rho_clip": policy_gradient_rho_clip,
    }
    for name, clip in clips.items():
        if not clip > 0:
            raise ValueError(f"vtrace: {name} must be positive, got {clip}")
    _check_shape("importance_ratios", importance_ratios, step_types)
    steps = _transitions(rewards, values, step_types, discounts, time_major)
    ratios = importance_ratios.detach()
    if not time_major:
        ratios = ratios.transpose(0, 1)
    ratios = expand_dims_as(ratios[:-1], steps.values)
    # The action at LAST is ignored, so its ratio may be anything, even NaN.
    ratios = torch.where(steps.valid, ratios, 0.0)

    corrections = reverse_linear_scan(
        ratios.clamp(max=rho_clip) * _td_errors(steps),
        td_lambda * ratios.clamp(max=c_clip) * steps.next_discounts,
    )
    targets = steps.values + corrections
    next_targets = torch.cat([targets[1:], steps.next_values[-1:]])
    advantages = ratios.clamp(max=policy_gradient_rho_clip) * (
        _backup(steps, next_targets) - steps.values
    )
    return VTraceReturns(
        _restore(targets, time_major), _restore(advantages, time_major)
    )


def action_importance_ratio(
    log_prob: Tensor, rollout_log_prob: Tensor, max_log_ratio: float = 20.0
) -> Tensor:
    """π(a|s) / μ(a|s) from the logarithms of both, with gradient to ``log_prob``.

    The logarithm is clipped at ±``max_log_ratio``: an infinite ratio times an advantage
    of 0 would be NaN.
    """
    log_ratio = log_prob - rollout_log_prob.detach()
    return log_ratio.clamp(-max_log_ratio, max_log_ratio).exp()


@quick
def _lambda_sums(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    td_lambda: float,
    time_major: bool,
    is_return: bool,
) -> Tensor:
    """:func:`lambda_return`; or the generalized advantage estimate."""
    steps = _transitions(rewards, values, step_types, discounts, time_major)
    if is_return:
        increments = _backup(steps, (1 - td_lambda) * steps.next_values)
    else:
        increments = _td_errors(steps)
    multipliers = torch.where(steps.valid, td_lambda * steps.next_discounts, 0.0)
    final = steps.next_values[-1] if is_return else None
    return _restore(reverse_linear_scan(increments, multipliers, final), time_major)


def _backup(steps: _Transitions, next_returns: Tensor) -> Tensor:
    """r_{t+1} + γ_{t+1} G_{t+1}, or V(s_t) where step t is LAST."""
    returns = steps.next_rewards + steps.next_discounts * next_returns
    return torch.where(steps.valid, returns, steps.values)


def _td_errors(steps: _Transitions) -> Tensor:
    """δ_t = r_{t+1} + γ_{t+1} V(s_{t+1}) − V(s_t), or 0 where step t is LAST."""
    return _backup(steps, steps.next_values) - steps.values


def _transitions(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    time_major: bool,
) -> _Transitions:
    """Views of the inputs, without gradient."""
    inputs = rewards, values, step_types, discounts
    _check_shapes(*inputs, time_major)
    tensors = [x.detach() if time_major else x.detach().swapaxes(0, 1) for x in inputs]
    r, v, step, discount = tensors
    next_discounts, valid = discount[1:], step[:-1] != _LAST
    if r.ndim > step.ndim:  # [T-1, B] → [T-1, B, 1]
        next_discounts, valid = next_discounts[..., None], valid[..., None]
    return _Transitions(r[1:], next_discounts, v[:-1], v[1:], valid)


def _check_shapes(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    time_major: bool,
) -> None:
    if values.shape != rewards.shape:
        raise ValueError(
            f"values {list(values.shape)} and rewards {list(rewards.shape)} must have "
            "the same shape, [T, B] or [T, B, D]"
        )
    _check_shape("discounts", discounts, step_types)
    if step_types.shape != rewards.shape[: step_types.ndim]:
        raise ValueError(
            f"step_types {list(step_types.shape)} must have the shape [T, B] that "
            f"rewards {list(rewards.shape)} begin with"
        )
    if not time_major and step_types.ndim < 2:
        raise ValueError(
            "time_major=False needs step_types [B, T], got shape "
            f"{list(step_types.shape)}"
        )
    num_steps = rewards.shape[0 if time_major else 1]
    if num_steps < 2:
        raise ValueError(
            f"needs at least T=2 steps, got T={num_steps}: the target of a step "
            "reads the next one"
        )


def _restore(x: Tensor, time_major: bool) -> Tensor:
    return x if time_major else x.transpose(0, 1)


def _check_shape(name: str, tensor: Tensor, step_types: Tensor) -> None:
    if tensor.shape != step_types.shape:
        raise ValueError(
            f"{name} {list(tensor.shape)} must have the shape of step_types "
            f"{list(step_types.shape)}"
        )


def _check_lambda(td_lambda: float | Tensor, function: str) -> None:
    # A tensor is a schedule, whose range was checked when it was given.
    if not isinstance(td_lambda, Tensor) and not 0 <= td_lambda <= 1:
        raise ValueError(f"{function}: td_lambda must be in [0, 1], got {td_lambda}")
