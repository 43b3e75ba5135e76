"""Reads files of ``torch.save`` as data: nothing in them is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alf_lite.errors import DataError

# How torch says which function or class a file wanted, and what else was wrong.
_WANTED = re.compile(r"GLOBAL ([\w.]+)")
_REASON = re.compile(r"WeightsUnpickler error: (.*)")


def load_data(file: Path) -> Any:
    """The content of ``file``, its tensors on the CPU and mapped, not read yet.

    Raises:
        DataError: if the file is damaged, or holds anything but data; names what it
            wanted to call.
    """
    try:
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
        # Written by an old version of torch.
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a hostile file makes the reader raise
        wanted = _WANTED.search(str(error))
        if wanted is not None:
            raise DataError(
                f"{file}: refused, it is not plain data: it wants to call {wanted[1]}. "
                "Reading such a file could run any code."
            ) from error
        found = _REASON.search(str(error))
        lines = [found[1]] if found else str(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise DataError(f"{file}: damaged, truncated or not data ({reason})") from error


def tensors(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested dicts, with their keys joined by dots."""
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from tensors(child, f"{prefix}.{key}" if prefix else str(key))
