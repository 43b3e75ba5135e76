"""Policies as opponents: of algorithms, of runs and their snapshots, exported ones."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from alf_lite.algorithms.acting import TrainedPolicy
from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.games.game import MASK_KEY, Game, Rng, State
from alf_lite.games.opponents import Memory, Opponent
from alf_lite.policies.exported_policy import ExportedPolicy
from alf_lite.policies.run_policy import load_policy_checkpoint
from alf_lite.policies.trained_policy import load_policy
from alf_lite.runs.training_state import ALGORITHM, part_of
from alf_lite.utils import random_state


class PolicyOpponent(Opponent):
    """Draws actions from a policy; takes the best where it has no distribution.

    Args:
        policy: of an environment of the same game.
        name: for tables and logs.
        deterministic: the best action in place of one that is drawn.
    """

    def __init__(
        self, policy: TrainedPolicy, name: str, *, deterministic: bool = False
    ) -> None:
        self.policy = policy
        self.name = name
        is_drawn = policy.algorithm.rl_algorithm.has_stochastic_policy
        self._deterministic = deterministic or not is_drawn

    def check_game(self, game: Game) -> None:
        seen, known = self.policy.observation_space, game.policy_space.spaces.items()
        if not (
            isinstance(seen, spaces.Dict)
            and seen.spaces.items() <= known
            and self.policy.action_space.n == game.num_actions
        ):
            raise ConfigError(
                f"{self.name} was trained on {seen}, and {game.name} has observations "
                f"{game.policy_space} and {game.num_actions} actions"
            )

    def begin(self, number: int, rng: Rng) -> Memory:
        return self.policy.new_memory(number) if self.policy.remembers else []

    def choose(
        self, game: Game, state: State, seats: np.ndarray, rng: Rng, memory: Memory
    ) -> tuple[np.ndarray, Memory]:
        seen = game.policy_input(state, seats)
        seen = {key: seen[key] for key in self.policy.observation_space.spaces}
        seed = 0 if self._deterministic else int(rng.integers(2**63))
        with random_state.torch_seeded(seed, self.policy.algorithm.device):
            if self.policy.remembers:
                return self.policy.predict_with(seen, memory, self._deterministic)
            return np.asarray(self.policy.predict(seen, self._deterministic)), memory

    def probabilities(self, seen: np.ndarray, legal: np.ndarray) -> np.ndarray:
        """[N, A], of observations and legal actions, as :class:`GameTree` asks."""
        mask = (legal | ~legal.any(1, keepdims=True)).astype(np.int8)
        observation = {MASK_KEY: mask, "observation": seen}
        if self._deterministic:
            return legal * np.eye(legal.shape[1])[self.policy.predict(observation)]
        return legal * self.policy.distribution(observation).probs.numpy(force=True)


@configurable
class RunOpponent(PolicyOpponent):
    """The policy of a run.

    Args:
        root_dir: of the run, which is read and executed: only one that you trust.
        checkpoint: "latest", "best" or a step.
        deterministic: the best action in place of one that is drawn.
        device: of the networks; the CPU by default.
    """

    def __init__(
        self,
        root_dir: str,
        checkpoint: str | int = "latest",
        *,
        deterministic: bool = False,
        device: str | None = None,
    ) -> None:
        policy = load_policy(root_dir, checkpoint, device=device or "cpu")
        name = Path(root_dir).name
        if checkpoint != "latest":
            name += f"@{checkpoint}"
        super().__init__(policy, name, deterministic=deterministic)


@configurable
class ExportedOpponent(Opponent):
    """A policy that was exported, see docs/export.md; it needs no code of its run.

    Args:
        directory: that ``alf_lite export`` has written; only one that you trust.

    Raises:
        ConfigError: if it holds no exported policy.
    """

    def __init__(self, directory: str) -> None:
        self.name = Path(directory).name
        self._policy = ExportedPolicy(directory)

    def check_game(self, game: Game) -> None:
        seen = {
            "/".join(port["path"]): tuple(port["shape"][1:])
            for port in self._policy.inputs
            if port["role"] == "observation"
        }
        known = {key: space.shape for key, space in game.policy_space.spaces.items()}
        action, *others = self._policy.actions
        top = game.num_actions - 1
        fits = (action["minimum"], action["maximum"]) == (0, top) and not others
        if not seen.items() <= known.items() or not fits:
            raise ConfigError(
                f"{self.name} was trained on {seen} with actions up to "
                f"{action['maximum']}, and {game.name} has {known} and up to {top}"
            )

    def begin(self, number: int, rng: Rng) -> Memory:
        return self._policy.new_memory(number)

    def choose(
        self, game: Game, state: State, seats: np.ndarray, rng: Rng, memory: Memory
    ) -> tuple[np.ndarray, Memory]:
        seen = game.policy_input(state, seats)
        (actions,), memory = self._policy.predict_with(seen, memory, rng)
        return actions, memory


def snapshots_of(
    root_dir: str | Path,
    checkpoint: str | int = "latest",
    *,
    deterministic: bool = False,
) -> list[PolicyOpponent]:
    """The snapshots in the pool of a run, from the oldest to the newest one.

    Args:
        root_dir: of the run, which is read and executed: only one that you trust.
        checkpoint: "latest", "best" or a step.
        deterministic: the best actions in place of those that are drawn.

    Raises:
        ConfigError: if it was no run with snapshots.
    """
    state = part_of(load_policy_checkpoint(root_dir, checkpoint), ALGORITHM)
    numbers = state.get("opponent_pool.ids", torch.zeros(0)).tolist()
    slots = sorted((n, slot) for slot, n in enumerate(numbers) if n >= 0)
    if not slots:
        raise ConfigError(f"{root_dir}: there are no snapshots in this run")
    found, name = [], Path(root_dir).name
    first = load_policy(root_dir, checkpoint, device="cpu")
    for number, slot in slots:
        policy = copy.deepcopy(first)
        tensors = {
            key: state[f"opponent_pool.tensor_{i}"][slot]
            for i, key in enumerate(policy.algorithm.state_dict())
        }
        policy.algorithm.load_state_dict(tensors)
        found.append(
            PolicyOpponent(policy, f"{name}#{number}", deterministic=deterministic)
        )
    return found
