"""How unroll workers get the parameters to act with: through shared memory, untorn."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from alf_lite.processes.shared_memory import SharedMemory
from alf_lite.tensor_specs import TensorSpec

_BEGUN, _PUBLISHED = 0, 1


class ParameterStore(SharedMemory):
    """One process publishes versions of a list of tensors, any number of others read.

    There are two copies. Version v is written into copy v % 2 while readers use the
    other one. The writer never waits. A reader that was so slow that the writer began
    the next but one version meanwhile notices it and reads again, so that it never uses
    tensors of which some are newer than others (a sequence lock).

    Args:
        specs: of the tensors.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        counters = TensorSpec((2,), dtype=torch.int64)
        self._num_tensors = len(specs)
        super().__init__(
            [counters, *specs, *specs],
            "the parameters for unroll workers",
            "Use a smaller network.",
        )
        # Some processors reorder what is not between two holders of a lock.
        self._barrier = threading.Lock()

    def attach(self, descriptor: int) -> None:
        super().attach(descriptor)
        counters, *copies = self.tensors()
        self._counters = counters.numpy()
        self._copies = (copies[: self._num_tensors], copies[self._num_tensors :])

    @property
    def version(self) -> int:
        """The newest complete one; 0 before the first."""
        return int(self._counters[_PUBLISHED])

    def publish(self, tensors: Sequence[Tensor]) -> int:
        """Copies ``tensors`` from any device. Returns the new version."""
        version = self.version + 1
        with self._barrier:
            self._counters[_BEGUN] = version
        with self._barrier, torch.no_grad():
            torch._foreach_copy_(self._copies[version % 2], list(tensors))
        with self._barrier:
            self._counters[_PUBLISHED] = version
        return version

    def read(self, into: Sequence[Tensor], known_version: int = 0) -> int:
        """Copies the newest version into ``into``, unless it is known.

        Args:
            into: tensors of this process.
            known_version: what they hold.

        Returns:
            The version that ``into`` holds now.
        """
        into = list(into)
        while True:
            with self._barrier:
                version = self.version
            if version == known_version:
                return version
            with self._barrier, torch.no_grad():
                torch._foreach_copy_(into, self._copies[version % 2])
            with self._barrier:
                is_whole = self._counters[_BEGUN] <= version + 1
            if is_whole:
                return version
