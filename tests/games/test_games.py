"""The rules of games, of each against a plain reading of them, one game at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from alf_lite.errors import ConfigError
from alf_lite.games.board_games import ConnectFour, LineGame, Nim, TicTacToe
from alf_lite.games.catalogue import create_game
from alf_lite.games.game import random_legal
from alf_lite.games.matches import play_games
from alf_lite.games.opponents import RandomOpponent
from alf_lite.games.small_games import KuhnPoker, MatrixGame, rock_paper_scissors
from alf_lite.testing.game_contract import GameContract

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


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
class TestEveryGame(GameContract):
    @pytest.fixture(autouse=True)
    def _of(self, game):
        self._game = game

    def make(self):
        return self._game


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


def test_a_board_may_have_more_cells_than_an_int8_has_numbers():
    game, draws = LineGame(1, 136, 3), rng()
    state = game.initial(1, draws)
    order = [*range(128), 128, 132, 129, 134, 130]  # x has the last three in a line
    for n, cell in enumerate(order):
        assert game.legal(state, np.array([n % 2])).sum() == 136 - n
        assert game.observe(state, np.array([0])).sum() == n
        state = game.play(state, np.array([[cell, cell]]), draws)
    assert game.returns(state).tolist() == [[1, -1]]
    assert game.history(state, 0) == order
    told = game.state_of(game.observe(state, np.array([1])))
    assert np.array_equal(told.cells > 0, state.cells > 0)
    assert np.array_equal(told.cells % 2, state.cells % 2)
    # Of a checkpoint from before, at a move that it could hold
    old = [state.cells.clip(0, 100).astype(np.int8), *state[1:]]
    assert game.unpack(old).cells.dtype == state.cells.dtype


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
    contract = GameContract()
    contract.num_games = 200
    for _, _, after in contract.played(game):
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
        lambda: LineGame(182, 182, 5),
        lambda: Nim(()),
        lambda: Nim((0, 1)),
        lambda: MatrixGame([[1, 2]]),
    ],
)
def test_a_game_that_cannot_be_is_refused(make):
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_what_one_seat_wins_the_other_loses(game):
    draws = np.random.default_rng(0)
    random = RandomOpponent()
    won = play_games(game, [random, random], 200, draws)
    assert won.any()
    assert (won.sum(1) == 0).all()


@pytest.mark.parametrize(
    ("game", "number"),
    [
        (TicTacToe(), 8),
        (ConnectFour(), 2),
        (LineGame(3, 4, 3), 4),
        (LineGame(5, 5, 4, falls=True), 2),
        (Nim((1, 2, 4)), 1),
    ],
    ids=lambda game: getattr(game, "name", game),
)
def test_a_move_on_a_turned_board_is_the_turned_move(game, number):
    symmetries = game.symmetries()
    assert len({tuple(seen) for seen, _ in symmetries}) == number
    states, random = game.initial(50, rng()), rng(1)
    for _ in range(4):
        movers = game.moves(states).argmax(1)
        legal = game.legal(states, movers)
        seen = game.observe(states, movers).reshape(50, -1)
        actions = random_legal(legal, random)
        after = game.play(states, np.stack([actions] * 2, 1), random)
        for cells, moves in symmetries:
            shape = game.observation_space.shape
            turned = game.state_of(seen[:, cells].reshape(-1, *shape))
            seats = game.moves(turned).argmax(1)
            np.testing.assert_array_equal(game.legal(turned, seats), legal[:, moves])
            same = np.argsort(moves)[actions]  # the turned action
            then = game.play(turned, np.stack([same] * 2, 1), random)
            np.testing.assert_array_equal(
                game.observe(then, 1 - seats).reshape(50, -1),
                game.observe(after, 1 - movers).reshape(50, -1)[:, cells],
            )
            won = game.returns(after)[np.arange(50), movers]
            np.testing.assert_array_equal(game.returns(then)[np.arange(50), seats], won)
        if not game.moves(after).any(1).all():
            break
        states = after
