"""Agents of a PettingZoo environment that are played by one policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from alf_lite.environments import space_specs
from alf_lite.errors import ConfigError
from alf_lite.games.game import MASK_KEY, Game, State


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
        self._num_values = int(own.n) if isinstance(own, spaces.Discrete) else 0
        if self._num_values:
            own = spaces.Box(0.0, 1.0, (self._num_values,))
        if not isinstance(own, spaces.Box) or not isinstance(action, spaces.Discrete):
            raise ConfigError(
                f"{name}: agents need a Box or Discrete of observations and a Discrete "
                f"of actions, got {own} and {action}"
            )
        self.own, self.action = own, action

    def read(self, seen: Any, info: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """What one agent observes, and its mask, which is in ``seen`` or ``info``."""
        mask = (info or {}).get(MASK_KEY)
        if isinstance(seen, dict):
            seen, mask = seen["observation"], seen.get(MASK_KEY, mask)
        if self._num_values:
            seen = np.arange(self._num_values) == seen
        return np.array(seen), None if mask is None else np.array(mask)


class SideState(NamedTuple):
    """What N agents see of their games; arrays [N, ...], or [games, agents, ...]."""

    agent: np.ndarray  # one-hot
    own: np.ndarray
    team: np.ndarray  # [N, 0] if it is not told
    action_mask: np.ndarray  # int8


class Side(Game):
    """Agents of a parallel environment that play together; each of them is a seat.

    To those who play it, it is a game that says what is seen and what is legal. The
    rules are those of the environment, and opponents that try moves cannot play it.

    Args:
        env: of PettingZoo, which is reset.
        agents: of the side.
        name: for messages.
        tells_team: whether policies see ``team``.

    Raises:
        ConfigError: see :class:`AgentSpaces`.
    """

    max_length = 0

    def __init__(
        self, env: Any, agents: Sequence[Any], name: str, tells_team: bool
    ) -> None:
        self.name = name
        self._agents = list(agents)
        self._spaces = AgentSpaces(env, agents, name)
        self._tells_team = tells_team
        self.num_players = len(agents)
        self.action_space = self._spaces.action
        self.num_actions = int(self.action_space.n)
        self.observation_space = own = self._spaces.own
        seen, infos = env.reset(seed=0)
        one_hot = spaces.Box(0.0, 1.0, (len(agents),))
        parts: dict[str, spaces.Space] = {"agent": one_hot, "own": own}
        self._team_shape: tuple[int, ...] = (0,)
        if tells_team:
            zeros = np.zeros((len(agents), *own.shape))
            self._team_shape = self._team_of(env, zeros).shape
            parts["team"] = spaces.Box(-np.inf, np.inf, self._team_shape)
        read = [self._spaces.read(seen[a], infos.get(a)) for a in agents]
        if all(mask is not None for _, mask in read):
            parts[MASK_KEY] = spaces.MultiBinary(self.num_actions)
        self.policy_space = spaces.Dict(parts)
        self.spaces = self.policy_space, self.action_space
        spec: Any = space_specs.observation_spec(own)
        self._dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype

    def policy_input(self, state: State, seats: np.ndarray) -> dict[str, np.ndarray]:
        return {key: getattr(state, key) for key in self.policy_space.spaces}

    def legal(self, state: SideState, seats: np.ndarray) -> np.ndarray:
        return state.action_mask.astype(bool)

    def observe(self, state: SideState, seats: np.ndarray) -> np.ndarray:
        return state.own

    def _has_no_rules(self, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(
            f"{self.name}: an opponent tries moves, which only the environment can make"
        )

    initial = moves = play = returns = _has_no_rules

    def memory(self, num_games: int) -> SideState:
        """Of what the agents of some games see, [games, agents, ...]."""
        shape = (num_games, self.num_players)
        return SideState(
            agent=np.tile(np.eye(shape[1], dtype=np.float32), (num_games, 1, 1)),
            own=np.zeros((*shape, *self.observation_space.shape), self._dtype),
            team=np.zeros((*shape, *self._team_shape), np.float32),
            action_mask=np.ones((*shape, self.num_actions), np.int8),
        )

    def look(self, memory: SideState, i: int, env: Any, seen: Any, infos: Any) -> None:
        """Writes what the agents of game i see; those that are out, nothing."""
        own = memory.own[i]
        own[:], memory.action_mask[i] = 0, 1
        for seat, agent in enumerate(self._agents):
            if agent in seen:
                own[seat], mask = self._spaces.read(seen[agent], infos.get(agent))
                if mask is not None and mask.any():
                    memory.action_mask[i, seat] = mask
        if self._tells_team:
            memory.team[i] = self._team_of(env, own)

    @staticmethod
    def _team_of(env: Any, own: np.ndarray) -> np.ndarray:
        """The state that an environment tells, or what the agents of the side see."""
        if getattr(env, "state_space", None) is not None:
            return np.asarray(env.state(), np.float32)
        return own.reshape(-1).astype(np.float32)
