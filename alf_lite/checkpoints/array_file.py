"""Named arrays in one file that can be memory-mapped, in the safetensors format.

Eight bytes with the length of the header, the header in JSON, then the arrays one after
the other, little-endian. The header gives the dtype, the shape and the place of every
array, and texts under ``__metadata__``. Reading it executes nothing, and any reader of
the format can look into such a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from alf_lite.border import FOREIGN, border

_DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# The first array begins at a multiple of this: where memory can be mapped.
_ALIGNMENT = 4096
_ARRAYS = FOREIGN._replace(verdict="refused, it is not a file of arrays")
_MAX_HEADER_BYTES = 16 * 1024 * 1024


class ArrayPlace(NamedTuple):
    """Where an array is in the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int  # bytes from the beginning of the file
    end: int


class Header(NamedTuple):
    """What is in the file."""

    arrays: dict[str, ArrayPlace]
    metadata: dict[str, str]


def encode_header(
    arrays: Mapping[str, tuple[np.dtype, Sequence[int]]], metadata: Mapping[str, str]
) -> bytes:
    """The bytes that come before the arrays.

    Args:
        arrays: name -> dtype and shape, in the order in which they will follow.
        metadata: texts about them.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, (dtype, shape) in arrays.items():
        num_bytes = math.prod(shape) * dtype.itemsize
        entries[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, offset + num_bytes],
        }
        offset += num_bytes
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def decode_header(data: Any, what: str) -> Header:
    """The header of a file.

    Args:
        data: the whole file, such as a ``memoryview`` of mapped memory.
        what: for errors.

    Raises:
        CheckpointError: if it is not such a file, or is longer or shorter than it says.
    """
    with border(what, _ARRAYS):
        return _decode(data)


def _decode(data: Any) -> Header:
    num_bytes = int.from_bytes(bytes(data[:8]), "little")
    if len(data) < 8 or num_bytes > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError("not a file of arrays, or cut off")
    first = 8 + num_bytes
    entries = json.loads(bytes(data[8:first]))
    if not isinstance(entries, dict):
        raise ValueError("not a file of arrays")
    metadata = entries.pop("__metadata__", {})
    if any(not isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are not texts")
    arrays, end = {}, first
    for name, entry in entries.items():
        arrays[name] = place = _place(name, entry, first, end)
        end = place.end
    if end != len(data):
        raise ValueError(f"{len(data)} bytes, but its header speaks of {end}")
    return Header(arrays, metadata)


def _place(name: str, entry: Mapping[str, Any], first: int, begin: int) -> ArrayPlace:
    """The place of an array.

    Args:
        name: of the array.
        entry: what the header says about it.
        first: where all arrays begin.
        begin: where this one has to begin, behind the one before.
    """
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"{name} has the unknown dtype {entry['dtype']!r}")
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{name} has the shape {shape}")
    end = begin + math.prod(shape) * dtype.itemsize
    if entry["data_offsets"] != [begin - first, end - first]:
        raise ValueError(
            f"{name} lies at {entry['data_offsets']}, expected {begin - first} to "
            f"{end - first}"
        )
    return ArrayPlace(dtype, shape, begin, end)
