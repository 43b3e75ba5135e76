"""Rows of an unroll on the host, each of which a device gets as it comes."""

from __future__ import annotations

import torch

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.replay_buffers.row_layout import RowLayout
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers.unroll import PreallocatedRows, UnrollStorage
from alf_lite.utils.devices import pinned_empty


class StagedStorage(UnrollStorage):
    """Time steps in pinned memory, and the same ones on a device.

    What the environment returns at a step is one block of memory, so that it takes one
    copy to the device, for which nobody waits. Metrics and a replay buffer in RAM read
    the rows of the host, acting and training those of the device: no step is copied
    twice, and none comes back.

    A row may be written again once its copy has arrived. The environment waits for the
    next action, and that is computed after it.

    Args:
        device: that acts.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def _allocate(self, values: TimeStep, num_rows: int) -> None:
        layout = RowLayout(
            nest.map_structure(lambda t: TensorSpec(t.shape[1:], t.dtype), values)
        )
        shape = (num_rows, nest.batch_size(values), layout.row_bytes)
        with torch.inference_mode(False):
            here = pinned_empty(shape, torch.uint8, self._device)
            there = torch.empty(shape, dtype=torch.uint8, device=self._device)
            self._use(layout.pack(layout.views(here)))
            self._there = layout.pack(layout.views(there))
            self._steps_there: list[TimeStep] = [
                nest.map_structure(lambda t, row=row: t[row], self._there)
                for row in range(num_rows)
            ]
            self._copies = list(zip(there.unbind(0), here.unbind(0), strict=True))

    def send(self, row: int) -> TimeStep:
        """Sends a row that was written; returns the step [B, ...] on the device."""
        there, here = self._copies[row]
        there.copy_(here, non_blocking=True)
        return self._steps_there[row]

    def read_there(self, begin: int, end: int) -> TimeStep:
        """As :meth:`read`, of the device."""
        return nest.map_structure(lambda t: t[begin:end], self._there)


class StagedRows(PreallocatedRows):
    """As ``PreallocatedRows``, of an environment on the host and a policy elsewhere.

    Args:
        device: of the policy.
    """

    moves = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._steps: StagedStorage = StagedStorage(device)

    def take(self, row: int, time_step: TimeStep) -> TimeStep:
        if row > 0 and self._step_rows is None:  # the environment did not write it
            self._steps.write(row, time_step, self._length + 1)
        return self._steps.send(row)

    def _add_step(self, row: int, time_step: TimeStep) -> None:
        """Nothing: it was taken."""

    def read_taken(self, num_time_steps: int) -> TimeStep:
        return self._steps.read_there(0, num_time_steps)

    def _read_inputs(self, num_rows: int) -> TimeStep:
        return self._steps.read_there(0, num_rows)
