from __future__ import annotations

import torch

from alf_lite.algorithms.parts.critic_ensembles import smallest_critic, td_loss


def test_of_single_values_the_smallest_counts():
    values = torch.tensor([[1.0, 2.0], [4.0, 3.0]])
    assert smallest_critic(values, values).tolist() == [1.0, 3.0]


def test_of_several_values_those_of_the_smallest_sum_belong_together():
    values = torch.tensor([[[1.0, 5.0], [2.0, 3.0]]])  # [1, 2, D=2]
    weighted = values @ torch.tensor([1.0, 1.0])
    assert smallest_critic(values, weighted).tolist() == [[2.0, 3.0]]
    weighted = values @ torch.tensor([1.0, 0.1])
    assert smallest_critic(values, weighted).tolist() == [[1.0, 5.0]]


def test_every_joint_value_has_its_own_smallest_critic():
    torch.manual_seed(0)
    values = torch.randn(3, 2, 4, 2)  # [B, n, A, D]
    weights = torch.tensor([0.3, -1.0])
    result = smallest_critic(values, values @ weights)
    assert result.shape == (3, 4, 2)
    for b in range(3):
        for a in range(4):
            critics = values[b, :, a]
            expected = min(critics, key=lambda v: (v @ weights).item())
            torch.testing.assert_close(result[b, a], expected)


def test_the_td_loss_adds_the_squares_of_all_critics():
    q = torch.tensor([[[1.0, 2.0]], [[0.0, 5.0]]], requires_grad=True)  # [T, 1, n]
    reward, next_value = torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0], [9.0]])
    discount = torch.tensor([[0.5], [0.0]])
    loss, td_error = td_loss(q, reward, discount, next_value, lambda x: x)
    # Targets 1 + 0.5 * 4 = 3 and 2.
    assert loss.tolist() == [[2.0**2 + 1.0], [2.0**2 + 3.0**2]]
    assert td_error().tolist() == [[1.5], [2.5]]
    assert not td_error().requires_grad


def test_the_td_loss_of_several_rewards_weighs_the_error_only():
    q = torch.tensor([[[[1.0, 2.0], [3.0, 2.0]]]])  # [1, 1, n=2, D=2]
    reward, next_value = torch.tensor([[[1.0, -1.0]]]), torch.tensor([[[2.0, 4.0]]])
    weights = torch.tensor([1.0, 10.0])
    loss, td_error = td_loss(
        q, reward, torch.tensor([[0.5]]), next_value, lambda x: x @ weights
    )
    # Targets (2, 1): errors (1, -1) and (-1, -1), weighted -9 and -11.
    assert loss.tolist() == [[4.0]]
    assert td_error().tolist() == [[10.0]]
