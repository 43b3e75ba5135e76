"""Random moves per CPU second: our games, those of others, and folded rows.

python -m benchmarks.moves_per_second
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import torch

from alf_lite.games.catalogue import create_game
from alf_lite.games.folded_environment import FoldedEnvironment
from alf_lite.games.game import copy_rows, random_legal

GAMES = (
    *("tic_tac_toe", "open_spiel/tic_tac_toe", "pettingzoo/tictactoe_v3"),
    *("connect_four", "open_spiel/connect_four", "pettingzoo/connect_four_v3"),
)


def moves_per_second(name: str, number: int = 64) -> float:
    """Of ``number`` games side by side, with masks and what the mover sees."""
    game, rng = create_game(name), np.random.default_rng(0)
    num_moves, start = 0, time.process_time()
    while time.process_time() - start < 0.5:
        state = game.initial(number, rng)
        while len(rows := np.flatnonzero((moves := game.moves(state)).any(1))):
            state, seats = copy_rows(state, rows), moves[rows].argmax(1)
            game.observe(state, seats)
            chosen = random_legal(game.legal(state, seats), rng)
            actions = np.repeat(chosen[:, None], game.num_players, 1)
            state = game.play(state, actions, rng)
            num_moves += len(rows)
    return num_moves / (time.process_time() - start)


def folded_rows_per_second(rows: int = 48) -> float:
    """Of MPE's simple spread, three agents in a game."""
    from mpe2 import simple_spread_v3

    env = FoldedEnvironment(rows, simple_spread_v3.parallel_env, seed=0)
    env.reset()
    steps, start = 0, time.process_time()
    while time.process_time() - start < 0.5:
        env.step(torch.randint(5, (rows,)))
        steps += 1
    return steps * rows / (time.process_time() - start)


def main() -> None:
    """Medians of five turns, with the lowest and the highest."""
    measures = {name: lambda name=name: moves_per_second(name) for name in GAMES}
    measures["folded simple_spread, rows"] = folded_rows_per_second
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(5):
        for name, measure in measures.items():
            found[name].append(measure())
    for name, rates in found.items():
        low, median, high = min(rates), statistics.median(rates), max(rates)
        sys.stdout.write(f"{name:30} {median:9.0f}/s  [{low:.0f}, {high:.0f}]\n")


if __name__ == "__main__":
    main()
