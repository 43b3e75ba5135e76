"""Statistics of batches on a device are those of the CPU, and nobody waits for them."""

from __future__ import annotations

import pytest
import torch

from alf_lite.tensor_specs import TensorSpec
from alf_lite.testing.stand_in_device import StandInDevice
from alf_lite.utils.device_graphs import CapturedFunction
from alf_lite.utils.normalizers import Normalizer, NotFiniteError


@pytest.mark.parametrize("mode", ["running", "adaptive", "moving"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_statistics_are_those_of_the_cpu(mode, is_masked):
    generator = torch.Generator().manual_seed(0)
    with StandInDevice() as device:
        options = {"update_rate": 0.01} if mode == "moving" else {}
        here = Normalizer(TensorSpec((3,)), mode=mode, **options)
        there = Normalizer(TensorSpec((3,)), mode=mode, **options)
        there.to(device.name)
        for i in range(4):
            batch = 5 + i * torch.randn(4, 2, 3, generator=generator)
            counted = None
            if is_masked:
                counted = torch.rand(4, 2, generator=generator) < 0.5 * (i != 1)
            here.update(batch, counted)
            args = [x.to(device.name) for x in (batch, counted) if x is not None]
            device.waits.clear()
            there.update(*args)
            assert not device.waits
        for name, value in here.state_dict().items():
            torch.testing.assert_close(there.state_dict()[name].cpu(), value)


def test_what_is_not_finite_changes_nothing_and_is_told_by_a_later_update():
    with StandInDevice() as device:
        normalizer = Normalizer(TensorSpec((2,))).to(device.name)
        good = torch.tensor([[1.0, 2.0], [3.0, 5.0]]).to(device.name)
        normalizer.update(good)
        before = {k: v.cpu().clone() for k, v in normalizer.state_dict().items()}
        normalizer.update(good * float("nan"))
        for name, value in normalizer.state_dict().items():
            assert torch.equal(value.cpu(), before[name])
        with pytest.raises(NotFiniteError, match="in an earlier batch"):
            normalizer.raise_late_errors()
        normalizer.update(good / 0)
        with pytest.raises(NotFiniteError, match="inputs, in an earlier batch"):
            for _ in range(2):
                normalizer.update(good)


def test_a_captured_graph_follows_the_statistics():
    with StandInDevice() as device:
        normalizer = Normalizer(TensorSpec((2,))).to(device.name)
        captured = CapturedFunction(normalizer.normalize, "it")
        for i in range(8):
            batch = torch.randn(16, 2).mul(i + 1).add(i).to(device.name)
            normalizer.update(batch)
            expected = normalizer.normalize(batch).cpu()
            torch.testing.assert_close(captured(batch).cpu(), expected)
        assert captured.num_graphs == 1
