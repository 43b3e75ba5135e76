"""Diversity is all you need: skills that can be told apart by where they go.

Eysenbach et al. 2018, arXiv:1802.06070. Every episode follows a skill z, drawn from
p(z) and seen by the policy as its goal. A discriminator learns to tell the skill from
the states, and the reward is how well it can (eq. 3):

    r_{t+1} = log q(z | s_{t+1}) − log p(z),   min_q E[−log q(z | s_{t+1})]

with p(z) uniform over N skills. The reward of the environment plays no role
(``Agent.extrinsic_reward_weight = 0``).

Differences from the paper:

1. Any algorithm in place of SAC; whether it rewards entropy is its own business.
2. A skill may last for less than an episode (``RandomGoal.num_steps_per_goal``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts.intrinsic_reward import IntrinsicReward
from alf_lite.algorithms.parts.novelty import FeatureNetwork
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Field, LossInfo, TimeStep
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.layers import Activation
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any


class DiaynInfo(NamedTuple):
    """From ``preprocess_experience`` through ``train_step`` to ``calc_loss``."""

    observation: Nest = ()  # [T, B, ...] s_{t+1}, without the goal
    skill: Field = ()  # [T, B, N] z_t, one-hot
    logits: Field = ()  # [T, B, N] of q(·|s_{t+1}), with gradient


class DiaynLossInfo(NamedTuple):
    """[T, B] each."""

    accuracy: Tensor  # 1 where the likeliest skill is the right one


@configurable
class DiaynReward(IntrinsicReward):
    """How well a discriminator tells the skill from the observation arrived at."""

    def __init__(
        self,
        observation_spec: Mapping[str, NestedTensorSpec],
        action_spec: NestedTensorSpec,
        *,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        fc_layer_params: Sequence[int] = (128, 128),
        activation: Activation = "relu",
        **kwargs: Any,
    ) -> None:
        """Builds the discriminator.

        Args:
            observation_spec: a dict of ``observation``, and ``goal`` with one element
                for each of N skills, as ``Agent`` makes it with :class:`RandomGoal`.
            action_spec: of one action; it plays no role.
            encoding_network_ctor: called as ``ctor(observation_spec,
                fc_layer_params=..., activation=...)``; without memory.
            fc_layer_params: hidden layers.
            activation: of these layers.
            **kwargs: see :class:`IntrinsicReward`.

        Raises:
            ValueError: if there is no skill in the observation, or the observation is
                not supported.
        """
        super().__init__(observation_spec, action_spec, **kwargs)
        is_split = isinstance(observation_spec, Mapping)
        goal: Any = observation_spec.get("goal") if is_split else None
        if getattr(goal, "ndim", 0) != 1 or "observation" not in observation_spec:
            raise ValueError(
                "DiaynReward: expected observations {'observation': ..., 'goal': [N]} "
                f"with a skill as goal, got {observation_spec}. Set "
                "Agent.goal_generator_ctor = @RandomGoal."
            )
        self._num_skills = goal.numel
        self._discriminator = FeatureNetwork(
            observation_spec["observation"],
            self._num_skills,
            encoding_network_ctor=encoding_network_ctor,
            fc_layer_params=fc_layer_params,
            activation=activation,
        )

    @torch.no_grad()
    def calc_reward(self, steps: TimeStep, batch_info: BatchInfo) -> Tensor:
        """Log q(z_{t-1}|s_t) − log p(z_{t-1}), [B, T]."""
        observation = flatten_outer(steps.observation["observation"])
        logits, _ = self._discriminator(observation)
        log_q = logits.log_softmax(-1).unflatten(0, steps.step_type.shape)
        skill = steps.observation["goal"].roll(1, dims=1)  # of row 0 nobody asks
        return (log_q * skill).sum(-1) + math.log(self._num_skills)

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, DiaynInfo]:
        """The skill of each step and where it led, [B, T-1, ...]."""
        observation = root_inputs.observation
        arrived = nest.narrow(observation["observation"], 1, None, dim=1)
        return root_inputs, DiaynInfo(arrived, observation["goal"][:, :-1])

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: DiaynInfo
    ) -> AlgStep:
        logits, _ = self._discriminator(rollout_info.observation)
        return AlgStep(info=DiaynInfo(skill=rollout_info.skill, logits=logits))

    def calc_loss(self, info: DiaynInfo) -> LossInfo:
        """−log q(z_t|s_{t+1}), [T, B]."""
        loss = -(info.logits.log_softmax(-1) * info.skill).sum(-1)
        is_right = info.logits.argmax(-1) == info.skill.argmax(-1)
        return LossInfo(
            loss=loss, extra=diagnostic(lambda: DiaynLossInfo(is_right.float()))
        )
