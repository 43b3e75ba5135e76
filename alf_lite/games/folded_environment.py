"""Several agents of one game that learn, as rows of one batch with one policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.environments import space_specs
from alf_lite.environments.environment import EnvironmentWithSpecs
from alf_lite.environments.single_env import vector_seed
from alf_lite.environments.time_steps import check_action
from alf_lite.errors import CheckpointError, ConfigError, EnvError
from alf_lite.games.game import copy_rows
from alf_lite.games.opponent_pool import Opponents
from alf_lite.games.opponents import Opponent
from alf_lite.games.side import Side
from alf_lite.tensor_specs import TensorSpec


@configurable
class FoldedEnvironment(EnvironmentWithSpecs):
    """Games whose N learning agents are the rows of one batch: game · N + agent.

    The agents learn one policy from what all of them experience (parameter sharing).
    An observation is a dict:

    * ``own``: what the agent observes,
    * ``agent``: which one it is, one-hot [N],
    * ``team``: what all of them observe, or the state that the game tells: for a value
      network that sees more than the actor (MAPPO; Yu et al. 2022, arXiv:2103.01955).
      A network that shall not see an entry leaves it out, as ``SelectedElements`` does;
      without ``team`` it is independent PPO,
    * ``action_mask``: if the game has one, in the observations or in the infos.

    A return is that of one agent. An agent that is out before the others has LAST rows
    until they are, with discount 0 and any action: nothing is learned from them.

    With ``learners``, all other agents are played by an opponent, the same one for a
    whole game, chosen as in :class:`BattleEnvironment`. It sees the same entries of its
    own side; a ``RunOpponent`` is a run in which that side has learned, with as many
    agents. A :class:`League` can say who is played.

    ``env_info`` of a step: ``returns`` of all agents by name and ``game_return``, the
    sum of those that learn, both of the game so far; in games with opponents
    ``outcome``, the mean return of those that learn less that of the others, and
    ``opponent`` (-1 in LAST rows other than one at the end of each game) and ``seat``
    (0), so that a league counts a game once.

    Args:
        num_environments: rows, a multiple of N.
        make_game: called without arguments for each game; returns a parallel
            environment of PettingZoo, or what has its methods: ``reset(seed=)``,
            ``step``, ``possible_agents``, ``agents``, ``observation_space`` and
            ``action_space`` of an agent.
        learners: the agents that learn; None: all.
        opponents: that play the others, see :class:`BattleEnvironment`.
        num_snapshots: of the policy that learns, which plays the others too, where both
            sides have as many agents and the same spaces.
        tells_team: whether there is a ``team``, on both sides.
        max_episode_steps: a game that takes longer is cut; None: the game says.
        seed: of the first reset, if that gets none.

    Raises:
        ConfigError: if agents of a side have different spaces, the rows are no
            multiple, or nobody plays the others.
    """

    takes_num_environments = True

    def __init__(
        self,
        num_environments: int,
        make_game: Callable[[], Any],
        *,
        learners: Sequence[str] | None = None,
        opponents: Sequence[Opponent] = (),
        num_snapshots: int = 0,
        tells_team: bool = True,
        max_episode_steps: int | None = None,
        seed: int | None = None,
    ) -> None:
        first = make_game()
        name = str(getattr(first, "metadata", {}).get("name", type(first).__name__))
        agents = list(first.possible_agents)
        learning = agents if learners is None else list(learners)
        others = [agent for agent in agents if agent not in learning]
        if not learning or not set(learning) <= set(agents):
            raise ConfigError(
                f"{name}: learners must be some of the agents {agents}, got {learners}"
            )
        self._agents = [*learning, *others]
        self._num_learners = num_learners = len(learning)
        if num_environments % num_learners:
            raise ConfigError(
                f"{name} has {num_learners} agents that learn, and each is a row: "
                f"num_parallel_environments must be a multiple of that, got "
                f"{num_environments}"
            )
        self._side = side = Side(first, learning, name, tells_team)
        returns = {str(agent): TensorSpec(()) for agent in agents}
        info: dict[str, Any] = {"game_return": TensorSpec(()), "returns": returns}
        if others:
            info |= dict.fromkeys(("opponent", "outcome", "seat"), TensorSpec(()))
        super().__init__(
            num_environments,
            space_specs.observation_spec(side.policy_space),
            space_specs.action_spec(side.action_space),
            reward_spec=TensorSpec(()),
            env_info_spec=info,
            recorded_values=space_specs.RecordedValues(*side.spaces),
            name=name,
        )
        self._action_dtype = side.action_space.dtype
        num_games = num_environments // num_learners
        self._games = [first, *(make_game() for _ in range(num_games - 1))]
        self._max_length = max_episode_steps
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        # Of each game: the seed, and the actions [agents] since, which say all of it
        self._seeds = [0] * num_games
        self._actions: list[list[np.ndarray]] = [[] for _ in range(num_games)]
        # [games, agents], those that learn first: who is out, and what each has won
        self._is_out = np.zeros((num_games, len(agents)), bool)
        self._returns = np.zeros((num_games, len(agents)))
        self._env_id = torch.arange(num_environments, dtype=torch.int32)
        self._opponents: Opponents | None = None
        self._opponent_ids = np.zeros(num_games, np.int64)
        if others:
            self._other = Side(first, others, f"{name}, the others", tells_team)
            self._others_see = self._other.memory(num_games)
            self._opponents = Opponents(self, opponents, num_snapshots, self._other)
            if num_snapshots and self._other.spaces != side.spaces:
                raise ConfigError(
                    f"{name}: num_snapshots needs sides that are alike, but "
                    f"{learning} and {others} differ in number or spaces"
                )
        elif opponents or num_snapshots:
            raise ConfigError(
                f"{name}: opponents have nobody to play, because all agents learn. "
                "Name those that do in FoldedEnvironment.learners."
            )

    def bind(self, algorithm: Any) -> None:
        if self._opponents is not None:
            self._opponents.bind(algorithm, 1)

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
        own = action.numpy(force=True).reshape(len(self._games), -1)
        is_over = self._is_over()
        chosen = np.concatenate([own, self._actions_of_others(~is_over)], 1)
        self._begin_step()
        for i in range(len(self._games)):
            if is_over[i]:
                self._begin_game(i)
            else:
                self._step_game(i, chosen[i])
        return self._arrive(action)

    def _is_over(self) -> np.ndarray:
        """[games]: whether all agents that learn are out."""
        return np.asarray(np.all(self._is_out[:, : self._num_learners], axis=1))

    def _actions_of_others(self, goes_on: np.ndarray) -> np.ndarray:
        """[games, others], where a game goes on."""
        is_out = self._is_out[:, self._num_learners :]
        actions = np.zeros(is_out.shape, np.int64)
        if self._opponents is not None:
            game, seat = np.nonzero(~is_out & goes_on[:, None])
            state, ids = copy_rows(self._others_see, (game, seat)), self._opponent_ids
            actions[game, seat] = self._opponents.act(ids, game, state, seat, self._rng)
        return actions

    def _begin_step(self) -> None:
        """Memory of the next time step, which belongs to whoever gets it."""
        shape = self._is_out.shape
        self._step_type = np.full(shape, StepType.MID, np.int32)
        self._reward = np.zeros(shape, np.float32)
        self._discount = np.ones(shape, np.float32)
        self._seen = self._side.memory(len(self._games))

    def _begin_game(self, i: int, seed: int | None = None) -> None:
        """A new game, or one that is played again from its seed."""
        if seed is None:
            seed = int(self._rng.integers(2**31))
            if self._opponents is not None:
                self._opponents.choose(self._opponent_ids, [i], self._rng)
        self._seeds[i] = seed
        self._actions[i].clear()
        self._step_type[i] = StepType.FIRST
        self._is_out[i], self._returns[i] = False, 0
        self._look(i, *self._games[i].reset(seed=seed))

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
        self._returns[i] += self._reward[i]
        if not np.isfinite(self._reward[i]).all():
            raise EnvError(f"{self.name}: a reward of game {i} is not finite")
        self._look(i, seen, infos)

    def _look(self, i: int, seen: Any, infos: Any) -> None:
        self._side.look(self._seen, i, self._games[i], seen, infos)
        if self._opponents is not None:
            self._other.look(self._others_see, i, self._games[i], seen, infos)

    def _arrive(self, action: Tensor) -> TimeStep:
        step_type = self._rows(self._step_type)
        self._current = TimeStep(
            step_type=step_type,
            reward=self._rows(self._reward),
            discount=self._rows(self._discount),
            observation={
                k: self._rows(getattr(self._seen, k)) for k in self.observation_spec
            },
            prev_action=action.detach().cpu().long().masked_fill(step_type == 0, 0),
            env_id=self._env_id,
            env_info=self._env_info(),
        )
        return self._current

    def _rows(self, array: np.ndarray) -> Tensor:
        """[games, agents, ...] → [B, ...], of those that learn."""
        own = array[:, : self._num_learners]
        return torch.from_numpy(own.reshape(self.batch_size, *own.shape[2:]))

    def _env_info(self) -> dict[str, Any]:
        shape = (len(self._games), self._num_learners)
        own, others = np.split(self._returns[..., None], [self._num_learners], axis=1)
        won = {str(one): self._returns[:, [a]] for a, one in enumerate(self._agents)}
        info: dict[str, Any] = {"game_return": own.sum(1), "returns": won}
        if self._opponents is not None:
            counts = self._step_type[:, : self._num_learners] != StepType.LAST
            counts[:, 0] |= self._is_over()
            info["opponent"] = np.where(counts, self._opponent_ids[:, None], -1)
            info["outcome"] = own.mean(1) - others.mean(1)
            info["seat"] = np.zeros(shape)
        return nest.map_structure(
            lambda x: self._rows(np.broadcast_to(x, shape).astype(np.float32)), info
        )

    # Resuming

    def episode_state(self) -> dict[str, Any] | None:
        if self._current is None:
            return None
        shape = (-1, len(self._agents))
        actions = [np.array(one, np.int64).reshape(shape) for one in self._actions]
        return {
            "opponent_ids": self._opponent_ids.tolist(),
            "opponents": self._opponents and self._opponents.state(),
            "game": f"{self.name}, {self.batch_size} rows",
            "seeds": list(self._seeds),
            "actions": [torch.from_numpy(one) for one in actions],
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
        self._opponent_ids[:] = state["opponent_ids"]
        if self._opponents is not None:
            self._opponents.restore(state["opponents"])
        leaves = [leaf.clone() for leaf in state["time_step"]]
        saved: TimeStep = nest.pack_sequence_as(first, leaves)
        new: list[int] = []
        for i, actions in enumerate(state["actions"]):
            self._begin_step()
            self._begin_game(i, state["seeds"][i])
            for chosen in actions.numpy():
                self._begin_step()
                self._step_game(i, chosen.astype(self._action_dtype))
            rows = slice(i * self._num_learners, (i + 1) * self._num_learners)
            step = nest.flatten(self._arrive(saved.prev_action))
            pairs = zip(step, leaves, strict=True)
            if not all(torch.equal(one[rows], other[rows]) for one, other in pairs):
                self._begin_step()
                self._begin_game(i)
                step = nest.flatten(self._arrive(torch.zeros_like(saved.prev_action)))
                new += range(rows.start, rows.stop)
            for leaf, other in zip(leaves, step, strict=True):
                leaf[rows] = other[rows]
        if not new:
            self._rng.bit_generator.state = state["generator"]
        self._current = saved
        return dict.fromkeys(new, "the replay came to another step")

    def render(self) -> np.ndarray | None:
        return self._games[0].render()

    def close(self) -> None:
        for game in self._games:
            game.close()
