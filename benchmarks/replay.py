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

On a machine that others use, ``--turns 100`` compares them by turns of a few calls on
one core, as ``duel.py`` does; ``alf_lite@../before`` is another checkout:

    python benchmarks/replay.py --libraries alf_lite cpprb --kinds n_step --turns 100
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# isort: off
import measuring  # first: it sets the number of threads
from replay_peers import PEERS, Sizes, Workload
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

    from alf_lite import nest
    from alf_lite.data_structures import Experience, TimeStep
    from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
    from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

    spec = TimeStep(
        step_type=BoundedTensorSpec((), torch.int32, 0, 2),
        reward=TensorSpec(()),
        discount=TensorSpec(()),
        observation=TensorSpec((17,)),
        prev_action=TensorSpec((6,)),
    )
    if kind == "frames":
        spec = spec._replace(
            observation=BoundedTensorSpec((4, 84, 84), torch.uint8, 0, 255),
            prev_action=BoundedTensorSpec((), torch.int64, 0, 5),
        )

    prioritized = kind in ("prioritized", "n_step")

    def make(num_envs: int) -> ReplayBuffer:
        length = capacity // num_envs
        return ReplayBuffer(Experience(spec), num_envs, length, prioritized)

    def steps(*outer_dims: int) -> Experience:
        return Experience(
            nest.map_structure(lambda leaf: leaf.sample(outer_dims), spec)
        )

    def sample_and_update(draw: Callable[[], Any]) -> None:
        _, info = draw()
        buffer.update_priority(info.env_ids, info.positions, next(priorities))

    priorities = itertools.cycle(torch.rand(1000, Sizes.batch).unbind())

    if kind == "add":
        yield from _alf_lite_adds(make, steps)
        return
    buffer = make(Sizes.num_envs)
    unroll = steps(50, Sizes.num_envs)
    for _ in range(-(-buffer.max_length // 50)):
        buffer.add_batch(unroll, time_major=True)
    if prioritized:
        draw: Callable[[], Any] = partial(buffer.get_batch, Sizes.batch, 1)
        if kind == "n_step":
            draw = _alf_lite_transitions(buffer, 5)
        yield f"{kind}_{Sizes.batch}", 1, partial(sample_and_update, draw)
        return
    sizes = {
        "sample": {f"sample_{Sizes.batch}": (Sizes.batch, 1)},
        "frames": {f"frames_{Sizes.batch}": (Sizes.batch, 2)},
        "windows": {
            f"windows_{size}x{length}": (size, length)
            for size, length in ((256, 1), (256, 2), (256, 8), (32, 8), (32, 64))
        },
    }
    for name, (size, length) in sizes[kind].items():
        yield name, 1, partial(buffer.get_batch, size, length)


def _alf_lite_transitions(buffer: Any, n: int) -> Callable[[], Any]:
    """Draws transitions as ``alf_lite.algorithms.learning.replay_batches`` does."""
    import numpy as np

    from alf_lite.fast import statistics

    algorithm = SimpleNamespace(_n_step=n, _gamma=0.99)
    names = ("prev_action", "reward", "discount", "observation")
    later = tuple(f"time_step.{name}" for name in names)

    def draw() -> Any:
        windows, info = buffer.get_packed_batch(Sizes.batch, n + 1)
        pairs = statistics.pair(algorithm, windows)
        steps = pairs.part(np.s_[:, 0], ("time_step",))
        return (steps, pairs.part(np.s_[:, 1], later)), info

    return draw


def _alf_lite_adds(
    make: Callable[[int], Any], steps: Callable[..., Any]
) -> Iterator[Workload]:
    from alf_lite import nest

    for num_envs in (1, 8, 64):
        tensors = steps(num_envs)
        arrays = nest.map_structure(lambda tensor: tensor.numpy(), tensors)
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


def _command(
    library: str, kind: str, options: argparse.Namespace
) -> tuple[list[str], dict[str, str]]:
    """What measures a library, and its environment."""
    library, _, checkout = library.partition("@")
    here = Path(__file__)
    command = [
        sys.executable if library == "alf_lite" else options.peer_python,
        str(here),
        f"--measure={library}",
        f"--kinds={kind}",
        f"--seconds={options.seconds}",
        f"--shrink={options.shrink}",
        f"--batch_size={options.batch_size}",
        f"--num_envs={options.num_envs}",
        f"--turns={options.turns}",
    ]
    root = Path(checkout).resolve() if checkout else here.parent.parent
    return command, dict(os.environ, PYTHONPATH=str(root))


def take_turns(kind: str, options: argparse.Namespace) -> None:
    """Lets the libraries alternate on one core, and prints each workload's ratios."""
    core = str(max(os.sched_getaffinity(0)))
    children = []
    for library in options.libraries:
        command, environment = _command(library, kind, options)
        child = subprocess.Popen(
            ["taskset", "-c", core, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        children.append(child)
    names = [json.loads(_answer(child) or "[]") for child in children]
    for name in names[0]:
        present = [i for i, others in enumerate(names) if name in others]
        turns: list[list[float]] = [[] for _ in present]
        for _ in range(options.turns):
            for seconds, i in zip(turns, present, strict=True):
                seconds.append(float(_answer(children[i], name)))
        for seconds, i in zip(turns, present, strict=True):
            pairs = zip(seconds, turns[0], strict=True)
            ratios = sorted(theirs / ours for theirs, ours in pairs)
            low, middle, high = statistics.quantiles(ratios, n=4)
            typical = 1e6 * statistics.median(seconds)
            print(
                f"{name} {options.libraries[i]}: {typical:.0f} µs, {middle:.2f} times "
                f"the first (quartiles {low:.2f} and {high:.2f})",
                flush=True,
            )
    for child in children:
        child.communicate()


def _answer(child: subprocess.Popen[str], question: str = "") -> str:
    """One line of the child's output, after it was asked something."""
    assert child.stdin is not None
    assert child.stdout is not None
    if question:
        child.stdin.write(f"{question}\n")
        child.stdin.flush()
    return child.stdout.readline()


def answer_turns(workloads: Iterator[Workload]) -> None:
    """CPU seconds of a call, whenever a workload is named on the standard input."""
    calls = {name: call for name, _, call in workloads}
    for call in calls.values():
        for _ in range(20):  # warm-up
            call()
    print(json.dumps([*calls]), flush=True)
    for line in sys.stdin:
        call = calls[line.strip()]
        begin, num_calls = time.process_time(), 0
        while num_calls < 10 or time.process_time() - begin < 0.05:
            call()
            num_calls += 1
        print((time.process_time() - begin) / num_calls, flush=True)


def _measure_apart(
    library: str, kind: str, options: argparse.Namespace
) -> dict[str, float]:
    command, environment = _command(library, kind, options)
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
    parser.add_argument("--libraries", nargs="+", default=["alf_lite"])
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
    parser.add_argument("--batch_size", type=int, default=Sizes.batch)
    parser.add_argument("--num_envs", type=int, default=Sizes.num_envs)
    parser.add_argument("--turns", type=int, default=0, help="0: in processes apart")
    parser.add_argument("--measure", choices=LIBRARIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for library in options.libraries:
        if library.partition("@")[0] not in LIBRARIES:
            parser.error(f"{library} is none of {', '.join(LIBRARIES)}")
    Sizes.batch, Sizes.num_envs = options.batch_size, options.num_envs
    if options.measure and options.turns:
        (kind,) = options.kinds
        capacity = CAPACITIES[kind] // options.shrink
        answer_turns(LIBRARIES[options.measure](kind, capacity))
    elif options.measure:
        rates = {
            name: count * rate(call, options.seconds)
            for kind in options.kinds
            for name, count, call in LIBRARIES[options.measure](
                kind, CAPACITIES[kind] // options.shrink
            )
        }
        print(measuring.versions(*PACKAGES), file=sys.stderr)
        print(json.dumps(rates))
    elif options.turns:
        for kind in options.kinds:
            take_turns(kind, options)
    else:
        print(table(compare(options), options.libraries))


if __name__ == "__main__":
    main()
