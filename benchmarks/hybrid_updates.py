"""What an update costs whose batch is half recorded steps, beside an online one.

python benchmarks/hybrid_updates.py sac_pendulum dqn_cart_pole --rounds 40

Both algorithms are built from the same conf and have the same total batch. They take
turns in one process; the ratios are of its CPU time, round by round. An update is all
that ``train_from_replay_buffer`` does: drawing, joining, losses, the gradient step.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tools.collector import NumSteps, RandomPolicy, collect
from alf_lite.utils import random_state

_NUM_STEPS = 10_000  # stored on either side
_NUM_WARM_UP_ROUNDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("confs", nargs="*", default=["sac_pendulum", "dqn_cart_pole"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--updates", type=int, default=32, help="of each per round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("conf, updates at once: ms of an online update, of a hybrid one, the ratio")
    for conf in args.confs:
        for at_once in (1, args.updates):
            online, hybrid = measure(conf, at_once, args.updates, args.rounds)
            low, ratio, high = np.quantile(hybrid / online, (0.25, 0.5, 0.75))
            print(
                f"{conf}, {at_once}: {np.median(online):.2f}, {np.median(hybrid):.2f}, "
                f"{ratio:.3f} (middle half {low:.3f} to {high:.3f})"
            )


def measure(
    conf: str, updates_at_once: int, num_updates: int, num_rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """CPU milliseconds of one update in every round, online and hybrid.

    Args:
        conf: of an off-policy algorithm.
        updates_at_once: for which windows are drawn together
            (``TrainerConfig.num_updates_per_train_iter``).
        num_updates: of each algorithm in a round.
        num_rounds: that are measured.
    """
    config_files.reset()
    config_files.parse_config(
        conf, [f"TrainerConfig.num_updates_per_train_iter = {updates_at_once}"]
    )
    random_state.seed_everything(0)
    config = TrainerConfig()
    algorithms = [build(config), build(config)]
    algorithms[1].add_offline_replay_buffer(recorded_steps())
    num_calls = max(1, num_updates // updates_at_once)
    times = np.zeros((num_rounds + _NUM_WARM_UP_ROUNDS, 2))
    for round_index, row in enumerate(times):
        # Each begins every other round.
        for index in (0, 1) if round_index % 2 else (1, 0):
            row[index] = seconds(algorithms[index], num_calls)
    times *= 1e3 / (num_calls * updates_at_once)
    for algorithm in algorithms:
        algorithm.finish_train()
    return times[_NUM_WARM_UP_ROUNDS:, 0], times[_NUM_WARM_UP_ROUNDS:, 1]


def build(config: TrainerConfig) -> RLAlgorithm:
    """An algorithm with steps of its own to train on."""
    algorithm = create_algorithm(config, environment())
    algorithm.setup_training()
    algorithm.unroll(_NUM_STEPS)
    algorithm.set_training(True)
    return algorithm


def environment() -> Environment:
    return create_environment(seed=0)


def recorded_steps() -> ReplayBuffer:
    env = environment()
    buffer = collect(env, RandomPolicy(env), NumSteps(_NUM_STEPS), seed=1)
    env.close()
    return buffer


def seconds(algorithm: RLAlgorithm, num_calls: int) -> float:
    """CPU time of this process."""
    begin = time.process_time()
    for _ in range(num_calls):
        algorithm.train_from_replay_buffer()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
