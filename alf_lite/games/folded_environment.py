"""Several learners in one game, as rows of one batch that share their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.environments import space_specs
from alf_lite.environments.environment import EnvironmentWithSpecs
from alf_lite.environments.single_env import vector_seed
from alf_lite.environments.time_steps import check_action
from alf_lite.errors import CheckpointError, ConfigError, EnvError
from alf_lite.games.game import MASK_KEY
from alf_lite.tensor_specs import TensorSpec


@configurable
class FoldedEnvironment(EnvironmentWithSpecs):
    """Games of N agents each, whose agents are the rows of one batch: game · N + agent.

    The agents learn one policy from what all of them experience (parameter sharing).
    An observation is a dict:

    * ``own``: what the agent observes,
    * ``agent``: which one it is, one-hot [N],
    * ``team``: what all of them observe, or the state that the game tells: for a value
      network that sees more than the actor (MAPPO; Yu et al. 2022, arXiv:2103.01955).
      A network that shall not see an entry leaves it out, as ``SelectedElements`` does;
      without ``team`` it is independent PPO,
    * ``action_mask``: if the game has one, in the observations or in the infos.

    A return is that of one agent. An agent that is out before the game is over has LAST
    rows until then, with discount 0 and any action: nothing is learned from them.

    Args:
        num_environments: rows, a multiple of N.
        make_game: called without arguments for each game; returns a parallel
            environment of PettingZoo, or what has its methods: ``reset(seed=)``,
            ``step``, ``possible_agents``, ``agents``, ``observation_space`` and
            ``action_space`` of an agent.
        tells_team: whether there is a ``team``.
        max_episode_steps: a game that takes longer is cut; None: the game says.
        seed: of the first reset, if that gets none.

    Raises:
        ConfigError: if the agents have different spaces, or the rows are no multiple.
    """

    takes_num_environments = True

    def __init__(
        self,
        num_environments: int,
        make_game: Callable[[], Any],
        *,
        tells_team: bool = True,
        max_episode_steps: int | None = None,
        seed: int | None = None,
    ) -> None:
        first = make_game()
        self._agents = agents = list(first.possible_agents)
        name = str(getattr(first, "metadata", {}).get("name", type(first).__name__))
        num_agents = len(agents)
        if num_environments % num_agents:
            raise ConfigError(
                f"{name} has {num_agents} agents, and each is a row: "
                f"num_parallel_environments must be a multiple of that, got "
                f"{num_environments}"
            )
        own, has_mask_in_observation, action = _common_spaces(first, name)
        first.reset(seed=0)
        self._tells_team = tells_team
        self._masks_in_observations = has_mask_in_observation
        parts: dict[str, spaces.Space] = {
            "agent": spaces.Box(0.0, 1.0, (num_agents,)),
            "own": own,
        }
        if tells_team:
            shape = self._team_of(first, [np.zeros(own.shape)] * num_agents).shape
            parts["team"] = spaces.Box(-np.inf, np.inf, shape)
        _, infos = first.reset(seed=0)
        self._masks_in_infos = all(MASK_KEY in infos.get(a, {}) for a in agents)
        if has_mask_in_observation or self._masks_in_infos:
            parts[MASK_KEY] = spaces.MultiBinary(int(action.n))
        observation_space = spaces.Dict(parts)
        super().__init__(
            num_environments,
            space_specs.observation_spec(observation_space),
            space_specs.action_spec(action),
            reward_spec=TensorSpec(()),
            recorded_values=space_specs.RecordedValues(observation_space, action),
            name=name,
        )
        self._action_dtype = action.dtype
        num_games = num_environments // num_agents
        self._games = [first, *(make_game() for _ in range(num_games - 1))]
        self._max_length = max_episode_steps
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        # Of each game: the seed, and the actions [N] since, which say all of it
        self._seeds = [0] * num_games
        self._actions: list[list[np.ndarray]] = [[] for _ in range(num_games)]
        # [games, N]: whether an agent is out; the game begins anew when all are
        self._is_out = np.zeros((num_games, num_agents), bool)
        self._env_id = torch.arange(num_environments, dtype=torch.int32)

    def reset(self, seed: int | None = None) -> TimeStep:
        if seed is None and self._current is None:
            seed = self._seed
        if seed is not None:
            self._rng = np.random.default_rng(vector_seed(seed))
        self._begin_step()
        for i in range(len(self._games)):
            self._begin_game(i)
        return self._arrive(torch.zeros(self.batch_size, dtype=torch.int64))

    def step(self, action: Tensor) -> TimeStep:
        if self._current is None:
            raise RuntimeError(f"{self.name}: call reset() first")
        nest.assert_same_structure(self.action_spec, action)
        check_action("action", action, torch.Size((self.batch_size,)), True)
        chosen = action.numpy(force=True).reshape(self._is_out.shape)
        self._begin_step()
        for i in range(len(self._games)):
            if self._is_out[i].all():
                self._begin_game(i)
            else:
                self._step_game(i, chosen[i].copy())
        return self._arrive(action)

    def _begin_step(self) -> None:
        """Memory of the next time step, which belongs to whoever gets it."""
        shape = self._is_out.shape
        self._step_type = np.full(shape, StepType.MID, np.int32)
        self._reward = np.zeros(shape, np.float32)
        self._discount = np.ones(shape, np.float32)
        self._seen = {
            key: np.zeros((*shape, *spec.shape), _dtype(spec))
            for key, spec in self.observation_spec.items()
        }
        self._seen["agent"][:] = np.eye(shape[1])

    def _begin_game(self, i: int, seed: int | None = None) -> None:
        self._seeds[i] = int(self._rng.integers(2**31)) if seed is None else seed
        self._actions[i].clear()
        self._step_type[i] = StepType.FIRST
        self._is_out[i] = False
        self._observe(i, *self._games[i].reset(seed=self._seeds[i]))

    def _step_game(self, i: int, chosen: np.ndarray) -> None:
        actions = {
            agent: self._action_dtype.type(chosen[a])
            for a, agent in enumerate(self._agents)
            if not self._is_out[i, a]
        }
        seen, rewards, terminated, truncated, infos = self._games[i].step(actions)
        self._actions[i].append(chosen)
        is_cut = len(self._actions[i]) == self._max_length
        for a, agent in enumerate(self._agents):
            if self._is_out[i, a]:
                self._step_type[i, a], self._discount[i, a] = StepType.LAST, 0
                continue
            if agent not in rewards:
                raise EnvError(f"{self.name}: step() says nothing of {agent}")
            self._reward[i, a] = rewards[agent]
            ends = bool(terminated.get(agent))
            self._discount[i, a] = 0 if ends else 1
            if ends or truncated.get(agent) or is_cut:
                self._step_type[i, a] = StepType.LAST
                self._is_out[i, a] = True
        if not np.isfinite(self._reward[i]).all():
            raise EnvError(
                f"{self.name}: game {i} returned a reward that is not finite"
            )
        self._observe(i, seen, infos)

    def _observe(
        self, i: int, seen: Mapping[Any, Any], infos: Mapping[Any, Any]
    ) -> None:
        """Writes what the agents of a game observe; those that are out, nothing."""
        own = self._seen["own"][i]
        mask = self._seen.get(MASK_KEY)
        if mask is not None:
            mask[i] = 1
        for a, agent in enumerate(self._agents):
            if agent not in seen:
                continue
            value = seen[agent]
            if self._masks_in_observations:
                value, allowed = value["observation"], value[MASK_KEY]
            elif self._masks_in_infos:
                allowed = infos[agent][MASK_KEY]
            own[a] = value
            if mask is not None and np.any(allowed):
                mask[i, a] = allowed
        if self._tells_team:
            self._seen["team"][i] = self._team_of(self._games[i], own)

    @staticmethod
    def _team_of(game: Any, own: Any) -> np.ndarray:
        """The state that a game tells, or what its agents observe."""
        if getattr(game, "state_space", None) is not None:
            return np.asarray(game.state(), np.float32)
        return np.concatenate([np.ravel(one) for one in own]).astype(np.float32)

    def _arrive(self, action: Tensor) -> TimeStep:
        rows = self.batch_size
        step_type = torch.from_numpy(self._step_type.reshape(rows))
        self._current = TimeStep(
            step_type=step_type,
            reward=torch.from_numpy(self._reward.reshape(rows)),
            discount=torch.from_numpy(self._discount.reshape(rows)),
            observation={
                key: torch.from_numpy(array.reshape(rows, *array.shape[2:]))
                for key, array in self._seen.items()
            },
            prev_action=action.detach().cpu().long().masked_fill(step_type == 0, 0),
            env_id=self._env_id,
        )
        return self._current

    # Resuming

    def episode_state(self) -> dict[str, Any] | None:
        if self._current is None:
            return None
        num_agents = len(self._agents)
        actions = [np.array(one).reshape(-1, num_agents) for one in self._actions]
        return {
            "game": f"{self.name}, {self.batch_size} rows",
            "seeds": list(self._seeds),
            "actions": [torch.from_numpy(one.astype(np.int64)) for one in actions],
            "time_step": [leaf.clone() for leaf in nest.flatten(self._current)],
            "generator": self._rng.bit_generator.state,
        }

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        first = self.reset(seed)
        if state.get("game") != f"{self.name}, {self.batch_size} rows":
            raise CheckpointError(
                f"{self.name}: the open games are of {state.get('game')}, and here are "
                f"{self.batch_size} rows"
            )
        leaves = [leaf.clone() for leaf in state["time_step"]]
        saved: TimeStep = nest.pack_sequence_as(first, leaves)
        new: list[int] = []
        for i, actions in enumerate(state["actions"]):
            self._begin_step()
            self._begin_game(i, state["seeds"][i])
            for chosen in actions.numpy():
                self._begin_step()
                self._step_game(i, chosen.astype(self._action_dtype))
            rows = slice(i * len(self._agents), (i + 1) * len(self._agents))
            replayed = nest.flatten(self._arrive(saved.prev_action))
            if not all(
                torch.equal(one[rows], other[rows])
                for one, other in zip(replayed, leaves, strict=True)
            ):
                self._begin_step()
                self._begin_game(i)
                fresh = nest.flatten(self._arrive(torch.zeros_like(saved.prev_action)))
                for leaf, other in zip(leaves, fresh, strict=True):
                    leaf[rows] = other[rows]
                new += range(rows.start, rows.stop)
        if not new:
            self._rng.bit_generator.state = state["generator"]
        self._current = saved
        return dict.fromkeys(new, "the replay came to another step")

    def render(self) -> np.ndarray | None:
        return self._games[0].render()

    def close(self) -> None:
        for game in self._games:
            game.close()


def _common_spaces(game: Any, name: str) -> tuple[spaces.Box, bool, spaces.Discrete]:
    """The spaces of all agents, and whether observations have masks beside them.

    Raises:
        ConfigError: if two agents differ, or a space is of another kind.
    """
    agents = game.possible_agents
    seen = [game.observation_space(agent) for agent in agents]
    chosen = [game.action_space(agent) for agent in agents]
    if any(one != seen[0] for one in seen) or any(one != chosen[0] for one in chosen):
        raise ConfigError(
            f"{name}: its agents have different spaces, {seen} and {chosen}. One "
            "policy is for all: pad observations and actions to the largest ones."
        )
    own, has_mask = seen[0], False
    if isinstance(own, spaces.Dict) and {"observation", MASK_KEY} == set(own.spaces):
        own, has_mask = own.spaces["observation"], True
    if not isinstance(own, spaces.Box) or not isinstance(chosen[0], spaces.Discrete):
        raise ConfigError(
            f"{name}: FoldedEnvironment takes a Box of observations and a Discrete of "
            f"actions, got {own} and {chosen[0]}"
        )
    return own, has_mask, chosen[0]


def _dtype(spec: TensorSpec) -> Any:
    return torch.empty(0, dtype=spec.dtype).numpy().dtype
