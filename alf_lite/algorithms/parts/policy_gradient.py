"""Losses of policy gradients with value and entropy, the plain and the clipped one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.algorithms.parts.policy_lag import LagSummary
from alf_lite.data_structures import Field
from alf_lite.fast import quick
from alf_lite.utils import losses
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.schedulers import Coefficient, Scheduled, is_zero, set_coefficients


class _WeightedLoss(FollowsProgress):
    """L^π + c_v L^V − c_e H, [T, B].

    Args:
        value_loss_weight: c_v, a number or a schedule.
        entropy_weight: c_e, likewise.
    """

    _value_weight = Coefficient()
    _entropy_weight = Coefficient()

    def __init__(self, value_loss_weight: Scheduled, entropy_weight: Scheduled) -> None:
        set_coefficients(
            self, _value_weight=value_loss_weight, _entropy_weight=entropy_weight
        )

    def _weighted_sum(
        self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor
    ) -> Tensor:
        loss = policy_loss + self._value_weight * value_loss
        entropy_weight = self._entropy_weight
        if is_zero(entropy_weight):
            return loss
        return loss - entropy_weight * entropy


class PolicyGradientLoss(_WeightedLoss):
    """−A log π + c_v (V − R)² − c_e H, [T, B]."""

    @quick
    def __call__(
        self,
        log_prob: Tensor,
        value: Tensor,
        entropy: Tensor,
        advantage: Tensor,
        value_target: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss [T, B]; its parts for policy and value, which are to look at.

        Args:
            log_prob: [T, B], log π(a_t|s_t).
            value: [T, B] or [T, B, D].
            entropy: [T, B].
            advantage: [T, B], A.
            value_target: as ``value``, R.
        """
        policy_loss = -advantage * log_prob
        value_loss = losses.squared(value_target, value)
        if value_loss.ndim > policy_loss.ndim:
            value_loss = value_loss.sum(-1)  # of a reward of several dimensions
        loss = self._weighted_sum(policy_loss, value_loss, entropy)
        return loss, policy_loss, value_loss


class PPOLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    # Diagnostics, () if nobody looks at them
    approx_kl: Field = ()  # (r - 1) - log r, an unbiased low-variance estimate
    clip_fraction: Field = ()
    explained_variance: Field = ()  # [] of the targets, by V_old
    policy_lag: LagSummary | tuple[()] = ()  # of π_prox, if it is corrected


class ClippedLoss(_WeightedLoss):
    """−min(ρ̄, w) min(r A, clip(r, 1 − ε, 1 + ε) A) + c_v L^V − c_e H, [T, B].

    L^V is (V − R)², or the larger of that and the error of the clipped value.

    Args:
        clip_epsilon: ε, a number or a schedule, as the others.
        value_clip: how far V may move from the old value; None for no limit.
        value_loss_weight: c_v.
        entropy_weight: c_e.
    """

    _clip_epsilon = Coefficient()
    _value_clip = Coefficient()

    def __init__(
        self,
        clip_epsilon: Scheduled,
        value_clip: Scheduled | None,
        value_loss_weight: Scheduled,
        entropy_weight: Scheduled,
    ) -> None:
        super().__init__(value_loss_weight, entropy_weight)
        set_coefficients(self, _clip_epsilon=clip_epsilon, _value_clip=value_clip)

    @quick
    def __call__(
        self,
        log_prob: Tensor,
        value: Tensor,
        entropy: Tensor,
        advantage: Tensor,
        info: Any,
    ) -> tuple[Tensor, PPOLossInfo]:
        """The loss [T, B] and its parts, to look at: they may have no gradient.

        Args:
            log_prob: [T, B], log π(a_t|s_t).
            value: [T, B] or [T, B, D].
            entropy: [T, B].
            advantage: [T, B], A.
            info: ``log_prob`` [T, B], log π_old(a_t|s_t); ``old_value`` and
                ``value_target``, as ``value``; ``weights``, w = π_prox/μ, or ().
        """
        parts = self._parts(log_prob, value, entropy, advantage, info)
        return self._weighted_sum(*parts[:3]), parts

    def _parts(
        self,
        log_prob: Tensor,
        value: Tensor,
        entropy: Tensor,
        advantage: Tensor,
        info: Any,
    ) -> PPOLossInfo:
        ratio = (log_prob - info.log_prob).exp()
        epsilon = self._clip_epsilon
        clipped_ratio = ratio.clamp(1 - epsilon, 1 + epsilon)
        policy_loss = -torch.minimum(ratio * advantage, clipped_ratio * advantage)
        if info.weights:
            policy_loss = info.weights.truncated * policy_loss
        value_loss = losses.squared(info.value_target, value)
        clip = self._value_clip
        if clip is not None:
            moved = (value - info.old_value).clamp(-clip, clip)
            clipped = losses.squared(info.value_target, info.old_value + moved)
            value_loss = torch.maximum(value_loss, clipped)
        if value_loss.ndim > policy_loss.ndim:
            value_loss = value_loss.sum(-1)  # of a reward of several dimensions
        return PPOLossInfo(policy_loss, value_loss, entropy)
