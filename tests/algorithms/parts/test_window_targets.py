from __future__ import annotations

import pytest
import torch

from alf_lite.algorithms.parts.window_targets import steps_from, window_targets

REWARDS = [0.0, 1.0, 2.0, 3.0, 4.0]
VALUES = [10.0, 20.0, 30.0, 40.0, 50.0]
NAN = float("nan")


def targets(discount_at_last, *, n=2, beyond=0.0, steps=5):
    """One root; LAST at step 4, and other episodes behind it."""
    size = steps + 1 + n
    fill = [beyond] * (size - 5)
    step_types = torch.tensor([[0, 1, 1, 1, 2, 0] + [1] * (size - 6)])
    value_at_last = [NAN] if discount_at_last == 0 else VALUES[4:]
    return window_targets(
        torch.tensor([REWARDS + fill]),
        torch.tensor([VALUES[:4] + value_at_last + fill]),
        step_types,
        torch.tensor([[0.9] * 4 + [discount_at_last] + [0.9] * len(fill)]),
        n,
        steps,
    )


@pytest.mark.parametrize("beyond", [100.0, NAN])
def test_behind_a_terminal_state_all_is_zero_and_fitted(beyond):
    found = targets(0.0, beyond=beyond)
    expected = torch.tensor([27.1, 37.1, 6.6, 4.0, 0.0, 0.0])
    torch.testing.assert_close(found.value[0, 0], expected)
    assert found.has_value.all()
    assert found.has_reward.all()
    assert found.reward[0, 0].tolist() == [0, 1, 2, 3, 4, 0]
    assert found.continues[0, 0].tolist() == [1, 1, 1, 1, 0, 0]
    assert found.has_policy[0, 0].tolist() == [True] * 4 + [False] * 2
    assert found.is_absorbed[0, 0].tolist() == [False] * 5 + [True]


@pytest.mark.parametrize("beyond", [100.0, NAN])
def test_behind_a_time_limit_nothing_is_known(beyond):
    found = targets(0.9, beyond=beyond)
    expected = torch.tensor([27.1, 37.1, 47.1, 49.0, 0.0, 0.0])
    torch.testing.assert_close(found.value[0, 0], expected)
    assert found.has_value[0, 0].tolist() == [True] * 4 + [False] * 2
    assert found.has_reward[0, 0].tolist() == [True] * 5 + [False]
    assert found.continues[0, 0].tolist() == [1, 1, 1, 1, 1, 0]
    assert found.has_policy[0, 0].tolist() == [True] * 4 + [False] * 2
    assert not found.is_absorbed.any()


def test_a_lost_life_is_the_end_for_what_led_to_it_and_a_root_of_its_own():
    rewards = torch.tensor([[0.0, 1, 2, 30, 40, 50, 60]])
    values = torch.full((1, 7), 7.0)
    step_types = torch.tensor([[0, 1, 1, 1, 1, 1, 1]])
    discounts = torch.tensor([[1, 0.9, 0, 0.9, 0.9, 0.9, 0.9]])
    found = window_targets(rewards, values, step_types, discounts, 2, 2)
    ended = torch.where(torch.arange(7) == 2, 2, step_types)  # LAST at step 2
    of_ended = window_targets(rewards, values, ended, discounts, 2, 2)
    for lost, terminal in zip(found, of_ended, strict=True):
        assert torch.equal(lost[0, :2], terminal[0, :2])
    assert found.is_absorbed[0, 1].tolist() == [False, False, True]
    assert found.reward[0, 1].tolist() == [1, 2, 0]
    expected = torch.tensor([30 + 0.9 * 40 + 0.81 * 7, 40 + 0.9 * 50 + 0.81 * 7])
    torch.testing.assert_close(found.value[0, 2, :2], expected)
    assert found.reward[0, 2, 1:].tolist() == [30, 40]
    assert found.has_policy[0, 2].all()


@pytest.mark.parametrize(
    ("n", "expected"), [(2, [0.3, 0.4, -1.0, 1.0]), (9, [-1.0, 1.0, -1.0, 1.0])]
)
def test_of_two_players_each_sees_its_own(n, expected):
    size = 4 + n
    found = window_targets(
        torch.tensor([[0.0, 0, 0, 0, 1] + [0.0] * (size - 5)]),
        torch.tensor([[0.1, 0.2, 0.3, 0.4] + [0.0] * (size - 4)]),
        torch.tensor([[0, 1, 1, 1, 2] + [0] * (size - 5)]),
        torch.tensor([[-1.0, -1, -1, -1, 0] + [-1.0] * (size - 5)]),
        n,
        3,
    )
    torch.testing.assert_close(found.value[0, 0], torch.tensor(expected))


def test_every_root_is_as_if_it_were_alone():
    torch.manual_seed(0)
    step_types = torch.tensor([[0, 1, 2, 0, 1, 1, 1, 2, 0, 1, 1]])
    discounts = torch.full((1, 11), 0.9)
    discounts[0, 2] = 0
    rewards, values = torch.randn(1, 11), torch.randn(1, 11)
    steps = rewards, values, step_types, discounts
    together = window_targets(*steps, 3, 2)
    assert together.value.shape == (1, 6, 3)
    for root in range(6):
        alone = window_targets(*(x[:, root : root + 6] for x in steps), 3, 2)
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a[:, 0], b[:, root])


def test_a_window_that_is_too_short_is_refused():
    steps = torch.zeros(1, 5)
    with pytest.raises(ValueError, match="5 steps is too short for 3 unrolled"):
        window_targets(steps, steps, steps.int(), steps, 2, 3)


def test_what_follows_the_first_steps_of_a_window():
    values = {"x": torch.randn(2, 9, 3), "reward": torch.randn(2, 9)}
    found = steps_from(values, 1, 4, 5)
    assert found["x"].shape == (2, 5, 4, 3)
    for name, whole in values.items():
        for row in range(5):
            assert torch.equal(found[name][:, row], whole[:, row + 1 : row + 5])
