"""State values, one or one per dimension of the reward."""

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
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


@configurable
class ValueNetwork(Network):
    """An encoder with a linear output.

    Args:
        observation_spec: nest of TensorSpecs.
        reward_spec: rank 0, or rank 1 for a reward with D dimensions.
        fc_layer_params: sizes of the encoder's layers, such as (64, 64); None for what
            the encoder has of its own, as for the next two.
        activation: of the encoder, a name such as "tanh" or a callable.
        conv_layer_params: of the encoder, for images.
        encoding_network_ctor: called with the observation spec, and by keyword with
            those of the three above that are given. LSTMEncodingNetwork or
            GRUEncodingNetwork make it recurrent.

    Raises:
        ValueError: if a spec is not supported; the message names its path.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
    ) -> None:
        if reward_spec.ndim > 1:
            raise ValueError(
                f"reward_spec: expected rank 0 or 1, got {reward_spec}. Flatten it in "
                "the environment."
            )
        encoder = make_encoding_network(
            encoding_network_ctor,
            observation_spec,
            fc_layer_params=fc_layer_params,
            activation=activation,
            conv_layer_params=conv_layer_params,
        )
        super().__init__(observation_spec, encoder.state_spec)
        self._encoder = encoder
        self._linear = linear(encoder.output_size, reward_spec.numel, gain=1.0)
        self._is_scalar = reward_spec.ndim == 0

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """Observations [B, ...] → (values [B] or [B, D], new state)."""
        features, state = self._encoder(inputs, state)
        values = self._linear(features)
        return values.squeeze(-1) if self._is_scalar else values, state
