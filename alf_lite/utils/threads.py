"""How many threads numbers are computed in: by torch, and by numpy's products."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def set_num_threads(number: int) -> None:
    """For this process. Small networks are slower in more than one."""
    torch.set_num_threads(number)
    library = _openblas()
    if library is not None:
        library.set_num_threads(number)


def is_single_threaded() -> bool:
    """Whether both certainly compute in one thread."""
    library = _openblas()
    return (
        library is not None
        and torch.get_num_threads() == 1
        and library.get_num_threads() == 1
    )


class _OpenBlas:
    """The library that numpy multiplies matrices with, if it brought it along."""

    def __init__(self, functions: Any, prefix: str) -> None:
        name = f"{prefix}openblas_%s_num_threads64_"
        self.set_num_threads: Callable[[int], None] = getattr(functions, name % "set")
        self.get_num_threads: Callable[[], int] = getattr(functions, name % "get")


@functools.cache
def _openblas() -> _OpenBlas | None:
    package = Path(np.__file__).parent
    for folder in (package.with_name("numpy.libs"), package / ".dylibs"):
        for prefix in ("scipy_", ""):  # of numpy 2, of numpy 1
            for path in folder.glob(f"lib{prefix}openblas64_*"):
                try:
                    return _OpenBlas(ctypes.CDLL(str(path)), prefix)
                except (OSError, AttributeError):
                    continue
    return None
