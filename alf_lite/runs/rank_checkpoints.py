"""What each rank of a run adds to a checkpoint, and finds in one again.

The first rank writes the checkpoint of the run, which is that of any other run. Every
other rank keeps beside it what is its own: stored steps, open episodes, metrics, random
numbers. Its part is written before, so that a checkpoint has all parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alf_lite.algorithms.learning.rank_share import own_buffers
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.checkpointer import (
    Checkpointer,
    LoadedCheckpoint,
    NoCheckpointError,
)
from alf_lite.errors import CheckpointError
from alf_lite.runs import training_state
from alf_lite.runs.training_state import ALGORITHM, RANDOM, TRAINER, TRAINING
from alf_lite.utils import random_state
from alf_lite.utils.plain_data import check_like
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)

RANKS = "ranks"  # in the part of the trainer


def ranks_entry(algorithm: RLAlgorithm) -> dict[str, int]:
    """What a checkpoint says of the ranks that it is of."""
    num_episodes = algorithm.metrics.tracker.num_episodes
    return {"size": ranks.size, "num_episodes": num_episodes}


def part_of_rank(state: dict[str, Any], algorithm: RLAlgorithm) -> dict[str, Any]:
    """What a rank other than the first keeps of the state of a run."""
    return {
        ALGORITHM: own_buffers(algorithm),
        TRAINING: state[TRAINING],
        TRAINER: {"hooks": state[TRAINER]["hooks"]},
        RANDOM: state[RANDOM],
    }


def load_together(
    own: Checkpointer, of_run: Path, algorithm: RLAlgorithm
) -> LoadedCheckpoint:
    """The newest checkpoint of which all ranks have their parts, as this one goes on.

    If there is none, the newest of the run: ranks without a part begin new episodes.

    Args:
        own: of this rank; that of the run, for the first one.
        of_run: the directory of its checkpoints.
        algorithm: that is trained.

    Raises:
        CheckpointError: if there is none that can be used.
    """
    found = own.load("latest", resumable=True) if ranks.is_first else None
    newest = ranks.broadcast_data(None if found is None else found.step)
    loaded = found or Checkpointer(of_run, read_only=True).load(newest, resumable=True)
    saved = _saved_ranks(loaded)
    if saved["size"] != ranks.size:
        _logger.warning(
            "The checkpoint was written by %d ranks and the run goes on with %d: "
            "parameters, optimizers, statistics and counters stay; new episodes begin, "
            "metrics start anew, and steps that are stored for replay are lost.",
            saved["size"],
            ranks.size,
        )
        _leave_later_ones(own, newest)
        return _without_own_part(loaded, algorithm, saved)
    whole = _load_whole(own, of_run, loaded)
    if whole is not None:
        _leave_later_ones(own, whole.step)
        return whole
    _leave_later_ones(own, newest)
    part = loaded if ranks.is_first else _load_part(own, newest)
    # What the others have counted, the first rank need not count as its own.
    counts = [0.0, 0.0]
    if part is not None and not ranks.is_first:
        metrics = part.state[TRAINING]["metrics"]
        counts = [metrics["num_env_steps"], metrics["num_episodes"]]
    num_env_steps, num_episodes = map(int, ranks.total(*counts))
    if ranks.is_first:
        training = loaded.state[TRAINING]
        of_all = {
            "num_env_steps": loaded.state[TRAINER]["run"]["env_steps"] - num_env_steps,
            "num_episodes": saved["num_episodes"] - num_episodes,
        }
        training = {**training, "metrics": {**training["metrics"], **of_all}}
        return loaded._replace(state={**loaded.state, TRAINING: training})
    if part is not None:
        return _joined(loaded, part)
    _logger.error(
        "Rank %d begins new episodes, and its stored steps are lost: there is no "
        "checkpoint with the parts of all ranks.",
        ranks.index,
    )
    return _without_own_part(loaded, algorithm, saved)


def _load_whole(
    own: Checkpointer, of_run: Path, newest: LoadedCheckpoint
) -> LoadedCheckpoint | None:
    """The newest checkpoint that all ranks can go on from; on all of them, or None."""
    steps: list[int] = []
    if ranks.is_first:
        infos = own.list_checkpoints()
        older = [i.step for i in infos if i.resumable and i.step < newest.step]
        steps = [newest.step, *reversed(older)]
    for step in ranks.broadcast_data(steps):
        loaded: LoadedCheckpoint | None = newest
        if step != newest.step:
            loaded = _load_part(Checkpointer(of_run, read_only=True), step)
        part = loaded if ranks.is_first else _load_part(own, step)
        is_usable = (
            loaded is not None
            and part is not None
            and _saved_ranks(loaded)["size"] == ranks.size
        )
        if not ranks.all(is_usable):
            continue
        assert loaded is not None
        assert part is not None
        if step != newest.step and ranks.is_first:
            _logger.error(
                "The run goes on from the checkpoint of step %d: a rank has no usable "
                "part of that of step %d.",
                step,
                newest.step,
            )
        return loaded if ranks.is_first else _joined(loaded, part)
    return None


def _load_part(own: Checkpointer, step: int) -> LoadedCheckpoint | None:
    """None if there is none, or a damaged one, which the log says then."""
    try:
        return own.load(step, resumable=True)
    except NoCheckpointError:
        return None


def _leave_later_ones(own: Checkpointer, step: int) -> None:
    """The run goes on from ``step``, and shall never come back to a later one."""
    if ranks.is_first:
        own.set_aside_after(step)
    else:
        own.drop_after(step)


def _joined(loaded: LoadedCheckpoint, part: LoadedCheckpoint) -> LoadedCheckpoint:
    """What the run has in common, and what is a rank's own."""
    state = {
        ALGORITHM: {**loaded.state[ALGORITHM], **part.state[ALGORITHM]},
        TRAINING: part.state[TRAINING],
        TRAINER: {**loaded.state[TRAINER], "hooks": part.state[TRAINER]["hooks"]},
        RANDOM: part.state[RANDOM],
    }
    return loaded._replace(state=state, mapped_files=part.mapped_files)


def _saved_ranks(loaded: LoadedCheckpoint) -> dict[str, int]:
    """What :func:`ranks_entry` said; one rank, if it is older than ranks."""
    alone = {"size": 1, "num_episodes": 0}
    saved = training_state.part_of(loaded, TRAINER).get(RANKS, alone)
    check_like(saved, alone, training_state.entry(loaded, TRAINER, RANKS))
    return saved


def _without_own_part(
    loaded: LoadedCheckpoint, algorithm: RLAlgorithm, saved: dict[str, int]
) -> LoadedCheckpoint:
    """With what the whole run has in common; the rest is as at the begin."""
    training_state.check_parts(loaded)
    new, run = algorithm.training_run.state_dict(), loaded.state[TRAINER]["run"]
    metrics = dict(new["metrics"])
    if ranks.is_first:
        metrics["num_env_steps"] = run["env_steps"]
        metrics["num_episodes"] = saved["num_episodes"]
    training = {
        **loaded.state[TRAINING],
        "metrics": metrics,
        "data_transformer": new["data_transformer"],
        "unroll": {},
    }
    random = loaded.state[RANDOM]
    if not ranks.is_first:
        seed = ranks.seed_of(run["seed"])
        random_state.seed_everything(
            random_state.derive_seed(seed, "resumed", run["iterations"])
        )
        random = random_state.get_state()
    state = {
        ALGORITHM: {**loaded.state[ALGORITHM], **own_buffers(algorithm)},
        TRAINING: training,
        TRAINER: loaded.state[TRAINER],
        RANDOM: random,
    }
    return loaded._replace(state=state, mapped_files={})


def write_together(write: Callable[[], Path], of_run: Path) -> Path:
    """Has all ranks write, the first one last, and only if all others could.

    Args:
        write: writes the part of this rank.
        of_run: the directory of the checkpoints of the run.

    Returns:
        The checkpoint of the run.

    Raises:
        CheckpointError: on all ranks, if one could not write.
    """
    path, error = Path(), None
    for is_its_turn in (not ranks.is_first, ranks.is_first):
        if is_its_turn:
            try:
                path = write()
            except CheckpointError as caught:
                error = caught
        if not ranks.all(error is None):
            raise error or CheckpointError(
                "another rank could not write its part of the checkpoint"
            )
    return of_run / path.name
