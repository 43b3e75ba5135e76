"""Nests of actions with continuous and discrete parts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from alf_lite import nest
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_vectors import (
    BoxActions,
    DiscreteActions,
    Entropies,
    PolicySample,
)
from alf_lite.distributions.discrete import Categorical
from alf_lite.nest import at_path
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.tensor_utils import DeviceConstants

Nest = Any

# Every joint value is one output of a critic.
_MAX_JOINT_VALUES = 1024
# Of a value that was ruled out: 0 times it is 0, which is not true of -inf.
_LOG_OF_ZERO = -1e6


def make_actions(action_spec: NestedTensorSpec) -> BoxActions | MixedActions:
    """How an algorithm for any nest of bounded actions sees them.

    Raises:
        ValueError: if a leaf has no bounds, or there are too many joint values.
    """
    leaves = nest.flatten(action_spec)
    is_box = bool(leaves) and all(
        isinstance(spec, TensorSpec) and spec.is_continuous for spec in leaves
    )
    return BoxActions(action_spec) if is_box else MixedActions(action_spec)


class MixedActions:
    """One vector of all continuous elements, and one index of all discrete ones.

    The joint values of the discrete elements are numbered like the entries of an array
    with one dimension for each element, the last one running fastest.

    Args:
        action_spec: nest of bounded specs.

    Raises:
        ValueError: if a leaf has no bounds, or there are too many joint values.
    """

    def __init__(self, action_spec: NestedTensorSpec) -> None:
        leaves = nest.flatten_with_path(action_spec)
        if not leaves:
            raise ValueError("action_spec: expected at least one TensorSpec, got none")
        self._is_discrete = [
            isinstance(spec, TensorSpec) and spec.is_discrete for _, spec in leaves
        ]
        for path, spec in self._select(leaves, False):
            at_path(path, BoxActions, spec)
        boxes = [spec for _, spec in self._select(leaves, False)]
        self._boxes = BoxActions(boxes) if boxes else None
        self.vector_size = self._boxes.vector_size if self._boxes else 0
        self.log_scale = self._boxes.log_scale if self._boxes else 0.0
        self._choices = [
            at_path(path, _Choice, spec) for path, spec in self._select(leaves, True)
        ]
        self.has_discrete = bool(self._choices)
        self.num_joint_values = math.prod(choice.num_values for choice in self._choices)
        if self.num_joint_values > _MAX_JOINT_VALUES:
            raise ValueError(
                f"action_spec: the discrete parts have {self.num_joint_values} joint "
                f"values, expected at most {_MAX_JOINT_VALUES}"
            )

    def to_vector(self, action: Nest) -> Tensor | None:
        """The continuous part [B, vector_size] in [-1, 1]; None if there is none."""
        if self._boxes is None:
            return None
        return self._boxes.to_vector(self._select(nest.flatten(action), False))

    def to_joint_index(self, action: Nest) -> Tensor | None:
        """The discrete part [B] int64; None if there is none."""
        index: Tensor | None = None
        for choice, leaf in zip(
            self._choices, self._select(nest.flatten(action), True), strict=True
        ):
            own = choice.to_index(leaf)
            index = own if index is None else index * choice.num_values + own
        return index

    def values_of(self, action: Nest, values: Tensor) -> Tensor:
        """Those of the joint value in ``action``.

        Args:
            action: [B, ...].
            values: [B, n, num_joint_values, ...].

        Returns:
            [B, n, ...].
        """
        index = self.to_joint_index(action)
        if index is None:
            return values.squeeze(2)
        return values[torch.arange(index.shape[0], device=index.device), :, index]

    def sample(self, policy: Nest) -> PolicySample:
        """A differentiable sample of the vector; of the discrete part, all there is."""
        sample = PolicySample(None, None, Entropies())
        if self._boxes is not None:
            sample = self._boxes.sample(
                self._select(distributions.parts(policy), False)
            )
        if not self._choices:
            return sample
        log_probs = self.joint_log_probs(policy)
        probs = log_probs.exp()
        discrete = -(probs * log_probs).sum(-1)
        return sample._replace(
            probs=probs, entropies=sample.entropies._replace(discrete=discrete)
        )

    def draw(self, policy: Nest) -> PolicySample:
        """As :meth:`sample`, without gradient and entropy, of any distribution."""
        vector = probs = None
        if self._boxes is not None:
            boxes = self._select(distributions.parts(policy), False)
            vector = self._boxes.draw(boxes).vector
        if self._choices:
            with torch.no_grad():
                probs = self.joint_log_probs(policy).exp()
        return PolicySample(vector, probs, Entropies())

    def sample_vectors(self, policy: Nest, num_samples: int) -> tuple[Tensor, Tensor]:
        """Of the continuous part, as :meth:`BoxActions.sample_vectors`."""
        assert self._boxes is not None
        parts = self._select(distributions.parts(policy), False)
        return self._boxes.sample_vectors(parts, num_samples)

    def joint_log_probs(self, policy: Nest) -> Tensor:
        """[B, num_joint_values]; there must be a discrete part."""
        parts = self._select(distributions.parts(policy), True)
        first, *others = (
            choice.log_probs(part)
            for choice, part in zip(self._choices, parts, strict=True)
        )
        joint = first
        for log_probs in others:
            joint = (joint.unsqueeze(-1) + log_probs.unsqueeze(-2)).flatten(-2)
        return joint

    def _select(self, items: list[Any], discrete: bool) -> list[Any]:
        return [
            item
            for item, is_discrete in zip(items, self._is_discrete, strict=True)
            if is_discrete == discrete
        ]


class _Choice:
    """A discrete leaf, all of whose joint values are numbered."""

    def __init__(self, spec: TensorSpec) -> None:
        self._components = DiscreteActions(spec)
        sizes = self._components.sizes.tolist()
        self.num_values = math.prod(sizes)
        strides = self.num_values // np.cumprod(sizes)
        if self.num_values > _MAX_JOINT_VALUES:
            values = np.zeros((1, len(sizes)), np.int64)  # refused by the caller
        else:
            values = np.array(list(itertools.product(*map(range, sizes))))
        self._constants = DeviceConstants(strides, values)

    def to_index(self, action: Tensor) -> Tensor:
        """[B, *spec.shape] → [B]."""
        index = self._components.to_index(action)
        if index.shape[1] == 1:
            return index.squeeze(1)
        return (index * self._constants.on(index.device)[0]).sum(1)

    def log_probs(self, distribution: Distribution) -> Tensor:
        """[B, num_values], of every value."""
        if isinstance(distribution, Categorical):
            log_probs = distribution.logits.log_softmax(-1)
        else:
            batch_size = distribution.batch_shape[0]
            device = nest.flatten(distribution)[0].device
            values = self._components.to_action(self._constants.on(device)[1])
            values = values.unsqueeze(1).expand(-1, batch_size, *values.shape[1:])
            log_probs = distribution.log_prob(values).transpose(0, 1)
        return log_probs.clamp(min=_LOG_OF_ZERO)
