"""What is written about replay is what was drawn."""

from __future__ import annotations

import types

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.data_structures import BatchInfo
from alf_lite.replay_buffers.own_replay import ReplayMonitor
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils import summary


@pytest.fixture
def buffer() -> ReplayBuffer:
    """Environment 0 has positions 2 to 11, environment 1 positions 0 to 9."""
    buffer = ReplayBuffer(TensorSpec(()), 2, 10)
    buffer.add_batch(torch.zeros(10, 2), time_major=True)
    buffer.add_batch(torch.zeros(2, 1), torch.tensor([0]), time_major=True)
    return buffer


def windows(env_ids, positions, weights, source: int) -> tuple[bool, BatchInfo]:
    info = BatchInfo(
        torch.tensor(env_ids),
        torch.tensor(positions),
        torch.tensor(weights),
        torch.full((len(env_ids),), source),
    )
    return source == 0, info


def scalars(directory) -> dict[str, float]:
    events = EventAccumulator(str(directory)).Reload()
    return {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}


def own(buffer):
    """What the monitor is told of the run's own steps."""
    return types.SimpleNamespace(buffer=buffer, num_steps=buffer.total_size)


def test_the_numbers_are_those_of_the_last_draw_and_update(tmp_path, buffer):
    monitor = ReplayMonitor()
    monitor.add(20)
    with summary.writer_to(tmp_path):
        with summary.record_if(True):
            monitor.write(own(buffer))
        monitor.add(2)
        monitor.draw([windows([0, 1], [3, 3], [1.0, 1.0], 0)], 3)
        monitor.draw(
            [
                windows([0, 1, 1], [11, 0, 8], [0.5, 1.0, 0.2], 0),
                windows([0], [77], [0.3], 2),
            ],
            3,
        )
        monitor.prioritize(torch.tensor([1.0, 4.0, 2.0, 1.0], requires_grad=True))
        with summary.record_if(True):
            monitor.write(own(buffer))
    written = scalars(tmp_path)
    added, drawn = (
        written.pop(f"replay/steps_{name}_per_second") for name in ("added", "drawn")
    )
    assert drawn / added == pytest.approx((2 + 4) * 3 / 2)
    assert written == pytest.approx(
        {
            "replay/size": 20,
            "replay/age/mean": (0 + 9 + 1) / 3,
            "replay/age/max": 9,
            "replay/times_drawn": 5 / 22,
            "replay/priority/mean": 2,
            "replay/priority/max": 4,
            "replay/importance_weight/mean": 0.5,
            "replay/importance_weight/max": 1,
            "replay/share/own": 0.75,
            "replay/share/offline_2": 0.25,
        }
    )


def test_nothing_is_computed_where_nothing_is_recorded(buffer, monkeypatch):
    monitor = ReplayMonitor()
    monkeypatch.setattr(summary, "scalar", lambda *_: pytest.fail("it was"))
    monitor.draw([windows([0], [3], [1.0], 0)], 3)
    monitor.write(own(buffer))


def test_what_is_counted_goes_on(buffer, tmp_path):
    monitor, resumed = ReplayMonitor(), ReplayMonitor()
    monitor.add(4)
    monitor.draw([windows([0, 1], [3, 3], [1.0, 1.0], 0)], 3)
    resumed.load_state_dict(monitor.state_dict())
    assert resumed.state_dict() == monitor.state_dict()
    with summary.writer_to(tmp_path), summary.record_if(True):
        resumed.write(own(buffer))
    assert scalars(tmp_path)["replay/times_drawn"] == 0.5
