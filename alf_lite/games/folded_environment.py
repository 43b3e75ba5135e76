"""Several agents of one game that learn, as rows of one batch with one policy."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.games.game_environment import GameEnvironment
from alf_lite.games.opponent_pool import Opponents
from alf_lite.games.opponents import Opponent
from alf_lite.games.parallel_game import ParallelGame
from alf_lite.tensor_specs import TensorSpec


@configurable
class FoldedEnvironment(GameEnvironment):
    """Games whose N learning agents are the rows of one batch: game · N + agent.

    The agents learn one policy from what all of them experience (parameter sharing).
    An observation is a dict:

    * ``own``: what the agent observes,
    * ``agent``: which one it is, one-hot [N],
    * ``team``: what all of them observe, or the state that the game tells: for a value
      network that sees more than the actor (MAPPO; Yu et al. 2022, arXiv:2103.01955).
      ``actor_observation_keys`` says what the actor sees;
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
        num_environments: rows, a multiple of N; 1 stands for one game.
        make_game: called without arguments for each game; returns a parallel
            environment of PettingZoo, or what has its methods: ``reset(seed=)``,
            ``step``, ``possible_agents``, ``agents``, ``observation_space`` and
            ``action_space`` of an agent. It gets ``render_mode``, if it takes one.
        learners: the agents that learn; None: all.
        opponents: that play the others, see :class:`BattleEnvironment`.
        num_snapshots: of the policy that learns, which plays the others too, where both
            sides have as many agents and the same spaces.
        tells_team: whether there is a ``team``, on both sides.
        max_episode_steps: a game that takes longer is cut; None: the game says.
        render_mode: such as ``rgb_array``, for games that are to be drawn.
        seed: of the first reset, if that gets none.

    Raises:
        ConfigError: if agents of a side have different spaces, the rows are no
            multiple, or nobody plays the others.
    """

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
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.game: ParallelGame
        make: Callable[..., Any] = make_game
        if render_mode is not None:
            # Not every game takes the argument
            with contextlib.suppress(TypeError, ValueError):
                inspect.signature(make).bind(render_mode=render_mode)
                make = functools.partial(make, render_mode=render_mode)
        game = ParallelGame(
            make, learners, tells_team=tells_team, max_length=max_episode_steps
        )
        returns = {str(agent): TensorSpec(()) for agent in game.agents}
        info: dict[str, Any] = {"game_return": TensorSpec(()), "returns": returns}
        if game.others is not None:
            info |= dict.fromkeys(("opponent", "outcome", "seat"), TensorSpec(()))
        super().__init__(
            num_environments,
            game,
            max_episode_steps=max_episode_steps,
            num_learners=game.num_learners,
            env_info_spec=info,
            name=game.name,
            seed=seed,
        )
        others = game.others
        if others is not None:
            self._opponents = Opponents(self, opponents, num_snapshots, others)
            if num_snapshots and (others.policy_space, others.num_actions) != (
                game.policy_space,
                game.num_actions,
            ):
                raise ConfigError(
                    f"{self.name}: num_snapshots needs sides that are alike, but the "
                    "learners and the others differ in number or spaces"
                )
        elif opponents or num_snapshots:
            raise ConfigError(
                f"{self.name}: opponents have nobody to play, because all agents learn."
                " Name those that do in FoldedEnvironment.learners."
            )

    def _env_info(self, has_begun: np.ndarray) -> dict[str, Any]:
        won = self.game.won(self._games)
        own, others = np.split(won, [self.game.num_learners], axis=1)
        by_name = {str(one): won[:, a] for a, one in enumerate(self.game.agents)}
        info: dict[str, Any] = {"game_return": own.sum(1), "returns": by_name}
        if self._opponents is not None:
            counts = ~self._is_last
            # A game counts once, where an agent has played to its end
            [ended] = np.nonzero(self._is_last.all(1))
            if len(ended):
                was_last = self.current_time_step.is_last().numpy()
                last = ~was_last.reshape(self._is_last.shape)[ended]
                counts[ended, last.argmax(1)] = True
            info["opponent"] = np.where(counts, self._opponent_ids[:, None], -1)
            info["outcome"] = own.mean(1) - others.mean(1)
            info["seat"] = np.zeros(len(won))
        return info

    def render(self) -> np.ndarray | None:
        return None if self._games is None else self._games.positions[0].env.render()

    def close(self) -> None:
        self.game.close()
