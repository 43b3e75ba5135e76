"""Random network distillation: a reward for observations that are seldom seen.

Burda et al. 2018, "Exploration by random network distillation", arXiv:1810.12894. A
predictor f̂ learns what a random network f, which is never trained, says of the
observations that the agent meets, and the reward of arriving at one is how far it still
is from it:

    L(s) = mean_i (f̂_i(s) − f_i(s))²,   r_t = L(s_t) / σ_R

with observations of mean 0 and deviation 1, clipped, and σ_R the running deviation of
the discounted sums of L.

Differences from the paper:

1. By default one value for both rewards, which are added
   (``Agent.intrinsic_reward_weights``): the intrinsic return ends with the episode as
   the other one does. The paper's two values, of which the intrinsic one goes on over
   the ends of episodes, are ``Agent.intrinsic_gamma``.
2. The statistics of observations are those of what is trained on, the current batch
   included; nobody acts at random for them first.
3. The discounted sums begin anew with every batch, and their deviation is that of late;
   see :class:`ReturnScale`.
4. The predictor trains on all steps of every fourth batch, not on a quarter of every
   one, which costs less.
5. Networks as small as the observations ask for: the two are encoders of the library,
   the predictor one hidden layer deeper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts.critics import UpdateCounter
from alf_lite.algorithms.parts.intrinsic_reward import IntrinsicReward
from alf_lite.algorithms.parts.novelty import (
    FeatureNetwork,
    NormalizedObservations,
    ReturnScale,
)
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Field, LossInfo, TimeStep
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.layers import Activation
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any


class RndInfo(NamedTuple):
    """From ``preprocess_experience`` through ``train_step`` to ``calc_loss``."""

    observation: Nest = ()  # [T, B, ...] s_{t+1}, as it came
    target: Field = ()  # [T, B, F] f(s_{t+1})
    prediction: Field = ()  # [T, B, F] f̂(s_{t+1}), with gradient, if it is trained


@configurable
class RndReward(IntrinsicReward):
    """The error of a predictor of random features, of the observation arrived at."""

    uses_info_after_update = False

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        fc_layer_params: Sequence[int] = (128,),
        predictor_fc_layer_params: Sequence[int] = (128, 128),
        activation: Activation = "relu",
        num_features: int = 64,
        observation_clip: float = 5.0,
        reward_gamma: float = 0.99,
        predictor_update_period: int = 4,
        **kwargs: Any,
    ) -> None:
        """Builds the two networks.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; it plays no role.
            encoding_network_ctor: of both networks, called as ``ctor(observation_spec,
                fc_layer_params=..., activation=...)``; without memory.
            fc_layer_params: hidden layers of the random network.
            predictor_fc_layer_params: hidden layers of the predictor.
            activation: of both.
            num_features: F.
            observation_clip: bounds of the normalised observations.
            reward_gamma: γ of the discounted sums that the reward is scaled by.
            predictor_update_period: gradient updates between two of the predictor. The
                paper trains it in all of them, on a quarter of the steps. With 1, what
                was seen is old sooner, and training takes longer.
            **kwargs: see :class:`IntrinsicReward`.

        Raises:
            ValueError: if an observation is not supported; the message names its path.
        """
        super().__init__(observation_spec, action_spec, **kwargs)
        self._updates = UpdateCounter(
            predictor_update_period, name="predictor_update_period"
        )
        self._observations = NormalizedObservations(observation_spec, observation_clip)
        self._scale = ReturnScale(reward_gamma)

        def network(layers: Sequence[int]) -> FeatureNetwork:
            return FeatureNetwork(
                self._observations.spec,
                num_features,
                encoding_network_ctor=encoding_network_ctor,
                fc_layer_params=layers,
                activation=activation,
            )

        self._target = network(fc_layer_params).requires_grad_(False)
        self._predictor = network(predictor_fc_layer_params)

        # Of the steps whose reward was computed last: (observation, f of it [B, T, F])
        self._valued: tuple[Nest, Tensor] | None = None

    @torch.no_grad()
    def calc_reward(self, steps: TimeStep, batch_info: BatchInfo) -> Tensor:
        """L(s_t) / σ_R, [B, T]; in training the statistics take the steps in."""
        if self.training:
            self._observations.update(steps.observation)
        observation = flatten_outer(self._observations(steps.observation))
        target, _ = self._target(observation)
        error = self._predictor(observation)[0].sub_(target).square_()
        shape = steps.step_type.shape
        self._valued = steps.observation, target.unflatten(0, shape)
        reward = error.mean(-1).view(shape)
        if self.training:
            self._scale.update(reward, steps)
        return self._scale(reward)

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, RndInfo]:
        """What the predictor shall say of the steps arrived at, [B, T-1, ...].

        Of those, because a LAST step has no transition that could be trained: the end
        of an episode would stay new for ever.
        """
        arrived = nest.narrow(root_inputs.observation, 1, None, dim=1)
        return root_inputs, RndInfo(arrived, self._targets(root_inputs)[:, 1:])

    def _targets(self, steps: TimeStep) -> Tensor:
        """f(s_t), [B, T, F]; mostly known from the reward."""
        valued, self._valued = self._valued, None
        if valued is not None and valued[0] is steps.observation:
            return valued[1]
        target, _ = self._target(flatten_outer(self._observations(steps.observation)))
        return target.unflatten(0, steps.step_type.shape)

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: RndInfo
    ) -> AlgStep:
        if not self._updates.is_due:
            return AlgStep(info=RndInfo())
        observation = self._observations(rollout_info.observation)
        prediction, _ = self._predictor(observation)
        info = RndInfo(target=rollout_info.target, prediction=prediction)
        return AlgStep(info=info)

    def calc_loss(self, info: RndInfo) -> LossInfo:
        """L(s_{t+1}), [T, B], if the predictor is updated."""
        if isinstance(info.prediction, tuple):
            return LossInfo()
        return LossInfo(loss=(info.prediction - info.target).square().mean(-1))

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Counts the updates."""
        self._updates.advance()
