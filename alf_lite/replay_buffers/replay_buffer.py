"""The replay buffer: every time step once, drawn as windows of consecutive steps."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.checkpoints.files import Stream
from alf_lite.data_structures import BatchInfo
from alf_lite.replay_buffers import replay_file
from alf_lite.replay_buffers.allocation import StorageKind
from alf_lite.replay_buffers.packed_windows import PackedWindows
from alf_lite.replay_buffers.priority_options import PriorityOptions
from alf_lite.replay_buffers.replay_file import RawSteps, ReplayFile
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.row_layout import RowLayout
from alf_lite.replay_buffers.sampling_weights import NEVER_STALE
from alf_lite.replay_buffers.stored_steps import (
    StoredSteps,
    to_array,
    to_env_ids,
    to_indices,
    to_stored_steps,
)
from alf_lite.replay_buffers.weighted_sampler import make_sampler
from alf_lite.replay_buffers.window_sampler import (
    SamplingOptions,
    WindowStarts,
    all_windows,
)
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.devices import moved, moved_tensor

Nest = Any

_logger = logging.getLogger(__name__)


class ReplayBuffer(StoredSteps):
    """The newest ``max_length`` steps of every environment, to draw batches from.

    Steps are stored as they come, detached, in their own dtypes. The buffer does not
    look into them, except for the step type where a method says so. A window may cross
    the end of an episode: LAST and FIRST follow each other there.

    Drawing uses torch's global generator on the CPU, so one seed governs a run.

    Args:
        data_spec: nest of TensorSpecs of one step. The nodes may be distributions.
        num_environments: E.
        max_length: steps per environment.
        prioritized_sampling: draw a window in proportion to a power of the priority of
            its first step.
        num_earliest_frames_ignored: the oldest so many steps of every environment are
            never the start of a window: they are there for those who look back.
        priority: how, if ``prioritized_sampling``.
        sampling: which windows may be drawn, and how often. None means all, always.
        device: where the steps are stored and the batches are made.
        storage: "memory", or "memmap" for a file in ``directory``, which may be larger
            than the memory.
        directory: for "memmap". The file has no name and vanishes with the process.
        rows: steps that are in memory, or in a mapped file, already; they are taken as
            they are, and the buffer is full. None makes room for new ones.

    Raises:
        ValueError: if the steps do not fit in the free memory, or on the disk; says how
            many GB are needed and free.
    """

    def __init__(
        self,
        data_spec: NestedTensorSpec,
        num_environments: int,
        max_length: int,
        prioritized_sampling: bool = False,
        num_earliest_frames_ignored: int = 0,
        *,
        priority: PriorityOptions | None = None,
        sampling: SamplingOptions | None = None,
        device: torch.device | str = "cpu",
        storage: StorageKind = "memory",
        directory: Path | str | None = None,
        rows: RawSteps | None = None,
    ) -> None:
        _check_arguments(num_environments, max_length, num_earliest_frames_ignored)
        if (storage, directory is None) not in (("memory", True), ("memmap", False)):
            raise ValueError(
                "expected storage='memory', or storage='memmap' and a directory; got "
                f"storage={storage!r} and directory={directory!r}"
            )
        layout = RowLayout(
            data_spec, None if rows is None else (rows.leaves, rows.rows.shape[1])
        )
        ring_storage = RingStorage(
            layout,
            num_environments,
            max_length,
            torch.device(device),
            directory,
            None if rows is None else rows.rows,
        )
        super().__init__(ring_storage)
        _logger.info(
            "Replay buffer: %d environments x %d steps x %d bytes = %.3f GB in %s",
            num_environments,
            max_length,
            layout.row_bytes,
            ring_storage.num_bytes / 1e9,
            directory or f"{device} memory",
        )
        self._num_ignored = num_earliest_frames_ignored
        self._iteration = 0
        self.sample_by(
            sampling or all_windows(),
            (priority or PriorityOptions()) if prioritized_sampling else None,
        )
        self._keeps_arrays = self.device.type == "cpu"
        self._expected_step = layout.expect(num_environments)

    def sample_by(
        self, sampling: SamplingOptions, priority: PriorityOptions | None
    ) -> None:
        """Says how windows are drawn from now on, whatever was so far.

        Priorities, uses and ages begin anew: all that is stored counts as new.

        Args:
            sampling: which windows may be drawn, and how often.
            priority: how priorities become probabilities; None draws without any.

        Raises:
            ValueError: if the options contradict each other.
        """
        self._storage.flush()
        self._sampler = make_sampler(
            self._storage, sampling, self._num_ignored, priority, self._iteration
        )
        self._sampling, self._priority = sampling, priority

    def ignore_earliest(self, num_steps: int) -> None:
        """Sees to it that at least so many of the oldest steps are never a start.

        For who looks back further than was known when the buffer was made; what is
        stored counts as new then, as with :meth:`sample_by`.
        """
        if num_steps > self._num_ignored:
            self._num_ignored = num_steps
            self.sample_by(self._sampling, self._priority)

    def num_windows(self, batch_length: int) -> int:
        """How many windows of so many steps can be drawn now."""
        self._storage.flush()
        return self._sampler.num_windows(batch_length)

    def can_draw(
        self, batch_size: int, batch_length: int, num_batches: int = 1
    ) -> bool:
        """Whether there are enough windows for batches that nothing is added between.

        With replacement, one is enough; ``max_use`` and drawing without replacement
        need more.

        Args:
            batch_size: windows of each.
            batch_length: the steps of a window.
            num_batches: how many.
        """
        self._storage.flush()
        return self._sampler.can_draw(batch_size, batch_length, num_batches)

    # Writing

    def add_batch(
        self,
        batch: Nest,
        env_ids: Tensor | np.ndarray | None = None,
        *,
        time_major: bool = False,
        never_stale: bool = False,
    ) -> None:
        """Appends one step, or an unroll, of all or some environments.

        Args:
            batch: nest of tensors and numpy arrays [B, ...]; with ``time_major``
                [T, B, ...].
            env_ids: [B], the environment of each column. None means all in their order,
                which is the fastest.
            time_major: whether there is a time dimension.
            never_stale: these steps have no age, as those of a demonstration.

        Raises:
            ValueError: if the batch does not match ``data_spec``, or an environment is
                given twice or does not exist. Nothing is stored then.
        """
        if env_ids is None and not time_major and not never_stale:
            # This is done for every step of the environment.
            self._storage.write(
                self._layout.flatten(batch, self._expected_step, self._keeps_arrays)
            )
            return
        ids = None if env_ids is None else self._distinct(env_ids)
        num_columns = self.num_environments if ids is None else len(ids)
        num_steps = _first_dim(batch) if time_major else 1
        outer_dims = (num_steps, num_columns) if time_major else (num_columns,)
        expected = self._layout.expect(*outer_dims)
        leaves = self._layout.flatten(batch, expected, self._keeps_arrays)
        if ids is None and not never_stale:
            self._storage.write(leaves, num_steps)
            return
        if not time_major:
            leaves = [leaf[None] for leaf in leaves]
        if never_stale:
            self._storage.flush()
            self._sampler.sync()
        self._storage.write_block(leaves, ids)
        if never_stale:
            self._sampler.sync(collected_in=NEVER_STALE)

    def clear(self, env_ids: Tensor | np.ndarray | None = None) -> None:
        """Forgets all steps of all or some environments. Positions go on."""
        self._storage.clear(None if env_ids is None else self._distinct(env_ids))

    def forget_oldest(self, num_kept: int | np.ndarray) -> None:
        """Forgets all but the newest ``num_kept`` steps, one number or one for each."""
        self._storage.forget_oldest(num_kept)

    def set_iteration(self, iteration: int) -> None:
        """Says in which iteration the steps added from now on are collected.

        It is the clock of ``SamplingOptions.max_staleness``.
        """
        self._iteration = iteration
        if self._sampling.max_staleness is not None:
            self._storage.flush()
            self._sampler.set_iteration(iteration)

    # Reading

    def get_batch(
        self, batch_size: int, batch_length: int, device: torch.device | None = None
    ) -> tuple[Nest, BatchInfo]:
        """Draws windows of consecutive steps of one environment each.

        Args:
            batch_size: B, the number of windows.
            batch_length: T, the steps of each.
            device: where the batch is made; None: where the steps are stored.

        Returns:
            A nest of [B, T, ...] tensors on the device, all of them views of
            one new block of memory; and where the windows begin: environments and
            positions [B] int64 on the CPU and, with prioritized sampling, importance
            weights [B] float32 on the device. With ``PriorityOptions.on_device``
            environments and positions are where the steps are stored.

        Raises:
            ValueError: if there are too few steps.
        """
        drawn, info = self._draw(batch_size, batch_length, device)
        windows = self._storage.windows(drawn.env_ids, drawn.rows, batch_length, device)
        return windows, info

    def get_packed_batch(
        self, batch_size: int, batch_length: int
    ) -> tuple[PackedWindows, BatchInfo]:
        """As :meth:`get_batch`, of a buffer on the CPU; draws the same windows.

        Returns:
            The windows [B, T], not read yet, and where they begin.
        """
        drawn, info = self._draw(batch_size, batch_length)
        windows = PackedWindows(self._storage, drawn.env_ids, drawn.rows, batch_length)
        return windows, info

    def _draw(
        self, batch_size: int, batch_length: int, device: torch.device | None = None
    ) -> tuple[WindowStarts, BatchInfo]:
        if batch_size < 1 or batch_length < 1:
            raise ValueError(
                "batch_size and batch_length must be at least 1, got "
                f"{batch_size} and {batch_length}"
            )
        self._storage.flush()
        drawn = self._sampler.draw(batch_size, batch_length)
        env_ids, positions, _, weights = drawn
        if isinstance(env_ids, np.ndarray):
            env_ids, positions = torch.from_numpy(env_ids), torch.from_numpy(positions)
            weights = torch.from_numpy(weights) if len(weights) else ()
        if len(weights) and (device or not self._keeps_arrays):
            weights = moved_tensor(weights, device or self.device)
        return drawn, BatchInfo(env_ids, positions, weights)

    def gather_all(self) -> tuple[Nest, BatchInfo]:
        """All steps that may be the start of a window, oldest first.

        Returns:
            A nest of [E, T, ...] tensors and the environments and first positions [E].

        Raises:
            ValueError: if the buffer holds more steps of one environment than of
                another, or none.
        """
        self._storage.flush()
        first = self._storage.begin + self._num_ignored
        num_steps = self._storage.end - first
        if num_steps.min() != num_steps.max() or num_steps.min() < 1:
            raise ValueError(
                "gather_all needs the same number of steps, at least 1, of every "
                f"environment; there are {num_steps.tolist()} after "
                f"{self._num_ignored} ignored ones"
            )
        env_ids = np.arange(self.num_environments)
        info = BatchInfo(torch.from_numpy(env_ids), torch.from_numpy(first.copy()))
        rows = self._storage.row_indices(env_ids, first)
        return self._storage.windows(env_ids, rows, int(num_steps[0])), info

    # Priorities and uses

    def update_priority(
        self, env_ids: Tensor, positions: Tensor, priorities: Tensor
    ) -> None:
        """Sets the priorities of windows, |δ|, as given by a ``BatchInfo``.

        Windows whose first step is not stored any more are left out. Of two priorities
        for one window the last one stays.

        Args:
            env_ids: [B].
            positions: [B].
            priorities: [B], finite and not negative.

        Raises:
            ValueError: if sampling is not prioritized or a priority is invalid. With
                ``PriorityOptions.on_device`` a later call says the latter.
        """
        self._storage.flush()
        if not self._sampler.is_on_device:
            numbers = to_indices(env_ids), to_indices(positions), to_array(priorities)
            _check_shapes(*numbers)
            self._sampler.update_priorities(*numbers)
        else:
            _check_shapes(env_ids, positions, priorities)
            if env_ids.is_cpu:
                to_env_ids(env_ids, self.num_environments)
            tensors = env_ids, positions, priorities.detach()
            self._sampler.update_priorities(*moved(tensors, self.device))

    def num_uses(self, env_ids: Tensor, positions: Tensor) -> Tensor:
        """How often windows were drawn; counted with ``max_use`` or ``max_staleness``.

        Args:
            env_ids: [*dims].
            positions: broadcasts with ``env_ids``.

        Returns:
            [*dims] int64.
        """
        self._storage.flush()
        uses = self._sampler.num_uses(
            *to_stored_steps(self._storage, env_ids, positions)
        )
        return torch.from_numpy(uses)

    # Files

    def sampling_state(self) -> dict[str, Any]:
        """What is known of single steps: priorities, uses and ages.

        Raises:
            ValueError: if a priority was invalid, and nothing has said so yet.
        """
        self._storage.flush()
        self._sampler.raise_late_errors()
        numbers = self._sampler.export()
        arrays = self._sampler.step_arrays().items()
        return {
            "numbers": numbers,
            "arrays": {name: torch.from_numpy(a.copy()) for name, a in arrays},
        }

    def load_sampling_state(self, state: dict[str, Any]) -> bool:
        """Restores what ``sampling_state`` returned, of a buffer with the same steps.

        Returns:
            Whether it does; False if it was of a buffer that is drawn from in another
            way, and nothing has changed.
        """
        self._storage.flush()
        saved = {name: tensor.numpy() for name, tensor in state["arrays"].items()}
        arrays = self._sampler.step_arrays()
        if not self._sampler.is_like(state["numbers"], saved) or any(
            arrays[name].shape != array.shape for name, array in saved.items()
        ):
            return False
        for name, array in saved.items():
            arrays[name][:] = array
        self._sampler.restore(state["numbers"])
        return True

    def save(self) -> Stream:
        """The content of a file with the steps that are stored: a ``ReplayFile``.

        To be written before the buffer is used again.

        Raises:
            ValueError: if a priority was invalid, and nothing has said so yet.
        """
        self._storage.flush()
        self._sampler.raise_late_errors()
        return replay_file.save(self._storage, self._sampler)

    def load(self, file: ReplayFile) -> None:
        """Replaces the content by that of a file that :meth:`save` gave.

        The buffer may have another ``max_length``; the newest steps are taken then. It
        may be drawn from in another way; all steps count as new then.

        Raises:
            CheckpointError: if the file does not fit; the buffer is unchanged then.
        """
        if not replay_file.restore(self._storage, self._sampler, file):
            self.sample_by(self._sampling, self._priority)
            _logger.warning(
                "%s was drawn from in another way (priorities, max_use, "
                "max_staleness): its %d steps count as new ones.",
                file.path,
                self.total_size,
            )
        if self._episodes is not None:
            self._episodes.reset()

    def check_valid(self) -> None:
        """Raises AssertionError if the buffer contradicts itself. For tests."""
        self._storage.flush()
        self._storage.check_valid()
        self._sampler.check_valid()


def _check_shapes(env_ids: Any, positions: Any, priorities: Any) -> None:
    shapes = env_ids.shape, positions.shape, priorities.shape
    if not shapes[0] == shapes[1] == shapes[2] or len(shapes[0]) != 1:
        raise ValueError(
            "update_priority: expected three tensors [B], got shapes "
            "{}, {} and {}".format(*map(tuple, shapes))
        )


def _first_dim(batch: Nest) -> int:
    """T of a batch [T, ...], by its first leaf: the others have to agree with it."""
    first_leaf = next(iter(nest.flatten(batch)), None)
    shape = getattr(first_leaf, "shape", ())
    return shape[0] if shape else 0


def _check_arguments(
    num_environments: int, max_length: int, num_earliest_frames_ignored: int
) -> None:
    for name, value, least in (
        ("num_environments", num_environments, 1),
        ("max_length", max_length, 1),
        ("num_earliest_frames_ignored", num_earliest_frames_ignored, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
