"""What an iteration of an algorithm costs beside the algorithm that it extends.

python benchmarks/algorithm_costs.py                    # all pairs
python benchmarks/algorithm_costs.py rnd qr_sac --rounds 20

Both are built from the same conf, which gives them the same environments, networks,
batches and number of updates; what makes the one the other is listed in ``PAIRS``. They
take turns in one process; the ratios are of its CPU time, round by round.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments.creation import create_environment
from alf_lite.utils import random_state

_NUM_WARM_UP_ROUNDS = 2


class Pair(NamedTuple):
    """What makes an algorithm of another one."""

    conf: str  # of the base
    changes: tuple[str, ...]  # bindings
    both: tuple[str, ...] = ()  # bindings of the base, too


def _algorithm(name: str, *changes: str) -> tuple[str, ...]:
    ctor = f"TrainerConfig.algorithm_ctor = @{name}"
    return (ctor, f"{name}.optimizer = @Adam()", *changes)


def _agent(algorithm: str, *changes: str) -> tuple[str, ...]:
    ctor = "TrainerConfig.algorithm_ctor = @Agent"
    return (ctor, f"Agent.rl_algorithm_ctor = @{algorithm}", *changes)


def _reward(algorithm: str, name: str) -> tuple[str, ...]:
    rewards = f'Agent.intrinsic_rewards = {{"{name.lower()}": @{name}Reward}}'
    return _agent(algorithm, rewards, f"{name}Reward.optimizer = @Adam()")


_PPO, _SAC, _DQN = "ppo_cart_pole", "sac_pendulum", "dqn_cart_pole"

PAIRS = {
    "agent_ppo": Pair(_PPO, _agent("PPOAlgorithm")),
    "agent_sac": Pair(_SAC, _agent("SacAlgorithm")),
    "rnd": Pair(_PPO, _reward("PPOAlgorithm", "Rnd")),
    "rnd_whole": Pair(
        _PPO,
        (*_reward("PPOAlgorithm", "Rnd"), "RndReward.predictor_update_period = 1"),
    ),
    "rnd_sac": Pair(_SAC, _reward("SacAlgorithm", "Rnd")),
    "icm": Pair(_PPO, _reward("PPOAlgorithm", "Icm")),
    "diayn": Pair(
        _PPO,
        (
            *_reward("PPOAlgorithm", "Diayn"),
            "Agent.goal_generator_ctor = @RandomGoal",
            "RandomGoal.num_categories = 8",
        ),
    ),
    "entropy_target": Pair(
        "ac_cart_pole",
        _agent(
            "ActorCriticAlgorithm",
            "Agent.entropy_target_ctor = @EntropyTarget",
            "Agent.optimizer = @Adam()",
            "ActorCriticAlgorithm.optimizer = None",
            "ActorCriticAlgorithm.entropy_regularization = 0.0",
            "EntropyTarget.target_entropy = 0.5",
        ),
    ),
    "trac": Pair("ac_cart_pole", ("ActorCriticAlgorithm.max_policy_kl = 0.01",)),
    "desired_kl": Pair("ppo_pendulum", ("PPOAlgorithm.desired_kl = 0.02",)),
    "ppg": Pair(_PPO, _algorithm("PPGAlgorithm")),
    "prioritized": Pair(_DQN, ("TrainerConfig.priority_replay = True",)),
    "dueling": Pair(_DQN, ("QNetwork.dueling = True",)),
    "noisy": Pair(_DQN, ("QNetwork.noise_std = 0.5",)),
    "c51": Pair(
        _DQN,
        (
            "DqnAlgorithm.return_model = @CategoricalHead()",
            "CategoricalHead.v_min = 0.0",
            "CategoricalHead.v_max = 100.0",
        ),
    ),
    "qr_dqn": Pair(_DQN, ("DqnAlgorithm.return_model = @QuantileHead()",)),
    "munchausen": Pair(_DQN, _algorithm("MunchausenDqnAlgorithm")),
    "sarsa": Pair(
        _DQN, _algorithm("SarsaAlgorithm"), ("TrainerConfig.mini_batch_length = 7",)
    ),
    "qr_sac": Pair(_SAC, ("SacAlgorithm.return_model = @QuantileHead()",)),
    "redq": Pair(
        _SAC,
        _algorithm("RedqAlgorithm"),
        ("TrainerConfig.num_updates_per_train_iter = 20",),
    ),
    "droq": Pair(
        _SAC, ("CriticNetwork.dropout = 0.01", "CriticNetwork.layer_norm = True")
    ),
    "crossq": Pair(_SAC, _algorithm("CrossqAlgorithm")),
    "oac": Pair(_SAC, _algorithm("OacAlgorithm")),
    "taac": Pair(
        _SAC, _algorithm("TaacAlgorithm"), ("TrainerConfig.mini_batch_length = 4",)
    ),
    "action_repeat": Pair(
        _SAC,
        (
            "TrainerConfig.algorithm_ctor = @DynamicActionRepeatAgent",
            "DynamicActionRepeatAgent.rl_algorithm_ctor = @SacAlgorithm",
            "DynamicActionRepeatAgent.max_repeats = 3",
            "TrainerConfig.mini_batch_length = 4",
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="*", help="all of them, unless named")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.2, help="of one turn")
    args = parser.parse_args()
    unknown = set(args.pairs) - set(PAIRS)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(PAIRS)}")
    torch.set_num_threads(1)
    print("pair, base: ms of its iteration, of the base's, the ratio")
    for name in args.pairs or PAIRS:
        other, base = measure(PAIRS[name], args.rounds, args.seconds)
        low, ratio, high = np.quantile(other / base, (0.25, 0.5, 0.75))
        print(
            f"{name}, {PAIRS[name].conf}: {np.median(other):.2f}, "
            f"{np.median(base):.2f}, {ratio:.2f} (middle half {low:.2f} to {high:.2f})",
            flush=True,
        )


def measure(
    pair: Pair, num_rounds: int, seconds: float
) -> tuple[np.ndarray, np.ndarray]:
    """CPU milliseconds of one iteration in every round, of the pair and of its base."""
    algorithms = [
        build(pair.conf, pair.both + changes) for changes in (pair.changes, ())
    ]
    num_iterations = [iterations_in(seconds, algorithm) for algorithm in algorithms]
    times = np.zeros((num_rounds + _NUM_WARM_UP_ROUNDS, 2))
    for round_index, row in enumerate(times):
        # Each begins every other round.
        for index in (0, 1) if round_index % 2 else (1, 0):
            row[index] = cpu_milliseconds(algorithms[index], num_iterations[index])
    for algorithm in algorithms:
        algorithm.finish_train()
    return times[_NUM_WARM_UP_ROUNDS:, 0], times[_NUM_WARM_UP_ROUNDS:, 1]


def build(conf: str, bindings: tuple[str, ...]) -> RLAlgorithm:
    """An algorithm that has begun to train."""
    config_files.reset()
    config_files.parse_config(conf, list(bindings))
    random_state.seed_everything(0)
    algorithm = create_algorithm(TrainerConfig(), create_environment(seed=0))
    algorithm.setup_training()
    while algorithm.num_updates == 0:
        algorithm.train_iter()
    return algorithm


def iterations_in(seconds: float, algorithm: RLAlgorithm) -> int:
    return max(1, round(1e3 * seconds / cpu_milliseconds(algorithm, 3)))


def cpu_milliseconds(algorithm: RLAlgorithm, num_iterations: int) -> float:
    """Of one iteration: unroll, updates and metrics."""
    begin = time.process_time()
    for _ in range(num_iterations):
        algorithm.train_iter()
    return 1e3 * (time.process_time() - begin) / num_iterations


if __name__ == "__main__":
    main()
