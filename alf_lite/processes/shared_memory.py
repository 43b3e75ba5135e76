"""Memory that several processes map, seen as numpy arrays or as tensors.

Without torch, but for those who ask for tensors: children that need none start fast.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from alf_lite.errors import ConfigError
from alf_lite.utils.free_memory import free_ram

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = 64  # bytes, a cache line
_GB = 1e9


class Layout(Protocol):
    """Shape and dtype of a part of the memory, such as a ``TensorSpec``."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...  # of numpy or of torch: both have an itemsize


class ArrayLayout(NamedTuple):
    """A part that is looked at as an array."""

    shape: tuple[int, ...]
    dtype: np.dtype


class SharedMemory:
    """One block, in which arrays or tensors lie one behind the other.

    Both sides build it from the same layouts, so that only a file descriptor has to
    travel between them. The memory has no name in the file system: it vanishes with the
    last process that maps it, however that ends.

    Args:
        layouts: of the parts.
        purpose: who needs the memory, for the message if there is too little.
        advice: what to do then, likewise.
    """

    def __init__(self, layouts: Sequence[Layout], purpose: str, advice: str) -> None:
        self._layouts = list(layouts)
        self._purpose = purpose
        self._advice = advice
        self._buffer: mmap.mmap | None = None  # after create or attach

    @property
    def num_bytes(self) -> int:
        return max(_ALIGNMENT, sum(map(_aligned_bytes, self._layouts)))

    def create(self, num_copies: int = 1) -> int:
        """Allocates zeros; the file descriptor is for the other processes.

        Args:
            num_copies: how many such blocks there are going to be, which must all fit.

        Raises:
            ConfigError: if it does not fit; says how many GB are needed and free.
        """
        free, needed = free_ram(), self.num_bytes * num_copies
        if free is not None and needed > free:
            times = f"{num_copies} times " if num_copies > 1 else ""
            raise ConfigError(
                f"{times}{self._purpose}: {needed / _GB:.2f} GB of shared memory are "
                "needed, "
                f"but only {free / _GB:.2f} GB of memory are free. {self._advice}"
            )
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("alf_lite")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        try:
            os.ftruncate(descriptor, self.num_bytes)
            self.attach(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def attach(self, descriptor: int) -> None:
        """Maps the memory behind ``descriptor``, which may be closed afterwards."""
        self._buffer = mmap.mmap(descriptor, self.num_bytes)

    def create_here(self, num_copies: int = 1) -> None:
        """As :meth:`create`, for this process alone."""
        os.close(self.create(num_copies))

    @property
    def bytes_of_all(self) -> np.ndarray:
        """The whole block, uint8 [num_bytes]."""
        assert self._buffer is not None, "neither created nor attached"
        return np.frombuffer(self._buffer, np.uint8, self.num_bytes)

    def arrays(self) -> list[np.ndarray]:
        """The parts, whose dtypes are numpy's."""
        return [part.view(x.dtype).reshape(x.shape) for part, x in self._parts()]

    def tensors(self) -> list[Tensor]:
        """The parts, whose dtypes are torch's."""
        import torch

        # Ordinary tensors, whoever maps them.
        with torch.inference_mode(False):
            return [
                torch.from_numpy(part).view(x.dtype).view(x.shape)
                for part, x in self._parts()
            ]

    def _parts(self) -> Iterator[tuple[np.ndarray, Layout]]:
        """The bytes of each part, and its layout."""
        block, begin = self.bytes_of_all, 0
        for layout in self._layouts:
            yield block[begin : begin + _num_bytes(layout)], layout
            begin += _aligned_bytes(layout)


def _num_bytes(layout: Layout) -> int:
    return math.prod(layout.shape) * layout.dtype.itemsize


def _aligned_bytes(layout: Layout) -> int:
    return -(-_num_bytes(layout) // _ALIGNMENT) * _ALIGNMENT
