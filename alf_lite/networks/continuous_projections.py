"""Heads of continuous parts of an action."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.distributions.continuous import (
    ActionBounds,
    DiagonalNormal,
    ScaledBeta,
    SquashedNormal,
)
from alf_lite.distributions.location_scale import DiagonalCauchy, TruncatedNormal
from alf_lite.distributions.mixtures import NormalMixture
from alf_lite.networks.layers import linear
from alf_lite.networks.lean_layers import apply_linear
from alf_lite.networks.projections import (
    POLICY_GAIN,
    Projection,
)
from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils.checks import check_count
from alf_lite.utils.tensor_utils import unflatten_last


class NormalProjection(Projection):
    """Continuous actions, normally distributed, squashed to their bounds or not.

    Args:
        input_size: number of features.
        spec: of the action.
        bounds: where to squash to with tanh; None for unbounded actions.
        state_dependent_std: whether σ is a function of the features; else it is a
            parameter for each element.
        initial_log_std: log σ at the start.
        log_std_bounds: log σ is clipped to these.
    """

    def __init__(
        self,
        input_size: int,
        spec: TensorSpec,
        *,
        bounds: ActionBounds | None = None,
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
        log_std_bounds: tuple[float, float] = (-20.0, 2.0),
    ) -> None:
        super().__init__()
        _check_log_std(initial_log_std, log_std_bounds)
        self._spec = spec
        self._shape = tuple(spec.shape)  # not asked for again at every step
        self._bounds = bounds
        self._log_std_bounds = log_std_bounds
        self._loc = linear(input_size, spec.numel, POLICY_GAIN)
        self._log_std_linear: nn.Linear | None = None
        if state_dependent_std:
            self._log_std_linear = linear(input_size, spec.numel, POLICY_GAIN)
            nn.init.constant_(self._log_std_linear.bias, initial_log_std)
        else:
            self._log_std = nn.Parameter(torch.full((spec.numel,), initial_log_std))

    def single_layer(self) -> nn.Linear | None:
        return self._loc if self._log_std_linear is None else None

    def drop_single_layer(self) -> None:
        del self._loc

    def forward(self, features: Tensor) -> Any:
        loc = apply_linear(self._loc, features)
        if self._log_std_linear is None:
            return self.from_outputs(loc)
        log_std = apply_linear(self._log_std_linear, features)
        return self._build(*self._loc_and_scale(loc, log_std))

    def from_outputs(self, outputs: Tensor) -> Any:
        return self._build(*self._loc_and_scale(outputs, self._log_std))

    def _loc_and_scale(self, loc: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        """[..., *spec.shape] both."""
        scale = log_std.clamp(*self._log_std_bounds).exp().expand_as(loc)
        return unflatten_last(loc, self._shape), unflatten_last(scale, self._shape)

    def _build(self, loc: Tensor, scale: Tensor) -> Any:
        """From [..., *spec.shape] both."""
        if self._bounds is None:
            return DiagonalNormal(loc, scale, self._spec.ndim)
        return SquashedNormal(loc, scale, self._bounds)


class CauchyProjection(NormalProjection):
    """Continuous actions of which some lie far away; σ is the scale."""

    def _build(self, loc: Tensor, scale: Tensor) -> DiagonalCauchy:
        return DiagonalCauchy(loc, scale, self._spec.ndim)


class TruncatedNormalProjection(NormalProjection):
    """Continuous actions, normally distributed, cut off at their bounds.

    The peak is squashed to the bounds by tanh. σ is that of actions in [-1, 1].
    """

    _bounds: ActionBounds

    def _build(self, loc: Tensor, scale: Tensor) -> TruncatedNormal:
        return TruncatedNormal(loc.tanh(), scale, self._bounds)


class MixtureProjection(Projection):
    """Continuous actions with K peaks, squashed to their bounds or not.

    The peaks start at different places, of the interval [-1, 1] before it is squashed.

    Args:
        input_size: number of features.
        spec: of the action.
        num_components: K.
        bounds: where to squash to with tanh; None for unbounded actions.
        state_dependent_std: see :class:`NormalProjection`, as for what follows.
    """

    def __init__(
        self,
        input_size: int,
        spec: TensorSpec,
        num_components: int,
        *,
        bounds: ActionBounds | None = None,
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
        log_std_bounds: tuple[float, float] = (-20.0, 2.0),
    ) -> None:
        super().__init__()
        check_count(num_mixture_components=num_components)
        _check_log_std(initial_log_std, log_std_bounds)
        self._spec = spec
        self._bounds = bounds
        self._log_std_bounds = log_std_bounds
        self._components = num_components, spec.numel  # K, N
        num_means = num_components * spec.numel
        num_outputs = num_components + num_means * (1 + state_dependent_std)
        self._linear = linear(input_size, num_outputs, POLICY_GAIN)
        means, log_stds = self._linear.bias.data[num_components:].tensor_split(
            [num_means]
        )
        means.uniform_(-1, 1)
        log_stds.fill_(initial_log_std)
        self._log_std: nn.Parameter | None = None
        if not state_dependent_std:
            self._log_std = nn.Parameter(
                torch.full(self._components, float(initial_log_std))
            )

    def from_outputs(self, outputs: Tensor) -> NormalMixture:
        num_components, size = self._components
        num_means = num_components * size
        logits, loc, log_std = outputs.tensor_split(
            [num_components, num_components + num_means], dim=-1
        )
        loc = loc.unflatten(-1, self._components)
        of_each = self._log_std
        if of_each is None:
            of_each = log_std.unflatten(-1, self._components)
        scale = of_each.clamp(*self._log_std_bounds).exp().expand_as(loc)
        shape = torch.Size(self._spec.shape)
        return NormalMixture(logits, loc, scale, shape, self._bounds)


class BetaProjection(Projection):
    """Continuous actions, Beta-distributed between their bounds, with a single peak.

    α and β are 1 + softplus(·), as in Chou et al., "Improving stochastic policy
    gradients in continuous control with deep RL using the Beta distribution", 2017.
    """

    def __init__(self, input_size: int, bounds: ActionBounds) -> None:
        super().__init__()
        self._spec = bounds.spec
        self._bounds = bounds
        self._linear = linear(input_size, 2 * bounds.spec.numel, POLICY_GAIN)

    def from_outputs(self, outputs: Tensor) -> ScaledBeta:
        concentration = 1 + F.softplus(outputs)
        alpha, beta = concentration.chunk(2, dim=-1)
        alpha, beta = (
            unflatten_last(alpha, self._spec.shape),
            unflatten_last(beta, self._spec.shape),
        )
        return ScaledBeta(alpha, beta, self._bounds)


def _check_log_std(initial: float, bounds: tuple[float, float]) -> None:
    if not bounds[0] <= initial <= bounds[1]:
        raise ValueError(
            f"initial_log_std: expected a value within log_std_bounds {bounds}, got "
            f"{initial}"
        )
