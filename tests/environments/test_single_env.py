"""Seeds of environments are distinct, reproducible and independent of their number."""

from __future__ import annotations

import pytest

from alf_lite.environments.single_env import environment_seeds, vector_seed


def test_all_seeds_of_many_runs_differ():
    seeds = [s for seed in range(64) for s in environment_seeds(seed, 64)]
    assert len(set(seeds)) == 64 * 64


def test_seeds_fit_into_a_signed_32_bit_integer():
    assert all(0 <= s < 2**31 for s in environment_seeds(2**40, 100))


def test_the_seed_of_an_environment_does_not_depend_on_how_many_there_are():
    assert environment_seeds(5, 8)[:3] == environment_seeds(5, 3)


def test_the_seed_of_a_batch_is_not_a_neighbour_of_that_of_the_next_run():
    gaps = [abs(vector_seed(s + 1) - vector_seed(s)) for s in range(100)]
    assert min(gaps) > 1000


def test_negative_seeds_are_refused():
    with pytest.raises(ValueError, match="got -1"):
        environment_seeds(-1, 2)
