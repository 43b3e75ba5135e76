"""Speed of replay buffers: adding steps, drawing batches, windows and priorities.

    python benchmarks/replay.py --libraries alf_lite sb3 cpprb --peer_python=...

A million steps of a HalfCheetah (17 observations, 6 actions), or 50 thousand of an
Atari game (84x84x4 uint8):

* ``add_N``: one step of N environments, as numpy arrays; ``add_N_tensors``: as torch
  tensors; ``add_unroll_8``: 128 steps of 8 at once; in transitions per second.
* ``sample_256``: 256 uniformly drawn steps as torch tensors; in calls per second, as
  all that follow.
* ``windows_BxT``: B sequences of T steps.
* ``prioritized_256``: a prioritised draw of 256 and the update of their priorities.
* ``n_step_256``: the same, with the returns of 5 steps: transitions from windows of 6.
* ``frames_256``: as ``sample_256``, of Atari frames.

The peers store an observation twice, in a step and as the next one of the step before.
alf_lite stores it once: with the next observation, a transition is a window of two
steps. So ``frames_256`` draws windows of two, with all that the peers draw, and for
``sample_256`` see ``windows_256x2`` too.

Each kind of work is measured in a process of its own with one thread, the libraries in
turn. Rates are per second of the process's own CPU time. What a library does not have,
and a library that is not installed, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

# isort: off
import measuring  # first: it sets the number of threads
from replay_peers import BATCH_SIZE, PEERS, Workload
# isort: on

CAPACITIES = {
    "add": 1_000_000,
    "sample": 1_000_000,
    "windows": 1_000_000,
    "prioritized": 1_000_000,
    "n_step": 1_000_000,
    "frames": 50_000,
}
PACKAGES = ("torch", "numpy", "stable_baselines3", "cpprb", "tianshou", "torchrl")
NUM_WINDOWS = 5  # of time, in each measurement


def alf_lite(kind: str, capacity: int) -> Iterator[Workload]:
    """Ours; the same functions as in ``replay_peers``."""
    import torch

    from alf_lite.algorithms.parts.transitions import to_transitions
    from alf_lite.data_structures import TimeStep
    from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
    from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

    spec = {
        "observation": TensorSpec((17,)),
        "action": TensorSpec((6,)),
        "reward": TensorSpec(()),
        "discount": TensorSpec(()),
        "step_type": BoundedTensorSpec((), torch.int32, 0, 2),
    }
    if kind == "frames":
        spec["observation"] = BoundedTensorSpec((4, 84, 84), torch.uint8, 0, 255)
        spec["action"] = BoundedTensorSpec((), torch.int64, 0, 5)

    prioritized = kind in ("prioritized", "n_step")

    def make(num_envs: int) -> ReplayBuffer:
        return ReplayBuffer(spec, num_envs, capacity // num_envs, prioritized)

    def steps(*outer_dims: int) -> dict[str, torch.Tensor]:
        return {name: leaf.sample(outer_dims) for name, leaf in spec.items()}

    def sample_and_update(n: int = 0) -> None:
        drawn, info = buffer.get_batch(BATCH_SIZE, n + 1)
        if n:
            action = drawn.pop("action")
            to_transitions(TimeStep(**drawn, prev_action=action), n, 0.99)
        buffer.update_priority(info.env_ids, info.positions, torch.rand(BATCH_SIZE))

    if kind == "add":
        yield from _alf_lite_adds(make, steps)
        return
    buffer = make(8)
    unroll = steps(50, 8)
    for _ in range(-(-buffer.max_length // 50)):
        buffer.add_batch(unroll, time_major=True)
    if prioritized:
        yield f"{kind}_256", 1, partial(sample_and_update, 5 * (kind == "n_step"))
        return
    sizes = {
        "sample": {"sample_256": (256, 1)},
        "frames": {"frames_256": (256, 2)},
        "windows": {
            f"windows_{size}x{length}": (size, length)
            for size, length in ((256, 1), (256, 2), (256, 8), (32, 8), (32, 64))
        },
    }
    for name, (size, length) in sizes[kind].items():
        yield name, 1, partial(buffer.get_batch, size, length)


def _alf_lite_adds(
    make: Callable[[int], Any], steps: Callable[..., dict[str, Any]]
) -> Iterator[Workload]:
    for num_envs in (1, 8, 64):
        tensors = steps(num_envs)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        add = partial(make(num_envs).add_batch, arrays)
        yield f"add_{num_envs}", num_envs, add
        add = partial(make(num_envs).add_batch, tensors)
        yield f"add_{num_envs}_tensors", num_envs, add
    add = partial(make(8).add_batch, steps(128, 8), time_major=True)
    yield "add_unroll_8", 1024, add


LIBRARIES: dict[str, Callable[[str, int], Iterator[Workload]]] = {
    "alf_lite": alf_lite,
    **PEERS,
}


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Calls per second of CPU time, the median of several windows."""
    call()
    begin = time.process_time()
    calls = 0
    while time.process_time() - begin < seconds / NUM_WINDOWS:
        call()
        calls += 1
    rates = []
    for _ in range(NUM_WINDOWS):
        begin = time.process_time()
        for _ in range(calls):
            call()
        rates.append(calls / (time.process_time() - begin))
    return statistics.median(rates)


def compare(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Workload -> library -> one rate per round."""
    rates: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        for kind in options.kinds:
            for library in options.libraries:
                for name, value in _measure_apart(library, kind, options).items():
                    rates.setdefault(name, {}).setdefault(library, []).append(value)
    return rates


def _measure_apart(
    library: str, kind: str, options: argparse.Namespace
) -> dict[str, float]:
    here = Path(__file__)
    command = [
        sys.executable if library == "alf_lite" else options.peer_python,
        str(here),
        f"--measure={library}",
        f"--kinds={kind}",
        f"--seconds={options.seconds}",
        f"--shrink={options.shrink}",
    ]
    environment = dict(os.environ, PYTHONPATH=str(here.parent.parent))
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = "".join(done.stderr.strip().splitlines()[-1:])
        print(f"{library}, {kind}: {reason}", file=sys.stderr)
        return {}
    rates = json.loads(done.stdout.splitlines()[-1])
    print(f"{library}, {kind}: {rates}", file=sys.stderr)
    return rates


def table(rates: dict[str, dict[str, list[float]]], libraries: list[str]) -> str:
    """The comparison in markdown: medians, and the first library's lead."""
    ours, *peers = libraries
    lines = [
        f"| per CPU second | {' | '.join(libraries)} | {ours} x the fastest peer |",
        "|---" * (len(libraries) + 2) + "|",
    ]
    for name, row in rates.items():
        cells = [
            f"{statistics.median(row[library]):,.0f}" if library in row else "-"
            for library in libraries
        ]
        # What was measured in the same round is compared.
        ratios = [
            mine / max(row[peer][i] for peer in peers if peer in row)
            for i, mine in enumerate(row.get(ours, []))
            if any(peer in row for peer in peers)
        ]
        cells.append(f"{statistics.median(ratios):.2f}" if ratios else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--libraries", nargs="+", choices=LIBRARIES, default=["alf_lite"]
    )
    parser.add_argument("--kinds", nargs="+", choices=CAPACITIES, default=[*CAPACITIES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peer_python",
        default=sys.executable,
        help="interpreter of the environment with stable-baselines3, cpprb, tianshou "
        "and torchrl",
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="per workload")
    parser.add_argument("--shrink", type=int, default=1, help="divides the capacities")
    parser.add_argument("--measure", choices=LIBRARIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        rates = {
            name: count * rate(call, options.seconds)
            for kind in options.kinds
            for name, count, call in LIBRARIES[options.measure](
                kind, CAPACITIES[kind] // options.shrink
            )
        }
        print(measuring.versions(*PACKAGES), file=sys.stderr)
        print(json.dumps(rates))
    else:
        print(table(compare(options), options.libraries))


if __name__ == "__main__":
    main()
