"""Sums belong to one episode each, however the steps are cut into unrolls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.metrics.episode_sums import EpisodeSums, RecentRows

F, M, L = 0, 1, 2


def naive_sums(pieces, num_environments):
    """(sum, last step in its piece, column) of each episode, step by step.

    Those that begin with a FIRST and end with a LAST; None drops what is open.
    """
    open_sums, found = {}, []
    for piece in pieces:
        if piece is None:
            open_sums.clear()
            continue
        step_types, values, env_ids = piece
        for t, row in enumerate(step_types):
            for b, step_type in enumerate(row):
                env_id = env_ids[b]
                if step_type == F:
                    open_sums[env_id] = 0.0
                if env_id in open_sums:
                    open_sums[env_id] += values[t, b]
                    if step_type == L:
                        found.append((open_sums.pop(env_id), t, b))
    return found


@st.composite
def unrolls(draw):
    """Pieces (step types [T, B], values [T, B], env_ids [B]); None between some."""
    num_environments = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pieces = []
    for length in draw(st.lists(st.integers(1, 7), min_size=1, max_size=5)):
        env_ids = rng.permutation(num_environments)[: rng.integers(1, 4)]
        shape = length, len(env_ids)
        step_types = rng.choice([F, M, L], shape, p=[0.3, 0.4, 0.3])
        values = rng.choice(
            [0.0, 1.0, 2.5, np.nan, np.inf], shape, p=[0.5, *[0.2] * 2, *[0.05] * 2]
        )
        pieces.append((step_types, values, env_ids))
        if rng.random() < 0.1:
            pieces.append(None)
    return num_environments, pieces


@pytest.mark.ci
@settings(max_examples=200)
@given(unrolls())
def test_sums_are_those_of_a_loop_in_the_order_of_their_ends(model):
    num_environments, pieces = model
    sums, found = EpisodeSums(num_environments, 1), []
    for piece in pieces:
        if piece is None:
            sums.drop_open()
            continue
        step_types, values, env_ids = piece
        done = sums.add(step_types == F, step_types == L, values[..., None], env_ids)
        found += zip(done.sums[:, 0], done.last_step, done.column, strict=True)
    expected = naive_sums(pieces, num_environments)
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-12)


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
