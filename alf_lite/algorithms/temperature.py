"""The weight of a policy's entropy, learnt from how much entropy it should keep."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """α > 0, the price of entropy in units of reward.

    Args:
        initial_value: of α.
        target_entropy: H̄; α rises while the entropy is lower.
        is_learnt: False keeps α.
    """

    def __init__(
        self, initial_value: float, target_entropy: float, *, is_learnt: bool = True
    ) -> None:
        super().__init__()
        if not initial_value > 0:
            raise ValueError(f"initial_alpha must be positive, got {initial_value}")
        self.target_entropy = target_entropy
        self._log_alpha = nn.Parameter(
            torch.tensor(math.log(initial_value)), requires_grad=is_learnt
        )

    @property
    def alpha(self) -> Tensor:
        """[], without gradient."""
        return self._log_alpha.detach().exp()

    def forward(self, entropy: Tensor) -> Tensor:
        """The loss of α alone, log α · (H − H̄): [...] → [...].

        Haarnoja et al. 2018 (arXiv:1812.05905), eq. 18, with log α in place of α: its
        steps are as long when α is small.
        """
        return self._log_alpha * (entropy.detach() - self.target_entropy)


def entropy_of_mostly_one_value(num_values: int, share: float = 0.9) -> float:
    """The entropy if one value has this share and the others the rest alike."""
    if num_values < 2:
        return 0.0
    rest = 1 - share
    return -share * math.log(share) - rest * math.log(rest / (num_values - 1))
