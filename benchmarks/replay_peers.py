"""The replay buffers of other libraries, each doing the work of ``replay.py``.

Every function takes the kind of work and the capacity of the buffer in steps, fills a
buffer and yields workloads. It yields nothing where its library has no such thing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

Workload = tuple[str, int, Callable[[], Any]]  # name, transitions per call, the call


class Sizes:
    """Those of all libraries alike."""

    batch = 256
    num_envs = 8


_rng = np.random.default_rng(0)


def state_batch(num_steps: int) -> dict[str, np.ndarray]:
    """Transitions of a HalfCheetah: 17 observations, 6 actions."""
    return {
        "obs": _rng.standard_normal((num_steps, 17), dtype=np.float32),
        "next_obs": _rng.standard_normal((num_steps, 17), dtype=np.float32),
        "act": _rng.standard_normal((num_steps, 6), dtype=np.float32),
        "rew": _rng.standard_normal(num_steps, dtype=np.float32),
        "done": np.zeros(num_steps, bool),
    }


def frame_batch(num_steps: int) -> dict[str, np.ndarray]:
    """Transitions of an Atari game: four 84x84 frames, one of 6 actions."""
    shape = (num_steps, 4, 84, 84)
    return {
        "obs": _rng.integers(0, 255, shape, dtype=np.uint8),
        "next_obs": _rng.integers(0, 255, shape, dtype=np.uint8),
        "act": _rng.integers(0, 6, num_steps),
        "rew": _rng.standard_normal(num_steps, dtype=np.float32),
        "done": np.zeros(num_steps, bool),
    }


def sb3(kind: str, capacity: int) -> Iterator[Workload]:
    """Stable-Baselines3."""
    from gymnasium.spaces import Box, Discrete
    from stable_baselines3.common.buffers import ReplayBuffer

    if kind not in ("add", "sample", "frames"):
        return
    frames = kind == "frames"
    observation = Box(0, 255, (4, 84, 84), np.uint8) if frames else Box(-9, 9, (17,))
    action = Discrete(6) if frames else Box(-1, 1, (6,))
    for num_envs in (1, 8, 64) if kind == "add" else (Sizes.num_envs,):
        buffer = ReplayBuffer(capacity, observation, action, "cpu", num_envs)
        batch = (frame_batch if frames else state_batch)(num_envs)
        infos: list[dict] = [{} for _ in range(num_envs)]
        add = partial(buffer.add, *batch.values(), infos)
        if kind == "add":
            yield f"add_{num_envs}", num_envs, add
        else:
            for _ in range(capacity // num_envs):
                add()
            yield f"{kind}_{Sizes.batch}", 1, partial(buffer.sample, Sizes.batch)


def cpprb(kind: str, capacity: int) -> Iterator[Workload]:
    """cpprb; what it draws is made torch tensors, without a copy."""
    import cpprb as library
    import torch

    if kind not in ("add", "sample", "frames", "prioritized", "n_step"):
        return
    frames = kind == "frames"
    pixels = {"shape": (4, 84, 84), "dtype": np.uint8}
    fields: dict[str, dict] = {
        "obs": pixels if frames else {"shape": 17},
        "next_obs": pixels if frames else {"shape": 17},
        "act": {"dtype": np.int64} if frames else {"shape": 6},
        "rew": {},
        "done": {},
    }
    prioritized = kind in ("prioritized", "n_step")
    if prioritized:
        returns = {"size": 5, "gamma": 0.99, "rew": "rew", "next": "next_obs"}
        buffer = library.PrioritizedReplayBuffer(
            capacity, fields, alpha=0.6, Nstep=returns if kind == "n_step" else None
        )
    else:
        buffer = library.ReplayBuffer(capacity, fields)

    def sample(**kwargs: Any) -> dict[str, Any]:
        drawn = buffer.sample(Sizes.batch, **kwargs)
        return {key: torch.from_numpy(value) for key, value in drawn.items()}

    def sample_and_update() -> None:
        drawn = sample(beta=0.4)
        buffer.update_priorities(drawn["indexes"].numpy(), next(priorities))

    priorities = itertools.cycle(_rng.random((1000, Sizes.batch), dtype=np.float32))

    if kind == "add":
        for num_envs in (1, 8, 64):
            yield (
                f"add_{num_envs}",
                num_envs,
                partial(buffer.add, **state_batch(num_envs)),
            )
        return
    batch = (frame_batch if frames else state_batch)(500)
    for _ in range(-(-capacity // 500)):
        buffer.add(**batch)
    yield f"{kind}_{Sizes.batch}", 1, sample_and_update if prioritized else sample


def tianshou(kind: str, capacity: int) -> Iterator[Workload]:
    """Tianshou; what it draws stays numpy arrays."""
    from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer

    if kind not in ("add", "sample", "frames", "prioritized"):
        return

    def add(buffer: Any, fields: dict[str, np.ndarray]) -> None:
        batch = Batch(
            obs=fields["obs"],
            obs_next=fields["next_obs"],
            act=fields["act"],
            rew=fields["rew"],
            terminated=fields["done"],
            truncated=np.zeros(len(fields["rew"]), bool),
            done=fields["done"],
            info=Batch(),
        )
        buffer.add(batch)

    if kind == "add":
        for num_envs in (1, 8, 64):
            buffer = VectorReplayBuffer(capacity, num_envs)
            yield (
                f"add_{num_envs}",
                num_envs,
                partial(add, buffer, state_batch(num_envs)),
            )
        return
    if kind == "prioritized":
        buffer = PrioritizedVectorReplayBuffer(capacity, 64, alpha=0.6, beta=0.4)
    else:
        buffer = VectorReplayBuffer(capacity, 64)
    fields = (frame_batch if kind == "frames" else state_batch)(64)
    for _ in range(capacity // 64 + 1):
        add(buffer, fields)

    def sample_and_update() -> None:
        _, indices = buffer.sample(Sizes.batch)
        buffer.update_weight(indices, next(priorities))

    priorities = itertools.cycle(_rng.random((1000, Sizes.batch), dtype=np.float32))
    sample = partial(buffer.sample, Sizes.batch)
    yield (
        f"{kind}_{Sizes.batch}",
        1,
        sample_and_update if kind == "prioritized" else sample,
    )


def torchrl(kind: str, capacity: int) -> Iterator[Workload]:
    """TorchRL with a LazyTensorStorage; slices come from its cached sampler.

    Its prioritised sampler needs an extension that its package may not bring.
    """
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    if kind in ("windows", "prioritized"):
        yield from _torchrl_slices(capacity) if kind == "windows" else ()
        return
    storage = LazyTensorStorage(capacity)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=Sizes.batch)

    def add(fields: dict[str, np.ndarray]) -> None:
        buffer.extend(_to_tensordict(fields))

    if kind == "add":
        for num_envs in (1, 8, 64):
            yield f"add_{num_envs}", num_envs, partial(add, state_batch(num_envs))
        return
    fields = (frame_batch if kind == "frames" else state_batch)(500)
    for _ in range(-(-capacity // 500)):
        add(fields)
    yield f"{kind}_{Sizes.batch}", 1, buffer.sample


def _torchrl_slices(capacity: int) -> Iterator[Workload]:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SliceSampler

    fields = state_batch(1000)
    fields["done"][-1] = True
    episode = _to_tensordict(fields)
    for length in (8, 64):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity),
            batch_size=32 * length,
            sampler=SliceSampler(
                slice_len=length,
                end_key=("next", "done"),
                cache_values=True,
                strict_length=True,
            ),
        )
        for _ in range(-(-capacity // 1000)):
            buffer.extend(episode)
        yield f"windows_32x{length}", 1, buffer.sample


def _to_tensordict(fields: dict[str, np.ndarray]) -> Any:
    import torch
    from tensordict import TensorDict

    tensors = {key: torch.from_numpy(value) for key, value in fields.items()}
    size = [len(fields["rew"])]
    after = {
        "observation": tensors["next_obs"],
        "reward": tensors["rew"][:, None],
        "done": tensors["done"][:, None],
    }
    return TensorDict(
        {
            "observation": tensors["obs"],
            "action": tensors["act"],
            "next": TensorDict(after, size),
        },
        size,
    )


PEERS: dict[str, Callable[[str, int], Iterator[Workload]]] = {
    "sb3": sb3,
    "cpprb": cpprb,
    "tianshou": tianshou,
    "torchrl": torchrl,
}
