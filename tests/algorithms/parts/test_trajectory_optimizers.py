import pytest
import torch

from alf_lite.algorithms.parts import trajectory_optimizers
from alf_lite.algorithms.parts.trajectory_optimizers import (
    CrossEntropy,
    Mppi,
    RandomShooting,
)

_OPTIMIZERS = [
    lambda: RandomShooting(64),
    lambda: CrossEntropy(64, 8, 3),
    lambda: Mppi(64, 8, 3),
]


def _quadratic(target):
    """Best where the actions are ``target`` [B, H, A]."""
    return lambda actions: -(actions - target.unsqueeze(1)).square().sum((-2, -1))


def test_cross_entropy_finds_the_best_actions_in_six_iterations():
    torch.manual_seed(0)
    target = torch.tensor([[[0.3, -0.6]], [[-0.9, 0.0]]])  # B = 2
    plan = CrossEntropy(400, 40, num_iterations=6).optimize(
        _quadratic(target), torch.zeros_like(target)
    )
    assert (plan.mean - target).abs().max() < 0.05
    assert (plan.elites[:, 0] - target).abs().max() < 0.05


@pytest.mark.parametrize("make", _OPTIMIZERS)
def test_plans_of_one_environment_do_not_depend_on_another(make):
    def plan(second):
        target = torch.tensor([[[0.3]], [[second]]])
        torch.manual_seed(1)
        return make().optimize(_quadratic(target), torch.zeros_like(target))

    one, other = plan(0.9), plan(-0.4)
    for name in one._fields:
        assert torch.equal(getattr(one, name)[0], getattr(other, name)[0])
    assert not torch.equal(one.mean[1], other.mean[1])


@pytest.mark.parametrize("make", _OPTIMIZERS)
def test_plans_stay_within_the_bounds_and_go_past_values_that_are_not_finite(make):
    def value(actions):
        values = actions.sum((-2, -1))
        first = actions[:, :, 0, 0]
        values = torch.where(first > 0.5, torch.nan, values)
        return torch.where(first < -0.9, torch.inf, values)

    torch.manual_seed(2)
    plan = make().optimize(value, torch.zeros(3, 2, 1))
    assert plan.elites[:, 0, 0].max() <= 0.5
    assert plan.elites[:, 0, 0].min() >= -0.9
    assert plan.mean.abs().max() <= 1
    assert torch.allclose(plan.weights.sum(1), torch.ones(3))


def test_mppi_weights_elites_by_their_values():
    weights = Mppi(3, 3)._weights(torch.tensor([[3.0, 2.0, 1.0]]))
    expected = torch.tensor([[0.5064804, 0.3071959, 0.1863237]])
    assert torch.allclose(weights, expected, atol=1e-6)
    actions = torch.tensor([1.0, -1.0, 0.0]).view(1, 3, 1, 1)
    mean, std = trajectory_optimizers.moments(actions, weights)
    assert mean.item() == pytest.approx(0.1992845, abs=1e-6)
    assert std.item() == pytest.approx(0.8797511, abs=1e-6)


def test_given_sequences_are_among_the_samples():
    target = torch.full((1, 4, 3), 0.77)
    plan = Mppi(16, 4, 1).optimize(
        _quadratic(target), torch.zeros(1, 4, 3), target.unsqueeze(1)
    )
    assert torch.equal(plan.elites[:, 0], target)
    with pytest.raises(ValueError, match="leaves no room"):
        Mppi(1, 1).optimize(_quadratic(target), target, target.unsqueeze(1))


def test_a_plan_moves_on_by_one_step():
    plan = torch.tensor([[[1.0], [2.0], [3.0]]])
    assert trajectory_optimizers.shifted(plan).flatten().tolist() == [2, 3, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CrossEntropy(10, 11), "num_elites"),
        (lambda: CrossEntropy(num_iterations=0), "num_iterations"),
        (lambda: CrossEntropy(smoothing=2.0), "smoothing"),
        (lambda: CrossEntropy(smoothing=1.0), r"smoothing must lie in \[0, 1\)"),
        (lambda: Mppi(temperature=0.0), "temperature"),
        (lambda: Mppi(min_std=3.0), "min_std"),
        (lambda: Mppi(8, 1, temperature=2.0), "has no effect: num_elites is 1"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("make", _OPTIMIZERS)
def test_fixed_noise_gives_the_same_plan_to_every_environment(make):
    optimizer, target = make(), torch.full((2, 3, 1), 0.4)
    noise = optimizer.make_noise(3, 1)
    plan = optimizer.optimize(_quadratic(target), torch.zeros(2, 3, 1), noise=noise)
    assert torch.equal(plan.mean[0], plan.mean[1])
    again = optimizer.optimize(_quadratic(target), torch.zeros(2, 3, 1), noise=noise)
    assert torch.equal(plan.mean, again.mean)
