"""Nests of actions as rows: continuous in [-1, 1], discrete as numbered components."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import Field
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.continuous import ActionBounds
from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    NestedTensorSpec,
    TensorSpec,
    is_binary,
    num_categories,
)
from alf_lite.utils.tensor_utils import DeviceConstants, expand_dims_as

Nest = Any
# More values than this are a mistake more often than a wish.
_MAX_VALUES = 100_000


class Entropies(NamedTuple):
    """Of the two parts of an action; () where there is no such part."""

    continuous: Field = ()  # [B] −log π(a_c|s) of a sample
    discrete: Field = ()  # [B] exact


class PolicySample(NamedTuple):
    """What a policy would do: one vector, and any of the joint values."""

    vector: Tensor | None  # [B, vector_size] in [-1, 1], reparametrised
    probs: Tensor | None  # [B, num_joint_values]
    entropies: Entropies

    def expectation(self, values: Tensor) -> Tensor:
        """Σ_a p_a v_a: [B, num_joint_values, ...] → [B, ...]."""
        if self.probs is None:
            return values.squeeze(1)
        return (expand_dims_as(self.probs, values) * values).sum(1)


class BoxActions:
    """A nest of boxes and the affine maps between them and [-1, 1].

    Also what an algorithm for actions with discrete parts, too, asks of its actions: as
    :class:`MixedActions` that has none.

    Args:
        action_spec: nest of float specs with finite bounds, minimum < maximum.

    Raises:
        ValueError: if a leaf is no such box; the message names its path.
    """

    num_joint_values = 1
    has_discrete = False

    def __init__(self, action_spec: NestedTensorSpec) -> None:
        self._action_spec = action_spec
        leaves = nest.flatten_with_path(action_spec)
        if not leaves:
            raise ValueError("action_spec: expected at least one TensorSpec, got none")
        self._bounds = [_bounds(path, spec) for path, spec in leaves]
        self._sizes = [bounds.spec.numel for bounds in self._bounds]
        self.vector_size = sum(self._sizes)
        # Logarithm of the volume of the box over that of the box [-1, 1]: so much more
        # entropy has a density of actions than that of their vectors.
        self.log_scale = sum(bounds.log_volume for bounds in self._bounds)
        self.log_scale -= self.vector_size * math.log(2.0)
        self._is_leaf = isinstance(action_spec, TensorSpec)

    def to_vector(self, action: Nest) -> Tensor:
        """Nest of [B, *spec.shape] in their bounds → [B, numel] in [-1, 1]."""
        if self._is_leaf:  # as for most, at every step
            symmetric = self._bounds[0].to_symmetric(action)
            return symmetric.reshape(action.shape[0], self.vector_size)
        columns = [
            bounds.to_symmetric(leaf).reshape(leaf.shape[0], size)
            for bounds, size, leaf in zip(
                self._bounds, self._sizes, nest.flatten(action), strict=True
            )
        ]
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def to_action(self, vector: Tensor) -> Nest:
        """[B, numel] in [-1, 1] → nest of [B, *spec.shape] in their bounds."""
        columns = vector.split(self._sizes, dim=1)
        leaves = [
            bounds.from_symmetric(column.reshape(-1, *bounds.spec.shape))
            for bounds, column in zip(self._bounds, columns, strict=True)
        ]
        return nest.pack_sequence_as(self._action_spec, leaves)

    def values_of(self, action: Nest, values: Tensor) -> Tensor:
        """Those of the action: [B, n, 1, ...] → [B, n, ...]."""
        return values.squeeze(2)

    def sample(self, policy: Nest) -> PolicySample:
        """A differentiable sample of the vector."""
        action, log_prob = distributions.rsample_and_log_prob(policy)
        return PolicySample(self.to_vector(action), None, Entropies(-log_prob))

    def draw(self, policy: Nest) -> PolicySample:
        """A sample of the vector without gradient and entropy, of any distribution."""
        vector = self.to_vector(distributions.sample(policy))
        return PolicySample(vector, None, Entropies())

    @torch.no_grad()
    def sample_vectors(self, policy: Nest, num_samples: int) -> tuple[Tensor, Tensor]:
        """Several vectors of every policy, and the log of their density.

        Args:
            policy: of batch shape [B].
            num_samples: N.

        Returns:
            [N, B, vector_size] in [-1, 1], and [N, B]: the density of vectors, not that
            of actions between bounds of their own.
        """
        repeated = nest.map_structure(
            lambda t: t.expand(num_samples, *t.shape).flatten(0, 1), policy
        )
        actions, log_prob = distributions.rsample_and_log_prob(repeated)
        vector = self.to_vector(actions).unflatten(0, (num_samples, -1))
        log_density = log_prob.unflatten(0, (num_samples, -1)) + self.log_scale
        return vector, log_density


def _bounds(path: str, spec: Any) -> ActionBounds:
    if not isinstance(spec, TensorSpec) or spec.is_discrete:
        raise ValueError(f"{path}: expected a continuous action, got {spec}")
    if not isinstance(spec, BoundedTensorSpec):
        raise ValueError(
            f"{path}: expected finite bounds for a continuous action, got {spec}"
        )
    try:
        return ActionBounds(spec)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


class DiscreteActions:
    """The components of a nest of discrete actions, and the indices of their values.

    A component is one element of one leaf, in the order of the flattened nest: a scalar
    action has one, a vector of 18 choices has 18. Component c takes n_c values,
    numbered from 0. C is the number of components and A the largest n_c.

    Args:
        action_spec: nest of integer or bool specs; integers need bounds.

    Raises:
        ValueError: if a leaf is not discrete, has no bounds, or too many values; the
            message names its path.
    """

    def __init__(self, action_spec: NestedTensorSpec) -> None:
        self._action_spec = action_spec
        leaves = nest.flatten_with_path(action_spec)
        if not leaves:
            raise ValueError("action_spec: expected at least one TensorSpec, got none")
        self._specs: list[TensorSpec] = [spec for _, spec in leaves]
        self.sizes = np.concatenate([num_values(path, spec) for path, spec in leaves])
        self.num_components = self.sizes.size
        self.max_values = int(self.sizes.max())
        self.total_values = int(self.sizes.sum())
        minimum = np.concatenate([_minimum(spec) for spec in self._specs])
        self._starts_at_zero = bool((minimum == 0).all())
        # Whether an action is the index of its only component.
        self.is_index = (
            isinstance(action_spec, TensorSpec)
            and action_spec.ndim == 0
            and action_spec.dtype is torch.int64
            and self._starts_at_zero
        )
        self.is_rectangular = bool((self.sizes == self.max_values).all())
        value = np.arange(self.max_values)
        exists = value < self.sizes[:, None]  # [C, A]
        first = np.cumsum(self.sizes) - self.sizes
        source = np.where(exists, first[:, None] + value, 0).reshape(-1)
        self._constants = DeviceConstants(minimum, source, exists)

    def to_index(self, action: Nest) -> Tensor:
        """Nest of [B, *spec.shape] → [B, C] int64.

        The zeros that stand for no action become the first value.
        """
        columns = [
            leaf.reshape(leaf.shape[0], spec.numel).long()
            for leaf, spec in zip(nest.flatten(action), self._specs, strict=True)
        ]
        index = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        if self._starts_at_zero:
            return index
        return (index - self._constants.on(index.device)[0]).clamp(min=0)

    def to_action(self, index: Tensor) -> Nest:
        """[B, C] → nest of [B, *spec.shape], each of its dtype."""
        if not self._starts_at_zero:
            index = index + self._constants.on(index.device)[0]
        if isinstance(self._action_spec, TensorSpec):  # done at every step
            return _to_leaf(index, self._action_spec)
        columns = index.split([spec.numel for spec in self._specs], dim=1)
        return nest.pack_sequence_as(
            self._action_spec, map(_to_leaf, columns, self._specs)
        )

    def allowed(self, mask: Tensor | None, device: torch.device) -> Tensor | None:
        """Which values may be chosen.

        Args:
            mask: [B, sum n_c] bool, the values of all components one after the other;
                None: every value.
            device: of the result.

        Returns:
            bool [B, C, A], [C, A] without a mask, or None if nothing is ruled out.
        """
        if self.is_rectangular:
            if mask is None:
                return None
            return mask.unflatten(-1, (self.num_components, self.max_values))
        _, source, exists = self._constants.on(device)
        if mask is None:
            return exists
        rows = mask.index_select(-1, source).unflatten(-1, exists.shape)
        return rows & exists


def _to_leaf(column: Tensor, spec: TensorSpec) -> Tensor:
    """[B, spec.numel] → [B, *spec.shape] of the dtype."""
    if spec.ndim == 0:
        column = column.squeeze(1)
    else:
        column = column.reshape(column.shape[:1] + spec.shape)
    return column if column.dtype is spec.dtype else column.to(spec.dtype)


def num_values(path: str, spec: Any) -> np.ndarray:
    """[numel], of each element of a discrete action; ValueError if that is none."""
    if not isinstance(spec, TensorSpec) or spec.is_continuous:
        raise ValueError(f"{path}: expected a discrete action, got {spec}")
    if is_binary(spec):
        return np.full(spec.numel, 2)
    if not isinstance(spec, BoundedTensorSpec):
        raise ValueError(
            f"{path}: expected bounds for a discrete action, got {spec}. Use "
            "BoundedTensorSpec with minimum and maximum."
        )
    sizes = num_categories(spec)
    if sum(sizes.tolist()) > _MAX_VALUES:
        raise ValueError(
            f"{path}: expected at most {_MAX_VALUES} discrete values, got {spec}"
        )
    return sizes


def _minimum(spec: TensorSpec) -> np.ndarray:
    """[numel] int64."""
    if isinstance(spec, BoundedTensorSpec):
        return spec.minimum.astype(np.int64).reshape(-1)
    return np.zeros(spec.numel, np.int64)
