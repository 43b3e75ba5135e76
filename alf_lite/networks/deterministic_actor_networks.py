"""Deterministic policies: from observations to one vector of continuous actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from alf_lite.config import configurable
from alf_lite.networks.encoding_networks import (
    EncoderNetwork,
    EncodingNetwork,
    make_encoding_network,
)
from alf_lite.networks.input_encoders import ConvLayerParams
from alf_lite.networks.layers import Activation, linear
from alf_lite.networks.network import Network
from alf_lite.networks.projection_networks import POLICY_GAIN
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


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
