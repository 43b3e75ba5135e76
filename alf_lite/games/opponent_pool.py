"""Frozen copies of a policy that trains, as opponents of itself."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite.algorithms.acting import TrainedPolicy
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import (
    from_saved_spaces,
    saved_spaces,
)
from alf_lite.errors import CheckpointError, ConfigError, EnvError
from alf_lite.games.game import Game, Rng, State, copy_rows
from alf_lite.games.opponents import Memory, Opponent, choose_rows
from alf_lite.games.policy_opponents import PolicyOpponent
from alf_lite.utils import random_state
from alf_lite.utils.game_results import Opposition, distinct_names

_EMPTY = -1


class OpponentPool(nn.Module):
    """Snapshots of the policy of an algorithm, and how often each opponent is played.

    All of it are buffers, and it is a part of the algorithm: so checkpoints hold it,
    and unroll workers and ranks have it.

    Args:
        tensors: of the policy, by name: those of the first snapshot, number 0.
        num_slots: how many snapshots are kept.
        bot_names: of the opponents that are no snapshots; they have the first weights.
    """

    ids: Tensor  # [slots] int64, the number of a snapshot; -1 where there is none
    weights: Tensor  # [bots + slots] float64, not negative

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        num_slots: int,
        bot_names: Sequence[str],
    ) -> None:
        super().__init__()
        self.bot_names = tuple(bot_names)
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

    def explain_misfit(self, state: Mapping[str, Any], prefix: str) -> str | None:
        """Why the pool of a checkpoint does not fit, if it is of another size."""
        size = len(state.get(f"{prefix}ids", ()))
        if size != len(self.ids):
            return (
                f"num_snapshots was {size} and is {len(self.ids)}: set it back to "
                f"{size}, or begin in another root_dir"
            )
        num_bots = len(state.get(f"{prefix}weights", ())) - size
        number = len(self.bot_names)
        if num_bots != number:
            return (
                f"there were {num_bots} opponents beside the snapshots and now there "
                f"are {number}: name the same ones, or begin in another root_dir"
            )
        return None

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
        self.pool = OpponentPool(self.trained(), num_slots, bot_names)
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
        with torch.inference_mode(False), random_state.preserved():
            algorithm = self._build(env=self._env, config=self._config, is_eval=True)
        algorithm.eval()
        policy = TrainedPolicy(algorithm, self._env, is_live=False)
        return PolicyOpponent(policy, name)


class Opponents:
    """Whom an environment plays against: bots, and snapshots of the policy.

    An opponent has a number: i for the i-th bot, and behind them the snapshots in the
    order in which they were taken.

    Args:
        env: for messages, and whose games they play; is told its opposition.
        bots: opponents that stay as they are.
        num_snapshots: how many snapshots there are at most.
        game: which they play.

    Raises:
        ConfigError: if there is none, or one cannot play the game.
    """

    def __init__(
        self,
        env: Environment,
        bots: Sequence[Opponent],
        num_snapshots: int,
        game: Game,
    ) -> None:
        if not bots and not num_snapshots:
            raise ConfigError(
                f"{env.name}: there are no opponents. Name some, such as "
                "(@RandomOpponent(),), or set num_snapshots, which are of the policy."
            )
        for bot in bots:
            bot.check_game(game)
        names = distinct_names([bot.name for bot in bots])
        env.opposition = Opposition(names)
        self._env = env
        self._bots = list(bots)
        self._num_snapshots = num_snapshots
        self._game = game
        self.snapshots: Snapshots | None = None
        self._memories: dict[int, Memory] = {}  # by opponent: [B · P], row · P + seat

    def bind(self, algorithm: Any) -> None:
        """Makes the pool of an algorithm, see :meth:`Environment.bind`."""
        if self._num_snapshots:
            opposition = self._env.opposition
            assert opposition is not None, self._env.name
            self.snapshots = Snapshots(
                algorithm, self._env, self._num_snapshots, opposition.bots
            )

    def choose(self, ids: np.ndarray, rows: Any, rng: Rng) -> None:
        """Whom new games are played against, into ``ids`` [B] of the numbers of all.

        The others are finished against those they have.
        """
        num_bots, snapshots = len(self._bots), self.snapshots
        weights = np.ones(num_bots)
        if snapshots is not None:
            weights = snapshots.pool.weights.numpy(force=True)
        if not len(weights):
            raise ConfigError(
                f"{self._env.name}: there are only snapshots of the policy, which are "
                "those of training, and no opponents. An evaluation needs some, such "
                "as evaluation/BattleEnvironment.opponents = (@RandomOpponent(),)"
            )
        if not weights.sum():
            raise EnvError(f"{self._env.name}: all opponents have the weight 0")
        shares = weights.cumsum() / weights.sum()
        chosen = shares.searchsorted(rng.random(len(rows)), side="right")
        if snapshots is not None:
            slots = np.unique(chosen[chosen >= num_bots]).tolist()
            numbers = {one: num_bots + snapshots.play(one - num_bots) for one in slots}
            chosen = np.array([numbers.get(one, one) for one in chosen.tolist()], int)
        ids[rows] = chosen
        playing = set(ids.tolist())
        if snapshots is not None:
            snapshots.keep(i - num_bots for i in playing)
        self._memories = {i: self._memories[i] for i in playing & {*self._memories}}
        for i in np.unique(chosen).tolist():
            self._begin_memory(i, len(ids), np.asarray(rows)[chosen == i], rng)

    def _begin_memory(self, i: int, num_rows: int, rows: np.ndarray, rng: Rng) -> None:
        """Of new games [N] in these rows, of each the same in all seats."""
        num_seats = self._game.num_players
        begun = self[i].begin(len(rows), rng)
        if i not in self._memories:
            size = num_rows * num_seats
            self._memories[i] = [x[:1].repeat(size, 0) for x in begun]
        places = (rows[:, None] * num_seats + np.arange(num_seats)).ravel()
        for array, new in zip(self._memories[i], begun, strict=True):
            array[places] = new.repeat(num_seats, 0)

    def __getitem__(self, i: int) -> Opponent:
        """The one with this number, which plays."""
        snapshots: Any = self.snapshots
        num_bots = len(self._bots)
        return self._bots[i] if i < num_bots else snapshots[i - num_bots]

    def act(
        self,
        ids: np.ndarray,
        rows: np.ndarray,
        state: State,
        seats: np.ndarray,
        rng: Rng,
    ) -> np.ndarray:
        """[N] actions of ``seats`` [N] in the games of these rows [N].

        Args:
            ids: [B], who plays in each row.
            rows: [N]; of a row once for each seat.
            state: [N] games.
            seats: [N].
            rng: whatever is left to chance is drawn from it.
        """
        actions = np.zeros(len(rows), np.int64)
        players, places = ids[rows], rows * self._game.num_players + seats
        for i in np.unique(players).tolist():
            own = np.flatnonzero(players == i)
            actions[own] = choose_rows(
                self[i],
                self._game,
                copy_rows(state, own),
                seats[own],
                rng,
                self._memories[i],
                places[own],
            )
        return actions

    def state(self) -> dict[str, Any]:
        """Of those that play, for a checkpoint."""
        return {
            "snapshots": {} if self.snapshots is None else self.snapshots.state(),
            "memories": {
                str(i): [torch.from_numpy(x.copy()) for x in memory]
                for i, memory in self._memories.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Has those of ``state`` play again.

        Raises:
            CheckpointError: if there are fewer now.
        """
        number = 1 + max(map(int, state["memories"]), default=-1)
        if self.snapshots is not None:
            self.snapshots.restore(state["snapshots"])
        elif number > len(self._bots):
            raise CheckpointError(
                f"{self._env.name}: open games are against {number} opponents, of whom "
                f"{len(self._bots)} are left. Name the same ones, or begin in another "
                "root_dir."
            )
        kept = state["memories"].items()
        self._memories = {int(i): [x.numpy() for x in memory] for i, memory in kept}
