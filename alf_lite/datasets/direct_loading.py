"""Steps of own replay buffers, taken row by row as they were stored.

It is as fast as the disk. Only steps that need no change can be taken so: of the same
types, with nothing to repair. Others are loaded field by field.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import Experience, StepType
from alf_lite.datasets.field_matching import experience_spec
from alf_lite.datasets.replay_sources import ReplayCheckpoint
from alf_lite.datasets.source import (
    NO_FIRST,
    Source,
    contradiction,
    cut_firsts,
    inner_firsts,
)
from alf_lite.environments.environment import Environment
from alf_lite.errors import DataError
from alf_lite.replay_buffers.allocation import allocate
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import RawSteps
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

_logger = logging.getLogger(__name__)

_CHUNK_BYTES = 2**22


def load_directly(
    source: Source,
    env: Environment,
    lengths: list[int],
    *,
    memory_map: bool,
    verify: bool,
    num_earliest_frames_ignored: int,
) -> ReplayBuffer | None:
    """The newest steps of a source, or None if they must be loaded field by field.

    Args:
        source: of any format.
        env: the steps must have its specs.
        lengths: [E], how many steps of each environment to load.
        memory_map: leave the rows in the file, to be read when they are drawn. Nothing
            of them is checked then but their structure and, to ``verify``, the types
            of the steps.
        verify: whether the file may be read for what is checked.
        num_earliest_frames_ignored: see ``ReplayBuffer``.
    """
    if not isinstance(source, ReplayCheckpoint) or not _are_alike(source, lengths):
        return None
    spec = experience_spec(env)
    stored = source.stored
    for path, leaf_spec in nest.flatten_with_path(spec):
        leaf = stored.leaves.get(path)
        if leaf is None or (leaf.shape, leaf.dtype) != (
            leaf_spec.shape,
            leaf_spec.dtype,
        ):
            return None
    length = source.lengths[0]
    if not memory_map:
        copy = _copy_sound(stored, spec, length, lengths)
        if copy is None:
            return None
        stored, length = copy, lengths[0]
    else:
        if verify:
            _mark_seams(source, lengths)
        _tell_of_bus_errors(source.name)
    buffer = ReplayBuffer(
        spec,
        len(lengths),
        length,
        num_earliest_frames_ignored=num_earliest_frames_ignored,
        rows=stored,
    )
    buffer.forget_oldest(lengths[0])
    buffer.mark_truncated_end()
    return buffer


def _are_alike(source: Source, lengths: list[int]) -> bool:
    """Whether there are as many steps of one environment as of another."""
    return len(set(source.lengths)) == 1 and len(set(lengths)) == 1


def _copy_sound(
    stored: RawSteps, spec: Experience, length: int, lengths: list[int]
) -> RawSteps | None:
    """The newest rows of every environment in memory, or None if something is wrong.

    All numbers must be finite and in range, and all episodes end with LAST.

    Args:
        stored: rows of ``length`` steps of every environment.
        spec: of the leaves that are looked at.
        length: L.
        lengths: [E], all the same.
    """
    num_newest, row_bytes = lengths[0], stored.rows.shape[1]
    memory = allocate(len(lengths) * num_newest * row_bytes, torch.device("cpu"))
    copy = stored._replace(rows=memory.view(-1, row_bytes))
    leaves = [
        (copy.view(path), leaf_spec) for path, leaf_spec in nest.flatten_with_path(spec)
    ]
    discount = copy.view("time_step.discount")
    num_rows = max(1, _CHUNK_BYTES // row_bytes)
    for e in range(len(lengths)):
        offset = (e + 1) * length - num_newest - e * num_newest
        for begin in range(e * num_newest, (e + 1) * num_newest, num_rows):
            end = min(begin + num_rows, (e + 1) * num_newest)
            copy.rows[begin:end] = stored.rows[begin + offset : end + offset]
            # While the rows are in the cache of the processor.
            if not all(_is_sound(leaf[begin:end], spec) for leaf, spec in leaves):
                return None
            least, greatest = discount[begin:end].aminmax()
            if least < 0 or greatest > 1:
                return None
    step_type = copy.view("time_step.step_type").view(len(lengths), -1).contiguous()
    # Where they differ the episodes were cut, or go on after their end.
    goes_on = (step_type[:, :-1] == StepType.LAST) != (
        step_type[:, 1:] == StepType.FIRST
    )
    return None if goes_on.any() else copy


def _tell_of_bus_errors(name: str) -> None:
    """A mapped file that somebody cuts ends the process by a signal: says where."""
    _logger.info(
        "The steps stay in %s: it must not be changed in place while they are used. A "
        "file that is cut ends this process with a bus error.",
        name,
    )
    if not faulthandler.is_enabled():
        # Where there is no stderr, nobody reads it.
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            faulthandler.enable()


def _mark_seams(source: ReplayCheckpoint, lengths: list[int]) -> None:
    """Makes LAST, in the memory of this process, what the next step does not continue.

    Args:
        source: as many steps of each environment.
        lengths: [E], all the same, how many of them to look at.

    Raises:
        DataError: if the types of the steps contradict each other.
    """
    leaf = source.stored.view("time_step.step_type")
    for e, num_newest in enumerate(lengths):
        end = (e + 1) * source.lengths[0]
        in_file = leaf[end - num_newest : end].numpy()
        step_type = in_file.copy()
        found = contradiction(step_type)
        cut = torch.from_numpy(cut_firsts(step_type)) + end - num_newest
        if found is None and bool(source.stored.view("time_step.reward")[cut].any()):
            found = int(cut[0]) - (end - num_newest), NO_FIRST
        if found is not None:
            index, reason = found
            raise DataError(
                f"{source.name}: step_type is {step_type[index]} at step "
                f"{source.lengths[0] - num_newest + index} of environment {e}, {reason}"
            )
        in_file[inner_firsts(step_type) - 1] = StepType.LAST


def _is_sound(leaf: Tensor, spec: TensorSpec) -> bool:
    if spec.is_continuous:
        # A sum is the fastest way to look at all; it may overflow by itself.
        return bool(leaf.sum().isfinite()) or bool(leaf.isfinite().all())
    if not isinstance(spec, BoundedTensorSpec):
        return True
    # Mostly all elements have the same bounds, which are compared much faster.
    least, greatest = (int(bound) for bound in leaf.aminmax())
    if least >= spec.minimum.max() and greatest <= spec.maximum.min():
        return True
    low, high = torch.tensor(spec.minimum), torch.tensor(spec.maximum)
    return not bool(((leaf < low) | (leaf > high)).any())
