"""Numbers of positions, and uniform draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.replay_buffers.window_sampler import (
    PositionRanges,
    draw_others,
    draw_stratified,
    draw_with_replacement,
    draw_without_replacement,
)

ranges = st.lists(
    st.tuples(st.integers(0, 50), st.integers(-3, 5)), min_size=1, max_size=5
)


@given(ranges)
def test_numbers_run_through_all_positions(pairs):
    first = np.array([begin for begin, _ in pairs])
    last = np.array([begin + size for begin, size in pairs])
    expected = [
        (e, p)
        for e, (begin, size) in enumerate(pairs)
        for p in range(begin, begin + size)
    ]
    tested = PositionRanges(first, last)
    assert tested.size == len(expected)
    env_ids, positions = tested.all()
    assert list(zip(env_ids.tolist(), positions.tolist(), strict=True)) == expected


def test_newest_are_the_last_ones_of_each_range():
    tested = PositionRanges(np.array([3, 10, 0]), np.array([9, 11, 0]))
    env_ids, positions = tested.newest(2).all()
    assert env_ids.tolist() == [0, 0, 1]
    assert positions.tolist() == [7, 8, 10]


def test_draws_with_replacement_are_uniform():
    torch.manual_seed(0)
    counts = np.bincount(draw_with_replacement(10, 100_000), minlength=10)
    assert chi_square(counts) < 27.9  # 9 degrees of freedom, p = 0.001


@settings(max_examples=50)
@given(st.integers(1, 40), st.data())
def test_draws_without_replacement_are_different_and_in_range(size, data):
    batch_size = data.draw(st.integers(1, size))
    drawn = draw_without_replacement(size, batch_size)
    assert len(set(drawn.tolist())) == batch_size
    assert drawn.min() >= 0
    assert drawn.max() < size


@pytest.mark.parametrize(("size", "batch_size"), [(10, 3), (10, 7), (7, 7), (11, 2)])
def test_draws_without_replacement_are_uniform(size, batch_size):
    torch.manual_seed(0)
    num_draws = 4000
    counts = np.zeros(size)
    for _ in range(num_draws):
        counts[draw_without_replacement(size, batch_size)] += 1
    probability = batch_size / size
    deviation = np.sqrt(num_draws * probability * (1 - probability))
    assert np.abs(counts - num_draws * probability).max() <= 4 * deviation


@pytest.mark.parametrize(
    ("drawn", "batch_size"), [([3], 4), ([9, 0, 4, 5], 6), ([], 1)]
)
def test_others_are_all_but_those_that_were_drawn(drawn, batch_size):
    torch.manual_seed(0)
    counts = np.zeros(10)
    for _ in range(2000):
        others = draw_others(np.array(drawn, np.int64), 10, batch_size)
        assert len(set(others.tolist())) == batch_size
        counts[others] += 1
    assert (counts[drawn] == 0).all()
    probability = batch_size / (10 - len(drawn))
    assert np.delete(counts, drawn) / 2000 == pytest.approx(probability, abs=0.05)
    assert len(draw_others(np.arange(10), 10, 0)) == 0


def test_draws_without_replacement_are_spread_evenly():
    torch.manual_seed(0)
    for _ in range(20):
        drawn = np.sort(draw_without_replacement(1000, 10))
        gaps = np.diff(np.append(drawn, drawn[0] + 1000))
        # Every stratum of a hundred has one.
        assert gaps.max() < 200


def test_draws_without_replacement_are_in_random_order():
    torch.manual_seed(0)
    firsts = [draw_without_replacement(100, 10)[:5].mean() for _ in range(500)]
    assert abs(np.mean(firsts) - 49.5) < 3


def test_each_mass_is_from_its_own_part():
    masses, order = draw_stratified(total=8.0, batch_size=4)
    assert np.floor(masses / 2).tolist() == [0, 1, 2, 3]
    assert sorted(order.tolist()) == [0, 1, 2, 3]


def test_positions_are_in_the_range_of_their_environment():
    ranges = PositionRanges(np.array([2, 5]), np.array([4, 5]))
    env_ids, positions = np.array([0, 0, 0, 0, 1, 1]), np.array([1, 2, 3, 4, 3, 5])
    assert ranges.have(env_ids, positions).tolist() == [0, 1, 1, 0, 0, 0]


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())
