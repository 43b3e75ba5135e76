"""Sums belong to one episode each, however the steps are cut into unrolls."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.metrics.episode_sums import EpisodeSums, RecentRows

F, M, L = 0, 1, 2


def add(sums, step_types, values, env_ids=None):
    """One column per string of values; returns (sums, last steps, columns) as lists."""
    step_types = np.array(step_types).T  # [B, T] as written → [T, B]
    values = np.array(values, dtype=float).T[..., None]
    env_ids = np.arange(step_types.shape[1]) if env_ids is None else np.array(env_ids)
    done = sums.add(step_types == F, step_types == L, values, env_ids)
    return done.sums[:, 0].tolist(), done.last_step.tolist(), done.column.tolist()


def test_episodes_come_in_the_order_of_their_ends():
    done = add(
        EpisodeSums(2, 1),
        [[F, M, M, L, F, L], [F, L, F, L, F, M]],
        [[0, 1, 2, 3, 0, 4], [0, 10, 0, 20, 0, 30]],
    )
    assert done == ([10, 6, 20, 4], [1, 3, 3, 5], [1, 0, 1, 0])


def test_values_of_first_steps_count():
    assert add(EpisodeSums(1, 1), [[F, L]], [[5, 1]]) == ([6], [1], [0])


def test_an_open_episode_is_carried_on():
    sums = EpisodeSums(2, 1)
    assert add(sums, [[F, M], [F, M]], [[0, 1], [0, 5]]) == ([], [], [])
    assert add(sums, [[M, M], [L, F]], [[2, 3], [6, 0]]) == ([11], [0], [1])
    assert add(sums, [[L], [L]], [[4], [7]]) == ([10, 7], [0, 0], [0, 1])


def test_an_interrupted_episode_is_dropped():
    sums = EpisodeSums(1, 1)
    assert add(sums, [[F, M, F, L]], [[0, 100, 0, 1]]) == ([1], [3], [0])
    add(sums, [[F, M]], [[0, 100]])
    assert add(sums, [[F, L]], [[0, 2]]) == ([2], [1], [0])


@pytest.mark.parametrize("pieces", [[3, 3], [6], [1] * 6])
def test_an_episode_whose_begin_was_missed_is_dropped(pieces):
    sums = EpisodeSums(1, 1)
    steps = [M, L, F, L, M, L]  # only the second one has its FIRST
    values = [1, 2, 4, 8, 16, 32]
    found, begin = [], 0
    for size in pieces:
        part = slice(begin, begin + size)
        found += add(sums, [steps[part]], [values[part]])[0]
        begin += size
    assert found == [12]


def test_environments_are_told_apart_by_their_ids():
    sums = EpisodeSums(3, 1)
    add(sums, [[F, M], [F, M]], [[0, 1], [0, 10]], env_ids=[2, 0])
    assert add(sums, [[L], [L]], [[2], [20]], env_ids=[0, 1]) == ([12], [0], [0])
    assert add(sums, [[L]], [[20]], env_ids=[2]) == ([21], [0], [0])


def test_nan_ends_with_its_episode():
    sums = EpisodeSums(1, 1)
    found, _, _ = add(sums, [[F, L, F, L]], [[0, np.nan, 0, 1]])
    assert np.isnan(found[0])
    assert found[1] == 1
    add(sums, [[F, M]], [[0, np.inf]])
    assert add(sums, [[L, F]], [[0, 0]])[0] == [np.inf]
    assert add(sums, [[L]], [[3]])[0] == [3]


def test_dropped_open_episodes_never_finish():
    sums = EpisodeSums(1, 1)
    add(sums, [[F, M]], [[0, 1]])
    sums.drop_open()
    assert add(sums, [[L]], [[1]])[0] == []
    assert add(sums, [[F, L]], [[0, 1]])[0] == [1]


@pytest.mark.parametrize(
    "sizes", [[1] * 12, [3, 3, 3], [5], [7, 1], [2, 11, 4], [0, 1]]
)
def test_mean_is_that_of_the_last_rows(sizes):
    capacity = 5
    table = RecentRows(capacity, 2)
    rows = np.random.default_rng(0).normal(size=(sum(sizes), 2))
    done = 0
    for size in sizes:
        table.append(rows[done : done + size])
        done += size
        assert len(table) == min(done, capacity)
        if done:
            expected = rows[max(0, done - capacity) : done].mean(axis=0)
            np.testing.assert_allclose(table.mean(), expected, rtol=1e-12)


def test_mean_of_nothing_is_nan():
    table = RecentRows(3, 2)
    assert np.isnan(table.mean()).all()
    table.append(np.ones((1, 2)))
    table.clear()
    assert len(table) == 0
    assert np.isnan(table.mean()).all()
