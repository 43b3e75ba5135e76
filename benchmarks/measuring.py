"""Counts environment steps and updates, the same way for every library.

Steps are counted inside the environment, updates inside torch's optimizers. Import this
module before torch and numpy: it holds them to one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from torch.optim.optimizer import register_optimizer_step_post_hook

torch.set_num_threads(1)

HERE = Path(__file__).parent
CART_POLE, ACROBOT = "CountedCartPole-v1", "CountedAcrobot-v1"
DICT_CART_POLE = "CountedDictCartPole-v1"
HALF_CHEETAH = "CountedHalfCheetah-v5"
FRAMES = "CountedFrames-v0"
PACKAGES = (
    "alf_lite",
    "torch",
    "numpy",
    "gymnasium",
    "mujoco",
    "stable_baselines3",
    "sb3_contrib",
    "sbx_rl",
    "jax",
    "tensordict",
    "tianshou",
    "torchrl",
)


class Mark(NamedTuple):
    """What was done until a moment, and the time."""

    env_steps: int
    updates: float
    wall_seconds: float
    cpu_seconds: float  # of this process


class UpdateCounter:
    """Updates of all optimizers of this process.

    An update is a step of every parameter. Where one has several optimizers, or not
    every step has all gradients, a step counts by its share of the parameters, so that
    libraries which group them differently, or move some less often, compare.
    """

    def __init__(self) -> None:
        self._updated: dict[torch.optim.Optimizer, int] = {}  # elements, all steps
        register_optimizer_step_post_hook(self._count)

    def _count(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        moved = sum(p.numel() for p in _parameters(optimizer) if p.grad is not None)
        self._updated[optimizer] = self._updated.get(optimizer, 0) + moved

    def count(self) -> float:
        size = sum(
            p.numel() for optimizer in self._updated for p in _parameters(optimizer)
        )
        return sum(self._updated.values()) / max(size, 1)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class Turns:
    """Waits for this process's turn, if ``duel.py`` lets two of them alternate.

    Attributes:
        seconds: CPU time of each turn.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begin: float | None = None
        self._pipes: tuple[int, ...] = ()
        if "TURNS" in os.environ:
            self._pipes = tuple(map(int, os.environ["TURNS"].split(",")))

    def take_next(self) -> None:
        """Ends a turn, if there was one, and waits for the next one."""
        if not self._pipes:
            return
        if self._begin is not None:
            self.seconds.append(time.process_time() - self._begin)
            self._pass_on()
        # Nothing comes any more when the other one has ended.
        os.read(self._pipes[0], 1)
        self._begin = time.process_time()

    def end(self) -> None:
        """Leaves the rest of the time to the other process."""
        if self._pipes:
            self._pass_on()
            os.close(self._pipes[1])

    def _pass_on(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipes[1], b"x")


class StepCounter:
    """Environment steps of this process, with a time mark every so many steps.

    Steps that an automatic reset swallows do not reach the environment and so do not
    count.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._updates = UpdateCounter()
        self.turns = Turns()
        self.start(1)

    def start(self, steps_per_iteration: int, learning_starts: int = 0) -> None:
        """Begins to count.

        Args:
            steps_per_iteration: marks fall on the first step of each iteration, so
                that they bound whole ones.
            learning_starts: steps before the first update; they are not rated.
        """
        self._steps = 0
        self._mark_every = steps_per_iteration
        self._next_mark = learning_starts
        self._marks: list[Mark] = []

    def add(self, steps: int = 1) -> None:
        if self._steps >= self._next_mark:
            self.turns.take_next()
            updates = self._updates.count()
            mark = Mark(self._steps, updates, time.perf_counter(), time.process_time())
            self._marks.append(mark)
            self._next_mark += self._mark_every
        self._steps += steps

    def rates(self, skip: float = 0.25) -> dict[str, float]:
        """Steps and updates per second after the first ``skip`` of the iterations.

        What is skipped holds the warm-up: imports, first allocations, compilation.
        """
        marks = self._marks[int(len(self._marks) * skip) :]
        if len(marks) < 2:
            raise ValueError(
                f"{self._steps} environment steps are too few to measure: expected "
                f"several iterations of {self._mark_every} steps"
            )
        steps, updates, wall, cpu = (
            last - first for first, last in zip(marks[0], marks[-1], strict=True)
        )
        return {
            "env_steps": self._steps,
            "steps_per_second": steps / wall,
            "steps_per_cpu_second": steps / cpu,
            "updates_per_second": updates / wall,
            "updates_per_step": updates / steps,
        }


class IterationMarks:
    """Time marks after iterations, for environments in processes of their own.

    The environment steps are those that the training process knows of.
    """

    def __init__(self) -> None:
        self._updates = UpdateCounter()
        # Steps, updates, seconds, CPU seconds of all processes.
        self._marks: list[tuple[int, float, float, float]] = []

    @property
    def has_updates(self) -> bool:
        """Whether anything has been trained yet."""
        return self._updates.count() > 0

    @property
    def has_rates(self) -> bool:
        """Whether there are enough marks."""
        return len(self._marks) >= 3

    def add(self, env_steps: int) -> None:
        """An iteration is over."""
        seconds, cpu_seconds = time.perf_counter(), seconds_of_processes(os.getpid())
        self._marks.append((env_steps, self._updates.count(), seconds, cpu_seconds))

    def rates(self, skip: float = 0.25) -> dict[str, float]:
        """Steps and updates per second after the first ``skip`` of the iterations."""
        marks = self._marks[int(len(self._marks) * skip) :]
        steps, updates, seconds, cpu_seconds = (
            last - first for first, last in zip(marks[0], marks[-1], strict=True)
        )
        return {
            "env_steps": steps,
            "steps_per_second": steps / seconds,
            # The system counts in hundredths.
            "steps_per_cpu_second": steps / max(cpu_seconds, 0.01),
            "updates_per_step": updates / steps,
        }


def seconds_of_processes(pid: int) -> float:
    """CPU time of a process and of all that it has started, on Linux."""
    process = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):  # it may just have ended
        fields = (process / "stat").read_text().rpartition(") ")[2].split()
        # Its own, and that of those it has waited for.
        seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        for children in process.glob("task/*/children"):
            seconds += sum(
                seconds_of_processes(int(child))
                for child in children.read_text().split()
            )
        return seconds
    return 0.0


counter = StepCounter()


class CountedCartPole(CartPoleEnv):
    def step(self, action: Any) -> Any:
        counter.add()
        return super().step(action)


class CountedDictCartPole(CountedCartPole):
    """Observes cart and pole, each with place and speed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        space = self.observation_space
        self.observation_space = gym.spaces.Dict(
            {
                "cart": gym.spaces.Box(space.low[:2], space.high[:2]),
                "pole": gym.spaces.Box(space.low[2:], space.high[2:]),
            }
        )

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return {"cart": observation[:2], "pole": observation[2:]}, info

    def step(self, action: Any) -> Any:
        observation, *more = super().step(action)
        return {"cart": observation[:2], "pole": observation[2:]}, *more


class CountedCartPoleVector(CartPoleVectorEnv):
    def step(self, action: Any) -> Any:
        counter.add(self.num_envs - int(self.prev_done.sum()))
        return super().step(action)


class CountedAcrobot(AcrobotEnv):
    def step(self, action: Any) -> Any:
        counter.add()
        return super().step(action)


class CountedFrames(gym.Env):
    """Four stacked frames of a game that is not played: images and nothing else."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(4)
    _NUM_FRAMES = 256

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        shape = (self._NUM_FRAMES + 4, *self.observation_space.shape[1:])
        self._frames = generator.integers(0, 256, shape, np.uint8)
        self._time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        counter.add()
        self._time += 1
        return self._observe(), float(action == self._time % 4), False, False, {}

    def _observe(self) -> np.ndarray:
        first = self._time % self._NUM_FRAMES
        return self._frames[first : first + 4]


def register_counted_environments() -> None:
    """Registers the stock environments, plus the counter, under their own names."""
    gym.register(
        CART_POLE,
        entry_point=CountedCartPole,
        vector_entry_point=CountedCartPoleVector,
        max_episode_steps=500,
    )
    gym.register(DICT_CART_POLE, entry_point=CountedDictCartPole, max_episode_steps=500)
    gym.register(ACROBOT, entry_point=CountedAcrobot, max_episode_steps=500)
    gym.register(FRAMES, entry_point=CountedFrames, max_episode_steps=500)
    gym.register(HALF_CHEETAH, entry_point=_half_cheetah, max_episode_steps=1000)


def _half_cheetah(**kwargs: Any) -> gym.Env:
    # Imported late: mujoco is there for those who run this benchmark only.
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

    class CountedHalfCheetah(HalfCheetahEnv):
        def step(self, action: Any) -> Any:
            counter.add()
            return super().step(action)

    return CountedHalfCheetah(**kwargs)


def peak_memory_mib() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def versions(*names: str) -> dict[str, str]:
    """Installed versions of those of ``names`` that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor(cpu_info: str | None = None) -> str:
    """Its name, and the generation of it, as Linux says them.

    A second of one is not a second of another.
    """
    if cpu_info is None:
        path = Path("/proc/cpuinfo")
        cpu_info = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.findall(r"^(model name|cpu family)\s*: (.+)$", cpu_info, re.MULTILINE)
    first = dict(reversed(found))
    if "model name" not in first:
        return platform.processor() or platform.machine()
    family = first.get("cpu family")
    return first["model name"] + ("" if family is None else f" (family {family})")


def parse_options(
    description: str,
    libraries: Sequence[str],
    num_env_steps: int,
    num_envs: int | None = 8,
    **sizes: Any,
) -> argparse.Namespace:
    """The command line of one benchmark; the last three arguments are defaults.

    Without ``num_envs`` there is always one environment. ``sizes`` are further options;
    one whose default is a tuple takes several values, one whose default is False none.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", choices=libraries, required=True)
    parser.add_argument("--num_env_steps", type=int, default=num_env_steps)
    if num_envs is None:
        parser.set_defaults(num_envs=1)
    else:
        parser.add_argument("--num_envs", type=int, default=num_envs)
    for name, default in sizes.items():
        if isinstance(default, tuple):
            kind: dict[str, Any] = {"type": type(default[0]), "nargs": "+"}
        elif default is False:
            kind = {"action": "store_true"}
        else:
            kind = {"type": type(default)}
        parser.add_argument(f"--{name}", default=default, **kind)
    parser.add_argument("--script", help="of CleanRL or LeanRL, in your checkout")
    options = parser.parse_args()
    if options.library.startswith(("cleanrl", "leanrl")) and not options.script:
        parser.error(f"--library={options.library} needs --script=PATH")
    for name, default in sizes.items():
        if isinstance(default, tuple):
            setattr(options, name, tuple(getattr(options, name)))
    return options


def refuse(options: argparse.Namespace, **fixed: Any) -> None:
    """Ends the program if an option differs from the one value that the library has."""
    for name, value in fixed.items():
        if (given := getattr(options, name)) != value:
            raise SystemExit(f"{options.library} has no --{name} {given}, only {value}")


def report(benchmark: str, options: argparse.Namespace) -> None:
    """Prints one JSON object as the last line of the output, for ``run.py``."""
    counter.turns.end()
    record = {
        "benchmark": benchmark,
        "library": options.library,
        "num_envs": options.num_envs,
        **counter.rates(),
        "turn_seconds": counter.turns.seconds,
        "peak_memory_mib": peak_memory_mib(),
        "versions": versions(*PACKAGES),
    }
    print("\n" + json.dumps(record), flush=True)
