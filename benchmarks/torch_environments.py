"""CartPole in torch beside gymnasium's vector of numpy, stepped by one process.

    python benchmarks/torch_environments.py
    python benchmarks/torch_environments.py --num_envs 1024 --turns 40 --parts unroll

* ``step``: environments alone, from an action to the time step that agents see.
* ``unroll``: 32 steps with the policy of PPO, two layers of 64 units, as they are kept
  for training.
* ``train``: an iteration of PPO, 4 passes in mini-batches of 4096 steps (with fewer
  environments: of the whole unroll).

Variants: ``numpy``, gymnasium's own vector CartPole; ``torch``, ours without
compilation; ``compiled``, ours with ``TrainerConfig.compile``; ``numpy_compiled``, the
same setting with gymnasium's. The variants take turns. Microseconds of the process's
own CPU time per step of all environments, the least and the median of the turns, and
environment steps per CPU second by the least.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

# isort: off
import measuring  # noqa: F401  first: it sets the number of threads
# isort: on

import torch

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.environments.torch_vector_env import TorchVectorEnv

UNROLL_LENGTH = 32
VARIANTS = ("numpy", "torch", "compiled", "numpy_compiled")
PARTS = ("step", "unroll", "train")


def make_environment(variant: str, num_envs: int) -> Environment:
    if variant.startswith("numpy"):
        return create_environment(
            "CartPole-v1", num_envs, 0, vectorization_mode="native"
        )
    return create_environment("torch/CartPole", num_envs, 0)


def make_step(variant: str, num_envs: int) -> tuple[Callable[[], Any], int] | None:
    """What takes one step with given actions, and how many steps that is."""
    env = make_environment(variant, num_envs)
    env.reset(0)
    actions = torch.randint(0, 2, (num_envs,))
    if not variant.endswith("compiled"):
        return lambda: env.step(actions), 1
    if not isinstance(env, TorchVectorEnv):
        return None
    compiled = torch.compile(env.next_step)

    def steps() -> None:
        state, time_step = env.state, env.current_time_step
        with torch.inference_mode(), contextlib.ExitStack() as stack:
            for t, random in enumerate(env.draw(UNROLL_LENGTH)):
                state, time_step = compiled(state, actions, random)
                if t == 2:
                    stack.enter_context(
                        torch.compiler.set_stance(skip_guard_eval_unsafe=True)
                    )
        env.go_on_from(state, time_step, actions)

    return steps, UNROLL_LENGTH


def make_algorithm(variant: str, num_envs: int) -> Any:
    config = TrainerConfig(
        algorithm_ctor=PPOAlgorithm,
        num_iterations=1_000_000,
        unroll_length=UNROLL_LENGTH,
        epochs=4,
        mini_batch_length=1,
        mini_batch_size=min(4096, num_envs * UNROLL_LENGTH),
        random_seed=0,
        compile=variant.endswith("compiled"),
    )
    torch.manual_seed(0)
    algorithm = create_algorithm(config, make_environment(variant, num_envs))
    algorithm.setup_training()
    return algorithm


def make_unroll(variant: str, num_envs: int) -> tuple[Callable[[], Any], int]:
    algorithm = make_algorithm(variant, num_envs)
    return lambda: algorithm.unroll(UNROLL_LENGTH), UNROLL_LENGTH


def make_train(variant: str, num_envs: int) -> tuple[Callable[[], Any], int]:
    return make_algorithm(variant, num_envs).train_iter, UNROLL_LENGTH


MAKE: dict[str, Callable[[str, int], Any]] = {
    "step": make_step,
    "unroll": make_unroll,
    "train": make_train,
}


def measure(part: str, variants: list[str], num_envs: int, turns: int) -> None:
    """Prints a row for each variant."""
    calls, compile_seconds = {}, {}
    for variant in variants:
        made = MAKE[part](variant, num_envs)
        if made is None:
            continue
        begin = time.perf_counter()
        made[0]()
        compile_seconds[variant] = time.perf_counter() - begin
        made[0]()
        calls[variant] = made
    times: dict[str, list[float]] = {variant: [] for variant in calls}
    for _ in range(turns):
        for variant, (call, num_steps) in calls.items():
            repeats = 1 if part == "train" else max(1, 64 // num_steps)
            begin = time.process_time()
            for _ in range(repeats):
                call()
            seconds = time.process_time() - begin
            times[variant].append(seconds / repeats / num_steps * 1e6)
    base = min(next(iter(times.values())))
    for variant, values in times.items():
        least = min(values)
        print(
            f"{part:7s} {num_envs:5d} {variant:15s} {least:8.0f} us "
            f"(median {statistics.median(values):8.0f}) "
            f"{num_envs / least:7.3f} M steps/s  x {base / least:.2f}   "
            f"first call {compile_seconds[variant]:.0f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_envs", nargs="+", type=int, default=[64, 1024, 4096])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS)
    )
    parser.add_argument("--turns", type=int, default=30)
    arguments = parser.parse_args()
    for part in arguments.parts:
        for num_envs in arguments.num_envs:
            torch.compiler.reset()
            measure(part, arguments.variants, num_envs, arguments.turns)


if __name__ == "__main__":
    main()
