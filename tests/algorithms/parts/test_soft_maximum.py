from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.parts.soft_maximum import sampled_soft_maximum, soft_maximum
from alf_lite.distributions.continuous import ActionBounds, SquashedNormal
from alf_lite.tensor_specs import BoundedTensorSpec


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_soft_maximum_is_that_of_a_loop(temperature):
    values = [[1.0, -2.0, 0.5], [3.0, 3.0, 3.0]]
    expected = [
        temperature * math.log(sum(math.exp(v / temperature) for v in row))
        for row in values
    ]
    result = soft_maximum(torch.tensor(values), temperature)
    assert result.tolist() == pytest.approx(expected)


def test_by_hand_the_soft_maximum_of_equal_values_adds_the_log_of_their_number():
    values = torch.full((4,), 2.0)
    assert soft_maximum(values).item() == pytest.approx(2 + math.log(4))
    assert soft_maximum(values, 0.1).item() == pytest.approx(2 + 0.1 * math.log(4))


def test_large_values_stay_finite():
    values = torch.tensor([1e4, -1e4], requires_grad=True)
    soft_maximum(values, 0.01).backward()
    assert values.grad.tolist() == [1.0, 0.0]


def test_what_is_not_allowed_does_not_count_and_gets_no_gradient():
    values = torch.tensor([[1.0, 50.0, 2.0]], requires_grad=True)
    result = soft_maximum(values, allowed=torch.tensor([True, False, True]))
    assert result.item() == pytest.approx(math.log(math.e + math.e**2))
    result.backward()
    assert values.grad[0, 1] == 0
    nothing = soft_maximum(values.detach(), allowed=torch.zeros(3, dtype=torch.bool))
    assert nothing.isfinite().all()


def test_the_sampled_soft_maximum_is_that_of_a_loop():
    torch.manual_seed(0)
    values, log_densities = torch.randn(4, 3, 2, 5), torch.randn(4, 3)
    allowed = torch.rand(3, 5) < 0.7
    result = sampled_soft_maximum(values, log_densities, 0.7, allowed)
    assert result.shape == (3, 2)
    for b in range(3):
        for k in range(2):
            total = sum(
                math.exp(values[s, b, k, a] / 0.7) / math.exp(log_densities[s, b])
                for s in range(4)
                for a in range(5)
                if allowed[b, a]
            )
            assert result[b, k].item() == pytest.approx(
                0.7 * math.log(total / 4), rel=1e-4
            )


def value_of(u: torch.Tensor) -> torch.Tensor:
    """Two bumps on [-1, 1], the higher one far from where the policy acts."""
    return 2 * torch.exp(-20 * (u + 0.6) ** 2) + torch.exp(-20 * (u - 0.5) ** 2)


@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("proposal", ["uniform", "policy", "both"])
def test_weighted_samples_estimate_the_integral_whatever_they_are_drawn_from(
    proposal, temperature
):
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    integral = torch.trapezoid((value_of(grid) / temperature).exp(), grid)
    torch.manual_seed(0)
    uniform = torch.rand(100_000) * 2 - 1
    bounds = ActionBounds(BoundedTensorSpec((), torch.float32, -1, 1))
    shape = (100_000,)
    policy = SquashedNormal(torch.full(shape, 0.4), torch.full(shape, 1.0), bounds)
    drawn, log_prob = policy.rsample_and_log_prob()
    pairs = {
        "uniform": (uniform, torch.full(shape, -math.log(2))),
        "policy": (drawn, log_prob),
    }
    pairs["both"] = tuple(
        torch.cat(two) for two in zip(pairs["uniform"], pairs["policy"], strict=True)
    )
    samples, log_densities = pairs[proposal]
    estimate = sampled_soft_maximum(
        value_of(samples)[:, None, None, None], log_densities[:, None], temperature
    )
    expected = temperature * integral.log().item()
    assert estimate.item() == pytest.approx(expected, abs=0.01)


def test_without_weights_the_proposal_decides():
    samples = torch.full((1000,), 0.5)  # nowhere else
    values = value_of(samples)[:, None, None, None]
    estimate = sampled_soft_maximum(values, torch.zeros(1000, 1))
    assert estimate.item() == pytest.approx(value_of(torch.tensor(0.5)).item())
