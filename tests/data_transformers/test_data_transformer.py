"""The steps before a window are put in front of it, whatever an experience holds."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.data_transformers.data_transformer import WindowOrigin
from alf_lite.distributions import functions  # noqa: F401  (registers the nodes)
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer

NUM_STEPS, NUM_ENVIRONMENTS = 20, 3


@pytest.fixture
def experience():
    """[T, B, ...]; the reward of a step is its position."""
    outer_dims = (NUM_STEPS, NUM_ENVIRONMENTS)
    position = torch.arange(NUM_STEPS).unsqueeze(1).expand(outer_dims)
    logits = torch.randn(*outer_dims, 4)
    return Experience(
        time_step=TimeStep(
            reward=position.float(),
            observation={"camera": torch.randint(0, 256, (*outer_dims, 2)).byte()},
        ),
        action=(position + 1, [torch.randn(outer_dims)]),
        rollout_info=Categorical(logits=logits, validate_args=False),
    )


@pytest.fixture
def buffer(experience):
    buffer = ReplayBuffer(
        nest.extract_spec(experience, from_dim=2),
        NUM_ENVIRONMENTS,
        12,
        num_earliest_frames_ignored=3,
    )
    buffer.add_batch(experience, time_major=True)
    return buffer


def test_history_is_what_was_stored_before_the_window(experience, buffer):
    windows, info = buffer.get_batch(30, 2)
    extended, source = WindowOrigin(buffer, info).with_history(windows, 3)
    positions = info.positions.unsqueeze(1) + torch.arange(-3, 2)
    assert torch.equal(source.positions(5), positions)
    assert torch.equal(extended.time_step.reward, positions.float())
    assert source.num_history_steps == 3
    env_ids = info.env_ids.unsqueeze(1)
    assert isinstance(extended.rollout_info, Categorical)
    for stored, got in zip(
        nest.flatten(experience), nest.flatten(extended), strict=True
    ):
        # Categorical normalizes its logits again whenever it is rebuilt.
        torch.testing.assert_close(got, stored[positions, env_ids])


def test_without_history_nothing_is_read(buffer):
    windows, info = buffer.get_batch(4, 2)
    source = WindowOrigin(buffer, info)
    same, same_source = source.with_history(windows, 0)
    assert same is windows
    assert same_source is source
    assert torch.equal(
        source.positions(2), info.positions.unsqueeze(1) + torch.arange(2)
    )


def test_what_is_taken_off_the_history_moves_the_beginning(buffer):
    _, info = buffer.get_batch(4, 2)
    source = WindowOrigin(buffer, info, num_history_steps=3).drop_history(2)
    assert source.num_history_steps == 1
    assert torch.equal(source.positions(1).squeeze(1), info.positions - 1)


def test_history_that_is_not_stored_any_more_is_refused(buffer):
    windows, info = buffer.get_batch(4, 2)
    with pytest.raises(ValueError, match="is not stored"):
        WindowOrigin(buffer, info).with_history(windows, 12)
