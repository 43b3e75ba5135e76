"""The loss of policy gradients with value and entropy."""

from __future__ import annotations

from torch import Tensor

from alf_lite.fast import quick
from alf_lite.utils import losses
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.schedulers import (
    Coefficient,
    Scheduled,
    is_zero,
    set_coefficients,
)


class PolicyGradientLoss(FollowsProgress):
    """−A log π + c_v (V − R)² − c_e H, [T, B].

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
        loss = policy_loss + self._value_weight * value_loss
        entropy_weight = self._entropy_weight
        if not is_zero(entropy_weight):
            loss = loss - entropy_weight * entropy
        return loss, policy_loss, value_loss
