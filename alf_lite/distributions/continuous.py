"""Distributions of continuous actions: normal, squashed normal and Beta."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Beta, Distribution
from torch.nn import functional as F

from alf_lite.distributions.action_distribution import (
    ActionDistribution,
    SampleShape,
)
from alf_lite.tensor_specs import BoundedTensorSpec
from alf_lite.utils.tensor_utils import DeviceConstants

_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class DiagonalNormal(ActionDistribution):
    """Independent normal distributions on the whole real line.

    Args:
        loc: [*batch, *event], means.
        scale: [*batch, *event], standard deviations.
        num_event_dims: number of dimensions of one action.
    """

    parameter_names = ("loc", "scale")
    constant_names = ("num_event_dims",)
    has_rsample = True
    is_unbounded = True
    takes_noise = True

    def __init__(self, loc: Tensor, scale: Tensor, num_event_dims: int = 1) -> None:
        self.loc = loc
        self.scale = scale
        self.num_event_dims = num_event_dims

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def sample(self, sample_shape: SampleShape = ()) -> Tensor:
        return _normal_sample(self.loc.detach(), self.scale.detach(), sample_shape)

    def from_noise(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.loc, self.scale, noise)

    def rsample(self, sample_shape: SampleShape = ()) -> Tensor:
        return _normal_sample(self.loc, self.scale, sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        log_probs = normal_log_prob(value, self.loc, self.scale)
        return self._sum(log_probs)

    def entropy(self) -> Tensor:
        entropies = self.scale.log() + (0.5 + _HALF_LOG_2PI)
        return self._sum(entropies)

    def kl_divergence(self, other: Distribution) -> Tensor:
        other = self._same_kind(other)
        kl = _normal_kl_divergence(self.loc, self.scale, other.loc, other.scale)
        return self._sum(kl)


class ActionBounds:
    """The box of a spec and the affine maps onto it. Equal if the boxes are.

    Args:
        spec: continuous, with finite bounds, minimum < maximum in every element.

    Raises:
        ValueError: if the spec is no such box.
    """

    def __init__(self, spec: BoundedTensorSpec) -> None:
        width = spec.maximum.astype(np.float64) - spec.minimum
        if not spec.is_bounded or not (width > 0).all():
            raise ValueError(
                "expected finite bounds with minimum < maximum in every element, "
                f"got {spec}"
            )
        self.spec = spec
        self.num_event_dims = spec.ndim
        self.log_volume = float(np.log(width).sum())
        self._is_unit = bool((spec.minimum == 0).all() & (spec.maximum == 1).all())
        self._is_symmetric = bool(
            (spec.minimum == -1).all() & (spec.maximum == 1).all()
        )
        # Σ log((maximum − minimum) / 2), exactly 0 for [-1, 1].
        self.log_half_widths = float(np.log(width / 2).sum())
        self._constants = DeviceConstants(spec.minimum, spec.maximum)

    def from_unit(self, x: Tensor) -> Tensor:
        """[0, 1] → [minimum, maximum], element by element."""
        if self._is_unit:
            return x
        low, high = self._constants.on(x.device)
        # lerp is exact at both ends: rounding never leaves the box.
        return torch.lerp(low.to(x.dtype), high.to(x.dtype), x)

    def to_unit(self, action: Tensor) -> Tensor:
        """[minimum, maximum] → [0, 1]."""
        if self._is_unit:
            return action
        low, high = self._constants.on(action.device)
        return (action - low) / (high - low)

    def from_symmetric(self, y: Tensor) -> Tensor:
        """[-1, 1] → [minimum, maximum]."""
        return y if self._is_symmetric else self.from_unit((y + 1) / 2)

    def to_symmetric(self, action: Tensor) -> Tensor:
        """[minimum, maximum] → [-1, 1]."""
        return action if self._is_symmetric else self.to_unit(action) * 2 - 1

    def squash(self, u: Tensor) -> Tensor:
        """Real numbers → [minimum, maximum], by tanh."""
        return self.from_symmetric(u.tanh())

    def unsquash(self, action: Tensor) -> Tensor:
        """The inverse, which counts what is on the edge as just inside of it."""
        y = self.to_symmetric(action)
        edge = 1.0 - torch.finfo(y.dtype).eps
        return y.clamp(-edge, edge).atanh()

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, ActionBounds) and self.spec == other.spec
        )

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"ActionBounds({self.spec!r})"


class SquashedNormal(ActionDistribution):
    """tanh of a diagonal normal, stretched to bounds: a = middle + half · tanh(u).

    With y = tanh(u), the density has the stable form

        log p(a) = log N(u; loc, scale) − Σ log half − Σ 2 (log 2 − u − softplus(−2u))

    whose last term is log(1 − y²). ``log_prob`` recovers u from the stored action; an
    action on the edge counts as one just inside of it, so that both value and gradient
    are finite. Where u is at hand, :meth:`rsample_and_log_prob` is
    exact also far out.

    ``mode`` is the image of the normal's mode. The entropy has no closed form; one
    sample estimates the part that depends on the squashing.

    Args:
        loc: [*batch, *event], means of u.
        scale: [*batch, *event], standard deviations of u.
        bounds: the box of the actions.
    """

    parameter_names = ("loc", "scale")
    constant_names = ("bounds",)
    has_rsample = True
    takes_noise = True

    def __init__(self, loc: Tensor, scale: Tensor, bounds: ActionBounds) -> None:
        self.loc = loc
        self.scale = scale
        self.bounds = bounds

    @property
    def mode(self) -> Tensor:
        return self.bounds.squash(self.loc)

    def sample(self, sample_shape: SampleShape = ()) -> Tensor:
        u = _normal_sample(self.loc.detach(), self.scale.detach(), sample_shape)
        return self.bounds.squash(u)

    def rsample(self, sample_shape: SampleShape = ()) -> Tensor:
        u = _normal_sample(self.loc, self.scale, sample_shape)
        return self.bounds.squash(u)

    def from_noise(self, noise: Tensor) -> Tensor:
        u = torch.addcmul(self.loc, self.scale, noise)
        return self.bounds.squash(u)

    def rsample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(self.loc)
        u = torch.addcmul(self.loc, self.scale, noise)
        # (u − loc) / scale is the noise, whatever loc and scale are. What has no
        # gradient comes first, so that few operations have one.
        constant = noise.square().mul_(-0.5).sub_(_HALF_LOG_2PI + 2 * _LOG_2)
        log_probs = torch.add(
            constant - self.scale.log(), u + F.softplus(-2 * u), alpha=2
        )
        log_prob = self._sum(log_probs)
        if self.bounds.log_half_widths:
            log_prob = log_prob - self.bounds.log_half_widths
        return self.bounds.squash(u), log_prob

    def log_prob(self, value: Tensor) -> Tensor:
        u = self.bounds.unsquash(value)
        log_probs = normal_log_prob(u, self.loc, self.scale) - log_tanh_derivative(u)
        return self._sum(log_probs) - self.bounds.log_half_widths

    def entropy(self) -> Tensor:
        # H(a) = H(u) + E[log |da/du|]
        entropies = (
            self.scale.log()
            + (0.5 + _HALF_LOG_2PI)
            + log_tanh_derivative(_normal_sample(self.loc, self.scale))
        )
        return self._sum(entropies) + self.bounds.log_half_widths

    def kl_divergence(self, other: Distribution) -> Tensor:
        """A one-to-one map keeps the divergence of the normals."""
        other = self._same_kind(other)
        kl = _normal_kl_divergence(self.loc, self.scale, other.loc, other.scale)
        return self._sum(kl)


class ScaledBeta(ActionDistribution):
    """Independent Beta distributions, stretched to bounds.

    Args:
        concentration1: [*batch, *event], α > 0.
        concentration0: [*batch, *event], β > 0.
        bounds: the box of the actions.
    """

    parameter_names = ("concentration1", "concentration0")
    constant_names = ("bounds",)
    has_rsample = True

    def __init__(
        self, concentration1: Tensor, concentration0: Tensor, bounds: ActionBounds
    ) -> None:
        self.concentration1 = concentration1
        self.concentration0 = concentration0
        self.bounds = bounds

    @property
    def mode(self) -> Tensor:
        """Where the density has no single peak, the mean."""
        above1 = (self.concentration1 - 1).clamp(min=0)
        above0 = (self.concentration0 - 1).clamp(min=0)
        total = above1 + above0
        has_peak = total > 0
        peak = above1 / torch.where(has_peak, total, 1.0)
        return self.bounds.from_unit(torch.where(has_peak, peak, self._beta.mean))

    def rsample(self, sample_shape: SampleShape = ()) -> Tensor:
        # X / (X + Y) of two gamma variables, which torch differentiates itself: faster
        # than torch's Beta, and no break in a compiled graph.
        x, y = (
            torch._standard_gamma(c.expand(*sample_shape, *c.shape)).clamp(
                min=torch.finfo(c.dtype).tiny
            )
            for c in (self.concentration1, self.concentration0)
        )
        return self.bounds.from_unit(x / (x + y))

    def log_prob(self, value: Tensor) -> Tensor:
        x = self.bounds.to_unit(value)
        # The density may be 0 or infinite on the edge itself.
        eps = torch.finfo(x.dtype).eps
        log_probs = self._beta.log_prob(x.clamp(eps, 1 - eps))
        return self._sum(log_probs) - self.bounds.log_volume

    def entropy(self) -> Tensor:
        return self._sum(self._beta.entropy()) + self.bounds.log_volume

    def kl_divergence(self, other: Distribution) -> Tensor:
        other = self._same_kind(other)
        # torch.distributions.kl_divergence would break a compiled graph.
        p1, p0 = self.concentration1, self.concentration0
        q1, q0 = other.concentration1, other.concentration0
        kl = (
            _log_beta(q1, q0)
            - _log_beta(p1, p0)
            + (p1 - q1) * p1.digamma()
            + (p0 - q0) * p0.digamma()
            + (q1 - p1 + q0 - p0) * (p1 + p0).digamma()
        )
        return self._sum(kl)

    @property
    def _beta(self) -> Beta:
        return Beta(self.concentration1, self.concentration0, validate_args=False)


def _normal_sample(
    loc: Tensor, scale: Tensor, sample_shape: SampleShape = ()
) -> Tensor:
    if sample_shape:
        loc = loc.expand(*sample_shape, *loc.shape)
    return torch.addcmul(loc, scale, torch.randn_like(loc))


def normal_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Of each element."""
    return -0.5 * ((value - loc) / scale).square() - scale.log() - _HALF_LOG_2PI


def _normal_kl_divergence(
    p_loc: Tensor, p_scale: Tensor, q_loc: Tensor, q_scale: Tensor
) -> Tensor:
    ratio = (p_scale / q_scale).square()
    distance = ((p_loc - q_loc) / q_scale).square()
    return 0.5 * (ratio + distance - 1 - ratio.log())


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    """Logarithm of the Beta function."""
    return alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()


def log_tanh_derivative(u: Tensor) -> Tensor:
    """log(1 − tanh²u), without the cancellation."""
    return 2 * (_LOG_2 - u - F.softplus(-2 * u))
