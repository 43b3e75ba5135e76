from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.parts.temperature import (
    Temperature,
    entropies_of_mostly_one_value,
    entropy_of_mostly_one_value,
)


def test_alpha_falls_while_the_entropy_is_above_its_target_and_rises_below():
    temperature = Temperature(0.5, target_entropy=-1.0)
    assert temperature.alpha.item() == pytest.approx(0.5)
    entropy = torch.tensor([1.0, -4.0], requires_grad=True)
    loss = temperature(entropy)
    torch.testing.assert_close(loss, math.log(0.5) * torch.tensor([2.0, -3.0]))
    loss[0].backward(retain_graph=True)
    assert temperature._log_alpha.grad.item() == 2.0
    loss[1].backward()
    assert temperature._log_alpha.grad.item() == -1.0
    assert entropy.grad is None


def test_every_state_may_have_a_target_of_its_own():
    temperature = Temperature(0.5, target_entropy=-1.0)
    entropy, target = torch.tensor([1.0, 0.0]), torch.tensor([0.25, 2.0])
    expected = math.log(0.5) * torch.tensor([0.75, -2.0])
    torch.testing.assert_close(temperature(entropy, target), expected)


def test_a_fixed_alpha_wants_no_gradient():
    temperature = Temperature(0.2, 0.0, is_learnt=False)
    assert not temperature(torch.ones(1)).requires_grad
    assert not temperature.alpha.requires_grad


def test_alpha_is_positive():
    with pytest.raises(ValueError, match="initial_alpha must be positive"):
        Temperature(0.0, 0.0)


def test_the_entropy_of_mostly_one_value_by_hand():
    assert entropy_of_mostly_one_value(1) == 0.0
    expected = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert entropy_of_mostly_one_value(2) == pytest.approx(expected)
    probs = torch.tensor([0.7, 0.1, 0.1, 0.1])
    entropy = torch.distributions.Categorical(probs).entropy().item()
    assert entropy_of_mostly_one_value(4, share=0.7) == pytest.approx(entropy)


def test_the_entropies_of_several_numbers_of_values_are_those_of_each():
    numbers = [0, 1, 2, 3, 17, 1024]
    expected = [entropy_of_mostly_one_value(n) for n in numbers]
    entropies = entropies_of_mostly_one_value(torch.tensor([numbers]))
    assert entropies.tolist() == [pytest.approx(expected, rel=1e-6)]
