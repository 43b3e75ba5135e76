"""Games as environments, and one in which an algorithm plays for both seats."""

from __future__ import annotations

import abc
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
from alf_lite.games.opponent_pool import Opponents
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec


class GameEnvironment(EnvironmentWithSpecs, abc.ABC):
    """G games side by side, of each of which L seats are rows: game · L + learner.

    An observation is what ``Game.policy_input`` tells of the seat that is to choose. An
    episode is a game; a seat that is out before the game ends has LAST rows until then,
    with discount 0 and any action. What is left of the seats is played by ``opponents``
    inside of ``step``, until a learner has to choose or the game is over.

    Args:
        num_environments: B = G · L.
        game: a :class:`Game`, or the name of one that :func:`create_game` knows.
        num_random_moves: a game begins with up to so many moves that nobody has chosen,
            so that policies see more than what they have made of the opening.
        max_episode_steps: a game that takes longer is cut; None: there is no need to.
        num_learners: L.
        env_info_spec: of ``TimeStep.env_info``.
        discount: while a game goes on.
        name: for messages; None: by the game.
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
        num_learners: int = 1,
        env_info_spec: NestedTensorSpec,
        discount: float = 1.0,
        name: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.game = game = create_game(game)
        name = name or f"{type(self).__name__}({game.name})"
        for option, value, least in (
            ("num_environments", num_environments, 1),
            ("num_random_moves", num_random_moves, 0),
            ("max_episode_steps", max_episode_steps or 0, 0),
        ):
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name}: {option} must be a number from {least} on, got {value!r}"
                )
        if num_environments == 1:
            num_environments = num_learners  # one game, as play asks for
        if num_environments % num_learners:
            raise ConfigError(
                f"{name} has {num_learners} agents that learn, and each is a row: "
                f"num_parallel_environments must be a multiple of that, got "
                f"{num_environments}"
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
        self._env_id = torch.arange(num_environments, dtype=torch.int32)
        self._games: State = None
        self._rows = np.arange(num_environments // num_learners)  # [G] numbers of games
        self._num_moves = np.zeros(len(self._rows), np.int64)  # [G]
        # [G, L]: which seats the rows are, and those whose next step is not their move
        self._seats = np.tile(np.arange(num_learners), (len(self._rows), 1))
        self._is_last = np.zeros(self._seats.shape, bool)
        self._is_new = np.ones(len(self._rows), bool)  # [G]: at a FIRST step
        self.rows_per_frame = num_learners
        self._opponents: Opponents | None = None
        self._opponent_ids = np.zeros(len(self._rows), np.int64)  # [G]

    # What a subclass says

    @abc.abstractmethod
    def _env_info(self, has_begun: np.ndarray) -> dict[str, Any]:
        """[G] or [G, L] of the next step; [G] bool says where it is a FIRST one."""

    def _choosing_seats(self) -> np.ndarray:
        """[B]: for which seat the next action is."""
        return self._seats.ravel()

    def _discounts(self) -> np.ndarray:
        """[G, L] where games go on; ``_seats`` are those of the step before."""
        return np.full(self._seats.shape, self._discount)

    def bind(self, algorithm: Any) -> None:
        if self._opponents is not None:
            self._opponents.bind(algorithm)

    # Stepping

    def reset(self, seed: int | None = None) -> TimeStep:
        if seed is None and self._current is None:
            seed = self._seed
        if seed is not None:
            self._rng = np.random.default_rng(vector_seed(seed))
        self._begin(self._rows)
        self._let_opponents_move()
        nothing = np.zeros(self._seats.shape, np.float32)
        is_new = np.ones(len(self._rows), bool)
        no_action = torch.zeros(self.batch_size).long()
        return self._arrive(is_new, nothing, nothing, no_action)

    def step(self, action: Tensor) -> TimeStep:
        if self._current is None:
            raise RuntimeError(f"{self.name}: call reset() first")
        nest.assert_same_structure(self.action_spec, action)
        check_action("action", action, torch.Size((self.batch_size,)), True)
        chosen = action.numpy(force=True).reshape(self._seats.shape)
        self._check_legal(chosen.ravel())
        is_over = np.all(self._is_last, axis=1)
        # Over before anyone of them had to choose: the end is a step of its own
        ends_early = is_over & self._is_new
        has_begun = is_over & ~ends_early
        rows, new = np.flatnonzero(~is_over), np.flatnonzero(has_begun)
        paid = np.zeros((len(self._rows), self.game.num_players), np.float32)
        self._num_moves[rows] += 1
        if len(rows):
            self._move(rows, chosen[rows], paid)
        if len(new):
            self._begin(new)
        self._let_opponents_move(paid)
        paid[new] = 0
        if ends_early.any():
            paid[ends_early] = self.game.returns(copy_rows(self._games, ends_early))
        reward = np.take_along_axis(paid, self._seats, 1)
        return self._arrive(has_begun, reward, self._discounts(), action)

    def _begin(self, rows: np.ndarray) -> None:
        """New games in some rows."""
        if self._games is not None:
            self.game.release(copy_rows(self._games, rows))
        games, is_all = self._opening(len(rows)), len(rows) == len(self._rows)
        self._games = games if is_all else with_rows(self._games, rows, games)
        self._num_moves[rows] = 0
        if self._opponents is not None:
            self._opponents.choose(self._opponent_ids, rows, self._rng)

    def _opening(self, number: int) -> State:
        """Games that begin, after moves that nobody has chosen; none is over."""
        games = self.game.initial(number, self._rng)
        if not self._num_random_moves:
            return games
        wanted = self._rng.integers(0, self._num_random_moves + 1, number)
        return after_random_moves(self.game, games, wanted, self._rng)

    def _let_opponents_move(self, paid: np.ndarray | None = None) -> None:
        """In all games, until a learner has to choose or the game is over."""
        rows = self._rows
        while self._opponents is not None and len(rows):
            moves = self.game.moves(copy_rows(self._games, rows))
            is_own = np.take_along_axis(moves, self._seats[rows], 1).any(1)
            rows = rows[moves.any(1) & ~is_own]
            if len(rows):
                self._move(rows, np.zeros_like(self._seats[rows]), paid)

    def _move(
        self, rows: np.ndarray, chosen: np.ndarray, paid: np.ndarray | None
    ) -> None:
        """One move of all who choose now.

        Args:
            rows: [N] of games that go on.
            chosen: [N, L], of those who learn.
            paid: [G, P], to which is added what it has won; None: nobody asks.
        """
        games, seats = copy_rows(self._games, rows), self._seats[rows]
        actions = np.zeros((len(rows), self.game.num_players), np.int64)
        if self._opponents is not None:
            others = self.game.moves(games).copy()
            np.put_along_axis(others, seats, False, 1)
            row, seat = np.nonzero(others)
            if len(row):
                actions[row, seat] = self._opponents.act(
                    self._opponent_ids,
                    rows[row],
                    copy_rows(games, row),
                    seat,
                    self._rng,
                )
        np.put_along_axis(actions, seats, chosen, 1)
        games = self.game.play(games, actions, self._rng)
        if paid is not None:
            paid[rows] += self.game.paid(games)
        self._games = with_rows(self._games, rows, games)

    def _arrive(
        self,
        has_begun: np.ndarray,
        reward: np.ndarray,
        discount: np.ndarray,
        action: Tensor,
    ) -> TimeStep:
        """The time step to which all games [G] have come.

        Args:
            has_begun: [G].
            reward: [G, L].
            discount: [G, L], where games go on.
            action: [B].
        """
        game, shape = self.game, self._seats.shape
        self._seats[...] = self._choosing_seats().reshape(shape)
        is_out = ~np.take_along_axis(game.moves(self._games), self._seats, 1)
        self._is_last = is_out | (self._num_moves >= self._max_length)[:, None]
        step_type = np.where(self._is_last, StepType.LAST, StepType.MID)
        step_type[has_begun] = StepType.FIRST
        self._is_new = has_begun
        has_ended = np.take_along_axis(game.ended(self._games), self._seats, 1)
        discount = np.where(has_begun[:, None], 1, np.where(has_ended, 0, discount))
        seats, games = self._seats.ravel(), self._games
        if shape[1] > 1:
            games = copy_rows(games, self._rows.repeat(shape[1]))
        seen = game.policy_input(games, seats)
        mask = seen.get(MASK_KEY, np.ones((self.batch_size, game.num_actions)))
        self._legal_now = legal = mask.astype(bool)
        is_stuck = ~legal.any(1) & ~self._is_last.ravel()
        if is_stuck.any():
            row = int(is_stuck.argmax())
            raise EnvError(
                f"{self.name}: seat {seats[row]} has to move in environment {row}, and "
                f"no action is legal:\n{game.describe(games, row)}"
            )
        is_new = torch.from_numpy(has_begun.repeat(shape[1]))

        def to_rows(values: Any) -> Tensor:
            spread = np.reshape(values, (len(self._rows), -1)) + np.zeros(shape)
            return torch.from_numpy(spread.astype(np.float32).ravel())

        self._current = TimeStep(
            step_type=torch.from_numpy(step_type.astype(np.int32).ravel()),
            reward=to_rows(reward),
            discount=to_rows(discount),
            observation={key: torch.from_numpy(value) for key, value in seen.items()},
            prev_action=action.detach().cpu().long().masked_fill(is_new, 0),
            env_id=self._env_id,
            env_info=nest.map_structure(to_rows, self._env_info(has_begun)),
        )
        return self._current

    def _check_legal(self, chosen: np.ndarray) -> None:
        is_wrong = (chosen < 0) | (chosen >= self.game.num_actions)
        rows = np.arange(self.batch_size)
        is_wrong |= ~self._legal_now[rows, np.where(is_wrong, 0, chosen)]
        is_wrong &= ~self._is_last.ravel()
        if is_wrong.any():
            i = int(is_wrong.argmax())
            raise EnvError(
                f"{self.name}: action {chosen[i]} is illegal in environment {i}, "
                f"legal are {np.flatnonzero(self._legal_now[i]).tolist()}.\nSet the "
                f'algorithm\'s action_mask_key = "{MASK_KEY}".'
            )

    # Resuming

    @property
    def _kind(self) -> str:
        return f"{self.name}, {self.batch_size} rows"

    def episode_state(self) -> dict[str, Any] | None:
        if self._current is None:
            return None
        arrays = [*self._arrays(), *self.game.pack(self._games)]
        return {
            "game": self._kind,
            "arrays": [torch.from_numpy(array.copy()) for array in arrays],
            "time_step": [leaf.clone() for leaf in nest.flatten(self._current)],
            "generator": self._rng.bit_generator.state,
            "opponents": self._opponents and self._opponents.state(),
        }

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        like = self.reset(seed)
        if state.get("game") != self._kind:
            raise CheckpointError(
                f"{self.name}: the open games are of {state.get('game')}, and here are "
                f"{self.batch_size} rows"
            )
        saved: TimeStep = nest.pack_sequence_as(like, state["time_step"])
        arrays = [array.numpy().copy() for array in state["arrays"]]
        own = self._arrays()
        for array, value in zip(own, arrays, strict=False):
            array[...] = value
        if self._opponents is not None:
            self._opponents.restore(state["opponents"])
        self.game.release(self._games)
        self._games = self.game.unpack(arrays[len(own) :])
        has_begun = np.all(saved.is_first().numpy().reshape(self._seats.shape), axis=1)
        reward, discount = (
            leaf.numpy().reshape(self._seats.shape)
            for leaf in (saved.reward, saved.discount)
        )
        replayed = self._arrive(has_begun, reward, discount, saved.prev_action)
        is_other = np.zeros(self.batch_size, bool)
        for one, other in zip(*map(nest.flatten, (replayed, saved)), strict=True):
            is_other |= (one != other).reshape(self.batch_size, -1).any(1).numpy()
        is_new = np.any(is_other.reshape(self._seats.shape), axis=1)
        if not is_new.any():
            self._rng.bit_generator.state = state["generator"]
            return {}
        self._begin(np.flatnonzero(is_new))
        self._let_opponents_move()
        reward = np.where(is_new[:, None], 0, reward)
        self._arrive(has_begun | is_new, reward, discount, saved.prev_action)
        rows = np.flatnonzero(is_new.repeat(self._seats.shape[1])).tolist()
        return dict.fromkeys(rows, "the replay came to another step")

    def _arrays(self) -> list[np.ndarray]:
        """What is remembered of the games that go on."""
        return [self._num_moves, self._seats, self._opponent_ids]


@configurable
class BothSeatsEnvironment(GameEnvironment):
    """One algorithm plays for both seats of a board game; a row is a game.

    The seat that moves sees what the game shows it: of ours, the board as its own; of
    OpenSpiel's, often the same board and which seat it is. Its reward is what its move
    wins, and the step that follows belongs to the other seat: what is good for one is
    bad for the other, so the discount is -1 while the game goes on; it is 1 where the
    same seat moves again. TD targets, advantages and maxima over actions are then those
    of minimax (negamax). Only algorithms that say ``takes_negative_discounts`` can be
    trained on it.

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

    def _discounts(self) -> np.ndarray:
        moves_again = self._choosing_seats()[:, None] == self._seats
        return np.where(moves_again, -self._discount, self._discount)

    def _env_info(self, has_begun: np.ndarray) -> dict[str, np.ndarray]:
        won = self.game.returns(self._games)[:, 0]
        return {"outcome": np.where(has_begun, 0, won)}
