from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from alf_lite.algorithms.parts.trust_region import KlAdaptiveRate, TrustRegion
from alf_lite.optimizers.optimizers import Adam


def moved(*steps: float) -> nn.Linear:
    """A layer at (1, 2); a region that begins there; then the step."""
    policy = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        policy.weight.copy_(torch.tensor([[1.0, 2.0]]))
    return policy


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (0.1, 1.0),  # KL 0.01
        (0.4, 0.9 / math.sqrt(4)),  # KL 0.16: one try
        (8.0, 0.1 * 0.9 / math.sqrt(16)),  # KL 64: a tenth at most at once, 0.64
        (math.nan, 0.0),
    ],
)
def test_a_step_is_shortened_until_the_policy_moves_no_farther_than_allowed(
    step, share
):
    policy = moved()
    region = TrustRegion(policy, max_kl=0.04)
    region.begin()
    with torch.no_grad():
        policy.weight[0, 0] += step
    left = region.limit(
        lambda: (policy.weight - torch.tensor([[1.0, 2.0]])).norm() ** 2
    )
    assert left == pytest.approx(share)
    assert region.num_shortened == (share != 1.0)
    expected = 1.0 if math.isnan(step) else 1.0 + share * step
    torch.testing.assert_close(policy.weight, torch.tensor([[expected, 2.0]]))
    # The next step begins where this one ended.
    with torch.no_grad():
        policy.weight[0, 1] = 7.0
    region.limit(lambda: torch.tensor(math.inf))
    torch.testing.assert_close(policy.weight, torch.tensor([[expected, 2.0]]))


def test_learning_rates_follow_the_divergence_between_bounds():
    rate, adam = KlAdaptiveRate(0.01, max_factor=2.0), Adam(lr=0.1)
    adam.setup([("x", nn.Parameter(torch.zeros(1)))])
    factors = []
    for kl in (0.01, 0.019, 0.021, 0.006, 0.004, 0.004, 0.004, 0.5, 0.5, 0.5, 0.5):
        rate.adapt(torch.tensor(kl))
        rate.scale([adam])
        factors.append(rate.factor)
        assert adam.learning_rate == pytest.approx(0.1 * rate.factor)
    third = 1 / 1.5
    expected = [1, 1, third, third, 1, 1.5, 2, 2 / 1.5, 2 / 1.5**2, 2 / 1.5**3, 0.5]
    assert factors == pytest.approx(expected)
    # It is part of a checkpoint.
    other = KlAdaptiveRate(0.01)
    other.load_state_dict(rate.state_dict())
    assert other.factor == pytest.approx(0.5)
