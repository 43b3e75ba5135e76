"""Parallel environments of PettingZoo, as games in which all move at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from alf_lite.environments import space_specs
from alf_lite.errors import ConfigError, EnvError
from alf_lite.games.game import MASK_KEY
from alf_lite.games.pettingzoo import AgentSpaces, Position, ZooGame, ZooState


class ParallelGame(ZooGame):
    """A parallel environment, whose agents all move at once.

    It is seen from one side, those who learn: the first seats. :attr:`others` is the
    same game, seen by the rest. A side has equal spaces. Agents may end early, and the
    game is over when all who learn are out.

    Args:
        make: makes an environment, see :class:`FoldedEnvironment`.
        learners: agents; None: all.
        tells_team: whether policies see ``team``.
        max_length: a game that takes longer is cut; None: the environment says.

    Raises:
        ConfigError: if there is no such agent; see :class:`AgentSpaces`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        learners: Sequence[Any] | None = None,
        *,
        tells_team: bool = True,
        max_length: int | None = None,
    ) -> None:
        super().__init__(make, max_length or 2**62)
        learning = self.agents if learners is None else list(learners)
        if not learning or not set(learning) <= set(self.agents):
            raise ConfigError(
                f"{self.name}: learners must be some of the agents {self.agents}, got "
                f"{learners}"
            )
        others = [agent for agent in self.agents if agent not in learning]
        self.agents = [*learning, *others]
        self.num_learners = len(learning)
        self._spare = list(self._envs)
        self._tells_team = tells_team
        self._readers: list[AgentSpaces] = []
        sides = [(learning, self.name), (others, f"{self.name}, the others")]
        for side, name in sides:
            if side:
                self._readers += [AgentSpaces(self._envs[0], side, name)] * len(side)
        # Whether there is a mask, which all agents of a side have
        seen, infos = self._envs[0].reset(seed=0)
        read = [
            reader.read(seen[agent], infos.get(agent))
            for agent, reader in zip(self.agents, self._readers, strict=True)
        ]
        self._has_mask = [mask is not None for _, mask in read]
        self.others: ParallelGame | None = None
        self._look(range(self.num_learners))
        if others:
            self.others = copy.copy(self)
            self.others.name = sides[1][1]
            self.others._look(range(self.num_learners, self.num_players))

    def _look(self, side: range) -> None:
        """Sees what these seats do."""
        self.side = side
        reader = self._readers[side.start]
        spec: Any = space_specs.observation_spec(reader.own)
        dtype = np.dtype(str(spec.dtype).removeprefix("torch."))
        own = reader.own
        self.observation_space = spaces.Box(own.low, own.high, own.shape, dtype)
        self.num_actions = reader.num_actions
        one_hot = spaces.Box(0.0, 1.0, (len(side),))
        parts: dict[str, spaces.Space] = {"agent": one_hot, "own": own}
        if self._tells_team:
            shape: Any = (len(side) * int(np.prod(own.shape)),)
            whole = getattr(self._envs[0], "state_space", None)
            shape = shape if whole is None else np.shape(self._envs[0].state())
            parts["team"] = spaces.Box(-np.inf, np.inf, shape)
        if all(self._has_mask[seat] for seat in side):
            parts[MASK_KEY] = spaces.MultiBinary(self.num_actions)
        self.policy_space = spaces.Dict(parts)

    def policy_input(self, state: ZooState, seats: np.ndarray) -> dict[str, np.ndarray]:
        one_hot = np.eye(len(self.side), dtype=np.float32)
        seen = {"agent": one_hot[seats - self.side.start]}
        seen["own"] = self.observe(state, seats)
        if self._tells_team:
            team = [
                one.seen[self.side.start : self.side.stop]
                if one.whole is None
                else one.whole
                for one in state.positions
            ]
            shape: Any = self.policy_space["team"].shape
            seen["team"] = np.array(team, np.float32).reshape(-1, *shape)
        if MASK_KEY in self.policy_space.spaces:
            seen[MASK_KEY] = self.legal(state, seats).astype(np.int8)
        return seen

    def paid(self, state: ZooState) -> np.ndarray:
        return self._by_seat(state, "paid", np.float32)

    def ended(self, state: ZooState) -> np.ndarray:
        return self._by_seat(state, "ended", bool)

    def won(self, state: ZooState) -> np.ndarray:
        """[N, P] float64: what the seats have won so far."""
        return self._by_seat(state, "won", float)

    def release(self, state: ZooState) -> None:
        for one in state.positions:
            if one.env is not None:
                self._spare.append(one.env)
                one.env = None

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs:
            env.close()

    # One game

    def _begin(self, seed: int) -> Position:
        if not self._spare:
            self._envs.append(self._make())
            self._spare.append(self._envs[-1])
        env = self._spare.pop()
        seen, infos = env.reset(seed=seed)
        nothing = np.zeros(self.num_players, np.float32)
        kept: Any = {
            "seed": seed,
            "actions": (),
            "won": nothing.astype(float),
            "paid": nothing,
        }
        return self._arrive(env, seen, infos, nothing == 0, ended=nothing > 0, **kept)

    def _step(self, env: Any, before: Position, chosen: tuple[int, ...]) -> Position:
        actions = {
            agent: reader.action.dtype.type(reader.action.start + one)
            for agent, reader, one, moves in zip(
                self.agents, self._readers, chosen, before.moves, strict=True
            )
            if moves
        }
        seen, rewards, terminated, truncated, infos = env.step(actions)
        paid = np.zeros(self.num_players, np.float32)
        moves, ended = before.moves.copy(), ~before.moves
        for seat in np.flatnonzero(moves).tolist():
            agent = self.agents[seat]
            if agent not in rewards:
                raise EnvError(f"{self.name}: step() says nothing of {agent}")
            paid[seat], ended[seat] = rewards[agent], terminated.get(agent)
            moves[seat] = not (ended[seat] or truncated.get(agent))
        history = (*before.actions, chosen)
        if not moves[: self.num_learners].any() or len(history) >= self.max_length:
            moves[:] = False
        kept: Any = {"seed": before.seed, "actions": history, "won": before.won + paid}
        return self._arrive(env, seen, infos, moves, paid=paid, ended=ended, **kept)

    def _arrive(
        self, env: Any, seen: Any, infos: Any, moves: np.ndarray, **kept: Any
    ) -> Position:
        """What the agents see then; those that are out, nothing."""
        own, legal = [], []
        for seat, agent in enumerate(self.agents):
            reader, mask = self._readers[seat], None
            one = np.zeros(reader.own.shape, reader.own.dtype)
            if agent in seen:
                one, mask = reader.read(seen[agent], infos.get(agent))
            if mask is None or not mask.any():
                mask = np.ones(reader.num_actions)
            own.append(one)
            legal.append(mask.astype(bool) & moves[seat])
        if self._tells_team and getattr(env, "state_space", None) is not None:
            kept["whole"] = np.array(env.state(), np.float32)
        return Position(env, moves=moves, legal=legal, seen=own, **kept)
