"""Seeds that are far apart for every environment of every run."""

from __future__ import annotations

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
