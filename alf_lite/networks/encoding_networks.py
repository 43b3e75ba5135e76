"""Networks that turn a nest of observations into one vector of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.networks.input_encoders import ConvLayerParams, make_encoder
from alf_lite.networks.layers import Activation, mlp
from alf_lite.networks.network import Network, leaf_name
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


class EncoderNetwork(Network):
    """A network whose output is a vector of features."""

    output_size: int


@configurable
class EncodingNetwork(EncoderNetwork):
    """Encodes every leaf as its spec says, joins the results and applies an MLP.

    ``input_encoders`` tells how leaves are encoded. Inputs may have any number of batch
    dimensions.

    Args:
        input_spec: nest of TensorSpecs.
        fc_layer_params: sizes of the MLP's layers; () for none.
        activation: of the MLP, a name such as "tanh" or a callable.
        layer_norm: normalize the layers of the MLP before their activation.
        conv_layer_params: (filters, kernel size, stride) of each convolution; None for
            a choice by the size of the image.
        conv_activation: of the convolutions.
        embedding_size: of each integer input; None for one-hot up to 256 categories.

    Raises:
        ValueError: if a leaf cannot be encoded; the message names its path.
    """

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        *,
        fc_layer_params: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        conv_layer_params: ConvLayerParams | None = None,
        conv_activation: Activation = "relu",
        embedding_size: int | None = None,
    ) -> None:
        super().__init__(input_spec)
        specs = nest.flatten_with_path(input_spec)
        if not specs:
            raise ValueError("input_spec: expected at least one TensorSpec, got none")
        encoders = [
            make_encoder(
                leaf_name("observation", path),
                spec,
                conv_layer_params=conv_layer_params,
                conv_activation=conv_activation,
                embedding_size=embedding_size,
            )
            for path, spec in specs
        ]
        input_size = sum(encoder.output_size for encoder in encoders)
        self._is_plain = _is_plain(input_spec)
        self._encoders = nn.ModuleList([] if self._is_plain else encoders)
        self._mlp = mlp(input_size, fc_layer_params, activation, layer_norm)
        self.output_size = [input_size, *fc_layer_params][-1]

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """[..., *spec.shape] per leaf → ([..., output_size], state)."""
        if not self._is_plain:
            leaves = nest.flatten(inputs)
            features = [
                encode(leaf)
                for encode, leaf in zip(self._encoders, leaves, strict=True)
            ]
            inputs = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
        return self._mlp.forward(inputs), state


def make_encoding_network(
    ctor: Callable[..., EncoderNetwork], input_spec: NestedTensorSpec, **options: Any
) -> EncoderNetwork:
    """``ctor(input_spec)`` with the options that are not None.

    An option that is left out keeps the encoder's own default, or what a conf binds to
    it; an argument would hide that binding.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return ctor(input_spec, **given)


def _is_plain(spec: NestedTensorSpec) -> bool:
    """Whether the input is one vector that can be used as it is."""
    return (
        isinstance(spec, TensorSpec) and spec.ndim == 1 and spec.dtype == torch.float32
    )
