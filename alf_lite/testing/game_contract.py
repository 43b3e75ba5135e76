"""What every Game, and every environment of games, must do, as tests to inherit.

class TestMyGame(GameContract):
    def make(self):
        return MyGame()

class TestMyGameAgainstOthers(BattleContract):
    def make(self, num_environments, seed):
        opponents = [RandomOpponent()]
        return BattleEnvironment(
            num_environments, MyGame(), opponents=opponents, seed=seed
        )
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.games.game import Game, State, copy_rows, random_legal, with_rows
from alf_lite.testing.environment_contract import EnvironmentContract


class GameContract:
    """Inherit it, name the class ``Test...`` and implement ``make``.

    Attributes:
        num_games: that are played side by side, with random moves.
        is_zero_sum: whether what the seats win adds up to nothing.
        has_chance: whether chance decides anything after the beginning.
    """

    num_games = 32
    is_zero_sum = True
    has_chance = False

    def make(self) -> Game:
        """The game."""
        raise NotImplementedError

    def test_who_moves_has_a_legal_action_and_nobody_else(self) -> None:
        game = self.make()
        for state, _, after in self.played(game):
            for one in (state, after):
                moves = game.moves(one)
                assert moves.shape == (len(moves), game.num_players)
                for seat in range(game.num_players):
                    legal = game.legal(one, np.full(len(moves), seat))
                    assert legal.dtype == np.bool_, legal.dtype
                    assert legal.shape == (len(moves), game.num_actions)
                    assert np.array_equal(legal.any(1), moves[:, seat]), (one, legal)

    def test_it_is_over_after_its_longest_length(self) -> None:
        game = self.make()
        assert len(list(self.played(game))) <= game.max_length

    def test_returns_come_at_the_end_only(self) -> None:
        game, at_the_end = self.make(), []
        for _, _, after in self.played(game):
            won, goes_on = game.returns(after), np.any(game.moves(after), 1)
            assert won.dtype == np.float32
            assert won.shape == (len(goes_on), game.num_players)
            assert (won[goes_on] == 0).all(), "a game that goes on has returns"
            at_the_end.append(won[~goes_on])
        sums = np.concatenate(at_the_end).sum(1)
        assert not self.is_zero_sum or np.allclose(sums, 0), sums

    def test_a_move_leaves_the_state_before_it_as_it_was(self) -> None:
        game = self.make()
        for state, actions, _ in self.played(game):
            kept = [array.copy() for array in state]
            game.play(state, actions, np.random.default_rng(0))
            _assert_same_arrays(state, kept)

    def test_copies_of_games_go_on_as_they_do_whatever_is_beside_them(self) -> None:
        game = self.make()
        if self.has_chance:
            return
        for state, actions, after in self.played(game):
            rows = [len(actions) - 1, 0, 0]
            copies = copy_rows(state, rows)
            alone = game.play(copies, actions[rows], np.random.default_rng(1))
            _assert_same_arrays(alone, copy_rows(after, rows))

    def test_the_generator_fixes_what_chance_decides(self) -> None:
        game = self.make()
        runs = [list(self.played(game, seed=3)) for _ in range(2)]
        assert len(runs[0]) == len(runs[1])
        for (_, _, after), (_, _, same) in zip(*runs, strict=True):
            _assert_same_arrays(after, same)

    def test_observations_are_in_their_space(self) -> None:
        game = self.make()
        for state, actions, _ in self.played(game):
            for seat in range(game.num_players):
                seen = game.observe(state, np.full(len(actions), seat))
                assert seen.dtype == np.float32
                assert all(one in game.observation_space for one in seen), seen

    def test_what_is_packed_is_unpacked_and_goes_on(self) -> None:
        game = self.make()
        for state, actions, after in self.played(game):
            again = game.unpack(game.pack(state))
            assert np.array_equal(game.moves(again), game.moves(state))
            if not self.has_chance:
                played = game.play(again, actions, np.random.default_rng(1))
                _assert_same_arrays(played, after)

    def test_it_can_be_shown(self) -> None:
        game = self.make()
        for state, _, _ in self.played(game):
            assert game.describe(state, 0)

    def played(
        self, game: Game, seed: int = 0
    ) -> Iterator[tuple[State, np.ndarray, State]]:
        """Games of random moves: states before, actions [N, P], states after.

        Those that are over are left out of the states before.
        """
        draws = np.random.default_rng(seed)
        state = game.initial(self.num_games, draws)
        while (moves := game.moves(state)).any():
            rows = np.flatnonzero(moves.any(1))
            before = copy_rows(state, rows)
            drawn = [
                random_legal(game.legal(before, np.full(len(rows), seat)), draws)
                for seat in range(game.num_players)
            ]
            actions = np.stack(drawn, 1)
            after = game.play(before, actions, draws)
            yield before, actions, after
            state = with_rows(state, rows, after)


class GameEnvironmentContract(EnvironmentContract):
    """An environment of games: actions are legal ones, and open games are resumed."""

    def _action(self, env: Any, t: int) -> Tensor:
        if env._current is None:
            return torch.zeros(env.batch_size, dtype=torch.int64)
        legal = env.game.legal(env._games, env._choosing_seats())
        return torch.from_numpy(random_legal(legal, np.random.default_rng(t)))

    def test_every_row_is_one_in_which_to_choose_or_the_end(self) -> None:
        with self._open() as env:
            for step in self._iterate(env):
                mask = step.observation["action_mask"]
                assert mask[~step.is_last()].any(1).all(), step

    def test_rewards_come_at_the_end_only(self) -> None:
        with self._open() as env:
            for step in self._iterate(env):
                assert (step.reward[~step.is_last()] == 0).all(), step

    def test_games_in_progress_are_continued_to_the_bit(self) -> None:
        with self._open(seed=0) as env:
            self._run(env)
            state = env.episode_state()
            expected = self._goes_on(env)
            with self._open(seed=9) as again:
                assert again.restore_episodes(state, 3) == {}
                for one, same in zip(self._goes_on(again), expected, strict=True):
                    both = (nest.flatten(one), nest.flatten(same))
                    assert all(map(torch.equal, *both)), (one, same)

    def _goes_on(self, env: Any) -> list[TimeStep]:
        return [env.step(self._action(env, t)) for t in range(self.num_steps)]


class BattleContract(GameEnvironmentContract):
    """One that plays a seat of each game, against opponents inside of ``step``.

    ``make`` binds an algorithm to the environment (``Algorithm(env=env, ...)``) where
    there are snapshots of the policy among the opponents.

    Attributes:
        seat: of the algorithm in all games; None: one after the other.
    """

    seat: int | None = None

    def test_seats_alternate_and_nothing_changes_within_a_game(self) -> None:
        with self._open() as env:
            num_seats, steps = env.game.num_players, self._run(env)
            first = torch.arange(self.num_environments) % num_seats
            if self.seat is not None:
                first = torch.full_like(first, self.seat)
            assert torch.equal(steps[0].env_info["seat"].long(), first)
            for before, after in itertools.pairwise(steps):
                begins, turn = after.is_first(), int(self.seat is None)
                for name, following in (
                    ("seat", (before.env_info["seat"] + turn) % num_seats),
                    ("opponent", after.env_info["opponent"]),
                ):
                    expected = torch.where(begins, following, before.env_info[name])
                    assert torch.equal(after.env_info[name], expected), name

    def test_the_reward_is_the_outcome_for_the_own_seat(self) -> None:
        with self._open() as env:
            for step in self._iterate(env):
                won = env.game.returns(env._games)
                seats = step.env_info["seat"].long().numpy()
                own = torch.from_numpy(won[np.arange(len(won)), seats])
                is_last = step.is_last()
                assert torch.equal(step.reward[is_last], own[is_last])
                assert torch.equal(step.env_info["outcome"], step.reward)

    def test_snapshots_stay_as_they_are_while_the_policy_trains(self) -> None:
        with self._open() as env:
            if env._opponents.snapshots is None:
                return
            algorithm = env._opponents.snapshots._algorithm
            env.reset()
            env._opponents.snapshots.play(0)
            before = self._chances(env)
            start = algorithm.state_dict()
            start = {name: tensor.clone() for name, tensor in start.items()}
            for _ in range(3):
                algorithm.train_iter()
                env._opponents.snapshots.play(0)
                assert np.array_equal(self._chances(env), before)
            pool, trained = algorithm.opponent_pool, algorithm.state_dict()
            for name, tensor in pool.tensors_of(0).items():
                assert torch.equal(tensor, start[name]), name
            assert not all(torch.equal(trained[name], start[name]) for name in start)

    def _chances(self, env: Any) -> np.ndarray:
        """Of the first snapshot's actions, at the beginning of games."""
        game, seats = env.game, np.zeros(4, np.int64)
        state = game.initial(4, np.random.default_rng(0))
        legal = game.legal(state, seats)
        return env._opponents.snapshots[0].probabilities(
            game.observe(state, seats), legal
        )


def _assert_same_arrays(state: State, other: State) -> None:
    for array, same in zip(state, other, strict=True):
        assert np.array_equal(array, same), (array, same)
