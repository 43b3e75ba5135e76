"""Games in the terminal: of a person or another policy against that of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from alf_lite.algorithms.acting import check_can_draw
from alf_lite.errors import ConfigError
from alf_lite.games.game import Game, Rng, State
from alf_lite.games.matches import game_of_run, play_games
from alf_lite.games.opponents import Opponent
from alf_lite.games.policy_opponents import RunOpponent
from alf_lite.tools.arena import players_of
from alf_lite.utils.game_results import SeatRecord, result_lines, seat_records

_QUIT = ("q", "quit", "exit")


class PersonLeftError(Exception):
    """A person has had enough."""


class Person(Opponent):
    """Somebody who reads the board and types moves.

    Args:
        ask: shows a text and returns what is typed; EOFError at the end of input.
        show: prints a line.
    """

    name = "you"

    def __init__(
        self, ask: Callable[[str], str] = input, show: Callable[[str], None] = print
    ) -> None:
        self._ask = ask
        self.show = show

    def act(self, game: Game, state: State, seats: np.ndarray, rng: Rng) -> np.ndarray:
        return np.array(
            [
                self._choose(game, state, row, seat)
                for row, seat in enumerate(seats.tolist())
            ]
        )

    def _choose(self, game: Game, state: State, row: int, seat: int) -> int:
        """One move; asks again until it is a legal one.

        Raises:
            PersonLeftError: if the person types q, or there is no more input.
        """
        self.show(f"\n{game.describe_to(state, row, seat)}")
        legal = np.flatnonzero(game.legal(state, np.full(len(state[0]), seat))[row])
        names = {
            action: game.action_name(state, row, seat, action)
            for action in legal.tolist()
        }
        listed = [
            str(action) if name == str(action) else f"{action} ({name})"
            for action, name in names.items()
        ]
        while True:
            try:
                typed = self._ask(f"Your move, {', '.join(listed)}; q quits: ").strip()
            except EOFError:
                self.show("")
                raise PersonLeftError from None
            if typed.lower() in _QUIT:
                raise PersonLeftError
            for action, name in names.items():
                if typed in (str(action), name):
                    return action
            self.show(f"{typed!r} is not one of the legal moves.")


def show_games(
    root_dir: str | Path,
    num_games: int,
    *,
    against: str | None = None,
    checkpoint: str | int = "latest",
    seat: int | None = None,
    sample: bool = False,
    device: str | None = None,
    seed: int = 0,
    gin_params: Sequence[str] = (),
) -> tuple[SeatRecord, ...]:
    """Plays against the policy of a run, and shows the games in the terminal.

    Args:
        root_dir: of the run, which is read and executed: only one that you trust.
        num_games: at most.
        against: who plays, see :func:`players_of`; None: a person, who types moves.
        checkpoint: "latest", "best" or a step.
        seat: of the other player, see :func:`play_series`.
        sample: the policy draws its actions in place of taking the best.
        device: of the networks.
        seed: of all that is random.
        gin_params: override the configuration of the run.

    Raises:
        ConfigError: if the run is not in a game, there is no such seat or player, or
            the policy has nothing to draw from.
    """
    game = game_of_run(root_dir, gin_params)
    _check_seat(game, seat)  # before the policy is loaded
    player = Person() if against is None else players_of(against)[0]
    policy = RunOpponent(
        str(root_dir), checkpoint, deterministic=not sample, device=device
    )
    if sample:
        check_can_draw(policy.policy.algorithm, "sample")
    return play_series(game, player, policy, num_games, seat=seat, seed=seed)


def play_series(
    game: Game,
    player: Opponent,
    policy: Opponent,
    num_games: int,
    *,
    seat: int | None = None,
    seed: int = 0,
    show: Callable[[str], None] = print,
) -> tuple[SeatRecord, ...]:
    """Games until there are enough, or the person has had enough.

    Args:
        game: to play.
        player: in one seat. A :class:`Person` sees what the seat may know, and whoever
            watches others sees all.
        policy: in all other seats.
        num_games: at most.
        seat: of ``player``, from 0 on; None: one after the other.
        seed: of all that is random.
        show: prints a line.

    Returns:
        Games won, drawn and lost by ``player`` in each seat.

    Raises:
        ConfigError: if there is no such seat, or one of them cannot play the game.
    """
    _check_seat(game, seat)
    rng = np.random.default_rng(seed)
    games: list[tuple[float, float, float]] = []
    try:
        for number in range(num_games):
            own = number % game.num_players if seat is None else seat
            who = f"{player.name} in seat {own} of {game.num_players}"
            show(f"\n{game.name}, game {number + 1}: {who}, against {policy.name}")
            games.append((0, own, _play(game, player, policy, own, rng, show)))
    except PersonLeftError:
        show("A game that was not finished does not count.")
    records = seat_records(np.array(games).reshape(-1, 3), lambda _: policy.name)
    for line in result_lines(records):
        show(f"{player.name} against {line}")
    return records


def _check_seat(game: Game, seat: int | None) -> None:
    if seat is not None and seat not in range(game.num_players):
        raise ConfigError(
            f"seat must be from 0 to {game.num_players - 1} in {game.name}, got {seat}"
        )


def _play(
    game: Game,
    player: Opponent,
    policy: Opponent,
    own: int,
    rng: Rng,
    show: Callable[[str], None],
) -> float:
    """What the player wins in one game."""
    players = [player if s == own else policy for s in range(game.num_players)]
    is_watched = not isinstance(player, Person)

    def tell(before: State, actions: np.ndarray, after: State) -> None:
        for seat in np.flatnonzero(game.moves(before)[0]).tolist():
            # To who plays, moves may be a secret where something is hidden
            if is_watched or (seat != own and game.is_board_game):
                name = game.action_name(before, 0, seat, int(actions[0, seat]))
                show(f"{players[seat].name} plays {name}")
        if is_watched or not game.moves(after).any():
            show(f"\n{game.describe(after, 0)}")

    won = float(play_games(game, players, 1, rng, on_move=tell)[0, own])
    result = "a draw" if won == 0 else f"{player.name}: {'won' if won > 0 else 'lost'}"
    show(result if abs(won) in (0, 1) else f"{result} {abs(won):g}")
    return won
