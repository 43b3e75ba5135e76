"""Seeds that are far apart for every environment of every run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Some environments pass their seed on to a signed 32-bit integer.
_NUM_SEEDS = 2**31


def vector_seed(seed: int) -> int:
    """One seed for a whole batch of environments.

    Vector environments commonly give seed + i to environment i, so that the runs with
    the seeds 0 and 1 would share all environments but one.

    Raises:
        ValueError: if ``seed`` is negative.
    """
    return environment_seeds(seed, 1)[0]


def environment_seeds(seed: int, num_environments: int) -> list[int]:
    """A seed for each environment; those of different ``seed`` have nothing in common.

    The seed of environment i does not depend on ``num_environments``.

    Raises:
        ValueError: if ``seed`` is negative.
    """
    if seed < 0:
        raise ValueError(f"expected a seed >= 0, got {seed}")
    sequences = (
        np.random.SeedSequence(entropy=seed, spawn_key=(i,))
        for i in range(num_environments)
    )
    return [int(s.generate_state(1, np.uint64)[0]) % _NUM_SEEDS for s in sequences]


def seeds_of_reset(
    seed: int | Sequence[int | None] | None, num_environments: int
) -> Sequence[int | None]:
    """A seed for each environment, from what ``VectorEnv.reset`` is given.

    Raises:
        ValueError: if there are more or fewer.
    """
    if seed is None:
        return [None] * num_environments
    if isinstance(seed, int | np.integer):
        return environment_seeds(int(seed), num_environments)
    if len(seed) != num_environments:
        raise ValueError(f"expected {num_environments} seeds, got {len(seed)}")
    return seed
