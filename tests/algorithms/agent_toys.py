"""Small parts of agents for tests."""

from __future__ import annotations

import functools

import torch
from torch import nn

from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.parts.intrinsic_reward import IntrinsicReward
from alf_lite.algorithms.parts.observation_parts import (
    RandomGoal,
    RepresentationLearner,
)
from alf_lite.data_structures import AlgStep, LossInfo
from alf_lite.optimizers.optimizers import SGD
from alf_lite.tensor_specs import TensorSpec


class Bias(IntrinsicReward):
    """Rewards every arrival with 2; learns the mean step type, of no use."""

    def __init__(self, *specs, lr=0.1, **kwargs) -> None:
        super().__init__(*specs, optimizer=SGD(lr=lr) if lr else None, **kwargs)
        self.bias = nn.Parameter(torch.zeros(()))
        self.num_calls = {"after_update": 0, "after_train_iter": 0}

    def calc_reward(self, steps, batch_info):
        return torch.full_like(steps.discount, 2.0)

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        return root_inputs, root_inputs.step_type[:, :-1].float()

    def train_step(self, inputs, state, rollout_info):
        return AlgStep(info=self.bias - rollout_info)

    def calc_loss(self, info):
        return LossInfo(loss=info.square())

    def after_update(self, root_inputs, info):
        self.num_calls["after_update"] += 1

    def after_train_iter(self, root_inputs, rollout_info):
        self.num_calls["after_train_iter"] += 1
        self.seen = root_inputs.observation


class LinearRepresentation(RepresentationLearner):
    """Three numbers, from which the observation can be computed as well as possible."""

    def __init__(self, observation_spec, action_spec) -> None:
        super().__init__(observation_spec, action_spec, optimizer=SGD(lr=0.01))
        size = observation_spec.shape[0]
        self.encoder, self.decoder = nn.Linear(size, 3), nn.Linear(3, size)

    @property
    def representation_spec(self):
        return TensorSpec((3,))

    @property
    def training_only_modules(self):
        return [self.decoder]

    def encode(self, observation):
        return self.encoder(observation)

    def training_info(self, steps):
        return steps.observation

    def train_step(self, inputs, state, rollout_info):
        error = self.decoder(self.encoder(rollout_info)) - rollout_info
        return AlgStep(info=error.square().mean(-1))

    def calc_loss(self, info):
        return LossInfo(loss=info)


def full_agent(rl_algorithm_ctor, **kwargs):
    """A constructor of an agent with every part that acts, and two rewards."""
    return functools.partial(
        Agent,
        rl_algorithm_ctor=rl_algorithm_ctor,
        representation_learner_ctor=LinearRepresentation,
        goal_generator_ctor=functools.partial(
            RandomGoal, num_categories=4, num_steps_per_goal=5
        ),
        intrinsic_rewards={"one": Bias, "other": Bias},
        **kwargs,
    )
