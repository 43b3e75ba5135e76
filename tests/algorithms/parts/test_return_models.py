from __future__ import annotations

import pytest
import torch

from alf_lite.algorithms.parts import distributional_losses
from alf_lite.algorithms.parts.return_models import (
    ExpectedReturn,
    ReturnCategories,
    ReturnQuantiles,
)

REWARD = torch.tensor([1.0, -2.0])
DISCOUNT = torch.tensor([0.5, 0.0])


def test_the_expected_return_has_a_huber_loss():
    model = ExpectedReturn()
    outputs, next_outputs = torch.tensor([[2.5], [1.0]]), torch.tensor([[4.0], [9.0]])
    assert model.mean(outputs).tolist() == [2.5, 1.0]
    # Targets 1 + 0.5 · 4 = 3 and −2; errors 0.5 and −3.
    loss = model.loss(outputs, next_outputs, REWARD, DISCOUNT)
    assert loss.tolist() == [0.125, 2.5]
    squared = ExpectedReturn(huber_delta=None)
    assert squared.loss(outputs, next_outputs, REWARD, DISCOUNT).tolist() == [0.25, 9.0]


def test_quantiles_are_moved_by_the_reward_and_shrunk_by_the_discount():
    model = ReturnQuantiles(num_quantiles=2, kappa=2.0)
    outputs = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    next_outputs = torch.tensor([[2.0, 4.0], [7.0, 7.0]])
    assert model.mean(outputs).tolist() == [0.5, 3.0]
    targets = torch.tensor([[2.0, 3.0], [-2.0, -2.0]])
    expected = distributional_losses.quantile_huber(outputs, targets, 2.0)
    torch.testing.assert_close(
        model.loss(outputs, next_outputs, REWARD, DISCOUNT), expected
    )


def test_categories_are_projected_onto_the_support():
    model = ReturnCategories(v_min=-2.0, v_max=2.0, num_atoms=3)
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
    [ExpectedReturn(), ReturnQuantiles(7), ReturnCategories(num_atoms=5)],
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
        ExpectedReturn(huber_delta=0.0)
    with pytest.raises(ValueError, match="num_quantiles must be at least 1"):
        ReturnQuantiles(0)
    with pytest.raises(ValueError, match="kappa must be positive"):
        ReturnQuantiles(kappa=-1.0)
    with pytest.raises(ValueError, match="v_min must be below v_max"):
        ReturnCategories(v_min=1.0, v_max=1.0)
    with pytest.raises(ValueError, match="num_atoms must be at least 2"):
        ReturnCategories(num_atoms=1)
