"""What unrollers return, and where its rows are kept until it is complete."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import AlgStep, Experience, StepType, TimeStep
from alf_lite.environments.environment import Environment, StepRow
from alf_lite.errors import ConfigError
from alf_lite.utils.devices import moved
from alf_lite.utils.free_memory import check_ram

Nest = Any

# Unrolls differ in their length by one at most, as a rule.
_MAX_VIEWS = 16
# So many rows of experience are written together.
_MAX_KEPT = 16

_traits = operator.attrgetter("shape", "dtype")
_address = operator.methodcaller("data_ptr")  # 0 of a tensor without numbers


class ActingPolicy(Protocol):
    """What an unroller needs to know of an algorithm."""

    @property
    def device(self) -> torch.device: ...

    @property
    def overwrite_policy_output(self) -> bool:
        """Whether to store the action that the environment says it executed.

        That is ``prev_action`` of the next step, in place of the policy's.
        """
        ...

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep: ...

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]: ...

    def get_initial_rollout_state(self, batch_size: int) -> Nest: ...

    def get_initial_transform_state(self, batch_size: int) -> Nest: ...


class Unroll(NamedTuple):
    """The result of an unroll of T steps.

    Without gradient both parts are views of the unroller's storage, valid until its
    next unroll.
    """

    experience: Experience  # [T, B, ...], or [T+1, B, ...] with a bootstrap row
    time_steps: TimeStep  # [T+1, B, ...] untransformed; row T starts the next unroll
    env_step_seconds: float
    is_first_unroll: bool  # row 0 of time_steps has not been in an earlier unroll
    env_ids: Tensor | None = None  # [B], the environments; None: all, in their order
    # Columns of which the same is true, because episodes could not be resumed there.
    new_columns: tuple[int, ...] = ()
    # (begin, end) → these rows of ``time_steps``, if they are views that are kept.
    kept_rows: Callable[[int, int], TimeStep] | None = None
    # [T+1, B, ...] ``time_steps`` where the policy is, if that is another device.
    taken_steps: TimeStep | tuple[()] = ()
    # Whether environments may have failed, see ``Environment.num_restarts``.
    may_have_restarts: bool = True

    def mark_cut_off(self) -> None:
        """Makes a step LAST if its environment failed at the next one.

        That one is the FIRST of a new episode: no transition leads to it. As the last
        step of an episode is bootstrapped, it is truncated.
        """
        step_type = self.time_steps.step_type
        is_first = step_type[1:] == int(StepType.FIRST)
        is_cut = is_first & (step_type[:-1] != int(StepType.LAST))  # [T, B]
        if not is_cut.any():
            return
        for steps in (self.time_steps, self.taken_steps, self.experience.time_step):
            if isinstance(steps, TimeStep):
                rows = steps.step_type[: len(is_cut)]
                rows[is_cut.to(rows.device)] = int(StepType.LAST)

    def rows(self, begin: int, end: int) -> TimeStep:
        """``time_steps[begin:end]``."""
        if self.kept_rows is None:
            return nest.narrow(self.time_steps, begin, end)
        return self.kept_rows(begin, end)

    def rows_on(self, device: torch.device, begin: int, end: int) -> TimeStep:
        """As :meth:`rows`, those that are on ``device`` if there are such."""
        taken = self.taken_steps
        if isinstance(taken, TimeStep) and taken.reward.device == device:
            return nest.narrow(taken, begin, end)
        return self.rows(begin, end)

    def action_on(self, device: torch.device) -> Nest:
        """The actions [T, B, ...] of the experience, where they need not be moved.

        On the host these are the ones that the environment was given: none after the
        end of an episode.
        """
        if self.taken_steps == () or device.type != "cpu":
            return self.experience.action
        return self.rows(1, len(self.time_steps.step_type)).prev_action


class UnrollJoiner:
    """Puts unrolls side by side, in memory that is used again for those of one size.

    Args:
        device: where they are wanted; None: where they are.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._sizes: list[int] = []  # B of every unroll
        self._memory: list[Tensor] = []  # [T, ΣB, ...]
        self._places: list[Tensor] = []  # where in it the unrolls go, one after another

    def join(self, unrolls: Sequence[Unroll]) -> Experience:
        """The experience of unrolls of equal length, side by side [T, ΣB, ...].

        Valid as long as the unrolls are, and until the next call.
        """
        joined = self._side_by_side(unrolls)
        if self._device is None or self._device.type == "cpu":
            return joined
        return moved(joined, self._device)

    def _side_by_side(self, unrolls: Sequence[Unroll]) -> Experience:
        if len(unrolls) == 1:
            return unrolls[0].experience
        parts = [nest.flatten(unroll.experience) for unroll in unrolls]
        sizes = [leaves[0].shape[1] for leaves in parts]
        if sizes != self._sizes or len(parts[0][0]) != len(self._memory[0]):
            self._allocate(parts[0], sizes)
        torch._foreach_copy_(self._places, [leaf for part in parts for leaf in part])
        return nest.pack_sequence_as(unrolls[0].experience, self._memory)

    def _allocate(self, leaves: Sequence[Tensor], sizes: list[int]) -> None:
        self._sizes = sizes
        self._memory = [
            leaf.new_empty((leaf.shape[0], sum(sizes), *leaf.shape[2:]))
            for leaf in leaves
        ]
        columns = [memory.split(sizes, dim=1) for memory in self._memory]
        self._places = [place for part in zip(*columns, strict=True) for place in part]


class PreallocatedRows:
    """Takes the rows of one unroll after the other, in memory that all of them use.

    Where it can, the environment writes its steps there; everything else is copied.

    Args:
        memory: nest of (time step, experience) with [T, B, ...] tensors: one copy for
            both. None means memory of its own.
    """

    moves = False  # whether steps go from the environment to a policy elsewhere

    def __init__(self, memory: tuple[Nest, Nest] | None = None) -> None:
        steps, rest = (None, None) if memory is None else memory
        self._steps = UnrollStorage(steps)
        self._rest = UnrollStorage(rest)
        self._env: Environment | None = None
        self._memory: Nest = None  # that _step_rows are the rows of
        self._step_rows: Sequence[StepRow] | None = None
        self._num_added = 0
        self._length = 0
        self._kept: list[Experience] = []  # rows that were not written yet
        # Rows are kept if a policy gives each of them memory of its own, as its first
        # ones tell. Until then, and otherwise, they are written one by one.
        self._max_kept = 1
        self._first_rows: list[Experience] | None = []

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
        self._begin_steps(length, first_step)
        self._length = length
        self._num_added = 0
        self._kept.clear()
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
            rows[0].copy(rows[self._length])
        else:
            self._steps.write(0, first_step, length + 1)

    def add(self, time_step: TimeStep, experience: Experience) -> None:
        """Adds what came [B, ...] and what the policy did there.

        Args:
            time_step: raw.
            experience: its ``time_step`` is () if the policy saw the raw one.
        """
        row = self._num_added
        if self._step_rows is None:
            self._add_step(row, time_step)
        # Several rows are written almost as fast as one.
        self._kept.append(experience)
        self._num_added = row + 1
        if len(self._kept) >= self._max_kept:
            self._write_kept()
        if self._first_rows is not None:
            self._look_at(self._first_rows, experience)

    def _add_step(self, row: int, time_step: TimeStep) -> None:
        """Of an environment that does not write its steps itself."""
        if row > 0:
            self._steps.write(row, time_step, self._length + 1)

    def take(self, row: int, time_step: TimeStep) -> TimeStep:
        """What the environment returned, where the policy is; asked if it moves."""
        raise NotImplementedError

    def read_taken(self, num_time_steps: int) -> TimeStep:
        """What :meth:`take` returned, [T+1, B, ...]; likewise."""
        raise NotImplementedError

    def _look_at(self, first_rows: list[Experience], experience: Experience) -> None:
        """Takes in one of the first rows; decides after the last of them."""
        first_rows.append(experience)
        if len(first_rows) == _MAX_KEPT:
            rows = [list(map(_address, nest.flatten(row))) for row in first_rows]
            # All are alive, so that equal addresses are the same memory.
            columns = (set(column) - {0} for column in zip(*rows, strict=False))
            if all(len(column) in (0, _MAX_KEPT) for column in columns):
                self._max_kept = _MAX_KEPT
            self._first_rows = None

    def _write_kept(self) -> None:
        first = self._num_added - len(self._kept)
        self._rest.write_rows(first, self._kept, self._length + 1)
        self._kept.clear()

    def end(self, last_step: TimeStep | None) -> tuple[TimeStep, Experience]:
        """Ends the unroll.

        Args:
            last_step: on which nobody acted yet; None if all rows were added.

        Returns:
            The raw steps [length + 1, B, ...], and one row of experience for each that
            was added.
        """
        if self._kept:
            self._write_kept()
        if last_step is not None and self._step_rows is None:
            self._add_step(self._num_added, last_step)
        return self.read(self._length + 1, self._num_added)

    def read_time_steps(self, begin: int, end: int) -> TimeStep:
        """Views of some raw steps, the same object each time."""
        return self._steps.read(begin, end)

    def read(self, num_time_steps: int, num_rows: int) -> tuple[TimeStep, Experience]:
        """Views of raw steps and of rows of experience, as :meth:`end` returns them."""
        experience: Experience = self._rest.read(0, num_rows)
        if experience.time_step == ():
            inputs = self._read_inputs(num_rows)
            experience = experience._replace(time_step=inputs)
        return self._steps.read(0, num_time_steps), experience

    def _read_inputs(self, num_rows: int) -> TimeStep:
        """What the policy saw, if it saw the raw steps."""
        return self._steps.read(0, num_rows)


class RowsWithGradient:
    """As ``PreallocatedRows``, but keeps the rows themselves, with their gradient.

    Args:
        device: of the policy.
        moves: whether the environment is elsewhere.
    """

    def __init__(self, device: torch.device, moves: bool) -> None:
        self.device = device
        self.moves = moves
        self._raw_steps: list[TimeStep] = []  # those that were taken
        self._taken: TimeStep | tuple[()] = ()  # of the last unroll
        self._time_steps: list[TimeStep] = []
        self._experience: list[Experience] = []

    def begin(self, length: int, env: Environment, first_step: TimeStep) -> None:
        # The environment's tensors are kept as they are.
        self._forget()

    def take(self, row: int, time_step: TimeStep) -> TimeStep:
        self._raw_steps.append(time_step)
        return moved(time_step, self.device)

    def read_taken(self, num_time_steps: int) -> TimeStep | tuple[()]:
        taken, self._taken = self._taken, ()
        return taken

    def add(self, time_step: TimeStep, experience: Experience) -> None:
        self._time_steps.append(time_step)
        self._experience.append(experience)

    def end(self, last_step: TimeStep | None) -> tuple[TimeStep, Experience]:
        num_rows = len(self._time_steps)
        if last_step is not None:
            self._time_steps.append(last_step)
        time_steps = nest.stack(self._time_steps)
        experience = nest.stack(self._experience)
        raw_steps = time_steps
        if self._raw_steps:
            raw_steps, self._taken = nest.stack(self._raw_steps), time_steps
        # The unroller may live on: nothing shall keep the graph alive.
        self._forget()
        if experience.time_step == ():
            inputs = nest.map_structure(lambda t: t[:num_rows], time_steps)
            experience = experience._replace(time_step=inputs)
        return raw_steps, experience

    read_time_steps = None  # nothing is kept

    def _forget(self) -> None:
        self._raw_steps = []
        self._time_steps = []
        self._experience = []


class UnrollStorage:
    """Rows of one nest, written one by one and read as a nest of [T, B, ...] views.

    The memory is reused by every unroll: what :meth:`read` returns is valid until the
    rows are written again.

    Args:
        memory: nest of [T, B, ...] tensors, such as others can read, too. None means to
            allocate it for the first nest written.

    Attributes:
        memory: the nest of [N, B, ...] tensors of all rows; N changes with them.
    """

    def __init__(self, memory: Nest | None = None) -> None:
        self._rows: list[list[Tensor]] = []
        self._traits: list[tuple[torch.Size, torch.dtype]] = []  # of every leaf [B, …]
        # (begin, end) → rows that were read; (row, number) → those that were written
        self._views: dict[tuple[int, int], Nest] = {}
        self._blocks: dict[tuple[int, int], list[Tensor]] = {}
        self._use(() if memory is None else memory)

    def write(self, row: int, values: Nest, num_rows: int) -> None:
        """Copies ``values``, a nest of [B, ...] tensors, into ``row`` of ``num_rows``.

        Raises:
            ValueError: if the structure, a shape or a dtype differs from the first
                nest written. Checked for row 0 of every unroll.
        """
        self.write_rows(row, [values], num_rows)

    def write_rows(self, row: int, values: Sequence[Nest], num_rows: int) -> None:
        """As :meth:`write`, of one nest for each of the rows from ``row`` on."""
        if len(self._rows) < num_rows:
            self._allocate(values[0], num_rows)
        try:
            rows: list[Any] = list(map(self._structure.flatten_up_to, values))
            fits = row > 0 or list(map(_traits, rows[0])) == self._traits
            if len(rows) > 1:  # what is stacked would change the size of the memory
                fits = fits and all(
                    leaf.shape == shape
                    for leaves in rows
                    for leaf, (shape, _) in zip(leaves, self._traits, strict=True)
                )
        except (AttributeError, ValueError):
            fits = False
        if not fits:
            self._explain(values)
        if len(rows) == 1:
            if self._traits:
                torch._foreach_copy_(self._rows[row], rows[0])
            return
        # A leaf of several rows is written at once, in half of the time of copies.
        columns = zip(*rows, strict=True)
        for leaves, block in zip(
            columns, self._blocks_of(row, len(rows)), strict=False
        ):
            torch.stack(leaves, out=block)

    def read(self, begin: int, end: int) -> Nest:
        """Rows ``begin`` to ``end`` (exclusive) as views [end - begin, B, ...]."""
        views = self._views.get((begin, end))
        if views is None:
            views = nest.map_structure(lambda buffer: buffer[begin:end], self.memory)
            if len(self._views) < _MAX_VIEWS:
                self._views[begin, end] = views
        return views

    def _blocks_of(self, row: int, num_rows: int) -> list[Tensor]:
        """The leaves of some rows, [num_rows, B, ...] each."""
        blocks = self._blocks.get((row, num_rows))
        if blocks is None:
            leaves = nest.flatten(self.memory)
            blocks = [leaf[row : row + num_rows] for leaf in leaves]
            if len(self._blocks) < _MAX_VIEWS:
                self._blocks[row, num_rows] = blocks
        return blocks

    def _allocate(self, values: Nest, num_rows: int) -> None:
        for path, leaf in nest.flatten_with_path(values):
            if not isinstance(leaf, Tensor):
                raise ConfigError(
                    f"unroll: {path} is a {type(leaf).__name__}, expected tensors. Of "
                    "distributions, rollout_step may return those that "
                    "alf_lite.distributions.torch_distributions knows."
                )
        row = sum(t.numel() * t.element_size() for t in nest.flatten(values))
        check_ram(
            num_rows * row,
            f"an unroll of {num_rows} steps",
            "Make TrainerConfig.unroll_length smaller, or use fewer environments.",
        )
        # Ordinary tensors even when acting runs in inference mode: training reads them.
        with torch.inference_mode(False):
            memory = nest.map_structure(
                lambda t: torch.empty(
                    (num_rows, *t.shape), dtype=t.dtype, device=t.device
                ),
                values,
            )
        self._use(memory)
        self._rows = self._rows or [[] for _ in range(num_rows)]

    def _use(self, memory: Nest) -> None:
        """Writes the next rows to ``memory``, a nest of [T, B, ...] tensors."""
        self._views.clear()
        self._blocks.clear()
        self.memory = memory
        self._structure = nest.structure(memory)
        with torch.inference_mode(False):
            columns = [buffer.unbind(0) for buffer in nest.flatten(memory)]
        self._rows = [list(row) for row in zip(*columns, strict=True)]
        first_row = self._rows[0] if self._rows else []
        self._traits = list(map(_traits, first_row))

    def _explain(self, values: Sequence[Nest]) -> None:
        """Says in what the rows differ from those that were written before."""
        nest.assert_same_structure(self.memory, *values)
        pairs = itertools.chain.from_iterable(
            zip(nest.flatten_with_path(each), self._traits, strict=True)
            for each in values
        )
        for (path, leaf), (shape, dtype) in pairs:
            if leaf.shape != shape or leaf.dtype != dtype:
                raise ValueError(
                    f"unroll: {path} was {tuple(shape)} {dtype} in earlier steps, got "
                    f"{tuple(leaf.shape)} {leaf.dtype}. rollout_step must return the "
                    "same shapes at every step."
                )
