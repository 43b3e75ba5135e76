from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from alf_lite.errors import ConfigError
from alf_lite.processes import shared_memory
from alf_lite.processes.shared_memory import ArrayLayout, SharedMemory
from alf_lite.tensor_specs import TensorSpec
from tests.other_process import answer, other_process

SPECS = [
    TensorSpec((3,), dtype=torch.bool),
    TensorSpec((2, 5), dtype=torch.uint8),
    TensorSpec((), dtype=torch.int32),
    TensorSpec((7,), dtype=torch.int64),
    TensorSpec((0, 4), dtype=torch.float32),
    TensorSpec((3, 3), dtype=torch.float16),
    TensorSpec((1, 2, 3), dtype=torch.float32),
    TensorSpec((33,), dtype=torch.float64),
    TensorSpec((2, 0), dtype=torch.int64),
]


def shared(specs):
    return SharedMemory(specs, "a test", "Lower it.")


@contextlib.contextmanager
def created(specs, **kwargs):
    memory = shared(specs)
    descriptor = memory.create(**kwargs)
    try:
        yield memory, descriptor
    finally:
        os.close(descriptor)


def fill(tensors, number):
    for i, tensor in enumerate(tensors):
        tensor.fill_((number + i) % 2 if tensor.dtype == torch.bool else number + i)


def test_the_tensors_are_zeros_as_specified_and_each_begins_at_a_cache_line():
    with created(SPECS) as (memory, _):
        assert [TensorSpec.from_tensor(t) for t in memory.tensors()] == SPECS
        for tensor in memory.tensors():
            assert tensor.is_contiguous()
            assert not tensor.any()
            if tensor.numel():
                assert tensor.data_ptr() % 64 == 0


def test_no_tensor_overlaps_another():
    with created(SPECS) as (memory, _):
        for i, tensor in enumerate(memory.tensors()):
            fill(memory.tensors(), 1)
            tensor.zero_()
            for j, other in enumerate(memory.tensors()):
                expected = 0 if i == j or other.dtype == torch.bool else 1 + j
                if other.dtype != torch.bool:
                    assert (other == expected).all(), (i, j)


def test_tensors_can_be_trained_on_although_they_were_mapped_in_inference_mode():
    with torch.inference_mode(), created([TensorSpec((2,))]) as (memory, _):
        memory.tensors()[0].fill_(2)
    weight = torch.ones(2, requires_grad=True)
    (weight * memory.tensors()[0]).sum().backward()
    assert weight.grad.tolist() == [2, 2]


def test_what_one_maps_the_other_sees_in_both_directions():
    with created(SPECS) as (memory, descriptor):
        other = shared(SPECS)
        other.attach(descriptor)
        fill(memory.tensors(), 3)
        torch.testing.assert_close(other.tensors(), memory.tensors())
        fill(other.tensors(), 8)
        torch.testing.assert_close(other.tensors(), memory.tensors())


def _read_and_write(descriptor, connection):
    memory = shared(SPECS)
    memory.attach(descriptor)
    connection.send([tensor.tolist() for tensor in memory.tensors()])
    fill(memory.tensors(), 20)
    connection.send(None)


@pytest.mark.ci
def test_another_process_sees_what_is_written_and_is_seen_to_write():
    with created(SPECS) as (memory, descriptor):
        fill(memory.tensors(), 5)
        expected = [tensor.tolist() for tensor in memory.tensors()]
        with other_process(_read_and_write, descriptor) as connection:
            assert answer(connection) == expected
            answer(connection)
        own = [torch.empty_like(tensor) for tensor in memory.tensors()]
        fill(own, 20)
        torch.testing.assert_close(memory.tensors(), own)


def test_the_memory_outlives_the_descriptor_and_whoever_created_it():
    other = shared(SPECS)
    with created(SPECS) as (memory, descriptor):
        other.attach(descriptor)
        fill(memory.tensors(), 5)
        expected = [tensor.clone() for tensor in memory.tensors()]
        del memory
    gc.collect()
    torch.testing.assert_close(other.tensors(), expected)


@pytest.mark.parametrize("specs", [[], [TensorSpec((0,))]])
def test_nothing_can_be_shared(specs):
    with created(specs) as (memory, descriptor):
        other = shared(specs)
        other.attach(descriptor)
        assert len(other.tensors()) == len(memory.tensors()) == len(specs)
        assert memory.num_bytes > 0


def test_the_size_is_that_of_the_tensors_rounded_up_to_cache_lines():
    specs = [TensorSpec((17,)), TensorSpec((1,), dtype=torch.bool), TensorSpec((16,))]
    assert shared(specs).num_bytes == 128 + 64 + 64


@pytest.mark.parametrize(("free", "fits"), [(2_500_000_000, False), (None, True)])
def test_too_much_memory_is_refused_with_the_numbers(monkeypatch, free, fits):
    monkeypatch.setattr(shared_memory, "free_ram", lambda: free)
    memory = shared([TensorSpec((1000, 1000))])
    if fits:
        os.close(memory.create(num_copies=1000))
        return
    before = descriptors()
    with pytest.raises(
        ConfigError,
        match=r"1000 times a test: 4\.00 GB of shared memory are needed, but only "
        r"2\.50 GB of memory are free\. Lower it\.",
    ):
        memory.create(num_copies=1000)
    assert descriptors() == before
    os.close(memory.create(num_copies=600))


def descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))


def mappings() -> list[str]:
    """Of the shared memory, in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "alf_lite" in line and "memfd" in line]


@pytest.mark.ci
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_the_memory_has_no_name_and_nothing_is_left_behind():
    gc.collect()
    before = descriptors(), mappings()
    with created(SPECS) as (memory, descriptor):
        (mapping,) = set(mappings()) - set(before[1])
        assert mapping.endswith("(deleted)")
        other = shared(SPECS)
        other.attach(descriptor)
        del memory, other
    gc.collect()
    assert (descriptors(), mappings()) == before


def test_a_failure_to_map_closes_the_descriptor(monkeypatch):
    def fail(self, descriptor):
        raise OSError("cannot map")

    monkeypatch.setattr(SharedMemory, "attach", fail)
    before = descriptors()
    with pytest.raises(OSError, match="cannot map"):
        shared(SPECS).create()
    assert descriptors() == before


def test_without_memfd_a_file_without_a_name_is_used(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with created(SPECS) as (memory, descriptor):
        other = shared(SPECS)
        other.attach(descriptor)
        fill(memory.tensors(), 3)
        torch.testing.assert_close(other.tensors(), memory.tensors())
        assert not list(tmp_path.iterdir())


def test_arrays_of_numpy_lie_in_it_as_well():
    layouts = [
        ArrayLayout((3,), np.dtype(np.bool_)),
        ArrayLayout((2, 5), np.dtype(np.float64)),
        ArrayLayout((0, 4), np.dtype(np.uint8)),
        ArrayLayout((), np.dtype(np.int64)),
    ]
    with created(layouts) as (memory, descriptor):
        other = shared(layouts)
        other.attach(descriptor)
        for layout, array in zip(layouts, memory.arrays(), strict=True):
            assert (array.shape, array.dtype) == layout
            assert array.ctypes.data % 64 == 0
        for i, array in enumerate(memory.arrays()):
            array[...] = i
        for i, array in enumerate(other.arrays()):
            assert (array == i).all()
