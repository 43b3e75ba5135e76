"""How fast games are, by CPU seconds.

Random moves of our games, those of others, and folded rows; with ``battles``, rows that
PPO acts on and learns from, alone and against snapshots of itself.

python -m benchmarks.moves_per_second [battles]
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.catalogue import create_game
from alf_lite.games.folded_environment import FoldedEnvironment
from alf_lite.games.game import MASK_KEY, copy_rows, random_legal
from alf_lite.games.game_environment import BothSeatsEnvironment, GameEnvironment
from alf_lite.games.opponents import RandomOpponent

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


def ppo_rows_per_second(
    make: Callable[[], GameEnvironment], num_snapshots: int = 0
) -> Callable[[], float]:
    """Of PPO that acts and learns, with all snapshots of its pool in play."""
    env = make()
    config = TrainerConfig(
        num_iterations=1000,
        unroll_length=16,
        epochs=4,
        mini_batch_length=1,
        mini_batch_size=256,
        random_seed=0,
    )
    algorithm: Any = PPOAlgorithm(env=env, config=config, action_mask_key=MASK_KEY)
    if num_snapshots:
        pool = algorithm.opponent_pool
        for slot in range(num_snapshots):
            pool.put(slot, slot, pool.tensors_of(0))
        pool.weights[:] = 1.0
    algorithm.train_iter()

    def measure() -> float:
        rows, start = 0, time.process_time()
        while time.process_time() - start < 1.0:
            algorithm.train_iter()
            rows += config.unroll_length * env.batch_size
        return rows / (time.process_time() - start)

    return measure


def main() -> None:
    """What the arguments say: games, or battles."""
    torch.set_num_threads(1)
    if sys.argv[1:] == ["battles"]:
        show(battles())
        return
    measures = {name: lambda name=name: moves_per_second(name) for name in GAMES}
    measures["folded simple_spread, rows"] = folded_rows_per_second
    show(measures)


def battles(game: str = "tic_tac_toe", rows: int = 64) -> dict[str, Callable]:
    """PPO without opponents, against random moves, and against snapshots of itself."""
    both = functools.partial(BothSeatsEnvironment, rows, game, seed=0)
    battle = functools.partial(BattleEnvironment, rows, game, seed=0)
    bots = functools.partial(battle, opponents=[RandomOpponent()])
    measures = {
        "PPO, both seats, rows": ppo_rows_per_second(both),
        "PPO, random opponent, rows": ppo_rows_per_second(bots),
    }
    for number in (1, 4, 16):
        own = functools.partial(battle, num_snapshots=number)
        measures[f"PPO, {number} snapshots, rows"] = ppo_rows_per_second(own, number)
    return measures


def show(measures: Mapping[str, Callable[[], float]]) -> None:
    """Medians of five turns, with the lowest and the highest."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(5):
        for name, measure in measures.items():
            found[name].append(measure())
    for name, rates in found.items():
        low, median, high = min(rates), statistics.median(rates), max(rates)
        sys.stdout.write(f"{name:30} {median:9.0f}/s  [{low:.0f}, {high:.0f}]\n")


if __name__ == "__main__":
    main()
