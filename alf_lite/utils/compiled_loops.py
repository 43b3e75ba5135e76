"""Loops over a batch that numba compiles, where it is installed.

Small batches are bound by the number of calls, and one loop takes the place of dozens
of numpy's. What is computed by a loop has a body in numpy beside it, which gives the
same to the bit: numba is no dependency (``pip install 'alf_lite[numba]'``).
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

Loop = Callable[..., Any]


def has_compiler() -> bool:
    """Whether loops are compiled: with numba, unless ``ALF_LITE_FAST=0``."""
    is_off = os.environ.get("ALF_LITE_FAST") == "0"
    return not is_off and importlib.util.find_spec("numba") is not None


@functools.cache
def compiled(function: Loop, signature: str) -> Loop | None:
    """``function``, compiled and kept on the disk; None if there is no compiler.

    Args:
        function: of numbers and contiguous arrays, at the top of a module.
        signature: their types, as numba writes them.
    """
    if not has_compiler():
        return None
    import numba  # takes a quarter of a second, and not every run needs it

    options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
    try:
        return numba.njit(signature, cache=True, **options)(function)
    except RuntimeError:  # there is no place on the disk
        return numba.njit(signature, **options)(function)
