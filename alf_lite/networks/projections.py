"""Heads: from features to the distribution of one part of the action, or of a nest.

Those of discrete parts are here, those of continuous ones in
``continuous_projections``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.distributions.continuous import ActionBounds
from alf_lite.distributions.discrete import (
    Categorical,
    CategoryLayout,
    MultiBernoulli,
    MultiCategorical,
)
from alf_lite.distributions.one_hot import OneHotCategorical
from alf_lite.networks.layers import linear
from alf_lite.networks.lean_layers import apply_linear
from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    NestedTensorSpec,
    TensorSpec,
    num_categories,
)
from alf_lite.utils.tensor_utils import unflatten_last

Nest = Any

# Nearly uniform at the start, whatever the observation.
POLICY_GAIN = 0.01


class Projection(nn.Module):
    """From features to a distribution, by a linear layer and what follows from it."""

    _linear: nn.Linear

    def single_layer(self) -> nn.Linear | None:
        """The layer that :meth:`from_outputs` follows; None if there are others.

        A head whose ``forward`` does more than that has to say None.
        """
        return self._linear

    def drop_single_layer(self) -> None:
        """From now on, another one gives what ``from_outputs`` wants."""
        del self._linear

    def forward(self, features: Tensor) -> Any:
        """[..., input_size] → a distribution with batch shape [...]."""
        return self.from_outputs(apply_linear(self._linear, features))

    def from_outputs(self, outputs: Tensor) -> Any:
        """The distribution, from what the layer gave, [..., output_size]."""
        raise NotImplementedError


class CategoricalProjection(Projection):
    """One discrete action between the bounds of a scalar integer spec."""

    def __init__(self, input_size: int, spec: BoundedTensorSpec) -> None:
        super().__init__()
        self._linear = linear(input_size, int(num_categories(spec)[0]), POLICY_GAIN)
        self._minimum = int(spec.minimum)
        self._dtype = spec.dtype

    def from_outputs(self, outputs: Tensor) -> Categorical:
        return Categorical(outputs, self._minimum, self._dtype)


class MultiCategoricalProjection(Projection):
    """A vector of discrete actions, one categorical distribution per element."""

    def __init__(self, input_size: int, spec: BoundedTensorSpec) -> None:
        super().__init__()
        self._layout = CategoryLayout(spec)
        self._linear = linear(input_size, self._layout.num_logits, POLICY_GAIN)

    def from_outputs(self, outputs: Tensor) -> MultiCategorical:
        return MultiCategorical(outputs, self._layout)


class BernoulliProjection(Projection):
    """Binary actions."""

    def __init__(self, input_size: int, spec: TensorSpec) -> None:
        super().__init__()
        self._linear = linear(input_size, spec.numel, POLICY_GAIN)
        self._spec = spec

    def from_outputs(self, outputs: Tensor) -> MultiBernoulli:
        logits = unflatten_last(outputs, self._spec.shape)
        return MultiBernoulli(logits, self._spec.ndim, self._spec.dtype)


class OneHotProjection(Projection):
    """A choice of one element of a vector, which is at its maximum then."""

    def __init__(self, input_size: int, bounds: ActionBounds) -> None:
        super().__init__()
        self._linear = linear(input_size, bounds.spec.numel, POLICY_GAIN)
        self._bounds = bounds

    def from_outputs(self, outputs: Tensor) -> OneHotCategorical:
        return OneHotCategorical(outputs, self._bounds)


class NestOfHeads(Projection):
    """One head per leaf of a nest; the layers that are the only one of a head are one.

    Args:
        action_spec: nest of TensorSpecs.
        heads: one per leaf; they give their layers away.
    """

    def __init__(self, action_spec: NestedTensorSpec, heads: list[Projection]) -> None:
        super().__init__()
        self._action_spec = action_spec
        layers = [head.single_layer() for head in heads]
        self._has_layer = [layer is None for layer in layers]
        joined = [layer for layer in layers if layer is not None]
        self._sizes = [layer.out_features for layer in joined]
        self._joined = _joined(joined) if joined else None
        for head, layer in zip(heads, layers, strict=True):
            if layer is not None:
                head.drop_single_layer()
        self._heads = nn.ModuleList(heads)

    def single_layer(self) -> nn.Linear | None:
        return None if any(self._has_layer) else self._joined

    def forward(self, features: Tensor) -> Nest:
        outputs: Sequence[Tensor] = ()
        if self._joined is not None:
            joint = apply_linear(self._joined, features)
            outputs = joint.split(self._sizes, dim=-1)
        rest = iter(outputs)
        heads: Iterable[Any] = self._heads
        leaves = [
            head.forward(features) if has_layer else head.from_outputs(next(rest))
            for head, has_layer in zip(heads, self._has_layer, strict=True)
        ]
        return nest.pack_sequence_as(self._action_spec, leaves)

    def from_outputs(self, outputs: Tensor) -> Nest:
        columns = outputs.split(self._sizes, dim=-1)
        heads: Iterable[Any] = self._heads
        leaves = [
            head.from_outputs(column)
            for head, column in zip(heads, columns, strict=True)
        ]
        return nest.pack_sequence_as(self._action_spec, leaves)


def _joined(layers: list[nn.Linear]) -> nn.Linear:
    """One layer with the outputs of all, one after the other."""
    joined = nn.Linear(
        layers[0].in_features,
        sum(layer.out_features for layer in layers),
        device="meta",  # no draws for weights that are replaced
    )
    joined.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
    joined.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))
    return joined
