"""Remembers the open episodes of a batch, which continue in another process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.environments.numpy_time_steps import NumpyTimeSteps
from alf_lite.environments.open_episodes import lost_start
from alf_lite.environments.single_env import (
    BatchOfSingleEnvs,
    SavedEpisode,
    environment_seeds,
    vector_seed,
)
from alf_lite.environments.space_tree import SpaceLeaf
from alf_lite.errors import CheckpointError

# Of an episode that is longer the first actions are forgotten: it cannot be brought
# back. The bytes are those of all environments together.
MAX_STEPS = 100_000
MAX_BYTES = 64 * 2**20
_ARRAY_BYTES = 128  # of an array beside its data


class ActionLog:
    """Keeps what the environments were given since their open episodes began.

    What is older than all open episodes is forgotten from time to time.

    Args:
        leaves: of the action space.
        batch_size: B.
    """

    def __init__(self, leaves: Sequence[SpaceLeaf], batch_size: int) -> None:
        self._rows = [
            ((batch_size, *leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves
        ]
        step_bytes = sum(_num_bytes(*row) + _ARRAY_BYTES for row in self._rows)
        self.max_steps = max(1, min(MAX_STEPS, MAX_BYTES // step_bytes))
        self._starts = np.zeros(batch_size, np.int64)  # [B], of the open episodes
        self.clear()

    def clear(self) -> None:
        """All environments begin new episodes; steps are counted from here."""
        self._starts[:] = 0
        self._num_steps = 0  # forgotten ones included
        # [B, ...] for each leaf, the newest last
        self._steps: deque[Sequence[np.ndarray]] = deque(maxlen=self.max_steps)

    @property
    def _first(self) -> int:
        """The first step that is still known."""
        return self._num_steps - len(self._steps)

    def add(self, actions: Sequence[np.ndarray]) -> None:
        """Adds one step.

        Args:
            actions: [B, ...] for each leaf; not to be changed afterwards.
        """
        self._steps.append(actions)
        self._num_steps += 1

    def begin(self, env_indices: Any) -> None:
        """Says where the step that was added last has begun new episodes.

        Args:
            env_indices: indices, or a mask [B].
        """
        self._starts[env_indices] = self._num_steps
        for _ in range(self._first, self._starts.min()):
            self._steps.popleft()

    def episodes(self) -> list[list[np.ndarray] | None]:
        """Of each environment the actions [N, ...] of its open episode, for each leaf.

        None where not all of them are known any more.
        """
        first = self._first
        joined = self._since(first)
        return [
            None if start < first else [leaf[start - first :, i] for leaf in joined]
            for i, start in enumerate(self._starts.tolist())
        ]

    def no_actions(self) -> list[np.ndarray]:
        """Of an episode in which nothing was done yet, as :meth:`episodes` says it."""
        return [np.empty((0, *shape[1:]), dtype) for shape, dtype in self._rows]

    def _since(self, step: int) -> list[np.ndarray]:
        """All actions from ``step`` on, [N, B, ...] for each leaf."""
        steps = list(self._steps)[step - self._first :]
        return [
            np.array([arrays[i] for arrays in steps], dtype).reshape(len(steps), *shape)
            for i, (shape, dtype) in enumerate(self._rows)
        ]

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on."""
        known = self._starts[self._starts >= self._first]
        begin = int(known.min()) if len(known) else self._num_steps
        return {
            # 0 where the first actions are forgotten
            "starts": np.maximum(self._starts - begin + 1, 0).tolist(),
            # As bytes, because not every dtype of numpy is one of torch.
            "actions": [_to_bytes(leaf) for leaf in self._since(begin)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned.

        Raises:
            CheckpointError: if it is of other environments.
        """
        starts, actions = state["starts"], state["actions"]
        if len(starts) != len(self._starts) or len(actions) != len(self._rows):
            raise CheckpointError("open episodes: of other environments")
        leaves = [
            _from_bytes(t, *row) for t, row in zip(actions, self._rows, strict=True)
        ]
        num_steps = min(map(len, leaves))
        if not set(starts) <= set(range(num_steps + 2)):
            raise CheckpointError("open episodes: they begin where nothing is known")
        self.clear()
        # A forgotten start is one before the first step that is known.
        self._num_steps = 1
        for row in zip(*leaves, strict=True):
            self.add(row)
        self._starts[:] = starts


def _num_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _to_bytes(actions: np.ndarray) -> Tensor:
    """[N, bytes of a row] uint8."""
    num_bytes = _num_bytes(actions.shape[1:], actions.dtype)
    data = torch.from_numpy(np.frombuffer(bytearray(actions.tobytes()), np.uint8))
    return data.reshape(len(actions), num_bytes)


def _from_bytes(data: Tensor, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if data.dtype != torch.uint8 or data.shape[1:] != (_num_bytes(shape, dtype),):
        raise CheckpointError(
            f"open episodes: actions of shape {tuple(data.shape)} are not those of "
            f"{shape} {dtype}"
        )
    return data.numpy().view(dtype).reshape(len(data), *shape)


# Where the step before was the first of an episode, [B] (None: nowhere), and what the
# environments were given, [B, ...] for each leaf, copied.
GivenActions = tuple[np.ndarray | None, Sequence[np.ndarray]]


class EpisodeMemory:
    """Remembers the open episodes of one batch, and brings those of another back.

    Args:
        vector_env: whose episodes they are.
        action_leaves: of the action space of a single environment.
    """

    def __init__(
        self, vector_env: BatchOfSingleEnvs, action_leaves: Sequence[SpaceLeaf]
    ) -> None:
        self._vector_env = vector_env
        self._actions = ActionLog(action_leaves, vector_env.num_envs)
        self.max_steps = self._actions.max_steps  # that are remembered

    def clear(self) -> None:
        """All environments were reset."""
        self._actions.clear()

    def add(self, steps: Sequence[GivenActions]) -> None:
        """Adds the steps that all environments have taken since the last call."""
        for started, actions in steps:
            if started is not None:
                self._actions.begin(started)
            self._actions.add(actions)

    def state_dict(
        self, time_steps: NumpyTimeSteps, time_step: TimeStep
    ) -> dict[str, Any]:
        """What :meth:`restore` needs, as plain data.

        Args:
            time_steps: has converted the last one, which was added.
            time_step: the last one.
        """
        if time_steps.started is not None:
            self._actions.begin(time_steps.started)
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
