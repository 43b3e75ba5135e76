"""PettingZoo's games in which agents move one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.errors import ConfigError, EnvError, did_you_mean, missing_extra
from alf_lite.games.game import Game, Rng, objects
from alf_lite.games.side import AgentSpaces

_NAMESPACE = "classic/"
_BOARD_GAMES = ("tictactoe", "connect_four", "chess", "go_")


class ZooState(NamedTuple):
    """N games; a position is never changed."""

    positions: np.ndarray  # [N] of _Position


@configurable
class PettingZooGame(Game):
    """An AEC game of PettingZoo (Terry et al. 2021, arXiv:2009.14471).

    Seats are ``possible_agents``. A game is a seed and the actions since, from which it
    can be played again: copies of PettingZoo's environments lose their state. What a
    seat wins on the way is paid at the end, the sum of the rewards that ``last()`` has
    told it. One that has died moves no more. Without a mask, in the observation or the
    info, all actions are legal.

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
        self._make = make = _maker(game) if isinstance(game, str) else game
        env = make()
        self._agents: list[Any] = list(env.possible_agents)
        name = str(env.metadata.get("name", type(env).__name__))
        self.name = f"pettingzoo/{name}"
        self.num_players = len(self._agents)
        self.max_length = max_length
        self._spaces = AgentSpaces(env, self._agents, self.name)
        own = self._spaces.own
        low, high = own.low.astype(np.float32), own.high.astype(np.float32)
        self.observation_space = spaces.Box(low, high, own.shape)
        self.num_actions = int(self._spaces.action.n)
        if is_board_game is None:
            is_board_game = self.num_players == 2 and name.startswith(_BOARD_GAMES)
        self.is_board_game = is_board_game

    def initial(self, number: int, rng: Rng) -> ZooState:
        seeds = rng.integers(2**31, size=number).tolist()
        return ZooState(objects([self._begin(seed) for seed in seeds]))

    def moves(self, state: ZooState) -> np.ndarray:
        movers = np.array([one.mover for one in state.positions], np.int64)
        return movers[:, None] == np.arange(self.num_players)

    def play(self, state: ZooState, actions: np.ndarray, rng: Rng) -> ZooState:
        pairs = zip(state.positions, actions.tolist(), strict=True)
        after = [self._after(one, row[one.mover]) for one, row in pairs]
        return ZooState(objects(after))

    def legal(self, state: ZooState, seats: np.ndarray) -> np.ndarray:
        pairs = zip(state.positions, seats, strict=True)
        legal = [one.legal & (one.mover == seat) for one, seat in pairs]
        return np.array(legal, bool).reshape(-1, self.num_actions)

    def observe(self, state: ZooState, seats: np.ndarray) -> np.ndarray:
        pairs = zip(state.positions, seats, strict=True)
        seen = [one.seen[seat] for one, seat in pairs]
        return np.array(seen, np.float32).reshape(-1, *self.observation_space.shape)

    def returns(self, state: ZooState) -> np.ndarray:
        won = [one.won * (one.mover < 0) for one in state.positions]
        return np.array(won, np.float32).reshape(-1, self.num_players)

    def pack(self, state: ZooState) -> list[np.ndarray]:
        """[N] seeds, and [N, L] actions with -1 behind them."""
        histories = [one.actions for one in state.positions]
        packed = np.full((len(histories), max(map(len, histories), default=0)), -1)
        for row, actions in zip(packed, histories, strict=True):
            row[: len(actions)] = actions
        return [np.array([one.seed for one in state.positions], np.int64), packed]

    def unpack(self, arrays: Sequence[np.ndarray]) -> ZooState:
        games = zip(*arrays, strict=True)
        played = [self._replayed(int(s), a[a >= 0].tolist()) for s, a in games]
        return ZooState(objects(played))

    # One game

    def _begin(self, seed: int) -> _Position:
        env = self._make()
        env.reset(seed=seed)
        return self._arrive(env, seed, (), np.zeros(self.num_players))

    def _after(self, position: _Position, action: int) -> _Position:
        if position.env is None:  # it has gone on from there
            position = self._replayed(position.seed, position.actions)
        env, position.env = position.env, None
        env.step(action)
        actions = (*position.actions, action)
        return self._arrive(env, position.seed, actions, position.won.copy())

    def _replayed(self, seed: int, actions: Sequence[int]) -> _Position:
        position = self._begin(seed)
        for action in actions:
            position = self._after(position, action)
        return position

    def _arrive(
        self, env: Any, seed: int, actions: tuple[int, ...], won: np.ndarray
    ) -> _Position:
        """Up to the next one that moves, or the end; the dead take their last rewards.

        ``last()`` tells what an agent has won since its last action, and the agents
        that die are told in any order, often the loser first.
        """
        mover, legal = -1, np.zeros(self.num_actions, bool)
        while env.agents and mover < 0:
            seen, reward, terminated, truncated, info = env.last()
            seat = self._agents.index(env.agent_selection)
            won[seat] += reward
            if terminated or truncated:
                env.step(None)
                continue
            mover, mask = seat, self._spaces.read(seen, info)[1]
            legal = ~legal if mask is None else mask.astype(bool)
        if not np.isfinite(won).all():
            raise EnvError(f"{self.name}: a reward is not finite, the seats won {won}")
        seen = [self._spaces.read(env.observe(a), None)[0] for a in self._agents]
        return _Position(env, seed, actions, mover, legal, won, seen)


@dataclasses.dataclass
class _Position:
    """One game after some actions."""

    env: Any  # that stands here; None if it has gone on
    seed: int
    actions: tuple[int, ...]
    mover: int  # -1: the game is over
    legal: np.ndarray  # [A] bool
    won: np.ndarray  # [P], as far as the seats have been told
    seen: list[np.ndarray]  # by seat


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
