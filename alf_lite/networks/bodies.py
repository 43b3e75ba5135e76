"""Hidden layers of other shapes than a multi-layer perceptron, by name.

A body takes the place of the hidden layers of networks and of ensembles of critics. It
is a function of the number of inputs, the sizes of the layers and the number of members
of an ensemble (None for one network), and returns layers whose output has the last of
the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.errors import did_you_mean
from alf_lite.networks.batch_norm import BatchNorm
from alf_lite.networks.initializers import (
    HIDDEN_GAIN,
    check_parameters,
    initialize_members,
    initialized,
)
from alf_lite.networks.lean_layers import LeanSequential, LinearMap
from alf_lite.networks.parallel_layers import ParallelLayerNorm, ParallelLinear

# (inputs, sizes, members of an ensemble or None) → layers
Body = Callable[[int, Sequence[int], int | None], Sequence[nn.Module]]

_EXPANSION = 4  # how much wider a residual block is inside
_SHIFT = 3.0  # what SimbaV2 appends to its input


class MatrixProduct(LinearMap):
    """A linear layer without a bias, or one for each of n members: y_k = x_k W_k."""

    def __init__(self, size: int, output_size: int, num_members: int | None) -> None:
        super().__init__()
        shape = (num_members or 1, size, output_size)
        check_parameters(f"layers of {size} x {output_size}", *shape)
        weight = torch.empty(shape)
        initialize_members(weight, HIDDEN_GAIN, None)
        # [in, out] or [n, in, out]
        self.weight = nn.Parameter(weight[0] if num_members is None else weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]; of an ensemble [(n,) B, in] → [n, B, out]."""
        return x @ self.weight

    def extra_repr(self) -> str:
        return " x ".join(map(str, self.weight.shape))


class _Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = LeanSequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def simba(
    size: int, layer_sizes: Sequence[int], num_members: int | None
) -> list[nn.Module]:
    """A linear layer, then a residual block for each size: x + W relu(W LN(x)).

    A block is four times as wide inside; layer normalization ends the body. Lee et al.,
    "SimBa", ICLR 2025 (arXiv:2410.09754).
    """
    width = _one_width("simba", layer_sizes)
    blocks = [
        _Residual(
            _layer_norm(width, num_members),
            _linear(width, _EXPANSION * width, num_members),
            nn.ReLU(),
            _linear(_EXPANSION * width, width, num_members),
        )
        for _ in layer_sizes
    ]
    return [
        _linear(size, width, num_members),
        *blocks,
        _layer_norm(width, num_members),
    ]


class _Scaler(nn.Module):
    """x times a gain for each element, which starts at ``start``.

    The parameter starts at ``scale``: the smaller that is, the faster Adam moves it.
    """

    def __init__(
        self, size: int, start: float, scale: float, num_members: int | None
    ) -> None:
        super().__init__()
        shape = (size,) if num_members is None else (num_members, 1, size)
        self.weight = nn.Parameter(torch.full(shape, scale))
        self._factor = start / scale

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight * self._factor)


class _UnitLength(nn.Module):
    """x / |x|, after ``shift`` is appended to it if there is one."""

    def __init__(self, shift: float | None = None) -> None:
        super().__init__()
        self._shift = shift

    def forward(self, x: Tensor) -> Tensor:
        if self._shift is not None:
            x = F.pad(x, (0, 1), value=self._shift)
        return F.normalize(x, dim=-1)


class _Interpolation(nn.Module):
    """From x towards f(x) on the sphere, by a learnt part of the way."""

    def __init__(self, step: _Scaler, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.step = LeanSequential(*layers), step

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x + self.step(self.layers(x) - x), dim=-1)


def simba_v2(
    size: int, layer_sizes: Sequence[int], num_members: int | None
) -> list[nn.Module]:
    """Features of unit length, moved on their sphere by a block for each size.

    Meant for ``weight_projection = "all"``: layers have no bias, a learnt gain takes
    the place of their norms. A product with gains ends the body, so that an output
    layer with weights of length 1 can give any number. Lee et al., "Hyperspherical
    Normalization for Scalable Deep Reinforcement Learning" (SimbaV2), ICML 2025
    (arXiv:2502.15280).
    """
    width, blocks = _one_width("simba_v2", layer_sizes), len(layer_sizes)
    inside, gain = _EXPANSION * width, math.sqrt(2 / width)
    inner_gain = gain / math.sqrt(_EXPANSION)
    return [
        _UnitLength(_SHIFT),
        MatrixProduct(size + 1, width, num_members),
        _Scaler(width, gain, gain, num_members),
        _UnitLength(),
        *(
            _Interpolation(
                _Scaler(width, 1 / (blocks + 1), 1 / math.sqrt(width), num_members),
                MatrixProduct(width, inside, num_members),
                _Scaler(inside, inner_gain, inner_gain, num_members),
                nn.ReLU(),
                MatrixProduct(inside, width, num_members),
                _UnitLength(),
            )
            for _ in layer_sizes
        ),
        MatrixProduct(width, width, num_members),
        _Scaler(width, 1.0, 1.0, num_members),
    ]


def xqc(
    size: int, layer_sizes: Sequence[int], num_members: int | None
) -> list[nn.Module]:
    """Batch-normalized input, then layers without bias, each normalized before ReLU.

    Palenicek et al., "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement
    Learning", 2025 (arXiv:2509.25174).
    """
    layers: list[nn.Module] = [BatchNorm(size, num_members)]
    for inputs, outputs in pairwise([size, *layer_sizes]):
        layers += [
            MatrixProduct(inputs, outputs, num_members),
            BatchNorm(outputs, num_members),
            nn.ReLU(),
        ]
    return layers


class RmsNorm(nn.Module):
    """x over the root of its mean square, times a gain for each element."""

    def __init__(self, size: int, num_members: int | None) -> None:
        super().__init__()
        shape = (size,) if num_members is None else (num_members, 1, size)
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=1e-6) * self.weight


def flash_sac(
    size: int, layer_sizes: Sequence[int], num_members: int | None
) -> list[nn.Module]:
    """Batch-normalized input, a matrix, a residual block for each size, RMS norm.

    A block is four times as wide inside, has no biases, and normalizes by the batch
    before each ReLU. "FlashSAC", 2026 (arXiv:2604.04539).
    """
    width = _one_width("flash_sac", layer_sizes)
    inside = _EXPANSION * width
    blocks = [
        _Residual(
            MatrixProduct(width, inside, num_members),
            BatchNorm(inside, num_members),
            nn.ReLU(),
            MatrixProduct(inside, width, num_members),
            BatchNorm(width, num_members),
            nn.ReLU(),
        )
        for _ in layer_sizes
    ]
    return [
        BatchNorm(size, num_members),
        MatrixProduct(size, width, num_members),
        *blocks,
        RmsNorm(width, num_members),
    ]


_BODIES: dict[str, Body] = {
    body.__name__: body for body in (simba, simba_v2, xqc, flash_sac)
}


def make_body(
    body: str | Body, size: int, layer_sizes: Sequence[int], num_members: int | None
) -> list[nn.Module]:
    """The layers of a body, by name or of one's own.

    Raises:
        ValueError: if there is no body of this name, or it takes no such sizes.
    """
    if isinstance(body, str):
        if body not in _BODIES:
            raise ValueError(
                f"body: expected one of {sorted(_BODIES)} or a function, got {body!r}."
                f"{did_you_mean(body, _BODIES)}"
            )
        body = _BODIES[body]
    return list(body(size, layer_sizes, num_members))


def _one_width(name: str, layer_sizes: Sequence[int]) -> int:
    if len(set(layer_sizes)) != 1:
        raise ValueError(
            f"body {name!r}: a size for each block, all the same, such as (256, 256), "
            f"got {tuple(layer_sizes)}"
        )
    return layer_sizes[0]


def _linear(size: int, output_size: int, num_members: int | None) -> nn.Module:
    if num_members is None:
        return initialized(nn.Linear(size, output_size), HIDDEN_GAIN, None)
    return ParallelLinear(num_members, size, output_size)


def _layer_norm(size: int, num_members: int | None) -> nn.Module:
    if num_members is None:
        return nn.LayerNorm(size)
    return ParallelLayerNorm(num_members, size)
