"""Steps that say where they are from, and a buffer of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import ReplayFile
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

SPEC = Experience(
    time_step=TimeStep(
        step_type=BoundedTensorSpec((), torch.int32, 0, 2),
        reward=TensorSpec(()),
        observation={
            "frame": TensorSpec((2, 2), torch.uint8),
            "position": TensorSpec((), torch.int64),
        },
    ),
    action=TensorSpec((2,)),
)


def steps(env_ids, positions, step_type: int = StepType.MID) -> Experience:
    """The steps that belong at these positions, with the outer dimensions of both."""
    env_ids, positions = torch.broadcast_tensors(
        torch.as_tensor(env_ids), torch.as_tensor(positions)
    )
    code = (100 * env_ids + positions).float()
    frame = ((positions + env_ids) % 256).to(torch.uint8)
    return Experience(
        time_step=TimeStep(
            step_type=torch.full_like(env_ids, int(step_type), dtype=torch.int32),
            reward=code,
            observation={
                "frame": frame[..., None, None].expand(*frame.shape, 2, 2).clone(),
                "position": positions.clone(),
            },
        ),
        action=torch.stack((code, -code), dim=-1),
    )


def fill(buffer: ReplayBuffer, num_steps: int) -> None:
    """Appends so many steps of every environment."""
    positions = buffer.end_positions + torch.arange(num_steps)[:, None]
    env_ids = torch.arange(buffer.num_environments)
    buffer.add_batch(steps(env_ids, positions), time_major=True)


def assert_steps(batch: Experience, env_ids, positions) -> None:
    """The steps are those that belong at these positions, but for their type."""
    expected = steps(env_ids, positions)
    assert torch.equal(batch.time_step.reward, expected.time_step.reward)
    assert torch.equal(batch.action, expected.action)
    for name, leaf in expected.time_step.observation.items():
        assert torch.equal(batch.time_step.observation[name], leaf)
        assert batch.time_step.observation[name].dtype == leaf.dtype


def make_buffer(
    num_environments: int = 2, max_length: int = 5, **kwargs: Any
) -> ReplayBuffer:
    """A buffer for such steps."""
    return ReplayBuffer(SPEC, num_environments, max_length, **kwargs)


def saved(buffer: ReplayBuffer, directory: Path) -> ReplayFile:
    """What the buffer holds, in a new file."""
    path = directory / f"{len(list(directory.iterdir()))}.safetensors"
    stream = buffer.save()
    stream.write_to(path)
    assert path.stat().st_size == stream.num_bytes
    return ReplayFile(path)


def all_starts(buffer: ReplayBuffer, length: int, batch_size: int = 300) -> set:
    """The (environment, position) of the windows drawn, each checked to be whole."""
    batch, info = buffer.get_batch(batch_size, length)
    env_ids, positions = info.env_ids, info.positions
    assert_steps(batch, env_ids[:, None], positions[:, None] + torch.arange(length))
    return set(zip(env_ids.tolist(), positions.tolist(), strict=True))
