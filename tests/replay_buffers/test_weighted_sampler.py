"""Priorities, use counts and age, as a user of the buffer sees them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from alf_lite.replay_buffers.priority_options import PriorityOptions
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.window_sampler import SamplingOptions
from tests.replay_buffers.marked_steps import fill, make_buffer

PLAIN = PriorityOptions(alpha=1, beta=1, eps=0)


def prioritized(
    num_environments: int = 1, max_length: int = 10, **kwargs
) -> ReplayBuffer:
    kwargs.setdefault("priority", PLAIN)
    return make_buffer(
        num_environments, max_length, prioritized_sampling=True, **kwargs
    )


def set_priorities(buffer: ReplayBuffer, priorities: dict) -> None:
    """(environment, position) -> priority."""
    env_ids, positions = torch.tensor(list(priorities)).T
    buffer.update_priority(env_ids, positions, torch.tensor(list(priorities.values())))


def frequencies(buffer: ReplayBuffer, length: int = 1, num_draws: int = 1000) -> dict:
    """How often each window comes in a stratified draw: its probability, nearly."""
    _, info = buffer.get_batch(num_draws, length)
    pairs = zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)
    counts: dict = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1 / num_draws
    buffer.check_valid()
    return counts


def approximately(expected: dict) -> dict:
    return pytest.approx(expected, abs=0.003)


# Priorities


def test_windows_are_drawn_in_proportion_to_their_priorities():
    buffer = prioritized(2, 2)
    fill(buffer, 2)
    set_priorities(buffer, {(0, 0): 1.0, (0, 1): 2.0, (1, 0): 3.0, (1, 1): 4.0})
    assert frequencies(buffer) == approximately(
        {(0, 0): 0.1, (0, 1): 0.2, (1, 0): 0.3, (1, 1): 0.4}
    )
    _, info = buffer.get_batch(100, 1)
    expected = 1 / (1 + 2 * info.env_ids + info.positions).float()
    torch.testing.assert_close(info.importance_weights, expected)
    assert info.importance_weights.dtype == torch.float32
    set_priorities(buffer, {(0, 0): 11.0})
    assert frequencies(buffer)[0, 0] == pytest.approx(0.55, abs=0.003)


def test_probabilities_and_importance_weights_are_those_of_a_naive_loop():
    torch.manual_seed(0)
    num, alpha, beta, eps = 40, 0.6, 0.4, 1e-6
    buffer = make_buffer(1, num, prioritized_sampling=True)  # with the defaults
    fill(buffer, num)
    priorities = (10 ** (4 * torch.rand(num) - 3)).tolist()
    set_priorities(buffer, {(0, p): priority for p, priority in enumerate(priorities)})
    powers = [(priority + eps) ** alpha for priority in priorities]
    probabilities = [power / sum(powers) for power in powers]
    drawn = frequencies(buffer, num_draws=20_000)
    for position, probability in enumerate(probabilities):
        # A stratified draw leaves less than two to chance.
        assert drawn.get((0, position), 0) == pytest.approx(probability, abs=1e-4)
    _, info = buffer.get_batch(16, 1)
    weights = [(num * probabilities[p]) ** -beta for p in info.positions.tolist()]
    expected = [weight / max(weights) for weight in weights]
    assert info.importance_weights.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_batch_is_in_random_order():
    buffer = prioritized(1, 100)
    fill(buffer, 100)
    torch.manual_seed(0)
    halves = [buffer.get_batch(20, 1)[1].positions[:10] for _ in range(300)]
    assert torch.cat(halves).float().mean() == pytest.approx(49.5, abs=2)


def test_a_new_step_has_the_largest_priority_alive_and_at_least_one():
    buffer = prioritized(1, 4)
    fill(buffer, 2)
    set_priorities(buffer, {(0, 0): 8.0, (0, 1): 0.5})
    fill(buffer, 1)
    assert frequencies(buffer) == approximately(
        {(0, 0): 8 / 16.5, (0, 1): 0.5 / 16.5, (0, 2): 8 / 16.5}
    )
    # The large ones are overwritten or lowered: what counts is what is there.
    set_priorities(buffer, {(0, 2): 0.5})
    fill(buffer, 2)
    frequencies(buffer)
    set_priorities(buffer, {(0, 3): 0.25, (0, 4): 0.25})
    fill(buffer, 1)
    assert frequencies(buffer)[0, 5] == pytest.approx(1 / 2, abs=0.003)


def test_a_priority_set_before_a_window_is_whole_counts_when_it_is():
    buffer = prioritized(1, 5)
    fill(buffer, 3)
    set_priorities(buffer, {(0, 0): 1.0, (0, 1): 1.0, (0, 2): 6.0})
    assert frequencies(buffer, 2) == approximately({(0, 0): 0.5, (0, 1): 0.5})
    set_priorities(buffer, {(0, 2): 2.0})
    fill(buffer, 1)
    assert frequencies(buffer, 2) == approximately(
        {(0, 0): 0.25, (0, 1): 0.25, (0, 2): 0.5}
    )
    # Back to longer windows and again to shorter ones: it is not forgotten.
    set_priorities(buffer, {(0, 1): 5.0})
    frequencies(buffer, 4)
    assert frequencies(buffer, 2) == approximately(
        {(0, 0): 1 / 8, (0, 1): 5 / 8, (0, 2): 2 / 8}
    )


def test_new_steps_may_have_a_priority_of_their_own():
    alpha = 1.0
    priority = PriorityOptions(alpha=lambda: alpha, eps=0, initial_priority=4.0)
    buffer = prioritized(1, 4, priority=priority)
    fill(buffer, 2)
    set_priorities(buffer, {(0, 0): 16.0})
    assert frequencies(buffer) == approximately({(0, 0): 0.8, (0, 1): 0.2})
    alpha = 0.5
    fill(buffer, 1)
    assert frequencies(buffer) == approximately(
        {(0, 0): 16 / 22, (0, 1): 4 / 22, (0, 2): 2 / 22}
    )


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_wrong_priority_changes_nothing(wrong):
    buffer = prioritized(1, 3)
    fill(buffer, 2)
    with pytest.raises(ValueError, match="such as"):
        set_priorities(buffer, {(0, 0): 5.0, (0, 1): wrong})
    assert frequencies(buffer) == approximately({(0, 0): 0.5, (0, 1): 0.5})


@pytest.mark.parametrize("sizes", [(2, 2, 3), (1, 2, 2)])
def test_priorities_have_the_shape_of_their_windows(sizes):
    buffer = prioritized(1, 3)
    fill(buffer, 3)
    env_ids, positions, priorities = (torch.zeros(size).long() for size in sizes)
    with pytest.raises(ValueError, match=r"three tensors \[B\]"):
        buffer.update_priority(env_ids, positions, priorities)


def test_priorities_are_for_environments_that_exist():
    buffer = prioritized(2, 3)
    fill(buffer, 1)
    for env_id in (-1, 2):
        with pytest.raises(ValueError, match=f"there is no environment {env_id}"):
            set_priorities(buffer, {(env_id, 0): 1.0})


def test_priorities_may_come_from_a_loss():
    buffer = prioritized(1, 2)
    fill(buffer, 2)
    delta = torch.tensor([-3.0, 1.0], requires_grad=True)
    buffer.update_priority(torch.zeros(2).long(), torch.arange(2), delta.abs())
    assert frequencies(buffer) == approximately({(0, 0): 0.75, (0, 1): 0.25})


# Uses


def test_use_counts_and_priorities_go_together():
    buffer = prioritized(1, 4, sampling=SamplingOptions(max_use=3))
    fill(buffer, 3)
    set_priorities(buffer, {(0, 0): 1.0, (0, 1): 1.0, (0, 2): 100.0})
    _, info = buffer.get_batch(3, 1)
    assert info.positions.tolist() == [2, 2, 2]
    # Dropped for good: a later priority does not bring it back.
    set_priorities(buffer, {(0, 2): 100.0})
    _, info = buffer.get_batch(2, 1)
    assert sorted(info.positions.tolist()) == [0, 1]
    torch.testing.assert_close(info.importance_weights, torch.ones(2))
    buffer.check_valid()


@pytest.mark.parametrize("is_prioritized", [False, True])
@pytest.mark.parametrize("max_use", [1, 2, 5])
def test_no_window_is_drawn_more_often_than_it_may_be(max_use, is_prioritized):
    buffer = make_buffer(
        2,
        20,
        prioritized_sampling=is_prioritized,
        priority=PLAIN if is_prioritized else None,
        sampling=SamplingOptions(max_use=max_use),
    )
    fill(buffer, 20)
    if is_prioritized:
        set_priorities(buffer, {(1, p): 10.0 ** (p / 4) for p in range(20)})
    num_left = 40 * max_use
    counts: Counter = Counter()
    for size in (1, 17, 13, 6, 3):
        assert buffer.can_draw(size, 1, num_left // size)
        assert not buffer.can_draw(size, 1, num_left // size + 1)
        _, info = buffer.get_batch(size, 1)
        counts.update(zip(info.env_ids.tolist(), info.positions.tolist(), strict=True))
        num_left -= size
        buffer.check_valid()
    if num_left:
        _, info = buffer.get_batch(num_left, 1)
        counts.update(zip(info.env_ids.tolist(), info.positions.tolist(), strict=True))
    # All of them, and none too often.
    assert set(counts.values()) == {max_use}
    assert len(counts) == 40
    assert not buffer.can_draw(1, 1)


@pytest.mark.ci
def test_what_comes_too_often_is_drawn_anew_from_what_is_left():
    drawn = Counter()
    for _ in range(600):
        buffer = prioritized(1, 3, sampling=SamplingOptions(max_use=1))
        fill(buffer, 3)
        set_priorities(buffer, {(0, 0): 98.0, (0, 1): 1.5, (0, 2): 0.5})
        _, info = buffer.get_batch(2, 1)
        drawn.update(info.positions.tolist())
        if sorted(info.positions.tolist()) == [0, 1]:
            weight = info.importance_weights[info.positions == 0].item()
            # Both at once, or the second one of two that were left; beta is 1.
            assert weight == pytest.approx(0.015 / 0.98, rel=1e-4) or (
                weight == pytest.approx((2 * 0.75) / (3 * 0.98), rel=1e-4)
            )
    assert drawn[0] == 600
    assert drawn[1] / 600 == pytest.approx(0.75, abs=0.06)


@pytest.mark.parametrize("num_steps", [30, 9, 8])
def test_no_window_comes_twice_beside_the_newest_ones(num_steps):
    sampling = SamplingOptions(
        with_replacement=False, recent_data_ratio=0.5, recent_data_steps=2
    )
    buffer = make_buffer(2, 40, sampling=sampling)
    fill(buffer, num_steps)
    for _ in range(200):
        assert buffer.can_draw(8, 1)
        _, info = buffer.get_batch(8, 1)
        windows = set(zip(info.env_ids.tolist(), info.positions.tolist(), strict=True))
        assert len(windows) == 8
        assert {(e, num_steps - i) for e in (0, 1) for i in (1, 2)} <= windows
    assert not buffer.can_draw(2 * num_steps + 1, 1)


@pytest.mark.ci
def test_limited_windows_are_drawn_uniformly_from_what_is_left():
    torch.manual_seed(0)
    counts = np.zeros(6)
    for _ in range(300):
        buffer = make_buffer(1, 6, sampling=SamplingOptions(max_use=1))
        fill(buffer, 6)
        first = buffer.get_batch(1, 1)[1].positions
        second = buffer.get_batch(1, 1)[1].positions
        assert first != second
        counts[second] += 1
    assert counts.min() > 25
