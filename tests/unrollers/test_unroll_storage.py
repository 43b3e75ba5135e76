from __future__ import annotations

import pytest
import torch

from alf_lite import nest
from alf_lite.errors import ConfigError
from alf_lite.unrollers.unroll import UnrollStorage


def row(t: int) -> dict:
    return {"a": torch.full((2,), float(t)), "b": torch.full((2, 3), t)}


def test_rows_are_copied_and_read_back_in_order():
    storage = UnrollStorage()
    values = [row(t) for t in range(4)]
    for t in range(4):
        storage.write(t, values[t], num_rows=4)
        values[t]["a"].zero_()  # the caller may reuse its tensors
    assert storage.read(0, 4)["a"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert storage.read(1, 3)["b"].shape == (2, 2, 3)
    assert storage.read(0, 4)["b"].dtype == torch.int64


def test_a_longer_unroll_gets_more_rows_and_a_shorter_one_reuses_them():
    storage = UnrollStorage()
    storage.write(0, row(1), num_rows=1)
    for t in range(3):
        storage.write(t, row(t), num_rows=3)
    before = storage.read(0, 3)["a"].data_ptr()
    storage.write(0, row(7), num_rows=2)
    assert storage.read(0, 2)["a"].data_ptr() == before
    assert storage.read(0, 2)["a"].tolist() == [[7, 7], [1, 1]]


def test_what_is_read_can_be_trained_on_although_it_was_written_in_inference_mode():
    storage = UnrollStorage()
    with torch.inference_mode():
        storage.write(0, {"a": torch.ones(2)}, num_rows=1)
    weight = torch.ones(2, requires_grad=True)
    (weight * storage.read(0, 1)["a"]).sum().backward()
    assert weight.grad.tolist() == [1, 1]


def test_empty_nests_take_no_memory():
    storage = UnrollStorage()
    storage.write(0, (), num_rows=2)
    storage.write(1, (), num_rows=2)
    assert storage.read(0, 2) == ()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": torch.ones(2)}, "missing .*b"),
        ({"a": torch.ones(1), "b": torch.ones(2, 3).long()}, r"\['a'\] was \(2,\)"),
        ({"a": torch.ones(2), "b": torch.ones(2, 3)}, r"\['b'\] was .*int64.*float32"),
    ],
)
def test_rows_that_differ_from_the_first_are_refused(bad, message):
    storage = UnrollStorage()
    storage.write(0, row(0), num_rows=1)
    with pytest.raises(ValueError, match=message):
        storage.write(0, bad, num_rows=1)


def test_a_later_row_of_another_shape_is_refused_and_overwrites_nothing():
    storage = UnrollStorage()
    storage.write_rows(0, [row(0), row(1), row(2)], num_rows=3)
    before = nest.map_structure(torch.clone, storage.read(0, 3))
    wrong = {**row(8), "a": torch.ones(4)}
    with pytest.raises(ValueError, match=r"\['a'\] was \(2,\)"):
        storage.write_rows(0, [row(7), wrong], num_rows=3)
    after = storage.read(0, 3)
    assert all(map(torch.equal, nest.flatten(after), nest.flatten(before)))


def test_the_memory_holds_all_rows_and_stays_until_there_are_more():
    storage = UnrollStorage()
    for t in range(3):
        storage.write(t, row(t), num_rows=3)
    memory = storage.memory
    assert memory["a"].tolist() == [[0, 0], [1, 1], [2, 2]]
    storage.write(0, row(5), num_rows=2)
    assert storage.memory is memory
    storage.write(0, row(5), num_rows=4)
    assert storage.memory is not memory


def test_views_of_the_same_rows_are_made_once_until_there_are_more_rows():
    storage = UnrollStorage()
    storage.write(0, row(1), num_rows=1)
    views = storage.read(0, 1)
    assert storage.read(0, 1) is views
    storage.write(0, row(2), num_rows=2)
    assert storage.read(0, 1)["a"].tolist() == [[2, 2]]


def test_an_unroll_that_no_memory_holds_is_refused_before_it_is_taken():
    with pytest.raises(ConfigError, match="unroll_length smaller"):
        UnrollStorage().write(0, torch.zeros(4, 100), 10**12)
