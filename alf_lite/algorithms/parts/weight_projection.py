"""Weights of linear layers that keep the length 1, and gains that keep theirs."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from alf_lite.errors import ConfigError
from alf_lite.networks.batch_norm import BatchNorm
from alf_lite.networks.bodies import MatrixProduct, RmsNorm
from alf_lite.networks.lean_layers import HiddenSequential
from alf_lite.networks.parallel_layers import ParallelLayerNorm, ParallelLinear
from alf_lite.utils.checks import check_choice, check_left_out

Projection = Literal["hidden", "all", "all_and_gains"]

_Norm = BatchNorm | RmsNorm | nn.LayerNorm | ParallelLayerNorm


class WeightProjection:
    """Brings the weights that lead to one unit to length 1, for every unit.

    Where what follows normalizes its input, the length of weights says nothing but how
    small a step of the optimizer is, and grows in training. Lyle et al. 2024,
    "Normalization and effective learning rates" (arXiv:2407.01800). The bias of a
    hidden unit counts as one of its weights, so that what it gives is the same but for
    a factor; that of an output is free.

    Args:
        projected: "hidden": of the hidden layers of perceptrons and bodies; "all": of
            all linear layers, such as the outputs; "all_and_gains": and the gains and
            biases of a normalization of d features have the length √d together, at
            which they start (FlashSAC).
        networks: whose linear layers are meant. Convolutions and recurrent cells stay
            free.

    Raises:
        ConfigError: if they have none of that.
    """

    def __init__(self, projected: Projection, *networks: nn.Module) -> None:
        check_choice(Projection, weight_projection=projected)
        parts = [m for network in networks for m in network.modules()]
        bodies = [m for m in parts if isinstance(m, HiddenSequential)]
        hidden = dict.fromkeys(m for body in bodies for m in body.modules())
        if projected == "hidden":
            parts = list(hidden)
        self._layers = [
            # and the inputs' dimension, and whether the bias is one of the weights
            (
                layer,
                1 if isinstance(layer, nn.Linear) else -2,
                layer in hidden and getattr(layer, "bias", None) is not None,
            )
            for layer in dict.fromkeys(parts)
            if isinstance(layer, nn.Linear | ParallelLinear | MatrixProduct)
        ]
        self._norms: list[list[Tensor]] = [
            list(part.parameters(recurse=False))  # gain and bias
            for part in dict.fromkeys(parts)
            if projected == "all_and_gains" and isinstance(part, _Norm)
        ]
        if not self._layers:
            reason = "no network has hidden layers"
            check_left_out(reason, weight_projection=projected)
        if projected == "all_and_gains" and not self._norms:
            raise ConfigError(
                "weight_projection: no network has gains of a normalization that "
                "'all_and_gains' could keep. Take 'all'"
            )
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """To be called after each step of the optimizer."""
        for layer, dim, has_bias in self._layers:
            weight: Tensor = layer.weight
            length = weight.norm(dim=dim, keepdim=True)
            if has_bias:
                bias: Any = layer.bias
                bias = bias.view_as(length)
                length = torch.hypot(length, bias)
                bias.div_(length.clamp(min=1e-12))
            weight.div_(length.clamp(min=1e-12))
        for gains in self._norms:
            length = torch.cat(gains, -1).norm(dim=-1, keepdim=True).clamp(min=1e-12)
            for gain in gains:
                gain.mul_(math.sqrt(gain.shape[-1]) / length)
