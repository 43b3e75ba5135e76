"""Tensors in memory that several processes map."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils.free_memory import free_ram

_ALIGNMENT = 64  # bytes, a cache line
_GB = 1e9


class SharedTensors:
    """A list of tensors, placed one behind the other in one block.

    Both sides build it from the same specs, so that only a file descriptor has to
    travel between them. The memory has no name in the file system: it vanishes with the
    last process that maps it, however that ends.

    Args:
        specs: of the tensors.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = list(specs)
        self.tensors: list[Tensor] = []  # after create or attach

    @property
    def num_bytes(self) -> int:
        return max(_ALIGNMENT, sum(map(_aligned_bytes, self._specs)))

    def create(self, purpose: str, advice: str, num_copies: int = 1) -> int:
        """Allocates zeros; the file descriptor is for the other processes.

        Args:
            purpose: who needs the memory, for the message.
            advice: what to do if it does not fit, likewise.
            num_copies: how many such blocks there are going to be, which must all fit.

        Raises:
            ValueError: if it does not fit; says how many GB are needed and free.
        """
        free, needed = free_ram(), self.num_bytes * num_copies
        if free is not None and needed > free:
            raise ValueError(
                f"{purpose}: {needed / _GB:.2f} GB of shared memory are needed, "
                f"but only {free / _GB:.2f} GB of memory are free. {advice}"
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
        buffer = mmap.mmap(descriptor, self.num_bytes)
        offset = 0
        self.tensors = []
        # Ordinary tensors, whoever maps them.
        with torch.inference_mode(False):
            for spec in self._specs:
                count = math.prod(spec.shape)
                if count:
                    flat = torch.frombuffer(
                        buffer, dtype=spec.dtype, count=count, offset=offset
                    )
                else:
                    flat = torch.empty(0, dtype=spec.dtype)
                self.tensors.append(flat.view(spec.shape))
                offset += _aligned_bytes(spec)


def _aligned_bytes(spec: TensorSpec) -> int:
    itemsize = torch.empty(0, dtype=spec.dtype).element_size()
    size = int(np.prod(spec.shape, dtype=np.int64)) * itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT
