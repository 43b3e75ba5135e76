"""Windows of several sources become batches."""

from __future__ import annotations

import pytest
import torch

from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, TimeStep
from alf_lite.replay_buffers.replay_mixture import ReplayMixture, Windows, join


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


class Weighted:
    """A buffer whose windows have these importance weights."""

    mini_batch_size, mini_batch_length = 6, 2  # as the own one

    def __init__(self, weights: list[float]) -> None:
        self.weights = torch.tensor(weights)

    def require_buffer(self) -> Weighted:
        return self

    def get_batch(self, num_windows, length, device=None):
        env_ids = torch.arange(num_windows)
        weights = self.weights[:num_windows] if len(self.weights) else ()
        return Experience(), BatchInfo(env_ids, env_ids, weights)


@pytest.mark.parametrize("loss_weights", [None, (1.0, 5.0, 2.0)])
def test_importance_weights_of_a_mixed_batch_are_those_of_a_naive_loop(loss_weights):
    torch.manual_seed(0)
    num_updates, sizes = 3, (3, 2, 1)
    given = [(torch.rand(num_updates * n) + 0.01).tolist() for n in sizes[:2]]
    config = TrainerConfig(
        num_iterations=1,
        offline_buffer_dir=["a", "b"],
        mixing_ratios=(0.5, 1 / 3, 1 / 6),
        source_loss_weights=loss_weights,
    )
    own, *offline = (Weighted(weights) for weights in (*given, []))
    mixture = ReplayMixture(config, own, offline, scale_weights=True)
    parts = [part for part, _ in mixture.draw(num_updates, with_own=True)]
    parts = mixture.weighted(parts, num_updates, torch.device("cpu"))
    given.append([1.0] * num_updates)
    for update in range(num_updates):
        by_source = []
        for n, weights in zip(sizes, given, strict=True):
            drawn = weights[update * n : (update + 1) * n]
            by_source.append([w / (sum(drawn) / n) for w in drawn])
        largest = max(max(drawn) for drawn in by_source)
        for k, (part, n) in enumerate(zip(parts, sizes, strict=True)):
            got = part.batch_info.importance_weights[update * n : (update + 1) * n]
            factor = 1.0 if loss_weights is None else loss_weights[k]
            expected = [factor * w / largest for w in by_source[k]]
            assert got.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_single_source_stays_as_it_is():
    part = windows(0, 2, 3, is_own=False)
    assert join([part]) is part
