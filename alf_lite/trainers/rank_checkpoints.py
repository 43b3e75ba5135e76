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
from alf_lite.checkpoints.checkpointer import Checkpointer, LoadedCheckpoint
from alf_lite.errors import CheckpointError
from alf_lite.trainers import training_state
from alf_lite.trainers.training_state import ALGORITHM, RANDOM, TRAINER, TRAINING
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
    """The newest checkpoint of the run, as this rank goes on from it.

    Args:
        own: of this rank; that of the run, for the first one.
        of_run: the directory of its checkpoints.
        algorithm: that is trained.

    Raises:
        CheckpointError: if there is none that can be used.
    """
    loaded = own.load("latest", resumable=True) if ranks.is_first else None
    step = ranks.broadcast_data(None if loaded is None else loaded.step)
    if loaded is None:
        loaded = Checkpointer(of_run, read_only=True).load(step, resumable=True)
        own.drop_after(step)
    saved = _saved_ranks(loaded)
    if saved["size"] != ranks.size:
        _logger.warning(
            "The checkpoint was written by %d ranks and the run goes on with %d: "
            "parameters, optimizers, statistics and counters stay; new episodes begin, "
            "metrics start anew, and steps that are stored for replay are lost.",
            saved["size"],
            ranks.size,
        )
        return _without_own_part(loaded, algorithm, saved)
    if ranks.is_first:
        return loaded
    try:
        part = own.load(step, resumable=True)
    except CheckpointError as error:
        _logger.error(
            "Rank %d begins new episodes, and its stored steps are lost: its part of "
            "the checkpoint cannot be used. %s",
            ranks.index,
            error,
        )
        return _without_own_part(loaded, algorithm, saved)
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
    new, run = algorithm.learner.state_dict(), loaded.state[TRAINER]["run"]
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
    trainer = dict(loaded.state[TRAINER])
    random = loaded.state[RANDOM]
    if not ranks.is_first:
        trainer["hooks"] = {}
        seed = ranks.seed_of(run["seed"])
        random_state.seed_everything(
            random_state.derive_seed(seed, "resumed", run["iterations"])
        )
        random = random_state.get_state()
    state = {
        ALGORITHM: {**loaded.state[ALGORITHM], **own_buffers(algorithm)},
        TRAINING: training,
        TRAINER: trainer,
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
