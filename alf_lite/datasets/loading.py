"""Loads recorded steps of any supported format into a replay buffer."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import Experience, StepType
from alf_lite.datasets.formats import open_source
from alf_lite.datasets.replay_sources import ReplayCheckpoint
from alf_lite.datasets.source import (
    NO_FIRST,
    Arrays,
    Source,
    contradiction,
    cut_firsts,
    field_kind,
    inner_firsts,
    join_path,
)
from alf_lite.datasets.step_assembly import StepAssembler, experience_spec, match_fields
from alf_lite.environments.environment import Environment
from alf_lite.errors import DataError
from alf_lite.nest import path_parts
from alf_lite.replay_buffers.allocation import allocate
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import RawSteps
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

_logger = logging.getLogger(__name__)

# Steps that are written at once: they are in memory twice meanwhile.
_CHUNK_LENGTH = 2**16
_CHUNK_BYTES = 2**22  # of rows that are copied and looked at


@configurable
def load_replay_buffer(
    path: str | Path,
    env: Environment,
    max_length: int | None = None,
    *,
    drop_bad_episodes: bool = False,
    memory_map: bool = False,
    verify: bool = True,
    zero_missing_env_info: bool = False,
    num_earliest_frames_ignored: int = 0,
    keep_open_ends: bool = False,
    join_environments: bool = False,
) -> ReplayBuffer:
    """Loads a source of recorded steps.

    The steps of every environment of the source are in the order of time. Where the
    next step does not continue an episode, the step is LAST and keeps its discount: it
    is bootstrapped as at a time limit.

    Args:
        path: of a checkpoint, a data set or episodes, or ``minari:NAME``; see
            docs/offline_sources.md.
        env: the steps must have its specs.
        max_length: takes the newest steps of the source, no more than so many of all
            environments together.
        drop_bad_episodes: leave out the episodes with a NaN or infinite number, instead
            of refusing the source.
        memory_map: leave the steps of an own replay buffer in its file, to be read when
            they are drawn, for a buffer larger than the memory. Their numbers are not
            checked then, and actions beyond their bounds not clipped.
        verify: compare the files with the checksums that were written with them, which
            reads them once.
        zero_missing_env_info: take zeros for the ``env_info`` of the environment that
            was not recorded, instead of refusing the source.
        num_earliest_frames_ignored: see ``ReplayBuffer``.
        keep_open_ends: leave steps that the next one does not continue as they are, for
            who writes them again. Not of a mapped buffer.
        join_environments: load an own buffer as if one environment had followed the
            other, so that windows go on from one to the next, as they do from one
            episode to the next. Environments stay apart if one begins within an
            episode, or with ``memory_map``, ``keep_open_ends`` or older steps left out.

    Returns:
        ``Experience`` with ``time_step`` and ``action``. What was executed at a step is
        the ``prev_action`` of the next one; ``action`` says the same, zeros at LAST,
        unless it comes from an own buffer, where it may be what the agent had chosen.

    Raises:
        DataError: if the source cannot be read, is empty or does not fit.
    """
    source = open_source(path, verify=verify)
    if not sum(source.lengths):
        raise DataError(f"{path}: there are no steps in it")
    lengths = newest_lengths(source.lengths, max_length)
    matched = match_fields(source, env, zero_missing_env_info)
    source.warn_of_units(env)
    source.fields = {f.path: source.fields[f.path] for f in matched.values()}
    may_join = join_environments and not (memory_map or keep_open_ends)
    is_one = may_join and _can_be_one(source, lengths)
    sizes = [sum(lengths)] if is_one else lengths
    make_buffer = functools.partial(
        ReplayBuffer,
        experience_spec(env),
        len(sizes),
        num_earliest_frames_ignored=num_earliest_frames_ignored,
    )
    with _memory_told(path, lengths):
        rows = _take_rows(source, env, lengths, memory_map, verify)
        if rows is not None:
            if is_one:
                step_type = rows.view("time_step.step_type")
                step_type[lengths[0] - 1 :: lengths[0]] = StepType.LAST
            buffer = make_buffer(len(rows.rows) // len(sizes), rows=rows)
        elif not memory_map:
            buffer = make_buffer(max(sizes))
        else:
            raise DataError(
                f"{path}: load_replay_buffer.memory_map is set, but only own replay "
                "buffers with the same types and as many steps of each environment "
                "can be mapped"
            )
    if rows is not None:
        buffer.forget_oldest(sizes[0])
        if not keep_open_ends:
            buffer.mark_truncated_end()
    else:
        assembler = StepAssembler(source.name, matched, keep_open_ends)
        _assemble(
            buffer,
            source,
            assembler,
            lengths,
            path=path,
            drop_bad_episodes=drop_bad_episodes,
        )
    _logger.info("Loaded %d steps from %s.", buffer.total_size, path)
    return buffer


def _assemble(
    buffer: ReplayBuffer,
    source: Source,
    assembler: StepAssembler,
    lengths: list[int],
    *,
    path: str | Path,
    drop_bad_episodes: bool,
) -> None:
    """Fills a buffer step by step, with the newest ``lengths`` [E] of a source.

    Raises:
        DataError: if a step does not fit, or none is left.
    """
    # Of a source with bad episodes older ones may take their place.
    skipped = [
        0 if drop_bad_episodes else whole - newest
        for whole, newest in zip(source.lengths, lengths, strict=True)
    ]
    _fill(buffer, source, assembler, skipped)
    if assembler.bad and not drop_bad_episodes:
        raise DataError(_explain_bad(path, assembler))
    left_out = f"{assembler.num_dropped} episodes that have a NaN or infinite number"
    if not buffer.total_size:
        raise DataError(f"{path}: nothing is left without its {left_out}")
    if assembler.num_dropped:
        _logger.warning("%s: left out %s.", path, left_out)
    if assembler.num_outside:
        _logger.warning(
            "%s: %d of %d actions are outside of their bounds, and are clipped. Was it "
            "recorded in other units?",
            path,
            assembler.num_outside,
            assembler.num_actions,
        )
    for name, count in assembler.num_beyond.items():
        # Bounds that are not quite right are no other units.
        if count > assembler.num_steps / 2:
            _logger.warning(
                "%s: %s is outside of the bounds that it has in the environment at %d "
                "of %d steps. Was it recorded in other units?",
                path,
                name,
                count,
                assembler.num_steps,
            )


@contextlib.contextmanager
def _memory_told(path: str | Path, lengths: list[int]) -> Iterator[None]:
    """Says whose steps they are that do not fit into the memory."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path}: {sum(lengths)} steps of {len(lengths)} environments: {error} "
            "TrainerConfig.offline_buffer_length takes the newest ones only."
        ) from error


def newest_lengths(lengths: list[int], max_length: int | None) -> list[int]:
    """How many steps of each environment are the newest of all.

    Environments step together: the newest so many of each, as far as it has them.
    """
    if max_length is None or sum(lengths) <= max_length:
        return lengths
    low, high = 0, max(lengths)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(length, middle) for length in lengths) <= max_length:
            low = middle
        else:
            high = middle - 1
    # Where environments are more than steps, the first ones have one.
    if low == 0:
        return [int(e < max_length) for e in range(len(lengths))]
    return [min(length, low) for length in lengths]


def _can_be_one(source: Source, lengths: list[int]) -> bool:
    """Whether environments may follow each other as if they were one.

    That is where all of their steps are taken, and none begins within an episode.
    """
    if not isinstance(source, ReplayCheckpoint) or lengths != source.lengths:
        return False
    begins = np.cumsum([0, *lengths[:-1]])[np.array(lengths) > 0]
    step_type = source.stored.view("time_step.step_type")
    return bool((step_type[begins] == StepType.FIRST).all())


# Row by row


def _take_rows(
    source: Source, env: Environment, lengths: list[int], memory_map: bool, verify: bool
) -> RawSteps | None:
    """The rows of a source as they are stored, or None if they need a change.

    It is as fast as the disk. Only rows of the same types with nothing to repair can be
    taken so, of as many steps of one environment as of another.
    """
    if (
        not isinstance(source, ReplayCheckpoint)
        or len(set(source.lengths)) > 1
        or len(set(lengths)) > 1
    ):
        return None
    spec, stored = experience_spec(env), source.stored
    for path, leaf_spec in nest.flatten_with_path(spec):
        leaf = stored.leaves.get(path)
        if leaf is None or leaf[1:3] != (leaf_spec.shape, leaf_spec.dtype):
            return None
    if not memory_map:
        return _copy_sound(stored, spec, source.lengths[0], lengths)
    if verify:
        _mark_seams(source, lengths)
        _warn_of_actions(source, spec)
    _tell_of_bus_errors(source.name)
    return stored


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
        (copy.view(path), leaf_spec, _is_action(path))
        for path, leaf_spec in nest.flatten_with_path(spec)
    ]
    discount = copy.view("time_step.discount")
    num_rows = max(1, _CHUNK_BYTES // row_bytes)
    for e in range(len(lengths)):
        offset = (e + 1) * length - num_newest - e * num_newest
        for begin in range(e * num_newest, (e + 1) * num_newest, num_rows):
            end = min(begin + num_rows, (e + 1) * num_newest)
            copy.rows[begin:end] = stored.rows[begin + offset : end + offset]
            # While the rows are in the cache of the processor.
            if not all(_is_sound(leaf[begin:end], *about) for leaf, *about in leaves):
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


def _warn_of_actions(source: ReplayCheckpoint, spec: Experience) -> None:
    """Says that actions lie beyond their bounds, where nobody clips them."""
    for path, leaf_spec in nest.flatten_with_path(spec):
        if _is_action(path) and not all(
            _is_sound(leaf, leaf_spec, is_action=True)
            for leaf in source.stored.view(path).split(_CHUNK_LENGTH)
        ):
            _logger.warning(
                "%s: %s has numbers outside of its bounds, and a mapped file is not "
                "clipped. Load it without load_replay_buffer.memory_map, or map what "
                "python -m alf_lite.bin.convert_buffer makes of it.",
                source.name,
                path,
            )


def _is_action(path: str) -> bool:
    return "prev_action" in path_parts(path)[:2]


def _is_sound(leaf: Tensor, spec: TensorSpec, is_action: bool) -> bool:
    """Whether numbers are finite, and within their bounds."""
    # A sum is the fastest way to look at all; it may overflow by itself.
    if spec.is_continuous and not (leaf.sum().isfinite() or leaf.isfinite().all()):
        return False
    if not isinstance(spec, BoundedTensorSpec) or not leaf.numel():
        return True
    # Of observations beyond, who reads field by field tells; not of rounding.
    slack = 1e-3 if spec.is_continuous and not is_action else 0
    # Mostly all elements have the same bounds, which are compared much faster.
    least, greatest = (bound.item() for bound in leaf.aminmax())
    if least >= spec.minimum.max() - slack and greatest <= spec.maximum.min() + slack:
        return True
    low, high = torch.tensor(spec.minimum), torch.tensor(spec.maximum)
    if slack:
        low, high = low - slack, high + slack
    return not bool(((leaf < low) | (leaf > high)).any())


# Field by field


def _fill(
    buffer: ReplayBuffer, source: Source, assembler: StepAssembler, skipped: list[int]
) -> None:
    num_seen = [0] * len(skipped)
    for sequence in source.sequences():
        e = sequence.env_id
        length = len(sequence.fields["step_type"])
        num_skipped = max(skipped[e] - num_seen[e], 0)
        if num_skipped < length:
            steps = assembler.assemble(sequence, num_seen[e], num_skipped)
            _append(buffer, steps, e)
        num_seen[e] += length
    if num_seen != source.lengths:
        raise DataError(
            f"{source.name}: there are {num_seen} steps, but it says {source.lengths}"
        )


def _append(buffer: ReplayBuffer, steps: Arrays, env_id: int) -> None:
    """Writes the steps [T, ...] of one environment."""
    # Several may have become one; what is stored says which it was.
    env_ids = torch.tensor([min(env_id, buffer.num_environments - 1)])
    for begin in range(0, len(steps["step_type"]), _CHUNK_LENGTH):
        chunk = {
            name: torch.from_numpy(array[begin : begin + _CHUNK_LENGTH]).unsqueeze(1)
            for name, array in steps.items()
        }
        chunk["env_id"] = torch.full_like(chunk["step_type"], env_id)
        experience = _pack(buffer.data_spec, chunk)
        buffer.add_batch(experience, env_ids, time_major=True)


def _pack(spec: Experience, steps: dict[str, torch.Tensor]) -> Experience:
    """The steps in the structure of ``spec``; what is missing of env_info is zero."""
    outer_dims = steps["step_type"].shape

    def leaf(path: str, leaf_spec: TensorSpec) -> torch.Tensor:
        parts = path_parts(path)
        name = join_path(*(parts[1:] if parts[0] == "time_step" else parts))
        if name in steps:
            return steps[name]
        assert field_kind(name) == "env_info", (name, list(steps))
        return leaf_spec.zeros(outer_dims)

    return nest.map_structure_with_path(leaf, spec)


def _explain_bad(path: str | Path, assembler: StepAssembler) -> str:
    lines = "\n".join(f"  {text}" for text in assembler.bad[:10])
    more = len(assembler.bad) - 10
    return (
        f"{path}: {assembler.num_dropped} episodes have a NaN or infinite number:\n"
        f"{lines}\n"
        + (f"  and {more} more\n" if more > 0 else "")
        + "load_replay_buffer.drop_bad_episodes = True leaves these episodes out."
    )
