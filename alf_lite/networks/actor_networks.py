"""Policies: from observations to distributions of actions, or to actions themselves.

A policy is an encoder with a head for each part of the action.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.distributions.continuous import (
    ActionBounds,
    DiagonalNormal,
    ScaledBeta,
    SquashedNormal,
)
from alf_lite.distributions.discrete import (
    Categorical,
    CategoryLayout,
    MultiBernoulli,
    MultiCategorical,
)
from alf_lite.networks.encoding_networks import EncodedNetwork
from alf_lite.networks.layers import linear
from alf_lite.networks.lean_layers import apply_linear
from alf_lite.networks.network import leaf_name
from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    NestedTensorSpec,
    TensorSpec,
    is_binary,
    num_categories,
)

Nest = Any

ContinuousProjection = Literal["normal", "tanh_normal", "beta"]
CONTINUOUS_PROJECTIONS = ("normal", "tanh_normal", "beta")

# Nearly uniform at the start, whatever the observation.
POLICY_GAIN = 0.01
# More logits than this are a mistake more often than a wish.
_MAX_LOGITS = 100_000


@configurable
class ActorDistributionNetwork(EncodedNetwork):
    """An encoder with one head for every part of the action.

    Args:
        observation_spec: nest of TensorSpecs.
        action_spec: nest of TensorSpecs. Integers get categorical heads, binary vectors
            Bernoulli heads, floats what ``continuous_projection`` says.
        continuous_projection: "normal", "tanh_normal" or "beta".
        state_dependent_std: whether σ depends on the observation; else it is a
            parameter for each element.
        initial_log_std: log σ at the start.
        **encoder: options of :class:`EncodedNetwork`.

    Raises:
        ValueError: if a spec is not supported; the message names its path.
    """

    takes_sequences = True

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        continuous_projection: ContinuousProjection = "normal",
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
        **encoder: Any,
    ) -> None:
        super().__init__(observation_spec, **encoder)
        specs = nest.flatten_with_path(action_spec)
        if not specs:
            raise ValueError("action_spec: expected at least one TensorSpec, got none")
        heads = [
            make_projection(
                leaf_name("action", path),
                spec,
                self._encoder.output_size,
                continuous_projection=continuous_projection,
                state_dependent_std=state_dependent_std,
                initial_log_std=initial_log_std,
            )
            for path, spec in specs
        ]
        self._head = heads[0]
        if not isinstance(action_spec, TensorSpec):
            self._head = _NestOfHeads(action_spec, heads)
        self._set_chain(self._head.single_layer())

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Nest, Nest]:
        """Observations [B, ...] → (distributions like ``action_spec``, new state)."""
        outputs = self._chain(inputs)
        if outputs is not None:
            return self._head.from_outputs(outputs), state
        # As LeanSequential does: one step of acting consists of small calls.
        features, state = self._encoder.forward(inputs, state)
        return self._head.forward(features), state


@configurable(
    denylist=["continuous_projection", "state_dependent_std"],
    defaults={
        "fc_layer_params": (256, 256),
        "activation": "relu",
        "continuous_projection": "tanh_normal",
        "state_dependent_std": True,
    },
)
class SquashedActorNetwork(ActorDistributionNetwork):
    """The policy of soft actor-critic (Haarnoja et al. 2018, appendix C of the paper).

    tanh of a normal distribution whose deviation depends on the observation. Discrete
    parts of the action are categorical, as in :class:`ActorDistributionNetwork`, which
    also tells what the arguments mean.
    """


@configurable(
    denylist=["continuous_projection", "state_dependent_std"],
    defaults={
        "fc_layer_params": (256, 256),
        "activation": "relu",
        "continuous_projection": "normal",
        "state_dependent_std": False,
    },
)
class NormalActorNetwork(ActorDistributionNetwork):
    """The policy of implicit Q-learning (Kostrikov et al. 2021, section 5).

    A normal distribution with one deviation for each element, whatever is observed: a
    deviation that depends on the observation could vanish where the data do not vary.
    Its mean is not squashed, since actions on the bounds have a density there; the
    environment clips. Discrete parts of the action are categorical, as in
    :class:`ActorDistributionNetwork`, which also tells what the arguments mean.
    """


@configurable(defaults={"fc_layer_params": (256, 256), "activation": "relu"})
class ActorNetwork(EncodedNetwork):
    """An encoder with a tanh output.

    Args:
        observation_spec: nest of TensorSpecs.
        action_size: elements of an action vector.
        **encoder: options of :class:`EncodedNetwork`.
    """

    takes_sequences = True

    def __init__(
        self, observation_spec: NestedTensorSpec, action_size: int, **encoder: Any
    ) -> None:
        super().__init__(observation_spec, **encoder)
        self._linear = linear(self._encoder.output_size, action_size, POLICY_GAIN)
        self._set_chain(self._linear)

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """Observations [B, ...] → (actions [B, action_size] in [-1, 1], new state)."""
        outputs = self._chain(inputs)
        if outputs is not None:
            return outputs.tanh(), state
        features, state = self._encoder.forward(inputs, state)
        return self._linear(features).tanh(), state


# Heads: from features to the distribution of one part of the action


class Projection(nn.Module):
    """From features to a distribution, by a linear layer and what follows from it."""

    _linear: nn.Linear

    def single_layer(self) -> nn.Linear | None:
        """The layer, if there is but one."""
        return self._linear

    def drop_single_layer(self) -> None:
        """From now on, another one gives what ``from_outputs`` wants."""
        del self._linear

    def forward(self, features: Tensor) -> Any:
        """[..., input_size] → a distribution with batch shape [...]."""
        return self.from_outputs(apply_linear(self._linear, features))

    def from_outputs(self, outputs: Tensor) -> Any:
        """The distribution, from what the layer gave, [..., output_size]."""
        raise NotImplementedError


class CategoricalProjection(Projection):
    """One discrete action between the bounds of a scalar integer spec."""

    def __init__(self, input_size: int, spec: BoundedTensorSpec) -> None:
        super().__init__()
        self._linear = linear(input_size, int(num_categories(spec)[0]), POLICY_GAIN)
        self._minimum = int(spec.minimum)
        self._dtype = spec.dtype

    def from_outputs(self, outputs: Tensor) -> Categorical:
        return Categorical(outputs, self._minimum, self._dtype)


class MultiCategoricalProjection(Projection):
    """A vector of discrete actions, one categorical distribution per element."""

    def __init__(self, input_size: int, spec: BoundedTensorSpec) -> None:
        super().__init__()
        self._layout = CategoryLayout(spec)
        self._linear = linear(input_size, self._layout.num_logits, POLICY_GAIN)

    def from_outputs(self, outputs: Tensor) -> MultiCategorical:
        return MultiCategorical(outputs, self._layout)


class BernoulliProjection(Projection):
    """Binary actions."""

    def __init__(self, input_size: int, spec: TensorSpec) -> None:
        super().__init__()
        self._linear = linear(input_size, spec.numel, POLICY_GAIN)
        self._spec = spec

    def from_outputs(self, outputs: Tensor) -> MultiBernoulli:
        logits = _shape_event(outputs, self._spec)
        return MultiBernoulli(logits, self._spec.ndim, self._spec.dtype)


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
        low, high = log_std_bounds
        if not low <= initial_log_std <= high:
            raise ValueError(
                f"initial_log_std: expected a value within log_std_bounds {(low, high)}"
                f", got {initial_log_std}"
            )
        self._spec = spec
        self._bounds = bounds
        self._log_std_bounds = (low, high)
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

    def forward(self, features: Tensor) -> DiagonalNormal | SquashedNormal:
        loc = apply_linear(self._loc, features)
        if self._log_std_linear is None:
            return self.from_outputs(loc)
        return self._distribution(loc, apply_linear(self._log_std_linear, features))

    def from_outputs(self, outputs: Tensor) -> DiagonalNormal | SquashedNormal:
        return self._distribution(outputs, self._log_std)

    def _distribution(
        self, loc: Tensor, log_std: Tensor
    ) -> DiagonalNormal | SquashedNormal:
        scale = log_std.clamp(*self._log_std_bounds).exp().expand_as(loc)
        loc, scale = _shape_event(loc, self._spec), _shape_event(scale, self._spec)
        if self._bounds is None:
            return DiagonalNormal(loc, scale, self._spec.ndim)
        return SquashedNormal(loc, scale, self._bounds)


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
        alpha, beta = _shape_event(alpha, self._spec), _shape_event(beta, self._spec)
        return ScaledBeta(alpha, beta, self._bounds)


class _NestOfHeads(Projection):
    """One head per leaf of a nest; the layers that are the only one of a head are one.

    Args:
        action_spec: nest of TensorSpecs.
        heads: one per leaf; they give their layers away.
    """

    def __init__(self, action_spec: NestedTensorSpec, heads: list[Projection]) -> None:
        super().__init__()
        self._action_spec = action_spec
        layers = [head.single_layer() for head in heads]
        self._has_layer = [layer is None for layer in layers]
        joined = [layer for layer in layers if layer is not None]
        self._sizes = [layer.out_features for layer in joined]
        self._joined = _joined(joined) if joined else None
        for head, layer in zip(heads, layers, strict=True):
            if layer is not None:
                head.drop_single_layer()
        self._heads = nn.ModuleList(heads)

    def single_layer(self) -> nn.Linear | None:
        return None if any(self._has_layer) else self._joined

    def forward(self, features: Tensor) -> Nest:
        outputs: Sequence[Tensor] = ()
        if self._joined is not None:
            joint = apply_linear(self._joined, features)
            outputs = joint.split(self._sizes, dim=-1)
        rest = iter(outputs)
        heads: Iterable[Any] = self._heads
        leaves = [
            head.forward(features) if has_layer else head.from_outputs(next(rest))
            for head, has_layer in zip(heads, self._has_layer, strict=True)
        ]
        return nest.pack_sequence_as(self._action_spec, leaves)

    def from_outputs(self, outputs: Tensor) -> Nest:
        columns = outputs.split(self._sizes, dim=-1)
        heads: Iterable[Any] = self._heads
        leaves = [
            head.from_outputs(column)
            for head, column in zip(heads, columns, strict=True)
        ]
        return nest.pack_sequence_as(self._action_spec, leaves)


def _joined(layers: list[nn.Linear]) -> nn.Linear:
    """One layer with the outputs of all, one after the other."""
    joined = nn.Linear(
        layers[0].in_features,
        sum(layer.out_features for layer in layers),
        device="meta",  # no draws for weights that are replaced
    )
    joined.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
    joined.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))
    return joined


def make_projection(
    path: str,
    spec: Any,
    input_size: int,
    *,
    continuous_projection: ContinuousProjection = "normal",
    state_dependent_std: bool = False,
    initial_log_std: float = 0.0,
) -> Projection:
    """The head for one leaf of an action spec.

    Args:
        path: of the leaf, for messages.
        spec: a TensorSpec.
        input_size: number of features.
        continuous_projection: "normal" (unbounded, the environment clips),
            "tanh_normal" or "beta" (both stay within the bounds).
        state_dependent_std: see :class:`NormalProjection`, as for what follows.

    Raises:
        TypeError: if ``spec`` is no TensorSpec.
        ValueError: if there is no head for it.
    """
    if continuous_projection not in CONTINUOUS_PROJECTIONS:
        raise ValueError(
            f"continuous_projection: expected one of {CONTINUOUS_PROJECTIONS}, got "
            f"{continuous_projection!r}"
        )
    if not isinstance(spec, TensorSpec):
        raise TypeError(
            f"{path}: expected a TensorSpec, got {type(spec).__name__}. Use "
            "BoundedTensorSpec(shape, dtype, minimum, maximum) for every action."
        )
    if spec.numel == 0:
        raise ValueError(f"{path}: expected at least one element, got {spec}")
    if spec.is_discrete:
        return _discrete_projection(path, spec, input_size)
    bounds = None
    if continuous_projection != "normal":
        bounds = _bounds(path, spec, continuous_projection)
    if bounds and continuous_projection == "beta":
        return BetaProjection(input_size, bounds)
    return NormalProjection(
        input_size,
        spec,
        bounds=bounds,
        state_dependent_std=state_dependent_std,
        initial_log_std=initial_log_std,
    )


def _discrete_projection(path: str, spec: TensorSpec, input_size: int) -> Projection:
    if spec.dtype == torch.bool or (spec.ndim > 0 and is_binary(spec)):
        return BernoulliProjection(input_size, spec)
    if not isinstance(spec, BoundedTensorSpec):
        raise ValueError(
            f"{path}: expected bounds for a discrete action, got {spec}. Use "
            "BoundedTensorSpec with minimum and maximum."
        )
    if sum(num_categories(spec).tolist()) > _MAX_LOGITS:
        raise ValueError(
            f"{path}: expected at most {_MAX_LOGITS} discrete values in total, got "
            f"{spec}. Use a continuous action for so large a range."
        )
    if spec.ndim == 0:
        return CategoricalProjection(input_size, spec)
    return MultiCategoricalProjection(input_size, spec)


def _bounds(path: str, spec: TensorSpec, projection: str) -> ActionBounds:
    is_box = (
        isinstance(spec, BoundedTensorSpec)
        and spec.is_bounded
        and (spec.minimum < spec.maximum).all()
    )
    if not is_box:
        raise ValueError(
            f"{path}: {projection!r} needs finite bounds with minimum < maximum, got "
            f"{spec}. Use continuous_projection='normal' for unbounded actions."
        )
    return ActionBounds(cast(BoundedTensorSpec, spec))


def _shape_event(values: Tensor, spec: TensorSpec) -> Tensor:
    """[..., numel] → [..., *spec.shape]."""
    if spec.ndim == 1:
        return values
    return values.squeeze(-1) if spec.ndim == 0 else values.unflatten(-1, spec.shape)
