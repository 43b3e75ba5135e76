"""How the cost of one call grows with what it works on.

    python benchmarks/growth.py
    python benchmarks/growth.py --kinds rows n --seconds 1

* ``rows``: steps in a replay buffer of 8 environments.
* ``environments`` of a buffer of a million steps.
* ``leaves`` of a stored step; ``transitions`` makes training data of 256 windows of 2.
* ``length`` of 32 windows.
* ``n`` of n-step returns: transitions of 256 windows of n + 1 steps.
* ``observations``, ``actions``: leaves of four numbers, of three choices; an iteration
  of PPO, 32 steps of 8 environments.
* ``parameters``: tensors of a Q network with hidden layers of 64 units; an iteration of
  DQN, one step and one update of 128 windows.

One process with one thread; microseconds of its own CPU time per call, the median of
several windows of time.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

# isort: off
import measuring  # noqa: F401  first: it sets the number of threads
# isort: on

import gymnasium as gym
import torch

import alf_lite
from alf_lite.algorithms.parts.transitions import to_transitions
from alf_lite.data_structures import TimeStep
from alf_lite.networks.value_networks import QNetwork
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

Case = tuple[str, Callable[[], Any]]

NUM_WINDOWS = 5  # of time, in each measurement
SIZES = {
    "rows": (10_000, 100_000, 1_000_000, 10_000_000),
    "environments": (1, 64, 1024, 16_384),
    "leaves": (1, 10, 100),
    "length": (1, 8, 64, 1024),
    "n": (1, 2, 5, 10, 20, 40),
    "observations": (1, 10, 100),
    "actions": (1, 10, 100),
    "parameters": (4, 18, 66, 258),
}


def make_buffer(
    num_environments: int,
    num_rows: int,
    num_leaves: int = 4,
    *,
    priorities: bool = False,
) -> tuple[ReplayBuffer, dict[str, torch.Tensor]]:
    """A full buffer, and the next step for it."""
    spec = {f"leaf_{i}": TensorSpec(()) for i in range(num_leaves)}
    buffer = ReplayBuffer(
        spec, num_environments, num_rows // num_environments, priorities
    )
    length = min(buffer.max_length, max(1, 100_000 // num_environments))
    steps = {name: torch.rand(length, num_environments) for name in spec}
    for _ in range(-(-buffer.max_length // length)):
        buffer.add_batch(steps, time_major=True)
    return buffer, {name: leaf[0] for name, leaf in steps.items()}


def arrays(step: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: leaf.numpy() for name, leaf in step.items()}


def rows(size: int) -> Iterator[Case]:
    buffer, step = make_buffer(8, size)
    yield "draw 256", functools.partial(buffer.get_batch, 256, 1)
    yield "add a step", functools.partial(buffer.add_batch, arrays(step))
    buffer, _ = make_buffer(8, size, priorities=True)

    def draw_and_update() -> None:
        _, info = buffer.get_batch(256, 1)
        buffer.update_priority(info.env_ids, info.positions, torch.rand(256))

    yield "draw 256 by priority, update", draw_and_update


def environments(size: int) -> Iterator[Case]:
    buffer, step = make_buffer(size, 2**20)
    yield "draw 256", functools.partial(buffer.get_batch, 256, 1)
    yield "add a step", functools.partial(buffer.add_batch, arrays(step))


def leaves(size: int) -> Iterator[Case]:
    buffer, step = make_buffer(8, 100_000, size)
    yield "draw 256", functools.partial(buffer.get_batch, 256, 1)
    yield "add arrays", functools.partial(buffer.add_batch, arrays(step))
    yield "add tensors", functools.partial(buffer.add_batch, step)
    observation = {f"leaf_{i}": torch.rand(256, 2) for i in range(size)}
    yield (
        "transitions",
        functools.partial(to_transitions, windows(2, observation), 1, 0.9),
    )


def length(size: int) -> Iterator[Case]:
    buffer, _ = make_buffer(8, 1_000_000)
    yield "draw 32 windows", functools.partial(buffer.get_batch, 32, size)


def n(size: int) -> Iterator[Case]:
    time_step = windows(size + 1, torch.rand(256, size + 1, 4))
    yield "transitions", functools.partial(to_transitions, time_step, size, 0.9)


def windows(length: int, observation: Any) -> TimeStep:
    """256 windows [B, T, ...] of episodes of some 50 steps."""
    step_type = BoundedTensorSpec((), torch.int32, 0, 50).sample((256, length))
    return TimeStep(
        step_type=step_type.clamp(max=2).mul_(step_type < 3).int(),
        reward=torch.rand(256, length),
        discount=torch.ones(256, length),
        observation=observation,
        prev_action=torch.zeros(256, length, dtype=torch.int64),
    )


class ManyLeaves(gym.Env):
    """Random observations, no rewards, episodes without end."""

    def __init__(self, num_observations: int, num_actions: int) -> None:
        box, choice = gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(3)
        self.observation_space = _dict_of(box, num_observations)
        self.action_space = _dict_of(choice, num_actions)
        self._observation = self.observation_space.sample()

    def reset(self, **_: Any) -> tuple[Any, dict]:
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self._observation, 0.0, False, False, {}


def _dict_of(space: gym.Space, count: int) -> gym.Space:
    return gym.spaces.Dict({f"leaf_{i}": space for i in range(count)})


def ppo(num_observations: int, num_actions: int) -> Case:
    algorithm = alf_lite.PPOAlgorithm(
        env=alf_lite.create_environment(
            env_ctor=functools.partial(ManyLeaves, num_observations, num_actions),
            num_parallel_environments=8,
        ),
        config=alf_lite.TrainerConfig(num_env_steps=10**9, unroll_length=32),
    )
    for _ in range(3):
        algorithm.train_iter()
    return "iteration of PPO", algorithm.train_iter


def observations(size: int) -> Iterator[Case]:
    yield ppo(size, 1)


def actions(size: int) -> Iterator[Case]:
    yield ppo(1, size)


def parameters(size: int) -> Iterator[Case]:
    hidden = (64,) * (size // 2 - 1)
    algorithm = alf_lite.DqnAlgorithm(
        env=alf_lite.create_environment("CartPole-v1", num_parallel_environments=1),
        q_network_ctor=functools.partial(QNetwork, fc_layer_params=hidden),
        config=alf_lite.TrainerConfig(
            num_env_steps=10**9,
            unroll_length=1,
            initial_collect_steps=200,
            mini_batch_size=128,
            num_updates_per_train_iter=1,
        ),
    )
    for _ in range(220):
        algorithm.train_iter()
    yield "iteration of DQN", algorithm.train_iter


CASES: dict[str, Callable[[int], Iterator[Case]]] = {
    "rows": rows,
    "environments": environments,
    "leaves": leaves,
    "length": length,
    "n": n,
    "observations": observations,
    "actions": actions,
    "parameters": parameters,
}


def microseconds(call: Callable[[], Any], seconds: float) -> float:
    """CPU time of a call, the median of several windows of time."""
    call()
    begin, num_calls = time.process_time(), 0
    while time.process_time() - begin < seconds / NUM_WINDOWS:
        call()
        num_calls += 1
    times = []
    for _ in range(NUM_WINDOWS):
        begin = time.process_time()
        for _ in range(num_calls):
            call()
        times.append((time.process_time() - begin) / num_calls)
    return statistics.median(times) * 1e6


def table(what: str, costs: dict[str, dict[int, float]]) -> str:
    """In markdown: one row per kind of call, one column per size."""
    sizes = sorted({size for row in costs.values() for size in row})
    lines = [
        f"| {what} | {' | '.join(f'{size:,}' for size in sizes)} |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for name, row in costs.items():
        cells = [f"{row[size]:,.0f}" if size in row else "-" for size in sizes]
        lines.append(f"| {name}, µs | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--seconds", type=float, default=0.5, help="per call measured")
    parser.add_argument("--most", type=int, help="leaves larger sizes out")
    options = parser.parse_args()
    for what in options.kinds:
        costs: dict[str, dict[int, float]] = {}
        for size in SIZES[what]:
            if options.most is not None and size > options.most:
                continue
            for name, call in CASES[what](size):
                cost = microseconds(call, options.seconds)
                costs.setdefault(name, {})[size] = cost
        if costs:
            print(table(what, costs), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
