"""Policies: from observations to distributions of actions, or to actions themselves.

A policy is an encoder with a head for each part of the action.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.distributions.action_vectors import num_values
from alf_lite.distributions.continuous import ActionBounds
from alf_lite.fast import quick
from alf_lite.networks.continuous_projections import (
    BetaProjection,
    CauchyProjection,
    MixtureProjection,
    NormalProjection,
    TruncatedNormalProjection,
)
from alf_lite.networks.encoding_networks import EncodedNetwork
from alf_lite.networks.initializers import Initializer, initialized
from alf_lite.networks.layers import linear
from alf_lite.networks.network import takes_whole_sequences
from alf_lite.networks.projections import (
    POLICY_GAIN,
    BernoulliProjection,
    CategoricalProjection,
    MultiCategoricalProjection,
    NestOfHeads,
    OneHotProjection,
    Projection,
)
from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    NestedTensorSpec,
    TensorSpec,
    is_binary,
)
from alf_lite.utils.checks import check_choice, check_left_out, check_unused

Nest = Any

ContinuousProjection = Literal[
    "normal",
    "tanh_normal",
    "truncated_normal",
    "beta",
    "cauchy",
    "mixture",
    "tanh_mixture",
]
_BOUNDED = ("tanh_normal", "truncated_normal", "beta", "tanh_mixture")


@configurable
class ActorDistributionNetwork(EncodedNetwork):
    """An encoder with one head for every part of the action.

    Args:
        observation_spec: nest of TensorSpecs.
        action_spec: nest of TensorSpecs. Integers get categorical heads, binary vectors
            Bernoulli heads, floats what ``continuous_projection`` says.
        continuous_projection: "normal", "cauchy" or "mixture", unbounded, or
            "tanh_normal", "truncated_normal", "beta" or "tanh_mixture", which stay
            within the bounds.
        state_dependent_std: whether σ depends on the observation; else it is a
            parameter for each element.
        initial_log_std: log σ at the start.
        num_mixture_components: peaks of a mixture; None: 5.
        one_hot: whether vectors of binary actions, and of numbers within bounds, are a
            choice of one of their elements.
        last_initializer: of the weights of all heads; None: small orthogonal ones,
            which make the policy nearly the same whatever is observed.
        **encoder: options of :class:`EncodedNetwork`.

    Raises:
        ValueError: if a spec is not supported; the message names its path.
        ConfigError: for options of distributions that the action does not have.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        continuous_projection: ContinuousProjection = "normal",
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
        num_mixture_components: int | None = None,
        one_hot: bool = False,
        last_initializer: Initializer | None = None,
        **encoder: Any,
    ) -> None:
        super().__init__(observation_spec, **encoder)
        if "mixture" not in continuous_projection:
            check_left_out(
                f"{continuous_projection!r} has no components",
                num_mixture_components=num_mixture_components,
            )
        specs = nest.flatten_with_path(action_spec)
        if not specs:
            raise ValueError("action_spec: expected at least one TensorSpec, got none")
        of_scale: dict[str, Any] = {
            "state_dependent_std": state_dependent_std,
            "initial_log_std": initial_log_std,
        }
        heads = [
            make_projection(
                nest.leaf_name("action", path),
                spec,
                self._encoder.output_size,
                continuous_projection=continuous_projection,
                num_mixture_components=(
                    5 if num_mixture_components is None else num_mixture_components
                ),
                one_hot=one_hot,
                **of_scale,
            )
            for path, spec in specs
        ]
        self._check_kinds(heads, continuous_projection, of_scale)
        if one_hot and not any(isinstance(head, OneHotProjection) for head in heads):
            raise ValueError(
                "one_hot: no part of the action is a vector of binary elements or of "
                f"numbers within bounds: {action_spec}"
            )
        if last_initializer is not None:
            for layer in (m for head in heads for m in head.modules()):
                if isinstance(layer, nn.Linear):
                    initialized(layer, initializer=last_initializer)
        self._head = heads[0]
        if not isinstance(action_spec, TensorSpec):
            self._head = NestOfHeads(action_spec, heads)

    def _check_kinds(
        self, heads: list[Projection], projection: str, of_scale: dict[str, Any]
    ) -> None:
        """Refuses options of distributions that the action does not have."""
        if not any(isinstance(head, _CONTINUOUS) for head in heads):
            reason = "no part of the action has a continuous distribution"
            check_unused(
                type(self), reason, continuous_projection=projection, **of_scale
            )
        elif projection == "beta":
            check_unused(type(self), "a Beta distribution has no σ", **of_scale)

    @takes_whole_sequences
    @quick
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Nest, Nest]:
        """Observations [B, ...] → (distributions like ``action_spec``, new state)."""
        # As LeanSequential does: one step of acting consists of small calls.
        modules: Any = self._modules  # faster than by attribute
        features, state = modules["_encoder"].forward(inputs, state)
        return modules["_head"].forward(features), state

    def from_outputs(self, outputs: Tensor) -> Nest:
        head: Any = self._modules["_head"]
        return head.from_outputs(outputs)

    @property
    def num_features(self) -> int:
        """F of :meth:`with_features`."""
        return self._encoder.output_size

    def with_features(
        self, inputs: Nest, state: Nest = ()
    ) -> tuple[Nest, Tensor, Nest]:
        """As ``forward``, with what the heads see, [B, F], in the middle."""
        features, state = self._encoder.forward(inputs, state)
        return self._head.forward(features), features, state


@configurable(
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
        last_initializer: of the weights of the output; None: small orthogonal ones.
        **encoder: options of :class:`EncodedNetwork`.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_size: int,
        *,
        last_initializer: Initializer | None = None,
        **encoder: Any,
    ) -> None:
        super().__init__(observation_spec, **encoder)
        self._linear = linear(
            self._encoder.output_size, action_size, POLICY_GAIN, last_initializer
        )

    def from_outputs(self, outputs: Tensor) -> Tensor:
        """Actions [B, action_size] in [-1, 1]."""
        return outputs.tanh()


def make_projection(
    path: str,
    spec: Any,
    input_size: int,
    *,
    continuous_projection: ContinuousProjection = "normal",
    state_dependent_std: bool = False,
    initial_log_std: float = 0.0,
    num_mixture_components: int = 5,
    one_hot: bool = False,
) -> Projection:
    """The head for one leaf of an action spec.

    Args:
        path: of the leaf, for messages.
        spec: a TensorSpec.
        input_size: number of features.
        continuous_projection: see :class:`ActorDistributionNetwork`; what is unbounded
            is clipped by the environment.
        state_dependent_std: see :class:`NormalProjection`, as for what follows.
        num_mixture_components: of a mixture.
        one_hot: see :class:`ActorDistributionNetwork`.

    Raises:
        ValueError: if there is no head for it.
    """
    check_choice(ContinuousProjection, continuous_projection=continuous_projection)
    if spec.numel == 0:
        raise ValueError(f"{path}: expected at least one element, got {spec}")
    if one_hot and _can_be_one_hot(spec):
        return OneHotProjection(input_size, ActionBounds(cast(BoundedTensorSpec, spec)))
    if spec.is_discrete:
        return _discrete_projection(path, spec, input_size)
    bounds = None
    if continuous_projection in _BOUNDED:
        bounds = _bounds(path, spec, continuous_projection)
        if continuous_projection == "beta":
            return BetaProjection(input_size, bounds)
    options: dict[str, Any] = {
        "bounds": bounds,
        "state_dependent_std": state_dependent_std,
        "initial_log_std": initial_log_std,
    }
    if "mixture" in continuous_projection:
        return MixtureProjection(input_size, spec, num_mixture_components, **options)
    ctor = _OF_LOCATION_AND_SCALE[continuous_projection]
    return ctor(input_size, spec, **options)


_CONTINUOUS = (NormalProjection, MixtureProjection, BetaProjection)

_OF_LOCATION_AND_SCALE: dict[str, type[NormalProjection]] = {
    "normal": NormalProjection,
    "tanh_normal": NormalProjection,
    "truncated_normal": TruncatedNormalProjection,
    "cauchy": CauchyProjection,
}


def _can_be_one_hot(spec: TensorSpec) -> bool:
    if spec.ndim != 1 or spec.numel < 2 or not isinstance(spec, BoundedTensorSpec):
        return False
    is_box = spec.is_continuous and spec.is_bounded
    return spec.dtype == torch.bool or is_binary(spec) or is_box


def _discrete_projection(path: str, spec: TensorSpec, input_size: int) -> Projection:
    if spec.dtype == torch.bool or (spec.ndim > 0 and is_binary(spec)):
        return BernoulliProjection(input_size, spec)
    num_values(path, spec)  # refuses what has too many
    bounded = cast(BoundedTensorSpec, spec)
    if spec.ndim == 0:
        return CategoricalProjection(input_size, bounded)
    return MultiCategoricalProjection(input_size, bounded)


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
