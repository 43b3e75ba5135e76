"""How the rows of an unroll are kept until it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.environments.step_rows import StepRow
from alf_lite.unrollers.unroll_storage import UnrollStorage

Nest = Any


class UnrollRows(Protocol):
    """Takes the rows of one unroll after the other."""

    def begin(
        self, length: int, env: Environment, first_step: TimeStep
    ) -> Sequence[StepRow] | None:
        """Begins an unroll of ``length`` steps.

        Args:
            length: T.
            env: that is stepped.
            first_step: raw, [B, ...]; may be the last one of the previous unroll.

        Returns:
            The T+1 rows of which the environment writes all but the first one, which
            has been written; None if the steps are to be added instead.
        """

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
    """Keeps the rows in memory that every unroll uses again.

    Where it can, the environment writes its steps there; everything else is copied.

    Args:
        memory: nest of (time step, experience) with [T, B, ...] tensors: one copy for
            both. None means memory of its own.
    """

    def __init__(self, memory: tuple[Nest, Nest] | None = None) -> None:
        steps, rest = (None, None) if memory is None else memory
        self._steps = UnrollStorage(steps)
        self._rest = UnrollStorage(rest)
        self._env: Environment | None = None
        self._memory: Nest = None  # that _step_rows are the rows of
        self._step_rows: Sequence[StepRow] | None = None
        self._num_added = 0
        self._length = 0

    def begin(
        self, length: int, env: Environment, first_step: TimeStep
    ) -> Sequence[StepRow] | None:
        self._begin_steps(length, first_step)
        self._length = length
        self._num_added = 0
        memory = self._steps.memory
        if self._memory is not memory or self._env is not env:
            self._memory, self._env = memory, env
            self._step_rows = env.rows_of(memory)
        return self._step_rows

    def _begin_steps(self, length: int, first_step: TimeStep) -> None:
        rows = self._step_rows
        if (
            rows is not None
            and length < len(rows)
            and rows[self._length].time_step is first_step
        ):
            # As a rule: known to fit, because it is the last row of the unroll before.
            self._steps.copy_row(self._length, 0)
        else:
            self._steps.write(0, first_step, length + 1)

    def add(self, time_step: TimeStep, experience: Experience) -> None:
        row = self._num_added
        if row > 0 and self._step_rows is None:
            self._steps.write(row, time_step, self._length + 1)
        self._rest.write(row, experience, self._length + 1)
        self._num_added += 1

    def end(self, last_step: TimeStep | None) -> tuple[TimeStep, Experience]:
        if last_step is not None and self._step_rows is None:
            self._steps.write(self._num_added, last_step, self._length + 1)
        return self.read(self._length + 1, self._num_added)

    def read(self, num_time_steps: int, num_rows: int) -> tuple[TimeStep, Experience]:
        """Views of raw steps and of rows of experience, as :meth:`end` returns them."""
        experience: Experience = self._rest.read(0, num_rows)
        if experience.time_step == ():
            inputs = self._steps.read(0, num_rows)
            experience = experience._replace(time_step=inputs)
        return self._steps.read(0, num_time_steps), experience


class LinkedRows:
    """Keeps the rows themselves, with the gradient of what the policy did."""

    def __init__(self) -> None:
        self._time_steps: list[TimeStep] = []
        self._experience: list[Experience] = []

    def begin(self, length: int, env: Environment, first_step: TimeStep) -> None:
        # The environment's tensors are kept as they are.
        self._forget()

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
        self._forget()
        if experience.time_step == ():
            inputs = nest.map_structure(lambda t: t[:num_rows], time_steps)
            experience = experience._replace(time_step=inputs)
        return time_steps, experience

    def _forget(self) -> None:
        self._time_steps = []
        self._experience = []


def cloned(values: Nest) -> Nest:
    """The same nest of tensors in memory of their own."""
    return values if nest.is_empty(values) else nest.map_structure(torch.clone, values)


def detached(values: Nest) -> Nest:
    """The same nest of tensors without gradient."""
    return nest.map_structure(torch.Tensor.detach, values)
