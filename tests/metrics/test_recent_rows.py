"""The table keeps exactly the last rows that were appended."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.metrics.recent_rows import RecentRows


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
