"""Frozen copies of a policy that trains, as opponents of itself."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite.algorithms.acting import TrainedPolicy
from alf_lite.config import configurable
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import (
    from_saved_spaces,
    saved_spaces,
)
from alf_lite.errors import ConfigError
from alf_lite.games.game import MASK_KEY, Game, State
from alf_lite.games.opponents import Memory, Opponent
from alf_lite.policies.run_policy import load_policy_checkpoint
from alf_lite.policies.trained_policy import load_policy
from alf_lite.runs.training_state import ALGORITHM, part_of
from alf_lite.utils import random_state

_EMPTY = -1


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
        space = self.policy.observation_space
        seen = space.spaces.get("observation") if hasattr(space, "spaces") else None
        if seen != game.observation_space or self.policy.action_space.n != (
            game.num_actions
        ):
            raise ConfigError(
                f"{self.name} was trained on {space}, and {game.name} has observations "
                f"{game.observation_space} and {game.num_actions} actions"
            )

    def begin(self, number: int, rng: np.random.Generator) -> Memory:
        return self.policy.new_memory(number) if self.policy.remembers else []

    def choose(
        self,
        game: Game,
        state: State,
        seats: np.ndarray,
        rng: np.random.Generator,
        memory: Memory,
    ) -> tuple[np.ndarray, Memory]:
        seen = _observation(game.observe(state, seats), game.legal(state, seats))
        if not self.policy.remembers:
            return np.asarray(self.policy.predict(seen, self._deterministic)), memory
        return self.policy.predict_with(seen, memory, self._deterministic)

    def probabilities(self, seen: np.ndarray, legal: np.ndarray) -> np.ndarray:
        """[N, A], of observations and legal actions, as :class:`GameTree` asks."""
        observation = _observation(seen, legal | ~legal.any(1, keepdims=True))
        if self._deterministic:
            return legal * np.eye(legal.shape[1])[self.policy.predict(observation)]
        return legal * self.policy.distribution(observation).probs.numpy(force=True)


def _observation(seen: np.ndarray, legal: np.ndarray) -> dict[str, np.ndarray]:
    return {MASK_KEY: legal.astype(np.int8), "observation": seen}


@configurable
class RunOpponent(PolicyOpponent):
    """The policy of a run.

    Args:
        root_dir: of the run, which is read and executed: only one that you trust.
        checkpoint: "latest", "best" or a step.
        deterministic: the best action in place of one that is drawn.
    """

    def __init__(
        self,
        root_dir: str,
        checkpoint: str | int = "latest",
        *,
        deterministic: bool = False,
    ) -> None:
        policy = load_policy(root_dir, checkpoint, device="cpu")
        name = Path(root_dir).name
        if checkpoint != "latest":
            name += f"@{checkpoint}"
        super().__init__(policy, name, deterministic=deterministic)


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
    slots = sorted((n, slot) for slot, n in enumerate(numbers) if n != _EMPTY)
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


class OpponentPool(nn.Module):
    """Snapshots of the policy of an algorithm, and how often each opponent is played.

    All of it are buffers, and it is a part of the algorithm: so checkpoints hold it,
    and unroll workers and ranks have it.

    Args:
        tensors: of the policy, by name: those of the first snapshot, number 0.
        num_slots: how many snapshots are kept.
        bot_names: of the opponents that are no snapshots; they have the first weights.
        num_seats: P, of the game.
    """

    ids: Tensor  # [slots] int64, the number of a snapshot; -1 where there is none
    weights: Tensor  # [bots + slots] float64, not negative

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        num_slots: int,
        bot_names: Sequence[str],
        num_seats: int,
    ) -> None:
        super().__init__()
        self.bot_names = tuple(bot_names)
        self.num_seats = num_seats
        num_bots = len(bot_names)
        self.names = tuple(tensors)
        for i, tensor in enumerate(tensors.values()):
            slots = torch.zeros((num_slots, *tensor.shape), dtype=tensor.dtype)
            self.register_buffer(f"tensor_{i}", slots)
        self.register_buffer("ids", torch.full((num_slots,), _EMPTY))
        weights = torch.zeros(num_bots + num_slots, dtype=torch.float64)
        weights[: num_bots + 1] = 1.0
        self.register_buffer("weights", weights)
        self.put(0, 0, tensors)

    @torch.no_grad()
    def put(self, slot: int, number: int, tensors: Mapping[str, Tensor]) -> None:
        """A snapshot in place of what was in the slot."""
        for i, name in enumerate(self.names):
            self.get_buffer(f"tensor_{i}")[slot] = tensors[name]
        self.ids[slot] = number

    def tensors_of(self, slot: int) -> dict[str, Tensor]:
        """By name, of the pool's memory."""
        return {
            name: self.get_buffer(f"tensor_{i}")[slot]
            for i, name in enumerate(self.names)
        }

    def free_slot(self) -> int | None:
        """One without a snapshot."""
        free = np.flatnonzero(self.ids.numpy(force=True) == _EMPTY)
        return int(free[0]) if len(free) else None

    def opponent(self, number: int) -> int:
        """What ``env_info`` calls a snapshot."""
        return len(self.bot_names) + number

    def name_of(self, opponent: int) -> str:
        """Of one that ``env_info`` names."""
        number = opponent - len(self.bot_names)
        return self.bot_names[opponent] if number < 0 else f"snapshot_{number}"

    def slots(self) -> dict[int, int]:
        """The number of each snapshot that there is → its slot."""
        numbers = enumerate(self.ids.tolist())
        return {number: slot for slot, number in numbers if number != _EMPTY}


class Snapshots:
    """The policies that play for the pool of one algorithm, in one process.

    A snapshot that plays is a copy: the pool may have another one in its slot before
    the game ends.

    Args:
        algorithm: that trains, or acts in a worker; has the pool from now on.
        env: whose games they play.
        num_slots: of the pool, as for the others.
    """

    def __init__(
        self,
        algorithm: Any,
        env: Environment,
        num_slots: int,
        bot_names: Sequence[str],
        num_seats: int,
    ) -> None:
        self._env = from_saved_spaces(saved_spaces(env) or {})
        built = algorithm.built_from
        kind: Any = type(algorithm)
        self._build = functools.partial(kind, **built.arguments)
        self._config = built.config
        self._spare: list[PolicyOpponent] = []
        self._playing: dict[int, PolicyOpponent] = {}
        first = self._take_spare("snapshot 0")
        self._names = tuple(first.policy.algorithm.state_dict())
        self._spare.append(first)
        self._algorithm = algorithm
        self.pool = OpponentPool(self.trained(), num_slots, bot_names, num_seats)
        algorithm.opponent_pool = self.pool

    def trained(self) -> dict[str, Tensor]:
        """What the policy that trains is made of now."""
        tensors = self._algorithm.state_dict()
        return {name: tensors[name] for name in self._names}

    def play(self, slot: int) -> int:
        """Has the snapshot of a slot play; returns its number."""
        number = int(self.pool.ids[slot])
        if number not in self._playing:
            self._begin(number, self.pool.tensors_of(slot))
        return number

    def _begin(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        opponent = self._take_spare(f"snapshot {number}")
        opponent.policy.algorithm.load_state_dict(dict(tensors))
        self._playing[number] = opponent

    def __getitem__(self, number: int) -> PolicyOpponent:
        """One that plays."""
        return self._playing[number]

    def keep(self, numbers: Iterable[int]) -> None:
        """The others do not play any more."""
        for number in self._playing.keys() - set(numbers):
            self._spare.append(self._playing.pop(number))

    def state(self) -> dict[str, list[Tensor]]:
        """Of those that play."""
        return {
            str(number): [
                tensor.clone() for tensor in one.policy.algorithm.state_dict().values()
            ]
            for number, one in self._playing.items()
        }

    def restore(self, state: Mapping[str, list[Tensor]]) -> None:
        """Has those of ``state`` play again."""
        self.keep(())
        for number, tensors in state.items():
            self._begin(int(number), dict(zip(self._names, tensors, strict=True)))

    def _take_spare(self, name: str) -> PolicyOpponent:
        if self._spare:
            opponent = self._spare.pop()
            opponent.name = name
            return opponent
        with random_state.preserved():
            algorithm = self._build(env=self._env, config=self._config, is_eval=True)
        algorithm.eval()
        policy = TrainedPolicy(algorithm, self._env, is_live=False)
        return PolicyOpponent(policy, name)
