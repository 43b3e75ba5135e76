"""Other distributions with a location and a scale: Cauchy, and normal within bounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from alf_lite.distributions.action_distribution import (
    ActionDistribution,
    SampleShape,
)
from alf_lite.distributions.continuous import ActionBounds

_LOG_PI = math.log(math.pi)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_2 = math.sqrt(2)


class DiagonalCauchy(ActionDistribution):
    """Independent Cauchy distributions: now and then an action lies far away.

    There is no mean and no variance.

    Args:
        loc: [*batch, *event], medians.
        scale: [*batch, *event], half of the width at half of the height.
        num_event_dims: number of dimensions of one action.
    """

    parameter_names = ("loc", "scale")
    constant_names = ("num_event_dims",)
    has_rsample = True
    is_unbounded = True

    def __init__(self, loc: Tensor, scale: Tensor, num_event_dims: int = 1) -> None:
        self.loc = loc
        self.scale = scale
        self.num_event_dims = num_event_dims

    @property
    def mode(self) -> Tensor:
        return self.loc

    def rsample(self, sample_shape: SampleShape = ()) -> Tensor:
        loc = self.loc.expand(*sample_shape, *self.loc.shape)
        # A quarter turn is never reached exactly: all samples are finite.
        angle = (torch.rand_like(loc) - 0.5) * math.pi
        return torch.addcmul(loc, self.scale, angle.tan())

    def log_prob(self, value: Tensor) -> Tensor:
        distance = (value - self.loc) / self.scale
        log_probs = -_LOG_PI - self.scale.log() - distance.square().log1p()
        return self._sum(log_probs)

    def entropy(self) -> Tensor:
        entropies = self.scale.log() + math.log(4 * math.pi)
        return self._sum(entropies)

    def kl_divergence(self, other: Distribution) -> Tensor:
        other = self._same_kind(other)
        widths = (self.scale + other.scale).square()
        distance = (self.loc - other.loc).square()
        kl = ((widths + distance) / (4 * self.scale * other.scale)).log()
        return self._sum(kl)


class TruncatedNormal(ActionDistribution):
    """Independent normal distributions, cut off at bounds instead of squashed to them.

    With y the action in [-1, 1] and Φ the normal distribution function, the density is

        p(y) = N(y; loc, scale) / Z,  Z = Φ(β) − Φ(α),
        α = (−1 − loc) / scale,  β = (1 − loc) / scale

    Args:
        loc: [*batch, *event], the peak of y, in [-1, 1].
        scale: [*batch, *event], of y, before it is cut off.
        bounds: the box of the actions.
    """

    parameter_names = ("loc", "scale")
    constant_names = ("bounds",)
    has_rsample = True

    def __init__(self, loc: Tensor, scale: Tensor, bounds: ActionBounds) -> None:
        self.loc = loc
        self.scale = scale
        self.bounds = bounds

    @property
    def mode(self) -> Tensor:
        return self.bounds.from_symmetric(self.loc)

    def rsample(self, sample_shape: SampleShape = ()) -> Tensor:
        loc = self.loc.expand(*sample_shape, *self.loc.shape)
        low, high = (
            _cdf((-1 - self.loc) / self.scale),
            _cdf((1 - self.loc) / self.scale),
        )
        probability = torch.lerp(low, high, torch.rand_like(loc))
        # The inverse of Φ is infinite at 0 and 1.
        eps = torch.finfo(loc.dtype).eps
        standard = _SQRT_2 * (2 * probability.clamp(eps, 1 - eps) - 1).erfinv()
        y = torch.addcmul(loc, self.scale, standard)
        return self.bounds.from_symmetric(y.clamp(-1, 1))

    def log_prob(self, value: Tensor) -> Tensor:
        distance = (self.bounds.to_symmetric(value) - self.loc) / self.scale
        log_probs = -0.5 * distance.square() - _HALF_LOG_2PI
        log_probs = log_probs - self.scale.log() - self._mass().log()
        return self._sum(log_probs) - self.bounds.log_half_widths

    def entropy(self) -> Tensor:
        mass = self._mass()
        _, slope = self._shape_of_ends(mass)
        entropies = _HALF_LOG_2PI + 0.5 + (self.scale * mass).log() + 0.5 * slope
        return self._sum(entropies) + self.bounds.log_half_widths

    def kl_divergence(self, other: Distribution) -> Tensor:
        other = self._same_kind(other)
        mass = self._mass()
        shift, slope = self._shape_of_ends(mass)
        mean = self.loc + self.scale * shift
        variance = self.scale.square() * (1 + slope - shift.square())
        # −E_p[log q] − H(p)
        square = (variance + (mean - other.loc).square()) / other.scale.square()
        cross = (other.scale * other._mass()).log() + 0.5 * square
        return self._sum(cross - (self.scale * mass).log() - 0.5 - 0.5 * slope)

    def _mass(self) -> Tensor:
        """Z."""
        return _cdf((1 - self.loc) / self.scale) - _cdf((-1 - self.loc) / self.scale)

    def _shape_of_ends(self, mass: Tensor) -> tuple[Tensor, Tensor]:
        """(φ(α) − φ(β)) / Z and (α φ(α) − β φ(β)) / Z."""
        low, high = (-1 - self.loc) / self.scale, (1 - self.loc) / self.scale
        at_low, at_high = _density(low), _density(high)
        return (at_low - at_high) / mass, (low * at_low - high * at_high) / mass


def _cdf(x: Tensor) -> Tensor:
    """Φ(x)."""
    return torch.special.ndtr(x)


def _density(x: Tensor) -> Tensor:
    """φ(x)."""
    return (-0.5 * x.square() - _HALF_LOG_2PI).exp()
