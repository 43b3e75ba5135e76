from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
)
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.data_structures import BatchInfo, TimeStep
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


def naive_vtrace(rho_clip: float, c_clip: float) -> tuple[list, list]:
    """v_t by the recursion of Remark 1, and min(ρ̄, π/μ) A_t."""
    ratio = (log_probs(LOGITS) - log_probs(BEHAVIOR)).exp()[:, 0].tolist()
    v, r = VALUE[:, 0].tolist(), REWARD[:, 0].tolist()
    target, advantage = list(v), [0.0] * 5
    for t in reversed(range(4)):
        if STEP_TYPE[t] == 2:
            continue
        delta = r[t + 1] + GAMMA * v[t + 1] - v[t]
        trace = LAMBDA * min(c_clip, ratio[t]) * (target[t + 1] - v[t + 1])
        target[t] = v[t] + min(rho_clip, ratio[t]) * delta + GAMMA * trace
        bootstrap = LAMBDA * target[t + 1] + (1 - LAMBDA) * v[t + 1]
        advantage[t] = min(rho_clip, ratio[t]) * (r[t + 1] + GAMMA * bootstrap - v[t])
    return target[:4], advantage[:4]


@pytest.mark.parametrize("clips", [(1.0, 1.0), (1.5, 0.6), (math.inf, math.inf)])
def test_the_loss_is_that_of_a_naive_loop(clips):
    rho_clip, c_clip = clips
    algorithm = impala(
        rho_clip=rho_clip,
        c_clip=c_clip,
        value_loss_weight=0.25,
        entropy_regularization=0.1,
    )
    loss = algorithm.calc_loss(info())
    target, advantage = naive_vtrace(*clips)
    log_prob = log_probs(LOGITS)[:4]
    policy_loss = -torch.tensor(advantage)[:, None] * log_prob
    value_loss = (torch.tensor(target)[:, None] - VALUE[:4]).square()
    p = LOGITS[:4].softmax(-1)
    entropy = -(p * p.log()).sum(-1)
    torch.testing.assert_close(loss.extra.policy_loss, policy_loss)
    torch.testing.assert_close(loss.extra.value_loss, value_loss)
    torch.testing.assert_close(loss.extra.entropy, entropy)
    total = policy_loss + 0.25 * value_loss - 0.1 * entropy
    torch.testing.assert_close(loss.loss, total)


def test_the_gradient_is_that_of_the_weighted_score_and_of_the_value_error():
    value, logits = VALUE.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    batch = info(value=value, action_distribution=Categorical(logits))
    loss = impala(entropy_regularization=0.0).calc_loss(batch)
    loss.loss.sum().backward()
    target, advantage = naive_vtrace(1.0, 1.0)
    # d/dV 0.5 (target − V)²; the bootstrap value gets nothing.
    error = torch.tensor(target)[:, None] - VALUE[:4]
    torch.testing.assert_close(value.grad, -torch.cat([error, torch.zeros(1, 1)]))
    # d/dlogits −w A log π(a) = −w A (onehot(a) − π)
    onehot = torch.nn.functional.one_hot(ACTIONS[:4, 0], 2)
    score = onehot - LOGITS[:4, 0].softmax(-1)
    torch.testing.assert_close(
        logits.grad[:4, 0], -torch.tensor(advantage)[:, None] * score
    )


def test_a_normalised_advantage_is_weighted_afterwards():
    loss = impala(normalize_advantages=True).calc_loss(info())
    plain = impala().calc_loss(info())
    weight = (log_probs(LOGITS) - log_probs(BEHAVIOR)).exp().clamp(max=1)[:4]
    valid = torch.tensor([True, True, False, True])
    log_prob = log_probs(LOGITS)[:4]
    advantage = (-plain.extra.policy_loss / weight / log_prob)[valid]
    normal = (advantage - advantage.mean()) / advantage.std(correction=0)
    expected = -(weight * log_prob)[valid] * normal
    torch.testing.assert_close(loss.extra.policy_loss[valid], expected)


def test_a_reward_of_several_dimensions_is_weighted_in_the_policy_loss():
    weights, scale = [0.5, 2.0], torch.tensor([1.0, -1.0])
    algorithm = impala(reward_spec=TensorSpec((2,)), reward_weights=weights)
    several = info(value=VALUE[..., None] * scale, reward=REWARD[..., None] * scale)
    loss, single = algorithm.calc_loss(several).extra, impala().calc_loss(info()).extra
    factor = weights[0] - weights[1]
    torch.testing.assert_close(loss.policy_loss, factor * single.policy_loss)
    torch.testing.assert_close(loss.value_loss, 2 * single.value_loss)


def test_the_lag_is_summarised_before_weights_are_truncated():
    lag = impala().calc_loss(info()).extra.policy_lag
    ratio = (log_probs(LOGITS) - log_probs(BEHAVIOR)).exp()[:4]
    ratio[2] = 0.0  # LAST
    torch.testing.assert_close(lag.importance_weight, ratio)
    assert lag.max_importance_weight.item() == pytest.approx(ratio.max().item())
    assert lag.max_importance_weight.item() > 1.5
    assert (lag.kl[[0, 1, 3]] > 0).all()


def test_preprocessing_leaves_the_probabilities_of_what_was_done():
    rollout_info = ActorCriticInfo(
        action=ACTIONS.T, action_distribution=Categorical(BEHAVIOR.transpose(0, 1))
    )
    _, result = impala().preprocess_experience(TimeStep(), rollout_info, BatchInfo())
    torch.testing.assert_close(result.rollout_log_prob.T, log_probs(BEHAVIOR))
    assert result.action_distribution == ()


def test_it_says_that_it_may_be_unrolled_asynchronously():
    assert impala().corrects_policy_lag
    assert not ActorCriticAlgorithm(OBSERVATION, ACTION).corrects_policy_lag


@pytest.mark.parametrize(
    ("argument", "value"),
    [("gamma", 1.5), ("td_lambda", -0.1), ("rho_clip", 0.5), ("c_clip", 0.0)],
)
def test_coefficients_out_of_range_are_refused(argument, value):
    with pytest.raises(ValueError, match=argument):
        impala(**{argument: value})
