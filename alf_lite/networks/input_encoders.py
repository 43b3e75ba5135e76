"""How one leaf of an observation becomes a vector of features.

| spec                               | features                                        |
|------------------------------------|-------------------------------------------------|
| image: float, uint8 or binary of 3 | convolutions, flattened                         |
| dimensions, or uint8 of 2          |                                                 |
| other floats                       | the numbers themselves                          |
| bool, or integers that are 0 or 1  | 0.0 and 1.0                                     |
| uint8 vector up to 255             | divided by 255                                  |
| other bounded integers             | one-hot per element, or an embedding            |

uint8 is divided by 255 here, exactly once; an image that already is float is taken as
it is. An image that is too small for convolutions counts as a vector.

Of the first and the last dimension of an image, the smaller one holds the channels, the
last one if they are equal: [H, W, C] is gymnasium's way, [C, H, W] that of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.fast import is_traced
from alf_lite.networks.initializers import (
    HIDDEN_GAIN,
    Initializer,
    check_parameters,
    initialized,
)
from alf_lite.networks.layers import Activation, make_activation
from alf_lite.networks.lean_layers import HiddenSequential
from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    TensorSpec,
    is_binary,
    num_categories,
)

# (filters, kernel size, stride, padding) of each layer; no padding if it is left out
ConvLayerParams = Sequence[tuple[int, int, int] | tuple[int, int, int, int]]

# Mnih et al., "Human-level control through deep reinforcement learning", 2015.
NATURE_CNN: ConvLayerParams = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
# For grids such as those of MinAtar.
SMALL_CNN: ConvLayerParams = ((16, 3, 1), (32, 3, 1))

# More categories than this become embeddings unless the user decides.
_MAX_ONE_HOT = 256
_DEFAULT_EMBEDDING_SIZE = 64
# A table of more rows is a mistake more often than a wish.
_MAX_CATEGORIES = 1_000_000


class InputEncoder(nn.Module):
    """[..., *shape] of one leaf → [..., output_size]."""

    output_size: int


class NumberEncoder(InputEncoder):
    """[..., *shape] → [..., numel], as floats, times a constant.

    Args:
        spec: of the leaf.
        scale: what the numbers are multiplied with.
    """

    def __init__(self, spec: TensorSpec, scale: float = 1.0) -> None:
        super().__init__()
        self.output_size = spec.numel
        self._ndim = spec.ndim
        self._scale = scale

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            x = x.float()
        if self._scale != 1.0:
            x = x * self._scale
        return _flatten(x, self._ndim)


class CategoryEncoder(InputEncoder):
    """[..., *shape] integers → [..., features], one-hot or embedded per element.

    Args:
        spec: bounded integers.
        embedding_size: features per element; None for one-hot.
    """

    _offsets: Tensor

    def __init__(self, spec: BoundedTensorSpec, embedding_size: int | None) -> None:
        super().__init__()
        sizes = num_categories(spec)
        self._ndim = spec.ndim
        self._total = int(sizes.sum())
        # Element i owns the rows offset_i, … of one table for all elements.
        offsets = np.cumsum(sizes) - sizes - spec.minimum.astype(np.int64).reshape(-1)
        self.register_buffer("_offsets", torch.tensor(offsets), persistent=False)
        self._embedding: nn.Embedding | None = None
        self.output_size = self._total
        if embedding_size is not None:
            self._embedding = nn.Embedding(self._total, embedding_size)
            self.output_size = embedding_size * spec.numel

    def forward(self, x: Tensor) -> Tensor:
        rows = _flatten(x.long(), self._ndim) + self._offsets
        if self._embedding is not None:
            return self._embedding(rows).flatten(-2)
        one_hot = rows.new_zeros((*rows.shape[:-1], self._total), dtype=torch.float32)
        return one_hot.scatter_(-1, rows, 1.0)


@configurable
class WordEncoder(InputEncoder):
    """[..., L] numbers of words → [..., output_size], the sum of their embeddings.

    A word means the same in every place; the order of the words is not seen. As
    ``input_preprocessors`` of a text whose words may stand in several places. Without
    it every place has categories of its own, as of all integers.

    Args:
        spec: integers from 0, which stands for no word.
        output_size: of the features.
    """

    def __init__(self, spec: BoundedTensorSpec, output_size: int = 64) -> None:
        super().__init__()
        is_text = spec.ndim == 1 and spec.is_discrete
        if not is_text or not isinstance(spec, BoundedTensorSpec) or spec.minimum.any():
            raise ValueError(
                "WordEncoder: expected numbers of words [L], integers from 0, got "
                f"{spec}"
            )
        self.output_size = output_size
        self._embedding = nn.EmbeddingBag(
            int(spec.maximum.max()) + 1, output_size, mode="sum", padding_idx=0
        )

    def forward(self, x: Tensor) -> Tensor:
        features = self._embedding(x.reshape(-1, x.shape[-1]).long())
        return features.reshape(*x.shape[:-1], self.output_size)


# On a CPU, convolutions of images that are not tiny are faster with the channels last
# in memory: there and back 1.1 times for 32 images of 4x84x84, 1.4 times for 256. Where
# no gradient is wanted, few images gain nothing by it.
_MIN_PIXELS = 48 * 48
_MIN_ROWS = 128


class ImageInput:
    """From one leaf to images as torch's convolutions want them.

    Args:
        spec: of the leaf.
        min_rows: from how many images on the channels are last without gradient, too.
    """

    def __init__(self, spec: TensorSpec, min_rows: int = _MIN_ROWS) -> None:
        self._ndim = spec.ndim
        self._is_channel_last, self.shape = image_layout(spec)  # C, H, W
        _, height, width = self.shape
        self._min_rows = min_rows if height * width >= _MIN_PIXELS else None
        is_bytes = spec.dtype == torch.uint8 and not is_binary(spec)
        self._scale = 1 / 255 if is_bytes else 1.0

    def __call__(self, x: Tensor) -> tuple[Tensor, torch.Size]:
        """[..., *spec.shape] → ([N, C, H, W], the shape of the outer dimensions).

        In the order in memory in which convolutions of their size are fast.
        """
        outer_shape = x.shape[: x.ndim - self._ndim]
        if self._ndim == 2:
            x = x.unsqueeze(-3)
        elif self._is_channel_last:
            x = x.movedim(-1, -3)
        x = x.reshape(-1, *x.shape[-3:])
        if self._puts_channels_last(x):
            x = x.contiguous(memory_format=torch.channels_last)
        x = x.float()
        if self._scale != 1.0:
            x.mul_(self._scale)  # of bytes, float() is a copy
        return x, outer_shape

    def _puts_channels_last(self, x: Tensor) -> bool:
        if self._min_rows is None or not x.is_cpu or is_traced():
            return False
        return torch.is_grad_enabled() or len(x) >= self._min_rows


class ImageEncoder(InputEncoder):
    """[..., H, W, C] or [..., C, H, W] → [..., features].

    Args:
        spec: of the leaf.
        conv_layer_params: (filters, kernel size, stride) of each layer, or with the
            number of zeros at each border for a fourth.
        activation: after each layer.
        initializer: of the weights; None: orthogonal.
    """

    def __init__(
        self,
        spec: TensorSpec,
        conv_layer_params: ConvLayerParams,
        activation: Activation,
        initializer: Initializer | None = None,
    ) -> None:
        super().__init__()
        self._images = ImageInput(spec)
        channels, height, width = self._images.shape
        layers: list[nn.Module] = []
        for filters, kernel, stride, *padding in conv_layer_params:
            zeros = sum(padding)
            layer = convolution(channels, filters, kernel, stride, initializer, zeros)
            layers += [layer, make_activation(activation)]
            channels = filters
            height = (height + 2 * zeros - kernel) // stride + 1
            width = (width + 2 * zeros - kernel) // stride + 1
        self._convolutions = HiddenSequential(*layers)
        self.output_size = channels * height * width

    def forward(self, x: Tensor) -> Tensor:
        images, outer_shape = self._images(x)
        return self._convolutions(images).reshape(*outer_shape, self.output_size)


def convolution(
    channels: int,
    filters: int,
    kernel: int,
    stride: int = 1,
    initializer: Initializer | None = None,
    padding: int = 0,
) -> nn.Conv2d:
    """A square convolution with zero bias, and orthogonal weights by default."""
    check_parameters(
        f"a convolution of {filters} filters of {kernel}x{kernel}",
        channels,
        filters,
        kernel,
        kernel,
    )
    layer = nn.Conv2d(channels, filters, kernel, stride, padding)
    return initialized(layer, HIDDEN_GAIN, initializer)


def make_encoder(
    path: str,
    spec: Any,
    *,
    conv_layer_params: ConvLayerParams | None = None,
    conv_activation: Activation = "relu",
    embedding_size: int | None = None,
    initializer: Initializer | None = None,
) -> InputEncoder:
    """The encoder of one leaf, chosen by its spec.

    Args:
        path: of the leaf, for messages.
        spec: a TensorSpec.
        conv_layer_params: of images; None for a choice by their size.
        conv_activation: of images.
        embedding_size: of each integer; None for one-hot up to 256 categories.
        initializer: of the convolutions; None: orthogonal.

    Raises:
        TypeError: if ``spec`` is no TensorSpec.
        ValueError: if there is no encoder for it.
    """
    if not isinstance(spec, TensorSpec):
        raise TypeError(
            f"{path}: expected a TensorSpec, got {type(spec).__name__}. Use "
            "TensorSpec(shape, dtype) or BoundedTensorSpec for every leaf."
        )
    if spec.numel == 0:
        raise ValueError(
            f"{path}: expected at least one element, got {spec}. Leave the entry out."
        )
    if spec.ndim > 3:
        raise ValueError(
            f"{path}: expected at most 3 dimensions, got {spec}. Merge dimensions in a "
            "data transformer, for example the frames and channels of a video."
        )
    if is_image(spec):
        params = _conv_params_for(path, spec, conv_layer_params)
        if params:
            return ImageEncoder(spec, params, conv_activation, initializer)
    if spec.is_continuous or is_binary(spec):
        return NumberEncoder(spec)
    if _is_intensity(spec):
        return NumberEncoder(spec, 1 / 255)
    return _category_encoder(path, spec, embedding_size)


def image_layout(spec: TensorSpec) -> tuple[bool, tuple[int, int, int]]:
    """Whether the channels come last, and (channels, height, width)."""
    if spec.ndim == 2:
        return False, (1, spec.shape[0], spec.shape[1])
    first, middle, last = spec.shape
    if last <= first:
        return True, (last, first, middle)
    return False, (first, middle, last)


def _category_encoder(
    path: str, spec: TensorSpec, embedding_size: int | None
) -> CategoryEncoder:
    if not isinstance(spec, BoundedTensorSpec):
        raise ValueError(
            f"{path}: expected bounds for an integer observation, got {spec}. Use "
            "BoundedTensorSpec with minimum and maximum, or a float dtype."
        )
    largest = int(num_categories(spec).max())
    if largest * spec.numel > _MAX_CATEGORIES:
        raise ValueError(
            f"{path}: expected at most {_MAX_CATEGORIES} categories, got {spec}. "
            "Numbers with so large a range are no categories: use a float dtype."
        )
    if embedding_size is None and largest > _MAX_ONE_HOT:
        embedding_size = _DEFAULT_EMBEDDING_SIZE
    return CategoryEncoder(spec, embedding_size)


def _conv_params_for(
    path: str, spec: TensorSpec, params: ConvLayerParams | None
) -> ConvLayerParams:
    """The layers for an image, () if it is too small for any."""
    _, (_, height, width) = image_layout(spec)
    size = min(height, width)
    if params is None:
        if size >= _receptive_field(NATURE_CNN):
            return NATURE_CNN
        return SMALL_CNN if size >= _receptive_field(SMALL_CNN) else ()
    for layer in params:
        is_valid = isinstance(layer, Sequence) and len(layer) in (3, 4)
        is_valid = is_valid and all(isinstance(n, int) and n >= 0 for n in layer)
        if not is_valid or 0 in layer[:3]:
            raise ValueError(
                "conv_layer_params: expected (filters, kernel size, stride), or with "
                "padding (filters, kernel size, stride, padding), for each layer, got "
                f"{layer!r} in {params!r}"
            )
    if size < _receptive_field(params):
        raise ValueError(
            f"{path}: conv_layer_params {tuple(params)} need an image of at least "
            f"{_receptive_field(params)} x {_receptive_field(params)}, got {height} x "
            f"{width} from {spec}. Use fewer layers or smaller kernels."
        )
    return params


def _receptive_field(params: ConvLayerParams) -> int:
    """The side of the smallest image that gives one output."""
    size = 1
    for _, kernel, stride, *padding in reversed(params):
        size = max(1, (size - 1) * stride + kernel - 2 * sum(padding))
    return size


def is_image(spec: TensorSpec) -> bool:
    """Whether convolutions are made for it."""
    if spec.ndim == 3:
        return spec.is_continuous or spec.dtype == torch.uint8 or is_binary(spec)
    return spec.ndim == 2 and spec.dtype == torch.uint8


def _is_intensity(spec: TensorSpec) -> bool:
    """Whether these are bytes on a scale to 255 and not numbered categories."""
    if spec.dtype != torch.uint8 or spec.ndim == 0:
        return False
    return not isinstance(spec, BoundedTensorSpec) or bool(spec.maximum.max() == 255)


def _flatten(x: Tensor, ndim: int) -> Tensor:
    """[..., *shape] with ``ndim`` dimensions of shape → [..., numel]."""
    if ndim == 1:
        return x
    return x.unsqueeze(-1) if ndim == 0 else x.flatten(-ndim)
