"""Open episodes of a batch of environments that continue in another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.environments.action_log import ActionLog
from alf_lite.environments.numpy_time_steps import NumpyTimeSteps
from alf_lite.environments.open_episodes import SavedEpisode, lost_start
from alf_lite.environments.seeds import environment_seeds, vector_seed
from alf_lite.environments.space_tree import SpaceLeaf
from alf_lite.errors import CheckpointError


class ReplayingVectorEnv(Protocol):
    """The part of this library's own vector environments that is used here."""

    num_envs: int

    def save_episodes(self) -> list[str]: ...

    def restore_episodes(
        self, episodes: dict[int, SavedEpisode], seeds: list[int]
    ) -> tuple[tuple, dict[int, str]]: ...


class EpisodeMemory:
    """Remembers the open episodes of one batch, and brings those of another back.

    Args:
        vector_env: whose episodes they are.
        action_leaves: of the action space of a single environment.
    """

    def __init__(
        self, vector_env: ReplayingVectorEnv, action_leaves: Sequence[SpaceLeaf]
    ) -> None:
        self._vector_env = vector_env
        self._actions = ActionLog(action_leaves, vector_env.num_envs)

    def clear(self) -> None:
        """All environments were reset."""
        self._actions.clear()

    def add(self, time_steps: NumpyTimeSteps) -> None:
        """All environments are about to take the step that was converted last."""
        # Before, because an environment may change the actions that it is given.
        self._begin(time_steps)
        self._actions.add(time_steps.converted)

    def _begin(self, time_steps: NumpyTimeSteps) -> None:
        if time_steps.started is not None:
            self._actions.begin(time_steps.started)

    def state_dict(
        self, time_steps: NumpyTimeSteps, time_step: TimeStep
    ) -> dict[str, Any]:
        """What :meth:`restore` needs, as plain data.

        Args:
            time_steps: has converted the last one.
            time_step: the last one.
        """
        self._begin(time_steps)
        return {
            "time_step": nest.flatten(time_step),
            "episodes": self._vector_env.save_episodes(),
            **self._actions.state_dict(),
        }

    def restore(
        self, state: dict[str, Any], time_steps: NumpyTimeSteps, seed: int
    ) -> tuple[TimeStep, dict[int, str]]:
        """Replays episodes, and starts new ones where that gives another last step.

        Args:
            state: what :meth:`state_dict` returned.
            time_steps: converts what the environments return.
            seed: of new episodes.

        Returns:
            The last step, FIRST where an episode is new, and why it is:
            environment → reason.

        Raises:
            CheckpointError: if the state is of other environments.
        """
        vector_env, actions = self._vector_env, self._actions
        seeds = environment_seeds(vector_seed(seed), vector_env.num_envs)
        actions.load_state_dict(state)
        episodes = _episodes(state["episodes"], actions)
        is_first = np.array([len(one.actions[0]) == 0 for one in episodes.values()])
        result, reasons = vector_env.restore_episodes(episodes, seeds)
        is_first[list(reasons)] = True
        time_step = time_steps.replayed(is_first, *result)
        saved = _unpack(state["time_step"], time_step)
        others = _different_rows(saved, time_step) - reasons.keys()
        if others:
            reason = "the replay came to another step"
            lost = SavedEpisode(lost_start(reason), actions.no_actions())
            result, _ = vector_env.restore_episodes(dict.fromkeys(others, lost), seeds)
            reasons |= dict.fromkeys(others, reason)
            is_first[list(others)] = True
            time_step = time_steps.replayed(is_first, *result)
        new = sorted(reasons)
        actions.begin(new)
        return _with_rows(saved, time_step, new), {i: reasons[i] for i in new}


def _episodes(starts: list[str], actions: ActionLog) -> dict[int, SavedEpisode]:
    episodes = {}
    for i, (start, leaves) in enumerate(zip(starts, actions.episodes(), strict=True)):
        if leaves is None:
            start = lost_start(
                f"its episode is longer than the {actions.max_steps} steps that are "
                "remembered"
            )
        episodes[i] = SavedEpisode(start, leaves or actions.no_actions())
    return episodes


def _unpack(leaves: list[Any], like: TimeStep) -> TimeStep:
    expected = nest.flatten(like)
    if len(leaves) != len(expected) or any(
        saved.shape != one.shape or saved.dtype != one.dtype
        for saved, one in zip(leaves, expected, strict=True)
    ):
        raise CheckpointError("open episodes: the last time step has another form")
    return nest.pack_sequence_as(like, leaves)


def _different_rows(a: TimeStep, b: TimeStep) -> set[int]:
    """Where the environment's part of two steps differs in any bit."""
    # The environment does not say what it was given.
    leaves_a, leaves_b = (
        nest.flatten(step._replace(prev_action=())) for step in (a, b)
    )
    different: set[int] = set()
    for one, other in zip(leaves_a, leaves_b, strict=True):
        rows = zip(one.numpy(), other.numpy(), strict=True)
        different |= {i for i, (x, y) in enumerate(rows) if x.tobytes() != y.tobytes()}
    return different


def _with_rows(into: TimeStep, other: TimeStep, rows: list[int]) -> TimeStep:
    """A step in memory of its own that has some rows of ``other``."""
    leaves = [leaf.clone() for leaf in nest.flatten(into)]
    with torch.no_grad():
        for leaf, source in zip(leaves, nest.flatten(other), strict=True):
            leaf[rows] = source[rows]
    return nest.pack_sequence_as(into, leaves)
