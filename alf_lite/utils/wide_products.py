"""Products of large matrices in torch that take the whole width of the processor.

Since Zen 5, AMD's processors multiply 16 numbers at once. MKL, by which torch makes
its products, takes 8 on all of AMD's; oneDNN, which torch has for convolutions, takes
16 and is twice as fast. ``ALF_LITE_FAST=0`` in the environment leaves it to torch.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Rows of a batch times the weights of the largest layer. oneDNN begins 10 µs later than
# MKL: from here on it saves more than it loses in layers of few units.
_LARGE = 2**22
_CPU_INFO = Path("/proc/cpuinfo")
_ZEN_5 = 26  # the family
_AVX_512 = {"avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"}


class wide_products:  # noqa: N801 - used like a function
    """Inside, torch multiplies float32 matrices by oneDNN, if that is faster.

    On most processors it is not, nor for small networks, and nothing changes. Results
    are float32 in any case, with other last bits.

    Args:
        num_rows: of a batch.
        largest: what :func:`largest_matrix` says of the network.
    """

    __slots__ = ("_is_on",)

    def __init__(self, num_rows: int, largest: int) -> None:
        self._is_on = (
            not torch.compiler.is_compiling()  # has no sizes
            and num_rows * largest >= _LARGE
            and _is_faster()
        )

    def __enter__(self) -> None:
        # What somebody has set himself is left.
        self._is_on = self._is_on and _matmul().fp32_precision == "none"
        if self._is_on:
            _matmul().fp32_precision = "bf16"

    def __exit__(self, *error: object) -> None:
        if self._is_on:
            _matmul().fp32_precision = "none"


def largest_matrix(parameters: Iterable[Tensor]) -> int:
    """The number of weights of the largest layer on a CPU; of ensembles, in one member.

    0 if all are elsewhere, where nothing shall change.
    """
    shapes = [p.shape[-2:] for p in parameters if p.is_cpu and p.ndim in (2, 3)]
    return max((rows * columns for rows, columns in shapes), default=0)


def is_since_zen_5(cpu_info: str) -> bool:
    """Whether ``/proc/cpuinfo`` begins with one of these, with AVX-512."""
    fields = re.findall(r"^([^:\n]*?)[ \t]*:[ \t]*(.*)$", cpu_info, re.MULTILINE)
    first = dict(reversed(fields))
    return (
        first.get("vendor_id") == "AuthenticAMD"
        and int(first.get("cpu family", 0)) >= _ZEN_5
        and _AVX_512.issubset(first.get("flags", "").split())
    )


@functools.cache
def _is_faster() -> bool:
    return (
        os.environ.get("ALF_LITE_FAST") != "0"
        and _CPU_INFO.exists()  # Linux
        and is_since_zen_5(_CPU_INFO.read_text(encoding="utf-8"))
        and torch.backends.mkldnn.is_available()
        and _matmul() is not None
        and _is_exact()
    )


def _matmul() -> Any:
    """How torch multiplies float32 by oneDNN: "none" leaves it to MKL. Since 2.9."""
    return getattr(torch.backends.mkldnn, "matmul", None)


def _is_exact() -> bool:
    """Whether "bf16" is float32 here.

    It allows oneDNN to round numbers before they are multiplied, which only processors
    with units for matrices do. AMD has built none so far.
    """
    matrix = torch.linspace(0, 1000, 256 * 256).sin().view(256, 256)
    exact = matrix.double() @ matrix.double()
    before, _matmul().fp32_precision = _matmul().fp32_precision, "bf16"
    try:
        error = (matrix @ matrix - exact).abs().max()
    finally:
        _matmul().fp32_precision = before
    return bool(error < 1e-5 * exact.abs().max())
