"""Intervals and statistics are those that scipy computes."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.utils.statistics import (
    bootstrap_ci95,
    bootstrap_interval,
    interquartile_mean,
    mean,
    probability_of_improvement,
)


def test_the_interval_of_many_curves_is_that_of_each(tmp_path):
    values = np.random.default_rng(1).normal(size=(4, 3, 7))
    low, high = bootstrap_interval(mean, values)
    assert low.shape == high.shape == (4, 3)
    assert (low[2, 1], high[2, 1]) == bootstrap_ci95(values[2, 1])
    assert (low < values.mean(-1)).all()
    assert (values.mean(-1) < high).all()


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 21])
def test_interquartile_mean_is_that_of_the_middle_half(size):
    values = np.random.default_rng(size).normal(size=(3, size))
    cut = size // 4
    expected = [np.mean(sorted(row)[cut : size - cut]) for row in values]
    assert interquartile_mean(values) == pytest.approx(expected)


def test_probability_of_improvement_counts_ties_half():
    assert probability_of_improvement(np.array([1, 2, 3]), np.array([2])) == 0.5
    assert probability_of_improvement(np.array([3, 4]), np.array([1, 2])) == 1
    values = np.random.default_rng(0).integers(0, 5, size=(2, 6))
    others = np.random.default_rng(1).integers(0, 5, size=(2, 4))
    naive = [
        np.mean([(a > b) + (a == b) / 2 for a in x for b in y])
        for x, y in zip(values, others, strict=True)
    ]
    assert probability_of_improvement(values, others) == pytest.approx(naive)


def test_all_of_it_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(3).normal(5.0, 2.0, size=12)
    for ours, theirs in (
        (mean, np.mean),
        (interquartile_mean, lambda x, axis: stats.trim_mean(x, 0.25, axis=axis)),
    ):
        assert ours(values) == pytest.approx(theirs(values, axis=0))
        expected = stats.bootstrap(
            (values,), theirs, method="percentile", random_state=0
        ).confidence_interval
        assert bootstrap_interval(ours, values) == pytest.approx(expected, abs=0.15)
    others = np.random.default_rng(4).normal(5.0, 2.0, size=8)
    u = stats.mannwhitneyu(values, others).statistic
    assert probability_of_improvement(values, others) == pytest.approx(u / 96)
