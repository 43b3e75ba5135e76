"""The games that have a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.games.board_games import ConnectFour, Nim, TicTacToe
from alf_lite.games.game import Game
from alf_lite.games.open_spiel import OpenSpielGame
from alf_lite.games.pettingzoo import PettingZooGame
from alf_lite.games.small_games import KuhnPoker, rock_paper_scissors

_GAMES: dict[str, Callable[[], Game]] = {
    "connect_four": ConnectFour,
    "kuhn_poker": KuhnPoker,
    "nim": Nim,
    "rock_paper_scissors": rock_paper_scissors,
    "tic_tac_toe": TicTacToe,
}
_LIBRARIES: dict[str, Callable[[str], Game]] = {
    "open_spiel": OpenSpielGame,
    "pettingzoo": PettingZooGame,
}


def create_game(game: Game | str | Any) -> Game:
    """The game of this name, or ``game`` itself.

    Raises:
        ConfigError: if there is none, naming those that there are.
    """
    if isinstance(game, Game):
        return game
    library, _, name = str(game).partition("/")
    if name and library in _LIBRARIES:
        return _LIBRARIES[library](name)
    if game not in _GAMES:
        raise ConfigError(
            f"there is no game {game!r}.{did_you_mean(str(game), _GAMES)} There are "
            f"{', '.join(_GAMES)}, open_spiel/NAME and pettingzoo/NAME; one of your "
            "own is a Game."
        )
    return _GAMES[game]()
