"""Priorities on the device draw what those on the host draw, and nobody waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from alf_lite.replay_buffers.device_priority_sampler import DevicePrioritySampler
from alf_lite.replay_buffers.priority_options import PriorityOptions, check_options
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.weighted_sampler import WeightedSampler
from alf_lite.replay_buffers.window_sampler import SamplingOptions, draw_stratified
from alf_lite.testing.stand_in_device import StandInDevice
from alf_lite.utils import random_state
from tests.replay_buffers.marked_steps import fill, make_buffer, saved, steps


@pytest.fixture(autouse=True)
def _generators_stay():
    with random_state.preserved():
        yield


def prioritized(
    num_environments: int = 1,
    max_length: int = 10,
    *,
    on_device: bool = True,
    sampling: SamplingOptions | None = None,
    num_ignored: int = 0,
    **options,
) -> ReplayBuffer:
    return make_buffer(
        num_environments,
        max_length,
        prioritized_sampling=True,
        num_earliest_frames_ignored=num_ignored,
        sampling=sampling,
        priority=PriorityOptions(on_device=on_device, **options),
    )


def set_priorities(buffer: ReplayBuffer, *priorities: float, first: int = 0) -> None:
    """Of the windows of environment 0 from position ``first`` on."""
    num = len(priorities)
    positions = torch.arange(first, first + num)
    buffer.update_priority(torch.zeros(num).long(), positions, torch.tensor(priorities))


def live(buffer: ReplayBuffer, seed: int) -> list[torch.Tensor]:
    """A part of the life of a buffer, in which all happens that changes what is drawn.

    Returns:
        What was drawn.
    """
    torch.manual_seed(seed)
    fill(buffer, 4 + seed % 5)
    if seed % 10 == 3:
        buffer.add_batch(steps([1], buffer.end_positions[1:2]), torch.tensor([1]))
    if seed % 17 == 9:
        buffer.clear(torch.tensor([2]))
        fill(buffer, 5)
    _, info = buffer.get_batch(32, 1 + seed % 3)
    if seed % 4 == 1:  # some are gone, and some come twice
        fill(buffer, 3)
    buffer.update_priority(info.env_ids, info.positions, 30 * torch.rand(32) ** 6)
    buffer.check_valid()
    return list(info[:3])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization": "buffer"},
        {"normalization": "none", "initial_priority": 2.0},
        {"sampling": SamplingOptions(recent_data_ratio=0.3, recent_data_steps=2)},
        {"sampling": SamplingOptions(recent_data_ratio=1.0)},
        {"num_ignored": 3, "alpha": 1.0, "beta": 1.0},
    ],
)
def test_the_same_is_drawn_as_by_a_sum_tree_on_the_host(options):
    on_host, on_device = (
        prioritized(3, 25, on_device=where, **options) for where in (False, True)
    )
    assert isinstance(on_host._sampler, WeightedSampler)
    assert isinstance(on_device._sampler, DevicePrioritySampler)
    for seed in range(40):  # 10 times around the ring
        *places, weights = live(on_device, seed)
        *expected_places, expected_weights = live(on_host, seed)
        assert all(map(torch.equal, places, expected_places))
        torch.testing.assert_close(weights, expected_weights)


def test_rows_and_importance_weights_are_those_of_a_naive_loop():
    num, alpha, beta, eps = 40, 0.6, 0.4, 1e-6
    buffer = prioritized(1, num)  # with the defaults
    fill(buffer, num)
    priorities = (10 ** (4 * torch.rand(num) - 3)).tolist()
    set_priorities(buffer, *priorities)
    weights = [(float(np.float32(p)) + eps) ** alpha for p in priorities]
    probabilities = [weight / sum(weights) for weight in weights]
    torch.manual_seed(7)
    fractions, order = draw_stratified(1.0, 16)
    expected = []
    for fraction in fractions[order]:
        row, below = 0, probabilities[0]
        while below <= fraction:
            row += 1
            below += probabilities[row]
        expected.append(row)
    torch.manual_seed(7)
    _, info = buffer.get_batch(16, 1)
    assert info.positions.tolist() == expected
    unscaled = [(num * probabilities[row]) ** -beta for row in expected]
    expected_weights = [weight / max(unscaled) for weight in unscaled]
    assert info.importance_weights.tolist() == pytest.approx(expected_weights, rel=1e-5)


def test_windows_come_as_often_as_their_priorities_say():
    buffer = prioritized(1, 4, alpha=1, eps=0)
    fill(buffer, 6)  # the ring has positions 4, 5, 2, 3
    set_priorities(buffer, 1.0, 2.0, 3.0, 4.0, first=2)
    counts = torch.zeros(6)
    for _ in range(200):
        counts += buffer.get_batch(10, 1)[1].positions.bincount(minlength=6)
    expected = torch.tensor([0.0, 0.0, 0.1, 0.2, 0.3, 0.4]) * 2000
    # Stratified draws of 10 are as even as can be.
    torch.testing.assert_close(counts, expected, rtol=0, atol=1)


def test_a_saved_buffer_goes_on_to_the_bit(tmp_path):
    buffer = prioritized(3, 25)
    for seed in range(20):
        live(buffer, seed)
    restored = prioritized(3, 25)
    live(restored, 3)
    restored.load(saved(buffer, tmp_path))
    for seed in range(20, 30):
        for drawn, expected in zip(
            live(restored, seed), live(buffer, seed), strict=True
        ):
            assert torch.equal(drawn, expected)
    assert torch.equal(restored._sampler._weights[:-1], buffer._sampler._weights[:-1])


@pytest.mark.parametrize("on_device", [False, True])
def test_priorities_move_between_host_and_device(tmp_path, caplog, on_device):
    buffer = prioritized(3, 25, on_device=on_device)
    for seed in range(20):
        live(buffer, seed)
    restored = prioritized(3, 25, on_device=not on_device)
    restored.load(saved(buffer, tmp_path))
    beside = prioritized(3, 25, on_device=not on_device)
    for seed in range(20):
        live(beside, seed)
    assert beside.load_sampling_state(buffer.sampling_state())
    assert "new ones" not in caplog.text
    for seed in range(20, 30):
        *places, weights = live(buffer, seed)
        for each in (restored, beside):
            *moved_places, moved_weights = live(each, seed)
            assert all(map(torch.equal, places, moved_places))
            torch.testing.assert_close(weights, moved_weights)


def test_a_shorter_buffer_takes_the_priorities_of_the_newest_steps(tmp_path):
    buffer = prioritized(1, 6, alpha=1, eps=0)
    fill(buffer, 8)
    set_priorities(buffer, 1.0, 2.0, 4.0, first=5)
    restored = prioritized(1, 2, alpha=1, eps=0)
    restored.load(saved(buffer, tmp_path))
    counts = restored.get_batch(60, 1)[1].positions.bincount()
    assert counts.tolist() == [0] * 6 + [20, 40]


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_wrong_priority_changes_nothing_and_is_told_later(wrong):
    buffer = prioritized(1, 2, alpha=1, eps=0)
    fill(buffer, 2)
    set_priorities(buffer, 5.0, wrong)
    with pytest.raises(ValueError, match=r"finite and not negative.*on_device=False"):
        for _ in range(2):
            set_priorities(buffer, 7.0, 1.0)
    assert buffer.get_batch(10, 1)[1].positions.sum() == 5
    set_priorities(buffer, 9.0, 1.0)  # whoever goes on can
    assert buffer.get_batch(10, 1)[1].positions.sum() == 1


@pytest.mark.parametrize("method", ["save", "sampling_state"])
def test_what_is_saved_waits_for_errors(method):
    buffer = prioritized(1, 2)
    fill(buffer, 2)
    set_priorities(buffer, float("nan"))
    with pytest.raises(ValueError, match="finite"):
        getattr(buffer, method)()


def test_a_weight_that_overflows_is_wrong_too():
    buffer = prioritized(1, 2, alpha=20.0)
    fill(buffer, 2)
    set_priorities(buffer, 1e30)
    with pytest.raises(ValueError, match="finite"):
        buffer.save()


def test_if_all_priorities_are_zero_all_are_drawn_alike():
    buffer = prioritized(1, 5, alpha=1, eps=0)
    fill(buffer, 5)
    set_priorities(buffer, 0.0, 0.0, 0.0, 0.0, 0.0)
    _, info = buffer.get_batch(50, 2)
    assert info.positions.bincount().tolist() == pytest.approx([12.5] * 4, abs=1)
    assert torch.equal(info.importance_weights, torch.ones(50))
    set_priorities(buffer, 1e-9)
    assert buffer.get_batch(50, 2)[1].positions.sum() == 0


def test_limits_are_kept_by_the_host():
    limits = SamplingOptions(max_use=2)
    with pytest.raises(ValueError, match=r"on_device=True.*max_use"):
        check_options(limits, PriorityOptions(on_device=True))
    with StandInDevice() as device:
        kinds = [
            type(
                make_buffer(
                    1,
                    5,
                    prioritized_sampling=True,
                    priority=PriorityOptions(on_device=on_device),
                    sampling=sampling,
                    device=where,
                )._sampler
            )
            for where, sampling, on_device in (
                (device.name, None, None),
                (device.name, None, False),
                (device.name, limits, None),
                ("cpu", None, None),
            )
        ]
    assert kinds == [DevicePrioritySampler, *(WeightedSampler,) * 3]


def test_the_host_waits_for_nothing_and_draws_what_it_would_draw():
    expected = prioritized(3, 25, normalization="buffer")
    with StandInDevice() as device:
        buffer = make_buffer(
            3,
            25,
            prioritized_sampling=True,
            priority=PriorityOptions(normalization="buffer"),
            device=device.name,
        )
        for seed in range(12):
            drawn = []
            for each in (buffer, expected):
                torch.manual_seed(seed)
                positions = each.end_positions + torch.arange(5)[:, None]
                there = steps(torch.arange(3), positions)
                device.waits.clear()
                each.add_batch(there, time_major=True)
                device.waits.clear()  # it comes from the host
                batch, info = each.get_batch(16, 3)
                each.get_windows(info.env_ids, info.positions, 2)
                priority = 9 * torch.rand(16, device=info.positions.device)
                each.update_priority(info.env_ids, info.positions, priority)
                assert device.waits == []
                drawn.append((batch.time_step.reward, *info[:3]))
            for there, here in zip(*drawn, strict=True):
                assert torch.equal(there.cpu(), here)
        for each in (buffer, expected):
            torch.manual_seed(99)
            each.check_valid()
