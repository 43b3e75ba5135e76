"""Loads recorded steps of any supported format into a replay buffer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import torch

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import Experience
from alf_lite.datasets.direct_loading import load_directly
from alf_lite.datasets.field_matching import experience_spec, match_fields
from alf_lite.datasets.formats import open_source
from alf_lite.datasets.source import Arrays, Source, field_kind, join_path
from alf_lite.datasets.step_assembly import StepAssembler
from alf_lite.environments.environment import Environment
from alf_lite.errors import DataError
from alf_lite.nest import path_parts
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import TensorSpec

_logger = logging.getLogger(__name__)

# Steps that are written at once: they are in memory twice meanwhile.
_CHUNK_LENGTH = 2**16


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
) -> ReplayBuffer:
    """Loads a source of recorded steps.

    The steps of every environment of the source are in the order of time. Where the
    next step does not continue an episode, the step is LAST and keeps its discount: it
    is bootstrapped as at a time limit.

    Args:
        path: of a checkpoint, a data set or episodes, or ``minari:NAME``; see
            docs/offline_data.md.
        env: the steps must have its specs.
        max_length: takes the newest steps of the source, no more than so many of all
            environments together.
        drop_bad_episodes: leave out the episodes with a NaN or infinite number, instead
            of refusing the source.
        memory_map: leave the steps of an own replay buffer in its file, to be read when
            they are drawn, for a buffer larger than the memory. Their numbers are not
            checked then.
        verify: compare the files with the checksums that were written with them, which
            reads them once.
        zero_missing_env_info: take zeros for the ``env_info`` of the environment that
            was not recorded, instead of refusing the source.
        num_earliest_frames_ignored: see ``ReplayBuffer``.

    Returns:
        ``Experience`` with ``time_step`` and ``action``, what was executed: zeros at
        LAST.

    Raises:
        DataError: if the source cannot be read, is empty or does not fit.
    """
    source = open_source(path, verify=verify)
    if not sum(source.lengths):
        raise DataError(f"{path}: there are no steps in it")
    lengths = newest_lengths(source.lengths, max_length)
    matched = match_fields(source, env, zero_missing_env_info)
    with _memory_told(path, lengths):
        direct = load_directly(
            source,
            env,
            lengths,
            memory_map=memory_map,
            verify=verify,
            num_earliest_frames_ignored=num_earliest_frames_ignored,
        )
    if direct is not None:
        _logger.info("Loaded %d steps from %s.", direct.total_size, path)
        return direct
    if memory_map:
        raise DataError(
            f"{path}: load_replay_buffer.memory_map is set, but only own replay "
            "buffers with the same types and as many steps of each environment can be "
            "mapped"
        )
    assembler = StepAssembler(source.name, matched)
    # Of a source with bad episodes older ones may take their place.
    skipped = [
        0 if drop_bad_episodes else whole - newest
        for whole, newest in zip(source.lengths, lengths, strict=True)
    ]
    with _memory_told(path, lengths):
        buffer = ReplayBuffer(
            experience_spec(env),
            len(lengths),
            max(lengths),
            num_earliest_frames_ignored=num_earliest_frames_ignored,
        )
    _fill(buffer, source, assembler, skipped)
    if assembler.bad and not drop_bad_episodes:
        raise DataError(_explain_bad(path, assembler))
    if not buffer.total_size:
        raise DataError(
            f"{path}: nothing is left without its {assembler.num_dropped} episodes "
            "that have a NaN or infinite number"
        )
    if assembler.num_dropped:
        _logger.warning(
            "%s: left out %d episodes with a NaN or infinite number.",
            path,
            assembler.num_dropped,
        )
    if assembler.outside:
        _logger.warning(
            "%s: %s. Was it recorded in other units?", path, assembler.outside[0]
        )
    _logger.info("Loaded %d steps from %s.", buffer.total_size, path)
    return buffer


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
    env_ids = torch.tensor([env_id])
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
