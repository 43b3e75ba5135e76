"""Games between opponents, outside of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from alf_lite.config import files as config_files
from alf_lite.config.bindings import evaluation_scope
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.games.game import Game, Rng, State, copy_rows, random_legal, with_rows
from alf_lite.games.opponents import Opponent, choose_rows
from alf_lite.policies.run_policy import read_run_config


def play_games(
    game: Game,
    players: Sequence[Opponent],
    number: int,
    rng: Rng,
    num_random_moves: int = 0,
    on_move: Callable[[State, np.ndarray, State], None] | None = None,
) -> np.ndarray:
    """What each seat wins in ``number`` games that are played side by side, [N, P].

    Args:
        game: to play.
        players: one for each seat.
        number: N.
        rng: of chance, and of all players.
        num_random_moves: with which each game begins, unless it would be over by them.
        on_move: called after each move with the games in which it was made, the actions
            [games, P], and the games after it.

    Raises:
        ConfigError: if there is another number of seats, or a player cannot play it.
    """
    if len(players) != game.num_players:
        raise ConfigError(
            f"{game.name} has {game.num_players} seats, got {len(players)} players"
        )
    for player in players:
        player.check_game(game)
    wanted = np.full(number, num_random_moves)
    games = after_random_moves(game, game.initial(number, rng), wanted, rng)
    memories = [player.begin(number, rng) for player in players]
    for _ in range(game.max_length):
        rows = np.flatnonzero(game.moves(games).any(1))
        if not len(rows):
            break
        before = copy_rows(games, rows)
        moves = game.moves(before)
        actions = np.zeros(moves.shape, np.int64)
        for seat, player in enumerate(players):
            own = np.flatnonzero(moves[:, seat])
            if len(own):
                actions[own, seat] = choose_rows(
                    player,
                    game,
                    copy_rows(before, own),
                    np.full(len(own), seat),
                    rng,
                    memories[seat],
                    rows[own],
                )
        after = game.play(before, actions, rng)
        games = with_rows(games, rows, after)
        if on_move is not None:
            on_move(before, actions, after)
    return game.returns(games)


def after_random_moves(game: Game, games: State, wanted: np.ndarray, rng: Rng) -> State:
    """The games after up to ``wanted`` [N] moves that nobody has chosen.

    A move that would end a game is not made.
    """
    for i in range(int(wanted.max(initial=0))):
        rows = np.flatnonzero(wanted > i)
        before = copy_rows(games, rows)
        actions = [
            random_legal(game.legal(before, np.full(len(rows), seat)), rng)
            for seat in range(game.num_players)
        ]
        after = game.play(before, np.stack(actions, 1), rng)
        goes_on = game.moves(after).any(1)
        games = with_rows(games, rows[goes_on], copy_rows(after, goes_on))
    return games


def game_of_run(root_dir: str | Path, gin_params: Sequence[str] = ()) -> Game:
    """The game in which a run is evaluated.

    Args:
        root_dir: of the run, which is read and executed: only one that you trust.
        gin_params: override the configuration of the run.

    Raises:
        ConfigError: if there is no run, or it is not in a game.
    """
    with config_files.own_config():
        read_run_config(root_dir, gin_params)
        with config_files.gin_errors(), evaluation_scope():
            env = create_environment(num_parallel_environments=1)
    with env:
        game = getattr(env, "game", None)
        if not isinstance(game, Game):
            raise ConfigError(
                f"{root_dir} is a run in {env.name}, which is no game with rules, such "
                "as that of ppo_tic_tac_toe"
            )
        return game
