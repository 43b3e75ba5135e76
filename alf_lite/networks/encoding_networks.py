"""Networks that turn a nest of observations into one vector of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.config import bindings, configurable
from alf_lite.errors import ConfigError
from alf_lite.fast import quick
from alf_lite.networks.bodies import Body
from alf_lite.networks.initializers import Initializer
from alf_lite.networks.input_encoders import (
    CategoryEncoder,
    ConvLayerParams,
    ImageEncoder,
    is_image,
    make_encoder,
)
from alf_lite.networks.input_preprocessors import (
    Combiner,
    Preprocessor,
    make_combiner,
    preprocessors_of,
)
from alf_lite.networks.layers import Activation, mlp
from alf_lite.networks.network import Network, takes_whole_sequences
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_left_out, check_unused

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
        batch_norm: normalize its input and the outputs of its layers, see
            :class:`BatchNorm`; or what builds such a layer, of a number of features.
        dropout: share of its units that are left out in training.
        noise_std: σ₀ of noise in its weights, see :class:`NoisyLinear`; 0: none.
        initializer: of the weights of all layers, a name such as "he_uniform" or an
            object such as ``VarianceScaling(2.0)``; None: orthogonal ones.
        body: "simba", "simba_v2", "xqc", "flash_sac" or a function of one's own, which
            makes the layers in place of the MLP, see :mod:`~alf_lite.networks.bodies`.
        conv_layer_params: (filters, kernel size, stride) of each convolution, or with
            the padding for a fourth; None for a choice by the size of the image.
        conv_activation: of the convolutions.
        embedding_size: of each integer input; None for one-hot up to 256 categories.
        input_preprocessors: by the path of a leaf, such as ``"arm.image"``, what
            encodes it in place of that: constructors of networks without memory or of
            modules, called with the spec of the leaf, or modules.
        combiner: how the leaves' features become one vector: "concat", "sum" or
            "multiply", for which each must have the same size, or a function of their
            list.

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
        batch_norm: bool | Callable[..., nn.Module] = False,
        dropout: float = 0.0,
        noise_std: float = 0.0,
        initializer: Initializer | None = None,
        body: str | Body | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        conv_activation: Activation = "relu",
        embedding_size: int | None = None,
        input_preprocessors: Mapping[str, Preprocessor] | None = None,
        combiner: Combiner = "concat",
    ) -> None:
        super().__init__(input_spec)
        specs = nest.flatten_with_path(input_spec)
        if not specs:
            raise ValueError("input_spec: expected at least one TensorSpec, got none")
        chosen = preprocessors_of(input_preprocessors, specs)
        encoders = [
            preprocessor
            or make_encoder(
                nest.leaf_name("observation", path),
                spec,
                conv_layer_params=conv_layer_params,
                conv_activation=conv_activation,
                embedding_size=embedding_size,
                initializer=initializer,
            )
            for (path, spec), preprocessor in zip(specs, chosen, strict=True)
        ]
        of_layers: dict[str, Any] = {
            "layer_norm": layer_norm,
            "dropout": dropout,
            "noise_std": noise_std,
            "body": body,
        }
        kinds = {type(encoder) for encoder in encoders}
        bindings.note_effect(
            EncodingNetwork,
            conv_layer_params=any(
                is_image(spec) and one is None
                for (_, spec), one in zip(specs, chosen, strict=True)
            ),
            conv_activation=ImageEncoder in kinds,
            embedding_size=CategoryEncoder in kinds,
            combiner=len(specs) > 1 or callable(combiner),
            **dict.fromkeys(of_layers, bool(fc_layer_params)),
        )
        if not fc_layer_params:
            # One that is bound serves other encoders, too.
            given = {
                name: value
                for name, value in of_layers.items()
                if value != bindings.value_in_force(type(self), name)
            }
            check_unused(type(self), "fc_layer_params is ()", **given)
        sizes = {
            nest.leaf_name("observation", path): encoder.output_size
            for (path, _), encoder in zip(specs, encoders, strict=True)
        }
        self._combine, input_size = make_combiner(combiner, sizes)
        self._is_plain = (
            _is_plain(input_spec) and chosen == [None] and not callable(combiner)
        )
        self._encoders = nn.ModuleList([] if self._is_plain else encoders)
        self._mlp = mlp(
            input_size,
            fc_layer_params,
            activation,
            layer_norm,
            batch_norm=batch_norm,
            dropout=dropout,
            noise_std=noise_std,
            initializer=initializer,
            body=body,
        )
        self.output_size = [input_size, *fc_layer_params][-1]

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """[..., *spec.shape] per leaf → ([..., output_size], state)."""
        return self._mlp.forward(self.joined(inputs)), state

    def joined(self, inputs: Nest) -> Tensor:
        """[..., *spec.shape] per leaf → what the MLP is applied to, [..., size]."""
        if self._is_plain:
            return inputs
        leaves = nest.flatten(inputs)
        encoders = zip(self._encoders, leaves, strict=True)
        return self._combine([encode(leaf) for encode, leaf in encoders])


class EncodedNetwork(Network):
    """A network that begins with an encoder; what follows is a subclass's.

    That is a linear layer, ``_linear``, and what is made of its outputs; or ``forward``
    is another one.

    Its options are those of the encoder that are needed most. One that is None keeps
    the encoder's own default, or what a conf binds to it.

    Args:
        observation_spec: nest of TensorSpecs.
        fc_layer_params: sizes of the encoder's layers, such as (64, 64).
        activation: of these layers, a name such as "tanh" or a callable.
        body: in place of them, such as "simba".
        conv_layer_params: of the encoder, for images.
        encoding_network_ctor: called with the observation spec, and by keyword with
            those of the four above that are given. LSTMEncodingNetwork or
            GRUEncodingNetwork make the network recurrent.

    Raises:
        ValueError: if a spec is not supported; the message names its path.
        ConfigError: for an option that would be ignored.
    """

    _linear: nn.Module

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        *,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        body: str | Body | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
    ) -> None:
        options = {
            "fc_layer_params": fc_layer_params,
            "activation": activation,
            "body": body,
            "conv_layer_params": conv_layer_params,
        }
        # An argument would hide what a conf binds to the encoder.
        given = {name: value for name, value in options.items() if value is not None}
        encoder = encoding_network_ctor(observation_spec, **given)
        if not hasattr(encoder, "output_size"):
            raise ConfigError(
                "encoding_network_ctor must build a network with an output_size, whose "
                f"output is one vector, got {type(encoder).__name__}"
            )
        kinds = {type(module) for module in encoder.modules()}
        if EncodingNetwork in kinds and ImageEncoder not in kinds:
            check_left_out(
                "no part of the observation is an image, of 3 dimensions, or of bytes "
                "and 2",
                conv_layer_params=conv_layer_params,
            )
        super().__init__(observation_spec, encoder.state_spec)
        if body is not None:
            check_unused(type(self), "a body has its own layers", activation=activation)
        self._encoder = encoder

    @takes_whole_sequences
    @quick
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        """Observations [B, ...] → (what follows from the outputs, new state)."""
        features, state = self._encoder.forward(inputs, state)
        return self.from_outputs(self._linear(features)), state

    def from_outputs(self, outputs: Tensor) -> Any:
        """What follows from the outputs [B, ·] of the last layer."""
        return outputs


def _is_plain(spec: NestedTensorSpec) -> bool:
    """Whether the input is one vector that can be used as it is."""
    return (
        isinstance(spec, TensorSpec) and spec.ndim == 1 and spec.dtype == torch.float32
    )
