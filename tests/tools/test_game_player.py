"""Games of a person against a policy, with what is typed written down before."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.bin import arena, play
from alf_lite.bin import train as train_program
from alf_lite.config import files as config_files
from alf_lite.errors import ConfigError
from alf_lite.games.board_games import ConnectFour, LineGame, Nim, TicTacToe
from alf_lite.games.catalogue import create_game
from alf_lite.games.opponents import Opponent, PerfectOpponent
from alf_lite.games.small_games import KuhnPoker, rock_paper_scissors
from alf_lite.tools.game_player import Person, play_series

CONF = """
create_environment.env_ctor = @BattleEnvironment
create_environment.num_parallel_environments = 4
BattleEnvironment.game = "nim"
BattleEnvironment.opponents = (@RandomOpponent(),)
TrainerConfig:
  algorithm_ctor = @PPOAlgorithm
  num_iterations = 1
  unroll_length = 8
PPOAlgorithm.action_mask_key = "action_mask"
"""


class First(Opponent):
    """Takes the first legal action."""

    name = "first"

    def act(self, game, state, seats, rng):
        return game.legal(state, seats).argmax(1)


def series(game, typed, num_games=1, policy=None, **options):
    """What came of it, and all that was shown."""
    shown, lines = [], iter(typed)

    def ask(prompt):
        shown.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    person = Person(ask, shown.append)
    options["show"] = shown.append
    records = play_series(game, person, policy or First(), num_games, **options)
    return records, "\n".join(shown)


def test_a_game_of_tic_tac_toe():
    # The other one takes 0, 1 and, last, 2
    records, shown = series(TicTacToe(), ["4", "x", "4", "9", "3", "5"], seat=0)
    assert records == (("first", 0, 1, 0, 0, 1.0),)
    assert "0 1 2\n3 4 5\n6 7 8\nYou are x." in shown
    assert "o 1 2\n3 x 5\n6 7 8" in shown
    assert "Your move, 1, 2, 3, 5, 6, 7, 8; q quits: " in shown
    for wrong in ("x", "4", "9"):
        assert f"{wrong!r} is not one of the legal moves." in shown
    assert "first plays 1" in shown
    assert "you: won\nyou against first  seat 0: won 1, drawn 0, lost 0" in shown
    assert "o o .\nx x x\n. . ." in shown


def test_seats_in_turn_until_one_has_had_enough():
    typed = ["4", "3", "5", "8", "7", "q", "4"]
    records, shown = series(TicTacToe(), typed, 5)
    assert records == (("first", 0, 1, 0, 0, 1.0), ("first", 1, 0, 0, 1, -1.0))
    assert "game 2: you in seat 1 of 2, against first" in shown
    assert "You are o." in shown
    assert "does not count" in shown


@pytest.mark.parametrize("typed", [[], ["q"], ["nothing"]])
def test_the_end_of_input_ends_it(typed):
    records, shown = series(TicTacToe(), typed, 5)
    assert records == ()
    assert "game 2" not in shown


def test_columns_and_large_boards_are_numbered():
    _, shown = series(ConnectFour(), ["3", "3", "3", "3"], seat=0)
    assert "0 1 2 3 4 5 6\n. . . . . . ." in shown
    assert "you: won" in shown
    _, shown = series(LineGame(4, 4, 3), ["q"], seat=1)
    assert " x  1  2  3" in shown
    assert "12 13 14 15" in shown


def test_moves_may_be_typed_by_name():
    records, shown = series(
        Nim((1, 2)), ["take 1 of pile 2", "0"], policy=PerfectOpponent(), seat=0
    )
    assert "0 (take 1 of pile 1), 2 (take 1 of pile 2), 3 (take 2 of pile 2)" in shown
    assert "piles: 1, 2" in shown
    assert records[0].num_games == 1


def test_hidden_cards_stay_hidden_until_the_end():
    for seed in range(6):
        game = KuhnPoker()
        cards = game.initial(1, np.random.default_rng(seed)).cards[0]
        _, shown = series(game, ["bet"] * 2, seat=1, seed=seed)
        before, after = shown.split("Your move", 1)
        assert f"your card: {cards[1]} of 0, 1, 2\nmoves: pass" in before
        assert "cards:" not in before.replace("your card:", "")
        assert f"cards: {cards[0]}, {cards[1]}\n" in after
        assert "first plays" not in shown


def test_moves_at_once_are_not_told_before():
    records, shown = series(rock_paper_scissors(), ["1"], seat=1)
    # The other one has the action 0, and paper beats rock
    assert records == (("first", 1, 1, 0, 0, 1.0),)
    assert "1:     1     0    -1" in shown.split("Your move")[0]
    assert "actions: [0 1]" in shown


@pytest.mark.parametrize(("name", "seen"), [("leduc_poker", "private"), ("hex", ".")])
def test_games_of_open_spiel(name, seen):
    pytest.importorskip("pyspiel")
    game = create_game(f"open_spiel/{name}")
    _, shown = series(game, ["?", "q"], seat=0)
    assert "is not one of the legal moves" in shown
    assert seen in shown.lower()


def test_whoever_watches_sees_all(capsys):
    records = play_series(KuhnPoker(), First(), First(), 2, seed=1)
    said = capsys.readouterr().out
    assert said.count("first plays pass") == 4
    assert said.count("cards: ") == 4
    assert [record[:2] for record in records] == [("first", 0), ("first", 1)]
    assert sum(record.outcome for record in records) in (-2, 0, 2)


def test_there_is_no_such_seat():
    with pytest.raises(ConfigError, match="seat must be from 0 to 1 in TicTacToe"):
        series(TicTacToe(), [], seat=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nim")
    (folder / "nim.gin").write_text(CONF)
    config_files.reset()
    arguments = [f"--conf={folder / 'nim.gin'}", f"--root_dir={folder / 'run'}"]
    assert train_program.main(arguments) == 0
    config_files.reset()
    return folder / "run"


def test_the_program_reads_what_is_typed(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("99\n" + "q\n"))
    assert play.main([f"--root_dir={run}", "--human", "--seat=0"]) == 0
    said = capsys.readouterr().out
    assert "Nim(1, 2, 4), game 1: you in seat 0 of 2, against run" in said
    assert "'99' is not one of the legal moves." in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seat=1"], "--seat needs --human or --against"),
        (["--human", "--against=random"], "exclude each other"),
        (["--against=random", "--record_file=a.gif"], "exclude each other"),
        (["--against=randm"], "Did you mean 'random'"),
        (["--human", "--render"], "exclude each other"),
        (["--human", "--json"], "exclude each other"),
        (["--human", "--seat=7"], "seat must be from 0 to 1"),
    ],
)
def test_flags_that_do_not_fit(run, arguments, message, capsys):
    assert play.main([f"--root_dir={run}", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_games_of_others_are_shown(run, capsys):
    arguments = [f"--root_dir={run}", "--against=perfect", "--num_episodes=1"]
    assert play.main([*arguments, "--seat=0"]) == 0
    said = capsys.readouterr().out
    # Who begins wins, if they know how to
    assert "perfect plays take 1 of pile 3" in said
    assert "piles: 0, 0, 0\nperfect: won\nperfect against run  seat 0: won 1" in said
    assert play.main([f"--root_dir={run}", "--num_episodes=2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].endswith("seat 0 against random")
    assert said[2].endswith("seat 1 against random")


def test_an_arena_knows_the_game_of_a_run(run, capsys):
    assert arena.main([str(run), "perfect", "--games=4"]) == 0
    assert capsys.readouterr().out.startswith("Nim(1, 2, 4): won")


def test_a_policy_without_a_distribution_is_not_sampled(run, monkeypatch, capsys):
    monkeypatch.setattr(PPOAlgorithm, "has_stochastic_policy", False)
    arguments = [f"--root_dir={run}", "--against=random", "--sample"]
    assert play.main(arguments) == 2
    assert "sample: PPOAlgorithm has no distribution" in capsys.readouterr().err
