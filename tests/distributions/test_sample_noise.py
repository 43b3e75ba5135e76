from __future__ import annotations

import itertools

import pytest
import torch

from alf_lite import nest
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.continuous import (
    ActionBounds,
    DiagonalNormal,
    ScaledBeta,
    SquashedNormal,
)
from alf_lite.distributions.discrete import Categorical
from alf_lite.distributions.sample_noise import (
    CorrelatedNoise,
    NoiseState,
    RepeatedNoise,
    SampleNoise,
    StateDependentNoise,
)
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec

BATCH = 4000


def start(noise: SampleNoise, batch_size: int = BATCH) -> NoiseState:
    return nest.zeros(noise.state_spec, (batch_size,))


def test_correlated_noise_is_standard_normal_at_every_step_and_follows_the_last():
    torch.manual_seed(0)
    noise = CorrelatedNoise(1, correlation=0.8)
    state, drawn = start(noise), []
    for _ in range(4):
        epsilon, state = noise.draw((), state)
        drawn.append(epsilon.squeeze(1))
    steps = torch.stack(drawn)  # [4, B]
    covariance = steps @ steps.T / BATCH
    k = torch.arange(4)
    expected = 0.8 ** (k - k.unsqueeze(1)).abs()
    torch.testing.assert_close(covariance, expected, atol=0.08, rtol=0.0)


def test_noise_begins_anew_where_its_state_is_zero():
    torch.manual_seed(0)
    noise = CorrelatedNoise(2, correlation=0.999)
    first, state = noise.draw((), start(noise))
    state = nest.map_structure(lambda t: t.clone(), state)
    state.value[0], state.age[0] = 0.0, 0.0
    second, _ = noise.draw((), state)
    assert (second[1:] - first[1:]).abs().max() < 0.3
    assert (second[0] - first[0]).abs().max() > 0.3


def test_repeated_noise_is_normal_and_stays_for_as_many_steps_as_its_shares_say():
    torch.manual_seed(0)
    noise = RepeatedNoise(2, exponent=2.0, max_repeats=3)
    state, drawn = start(noise), []
    for _ in range(60):
        epsilon, state = noise.draw((), state)
        drawn.append(epsilon)
    steps = torch.stack(drawn)  # [60, B, 2]
    assert steps[-1].mean(0).abs().max() < 0.06
    assert (steps[-1].std(0) - 1).abs().max() < 0.06
    counts = [0, 0, 0]
    for row in steps.unbind(1):
        runs = [len(list(same)) for _, same in itertools.groupby(row[:, 0].tolist())]
        for length in runs[:-1]:  # the last one may go on
            counts[length - 1] += 1
    shares = torch.tensor(counts) / sum(counts)
    expected = torch.tensor([1.0, 1 / 4, 1 / 9]) / (1 + 1 / 4 + 1 / 9)
    torch.testing.assert_close(shares, expected, atol=0.01, rtol=0.0)


def test_repeated_noise_begins_anew_where_its_state_is_zero():
    torch.manual_seed(0)
    noise = RepeatedNoise(1, exponent=-20.0, max_repeats=9)  # nearly always 9 steps
    first, state = noise.draw((), start(noise, 2))
    state = nest.map_structure(torch.clone, state)
    state.value[0], state.age[0] = 0.0, 0.0
    second, _ = noise.draw((), state)
    assert (first == second).flatten().tolist() == [False, True]


def test_state_dependent_noise_is_a_function_of_the_state_with_variance_1():
    torch.manual_seed(0)
    noise = StateDependentNoise(2, 3)
    features = torch.tensor([[1.0, -2.0, 0.5]]).expand(BATCH, 3)
    epsilon, state = noise.draw(features, start(noise))
    again, state = noise.draw(3 * features, state)  # the same direction
    other, _ = noise.draw(torch.tensor([[2.0, 1.0, 0.0]]).expand(BATCH, 3), state)
    torch.testing.assert_close(again, epsilon)
    variance = (epsilon.T @ epsilon) / BATCH
    torch.testing.assert_close(variance, torch.eye(2), atol=0.08, rtol=0.0)
    # Orthogonal features have independent noise.
    covariance = (epsilon * other).mean(0)
    torch.testing.assert_close(covariance, torch.zeros(2), atol=0.08, rtol=0.0)


def test_state_dependent_noise_is_drawn_anew_after_its_period():
    torch.manual_seed(0)
    noise, features = StateDependentNoise(1, 1, resample_period=3), torch.ones(5, 1)
    state, drawn = start(noise, 5), []
    for _ in range(7):
        epsilon, state = noise.draw(features, state)
        drawn.append(epsilon)
    changes = [not torch.equal(a, b) for a, b in itertools.pairwise(drawn)]
    assert changes == [False, False, True, False, False, True]


def test_samples_are_made_of_the_noise_for_the_continuous_parts():
    bounds = ActionBounds(BoundedTensorSpec((2,), torch.float32, -1.0, 3.0))
    loc, scale = torch.tensor([[0.1, -0.3]]), torch.tensor([[0.5, 2.0]])
    policy = {
        "a": SquashedNormal(loc, scale, bounds),
        "b": Categorical(torch.tensor([[0.0, 100.0]])),
        "c": DiagonalNormal(loc[:, :1], scale[:, :1]),
    }
    assert distributions.noise_size(policy) == 3
    noise = torch.tensor([[1.0, -1.0, 2.0]])
    action = distributions.sample_with_noise(policy, noise)
    expected = 1 + 2 * torch.tanh(torch.tensor([[0.6, -2.3]]))
    torch.testing.assert_close(action["a"], expected)
    assert action["b"].tolist() == [1]
    torch.testing.assert_close(action["c"], torch.tensor([[1.1]]))


def test_what_is_not_normal_has_no_noise():
    bounds = ActionBounds(BoundedTensorSpec((1,), torch.float32, -1.0, 1.0))
    ones = torch.ones(1, 1)
    with pytest.raises(ValueError, match="not made of normal noise"):
        distributions.noise_size(ScaledBeta(ones, ones, bounds))
    with pytest.raises(ValueError, match="no part of the action is continuous"):
        distributions.noise_size(Categorical(torch.zeros(1, 2)))


@pytest.mark.parametrize("correlation", [-0.1, 1.0])
def test_a_correlation_lies_between_0_and_1(correlation):
    with pytest.raises(ValueError, match="correlation must lie in"):
        CorrelatedNoise(1, correlation=correlation)


def test_something_is_repeated():
    with pytest.raises(ValueError, match="max_repeats must be a positive integer"):
        RepeatedNoise(1, max_repeats=0)
    with pytest.raises(ConfigError, match="exponent has no effect: max_repeats is 1"):
        RepeatedNoise(1, max_repeats=1, exponent=3.0)


def test_a_period_is_positive():
    with pytest.raises(ValueError, match="resample_period must be a positive integer"):
        StateDependentNoise(1, 1, resample_period=0)
