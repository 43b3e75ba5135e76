"""The residual convolutional network of IMPALA, for images.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures", ICML 2018 (arXiv:1802.01561), figure 3, right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.networks.encoding_networks import EncoderNetwork
from alf_lite.networks.initializers import Initializer
from alf_lite.networks.input_encoders import ImageInput, convolution, is_image
from alf_lite.networks.layers import Activation, check_sizes, mlp
from alf_lite.networks.lean_layers import apply_hidden
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


@configurable
class ImpalaEncodingNetwork(EncoderNetwork):
    """Encodes one image by sections of a convolution, a pooling and residual blocks.

    Every section halves height and width. Of an observation with more than an image,
    it can be the preprocessor of that: ``EncodingNetwork.input_preprocessors``.

    Differs from the paper: the weights start orthogonal.

    Args:
        input_spec: of an image, see ``input_encoders``.
        channels: of each section; more of them, as in (32, 64, 64), learn more.
        num_blocks: residual blocks of a section.
        fc_layer_params: sizes of the MLP behind the convolutions; () for none.
        activation: of that MLP. The convolutions have ReLU.
        layer_norm: normalize the layers of the MLP before their activation.
        initializer: of all weights; None: orthogonal.
    """

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        *,
        channels: Sequence[int] = (16, 32, 32),
        num_blocks: int = 2,
        fc_layer_params: Sequence[int] = (256,),
        activation: Activation = "relu",
        layer_norm: bool = False,
        initializer: Initializer | None = None,
    ) -> None:
        super().__init__(input_spec)
        if not isinstance(input_spec, TensorSpec) or not is_image(input_spec):
            raise ValueError(
                f"ImpalaEncodingNetwork: expected one image, got {input_spec}. In a "
                "nest, make it one of EncodingNetwork.input_preprocessors."
            )
        # Twice as fast with few images, too
        self._images = ImageInput(input_spec, min_rows=1)
        num_channels, height, width = self._images.shape
        sections: list[nn.Module] = []
        for filters in check_sizes("channels", channels):
            sections += [
                convolution(num_channels, filters, 3, 1, initializer, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                *(_ResidualBlock(filters, initializer) for _ in range(num_blocks)),
            ]
            num_channels = filters
            height, width = (height + 1) // 2, (width + 1) // 2
        self._convolutions = nn.Sequential(*sections, nn.ReLU(), nn.Flatten())
        size = num_channels * height * width
        self._mlp = mlp(
            size, fc_layer_params, activation, layer_norm, initializer=initializer
        )
        self.output_size = [size, *fc_layer_params][-1]

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """[..., *spec.shape] → ([..., output_size], state)."""
        images, outer_shape = self._images(inputs)
        features = apply_hidden(self._convolutions, images)
        return self._mlp(features).reshape(*outer_shape, self.output_size), state


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int, initializer: Initializer | None) -> None:
        super().__init__()
        self._layers = nn.Sequential(
            nn.ReLU(),
            convolution(channels, channels, 3, 1, initializer, padding=1),
            nn.ReLU(),
            convolution(channels, channels, 3, 1, initializer, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self._layers(x)
