import math

import pytest
import torch
from torch import distributions as td

from alf_lite.distributions.continuous import (
    ActionBounds,
    DiagonalNormal,
    ScaledBeta,
    SquashedNormal,
)
from alf_lite.tensor_specs import BoundedTensorSpec


def bounds(minimum, maximum, shape=(1,), dtype=torch.float32):
    return ActionBounds(BoundedTensorSpec(shape, dtype, minimum, maximum))


def integral(distribution, low, high, num_points=200_001):
    """∫ exp(log_prob) over a one-dimensional box, by the midpoint rule."""
    width = (high - low) / num_points
    points = low + width * (torch.arange(num_points, dtype=torch.float64) + 0.5)
    density = distribution.log_prob(points.unsqueeze(-1)).exp()
    return (density.sum() * width).item()


# DiagonalNormal


def test_diagonal_normal_equals_torchs():
    torch.manual_seed(0)
    loc, scale = torch.randn(6, 2, 3), torch.rand(6, 2, 3) + 0.1
    ours = DiagonalNormal(loc, scale, 2)
    reference = td.Independent(td.Normal(loc, scale), 2)
    other = DiagonalNormal(loc * 0.5 + 1, scale * 2, 2)
    action = torch.randn(6, 2, 3)
    torch.testing.assert_close(ours.log_prob(action), reference.log_prob(action))
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    torch.testing.assert_close(ours.variance, reference.variance)
    assert torch.equal(ours.mode, loc)
    assert torch.equal(ours.mean, loc)
    torch.testing.assert_close(
        ours.kl_divergence(other),
        td.kl_divergence(
            reference, td.Independent(td.Normal(other.loc, other.scale), 2)
        ),
    )


def test_diagonal_normal_draws_its_moments():
    torch.manual_seed(0)
    loc, scale = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    draws = DiagonalNormal(loc, scale).sample((100_000,))
    torch.testing.assert_close(draws.mean(0), loc, atol=0.03, rtol=0)
    torch.testing.assert_close(draws.std(0), scale, atol=0.03, rtol=0)


def test_diagonal_normal_of_a_scalar_action_keeps_the_batch_shape():
    distribution = DiagonalNormal(torch.zeros(4), torch.ones(4), num_event_dims=0)
    assert distribution.batch_shape == (4,)
    assert distribution.event_shape == ()
    log_prob = distribution.log_prob(torch.zeros(4))
    torch.testing.assert_close(log_prob, torch.full((4,), -0.5 * math.log(2 * math.pi)))


# SquashedNormal


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 5.0), (-3.0, -2.5)])
@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (0.7, 0.3), (-1.0, 2.0)])
def test_squashed_density_integrates_to_one(low, high, loc, scale):
    distribution = SquashedNormal(
        torch.tensor([loc], dtype=torch.float64),
        torch.tensor([scale], dtype=torch.float64),
        bounds(low, high, dtype=torch.float64),
    )
    assert integral(distribution, low, high) == pytest.approx(1.0, abs=1e-3)


def test_squashed_density_equals_the_change_of_variables():
    torch.manual_seed(0)
    loc, scale = torch.randn(6, 2).double(), torch.rand(6, 2).double() + 0.2
    box = bounds([0.0, -1.0], [5.0, 3.0], (2,), torch.float64)
    ours = SquashedNormal(loc, scale, box)
    stretch = td.AffineTransform(
        torch.tensor([2.5, 1.0]).double(), torch.tensor([2.5, 2.0]).double()
    )
    reference = td.TransformedDistribution(
        td.Independent(td.Normal(loc, scale), 1), [td.TanhTransform(), stretch]
    )
    action = ours.sample()
    torch.testing.assert_close(ours.log_prob(action), reference.log_prob(action))
    # y = tanh(u): log p(a) = log N(u) − log(1 − y²) − log half, per element.
    u = torch.tensor([[0.3, -1.2]]).double().expand(6, 2)
    y = u.tanh()
    half = torch.tensor([2.5, 2.0]).double()
    naive = td.Normal(loc, scale).log_prob(u) - (1 - y**2).log() - half.log()
    action = torch.tensor([2.5, 1.0]) + half * y
    torch.testing.assert_close(ours.log_prob(action), naive.sum(-1))


def test_per_dimension_bounds_integrate_to_one_in_two_dimensions():
    box = bounds([0.0, -1.0], [5.0, 3.0], (2,), torch.float64)
    n = 400
    unit = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    grid = torch.cartesian_prod(unit * 5, unit * 4 - 1)
    loc = torch.tensor([0.4, -0.2], dtype=torch.float64)
    for distribution in (
        SquashedNormal(loc, loc.abs() + 0.4, box),
        ScaledBeta(loc.abs() + 2, loc.abs() + 3, box),
    ):
        total = distribution.log_prob(grid).exp().sum() * (5 / n) * (4 / n)
        assert total.item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("u", [20.0, -20.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_saturated_stored_actions_have_finite_log_prob_and_gradient(u, scale):
    loc = torch.tensor([[u]], requires_grad=True)
    log_scale = torch.tensor([[math.log(scale)]], requires_grad=True)
    distribution = SquashedNormal(loc, log_scale.exp(), bounds(-2.0, 2.0))
    action = distribution.sample()
    assert action.abs().item() == 2.0
    log_prob = distribution.log_prob(action)
    log_prob.sum().backward()
    assert log_prob.isfinite().all()
    assert loc.grad.isfinite().all()
    assert log_scale.grad.isfinite().all()


@pytest.mark.parametrize("u", [20.0, -20.0])
def test_saturated_reparametrised_samples_have_exact_log_prob(u):
    loc = torch.tensor([[u]], requires_grad=True)
    scale = torch.tensor([[1e-6]])
    action, log_prob = SquashedNormal(loc, scale, bounds(-1, 1)).rsample_and_log_prob()
    # log(1 − tanh²u) = 2 log 2 − 2|u| far out; the normal part is at its peak or below.
    jacobian = 2 * math.log(2) - 2 * 20.0
    peak = -math.log(1e-6) - 0.5 * math.log(2 * math.pi)
    assert peak - 12 - jacobian < log_prob.item() <= peak - jacobian + 1e-4
    (action.sum() + log_prob.sum()).backward()
    assert loc.grad.isfinite().all()


def test_a_sample_with_its_log_prob_is_differentiated_through_both():
    torch.manual_seed(0)
    box = bounds(-2.0, 6.0, (3,), torch.float64)
    gradients = []
    for with_log_prob in (True, False):
        torch.manual_seed(1)
        loc = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
        log_scale = torch.linspace(-1, 0.5, 12, dtype=torch.float64).reshape(4, 3)
        loc.requires_grad_()
        log_scale.requires_grad_()
        distribution = SquashedNormal(loc, log_scale.exp(), box)
        if with_log_prob:
            action, log_prob = distribution.rsample_and_log_prob()
        else:
            action = distribution.rsample()
            log_prob = distribution.log_prob(action)
        (action.square().sum() + log_prob.square().sum()).backward()
        gradients.append((action, log_prob, loc.grad, log_scale.grad))
    for exact, inverted in zip(*gradients, strict=True):
        torch.testing.assert_close(exact, inverted)


@pytest.mark.parametrize("log_scale", [-20.0, 2.0])
def test_log_prob_at_the_edge_of_the_box_is_finite(log_scale):
    scale = torch.full((2, 1), log_scale).exp().requires_grad_()
    distribution = SquashedNormal(torch.zeros(2, 1), scale, bounds(-1, 1))
    log_prob = distribution.log_prob(torch.tensor([[1.0], [-1.0]]))
    log_prob.sum().backward()
    assert log_prob.isfinite().all()
    assert scale.grad.isfinite().all()


def test_squashed_entropy_is_unbiased_and_so_is_its_gradient():
    value = torch.tensor([0.5, 0.8], dtype=torch.float64, requires_grad=True)
    box = bounds(0.0, 4.0, dtype=torch.float64)

    def quadrature():
        points = (torch.arange(20001, dtype=torch.float64) + 0.5) / 20001 * 4
        d = SquashedNormal(value[:1], value[1:], box)
        log_p = d.log_prob(points.unsqueeze(-1))
        return -(log_p.exp() * log_p).sum() * (4 / 20001)

    exact = quadrature()
    (exact_gradient,) = torch.autograd.grad(exact, value)
    torch.manual_seed(0)
    n = 200_000
    many = SquashedNormal(value[:1].expand(n, 1), value[1:].expand(n, 1), box)
    estimate = many.entropy().mean()
    (gradient,) = torch.autograd.grad(estimate, value)
    assert estimate.item() == pytest.approx(exact.item(), abs=0.01)
    torch.testing.assert_close(gradient, exact_gradient, atol=0.02, rtol=0)


def test_squashed_kl_equals_the_sampled_one():
    box = bounds(0.0, 4.0)
    p = SquashedNormal(torch.tensor([0.3]), torch.tensor([0.5]), box)
    q = SquashedNormal(torch.tensor([-0.2]), torch.tensor([0.8]), box)
    torch.manual_seed(0)
    draws = p.sample((200_000,))
    sampled = (p.log_prob(draws) - q.log_prob(draws)).mean().item()
    assert p.kl_divergence(q).item() == pytest.approx(sampled, abs=0.01)


def test_squashed_mode_is_the_image_of_the_location():
    distribution = SquashedNormal(
        torch.tensor([[0.0, 50.0]]), torch.ones(1, 2), bounds([0, 1], [5, 3], (2,))
    )
    assert distribution.mode.tolist() == [[2.5, 3.0]]


# ScaledBeta


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 7.0)])
def test_beta_density_integrates_to_one(low, high):
    distribution = ScaledBeta(
        torch.tensor([2.5], dtype=torch.float64),
        torch.tensor([1.5], dtype=torch.float64),
        bounds(low, high, dtype=torch.float64),
    )
    assert integral(distribution, low, high) == pytest.approx(1.0, abs=1e-3)


def test_beta_equals_torchs():
    torch.manual_seed(0)
    a, b = torch.rand(6, 2) + 1, torch.rand(6, 2) + 2
    ours = ScaledBeta(a, b, bounds(-1, 3, (2,)))
    reference = td.TransformedDistribution(
        td.Independent(td.Beta(a, b), 1), [td.AffineTransform(-1.0, 4.0)]
    )
    action = ours.sample()
    assert ((action > -1) & (action < 3)).all()
    torch.testing.assert_close(ours.log_prob(action), reference.log_prob(action))
    base = reference.base_dist
    torch.testing.assert_close(ours.entropy(), base.entropy() + 2 * math.log(4))
    other = ScaledBeta(b, a, ours.bounds)
    torch.testing.assert_close(
        ours.kl_divergence(other),
        td.kl_divergence(base, td.Independent(td.Beta(b, a), 1)),
    )


def test_beta_draws_its_moments_with_the_right_gradient():
    a = torch.tensor([0.5, 2.0, 5.0], requires_grad=True)
    b = torch.tensor([1.5, 2.0, 0.7], requires_grad=True)
    torch.manual_seed(0)
    draws = ScaledBeta(a, b, bounds(0, 1, (3,))).rsample((200_000,))
    reference = td.Beta(a.detach(), b.detach())
    torch.testing.assert_close(draws.mean(0), reference.mean, atol=3e-3, rtol=0)
    torch.testing.assert_close(draws.var(0), reference.variance, atol=3e-3, rtol=0)
    draws.mean(0).sum().backward()
    # E[x] = a / (a + b)
    torch.testing.assert_close(
        a.grad, (b / (a + b) ** 2).detach(), atol=3e-3, rtol=0.02
    )
    torch.testing.assert_close(
        b.grad, (-a / (a + b) ** 2).detach(), atol=3e-3, rtol=0.02
    )


def test_beta_mode_for_every_shape_of_the_density():
    a = torch.tensor([3.0, 0.5, 2.0, 1.0, 0.5])
    b = torch.tensor([2.0, 2.0, 0.5, 1.0, 0.5])
    distribution = ScaledBeta(a, b, bounds(0, 10, (5,)))
    # a single peak at 2/3; at the lower edge; at the upper one; flat; two peaks
    torch.testing.assert_close(
        distribution.mode, torch.tensor([20 / 3, 0.0, 10.0, 5.0, 5.0])
    )


def test_beta_is_finite_on_the_edges_and_differentiable():
    a = torch.tensor([[1.0, 0.5, 40.0]] * 2, requires_grad=True)
    distribution = ScaledBeta(a, a.detach().flip(-1), bounds(0, 1, (3,)))
    log_prob = distribution.log_prob(torch.tensor([[0.0] * 3, [1.0] * 3]))
    (log_prob.sum() + distribution.rsample().sum()).backward()
    assert log_prob.isfinite().all()
    assert a.grad.isfinite().all()


# ActionBounds


def test_maps_stay_in_the_box_and_are_inverse_to_each_other():
    box = bounds([0.1, -7.3, 1e-3], [0.7, 0.2, 1e3], (3,))
    low, high = torch.tensor(box.spec.minimum), torch.tensor(box.spec.maximum)
    y = torch.linspace(-1, 1, 2001).unsqueeze(-1).expand(-1, 3)
    action = box.from_symmetric(y)
    assert torch.equal(action[0], low)
    assert torch.equal(action[-1], high)
    assert ((action >= low) & (action <= high)).all()
    torch.testing.assert_close(box.to_symmetric(action), y, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        box.to_unit(box.from_unit((y + 1) / 2)), (y + 1) / 2, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("minimum", "maximum"), [(-math.inf, 1.0), (0.0, math.inf), (1.0, 1.0)]
)
def test_open_or_empty_boxes_are_refused(minimum, maximum):
    with pytest.raises(ValueError, match=r"finite bounds.*BoundedTensorSpec"):
        bounds(minimum, maximum)
