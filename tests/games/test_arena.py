"""Round robins, and the program that plays them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from alf_lite.bin import arena as program
from alf_lite.errors import ConfigError
from alf_lite.games.board_games import Nim, TicTacToe
from alf_lite.games.matches import play_games
from alf_lite.games.opponents import OnePlyOpponent, PerfectOpponent, RandomOpponent
from alf_lite.tools.arena import players_of, round_robin


def test_players_are_ordered_by_their_strength():
    players = [RandomOpponent(), PerfectOpponent(), OnePlyOpponent()]
    result = round_robin(TicTacToe(), players, num_games=300, num_random_moves=0)
    assert result.names == ("random", "perfect", "one_ply")
    assert np.argsort(-result.ratings.elo).tolist() == [1, 2, 0]
    assert result.results.sum(-1).tolist() == [
        [0, 150, 150],
        [150, 0, 150],
        [150, 150, 0],
    ]
    # Perfect play never loses from an empty board, in neither seat
    assert result.score(1, 0)[2] == 0
    assert result.score(1, 1)[2] == 0
    # Who loses as the second has been beaten by a first
    first = sum(result.score(i, 0) for i in range(3))
    second = sum(result.score(i, 1) for i in range(3))
    assert first.tolist() == second[::-1].tolist()


def test_perfect_players_get_the_value_of_the_game():
    for piles, won in (((1, 2, 4), 1), ((1, 2, 3), -1)):
        perfect = PerfectOpponent()
        returns = play_games(
            Nim(piles), (perfect, perfect), 8, np.random.default_rng(0)
        )
        assert returns.tolist() == [[won, -won]] * 8


def test_the_same_player_twice_has_two_names():
    players = [RandomOpponent(), RandomOpponent()]
    assert round_robin(TicTacToe(), players).names == ("random#1", "random#2")


@pytest.mark.ci
def test_the_program(tmp_path, capsys):
    file = tmp_path / "payoff.json"
    code = program.main(["random", "perfect", "--games=40", f"--output={file}"])
    assert code == 0
    said = capsys.readouterr().out
    assert said.splitlines()[2].startswith("perfect")
    saved = json.loads(file.read_text())
    assert saved["game"] == "TicTacToe"
    assert [player["name"] for player in saved["players"]] == ["random", "perfect"]
    assert sum(saved["players"][0]["first"]) == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["random", "prefect"], "Did you mean 'perfect'"),
        (["random"], "two players or more"),
        (["random", "perfect", "--game=chess"], "there is no game 'chess'"),
        (["random", "perfect", "--game=connect_four"], "too many states"),
        (["random", "perfect", "--output=a.txt"], "a picture is a file"),
    ],
)
def test_mistakes_are_told_before_anything_is_played(arguments, message, capsys):
    assert program.main(arguments) != 0
    assert message in capsys.readouterr().err


def test_players_by_name(tmp_path):
    assert players_of("one_ply")[0].name == "one_ply"
    with pytest.raises(ConfigError, match="no run"):
        players_of(str(tmp_path / "nothing"))
