"""Windows of several sources become batches."""

from __future__ import annotations

import pytest
import torch

from alf_lite.algorithms.replay_mixture import Windows, join
from alf_lite.data_structures import BatchInfo, Experience, TimeStep


def windows(first: int, num_updates: int, per_update: int, *, is_own: bool) -> Windows:
    """Windows [U·n, 2, 3] whose observations count from ``first``."""
    rows = torch.arange(first, first + num_updates * per_update)
    observation = rows.float()[:, None, None].expand(-1, 2, 3)
    experience = Experience(time_step=TimeStep(observation=observation))
    return Windows(experience, BatchInfo(env_ids=rows), per_update, is_own)


@pytest.mark.parametrize("num_updates", [1, 2, 5])
@pytest.mark.parametrize("sizes", [(3, 1), (1, 4), (2, 2)])
def test_every_update_gets_the_windows_of_all_sources(num_updates, sizes):
    parts = [
        windows(1000 * i, num_updates, size, is_own=i == 0)
        for i, size in enumerate(sizes)
    ]
    joined = join(parts)
    expected = [
        1000 * i + update * size + row
        for update in range(num_updates)
        for i, size in enumerate(sizes)
        for row in range(size)
    ]
    assert joined.per_update == sum(sizes)
    assert joined.is_own
    assert joined.batch_info.env_ids.tolist() == expected
    observation = joined.experience.time_step.observation
    assert observation.shape == (num_updates * sum(sizes), 2, 3)
    assert (observation == torch.tensor(expected)[:, None, None]).all()


def test_a_single_source_stays_as_it_is():
    part = windows(0, 2, 3, is_own=False)
    assert join([part]) is part
