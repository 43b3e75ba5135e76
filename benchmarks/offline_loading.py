"""How fast recorded steps are loaded, beside reading the file and single steps.

python benchmarks/offline_loading.py --steps 1000000 --directory /tmp
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alf_lite import nest
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.step_assembly import experience_spec
from alf_lite.environments.specs_only_environment import (
    SpecsOnlyEnvironment,
    box_space,
)
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer

_READ_BYTES = 2**22
_SINGLE_STEPS = 5_000
_ALF = "load ALF's file"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="on the disk to measure")
    args = parser.parse_args()
    env = SpecsOnlyEnvironment(box_space((17,)), box_space((6,), -1.0, 1.0))
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        measure(Path(directory), env, args.steps, args.rounds)


def measure(directory: Path, env: Any, num_steps: int, rounds: int) -> None:
    steps = recorded_steps(env, num_steps)
    own, alf, npz = (directory / name for name in ("own.pt", "alf", "episodes.npz"))
    write_own(steps, own)
    write_alf(steps, alf)
    write_npz(steps, npz)

    def load(path: Path, **options: bool) -> ReplayBuffer:
        return load_replay_buffer(str(path), env, **options)

    def map_and_draw(**options: bool) -> None:
        load(own, memory_map=True, **options).get_batch(256, 2)

    megabytes = own.stat().st_size / 1e6
    print(f"{num_steps} steps, {megabytes:.0f} MB; best of {rounds}, file caches warm")
    reading = best(lambda: read_file(own), rounds)
    seconds = {
        "read the own file": reading,
        "load the own file": best(lambda: load(own), rounds),
        "  unverified": best(lambda: load(own, verify=False), rounds),
        "map the own file, draw 256 windows": best(map_and_draw, rounds),
        "  unverified ": best(lambda: map_and_draw(verify=False), rounds),
        _ALF: best(lambda: load(alf), rounds),
        "  unverified  ": best(lambda: load(alf, verify=False), rounds),
        "load .npz episodes": best(lambda: load(npz), rounds),
    }
    first = nest.map_structure(lambda t: t[:_SINGLE_STEPS], steps)
    single = best(lambda: add_steps(first), 3) * num_steps / len(first.action)
    seconds["one add_batch per step"] = single
    for what, value in seconds.items():
        print(f"{what:36} {value:8.3f} s  {value / num_steps * 1e9:8.0f} ns per step")
    print(
        f"own file: {reading / seconds['load the own file']:.2f} of the reading speed"
    )
    print(f"ALF's file: {single / seconds[_ALF]:.0f}x faster")


def best(function: Callable[[], Any], rounds: int) -> float:
    """The shortest time of some calls, in seconds."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def recorded_steps(env: Any, num_steps: int) -> Any:
    """Experience [T, ...] in episodes of 1000 steps that terminate."""
    torch.manual_seed(0)
    steps = nest.map_structure(
        lambda spec: spec.sample((num_steps,)), experience_spec(env)
    )
    in_episode = torch.arange(num_steps) % 1000
    step_type = torch.ones(num_steps, dtype=torch.int32)
    step_type[in_episode == 0] = 0
    step_type[in_episode == 999] = 2
    step_type[-1] = 2
    time_step = steps.time_step._replace(
        step_type=step_type,
        discount=(step_type != 2).float(),
        env_id=torch.zeros(num_steps, dtype=torch.int32),
    )
    return steps._replace(time_step=time_step)


def write_own(steps: Any, path: Path) -> None:
    buffer = ReplayBuffer(nest.extract_spec(steps), 1, len(steps.action))
    buffer.add_batch(nest.map_structure(lambda t: t[:, None], steps), time_major=True)
    buffer.save().write_to(path)


def write_alf(steps: Any, path: Path) -> None:
    num_steps = len(steps.action)
    time_step = steps.time_step
    fields = {
        "action": steps.action,
        "time_step|step_type": time_step.step_type,
        "time_step|reward": time_step.reward,
        "time_step|discount": time_step.discount,
        "time_step|observation": time_step.observation,
        "time_step|prev_action": time_step.prev_action,
        "time_step|env_id": time_step.env_id,
    }
    # A ring whose oldest step is in its middle.
    state = {
        f"_replay_buffer.{name}": value.roll(num_steps // 2, 0)[None]
        for name, value in fields.items()
    }
    state["_replay_buffer._current_size"] = torch.tensor([num_steps])
    state["_replay_buffer._current_pos"] = torch.tensor([num_steps + num_steps // 2])
    torch.save({"algorithm": state}, path)


def write_npz(steps: Any, path: Path) -> None:
    time_step = steps.time_step
    is_action = (time_step.step_type != 2).numpy()
    is_arrival = (time_step.step_type != 0).numpy()
    ends = (time_step.step_type == 2).numpy()[is_arrival]
    np.savez(
        path,
        observation=time_step.observation.numpy(),
        action=steps.action.numpy()[is_action],
        reward=time_step.reward.numpy()[is_arrival],
        terminated=ends,
        truncated=np.zeros_like(ends),
    )


def read_file(path: Path) -> None:
    """Reads all of it into new memory, as loading does."""
    memory = np.empty(os.path.getsize(path), np.uint8).data
    with path.open("rb", buffering=0) as file:
        for begin in range(0, len(memory), _READ_BYTES):
            file.readinto(memory[begin : begin + _READ_BYTES])


def add_steps(steps: Any) -> None:
    num_steps = len(steps.action)
    buffer = ReplayBuffer(nest.extract_spec(steps), 1, num_steps)
    for i in range(num_steps):
        buffer.add_batch(nest.map_structure(lambda t, i=i: t[i : i + 1], steps))


if __name__ == "__main__":
    main()
