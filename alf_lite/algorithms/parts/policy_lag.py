"""Advantages and value targets from what an older policy did.

An unroll that was collected by other processes, or that is trained on more than once,
comes from a behaviour policy μ that is not the policy π to be improved any more. The
V-trace of ``value_ops`` corrects the values; here are the advantages and the weights
that go with them.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from alf_lite.data_structures import StepType
from alf_lite.utils import value_ops
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients


class ImportanceWeights(NamedTuple):
    """Of the actions of μ, [T, B] each; all 0 where step t is LAST."""

    truncated: Tensor  # min(ρ̄, π/μ)
    ratio: Tensor  # π/μ
    kl: Tensor  # (π/μ − 1) − log π/μ, never negative, of mean KL(μ‖π)

    def summarize(self) -> LagSummary:
        return LagSummary(self.kl, self.ratio, self.ratio.max())


class LagSummary(NamedTuple):
    """How far the policy has moved since it acted."""

    kl: Tensor  # [T, B] estimates of KL(μ‖π), nats
    importance_weight: Tensor  # [T, B] π/μ, 1 on average
    max_importance_weight: Tensor  # []


class LagCorrection(NamedTuple):
    """What :func:`correct_policy_lag` returns, of the first T-1 steps."""

    advantage: Tensor  # [T-1, B] or [T-1, B, D], to be multiplied with a weight
    value_target: Tensor  # [T-1, B] or [T-1, B, D]
    weights: ImportanceWeights  # [T-1, B]


@torch.no_grad()
def correct_policy_lag(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    log_prob: Tensor,
    rollout_log_prob: Tensor,
    *,
    td_lambda: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    time_major: bool = True,
) -> LagCorrection:
    """V-trace targets, and advantages that an importance weight makes those of π.

    With v_t of ``value_ops.vtrace`` and the same arrival-time indices:

        A_t = r_{t+1} + γ_{t+1} (λ v_{t+1} + (1 − λ) V(s_{t+1})) − V(s_t)
        w_t = min(ρ̄, π(a_t|s_t) / μ(a_t|s_t))

    and A_t = w_t = 0 where step t is LAST. w_t A_t ∇log π(a_t|s_t) is the policy
    gradient of Espeholt et al. 2018 (arXiv:1802.01561, section 4.2), which has λ = 1.
    With μ = π, A_t is the generalized advantage estimate, and v_t the λ-return.

    The weight is not part of the advantage, because a constant c may be subtracted from
    the latter, as normalizing does: E_μ[π/μ · c · ∇log π] = 0, unlike E_μ[c · ∇log π].

    Args:
        rewards, values, step_types, discounts: see ``value_ops``.
        log_prob: [T, B], log π(a_t|s_t).
        rollout_log_prob: [T, B], log μ(a_t|s_t).
        td_lambda: λ in [0, 1].
        rho_clip: ρ̄ > 0. The values are those of the policy proportional to
            min(ρ̄ μ, π); inf: those of π.
        c_clip: c̄ > 0, how far corrections reach back.
        time_major: see ``value_ops``.

    Raises:
        ValueError: if λ or a clip is out of its range, T < 2, or the shapes do not fit.
    """
    is_last = step_types == int(StepType.LAST)
    ratio = value_ops.action_importance_ratio(log_prob, rollout_log_prob)
    ratio = torch.where(is_last, 0.0, ratio)  # no action: it may have been NaN
    args = (step_types, discounts)
    targets = value_ops.vtrace(
        rewards,
        values,
        *args,
        ratio,
        td_lambda=td_lambda,
        rho_clip=rho_clip,
        c_clip=c_clip,
        time_major=time_major,
    ).targets
    time = 0 if time_major else 1

    def first_steps(x: Tensor) -> Tensor:
        return x.narrow(time, 0, x.shape[time] - 1)

    bootstrap = values.narrow(time, values.shape[time] - 1, 1)
    mixed = torch.lerp(values, torch.cat([targets, bootstrap], time), td_lambda)
    returns = value_ops.one_step_discounted_return(rewards, mixed, *args, time_major)
    ratio = first_steps(ratio)
    kl = torch.where(first_steps(is_last), 0.0, ratio - 1 - ratio.log())
    return LagCorrection(
        advantage=returns - first_steps(values),
        value_target=targets,
        weights=ImportanceWeights(ratio.clamp(max=rho_clip), ratio, kl),
    )


class LagCorrector(FollowsProgress):
    """:func:`correct_policy_lag` with its coefficients.

    Args:
        td_lambda: λ in [0, 1], or a schedule of it.
        rho_clip: ρ̄, where importance weights π/μ are truncated.
        c_clip: c̄, where those that carry corrections back are truncated.

    Raises:
        ValueError: unless 0 < c̄ ≤ ρ̄, which V-trace converges under.
    """

    _td_lambda = Coefficient()

    def __init__(
        self, td_lambda: Scheduled, rho_clip: float = 1.0, c_clip: float = 1.0
    ) -> None:
        if not 0 < c_clip <= rho_clip:
            raise ValueError(
                "c_clip must be positive and rho_clip not smaller, got "
                f"c_clip={c_clip} and rho_clip={rho_clip}"
            )
        set_coefficients(self, _td_lambda=td_lambda)
        self._correct = functools.partial(
            correct_policy_lag, rho_clip=rho_clip, c_clip=c_clip
        )

    def __call__(self, *args: Tensor, time_major: bool = True) -> LagCorrection:
        return self._correct(*args, td_lambda=self._td_lambda, time_major=time_major)
