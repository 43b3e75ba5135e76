"""Ensembles of action values of continuous actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.networks.encoding_networks import (
    EncoderNetwork,
    EncodingNetwork,
    make_encoding_network,
)
from alf_lite.networks.input_encoders import ConvLayerParams
from alf_lite.networks.layers import Activation
from alf_lite.networks.network import Network
from alf_lite.networks.parallel_layers import ParallelMLP
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


@configurable
class CriticNetwork(Network):
    """n critics Q_k(s, a), evaluated together as batched matrix products.

    The observation is encoded, joined with the action, and evaluated by one multi-layer
    perceptron for each critic. Where the observation is one vector, the encoding is
    the vector itself, and the critics have nothing in common; an encoder with
    parameters, for images or with memory, is shared by all of them.

    Args:
        observation_spec: nest of TensorSpecs.
        action_size: elements of an action vector; 0 if there is none, and the outputs
            stand for the values of discrete actions.
        num_critics: n.
        output_shape: of the value of one action; () for a number.
        joint_fc_layer_params: sizes of the hidden layers of every critic.
        activation: of these layers.
        layer_norm: normalize these layers before their activation, each critic with a
            gain and a bias of its own.
        dropout: share of the units of these layers that are left out in training.
        encoder_fc_layer_params: sizes of the encoder's layers; () for none.
        encoder_activation: of the encoder; None for what it has of its own, as for the
            next one.
        conv_layer_params: of the encoder, for images.
        encoding_network_ctor: called with the observation spec, and by keyword with
            those of the three above that are given. LSTMEncodingNetwork or
            GRUEncodingNetwork make it recurrent.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_size: int,
        num_critics: int = 1,
        output_shape: Sequence[int] = (),
        *,
        joint_fc_layer_params: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        encoder_fc_layer_params: Sequence[int] | None = (),
        encoder_activation: Activation | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
    ) -> None:
        if num_critics < 1:
            raise ValueError(f"num_critics must be at least 1, got {num_critics}")
        encoder = make_encoding_network(
            encoding_network_ctor,
            observation_spec,
            fc_layer_params=encoder_fc_layer_params,
            activation=encoder_activation,
            conv_layer_params=conv_layer_params,
        )
        super().__init__(observation_spec, encoder.state_spec)
        self._encoder = encoder
        self._output_shape = torch.Size(output_shape)
        self._critics = ParallelMLP(
            num_critics,
            encoder.output_size + action_size,
            joint_fc_layer_params,
            self._output_shape.numel(),
            activation,
            layer_norm=layer_norm,
            dropout=dropout,
        )

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """(observation, action vector) [B, ...] → ([B, n, *output_shape], state)."""
        observation, action = inputs
        features, state = self.encode(observation, state)
        return self.evaluate(features, action), state

    def encode(self, observation: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """Observations [B, ...] → (features [B, F], new state)."""
        return self._encoder.forward(observation, state)

    def evaluate(self, features: Tensor, action: Tensor | None) -> Tensor:
        """The values of actions.

        Args:
            features: [B, F].
            action: [B, action_size], or None if that is 0.

        Returns:
            [B, n, *output_shape].
        """
        inputs = features if action is None else torch.cat([features, action], dim=-1)
        values = self._critics.forward(inputs)
        values = values.transpose(0, 1)  # [n, B, out] → [B, n, out]
        if len(self._output_shape) == 1:
            return values
        return values.reshape(*values.shape[:2], *self._output_shape)
