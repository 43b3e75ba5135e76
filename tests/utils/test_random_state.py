"""Tests of alf_lite.utils.random_state."""

from __future__ import annotations

import io
import itertools
import random

import numpy as np
import pytest
import torch

from alf_lite.utils import random_state


@pytest.fixture(autouse=True)
def keep_the_generators_of_other_tests():
    with random_state.preserved():
        yield


def draw() -> tuple[float, float, float, float]:
    return (
        random.random(),
        float(np.random.rand()),  # noqa: NPY002
        float(np.random.randn()),  # noqa: NPY002
        float(torch.rand(())),
    )


def test_same_seed_gives_same_numbers_and_another_seed_others():
    random_state.seed_everything(3)
    first = draw()
    random_state.seed_everything(3)
    assert draw() == first
    random_state.seed_everything(4)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_state_continues_every_stream_exactly():
    random_state.seed_everything(0)
    draw()  # leaves NumPy with a cached second Gaussian
    state = random_state.get_state()
    expected = [draw() for _ in range(700)]  # beyond one block of the Mersenne twister
    random_state.set_state(state)
    assert [draw() for _ in range(700)] == expected


def test_state_survives_a_weights_only_file():
    random_state.seed_everything(1)
    state = random_state.get_state()
    file = io.BytesIO()
    torch.save(state, file)
    expected = draw()
    file.seek(0)
    random_state.set_state(torch.load(file, weights_only=True))
    assert draw() == expected


def test_preserved_undoes_draws_and_seeding_also_after_an_error():
    random_state.seed_everything(5)
    expected = draw()
    random_state.seed_everything(5)
    with pytest.raises(RuntimeError), random_state.preserved():
        random_state.seed_everything(99)
        draw()
        raise RuntimeError
    assert draw() == expected


def test_derived_seeds_are_fixed_numbers_and_distinct():
    assert random_state.derive_seed(0, "evaluation", 3) == random_state.derive_seed(
        0, "evaluation", 3
    )
    seeds = {
        random_state.derive_seed(seed, purpose, index)
        for seed, purpose, index in itertools.product(
            range(32), ("evaluation", "checkpoint"), range(64)
        )
    }
    assert len(seeds) == 32 * 2 * 64
    assert all(0 <= seed <= random_state.MAX_SEED for seed in seeds)


def test_derived_seed_does_not_depend_on_the_hash_seed_of_the_process():
    # A fixed value: a change would silently alter every recorded experiment.
    assert random_state.derive_seed(7, "checkpoint", 100) == 386999274


def test_new_seeds_differ_and_are_in_range():
    seeds = [random_state.new_seed() for _ in range(20)]
    assert len(set(seeds)) == 20
    assert all(0 <= seed <= random_state.MAX_SEED for seed in seeds)
