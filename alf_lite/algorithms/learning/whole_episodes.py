"""Iterations that train on whole episodes, ``TrainerConfig.unroll_episodes``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.data_structures import Experience, StepType, waits
from alf_lite.errors import ConfigError
from alf_lite.utils.ranks import ranks

# An episode that is longer has no end.
_MAX_EPISODE_LENGTH = 100_000


class EpisodeCollection:
    """Whole episodes, the first ``number`` that begin, from unrolls of any length.

    Unrolls go on until all are complete, so that short episodes are not preferred to
    long ones.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._pieces: list[Experience] = []
        self._step_types: list[np.ndarray] = []
        self._belongs = np.zeros((0, 0), bool)

    def add(self, piece: Experience) -> bool:
        """Takes the next unroll [T+1, B, ...]; whether more of them are needed.

        Raises:
            ConfigError: if the episodes do not end.
        """
        step_type = _step_types(piece)
        self._belongs, is_complete = whole_episodes(
            np.concatenate([*self._step_types, step_type]), self._number
        )
        if ranks.all(is_complete):  # with as many steps on every rank
            self._pieces.append(piece)
            return False
        # The next unroll begins with the last row, and uses the memory again.
        self._pieces.append(nest.map_structure(lambda t: t[:-1].clone(), piece))
        self._step_types.append(step_type[:-1])
        if len(self._belongs) > _MAX_EPISODE_LENGTH:
            raise ConfigError(
                f"TrainerConfig.unroll_episodes={self._number}: after "
                f"{len(self._belongs)} steps of every environment not all episodes "
                "have ended. Limit them by create_environment.max_episode_steps, or "
                "leave unroll_episodes out."
            )
        return True

    def joined(self) -> Experience:
        """[T+1, B, ...]; the steps of others are LAST: nothing is trained there."""
        experience = nest.cat(self._pieces)
        steps = experience.time_step
        mask = torch.from_numpy(self._belongs).to(steps.step_type.device)
        masked = torch.where(mask, steps.step_type, int(StepType.LAST))
        return experience._replace(time_step=steps._replace(step_type=masked))


def whole_episodes(step_type: np.ndarray, number: int) -> tuple[np.ndarray, bool]:
    """Which steps belong to the first episodes that begin, and whether all have ended.

    Args:
        step_type: [T, B], FIRST in its first row.
        number: of episodes. Of those that begin together, the first columns' count.

    Returns:
        [T, B] bool, and whether so many LAST steps are among them.
    """
    is_first = step_type == int(StepType.FIRST)
    begun = is_first.cumsum().reshape(is_first.shape)  # in the order of time, column
    episode = np.maximum.accumulate(np.where(is_first, begun, 0), axis=0)
    belongs = (episode > 0) & (episode <= number)
    belongs &= ~waits(torch.from_numpy(step_type)).numpy()
    ended = np.count_nonzero(belongs & (step_type == int(StepType.LAST)))
    return belongs, ended == number


def trained_sequences(batch: TrainingBatch) -> TrainingBatch:
    """Those of the sequences [N, T, ...] with a step that is trained, in their order.

    With several ranks as many on each, as each makes as many updates.
    """
    is_trained = batch.valid.any(dim=1)
    number = -int(ranks.least(-is_trained.count_nonzero()))
    rows = is_trained.int().argsort(descending=True, stable=True)[:number]
    return nest.map_structure(lambda t: t[rows], batch)


def _step_types(experience: Experience) -> np.ndarray:
    step_type = experience.time_step.step_type
    assert isinstance(step_type, Tensor)
    return step_type.cpu().numpy().copy()
