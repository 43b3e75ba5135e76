"""How the rows of an unroll are kept until it is complete."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.unrollers.unroll_storage import UnrollStorage

Nest = Any


class UnrollRows(Protocol):
    """Takes the rows of one unroll after the other."""

    def begin(self, length: int) -> None:
        """Begins an unroll of ``length`` steps."""

    def add(self, time_step: TimeStep, experience: Experience) -> None:
        """Adds what came [B, ...] and what the policy did there.

        Args:
            time_step: raw.
            experience: its ``time_step`` is () if the policy saw the raw one.
        """

    def end(self, last_step: TimeStep | None) -> tuple[TimeStep, Experience]:
        """Ends the unroll.

        Args:
            last_step: on which nobody acted yet; None if all rows were added.

        Returns:
            The raw steps [length + 1, B, ...], and one row of experience for each that
            was added.
        """


class StoredRows:
    """Copies the rows into memory that every unroll uses again.

    Args:
        memory: nest of (time step, experience) with [T, B, ...] tensors: one copy for
            both. None means memory of its own.
    """

    def __init__(self, memory: tuple[Nest, Nest] | None = None) -> None:
        self._storage = UnrollStorage(memory)
        self._num_stored = 0
        self._num_rows = 0

    def begin(self, length: int) -> None:
        self._num_rows = length + 1
        self._num_stored = 0

    def add(self, time_step: TimeStep, experience: Experience) -> None:
        self._storage.write(self._num_stored, (time_step, experience), self._num_rows)
        self._num_stored += 1

    def end(self, last_step: TimeStep | None) -> tuple[TimeStep, Experience]:
        if last_step is not None:
            self._storage.write_first_part(self._num_stored, last_step)
        return self.read(self._num_rows, self._num_stored)

    def read(self, num_time_steps: int, num_rows: int) -> tuple[TimeStep, Experience]:
        """Views of raw steps and of rows of experience, as :meth:`end` returns them."""
        time_steps, _ = self._storage.read(0, num_time_steps)
        inputs, experience = self._storage.read(0, num_rows)
        return time_steps, _with_inputs(experience, inputs)


class LinkedRows:
    """Keeps the rows themselves, with the gradient of what the policy did."""

    def begin(self, length: int) -> None:
        self._time_steps: list[TimeStep] = []
        self._experience: list[Experience] = []

    def add(self, time_step: TimeStep, experience: Experience) -> None:
        self._time_steps.append(time_step)
        self._experience.append(experience)

    def end(self, last_step: TimeStep | None) -> tuple[TimeStep, Experience]:
        num_rows = len(self._time_steps)
        if last_step is not None:
            self._time_steps.append(last_step)
        time_steps = nest.stack(self._time_steps)
        experience = nest.stack(self._experience)
        # The unroller may live on: nothing shall keep the graph alive.
        self.begin(0)
        inputs = nest.map_structure(lambda t: t[:num_rows], time_steps)
        return time_steps, _with_inputs(experience, inputs)


def _with_inputs(experience: Experience, inputs: TimeStep) -> Experience:
    """Where nothing was transformed, the raw steps serve both purposes."""
    if experience.time_step == ():
        return experience._replace(time_step=inputs)
    return experience


def detached(values: Nest) -> Nest:
    """The same nest of tensors without gradient."""
    return nest.map_structure(torch.Tensor.detach, values)
