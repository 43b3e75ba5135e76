from __future__ import annotations

import os
import time

import pytest
import torch

from alf_lite.processes import shared_memory
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers.worker_memory import ParameterStore
from tests.other_process import answer, other_process

SPECS = [
    TensorSpec((300, 40)),
    TensorSpec((), dtype=torch.int64),
    TensorSpec((0,)),
    TensorSpec((2000,), dtype=torch.float64),
]
NUM_READS = 5_000


def constants(number: int) -> list[torch.Tensor]:
    return [torch.full(spec.shape, number, dtype=spec.dtype) for spec in SPECS]


@pytest.fixture
def stores():
    """The store of the writer, and that of a reader."""
    writer, reader = ParameterStore(SPECS), ParameterStore(SPECS)
    descriptor = writer.create()
    reader.attach(descriptor)
    os.close(descriptor)
    return writer, reader


def test_before_the_first_version_nothing_is_read(stores):
    _, reader = stores
    into = constants(7)
    assert reader.version == 0
    assert reader.read(into) == 0
    torch.testing.assert_close(into, constants(7))


def test_versions_count_from_one_and_the_newest_is_read(stores):
    writer, reader = stores
    into, known = constants(0), 0
    for version in range(1, 6):
        assert writer.publish(constants(10 * version)) == version
        assert reader.version == writer.version == version
        if version != 3:  # one is missed
            known = reader.read(into, known)
            assert known == version
            torch.testing.assert_close(into, constants(10 * version))


def test_what_is_known_is_not_read_again(stores):
    writer, reader = stores
    writer.publish(constants(3))
    into = constants(0)
    assert reader.read(into, 1) == 1
    torch.testing.assert_close(into, constants(0))


def test_parameters_that_need_gradients_are_published_and_read(stores):
    writer, reader = stores
    specs = [spec for spec in SPECS if spec.dtype.is_floating_point]
    assert len(specs) == 3
    trained = [t.requires_grad_(t.is_floating_point()) for t in constants(4)]
    acting = [t.requires_grad_(t.is_floating_point()) for t in constants(0)]
    writer.publish(trained)
    assert reader.read(acting) == 1
    for tensor in acting:
        assert (tensor == 4).all()
        assert tensor.grad_fn is None


def test_a_version_that_is_only_begun_is_not_seen(stores, monkeypatch):
    writer, reader = stores
    writer.publish(constants(1))

    def fail(into, tensors):
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            writer.publish(constants(2))
    into = constants(0)
    assert reader.read(into) == 1
    torch.testing.assert_close(into, constants(1))
    assert writer.publish(constants(3)) == 2


def test_a_reader_that_was_overtaken_reads_again(stores, monkeypatch):
    writer, reader = stores
    writer.publish(constants(1))
    copy = torch._foreach_copy_
    num_copies = []

    def copy_and_be_overtaken(into, tensors):
        copy(into, tensors)
        num_copies.append(1)
        if len(num_copies) == 1:
            monkeypatch.setattr(torch, "_foreach_copy_", copy)
            for version in (2, 3):
                writer.publish(constants(version))
            monkeypatch.setattr(torch, "_foreach_copy_", copy_and_be_overtaken)

    monkeypatch.setattr(torch, "_foreach_copy_", copy_and_be_overtaken)
    into = constants(0)
    assert reader.read(into) == 3
    assert len(num_copies) == 2
    torch.testing.assert_close(into, constants(3))


def test_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(shared_memory, "free_ram", lambda: 1000)
    with pytest.raises(ValueError, match=r"parameters for unroll workers: 0\.00 GB"):
        ParameterStore(SPECS).create()


def _publish_until_told_to_stop(descriptor, connection):
    store = ParameterStore(SPECS)
    store.attach(descriptor)
    own = constants(0)
    while not connection.poll(0):
        for _ in range(50):
            for tensor in own:
                tensor.fill_(store.version + 1)
            store.publish(own)
    connection.recv()
    connection.send(store.version)


@pytest.mark.ci
def test_no_reader_ever_sees_tensors_of_two_versions():
    reader = ParameterStore(SPECS)
    descriptor = reader.create()
    into, known, num_new = constants(0), 0, 0
    with other_process(_publish_until_told_to_stop, descriptor) as connection:
        while reader.version == 0:
            time.sleep(0.001)
        deadline, num_reads = time.monotonic() + 120, 0
        # On a busy machine, the writer may stand still for many reads.
        while num_reads < NUM_READS or num_new < 10:
            assert time.monotonic() < deadline, (num_reads, num_new)
            num_reads += 1
            version = reader.read(into)
            assert version >= known
            num_new += version != known
            known = version
            for tensor in into:
                assert (tensor == version).all()
        connection.send("stop")
        newest = answer(connection)
    os.close(descriptor)
    assert reader.read(into, known) == newest
    torch.testing.assert_close(into, constants(newest))
