"""Weights of linear layers that keep the length 1."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from alf_lite.networks.bodies import MatrixProduct
from alf_lite.networks.lean_layers import HiddenSequential
from alf_lite.networks.parallel_layers import ParallelLinear

Projection = Literal["hidden", "all"]


class WeightProjection:
    """Brings the weights that lead to one unit to length 1, for every unit.

    Where what follows normalizes its input, the length of weights says nothing but how
    small a step of the optimizer is, and grows in training. Lyle et al. 2024,
    "Normalization and effective learning rates" (arXiv:2407.01800).

    Args:
        projected: "hidden": of hidden layers; "all": of the outputs, too.
        networks: whose linear layers are meant.
    """

    def __init__(self, projected: Projection, *networks: nn.Module) -> None:
        if projected not in ("hidden", "all"):
            raise ValueError(
                "weight_projection: expected 'hidden', 'all' or None, got "
                f"{projected!r}"
            )
        parts = [m for network in networks for m in network.modules()]
        if projected == "hidden":
            hidden = [m for m in parts if isinstance(m, HiddenSequential)]
            parts = [m for part in hidden for m in part.modules()]
        self._layers = [
            (layer, 1 if isinstance(layer, nn.Linear) else -2)  # the inputs' dimension
            for layer in dict.fromkeys(parts)
            if isinstance(layer, nn.Linear | ParallelLinear | MatrixProduct)
        ]
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """To be called after each step of the optimizer."""
        for layer, dim in self._layers:
            weight: Tensor = layer.weight
            weight.div_(weight.norm(dim=dim, keepdim=True).clamp(min=1e-12))
