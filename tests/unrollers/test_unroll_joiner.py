"""Unrolls of several workers become one."""

from __future__ import annotations

import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.distributions.discrete import Categorical
from alf_lite.testing.stand_in_device import StandInDevice
from alf_lite.unrollers.unroll import Unroll, UnrollJoiner


def unroll(value: float, batch_size: int, length: int = 3) -> Unroll:
    """Everything in it is ``value``."""

    def full(*shape: int) -> torch.Tensor:
        return torch.full((length, batch_size, *shape), value)

    time_step = TimeStep(
        step_type=full().int(),
        reward=full(),
        discount=full(),
        observation={"image": full(2, 2).to(torch.uint8), "speed": full(1)},
        prev_action=full().long(),
        env_id=full().int(),
    )
    experience = Experience(time_step, full().long(), {"policy": Categorical(full(4))})
    return Unroll(experience, time_step, 0.0, False)


def assert_joined(joined: Experience, values: list[float], sizes: list[int]) -> None:
    columns = torch.tensor(values).repeat_interleave(torch.tensor(sizes))
    for path, leaf in nest.flatten_with_path(joined):
        assert leaf.shape[:2] == (3, sum(sizes)), path
        expected = columns.view(1, -1, *[1] * (leaf.dim() - 2)).expand_as(leaf)
        assert torch.equal(leaf, expected.to(leaf.dtype)), path


def test_unrolls_stand_side_by_side_in_their_order():
    joined = UnrollJoiner().join([unroll(1, 2), unroll(2, 3), unroll(3, 1)])
    assert_joined(joined, [1, 2, 3], [2, 3, 1])
    assert isinstance(joined.rollout_info["policy"], Categorical)
    assert joined.action.dtype == torch.int64


def test_a_single_unroll_is_not_copied():
    only = unroll(1, 2)
    assert UnrollJoiner().join([only]) is only.experience


@pytest.mark.parametrize("number", [1, 2])
def test_unrolls_of_the_host_go_where_they_are_trained_on(number):
    with StandInDevice() as device:
        joiner = UnrollJoiner(device.device)
        unrolls = [unroll(1, 2)] * number
        joined = joiner.join(unrolls)
        assert not device.waits
        for leaf in nest.flatten(joined):
            assert leaf.device == device.device
            assert leaf.shape[1] == 2 * number
            assert (leaf.cpu() == 1).all()


def test_memory_is_used_again_for_unrolls_of_the_same_sizes():
    joiner = UnrollJoiner()
    places = []
    for values in ([1, 2], [3, 4]):
        joined = joiner.join([unroll(values[0], 2), unroll(values[1], 2)])
        assert_joined(joined, values, [2, 2])
        places.append(joined.time_step.observation["image"].data_ptr())
    assert places[0] == places[1]


def test_the_number_and_the_sizes_of_unrolls_may_change():
    joiner = UnrollJoiner()
    for sizes in ([2, 2], [2, 2, 2], [4, 2], [2, 4], [2, 2]):
        values = list(range(len(sizes)))
        unrolls = [unroll(*pair) for pair in zip(values, sizes, strict=True)]
        assert_joined(joiner.join(unrolls), values, sizes)
