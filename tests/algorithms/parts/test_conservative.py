"""The logarithm of a sum of exponentials over actions, and the weight of CQL."""

from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.parts.conservative import (
    ConservativeWeight,
    sampled_logsumexp,
    scaled_logsumexp,
)
from alf_lite.distributions.continuous import ActionBounds, SquashedNormal
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec


def test_without_a_threshold_it_is_what_was_given_and_has_nothing_to_learn():
    weight = ConservativeWeight(2.5)
    assert weight.alpha.item() == 2.5
    assert not list(weight.parameters())
    assert weight.state_dict() == {}  # another value after a restart holds
    assert weight(torch.tensor([[3.0, -1.0]])).tolist() == [[0.0, 0.0]]
    assert ConservativeWeight(0.0).alpha.item() == 0.0


@pytest.mark.parametrize(("gap", "rises"), [(1.5, True), (0.5, False)])
def test_it_rises_while_the_gap_is_above_the_threshold(gap, rises):
    weight = ConservativeWeight(1.0, threshold=1.0)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        weight(torch.tensor([gap])).sum().backward()
        optimizer.step()
    assert (weight.alpha.item() > 1.0) == rises


def test_a_threshold_out_of_reach_does_not_make_it_infinite():
    weight = ConservativeWeight(1.0, threshold=0.0)
    with torch.no_grad():
        weight._log_alpha.fill_(1000.0)
    assert weight.alpha.item() == 1e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0,), "cql_alpha must be finite and not negative, got -1.0"),
        ((math.inf,), "got inf"),
        ((0.0, 1.0), "cql_alpha must be finite and positive; got 1.0 and 0.0"),
        ((1.0, math.nan), "which must be finite"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ConservativeWeight(*arguments)


def test_what_is_kept_has_no_optimizer():
    message = "cql_alpha_optimizer has no effect: without a cql_threshold"
    with pytest.raises(ConfigError, match=message):
        ConservativeWeight(1.0, optimizer=Adam())
    assert ConservativeWeight(1.0, 0.5, Adam()).alpha.item() == 1.0


def test_large_values_stay_finite():
    values = torch.tensor([1e4, -1e4], requires_grad=True)
    scaled_logsumexp(values, 0.01).backward()
    assert values.grad.tolist() == [1.0, 0.0]


def test_what_is_not_allowed_does_not_count_and_gets_no_gradient():
    values = torch.tensor([[1.0, 50.0, 2.0]], requires_grad=True)
    result = scaled_logsumexp(values, allowed=torch.tensor([True, False, True]))
    assert result.item() == pytest.approx(math.log(math.e + math.e**2))
    result.backward()
    assert values.grad[0, 1] == 0
    nothing = scaled_logsumexp(
        values.detach(), allowed=torch.zeros(3, dtype=torch.bool)
    )
    assert nothing.isfinite().all()


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
    estimate = sampled_logsumexp(
        value_of(samples)[:, None, None, None], log_densities[:, None], temperature
    )
    expected = temperature * integral.log().item()
    assert estimate.item() == pytest.approx(expected, abs=0.01)


def test_without_weights_the_proposal_decides():
    samples = torch.full((1000,), 0.5)  # nowhere else
    values = value_of(samples)[:, None, None, None]
    estimate = sampled_logsumexp(values, torch.zeros(1000, 1))
    assert estimate.item() == pytest.approx(value_of(torch.tensor(0.5)).item())
