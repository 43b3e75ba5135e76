"""The rules of games, of each against a plain reading of them, one game at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from alf_lite.errors import ConfigError
from alf_lite.games.board_games import ConnectFour, LineGame, Nim, TicTacToe
from alf_lite.games.catalogue import create_game
from alf_lite.games.game import Game, copy_rows, random_legal, with_rows
from alf_lite.games.small_games import KuhnPoker, MatrixGame, rock_paper_scissors

GAMES = [
    TicTacToe(),
    ConnectFour(),
    LineGame(2, 5, 3),
    Nim((1, 2, 4)),
    KuhnPoker(),
    rock_paper_scissors(),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def played(game: Game, number: int = 32, seed: int = 0):
    """States of random games, from the first to the last move, and the actions."""
    draws = rng(seed)
    state = game.initial(number, draws)
    while (moves := game.moves(state)).any():
        rows = np.flatnonzero(moves.any(1))
        before = copy_rows(state, rows)
        seats = range(game.num_players)
        actions = np.stack(
            [
                random_legal(game.legal(before, np.full(len(rows), seat)), draws)
                for seat in seats
            ],
            1,
        )
        yield before, actions, game.play(before, actions, draws)
        state = with_rows(state, rows, game.play(before, actions, draws))


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
class TestEveryGame:
    def test_what_one_wins_the_others_lose_and_only_at_the_end(self, game):
        for _, _, after in played(game):
            won, moves = game.returns(after), game.moves(after)
            assert won.dtype == np.float32
            assert (won.sum(1) == 0).all()
            assert (won[moves.any(1)] == 0).all()

    def test_it_is_over_after_its_longest_length(self, game):
        assert len(list(played(game))) <= game.max_length

    def test_who_moves_has_a_legal_action_and_nobody_else(self, game):
        for before, _, _ in played(game):
            moves = game.moves(before)
            for seat in range(game.num_players):
                legal = game.legal(before, np.full(len(moves), seat))
                assert legal.shape == (len(moves), game.num_actions)
                assert np.array_equal(legal.any(1), moves[:, seat])

    def test_a_move_leaves_the_state_before_it_as_it_was(self, game):
        for before, actions, _ in played(game):
            copies = [array.copy() for array in before]
            game.play(before, actions, rng())
            for array, copy in zip(before, copies, strict=True):
                assert np.array_equal(array, copy)

    def test_a_game_does_not_depend_on_those_beside_it(self, game):
        for before, actions, after in played(game):
            alone = game.play(copy_rows(before, [0]), actions[:1], rng())
            for array, expected in zip(alone, after, strict=True):
                assert np.array_equal(array[0], expected[0])

    def test_observations_are_in_their_space(self, game):
        for before, _, _ in played(game):
            seen = game.observe(before, np.zeros(len(game.moves(before)), np.int64))
            assert seen.dtype == np.float32
            assert all(one in game.observation_space for one in seen)

    def test_what_is_packed_is_unpacked(self, game):
        for before, _, _ in played(game):
            again = game.unpack(game.pack(before))
            for array, expected in zip(again, before, strict=True):
                assert np.array_equal(array, expected)

    def test_it_can_be_shown(self, game):
        before, _, _ = next(iter(played(game)))
        assert game.describe(before, 0)


def naive_winner(cells: list[list[int]], length: int) -> int:
    """The seat with a line, looking at every cell and direction; -1 for none."""
    rows, columns = len(cells), len(cells[0])
    for row, column in itertools.product(range(rows), range(columns)):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            line = [
                cells[row + down * i][column + right * i]
                for i in range(length)
                if row + down * i < rows and 0 <= column + right * i < columns
            ]
            if len(line) == length and set(line) in ({1}, {2}):
                return line[0] - 1
    return -1


@pytest.mark.parametrize(
    ("game", "shape", "length", "falls"),
    [
        (TicTacToe(), (3, 3), 3, False),
        (ConnectFour(), (6, 7), 4, True),
        (LineGame(2, 5, 3), (2, 5), 3, False),
    ],
    ids=["TicTacToe", "ConnectFour", "2x5"],
)
def test_lines_of_discs_as_one_plays_them_by_hand(game, shape, length, falls):
    draws = rng(1)
    for _ in range(30):
        state, seat = game.initial(1, draws), 0
        cells = [[0] * shape[1] for _ in range(shape[0])]
        history = []
        while game.moves(state).any():
            action = int(random_legal(game.legal(state, np.array([seat])), draws)[0])
            history.append(action)
            if falls:
                row = max(r for r in range(shape[0]) if cells[r][action] == 0)
                cells[row][action] = seat + 1
            else:
                assert cells[action // shape[1]][action % shape[1]] == 0
                cells[action // shape[1]][action % shape[1]] = seat + 1
            state = game.play(state, np.array([[action, action]]), draws)
            assert int(state.winner[0]) == naive_winner(cells, length)
            own, other = game.observe(state, np.array([seat]))[0]
            assert np.array_equal(own, np.array(cells) == seat + 1)
            assert np.array_equal(other, np.array(cells) == 2 - seat)
            seat = 1 - seat
        assert game.history(state, 0) == history


def test_kuhn_poker_pays_as_its_rules_say():
    game = KuhnPoker()
    # History → what the first seat wins with the higher card, and with the lower one
    results = {
        (0, 0): (1, -1),
        (0, 1, 0): (-1, -1),
        (0, 1, 1): (2, -2),
        (1, 0): (1, 1),
        (1, 1): (2, -2),
    }
    seen = set()
    for _, _, after in played(game, 200):
        for row in np.flatnonzero(~game.moves(after).any(1)):
            history = tuple(int(a) for a in after.history[row] if a >= 0)
            is_higher = after.cards[row, 0] > after.cards[row, 1]
            expected = results[history][0 if is_higher else 1]
            assert game.returns(after)[row].tolist() == [expected, -expected]
            seen.add((history, bool(is_higher)))
    assert len(seen) == 10


def test_a_matrix_says_what_a_pair_of_actions_is_worth():
    payoff = [[0, -25, 50], [25, 0, -5], [-50, 5, 0]]
    game = MatrixGame(payoff)
    pairs = np.array(list(itertools.product(range(3), repeat=2)))
    after = game.play(game.initial(9, rng()), pairs, rng())
    assert game.returns(after)[:, 0].tolist() == np.array(payoff).ravel().tolist()


def test_games_are_found_by_their_names():
    assert create_game("connect_four").num_actions == 7
    with pytest.raises(ConfigError, match="Did you mean 'tic_tac_toe'"):
        create_game("tictactoe")


@pytest.mark.parametrize(
    "make",
    [
        lambda: LineGame(2, 2, 3),
        lambda: Nim(()),
        lambda: Nim((0, 1)),
        lambda: MatrixGame([[1, 2]]),
    ],
)
def test_a_game_that_cannot_be_is_refused(make):
    with pytest.raises(ConfigError):
        make()
