from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
)
from alf_lite.distributions.discrete import Categorical
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((2,))
ACTION = BoundedTensorSpec((), torch.int64, 0, 1)
GAMMA, LAMBDA = 0.9, 0.8

# One environment: MID, MID, LAST by termination, FIRST, and the bootstrap row.
STEP_TYPE = torch.tensor([[1], [1], [2], [0], [1]], dtype=torch.int32)
REWARD = torch.tensor([[0.0], [1.0], [2.0], [0.0], [3.0]])
DISCOUNT = torch.tensor([[1.0], [1.0], [0.0], [1.0], [1.0]])
VALUE = torch.tensor([[0.5], [1.0], [9.0], [2.0], [4.0]])
ACTIONS = torch.tensor([[0], [1], [0], [1], [0]])
LOGITS = torch.tensor([[[0.0, 1.0]], [[0.5, 0.0]], [[0, 0]], [[1, -1]], [[0, 0]]])


def a2c(**kwargs) -> ActorCriticAlgorithm:
    arguments = {"gamma": GAMMA, "td_lambda": LAMBDA, **kwargs}
    return ActorCriticAlgorithm(OBSERVATION, ACTION, **arguments)


def info(value: Tensor = VALUE, logits: Tensor = LOGITS) -> ActorCriticInfo:
    return ActorCriticInfo(
        action=ACTIONS,
        action_distribution=Categorical(logits),
        value=value,
        reward=REWARD,
        discount=DISCOUNT,
        step_type=STEP_TYPE,
    )


def naive_advantages(lambda_: float = LAMBDA) -> list[float]:
    advantages = [0.0] * 5
    for t in reversed(range(4)):
        if STEP_TYPE[t] == 2:
            continue
        discount = GAMMA * DISCOUNT[t + 1].item()
        delta = (REWARD[t + 1] + discount * VALUE[t + 1] - VALUE[t]).item()
        advantages[t] = delta + discount * lambda_ * advantages[t + 1]
    return advantages[:4]


def test_the_loss_is_that_of_a_naive_loop():
    loss = a2c(value_loss_weight=0.25, entropy_regularization=0.1).calc_loss(info())
    assert loss.loss.shape == (4, 1)
    for t, advantage in enumerate(naive_advantages()):
        log_probs = [
            logit - math.log(sum(math.exp(x) for x in LOGITS[t, 0].tolist()))
            for logit in LOGITS[t, 0].tolist()
        ]
        entropy = -sum(math.exp(p) * p for p in log_probs)
        policy_loss = -advantage * log_probs[ACTIONS[t, 0]]
        value_loss = advantage**2  # the target is the advantage plus the value
        assert loss.extra.policy_loss[t].item() == pytest.approx(policy_loss, abs=1e-6)
        assert loss.extra.value_loss[t].item() == pytest.approx(value_loss, abs=1e-6)
        assert loss.extra.entropy[t].item() == pytest.approx(entropy, abs=1e-6)
        total = policy_loss + 0.25 * value_loss - 0.1 * entropy
        assert loss.loss[t].item() == pytest.approx(total, abs=1e-6)


def test_the_value_target_and_the_advantage_carry_no_gradient():
    value = VALUE.clone().requires_grad_()
    logits = LOGITS.clone().requires_grad_()
    loss = a2c(value_loss_weight=0.5, entropy_regularization=0.0).calc_loss(
        info(value, logits)
    )
    loss.loss.sum().backward()
    # d/dV 0.5 (target − V)² = −advantage; the bootstrap value gets nothing.
    expected = torch.tensor([*naive_advantages(), 0.0]).neg()[:, None]
    torch.testing.assert_close(value.grad, expected)
    # d/dlogits −A log π(a) = −A (onehot(a) − π)
    onehot = torch.nn.functional.one_hot(ACTIONS[:4, 0], 2)
    advantage = torch.tensor(naive_advantages())[:, None]
    pi = LOGITS[:4, 0].softmax(-1)
    torch.testing.assert_close(logits.grad[:4, 0], -advantage * (onehot - pi))


def test_advantages_are_normalised_on_request():
    loss = a2c(normalize_advantages=True).calc_loss(info())
    log_prob = Categorical(LOGITS).log_prob(ACTIONS)[:4, 0]
    advantage = torch.tensor(naive_advantages())
    valid = torch.tensor([True, True, False, True])
    mean, std = advantage[valid].mean(), advantage[valid].std(correction=0)
    expected = -(advantage - mean) / std * log_prob
    torch.testing.assert_close(
        loss.extra.policy_loss[valid, 0], expected[valid], atol=1e-5, rtol=1e-5
    )


def test_a_reward_of_several_dimensions_is_weighted_in_the_policy_loss():
    weights = [0.5, 2.0]
    algorithm = a2c(reward_spec=TensorSpec((2,)), reward_weights=weights)
    scale = torch.tensor([1.0, -1.0])
    several = info()._replace(
        value=VALUE[..., None] * scale, reward=REWARD[..., None] * scale
    )
    loss = algorithm.calc_loss(several).extra
    single = a2c().calc_loss(info()).extra
    factor = weights[0] - weights[1]
    torch.testing.assert_close(loss.policy_loss, factor * single.policy_loss)
    torch.testing.assert_close(loss.value_loss, 2 * single.value_loss)


def test_coefficients_out_of_range_are_refused():
    with pytest.raises(ValueError, match="gamma must lie in"):
        a2c(gamma=1.5)
    with pytest.raises(ValueError, match="td_lambda must lie in"):
        a2c(td_lambda=-1)
