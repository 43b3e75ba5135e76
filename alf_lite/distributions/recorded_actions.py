"""Actions that something else than the policy chose, and how likely they are to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.base import DeviceConstants
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec

Nest = Any


class RecordedActions:
    """What the regression of a policy on stored actions needs.

    Stored actions may lie where the policy cannot go. Beyond the bounds, environments
    clip, so the bound itself was executed. And on a bound the density of a distribution
    that is squashed is no measure: tanh(u) = ±1 wants u = ±∞. Up to rounding that is
    |u| ≈ 8, so far from all others that a few such actions decide about mean and
    deviation. A small margin brings them close: 0.001 makes it |u| < 4.

    Args:
        action_spec: nest of specs.
        mask: of the actions.
        margin: how far from their bounds continuous actions are kept, as a part of half
            of their range; 0 for none.

    Raises:
        ValueError: if the margin does not lie in [0, 1).
    """

    def __init__(
        self, action_spec: NestedTensorSpec, mask: ActionMask, margin: float = 1e-3
    ) -> None:
        if not 0 <= margin < 1:
            raise ValueError(f"action_margin must lie in [0, 1), got {margin}")
        self._mask = mask
        self._bounds = [_bounds(spec, margin) for spec in nest.flatten(action_spec)]

    def clip(self, action: Nest) -> Nest:
        """The same actions [..., *shape] between their bounds, the margin kept.

        Also what stands at a step that ignored its action becomes a possible value.
        """
        leaves = [
            leaf if bounds is None else leaf.clamp(*bounds.on(leaf.device))
            for leaf, bounds in zip(nest.flatten(action), self._bounds, strict=True)
        ]
        return nest.pack_sequence_as(action, leaves)

    def log_prob(self, policy: Nest, action: Nest, observation: Nest) -> Tensor:
        """Log π(a|s) [B]; 0 and without gradient where the mask rules the action out.

        No policy that honours the mask can learn such an action.

        Args:
            policy: distributions like the action spec, π(·|s).
            action: [B, ...], clipped.
            observation: [B, ...], s, with the mask.
        """
        log_prob = distributions.log_prob(policy, action)
        allowed = self._mask.allows(action, observation)
        return log_prob if allowed is None else torch.where(allowed, log_prob, 0.0)


def _bounds(spec: Any, margin: float) -> DeviceConstants | None:
    """Lowest and highest value, of the dtype of the spec."""
    if not isinstance(spec, BoundedTensorSpec) or spec.dtype == torch.bool:
        return None
    low, high = spec.minimum, spec.maximum
    if spec.is_continuous:
        with np.errstate(over="ignore"):
            width = high - low
        inset = margin / 2 * np.where(np.isfinite(width), width, 0)
        low, high = (low + inset).astype(low.dtype), (high - inset).astype(high.dtype)
    return DeviceConstants(low, high)
