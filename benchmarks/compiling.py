"""Whether ``TrainerConfig.compile`` pays on a CPU, and after how long.

    python benchmarks/compiling.py                       # all works
    python benchmarks/compiling.py ppo a2c --rounds 20

Two runs of one conf, of which one is compiled, take turns in one process; nothing is
summarised. Ratios are of its CPU time, round by round. What compiling takes is what the
first iterations took beyond later ones, in CPU seconds of all of torch's threads and
compilers; the last column is after how many iterations it would have paid.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import algorithm_costs
import measuring
import numpy as np
import torch

from alf_lite.algorithms.rl_algorithm import RLAlgorithm

_NUM_FIRST = 3  # iterations in which code is compiled
_NUM_WARM_UP_ROUNDS = 2


class Work(NamedTuple):
    """What is trained."""

    conf: str  # a file beside this one, or one that alf_lite ships
    bindings: tuple[str, ...] = ()


def _env(name: str) -> str:
    return f"create_environment.env_name = '{name}'"


def _torch_environments(number: int) -> Work:
    changes = (
        f"create_environment.num_parallel_environments = {number}",
        "TrainerConfig.mini_batch_size = 4096",
    )
    return Work("torch_ppo_cart_pole", changes)


_CART_POLE = _env("CartPole-v1")
_LAYERS = tuple(
    f"{network}.fc_layer_params = (256, 256)"
    for network in ("ActorDistributionNetwork", "ValueNetwork")
)
WORKS = {
    "ppo": Work("ppo_cartpole.gin", (_CART_POLE,)),
    "ppo_large": Work(
        "ppo_cartpole.gin",
        (_CART_POLE, "NUM_ENVIRONMENTS = 16", "MINI_BATCH_SIZE = 512", *_LAYERS),
    ),
    "ppo_half_cheetah": Work("ppo_half_cheetah.gin", (_env("HalfCheetah-v5"),)),
    "images": Work(
        "ppo_cartpole.gin",
        (
            _env("CountedFrames-v0"),
            *(
                f"{network}.{binding}"
                for network in ("ActorDistributionNetwork", "ValueNetwork")
                for binding in (
                    "encoding_network_ctor = @EncodingNetwork",
                    "fc_layer_params = ()",
                )
            ),
            "EncodingNetwork.fc_layer_params = (512,)",
            "TrainerConfig.unroll_length = 32",
            "MINI_BATCH_SIZE = 64",
        ),
    ),
    "a2c": Work("a2c_cartpole.gin", (_CART_POLE,)),
    "lstm": Work("ppo_recurrent_cart_pole"),
    "torch_1024": _torch_environments(1024),
    "torch_4096": _torch_environments(4096),
    "torch_16384": _torch_environments(16384),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", help="all of them, unless named")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    args = parser.parse_args()
    if unknown := set(args.works) - set(WORKS):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(WORKS)}")
    torch.set_num_threads(1)
    measuring.register_counted_environments()
    print("| work | ms | compiled | times as fast | compiling, s | pays after |")
    print("|---|---|---|---|---|---|")
    for name in args.works or WORKS:
        torch.compiler.reset()
        print(row(name, *measure(WORKS[name], args.rounds, args.seconds)), flush=True)


def row(name: str, times: np.ndarray, compile_seconds: float) -> str:
    """Of the table; ``times`` are ms [rounds, 2], as they are and compiled."""
    plain, compiled = np.median(times, axis=0)
    low, ratio, high = np.quantile(times[:, 0] / times[:, 1], (0.25, 0.5, 0.75))
    saved = (plain - compiled) / 1e3
    pays = f"{compile_seconds / saved:,.0f} iterations" if saved > 0 else "never"
    return (
        f"| {name} | {plain:.1f} | {compiled:.1f} | {ratio:.2f} ({low:.2f} to "
        f"{high:.2f}) | {compile_seconds:.0f} | {pays} |"
    )


def measure(work: Work, num_rounds: int, seconds: float) -> tuple[np.ndarray, float]:
    """CPU milliseconds of iterations [rounds, 2], and the seconds of compiling."""
    plain = build(work, compiles=False)
    begin = cpu_seconds()
    compiled = build(work, compiles=True)
    for _ in range(_NUM_FIRST):
        compiled.train_iter()
    compile_seconds = cpu_seconds() - begin
    number = algorithm_costs.iterations_in(seconds, plain)
    times = np.zeros((num_rounds + _NUM_WARM_UP_ROUNDS, 2))
    for i, turn in enumerate(times):
        for index in (0, 1) if i % 2 else (1, 0):
            algorithm = (plain, compiled)[index]
            turn[index] = algorithm_costs.cpu_milliseconds(algorithm, number)
    for algorithm in (plain, compiled):
        algorithm.finish_train()
    times = times[_NUM_WARM_UP_ROUNDS:]
    compile_seconds -= (_NUM_FIRST + 1) * float(np.median(times[:, 1])) / 1e3
    return times, max(0.0, compile_seconds)


def build(work: Work, *, compiles: bool) -> RLAlgorithm:
    """An algorithm that has made its first updates."""
    own = os.path.join(os.path.dirname(__file__), work.conf)
    conf = own if os.path.exists(own) else work.conf
    bindings = (
        "TrainerConfig.num_iterations = 1_000_000",
        "TrainerConfig.num_env_steps = 0",
        "TrainerConfig.random_seed = 0",
        f"TrainerConfig.compile = {compiles}",
    )
    return algorithm_costs.build(conf, (*work.bindings, *bindings))


def cpu_seconds() -> float:
    """Of this process and of the compilers that it has started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
