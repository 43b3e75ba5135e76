from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.parts.policy_lag import LagCorrector, correct_policy_lag
from alf_lite.utils import value_ops

LAST = 2


def random_inputs(num_steps=12, batch_size=3, *dims):
    """(rewards, values, step_types, discounts, log π, log μ), with several ends."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(num_steps, batch_size, *shape, generator=generator)

    step_types = torch.ones(num_steps, batch_size, dtype=torch.int32)
    step_types[3, 0] = step_types[7, 1] = step_types[-2, 2] = LAST
    discounts = torch.full((num_steps, batch_size), 0.9)
    discounts[3, 0] = 0.0  # a termination; the other two ends are time limits
    return draw(*dims), draw(*dims), step_types, discounts, draw(), draw()


def test_known_numbers():
    # s0 → s1 → terminal, γ = 0.5, λ = 1; ratios 2 (truncated to 1) and 0.5.
    column = [[0.0], [1.0], [4.0]]
    _, _, weights = result = correct_policy_lag(
        torch.tensor(column),
        torch.tensor([[1.0], [2.0], [9.0]]),
        torch.tensor([[0], [1], [2]], dtype=torch.int32),
        torch.tensor([[0.5], [0.5], [0.0]]),
        torch.tensor([[0.4], [0.2], [0.1]]).log(),
        torch.tensor([[0.2], [0.4], [0.9]]).log(),
    )
    # v_1 = 2 + 0.5 (4 − 2) = 3;  v_0 = 1 + (1 + 0.5·2 − 1) + 0.5·1·(3 − 2) = 2.5
    torch.testing.assert_close(result.value_target, torch.tensor([[2.5], [3.0]]))
    # A_1 = 4 − 2;  A_0 = 1 + 0.5·3 − 1
    torch.testing.assert_close(result.advantage, torch.tensor([[1.5], [2.0]]))
    torch.testing.assert_close(weights.truncated, torch.tensor([[1.0], [0.5]]))
    torch.testing.assert_close(weights.ratio, torch.tensor([[2.0], [0.5]]))
    kl = torch.tensor([[1 - math.log(2)], [-0.5 + math.log(2)]])
    torch.testing.assert_close(weights.kl, kl)
    lag = weights.summarize()
    assert lag.max_importance_weight.item() == pytest.approx(2.0)
    torch.testing.assert_close(lag.importance_weight, weights.ratio)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_without_a_lag_the_advantage_is_the_generalized_one(lam):
    *inputs, log_prob, _ = random_inputs()
    result = correct_policy_lag(*inputs, log_prob, log_prob, td_lambda=lam)
    gae = value_ops.generalized_advantage_estimation(*inputs, lam)
    torch.testing.assert_close(result.advantage, gae)
    torch.testing.assert_close(
        result.value_target, value_ops.lambda_return(*inputs, lam)
    )
    is_valid = (inputs[2][:-1] != LAST).float()
    torch.testing.assert_close(result.weights.truncated, is_valid)
    assert result.weights.kl.abs().max() < 1e-6


def test_with_the_weight_of_the_paper_it_is_the_advantage_of_vtrace():
    inputs = random_inputs()
    ratio = (inputs[-2] - inputs[-1]).exp()
    result = correct_policy_lag(*inputs)
    expected = value_ops.vtrace(*inputs[:4], ratio)
    torch.testing.assert_close(result.value_target, expected.targets)
    torch.testing.assert_close(
        result.weights.truncated * result.advantage, expected.advantages
    )


def test_the_action_at_last_does_not_matter():
    *inputs, log_prob, rollout_log_prob = random_inputs()
    usual = correct_policy_lag(*inputs, log_prob, rollout_log_prob)
    is_last = inputs[2] == LAST
    for odd in (math.nan, math.inf, -math.inf):
        other = torch.where(is_last, odd, log_prob)
        result = correct_policy_lag(*inputs, other, rollout_log_prob)
        torch.testing.assert_close(result, usual)


def test_batch_major_and_several_reward_dimensions_give_the_same_numbers():
    inputs = random_inputs(12, 3, 2)
    result = correct_policy_lag(*inputs, td_lambda=0.8)
    swapped = [x.transpose(0, 1) for x in inputs]
    other = correct_policy_lag(*swapped, td_lambda=0.8, time_major=False)
    torch.testing.assert_close(other.advantage.transpose(0, 1), result.advantage)
    torch.testing.assert_close(other.value_target.transpose(0, 1), result.value_target)
    torch.testing.assert_close(other.weights.kl.transpose(0, 1), result.weights.kl)
    rewards, values, *others = inputs
    for d in range(2):
        single = correct_policy_lag(
            rewards[..., d], values[..., d], *others, td_lambda=0.8
        )
        torch.testing.assert_close(result.advantage[..., d], single.advantage)
        torch.testing.assert_close(result.weights, single.weights)


def test_the_estimate_of_the_divergence_is_unbiased():
    mu, pi = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.3, 0.4, 0.3])
    # One column per action; the weighted sum is the expectation under μ.
    steps = torch.zeros(2, 3)
    result = correct_policy_lag(
        steps, steps, steps.int() + 1, steps, *(p.log().expand(2, 3) for p in (pi, mu))
    )
    expected = (mu * (mu / pi).log()).sum()
    torch.testing.assert_close((mu * result.weights.kl[0]).sum(), expected)
    assert (mu * result.weights.ratio[0]).sum().item() == pytest.approx(1.0)


def test_clips_out_of_range_are_refused():
    LagCorrector(1.0, math.inf, 1.0)
    for clips in [(1.0, 0.0), (0.5, 1.0), (-1.0, -1.0), (1.0, math.nan)]:
        with pytest.raises(ValueError, match="c_clip must be positive"):
            LagCorrector(1.0, *clips)
    with pytest.raises(ValueError, match="td_lambda"):
        correct_policy_lag(*random_inputs(), td_lambda=2.0)
