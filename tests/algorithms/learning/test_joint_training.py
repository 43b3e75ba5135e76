"""The losses of algorithms that are trained together."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_loss import aggregate_loss
from alf_lite.algorithms.learning.joint_training import sum_of_losses
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import LossInfo
from alf_lite.environments.creation import create_environment
from alf_lite.optimizers.optimizers import SGD
from tests.algorithms.agent_toys import Bias
from tests.fast.twins import without_twins


class Part(Algorithm):
    pass


PARTS = {"rl": Algorithm(), "part": Part()}


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 5])
def test_a_part_changes_nothing_of_what_the_rl_algorithm_learns(num_rows):
    torch.manual_seed(0)
    rl, own = torch.randn(3, 4), torch.randn(num_rows, 4)
    valid, weights = torch.rand(4, 4) < 0.7, torch.rand(4)
    own.requires_grad_()
    both = sum_of_losses(PARTS, {"rl": LossInfo(loss=rl), "part": LossInfo(loss=own)})
    assert both.loss.shape == rl.shape
    loss = aggregate_loss(both, valid, weights, counts=True)
    count = valid[:3].sum()
    assert loss.num_valid == count
    expected = sum(
        weights[b] * (rl[t, b] + (own[t, b] if t < num_rows else 0))
        for t in range(3)
        for b in range(4)
        if valid[t, b]
    )
    torch.testing.assert_close(loss.loss, expected / count)
    shown = both.extra["part"]["loss"]  # what it adds
    torch.testing.assert_close(shown, both.loss - rl)


@pytest.mark.parametrize("shape", [(), (4,), (3, 4, 1), (3, 1), (1, 3)])
def test_a_part_whose_loss_has_another_shape_is_named(shape):
    losses = {
        "rl": LossInfo(loss=torch.zeros(3, 4)),
        "part": LossInfo(loss=torch.zeros(shape)),
    }
    message = re.escape(
        "Part.calc_loss (part 'part'): expected a loss [T, B] like that of the RL "
        f"algorithm, [3, 4], one number for each step, got {list(shape)}"
    )
    with pytest.raises(ValueError, match=message):
        sum_of_losses(PARTS, losses)
    losses = {"rl": losses["part"], "part": losses["rl"]}
    if len(shape) != 2:
        with pytest.raises(ValueError, match=r"Algorithm.calc_loss \(part 'rl'\)"):
            sum_of_losses(PARTS, losses)


def test_scalar_losses_and_parts_without_a_loss_are_left_as_they_are():
    scalar = LossInfo(scalar_loss=torch.tensor(2.0))
    both = sum_of_losses(PARTS, {"rl": LossInfo(loss=torch.ones(3, 4)), "part": scalar})
    assert both.loss.sum() == 12
    assert both.scalar_loss == 2
    both = sum_of_losses(PARTS, {"rl": scalar, "part": LossInfo()})
    assert both.loss == ()
    assert both.scalar_loss == 2


class FirstRows(Bias):
    """Of its loss, nothing is left but the first rows."""

    num_rows = 1
    num_added = 0

    def calc_loss(self, info):
        loss = super().calc_loss(info).loss
        added = loss.new_zeros(self.num_added, loss.shape[1])
        return LossInfo(loss=torch.cat([loss[: self.num_rows], added]))


class FirstRowsAndZeros(FirstRows):
    num_added = 7


@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize("algorithm", [ActorCriticAlgorithm, PPOAlgorithm])
def test_rows_that_are_missing_count_as_zeros(algorithm, is_quick):
    runs = []
    for part in (FirstRows, FirstRowsAndZeros):
        agent = Agent(
            env=create_environment("CartPole-v1", 2),
            config=TrainerConfig(num_iterations=9, random_seed=0, unroll_length=8),
            rl_algorithm_ctor=algorithm,
            intrinsic_rewards={"part": part},
            extrinsic_reward_weight=0.5,
            optimizer=SGD(lr=0.01),
        )
        with contextlib.nullcontext() if is_quick else without_twins():
            for _ in range(3):
                agent.train_iter()
        runs.append([p.detach() for p in agent.parameters()])
    for first, second in zip(*runs, strict=True):
        torch.testing.assert_close(first, second)
