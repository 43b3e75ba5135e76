"""The weight of the conservative term of CQL, fixed or learnt."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# As far as a threshold that cannot be reached may drive it.
_MAX_ALPHA = 1e6


class ConservativeWeight(nn.Module):
    """α ≥ 0, by which the gap between the values of all and of stored actions counts.

    Args:
        initial_value: of α.
        threshold: τ; α rises while the gap is larger and falls while it is smaller, so
            that it is as large as the constraint "gap ≤ τ" needs it. None keeps α.

    Raises:
        ValueError: if the value or the threshold is out of range.
    """

    _alpha: Tensor

    def __init__(self, initial_value: float, threshold: float | None = None) -> None:
        super().__init__()
        self._threshold = threshold
        if threshold is None:
            if not 0 <= initial_value < math.inf:
                raise ValueError(
                    f"cql_alpha must be finite and not negative, got {initial_value}"
                )
            # What a conf says now holds, not what a checkpoint was trained with.
            alpha = torch.tensor(float(initial_value))
            self.register_buffer("_alpha", alpha, persistent=False)
            return
        if not 0 < initial_value < math.inf or not math.isfinite(threshold):
            raise ValueError(
                "with a cql_threshold, which must be finite, cql_alpha must be finite "
                f"and positive; got {threshold} and {initial_value}"
            )
        self._log_alpha = nn.Parameter(torch.tensor(math.log(initial_value)))

    @property
    def alpha(self) -> Tensor:
        """[], without gradient."""
        if self._threshold is None:
            return self._alpha
        return self._log_alpha.detach().exp().clamp(max=_MAX_ALPHA)

    def forward(self, gap: Tensor) -> Tensor:
        """The loss of α alone, −log α · (gap − τ): [...] → [...].

        With log α in place of α in Kumar et al. 2020 (arXiv:2006.04779), eq. 30: its
        steps are as long when α is small. 0 if α is kept.
        """
        if self._threshold is None:
            return torch.zeros_like(gap)
        return -self._log_alpha * (gap.detach() - self._threshold)
