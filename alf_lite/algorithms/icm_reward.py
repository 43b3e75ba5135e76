"""Intrinsic curiosity: a reward for consequences of actions that were not expected.

Pathak et al. 2017, "Curiosity-driven exploration by self-supervised prediction",
arXiv:1705.05363. Features φ(s) are learned by telling from them which action led from
one step to the next (inverse model), so that they hold what the agent can influence. A
forward model predicts the features that an action leads to, and the reward of arriving
is how wrong it was (eqs. 2 to 7):

    â_t = g(φ(s_t), φ(s_{t+1})),   φ̂(s_{t+1}) = f(φ(s_t), a_t)
    loss = (1 − β) L_I(â_t, a_t) + β L_F,   L_F = ½ ‖φ̂(s_{t+1}) − φ(s_{t+1})‖²
    r_{t+1} = η/2 ‖φ̂(s_{t+1}) − φ(s_{t+1})‖²

Differences from the paper:

1. The features are learned by the inverse model alone, as in Burda et al. 2018,
   "Large-scale study of curiosity-driven learning", arXiv:1808.04355: the forward loss
   could be made small by features that say nothing.
2. Means over the features in place of sums.
3. Any nest of actions: cross-entropy of the discrete part, squared error of the
   continuous part, in units in which its bounds are ±1.
4. Observations and rewards are brought to deviation 1, as there (``normalize_reward``);
   η is ``Agent.intrinsic_reward_weights``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from alf_lite import nest
from alf_lite.algorithms.parts.intrinsic_reward import IntrinsicReward
from alf_lite.algorithms.parts.novelty import (
    ActionVectors,
    FeatureNetwork,
    NormalizedObservations,
    ReturnScale,
)
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, BatchInfo, LossInfo, TimeStep
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.layers import Activation
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_unit_interval, check_unused
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any


class IcmInfo(NamedTuple):
    """From ``preprocess_experience`` to ``train_step``."""

    action: Nest  # [T, B, ...] a_t
    next_observation: Nest  # [T, B, ...] s_{t+1}


class IcmLossInfo(NamedTuple):
    """The parts of the loss, [T, B] each."""

    inverse: Tensor  # L_I
    forward: Tensor  # L_F


@configurable
class IcmReward(IntrinsicReward):
    """The error of a forward model of learned features."""

    _forward_loss_weight = Coefficient()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        fc_layer_params: Sequence[int] = (64,),
        model_fc_layer_params: Sequence[int] = (64,),
        activation: Activation = "relu",
        num_features: int = 32,
        forward_loss_weight: Scheduled = 0.2,
        normalize_reward: bool = True,
        observation_clip: float = 5.0,
        reward_gamma: float = 0.99,
        **kwargs: Any,
    ) -> None:
        """Builds the features and the two models.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest with bounds.
            encoding_network_ctor: of the features, called as ``ctor(observation_spec,
                fc_layer_params=..., activation=...)``; without memory.
            fc_layer_params: hidden layers of the features.
            model_fc_layer_params: hidden layers of both models.
            activation: of all of them.
            num_features: elements of φ.
            forward_loss_weight: β.
            normalize_reward: divide by the deviation of the discounted sums of rewards.
            observation_clip: bounds of the normalised observations.
            reward_gamma: γ of these sums.
            **kwargs: see :class:`IntrinsicReward`.

        Raises:
            ValueError: if an observation or action is not supported; the message names
                its path.
        """
        check_unit_interval(forward_loss_weight=forward_loss_weight)
        if not normalize_reward:
            reason = "normalize_reward is False"
            check_unused(type(self), reason, reward_gamma=reward_gamma)
        super().__init__(observation_spec, action_spec, **kwargs)
        self._actions = ActionVectors(action_spec)
        set_coefficients(self, _forward_loss_weight=forward_loss_weight)
        self._observations = NormalizedObservations(observation_spec, observation_clip)
        self._scale = ReturnScale(reward_gamma) if normalize_reward else None
        self._features = FeatureNetwork(
            self._observations.spec,
            num_features,
            encoding_network_ctor=encoding_network_ctor,
            fc_layer_params=fc_layer_params,
            activation=activation,
        )
        action_size = self._actions.size

        def model(input_size: int, output_size: int) -> FeatureNetwork:
            return FeatureNetwork(
                TensorSpec((input_size,)),
                output_size,
                fc_layer_params=model_fc_layer_params,
                activation=activation,
            )

        self._inverse_model = model(2 * num_features, action_size)
        self._forward_model = model(num_features + action_size, num_features)

    @torch.no_grad()
    def calc_reward(self, steps: TimeStep, batch_info: BatchInfo) -> Tensor:
        """L_F of arriving at t, scaled, [B, T]; statistics take the steps in."""
        if self.training:
            self._observations.update(steps.observation)
        shape = steps.step_type.shape
        features = self._phi(flatten_outer(steps.observation)).unflatten(0, shape)
        action = self._actions(
            flatten_outer(nest.narrow(steps.prev_action, 1, None, dim=1))
        )
        before, after = features[:, :-1].flatten(0, 1), features[:, 1:].flatten(0, 1)
        error = self._forward_error(before, action, after)
        reward = functional.pad(error.view(shape[0], shape[1] - 1), (1, 0))
        if self._scale is None:
            return reward
        if self.training:
            self._scale.update(reward, steps)
        return self._scale(reward)

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, IcmInfo]:
        """What was done at each step and where it led, [B, T-1, ...]."""
        later = (root_inputs.prev_action, root_inputs.observation)
        return root_inputs, IcmInfo(*nest.narrow(later, 1, None, dim=1))

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: IcmInfo
    ) -> AlgStep:
        """Both losses, [T·B]."""
        features = self._phi(inputs.observation)
        next_features = self._phi(rollout_info.next_observation)
        predicted, _ = self._inverse_model(torch.cat([features, next_features], -1))
        forward = self._forward_error(
            features.detach(),
            self._actions(rollout_info.action),
            next_features.detach(),
        )
        inverse = self._inverse_error(predicted, rollout_info.action)
        return AlgStep(info=IcmLossInfo(inverse, forward))

    def calc_loss(self, info: IcmLossInfo) -> LossInfo:
        """(1 − β) L_I + β L_F, [T, B]."""
        weight = self._forward_loss_weight
        loss = (1 - weight) * info.inverse + weight * info.forward
        return LossInfo(loss=loss, extra=info)

    def _phi(self, observation: Nest) -> Tensor:
        return self._features(self._observations(observation))[0]

    def _forward_error(
        self, features: Tensor, action: Tensor, next_features: Tensor
    ) -> Tensor:
        """L_F of transitions: three times [B, ...] → [B]."""
        predicted, _ = self._forward_model(torch.cat([features, action], -1))
        return 0.5 * (predicted - next_features).square().mean(-1)

    def _inverse_error(self, predicted: Tensor, action: Nest) -> Tensor:
        """L_I: what the inverse model says [B, elements] beside the action → [B]."""
        vector, index = self._actions.parts(action)
        error = predicted.new_zeros(len(predicted))
        if vector is not None:
            size = vector.shape[-1]
            error = (predicted[:, :size] - vector).square().mean(-1)
        if index is not None:
            logits = predicted[:, -self._actions.num_values :]
            error = error + functional.cross_entropy(logits, index, reduction="none")
        return error
