"""Reads files of ``torch.save`` as data: nothing in them is executed."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.checkpoints.data_files import (
    RefusalError,
    check_regular,
    reading,
    verify_archive,
)
from alf_lite.errors import DataError

# How torch says which function or class a file wanted, and what else was wrong.
_WANTED = re.compile(r"GLOBAL ([\w.]+)")
_REASON = re.compile(r"WeightsUnpickler error: (.*)")


def load_data(file: Path, *, verify: bool = True) -> Any:
    """The content of ``file``, its tensors on the CPU and mapped, not read yet.

    Args:
        file: of ``torch.save``.
        verify: read all of it once, and compare it with the checksums that are in it.
            Files of old versions of torch have none.

    Raises:
        DataError: if the file is damaged, or holds anything but data; names what it
            wanted to call.
    """
    check_regular(file)
    if verify and zipfile.is_zipfile(file):
        verify_archive(file)
    try:
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
        # Written by an old version of torch.
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        with reading(file):
            raise
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


def as_array(name: str, tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor, as they are in the file.

    Raises:
        RefusalError: if it is of a kind that numpy has not, or claims to have more than
            the file holds for it.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise RefusalError(f"{name} is no plain array of numbers")
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        raise RefusalError(
            f"{name} claims {tensor.nbytes} bytes, of which the file has "
            f"{tensor.untyped_storage().nbytes()}"
        )
    return tensor.detach().resolve_neg().numpy()


def tensors(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested dicts, with their keys joined by dots."""
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from tensors(child, f"{prefix}.{key}" if prefix else str(key))
