from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite.algorithms.parts.return_heads import (
    CategoricalHead,
    ExpectedReturnHead,
    QuantileHead,
    RescaledReturnHead,
    TwoHotHead,
    cross_entropy,
    project_onto_support,
    quantile_huber,
    rescaled,
    unscaled,
)
from alf_lite.errors import ConfigError

REWARD = torch.tensor([1.0, -2.0])
DISCOUNT = torch.tensor([0.5, 0.0])


def test_the_expected_return_has_a_huber_loss():
    model = ExpectedReturnHead()
    outputs, next_outputs = torch.tensor([[2.5], [1.0]]), torch.tensor([[4.0], [9.0]])
    assert model.mean(outputs).tolist() == [2.5, 1.0]
    # Targets 1 + 0.5 · 4 = 3 and −2; errors 0.5 and −3.
    loss = model.loss(outputs, next_outputs, REWARD, DISCOUNT)
    assert loss.tolist() == [0.125, 2.5]
    squared = ExpectedReturnHead(huber_delta=None)
    assert squared.loss(outputs, next_outputs, REWARD, DISCOUNT).tolist() == [0.25, 9.0]


def test_quantiles_are_moved_by_the_reward_and_shrunk_by_the_discount():
    model = QuantileHead(num_quantiles=2, kappa=2.0)
    outputs = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    next_outputs = torch.tensor([[2.0, 4.0], [7.0, 7.0]])
    assert model.mean(outputs).tolist() == [0.5, 3.0]
    targets = torch.tensor([[2.0, 3.0], [-2.0, -2.0]])
    expected = quantile_huber(outputs, targets, 2.0)
    torch.testing.assert_close(
        model.loss(outputs, next_outputs, REWARD, DISCOUNT), expected
    )


def test_categories_are_projected_onto_the_support():
    model = CategoricalHead(v_min=-2.0, v_max=2.0, num_atoms=3)
    outputs = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    next_outputs = torch.tensor([0.2, 0.3, 0.5]).log().expand(2, 3)
    mean = model.mean(next_outputs)
    torch.testing.assert_close(mean, torch.tensor([0.6, 0.6]))
    # 1 + 0.5 · (−2, 0, 2) = (0, 1, 2); where the episode ended, −2 for sure.
    target = torch.tensor([[0.0, 0.2 + 0.15, 0.15 + 0.5], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(
        model.loss(outputs, next_outputs, REWARD, DISCOUNT),
        -(target * outputs.log_softmax(-1)).sum(-1),
    )


@pytest.mark.parametrize(
    "model",
    [
        ExpectedReturnHead(),
        QuantileHead(7),
        CategoricalHead(num_atoms=5),
        TwoHotHead(bins=7),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_loss_has_the_leading_shape_and_is_differentiable(model):
    shape = (4, 3, model.num_outputs)
    outputs = torch.randn(shape, requires_grad=True)
    reward, discount = torch.randn(4, 3), torch.rand(4, 3)
    loss = model.loss(outputs, torch.randn(shape), reward, discount)
    assert loss.shape == model.mean(outputs).shape == (4, 3)
    loss.sum().backward()
    assert outputs.grad.abs().sum() > 0


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="huber_delta must be positive or None"):
        ExpectedReturnHead(huber_delta=0.0)
    for cls in (ExpectedReturnHead, RescaledReturnHead):
        with pytest.raises(ConfigError, match="huber_delta has no effect: loss_fn is"):
            cls(huber_delta=0.5, loss_fn=torch.nn.L1Loss(reduction="none"))
    with pytest.raises(ValueError, match="num_quantiles must be a positive"):
        QuantileHead(0)
    with pytest.raises(ValueError, match="kappa must be positive"):
        QuantileHead(kappa=-1.0)
    with pytest.raises(ValueError, match="v_min must be below v_max"):
        CategoricalHead(v_min=1.0, v_max=1.0)
    with pytest.raises(ValueError, match="num_atoms must be at least 2"):
        CategoricalHead(num_atoms=1)


def naive_quantile_huber(quantiles, targets, kappa):
    total = 0.0
    for i, theta in enumerate(quantiles):
        tau = (i + 0.5) / len(quantiles)
        for y in targets:
            u = y - theta
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total += abs(tau - (u < 0)) * huber / kappa / len(targets)
    return total


@pytest.mark.parametrize("kappa", [0.5, 1.0, 3.0])
def test_quantile_huber_is_the_double_sum_of_the_paper(kappa):
    torch.manual_seed(0)
    quantiles, targets = 3 * torch.randn(2, 3, 5), 3 * torch.randn(2, 3, 4)
    loss = quantile_huber(quantiles, targets, kappa)
    assert loss.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            expected = naive_quantile_huber(
                quantiles[i, j].tolist(), targets[i, j].tolist(), kappa
            )
            assert loss[i, j].item() == pytest.approx(expected, rel=1e-5)


def test_quantile_huber_by_hand():
    # θ = 0 at τ̂ = ½, y = 3: |½ − 0| · (3 − ½)
    assert quantile_huber(torch.zeros(1), torch.tensor([3.0])).item() == 1.25


@pytest.mark.ci
def test_quantile_regression_finds_the_quantiles():
    targets = torch.arange(100.0).unsqueeze(0) / 100
    quantiles = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.SGD([quantiles], lr=0.05)
    for _ in range(500):
        optimizer.zero_grad()
        quantile_huber(quantiles, targets, kappa=0.01).sum().backward()
        optimizer.step()
    expected = torch.tensor([[0.125, 0.375, 0.625, 0.875]])
    torch.testing.assert_close(quantiles.detach(), expected, atol=0.03, rtol=0.0)


def test_quantile_huber_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="must agree in all but the last dimension"):
        quantile_huber(torch.zeros(2, 3), torch.zeros(1, 3))


def naive_projection(positions, probs, support):
    spacing = support[1] - support[0]
    projected = [0.0] * len(support)
    for x, p in zip(positions, probs, strict=True):
        x = min(max(x, support[0]), support[-1])
        for i, z in enumerate(support):
            projected[i] += p * min(max(1 - abs(x - z) / spacing, 0.0), 1.0)
    return projected


def test_projection_is_the_sum_of_the_paper():
    torch.manual_seed(0)
    support = torch.linspace(-2.0, 3.0, 11)
    positions = 3 * torch.randn(4, 2, 7)
    probs = torch.rand(4, 2, 7).softmax(-1)
    projected = project_onto_support(positions, probs, support)
    for i in range(4):
        for j in range(2):
            expected = naive_projection(
                positions[i, j].tolist(), probs[i, j].tolist(), support.tolist()
            )
            assert projected[i, j].tolist() == pytest.approx(expected, abs=1e-5)


def test_projection_by_hand():
    support = torch.tensor([0.0, 1.0, 2.0])
    positions = torch.tensor([[0.25, 1.0, 9.0, -9.0]])
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    projected = project_onto_support(positions, probs, support)
    torch.testing.assert_close(projected, torch.tensor([[0.4, 0.4, 0.2]]))


def test_positions_may_be_the_same_for_several_distributions():
    torch.manual_seed(0)
    support = torch.linspace(-2.0, 3.0, 11)
    positions, probs = torch.randn(4, 1, 7), torch.rand(4, 2, 7).softmax(-1)
    torch.testing.assert_close(
        project_onto_support(positions, probs, support),
        project_onto_support(positions.expand(4, 2, 7), probs, support),
    )


def test_projection_keeps_the_mean_inside_of_the_support():
    torch.manual_seed(1)
    support = torch.linspace(-10.0, 10.0, 51)
    positions = 18 * torch.rand(5, 51) - 9
    probs = torch.rand(5, 51).softmax(-1)
    projected = project_onto_support(positions, probs, support)
    torch.testing.assert_close(projected.sum(-1), torch.ones(5))
    torch.testing.assert_close(
        (projected * support).sum(-1), (probs * positions).sum(-1), atol=1e-5, rtol=0.0
    )


def test_projection_of_the_support_itself_changes_nothing():
    # 0.1 is no binary number: rounding must not push anything beyond the last atom.
    support = torch.linspace(-0.3, 0.7, 11)
    probs = torch.rand(3, 11).softmax(-1)
    torch.testing.assert_close(
        project_onto_support(support.expand(3, 11), probs, support), probs
    )


def test_cross_entropy_by_hand_and_its_gradient_is_that_of_the_divergence():
    logits = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)
    target = torch.tensor([[0.5, 0.5]])
    loss = cross_entropy(logits, target)
    assert loss.item() == pytest.approx(-0.5 * math.log(0.25) - 0.5 * math.log(0.75))
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.25 - 0.5, 0.75 - 0.5]]))


def test_rescaling_and_its_inverse_are_those_of_the_paper():
    x = torch.tensor([0.0, 1e-6, 0.5, 3.0, 99.0, 1e4, 1e7], dtype=torch.float64)
    x = torch.cat([x, -x])
    for epsilon in (1e-3, 1e-2, 1.0):
        y = rescaled(x, epsilon)
        expected = x.sign() * ((x.abs() + 1).sqrt() - 1) + epsilon * x
        torch.testing.assert_close(y, expected)
        root = (1 + 4 * epsilon * (y.abs() + 1 + epsilon)).sqrt()
        inverse = y.sign() * (((root - 1) / (2 * epsilon)).square() - 1)
        torch.testing.assert_close(unscaled(y, epsilon), inverse, atol=1e-8, rtol=1e-7)
        torch.testing.assert_close(unscaled(y, epsilon), x)
        # In single precision, where the paper's form has 1e-4 left of a small one.
        back = unscaled(rescaled(x.float(), epsilon), epsilon)
        torch.testing.assert_close(back, x.float(), rtol=2e-6, atol=0.0)


def test_by_hand_a_rescaled_head_bootstraps_from_what_the_outputs_stand_for():
    model = RescaledReturnHead(epsilon=1.0)
    # h(3) = 1 + 3, h(8) = 2 + 8
    outputs, next_outputs = torch.tensor([[4.0]]), torch.tensor([[10.0]])
    assert model.mean(outputs).tolist() == pytest.approx([3.0])
    loss = model.loss(outputs, next_outputs, torch.tensor([-1.0]), torch.tensor([0.5]))
    assert loss.tolist() == [pytest.approx(0.0, abs=1e-10)]  # -1 + 0.5 · 8 = 3
    nothing = torch.tensor([0.0])
    loss = model.loss(outputs, next_outputs, torch.tensor([8.0]), nothing)
    assert loss.tolist() == pytest.approx([36.0])
    error = model.td_error(torch.tensor([3.0]), torch.tensor([8.0]))
    assert error.tolist() == pytest.approx([6.0])


def test_another_loss_is_any_function_of_values_and_targets():
    outputs, next_outputs = torch.tensor([[2.5], [1.0]]), torch.tensor([[4.0], [9.0]])
    absolute = functools.partial(torch.nn.functional.l1_loss, reduction="none")
    model = ExpectedReturnHead(loss_fn=absolute)
    loss = model.loss(outputs, next_outputs, REWARD, DISCOUNT)
    assert loss.tolist() == [0.5, 3.0]
    with pytest.raises(ValueError, match=r"loss_fn: expected .* got shape \[\]"):
        ExpectedReturnHead(loss_fn=torch.nn.functional.l1_loss)


# Computed by an independent implementation: a number, and the atoms of its two hot ones
TWO_HOT = {
    "h": [
        (0.0, {20: 1.0}),
        (1.0, {20: 0.584787, 21: 0.415213}),
        (-1.0, {19: 0.415213, 20: 0.584787}),
        (10.0, {22: 0.673374, 23: 0.326626}),
        (-100.0, {10: 0.149876, 11: 0.850124}),
        (299.0, {36: 0.380493, 37: 0.619507}),
    ],
    "symlog": [
        (0.0, {50: 1.0}),
        (0.5, {52: 0.972675, 53: 0.027325}),
        (-3.0, {43: 0.931473, 44: 0.068527}),
        (100.0, {73: 0.9244, 74: 0.0756}),
        (22025.0, {99: 0.000107, 100: 0.999893}),
        (-50000.0, {0: 1.0}),  # beyond the lowest atom
    ],
}
HEADS = {
    "h": TwoHotHead(),
    "symlog": TwoHotHead("symlog", low=-10.0, high=10.0, bins=101),
}


@pytest.mark.parametrize("transform", ["h", "symlog"])
def test_two_atoms_stand_for_a_number(transform):
    head = HEADS[transform]
    x = torch.tensor([number for number, _ in TWO_HOT[transform]])
    expected = torch.zeros(len(x), head.num_outputs)
    for row, (_, atoms) in enumerate(TWO_HOT[transform]):
        expected[row, list(atoms)] = torch.tensor(list(atoms.values()))
    two_hot = head.two_hot(x)
    torch.testing.assert_close(two_hot, expected, rtol=0, atol=2e-5)
    decoded = head.mean(two_hot.clamp(min=1e-30).log())
    inside = x > -50000.0
    torch.testing.assert_close(decoded[inside], x[inside], rtol=1e-4, atol=1e-5)


def test_the_mean_of_the_atoms_is_taken_before_the_inverse():
    logits = torch.full((41,), -1e9)
    logits[[20, 24]] = 0.0  # half of 0, half of 4: h⁻¹(2), not ½ h⁻¹(4)
    w = 2 / (1.002 + math.sqrt(1.002**2 + 0.008)) * 2
    assert HEADS["h"].mean(logits).item() == pytest.approx(w * (w + 2), rel=1e-5)


def test_it_is_told_which_targets_are_beyond_the_atoms():
    for head, beyond in (
        (TwoHotHead("h", -2.0, 2.0, bins=5), unscaled(torch.tensor(2.0), 1e-3).item()),
        (TwoHotHead("symlog", -2.0, 2.0, bins=5), math.exp(2.0) - 1),
    ):
        x = beyond * torch.tensor([[-1.01, -0.99, 0.0], [0.99, 1.01, 9.0]])
        assert head.is_clipped(x).tolist() == [[1, 0, 0], [0, 1, 1]]


def test_two_hot_targets_are_those_of_the_next_value():
    head, outputs = TwoHotHead(), torch.randn(2, 41)
    next_outputs = head.two_hot(torch.tensor([4.0, 9.0])).clamp(min=1e-30).log()
    loss = head.loss(outputs, next_outputs, REWARD, DISCOUNT)
    torch.testing.assert_close(loss, head.fit(outputs, torch.tensor([3.0, -2.0])))
    assert head.fit(outputs, torch.zeros(2))[0].item() == pytest.approx(
        -outputs[0].log_softmax(-1)[20].item()
    )


def test_bad_atoms_are_refused():
    with pytest.raises(ValueError, match="transform must be one of"):
        TwoHotHead("log")
    with pytest.raises(ValueError, match="low must be below high and bins at least 2"):
        TwoHotHead(low=1.0, high=1.0)
    with pytest.raises(ValueError, match="bins at least 2, got"):
        TwoHotHead(bins=1)
