"""Games as environments, and one in which an algorithm plays for both seats."""

from __future__ import annotations

import abc
from collections.abc import Sequence
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
from alf_lite.games.catalogue import create_game
from alf_lite.games.game import MASK_KEY, Game, State, copy_rows, with_rows
from alf_lite.games.matches import after_random_moves
from alf_lite.tensor_specs import TensorSpec


class GameEnvironment(EnvironmentWithSpecs, abc.ABC):
    """B games side by side; what they have in common, whoever chooses.

    An observation is ``{"action_mask": [A], "observation": ...}``, of the seat that is
    to choose. An episode is a game.

    Args:
        num_environments: B.
        game: a :class:`Game`, or the name of one that :func:`create_game` knows.
        num_random_moves: a game begins with up to so many moves that nobody has chosen,
            so that policies see more than what they have made of the opening.
        max_episode_steps: a game that takes longer is cut; None: there is no need to.
        env_info_spec: of ``TimeStep.env_info``.
        discount: while a game goes on.
        seed: of the first reset, if that gets none.

    Raises:
        ConfigError: if there is no such game, or a number makes no sense.
    """

    takes_num_environments = True

    def __init__(
        self,
        num_environments: int,
        game: Game | str,
        *,
        num_random_moves: int = 0,
        max_episode_steps: int | None = None,
        env_info_spec: dict[str, TensorSpec],
        discount: float = 1.0,
        seed: int | None = None,
    ) -> None:
        self.game = game = create_game(game)
        name = f"{type(self).__name__}({game.name})"
        for option, value, least in (
            ("num_environments", num_environments, 1),
            ("num_random_moves", num_random_moves, 0),
            ("max_episode_steps", max_episode_steps or 0, 0),
        ):
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name}: {option} must be a number from {least} on, got {value!r}"
                )
        observation_space = game.policy_space
        action_space = spaces.Discrete(game.num_actions)
        super().__init__(
            num_environments,
            space_specs.observation_spec(observation_space),
            space_specs.action_spec(action_space),
            reward_spec=TensorSpec(()),
            env_info_spec=env_info_spec,
            recorded_values=space_specs.RecordedValues(observation_space, action_space),
            name=name,
        )
        self._num_random_moves = num_random_moves
        self._max_length = max_episode_steps or game.max_length
        self._discount = discount
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        # [B]: the number of the row; of moves; whether the game is over or was cut
        self._rows = np.arange(num_environments)
        self._num_moves = np.zeros(num_environments, np.int64)
        self._has_ended = np.zeros(num_environments, bool)
        self._games: State

    # What a subclass says

    @abc.abstractmethod
    def _choosing_seats(self) -> np.ndarray:
        """[B]: for which seat the next action is."""

    @abc.abstractmethod
    def _take(self, rows: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Plays on until somebody has to choose again or the game is over.

        Args:
            rows: [N], of games that go on.
            action: [N], for the seats that choose.

        Returns:
            [N], what the action has won.
        """

    def _begin(self, rows: np.ndarray) -> None:
        """New games in some rows, up to where somebody has to choose."""
        games = self._opening(len(rows))
        self._games = with_rows(self._games, rows, games)
        self._num_moves[rows] = 0

    @abc.abstractmethod
    def _env_info(self, has_begun: np.ndarray) -> dict[str, np.ndarray]:
        """Of the step that comes next; [B] bool says where it is a FIRST one."""

    # Stepping

    def reset(self, seed: int | None = None) -> TimeStep:
        if seed is None and self._current is None:
            seed = self._seed
        if seed is not None:
            self._rng = np.random.default_rng(vector_seed(seed))
        self._games = self.game.initial(self.batch_size, self._rng)
        self._has_ended[:] = False
        self._begin(self._rows)
        nothing = np.zeros(self.batch_size, np.float32)
        every = np.ones(self.batch_size, bool)
        return self._arrive(every, nothing, torch.zeros(self.batch_size).long())

    def step(self, action: Tensor) -> TimeStep:
        if self._current is None:
            raise RuntimeError(f"{self.name}: call reset() first")
        nest.assert_same_structure(self.action_spec, action)
        check_action("action", action, torch.Size((self.batch_size,)), True)
        has_begun = self._has_ended.copy()
        rows = np.flatnonzero(~has_begun)
        chosen = action.numpy(force=True)[rows]
        self._check_legal(rows, chosen, self._legal_now[rows])
        reward = np.zeros(self.batch_size, np.float32)
        self._num_moves[rows] += 1
        if len(rows):
            reward[rows] = self._take(rows, chosen)
        new = np.flatnonzero(has_begun)
        if len(new):
            self._begin(new)
        return self._arrive(has_begun, reward, action)

    def _arrive(
        self, has_begun: np.ndarray, reward: np.ndarray, action: Tensor
    ) -> TimeStep:
        """The time step to which all rows have come."""
        is_over = ~self.game.moves(self._games).any(1)
        self._has_ended = is_over | (self._num_moves >= self._max_length)
        step_type = np.full(self.batch_size, StepType.MID, np.int32)
        step_type[self._has_ended] = StepType.LAST
        step_type[has_begun] = StepType.FIRST
        discount = np.full(self.batch_size, self._discount, np.float32)
        discount[is_over] = 0
        discount[has_begun] = 1
        seats = self._choosing_seats()
        seen = self.game.policy_input(self._games, seats)
        self._legal_now = legal = seen[MASK_KEY].astype(bool)
        if not (legal.any(1) | self._has_ended).all():
            row = int((legal.any(1) | self._has_ended).argmin())
            raise EnvError(
                f"{self.name}: seat {seats[row]} has to move in environment {row}, and "
                f"no action is legal:\n{self.game.describe(self._games, row)}"
            )
        is_new = torch.from_numpy(has_begun)
        self._current = TimeStep(
            step_type=torch.from_numpy(step_type),
            reward=torch.from_numpy(reward),
            discount=torch.from_numpy(discount),
            observation={key: torch.from_numpy(value) for key, value in seen.items()},
            prev_action=action.detach().cpu().long().masked_fill(is_new, 0),
            env_id=torch.from_numpy(self._rows.astype(np.int32)),
            env_info={
                key: torch.from_numpy(np.asarray(value, np.float32))
                for key, value in self._env_info(has_begun).items()
            },
        )
        return self._current

    def _play(self, rows: np.ndarray, actions: np.ndarray) -> None:
        """One move [N, P] in some games."""
        games = self.game.play(copy_rows(self._games, rows), actions, self._rng)
        self._games = with_rows(self._games, rows, games)

    def _opening(self, number: int) -> State:
        """Games that begin, after moves that nobody has chosen; none is over."""
        games = self.game.initial(number, self._rng)
        if not self._num_random_moves:
            return games
        wanted = self._rng.integers(0, self._num_random_moves + 1, number)
        return after_random_moves(self.game, games, wanted, self._rng)

    def _check_legal(
        self, rows: np.ndarray, chosen: np.ndarray, legal: np.ndarray
    ) -> None:
        is_wrong = (chosen < 0) | (chosen >= self.game.num_actions)
        is_wrong |= ~legal[np.arange(len(rows)), np.where(is_wrong, 0, chosen)]
        if is_wrong.any():
            i = int(is_wrong.argmax())
            raise EnvError(
                f"{self.name}: action {chosen[i]} is illegal in environment {rows[i]}, "
                f"legal are {np.flatnonzero(legal[i]).tolist()}.\nSet the algorithm's "
                f'action_mask_key = "{MASK_KEY}".'
            )

    # Resuming

    def episode_state(self) -> dict[str, Any] | None:
        if self._current is None:
            return None
        arrays = [self._num_moves, self._has_ended, *self._own_arrays()]
        return {
            "game": self.name,
            "games": [torch.from_numpy(x.copy()) for x in self.game.pack(self._games)],
            "arrays": [torch.from_numpy(array.copy()) for array in arrays],
            "time_step": [leaf.clone() for leaf in nest.flatten(self._current)],
            "generator": self._rng.bit_generator.state,
        }

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        like = self.reset(seed)
        own = [self._num_moves, self._has_ended, *self._own_arrays()]
        saved = [array.numpy() for array in state.get("arrays", ())]
        if state.get("game") != self.name or [len(array) for array in saved] != [
            self.batch_size for _ in own
        ]:
            raise CheckpointError(
                f"{self.name}: the open games are of {state.get('game')}, or there is "
                "another number of them"
            )
        for array, value in zip(own, saved, strict=True):
            array[...] = value
        self._games = self.game.unpack([x.numpy().copy() for x in state["games"]])
        self._rng.bit_generator.state = state["generator"]
        leaves = [leaf.clone() for leaf in state["time_step"]]
        self._current = nest.pack_sequence_as(like, leaves)
        self._legal_now = self.game.legal(self._games, self._choosing_seats())
        return {}

    def _own_arrays(self) -> Sequence[np.ndarray]:
        """What a subclass remembers of the games that go on, [B] each."""
        return ()


@configurable
class BothSeatsEnvironment(GameEnvironment):
    """One algorithm plays for both seats of a board game; a row is a game.

    The seat that moves sees the board as its own, its reward is what its move wins, and
    the step that follows belongs to the other seat: what is good for one is bad for the
    other, so the discount is -1 while the game goes on. TD targets, advantages and
    maxima over actions are then those of minimax (negamax). Only algorithms that say
    ``takes_negative_discounts`` can be trained on it.

    ``env_info["outcome"]`` of a LAST step is what the first seat has won; returns, as
    sums over both seats, say nothing.

    Args:
        num_environments: B.
        game: see :class:`GameEnvironment`; of two seats that move in turn.
        **kwargs: see :class:`GameEnvironment`.

    Raises:
        ConfigError: if it is no board game.
    """

    has_negative_discounts = True

    def __init__(
        self, num_environments: int, game: Game | str = "tic_tac_toe", **kwargs: Any
    ) -> None:
        super().__init__(
            num_environments,
            game,
            discount=-1.0,
            env_info_spec={"outcome": TensorSpec(())},
            **kwargs,
        )
        if not self.game.is_board_game:
            raise ConfigError(
                f"{self.name}: needs a game in which two seats move in turn, know all "
                "and play for the same stake. Take BattleEnvironment."
            )

    def _choosing_seats(self) -> np.ndarray:
        return self.game.moves(self._games).argmax(1)

    def _take(self, rows: np.ndarray, action: np.ndarray) -> np.ndarray:
        mover = self._choosing_seats()[rows]
        self._play(rows, np.repeat(action[:, None], 2, 1))
        won = self.game.returns(copy_rows(self._games, rows))
        return won[np.arange(len(rows)), mover]

    def _env_info(self, has_begun: np.ndarray) -> dict[str, np.ndarray]:
        won = self.game.returns(self._games)[:, 0]
        return {"outcome": np.where(has_begun, 0, won)}
