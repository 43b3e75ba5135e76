from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.parts.conservative_weight import ConservativeWeight


def test_without_a_threshold_it_is_what_was_given_and_has_nothing_to_learn():
    weight = ConservativeWeight(2.5)
    assert weight.alpha.item() == 2.5
    assert not list(weight.parameters())
    assert weight.state_dict() == {}  # another value after a restart holds
    assert weight(torch.tensor([[3.0, -1.0]])).tolist() == [[0.0, 0.0]]
    assert ConservativeWeight(0.0).alpha.item() == 0.0


def test_the_loss_of_a_learnt_weight_by_hand():
    weight = ConservativeWeight(math.e, threshold=1.0)
    gap = torch.tensor([4.0, 0.5], requires_grad=True)
    loss = weight(gap)
    assert loss.tolist() == pytest.approx([-3.0, 0.5])
    loss.sum().backward()
    assert gap.grad is None
    assert weight._log_alpha.grad.item() == pytest.approx(-2.5)


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
