from __future__ import annotations

import pytest
import torch

from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
)
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.distributions.discrete import Categorical
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((2,))
ACTION = BoundedTensorSpec((), torch.int64, 0, 1)
GAMMA, LAMBDA = 0.9, 0.8

# One environment: MID, MID, LAST by a time limit, FIRST, and the bootstrap row.
STEP_TYPE = torch.tensor([[1], [1], [2], [0], [1]], dtype=torch.int32)
REWARD = torch.tensor([[0.0], [1.0], [2.0], [0.0], [3.0]])
DISCOUNT = torch.ones(5, 1)
VALUE = torch.tensor([[0.5], [1.0], [9.0], [2.0], [4.0]])
ACTIONS = torch.tensor([[0], [1], [0], [1], [0]])
LOGITS = torch.tensor([[[0.0, 1.0]], [[0.5, 0.0]], [[0, 0]], [[1, -1]], [[0, 0]]])
BEHAVIOR = torch.tensor([[[0.0, 2.0]], [[0.5, 1]], [[0, 0]], [[0, 2]], [[0, 0]]])


def impala(**kwargs) -> ImpalaAlgorithm:
    arguments = {"gamma": GAMMA, "td_lambda": LAMBDA, **kwargs}
    return ImpalaAlgorithm(OBSERVATION, ACTION, **arguments)


def log_probs(logits) -> torch.Tensor:
    return logits.log_softmax(-1).gather(-1, ACTIONS[..., None])[..., 0]


def info(**changes) -> ActorCriticInfo:
    return ActorCriticInfo(
        action=ACTIONS,
        action_distribution=Categorical(LOGITS),
        value=VALUE,
        reward=REWARD,
        discount=DISCOUNT,
        step_type=STEP_TYPE,
        rollout_log_prob=log_probs(BEHAVIOR),
    )._replace(**changes)


def test_the_lag_is_summarised_before_weights_are_truncated():
    lag = impala().calc_loss(info()).extra.policy_lag
    ratio = (log_probs(LOGITS) - log_probs(BEHAVIOR)).exp()[:4]
    ratio[2] = 0.0  # LAST
    torch.testing.assert_close(lag.importance_weight, ratio)
    assert lag.max_importance_weight.item() == pytest.approx(ratio.max().item())
    assert lag.max_importance_weight.item() > 1.5
    assert (lag.kl[[0, 1, 3]] > 0).all()


def test_it_says_that_it_may_be_unrolled_asynchronously():
    assert impala().corrects_policy_lag
    assert not ActorCriticAlgorithm(OBSERVATION, ACTION).corrects_policy_lag
