"""What learned rewards are made of: running statistics, and networks of features."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from alf_lite import nest
from alf_lite.data_structures import TimeStep, waits
from alf_lite.distributions.mixed_actions import MixedActions, make_actions
from alf_lite.networks.encoding_networks import EncodedNetwork
from alf_lite.networks.layers import linear
from alf_lite.networks.network import Network
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_positive, check_unit_interval
from alf_lite.utils.normalizers import Normalizer
from alf_lite.utils.ranks import share_statistics
from alf_lite.utils.recurrences import linear_scan

Nest = Any

_NUMBERS = (torch.bool, torch.uint8)  # besides floats, what is not numbered categories


class NormalizedObservations(nn.Module):
    """Observations with mean 0 and deviation 1 in every element, clipped.

    A predictor of a random function needs it: what hardly varies would hardly count,
    and what is new would not be far from what is known. Categories stay as they are.

    Args:
        observation_spec: of one observation.
        clip: bounds of the results.

    Raises:
        ValueError: if ``clip`` is not positive.
    """

    def __init__(self, observation_spec: NestedTensorSpec, clip: float = 5.0) -> None:
        check_positive(observation_clip=clip)
        super().__init__()
        self._clip = clip
        specs = nest.flatten(observation_spec)
        self._places = [i for i, spec in enumerate(specs) if _is_number(spec)]
        self.numbers_in_spec = [specs[i] for i in self._places]
        self._normalizer = (
            Normalizer(self.numbers_in_spec) if self.numbers_in_spec else None
        )
        for i in self._places:
            specs[i] = TensorSpec(specs[i].shape)
        self.spec = nest.pack_sequence_as(observation_spec, specs)

    def update(self, observation: Nest) -> None:
        """Takes observations [..., *shape] into the statistics."""
        if self._normalizer is not None:
            leaves = nest.flatten(observation)
            self._normalizer.update([leaves[i] for i in self._places])
            share_statistics([self._normalizer])

    def forward(self, observation: Nest) -> Nest:
        """[..., *shape] in every leaf, of :attr:`spec`."""
        leaves = nest.flatten(observation)
        for i, leaf in zip(self._places, self.numbers(observation), strict=True):
            leaves[i] = leaf
        return nest.pack_sequence_as(observation, leaves)

    def numbers(self, observation: Nest) -> list[Tensor]:
        """The normalised leaves [..., *shape], without categories."""
        if self._normalizer is None:
            return []
        leaves = nest.flatten(observation)
        normalized = self._normalizer.normalize_leaves(
            [leaves[i] for i in self._places], self._clip
        )
        return [leaf.float() for leaf in normalized]


class ReturnScale(nn.Module):
    """Divides rewards by the running deviation of their discounted sum.

        R_t = γ R_{t-1} + r_t,   r_t = 0 where FIRST

    The sum goes on over the ends of episodes, and begins with 0 in every batch. So its
    deviation is that of the rewards themselves in windows of two steps. It is that of
    the last eighth of the data: the first errors of an untrained predictor are so large
    that the deviation of all would leave next to nothing of later rewards.

    Args:
        gamma: γ.

    Raises:
        ValueError: if γ is not in [0, 1].
    """

    def __init__(self, gamma: float = 0.99) -> None:
        check_unit_interval(reward_gamma=gamma)
        super().__init__()
        self._gamma = gamma
        self._normalizer = Normalizer(TensorSpec(()), zero_mean=False, mode="adaptive")

    def update(self, reward: Tensor, steps: TimeStep) -> None:
        """Takes rewards [B, T] of steps into the statistics, but for the first row.

        Steps of no episode are left out.
        """
        counts = ~waits(steps.step_type, time=1)
        reward = torch.where(counts & ~steps.is_first(), reward, 0.0)
        rewards, counted = (x[:, 1:].numpy(force=True).T for x in (reward, counts))
        if rewards.size:
            returns = linear_scan(
                rewards.astype(np.float64),
                np.where(counted, self._gamma, 1.0),
                np.zeros(rewards.shape[1]),
            )
            self._normalizer.update(torch.from_numpy(returns[counted]))
            share_statistics([self._normalizer])

    def forward(self, reward: Tensor) -> Tensor:
        """[...] rewards."""
        return self._normalizer.normalize_leaves([reward])[0]


class FeatureNetwork(EncodedNetwork):
    """An encoder with a linear output of any size: features [B, F].

    Args:
        observation_spec: nest of TensorSpecs.
        num_features: F.
        **encoder: options of :class:`EncodedNetwork`; the encoder has no memory.

    Raises:
        ValueError: if an observation is not supported; the message names its path.
    """

    def __init__(
        self, observation_spec: NestedTensorSpec, num_features: int, **encoder: Any
    ) -> None:
        check_positive(num_features=num_features)
        super().__init__(observation_spec, **encoder)
        check_no_memory(self._encoder)
        self._linear = linear(self._encoder.output_size, num_features)


class ActionVectors:
    """Actions as vectors: continuous parts in [-1, 1], discrete ones one-hot.

    Beyond its bounds an action counts as the bound, which the environment executes.

    Args:
        action_spec: of one action; any nest with bounds.

    Raises:
        ValueError: if a leaf has no bounds, or there are too many joint values.
    """

    def __init__(self, action_spec: NestedTensorSpec) -> None:
        self._actions = make_actions(action_spec)
        self.num_values = (
            self._actions.num_joint_values if self._actions.has_discrete else 0
        )
        self.size = self._actions.vector_size + self.num_values

    def parts(self, action: Nest) -> tuple[Tensor | None, Tensor | None]:
        """The continuous part [B, elements] and the index [B] of the discrete one."""
        vector = self._actions.to_vector(action)
        vector = None if vector is None else vector.clamp(-1.0, 1.0)
        if not isinstance(self._actions, MixedActions):
            return vector, None
        return vector, self._actions.to_joint_index(action)

    def __call__(self, action: Nest) -> Tensor:
        """[B, ...] → [B, size]."""
        vector, index = self.parts(action)
        parts = [] if vector is None else [vector]
        if index is not None:
            parts.append(functional.one_hot(index, self.num_values).float())
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def check_no_memory(encoder: Network) -> None:
    """Raises ValueError for a network that would have to keep a state."""
    if not nest.is_empty(encoder.state_spec):
        raise ValueError(
            f"encoding_network_ctor: {type(encoder).__name__} has a memory, which a "
            "learned reward does not keep. Use an EncodingNetwork."
        )


def _is_number(spec: TensorSpec) -> bool:
    return spec.is_continuous or (spec.dtype in _NUMBERS and spec.ndim > 0)
