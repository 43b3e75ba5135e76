"""Layers with noise in their weights, which explores in place of random actions.

Fortunato et al., "Noisy Networks for Exploration", ICLR 2018 (arXiv:1706.10295).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.networks.initializers import check_parameters
from alf_lite.networks.lean_layers import LinearMap
from alf_lite.utils.checks import check_positive

# Whether layers have noise that are not in training, see exploring_by_noise
_is_exploring = False


class exploring_by_noise:  # noqa: N801 - used like a function
    """Inside, noisy layers have noise although they are not in training.

    Every row of a batch, hence every environment, has noise of its own.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        global _is_exploring  # one for the process, as the precision of layers is
        self._before, _is_exploring = _is_exploring, True

    def __exit__(self, *error: object) -> None:
        global _is_exploring
        _is_exploring = self._before


class NoisyLinear(LinearMap):
    """A linear layer with factorised Gaussian noise in its parameters, section 3 (b).

        y = (μ_w + σ_w ⊙ ε_w) x + μ_b + σ_b ⊙ ε_b,  ε_w = f(ε_out) f(ε_in)ᵀ,
        ε_b = f(ε_out),  f(ε) = sgn(ε) √|ε|

    The noise is drawn anew in every call, of torch's generator: in training once for
    the batch, as in the paper, and inside of :class:`exploring_by_noise` for every row.
    Otherwise there is none, which makes a policy greedy.

    Args:
        input_size: p, the features of one input.
        output_size: features of one output.
        noise_std: σ₀; σ starts as σ₀ / √p, and μ uniformly within ± 1 / √p.
    """

    def __init__(
        self, input_size: int, output_size: int, noise_std: float = 0.5
    ) -> None:
        super().__init__()
        check_positive(noise_std=noise_std)
        check_parameters(
            f"a noisy layer of {input_size} x {output_size}",
            2,
            input_size,
            output_size,
        )
        bound = 1 / math.sqrt(input_size)
        sizes = (output_size, input_size)
        self.weight = nn.Parameter(torch.empty(sizes).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(output_size).uniform_(-bound, bound))
        std = noise_std * bound
        self.weight_std = nn.Parameter(torch.full(sizes, std))
        self.bias_std = nn.Parameter(torch.full((output_size,), std))

    def forward(self, x: Tensor) -> Tensor:
        """[..., input_size] → [..., output_size]."""
        y = F.linear(x, self.weight, self.bias)
        if self.training:
            shape = torch.Size([1] * (x.ndim - 1))
        elif _is_exploring:
            shape = x.shape[:-1]
        else:
            return y
        # ε_w is a product: what it does to x is done to x before and to y after.
        output_size, input_size = self.weight.shape
        before = _noise((*shape, input_size), x)
        after = _noise((*shape, output_size), x)
        return y + F.linear(x * before, self.weight_std, self.bias_std) * after

    def extra_repr(self) -> str:
        output_size, input_size = self.weight.shape
        return f"{input_size} -> {output_size}"


def _noise(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """f(ε) of standard normal ε."""
    noise = torch.randn(shape, dtype=like.dtype, device=like.device)
    return noise.sign() * noise.abs().sqrt()
