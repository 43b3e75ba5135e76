"""Round robins between trained policies and bots, with ratings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl.flags import FlagValues

from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.games.catalogue import create_game
from alf_lite.games.game import Game
from alf_lite.games.matches import game_of_run, play_games
from alf_lite.games.open_spiel import MctsOpponent
from alf_lite.games.opponents import (
    AverageOpponent,
    OnePlyOpponent,
    Opponent,
    PerfectOpponent,
    RandomOpponent,
)
from alf_lite.games.payoff import Ratings, bradley_terry
from alf_lite.games.policy_opponents import ExportedOpponent, RunOpponent, snapshots_of
from alf_lite.policies.exported_policy import SPECS_FILE
from alf_lite.runs.directory import RunDirectory
from alf_lite.tools import pictures
from alf_lite.utils.game_results import distinct_names

_BOTS: dict[str, Callable[[], Opponent]] = {
    "random": RandomOpponent,
    "one_ply": OnePlyOpponent,
    "perfect": PerfectOpponent,
}
_MCTS, _AVERAGE = "mcts:", "average:"
_SNAPSHOTS, _CHECKPOINTS = "snapshots:", "checkpoints:"
_OF_RUNS = (_AVERAGE, _SNAPSHOTS, _CHECKPOINTS)


class Tournament(NamedTuple):
    """What came out of a round robin of N players."""

    game: str
    names: tuple[str, ...]
    results: np.ndarray  # [N, N, 3]: won, drawn, lost by row in seat 0 against column
    ratings: Ratings

    def score(self, player: int, seat: int) -> np.ndarray:
        """[3]: the games that a player has won, drawn and lost in a seat."""
        if seat == 0:
            return self.results[player].sum(0)
        return self.results[:, player].sum(0)[::-1]

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {
            "game": self.game,
            "players": [
                {
                    "name": name,
                    "elo": round(float(self.ratings.elo[i]), 1),
                    "half_width_95": round(float(self.ratings.half_width[i]), 1),
                    "first": self.score(i, 0).tolist(),
                    "second": self.score(i, 1).tolist(),
                }
                for i, name in enumerate(self.names)
            ],
            "won_drawn_lost_of_first": self.results.tolist(),
        }


def run_arena(values: FlagValues) -> int:
    """Plays what the flags say; returns the exit code."""
    for file in values.output:
        if Path(file).suffix.lower() != ".json":
            pictures.check_can_draw(file)
    game = _game(values.game, values.player)
    named = [players_of(text, sampled=values.sampled) for text in values.player]
    players = [player for some in named for player in some]
    tournament = round_robin(
        game,
        players,
        num_games=values.games,
        num_random_moves=values.random_moves,
        seed=values.seed,
    )
    print(table(tournament))
    for file in values.output:
        if Path(file).suffix.lower() == ".json":
            text = json.dumps(tournament.as_dict(), indent=2)
            Path(file).write_text(text + "\n", encoding="utf-8")
        else:
            draw(tournament, file)
        print(f"Written: {file}")
    return 0


def _game(name: str | None, players: Sequence[str]) -> Game:
    """The one that is named, or that of the first run."""
    if name is not None:
        return create_game(name)
    for text in players:
        kind, _, name = text.rpartition(":")
        run = name if kind + ":" in _OF_RUNS else text
        run = run if Path(run).is_dir() else run.rpartition("@")[0]
        if run and Path(run).is_dir():
            return game_of_run(run)
    return create_game("tic_tac_toe")


def players_of(text: str, *, sampled: bool = False) -> Sequence[Opponent]:
    """A bot by its name, or a run or an exported policy by its directory.

    ``RUN`` is the policy, ``RUN@STEP`` that of an earlier checkpoint, ``average:RUN``
    draws one of its snapshots for each game, ``snapshots:RUN`` are all of them, and
    ``checkpoints:RUN`` are the policies of all checkpoints that there are.

    Raises:
        ConfigError: if it is none of these.
    """
    if text in _BOTS:
        return [_BOTS[text]()]
    kind, colon, name = text.rpartition(":")
    if kind + colon == _MCTS and name.isdecimal():
        return [MctsOpponent(int(name))]
    if kind + colon in _OF_RUNS and Path(name).is_dir():
        return _players_of_run(kind + colon, name, sampled)
    if (Path(text) / SPECS_FILE).is_file():
        return [ExportedOpponent(text)]
    run, _, step = text.rpartition("@")
    if step.isdecimal() and Path(run).is_dir():
        return [RunOpponent(run, int(step), deterministic=not sampled)]
    if Path(text).is_dir():
        return [RunOpponent(text, deterministic=not sampled)]
    raise ConfigError(
        f"there is no run {text!r}, and no such bot.{did_you_mean(text, _BOTS)} "
        f"Bots are {', '.join(_BOTS)} and {_MCTS}NUMBER; of a run there are RUN, "
        f"RUN@STEP, {_CHECKPOINTS}RUN, {_AVERAGE}RUN and {_SNAPSHOTS}RUN, of an "
        "export its directory."
    )


def _players_of_run(kind: str, run: str, sampled: bool) -> Sequence[Opponent]:
    """The snapshots of a run, all in one or each for itself, or its checkpoints."""
    if kind == _CHECKPOINTS:
        checkpoints = Checkpointer(RunDirectory(run).checkpoints, read_only=True)
        steps = sorted(step for step, _ in checkpoints.paths())
        return [RunOpponent(run, step, deterministic=not sampled) for step in steps]
    if kind == _AVERAGE:
        return [AverageOpponent(snapshots_of(run, deterministic=False), Path(run).name)]
    return snapshots_of(run, deterministic=not sampled)


def round_robin(
    game: Game,
    players: Sequence[Opponent],
    *,
    num_games: int = 400,
    num_random_moves: int = 2,
    seed: int = 0,
) -> Tournament:
    """Everybody against everybody, in both seats.

    Args:
        game: of two seats.
        players: at least two.
        num_games: of each pair, half of them in each seat.
        num_random_moves: with which games begin; two that draw nothing play the same
            game again and again without.
        seed: of all that is random.

    Raises:
        ConfigError: if it cannot be played.
    """
    if len(players) < 2 or game.num_players != 2:
        raise ConfigError(
            f"arena: needs two players or more and a game of two seats, got "
            f"{len(players)} and {game.name} with {game.num_players}"
        )
    if num_games < 2:
        raise ConfigError(f"arena: at least 2 games of each pair, got {num_games}")
    names = distinct_names([player.name for player in players])
    results = np.zeros((len(players), len(players), 3), np.int64)
    for first, player in enumerate(players):
        for second, other in enumerate(players):
            if first != second:
                rng = np.random.default_rng([seed, first, second])
                won = play_games(
                    game, (player, other), num_games // 2, rng, num_random_moves
                )[:, 0]
                outcomes = won > 0, won == 0, won < 0
                results[first, second] = [outcome.sum() for outcome in outcomes]
    points = results @ np.array([1, 0.5, 0])
    points_of_second = results @ np.array([0, 0.5, 1])
    ratings = bradley_terry(points + points_of_second.T)
    return Tournament(game.name, names, results, ratings)


def table(tournament: Tournament) -> str:
    """For a terminal: the strongest first."""
    width = max(map(len, (*tournament.names, "player")))
    lines = [
        f"{tournament.game}: won / drawn / lost of all games in a seat",
        f"{'player':<{width}}  {'Elo':>11}  {'first seat':>16}  {'second seat':>16}",
    ]
    ratings = tournament.ratings
    for i in np.argsort(-ratings.elo, kind="stable").tolist():
        elo = f"{ratings.elo[i]:+.0f} ± {ratings.half_width[i]:.0f}"
        seats = [" / ".join(map(str, tournament.score(i, seat))) for seat in (0, 1)]
        lines.append(
            f"{tournament.names[i]:<{width}}  {elo:>11}  {seats[0]:>16}  {seats[1]:>16}"
        )
    return "\n".join(lines)


def draw(tournament: Tournament, file: str) -> None:
    """The score of each row in the first seat against each column, and the ratings."""
    number = len(tournament.names)
    side = 2.2 + 0.8 * number
    with pictures.picture(file, 1, 2, (side + 0.8, side)) as (figure, axes):
        _draw_scores(tournament, figure, axes[0])
        _draw_ratings(tournament, axes[1])


def _draw_scores(tournament: Tournament, figure: Any, axes: Any) -> None:
    number = len(tournament.names)
    games = np.maximum(tournament.results.sum(-1), 1)
    score = tournament.results @ np.array([1, 0.5, 0]) / games
    score[np.arange(number), np.arange(number)] = np.nan
    image = axes.imshow(score, cmap="RdBu", vmin=0, vmax=1)
    axes.grid(visible=False)
    axes.set_xticks(range(number), tournament.names, rotation=45, ha="right")
    axes.set_yticks(range(number), tournament.names)
    axes.set_xlabel("second seat")
    axes.set_ylabel("first seat")
    axes.set_title(f"{tournament.game}: score of the first seat")
    for row, column in np.argwhere(~np.isnan(score)):
        value = score[row, column]
        colour = "white" if abs(value - 0.5) > 0.35 else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=axes, shrink=0.8)


def _draw_ratings(tournament: Tournament, axes: Any) -> None:
    """In the order in which the players were given: of checkpoints it is a curve."""
    places, (elo, half_width) = range(len(tournament.names)), tournament.ratings
    axes.errorbar(places, elo, half_width, fmt="o", capsize=3)
    axes.set_xticks(places, tournament.names, rotation=45, ha="right")
    axes.set_ylabel("Elo, with 95 % intervals")
    axes.set_title("Ratings")
