from __future__ import annotations

import torch

from alf_lite.algorithms.critic_ensembles import smallest_critic


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
