"""How the parts of a reward of several dimensions are weighed against each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec


class RewardWeights(nn.Module):
    """Weights [D] that checkpoints hold; None for a reward of one dimension.

    Args:
        reward_spec: rank 0, or rank 1 with D dimensions.
        weights: D numbers; ones by default.

    Raises:
        ConfigError: if they do not fit the reward.
    """

    weights: Tensor | None

    def __init__(
        self, reward_spec: TensorSpec, weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if reward_spec.ndim > 1:
            raise ConfigError(f"reward_spec must have rank 0 or 1, got {reward_spec}")
        if reward_spec.ndim == 0:
            if weights is not None:
                raise ConfigError(
                    f"reward_weights={list(weights)} given, but the reward of this "
                    "environment has only one dimension"
                )
            self.register_buffer("weights", None)
            return
        if weights is None:
            weights = [1.0] * reward_spec.numel
        if len(weights) != reward_spec.numel:
            raise ConfigError(
                f"{len(weights)} reward_weights for a reward of {reward_spec.numel} "
                "dimensions"
            )
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))

    def set(self, weights: Tensor | Sequence[float]) -> None:
        """Changes the weights.

        Raises:
            ValueError: for a reward of one dimension or a wrong number of weights.
        """
        if self.weights is None:
            raise ValueError("set_reward_weights: the reward has only one dimension")
        new = torch.as_tensor(weights, dtype=torch.float32)
        if new.shape != self.weights.shape:
            raise ValueError(
                f"set_reward_weights: expected {tuple(self.weights.shape)}, got "
                f"{tuple(new.shape)}"
            )
        self.weights.copy_(new)

    def forward(self, values: Tensor) -> Tensor:
        """Rewards, values or advantages [..., D] → [...]; [...] as it is."""
        return values if self.weights is None else values @ self.weights
