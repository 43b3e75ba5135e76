"""The games that have a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.games.board_games import ConnectFour, Nim, TicTacToe
from alf_lite.games.game import Game
from alf_lite.games.open_spiel import OpenSpielGame
from alf_lite.games.small_games import KuhnPoker, rock_paper_scissors

_GAMES: dict[str, Callable[[], Game]] = {
    "connect_four": ConnectFour,
    "kuhn_poker": KuhnPoker,
    "nim": Nim,
    "rock_paper_scissors": rock_paper_scissors,
    "tic_tac_toe": TicTacToe,
}
_OPEN_SPIEL = "open_spiel/"


def create_game(game: Game | str | Any) -> Game:
    """The game of this name, or ``game`` itself.

    Raises:
        ConfigError: if there is none, naming those that there are.
    """
    if isinstance(game, Game):
        return game
    if isinstance(game, str) and game.startswith(_OPEN_SPIEL):
        return OpenSpielGame(game.removeprefix(_OPEN_SPIEL))
    if game not in _GAMES:
        raise ConfigError(
            f"there is no game {game!r}.{did_you_mean(str(game), _GAMES)} There are "
            f"{', '.join(_GAMES)} and {_OPEN_SPIEL}NAME; one of your own is a Game."
        )
    return _GAMES[game]()
