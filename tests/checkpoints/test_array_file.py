"""Arrays in one file: what the header says, and headers that are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from alf_lite.checkpoints.array_file import decode_header, encode_header
from alf_lite.errors import CheckpointError


def file_of(arrays: dict[str, np.ndarray], **metadata: str) -> bytes:
    places = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    content = b"".join(array.tobytes() for array in arrays.values())
    return encode_header(places, metadata) + content


def raw(header: object, content: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


ARRAYS = {
    "rows": np.arange(15, dtype=np.uint8).reshape(3, 5),
    "weights": np.array([0.5, -1.0]),
    "none": np.zeros((0, 4), np.float32),
    "flags": np.array([True, False, True]),
    "number": np.array(7, np.int64),
}


def test_arrays_come_back():
    data = file_of(ARRAYS, title="some")
    header = decode_header(memoryview(data), "file")
    assert header.metadata == {"title": "some"}
    assert list(header.arrays) == list(ARRAYS)
    for name, place in header.arrays.items():
        content = np.frombuffer(data[place.begin : place.end], place.dtype)
        assert np.array_equal(content.reshape(place.shape), ARRAYS[name])


def test_the_first_array_begins_where_memory_can_be_mapped():
    for length in (0, 3000, 4000, 5000):
        data = file_of(ARRAYS, title="x" * length)
        assert decode_header(data, "file").arrays["rows"].begin % 4096 == 0


def test_the_format_is_that_of_safetensors():
    # By its specification: length of the header, JSON, then the arrays without gaps.
    data = file_of({"a": np.ones(2, np.float32), "b": np.zeros(1, np.int64)}, k="v")
    size = int.from_bytes(data[:8], "little")
    assert json.loads(data[8 : 8 + size]) == {
        "__metadata__": {"k": "v"},
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]},
    }
    assert data[8:9] == b"{"
    assert len(data) == 8 + size + 16


def entry(**changes: object) -> dict:
    return {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **changes}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut off"),
        (b"1234567", "cut off"),
        ((2**60).to_bytes(8, "little") + b"{}", "cut off"),
        (raw(entry())[:20], "cut off"),
        (raw(entry(), b"123"), "117 bytes|its header speaks of"),
        (raw(entry(), b"12345"), "its header speaks of"),
        (raw(entry(data_offsets=[0, 5]), b"12345"), r"lies at \[0, 5\]"),
        (raw(entry(data_offsets=[1, 5]), b"12345"), r"lies at \[1, 5\]"),
        (raw(entry(data_offsets=[]), b"1234"), r"lies at \[\]"),
        (raw(entry(shape=[-4]), b"1234"), r"shape \(-4,\)"),
        (raw(entry(shape=[4.0]), b"1234"), "shape"),
        (raw(entry(shape=[True, 4]), b"1234"), "shape"),
        (raw(entry(shape=None), b"1234"), "not iterable"),
        (raw(entry(dtype="object"), b"1234"), "unknown dtype 'object'"),
        (raw({"a": 3}), "file"),
        (raw({"__metadata__": {"a": 1}}), "not texts"),
        (raw({"__metadata__": []}), "file"),
        (raw([]), "not a file of arrays"),
        ((5).to_bytes(8, "little") + b"{{{{{", "file"),
        ((9).to_bytes(8, "little") + b"\xff" * 9, "file"),
        ((2 * 10**5).to_bytes(8, "little") + b"[" * (2 * 10**5), "file"),
    ],
)
def test_what_is_no_such_file_is_refused(data, message):
    with pytest.raises(CheckpointError, match=message) as error:
        decode_header(data, "file.safetensors")
    assert str(error.value).startswith("file.safetensors: ")
