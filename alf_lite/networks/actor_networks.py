"""Policies: from observations to distributions of actions, or to actions themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.networks.encoding_networks import (
    EncoderNetwork,
    EncodingNetwork,
    make_encoding_network,
)
from alf_lite.networks.input_encoders import ConvLayerParams
from alf_lite.networks.layers import Activation, linear
from alf_lite.networks.network import Network, leaf_name
from alf_lite.networks.projection_networks import (
    POLICY_GAIN,
    ContinuousProjection,
    make_projection,
)
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


@configurable
class ActorDistributionNetwork(Network):
    """An encoder with one head for every part of the action.

    Args:
        observation_spec: nest of TensorSpecs.
        action_spec: nest of TensorSpecs. Integers get categorical heads, binary vectors
            Bernoulli heads, floats what ``continuous_projection`` says.
        fc_layer_params: sizes of the encoder's layers, such as (64, 64); None for what
            the encoder has of its own, as for the next two.
        activation: of the encoder, a name such as "tanh" or a callable.
        conv_layer_params: of the encoder, for images.
        encoding_network_ctor: called with the observation spec, and by keyword with
            those of the three above that are given. LSTMEncodingNetwork or
            GRUEncodingNetwork make a recurrent policy.
        continuous_projection: "normal", "tanh_normal" or "beta".
        state_dependent_std: whether σ depends on the observation; else it is a
            parameter for each element.
        initial_log_std: log σ at the start.

    Raises:
        ValueError: if a spec is not supported; the message names its path.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        continuous_projection: ContinuousProjection = "normal",
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
    ) -> None:
        encoder = make_encoding_network(
            encoding_network_ctor,
            observation_spec,
            fc_layer_params=fc_layer_params,
            activation=activation,
            conv_layer_params=conv_layer_params,
        )
        super().__init__(observation_spec, encoder.state_spec)
        specs = nest.flatten_with_path(action_spec)
        if not specs:
            raise ValueError("action_spec: expected at least one TensorSpec, got none")
        self._encoder = encoder
        heads = [
            make_projection(
                leaf_name("action", path),
                spec,
                encoder.output_size,
                continuous_projection=continuous_projection,
                state_dependent_std=state_dependent_std,
                initial_log_std=initial_log_std,
            )
            for path, spec in specs
        ]
        is_single = isinstance(action_spec, TensorSpec)
        self._head = heads[0] if is_single else _NestOfHeads(action_spec, heads)

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Nest, Nest]:
        """Observations [B, ...] → (distributions like ``action_spec``, new state)."""
        # As LeanSequential does: one step of acting consists of small calls.
        features, state = self._encoder.forward(inputs, state)
        return self._head.forward(features), state


class _NestOfHeads(nn.Module):
    """One head per leaf of a nest."""

    def __init__(self, action_spec: NestedTensorSpec, heads: list[nn.Module]) -> None:
        super().__init__()
        self._action_spec = action_spec
        self._heads = nn.ModuleList(heads)

    def forward(self, features: Tensor) -> Nest:
        return nest.pack_sequence_as(
            self._action_spec, [head(features) for head in self._heads]
        )


@configurable
class SquashedActorNetwork(ActorDistributionNetwork):
    """The policy of soft actor-critic (Haarnoja et al. 2018, appendix C of the paper).

    tanh of a normal distribution whose deviation depends on the observation. Discrete
    parts of the action are categorical, as in :class:`ActorDistributionNetwork`, which
    also tells what the arguments mean.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        fc_layer_params: Sequence[int] | None = (256, 256),
        activation: Activation | None = "relu",
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            fc_layer_params=fc_layer_params,
            activation=activation,
            conv_layer_params=conv_layer_params,
            encoding_network_ctor=encoding_network_ctor,
            continuous_projection="tanh_normal",
            state_dependent_std=True,
            initial_log_std=initial_log_std,
        )


@configurable
class NormalActorNetwork(ActorDistributionNetwork):
    """The policy of implicit Q-learning (Kostrikov et al. 2021, section 5).

    A normal distribution with one deviation for each element, whatever is observed: a
    deviation that depends on the observation could vanish where the data do not vary.
    Its mean is not squashed, since actions on the bounds have a density there; the
    environment clips. Discrete parts of the action are categorical, as in
    :class:`ActorDistributionNetwork`, which also tells what the arguments mean.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        fc_layer_params: Sequence[int] | None = (256, 256),
        activation: Activation | None = "relu",
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            fc_layer_params=fc_layer_params,
            activation=activation,
            conv_layer_params=conv_layer_params,
            encoding_network_ctor=encoding_network_ctor,
            continuous_projection="normal",
            state_dependent_std=False,
            initial_log_std=initial_log_std,
        )


@configurable
class ActorNetwork(Network):
    """An encoder with a tanh output.

    Args:
        observation_spec: nest of TensorSpecs.
        action_size: elements of an action vector.
        fc_layer_params: sizes of the encoder's layers; None for what the encoder has
            of its own, as for the next two.
        activation: of the encoder, a name such as "relu" or a callable.
        conv_layer_params: of the encoder, for images.
        encoding_network_ctor: called with the observation spec, and by keyword with
            those of the three above that are given. LSTMEncodingNetwork or
            GRUEncodingNetwork make it recurrent.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_size: int,
        *,
        fc_layer_params: Sequence[int] | None = (256, 256),
        activation: Activation | None = "relu",
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
    ) -> None:
        encoder = make_encoding_network(
            encoding_network_ctor,
            observation_spec,
            fc_layer_params=fc_layer_params,
            activation=activation,
            conv_layer_params=conv_layer_params,
        )
        super().__init__(observation_spec, encoder.state_spec)
        self._encoder = encoder
        self._linear = linear(encoder.output_size, action_size, POLICY_GAIN)

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """Observations [B, ...] → (actions [B, action_size] in [-1, 1], new state)."""
        features, state = self._encoder(inputs, state)
        return self._linear(features).tanh(), state
