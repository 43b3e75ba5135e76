"""Ensembles of action values, evaluated as batched matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.fast import is_exactly
from alf_lite.networks.batch_norm import BatchNorm, make_batch_norm
from alf_lite.networks.bodies import Body, make_body
from alf_lite.networks.encoding_networks import EncodedNetwork
from alf_lite.networks.initializers import HIDDEN_GAIN, Initializer
from alf_lite.networks.layers import (
    Activation,
    check_body_alone,
    check_sizes,
    make_activation,
    make_dropout,
)
from alf_lite.networks.lean_layers import BuiltLayers, HiddenSequential, has_hooks
from alf_lite.networks.network import takes_whole_sequences
from alf_lite.networks.parallel_layers import (
    FirstMember,
    ParallelLayerNorm,
    ParallelLinear,
)
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_count, check_left_out, check_unused

Nest = Any


@configurable
class CriticNetwork(EncodedNetwork):
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
        batch_norm: normalize the joint input and the outputs of these layers, each
            critic with statistics of its own, see :class:`BatchNorm`; or what builds
            such a layer, of a number of features and of critics.
        dropout: share of the units of these layers that are left out in training.
        initializer: of the weights of these layers; None: orthogonal ones.
        last_initializer: of the weights of the outputs; None: orthogonal ones.
        body: "simba", "simba_v2", "xqc", "flash_sac" or a function of one's own, which
            makes these layers, see :mod:`~alf_lite.networks.bodies`.
        encoder_fc_layer_params: sizes of the encoder's layers; () for none.
        encoder_activation: of these layers; None for the encoder's own.
        **encoder: the other options of :class:`EncodedNetwork`.
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
        batch_norm: bool | Callable[..., nn.Module] = False,
        dropout: float = 0.0,
        initializer: Initializer | None = None,
        last_initializer: Initializer | None = None,
        body: str | Body | None = None,
        encoder_fc_layer_params: Sequence[int] | None = (),
        encoder_activation: Activation | None = None,
        **encoder: Any,
    ) -> None:
        check_count(num_critics=num_critics)
        has_layers = encoder_fc_layer_params is None or len(encoder_fc_layer_params) > 0
        if not has_layers and "encoding_network_ctor" not in encoder:
            check_left_out(
                "encoder_fc_layer_params is ()", encoder_activation=encoder_activation
            )
            encoder_activation = activation  # one bound to the encoder is not read
        super().__init__(
            observation_spec,
            fc_layer_params=encoder_fc_layer_params,
            activation=encoder_activation,
            **encoder,
        )
        if body is not None:
            check_unused(type(self), "a body has its own layers", activation=activation)
        self._output_shape = torch.Size(output_shape)
        self._critics = ParallelMLP(
            num_critics,
            self._encoder.output_size + action_size,
            joint_fc_layer_params,
            self._output_shape.numel(),
            activation,
            layer_norm=layer_norm,
            batch_norm=batch_norm,
            dropout=dropout,
            initializer=initializer,
            last_initializer=last_initializer,
            body=body,
        )

    @takes_whole_sequences
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
        values = self._critics.values(features, action)
        if len(self._output_shape) == 1:
            return values
        return values.reshape(*values.shape[:2], *self._output_shape)


class ParallelMLP(nn.Module):
    """n multi-layer perceptrons of one shape, with a linear output layer each.

    Args:
        num_members: n.
        input_size: features of one input.
        layer_sizes: of the hidden layers, each followed by the activation.
        output_size: features of one output.
        activation: a name or a callable.
        output_gain: of the output layer's orthogonal weights.
        layer_norm: normalize the hidden layers before their activation.
        batch_norm: normalize the input and what comes out of each activation; or what
            builds such a layer, of a number of features and of members.
        dropout: share of the units of hidden layers that are left out in training,
            drawn for every member and row, before that.
        initializer: of the hidden layers' weights; None: orthogonal ones.
        last_initializer: of the output layer's; None: orthogonal ones.
        body: in place of the hidden layers, see :mod:`~alf_lite.networks.bodies`.
    """

    def __init__(
        self,
        num_members: int,
        input_size: int,
        layer_sizes: Sequence[int],
        output_size: int,
        activation: Activation = "relu",
        output_gain: float = 1.0,
        layer_norm: bool = False,
        dropout: float = 0.0,
        *,
        batch_norm: bool | Callable[..., nn.Module] = False,
        initializer: Initializer | None = None,
        last_initializer: Initializer | None = None,
        body: str | Body | None = None,
    ) -> None:
        super().__init__()
        sizes = [input_size, *check_sizes("fc_layer_params", layer_sizes)]
        layers: list[nn.Module] = []
        if body is not None:
            check_body_alone(layer_norm, batch_norm, dropout, 0.0, initializer)
            layers = make_body(body, input_size, sizes[1:], num_members)
        else:
            layers = make_batch_norm(batch_norm, input_size, num_members)
        for size, next_size in pairwise(sizes if body is None else ()):
            layers.append(
                ParallelLinear(num_members, size, next_size, HIDDEN_GAIN, initializer)
            )
            layers += make_dropout(dropout)
            if layer_norm:
                layers.append(ParallelLayerNorm(num_members, next_size))
            layers.append(make_activation(activation))
            layers += make_batch_norm(batch_norm, next_size, num_members)
        self._hidden_layers = HiddenSequential(*layers)
        self._output_layer = ParallelLinear(
            num_members, sizes[-1], output_size, output_gain, last_initializer
        )

        of_members = (ParallelLinear, ParallelLayerNorm, BatchNorm)
        known = {*of_members, nn.Dropout, type(make_activation(activation))}
        self._knows_first = all(type(layer) in known for layer in layers)
        first = [
            FirstMember(layer) if isinstance(layer, of_members) else layer
            for layer in (*layers, self._output_layer)
        ]
        *first_hidden, first_output = first
        self._first = HiddenSequential(*first_hidden), first_output
        self.is_only_first = False  # whether the other members are left out
        layers.append(self._output_layer)
        self._built = BuiltLayers(layers, self)

    def forward(self, x: Tensor) -> Tensor:
        """[B, input_size] or [n, B, input_size] → [n, B, output_size].

        If ``is_only_first``, [B, input_size] → [1, B, output_size].
        """
        if not self.is_only_first:
            return self._of_all(x)
        is_shipped = is_exactly(self, ParallelMLP) and self._built.are_untouched()
        if not (self._knows_first and is_shipped):
            return self._of_all(x)[:1]
        hidden_layers, output_layer = self._first
        return output_layer.forward(hidden_layers.forward(x)).unsqueeze(0)

    def _of_all(self, x: Tensor) -> Tensor:
        values = self._hidden_layers.forward(x)
        if has_hooks(self._output_layer):
            return self._output_layer(values)
        return self._output_layer.forward(values)  # as LeanSequential does

    def values(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        """As ``forward``, the members last: [B, ...] → [B, n, output_size].

        Args:
            x: [B, F].
            more: [B, input_size − F], the rest of the input; None: there is none.
        """
        inputs = x if more is None else torch.cat([x, more], dim=-1)
        return self.forward(inputs).transpose(0, 1)
