"""Plain data: what a checkpoint holds, and how what was read is compared with it.

Tensors, numbers, strings and dtypes in dicts, lists and tuples. Whatever a file claims
to be, it is compared with an example of what is expected before anything is changed
by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from alf_lite.config.values import as_number
from alf_lite.errors import CheckpointError

_LEAVES = (bool, int, float, str, bytes, torch.dtype, type(None))
_MAX_COUNT = 2**63 - 1
# The type of an example -> the types that are like it, and what they are called.
_ALLOWED: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    # As scores, which of older runs are whatever number a hook returned.
    type(None): ((bool, int, float, type(None)), "a number or nothing"),
    bool: ((bool,), "a bool"),
    str: ((str,), "a string"),
    bytes: ((bytes,), "bytes"),
}


def to_plain(value: Any, path: str) -> Any:
    """``value`` as only the types that can be read without running code.

    Raises:
        TypeError: naming the path of anything else.
    """
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        # torch.save writes the whole storage that a view belongs to.
        is_view = tensor.untyped_storage().nbytes() != tensor.nbytes
        return tensor.contiguous().clone() if is_view else tensor
    if type(value) in _LEAVES:
        return value
    if type(number := as_number(value)) in _LEAVES:
        return number
    if isinstance(value, dict):
        return {
            _plain_key(key, path): to_plain(item, f"{path}[{key!r}]")
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(
            to_plain(item, f"{path}[{index}]") for index, item in enumerate(value)
        )
    raise TypeError(
        f"{path}: a checkpoint cannot hold a {type(value).__name__}. Store tensors, "
        "numbers, strings, and dicts, lists or tuples of them."
    )


def _plain_key(key: Any, path: str) -> Any:
    if type(key) not in (str, int):
        raise TypeError(f"{path}: expected keys of type str or int, got {key!r}")
    return key


def check_plain(value: Any, what: str) -> None:
    """Checks that ``value`` is such data and that its tensors are what they seem.

    A tensor whose strides repeat a few bytes takes gigabytes as soon as it is used.

    Raises:
        CheckpointError: naming the entry.
    """
    for item, path in _walk(value, what):
        if isinstance(item, Tensor):
            _check_tensor(item, path)
        elif isinstance(item, dict):
            if any(type(key) not in (str, int) for key in item):
                raise CheckpointError(f"{path}: its keys are no strings or numbers")
        elif type(item) not in (*_LEAVES, list, tuple):
            raise CheckpointError(f"{path}: a {type(item).__name__} is no plain data")


def _walk(value: Any, what: str) -> Iterator[tuple[Any, str]]:
    """Everything that is in ``value``, once, with its path.

    A few bytes can say that a list contains a list many times, which contains another
    one many times, and so on, or even itself.
    """
    waiting, seen = [(value, what)], set()
    while waiting:
        item, path = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item, path
        if isinstance(item, dict):
            waiting += ((entry, f"{path}[{key!r}]") for key, entry in item.items())
        elif isinstance(item, list | tuple):
            waiting += ((entry, f"{path}[{i}]") for i, entry in enumerate(item))


def _check_tensor(tensor: Tensor, path: str) -> None:
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided
    if not is_plain or tensor.requires_grad or tensor.device.type != "cpu":
        raise CheckpointError(f"{path}: a tensor that is no plain data")
    stored = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() > stored:
        raise CheckpointError(
            f"{path}: a tensor {list(tensor.shape)} of {tensor.dtype}, for which there "
            f"are only {stored} bytes"
        )


def check_like(value: Any, example: Any, what: str, *, all_keys: bool = True) -> None:
    """Checks that ``value`` is what ``example`` is.

    Whole numbers are counts: not negative, unless the example is None, and not larger
    than 64 bits hold. Other numbers are finite. Tensors have the dtype and the number
    of dimensions of the example; whether their shapes fit is known to those who use
    them. Dicts have the same keys; of one that is empty in the example nothing is
    known.

    Args:
        value: what was read.
        example: the same, as this process would write it now.
        what: for errors.
        all_keys: False to compare only what is in both.

    Raises:
        CheckpointError: naming the entry, what was expected and what came.
    """
    if isinstance(example, Tensor):
        _check_like_tensor(value, example, what)
    elif isinstance(example, Mapping):
        _check_like_dict(value, example, what, all_keys)
    elif isinstance(example, list | tuple):
        if not isinstance(value, list | tuple):
            raise _unexpected(value, "a list", what)
        if len(value) != len(example):
            raise _unexpected(value, f"{len(example)} entries", what)
        for index, (item, like) in enumerate(zip(value, example, strict=True)):
            check_like(item, like, f"{what}[{index}]", all_keys=all_keys)
    else:
        allowed, text = _ALLOWED.get(type(example), ((type(example),), "another type"))
        if type(value) not in allowed:
            raise _unexpected(value, text, what)
        is_score = example is None and type(value) is int
        check_numbers(abs(value) if is_score else value, what)


def _check_like_tensor(value: Any, example: Tensor, what: str) -> None:
    fits = (
        isinstance(value, Tensor)
        and value.dtype == example.dtype
        and value.ndim == example.ndim
    )
    if not fits:
        raise _unexpected(value, _describe(example), what)


def _check_like_dict(
    value: Any, example: Mapping[Any, Any], what: str, all_keys: bool
) -> None:
    if not isinstance(value, Mapping):
        raise _unexpected(value, "a dict", what)
    if not example or not (value or all_keys):
        return
    if all_keys and value.keys() != example.keys():
        missing, unknown = example.keys() - value.keys(), value.keys() - example.keys()
        raise CheckpointError(
            f"{what}: expected the entries {sorted(map(str, example))}; missing: "
            f"{sorted(map(str, missing))}, unknown: {sorted(map(str, unknown))}"
        )
    for key, item in value.items():
        entry = f"{what}[{key!r}]"
        if key in example:
            check_like(item, example[key], entry, all_keys=all_keys)
        else:
            check_numbers(item, entry)


def check_numbers(value: Any, what: str) -> None:
    """Checks that all numbers in ``value`` are counts or finite, see ``check_like``.

    Raises:
        CheckpointError: naming the entry.
    """
    for item, path in _walk(value, what):
        if type(item) is int and not 0 <= item <= _MAX_COUNT:
            raise _unexpected(item, "a count", path)
        if type(item) is float and not math.isfinite(item):
            raise _unexpected(item, "a finite number", path)


def _unexpected(value: Any, expected: str, what: str) -> CheckpointError:
    return CheckpointError(f"{what}: expected {expected}, got {_describe(value)}")


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a tensor {list(value.shape)} of {dtype}"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)} entries"
    if type(value) is int and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 50 else f"{text[:50]}..."
