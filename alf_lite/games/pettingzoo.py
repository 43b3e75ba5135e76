"""PettingZoo's games in which agents move one after the other."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.errors import ConfigError, EnvError, did_you_mean, missing_extra
from alf_lite.games.game import MASK_KEY, Game, Rng, objects

_NAMESPACE = "classic/"
_BOARD_GAMES = ("tictactoe", "connect_four", "chess", "go_")


class ZooState(NamedTuple):
    """N games; a position is never changed."""

    positions: np.ndarray  # [N] of Position


@dataclasses.dataclass
class Position:
    """One game after some actions; arrays [P] and lists are by seat."""

    env: Any  # that stands here; None if it has gone on
    seed: int
    actions: tuple[tuple[int, ...], ...]  # [P] of each move
    moves: np.ndarray  # bool
    legal: Sequence[np.ndarray]  # [A] bool each, nothing where the seat does not move
    seen: Sequence[np.ndarray]
    won: np.ndarray  # so far
    # Where all move at once:
    paid: Any = None  # float32, by the last move
    ended: Any = None  # bool, by the rules
    whole: Any = None  # the state that an environment tells


class ZooGame(Game):
    """Games of PettingZoo; seats are its agents.

    A game is a seed and the actions since, from which it can be played again: copies of
    PettingZoo's environments lose their state.

    Args:
        make: makes an environment.
        max_length: in so many moves every game is over.
    """

    def __init__(self, make: Callable[[], Any], max_length: int) -> None:
        self._make = make
        self._envs = [make()]
        env = self._envs[0]
        self.agents: list[Any] = list(env.possible_agents)
        metadata = getattr(env, "metadata", {})
        self.name = str(metadata.get("name", type(env).__name__))
        self.num_players = len(self.agents)
        self.max_length = max_length

    @abc.abstractmethod
    def _begin(self, seed: int) -> Position:
        """A game that begins."""

    @abc.abstractmethod
    def _step(self, env: Any, before: Position, chosen: tuple[int, ...]) -> Position:
        """The game after one move, which is made in ``env``."""

    def initial(self, number: int, rng: Rng) -> ZooState:
        seeds = rng.integers(2**31, size=number).tolist()
        return ZooState(objects([self._begin(seed) for seed in seeds]))

    def moves(self, state: ZooState) -> np.ndarray:
        return self._by_seat(state, "moves", bool)

    def play(self, state: ZooState, actions: np.ndarray, rng: Rng) -> ZooState:
        pairs = zip(state.positions, map(tuple, actions.tolist()), strict=True)
        return ZooState(objects([self._after(one, chosen) for one, chosen in pairs]))

    def legal(self, state: ZooState, seats: np.ndarray) -> np.ndarray:
        legal = [one.legal[s] for one, s in zip(state.positions, seats, strict=True)]
        return np.array(legal, bool).reshape(-1, self.num_actions)

    def observe(self, state: ZooState, seats: np.ndarray) -> np.ndarray:
        seen = [one.seen[s] for one, s in zip(state.positions, seats, strict=True)]
        space = self.observation_space
        return np.array(seen, space.dtype).reshape(-1, *space.shape)

    def returns(self, state: ZooState) -> np.ndarray:
        is_over = ~self.moves(state).any(1, keepdims=True)
        return (self._by_seat(state, "won", float) * is_over).astype(np.float32)

    def _by_seat(self, state: ZooState, name: str, dtype: Any) -> np.ndarray:
        values = [getattr(one, name) for one in state.positions]
        return np.array(values, dtype).reshape(-1, self.num_players)

    def pack(self, state: ZooState) -> list[np.ndarray]:
        """[N] seeds, and [N, L, P] actions with -1 behind them."""
        games = [one.actions for one in state.positions]
        length = max(map(len, games), default=0)
        packed = np.full((len(games), length, self.num_players), -1)
        for row, actions in zip(packed, games, strict=True):
            row[: len(actions)] = np.reshape(actions, (-1, self.num_players))
        return [np.array([one.seed for one in state.positions], np.int64), packed]

    def unpack(self, arrays: Sequence[np.ndarray]) -> ZooState:
        games = [
            self._replayed(int(seed), [a for a in map(tuple, row) if max(a) >= 0])
            for seed, row in zip(arrays[0], arrays[1].tolist(), strict=True)
        ]
        return ZooState(objects(games))

    def _after(self, position: Position, chosen: tuple[int, ...]) -> Position:
        if position.env is None:  # it has gone on from there
            position = self._replayed(position.seed, position.actions)
        env, position.env = position.env, None
        after = self._step(env, position, chosen)
        if not np.isfinite(after.won).all():
            raise EnvError(
                f"{self.name}: a reward is not finite, the seats won {after.won}"
            )
        return after

    def _replayed(self, seed: int, actions: Sequence[tuple[int, ...]]) -> Position:
        position = self._begin(seed)
        for chosen in actions:
            position = self._after(position, chosen)
        return position


@configurable
class PettingZooGame(ZooGame):
    """An AEC game of PettingZoo (Terry et al. 2021, arXiv:2009.14471).

    What a seat wins on the way is paid at the end, the sum of the rewards that
    ``last()`` has told it. One that has died moves no more. Without a mask, in the
    observation or the info, all actions are legal.

    Args:
        game: a name such as ``"tictactoe_v3"``, of PettingZoo's classic games, or what
            makes an environment when it is called.
        is_board_game: whether two seats move in turn, play for the same stake and see
            all, each the board as its own; None: known of tic-tac-toe, Connect-4, chess
            and Go.
        max_length: in so many moves every game is over; one that takes longer is cut.

    Raises:
        ConfigError: if there is no such game, or its seats have different spaces, or
            spaces that are no Box or Discrete.
    """

    def __init__(
        self,
        game: str | Callable[[], Any],
        *,
        is_board_game: bool | None = None,
        max_length: int = 1000,
    ) -> None:
        super().__init__(_maker(game) if isinstance(game, str) else game, max_length)
        if is_board_game is None:
            is_board_game = self.num_players == 2 and self.name.startswith(_BOARD_GAMES)
        self.is_board_game = is_board_game
        self.name = f"pettingzoo/{self.name}"
        self._spaces = AgentSpaces(self._envs[0], self.agents, self.name)
        own = self._spaces.own
        low, high = own.low.astype(np.float32), own.high.astype(np.float32)
        self.observation_space = spaces.Box(low, high, own.shape)
        self.num_actions = self._spaces.num_actions

    def _begin(self, seed: int) -> Position:
        env = self._make()
        env.reset(seed=seed)
        return self._arrive(env, seed, (), np.zeros(self.num_players))

    def _step(self, env: Any, before: Position, chosen: tuple[int, ...]) -> Position:
        env.step(self._spaces.action.start + chosen[int(before.moves.argmax())])
        actions = (*before.actions, chosen)
        return self._arrive(env, before.seed, actions, before.won.copy())

    def _arrive(self, env: Any, seed: int, actions: Any, won: np.ndarray) -> Position:
        """Up to the next one that moves, or the end; the dead take their last rewards.

        ``last()`` tells what an agent has won since its last action, and the agents
        that die are told in any order, often the loser first.
        """
        legal = np.zeros((self.num_players, self.num_actions), bool)
        while env.agents and not legal.any():
            seen, reward, terminated, truncated, info = env.last()
            seat = self.agents.index(env.agent_selection)
            won[seat] += reward
            if terminated or truncated:
                env.step(None)
                continue
            mask = self._spaces.read(seen, info)[1]
            legal[seat] = True if mask is None else mask
            if not legal[seat].any():
                raise EnvError(
                    f"{self.name}: agent {env.agent_selection!r} has to move, and its "
                    "action_mask allows nothing"
                )
        read = [self._spaces.read(env.observe(a), None)[0] for a in self.agents]
        moves = np.any(legal, axis=1)
        return Position(env, seed, actions, moves, list(legal), read, won)


class AgentSpaces:
    """What agents that are alike observe and do, and how to read it.

    Args:
        env: of PettingZoo.
        agents: of ``env``.
        name: for messages.

    Raises:
        ConfigError: if two agents differ, or a space is of another kind.
    """

    def __init__(self, env: Any, agents: Sequence[Any], name: str) -> None:
        seen = [env.observation_space(agent) for agent in agents]
        chosen = [env.action_space(agent) for agent in agents]
        if any(x != seen[0] for x in seen) or any(x != chosen[0] for x in chosen):
            raise ConfigError(
                f"{name}: its agents have different spaces, {seen} and {chosen}. One "
                "policy is for all: pad observations and actions to the largest ones."
            )
        own, action = seen[0], chosen[0]
        if isinstance(own, spaces.Dict) and "observation" in own.spaces:
            own = own["observation"]
        self._values: np.ndarray | None = None  # of which one is seen
        if isinstance(own, spaces.Discrete):
            self._values = own.start + np.arange(own.n)
            own = spaces.Box(0.0, 1.0, self._values.shape)
        if not isinstance(own, spaces.Box) or not isinstance(action, spaces.Discrete):
            raise ConfigError(
                f"{name}: agents need a Box or Discrete of observations and a Discrete "
                f"of actions, got {own} and {action}"
            )
        self.own, self.action, self.num_actions = own, action, int(action.n)

    def read(self, seen: Any, info: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """What one agent observes, and its mask, which is in ``seen`` or ``info``."""
        mask = (info or {}).get(MASK_KEY)
        if isinstance(seen, dict):
            seen, mask = seen["observation"], seen.get(MASK_KEY, mask)
        if self._values is not None:
            seen = self._values == seen
        return np.array(seen), None if mask is None else np.array(mask)


def _maker(name: str) -> Callable[[], Any]:
    try:
        import pettingzoo
    except ImportError as error:
        raise missing_extra("a game of PettingZoo", "games") from error
    key = _NAMESPACE + "-v".join(name.rsplit("_v", 1))
    names = [n.removeprefix(_NAMESPACE) for n in pettingzoo.aec_registry]
    if key not in pettingzoo.aec_registry:
        raise ConfigError(
            f"PettingZoo has no classic game {name!r}."
            f"{did_you_mean(name, [n.replace('-', '_') for n in names])}"
        )
    return lambda: pettingzoo.make("aec", key)
