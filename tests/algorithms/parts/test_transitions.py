from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import paired_batch
from alf_lite.algorithms.parts.transitions import (
    align,
    check_windows,
    sequence_priority,
    to_sequence,
    to_transitions,
)
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.fast import statistics
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.utils import value_ops
from tests.fast.twins import without_twins

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


@pytest.fixture(params=["numpy", "torch"], autouse=True)
def library(request):
    """Has rewards summed up as on the CPU, or as on other devices."""
    with without_twins() if request.param == "torch" else contextlib.nullcontext():
        yield request.param


def random_windows(num_dims: int = 0) -> TimeStep:
    """[50, 9], with ends of both kinds."""
    torch.manual_seed(0)
    step_type = torch.randint(0, 3, (50, 9), dtype=torch.int32)
    discount = torch.rand(50, 9)
    is_terminal = (step_type == LAST) & (torch.rand(50, 9) < 0.5)
    shape = (50, 9) if num_dims == 0 else (50, 9, num_dims)
    return TimeStep(
        step_type=step_type,
        reward=torch.randn(shape),
        discount=discount.masked_fill(is_terminal, 0.0),
        observation=torch.randn(shape),
        prev_action=torch.randn(50, 9, 2),
    )


@pytest.mark.parametrize("n", [1, 2, 8])
@pytest.mark.parametrize("num_dims", [0, 2])
def test_windows_that_are_not_taken_apart_become_the_same_transitions(
    library, n, num_dims
):
    steps = nest.narrow(random_windows(num_dims), 0, n + 1, dim=1)
    steps = steps._replace(prev_action={"move": steps.prev_action})
    stored = Experience(steps)
    # Windows begin in the middle of their rings, and cross the seam.
    buffer = ReplayBuffer(nest.extract_spec(stored, 2), 50, n + 1)
    for times in (range(n // 2 + 1), range(n + 1)):
        for t in times:
            buffer.add_batch(nest.map_structure(lambda x, t=t: x[:, t], stored))
    windows, info = buffer.get_packed_batch(60, n + 1)
    steps = nest.map_structure(lambda x: x[info.env_ids], steps)

    pairs = statistics.pair(SimpleNamespace(_n_step=n, _gamma=0.9), windows)
    batch = paired_batch(pairs, torch.ones(n + 1, 60), info)
    expected = to_transitions(steps, n, 0.9)
    found = batch.flat[:2]
    tolerance = 1e-6 * (library == "torch")  # it adds up in another order
    used = steps.step_type[:, 0] != LAST
    for leaf, other in zip(*map(nest.flatten, (found, expected)), strict=True):
        torch.testing.assert_close(
            leaf[used], other[used, 0], atol=tolerance, rtol=tolerance
        )
    assert torch.equal(batch.inputs.reward[0], found[0].reward)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("num_dims", [0, 2])
def test_targets_are_those_of_the_n_step_return(n, num_dims):
    steps = random_windows(num_dims)
    first_steps, transition = to_transitions(steps, n, 0.9)
    # The observation serves as its own value.
    discount = transition.discount
    if num_dims:
        discount = discount.unsqueeze(-1)
    target = transition.reward + discount * transition.next_observation
    expected = value_ops.n_step_return(
        steps.reward,
        steps.observation,
        steps.step_type,
        0.9 * steps.discount,
        n,
        time_major=False,
    )[:, : 9 - n]
    valid = first_steps.step_type != LAST
    assert valid.any()
    torch.testing.assert_close(target[valid], expected[valid])


@pytest.mark.parametrize("n", [1, 3])
def test_a_sequence_has_the_same_targets_once_it_is_aligned(n):
    steps = random_windows()
    all_steps, transition = to_sequence(steps, n, 0.9)
    assert all_steps is steps
    assert transition.reward.shape == (50, 9)
    assert transition.next_observation == ()

    class Info(NamedTuple):
        value: Tensor
        next_value: Tensor
        num_steps: Any
        reward: Any
        discount: Any

    info = align(
        Info(
            value=steps.observation.T,
            next_value=steps.observation.T,
            num_steps=transition.num_steps.T,
            reward=transition.reward.T,
            discount=transition.discount.T,
        ),
        ("next_value",),
        n,
    )
    _, expected = to_transitions(steps, n, 0.9)
    valid = (steps.step_type[:, : 9 - n] != LAST).T
    torch.testing.assert_close(info.value, steps.observation.T[: 9 - n])
    torch.testing.assert_close(info.reward, expected.reward.T)
    torch.testing.assert_close(info.discount, expected.discount.T)
    torch.testing.assert_close(
        info.next_value[valid], expected.next_observation.T[valid]
    )


def test_the_steps_of_a_window_that_bootstrap_only_are_left_out():
    steps = random_windows()
    first_steps, transition = to_transitions(steps, 3, 0.9)
    assert first_steps.reward.shape == transition.reward.shape == (50, 6)
    torch.testing.assert_close(first_steps.observation, steps.observation[:, :6])
    torch.testing.assert_close(transition.action, steps.prev_action[:, 1:7])


def test_a_window_that_is_too_short_is_refused():
    steps = random_windows()
    with pytest.raises(ValueError, match=r"windows of at least 10 steps, got 9"):
        to_transitions(steps, 9, 0.9)
    with pytest.raises(ValueError, match="mini_batch_length = 11"):
        to_sequence(steps, 10, 0.9)


def test_a_priority_has_no_gradient():
    td_error = torch.ones(2, 1, requires_grad=True)
    assert not sequence_priority(td_error, torch.ones(2, 1).bool()).requires_grad


@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_windows_must_have_a_step_with_n_steps_ahead_of_it(n, burn_in):
    def config(length: int | None) -> TrainerConfig:
        return TrainerConfig(
            num_iterations=1, mini_batch_length=length, burn_in_length=burn_in
        )

    check_windows(None, n)
    check_windows(config(None), n)
    least = burn_in + n + 1
    check_windows(config(least), n)
    with pytest.raises(ConfigError, match=rf"={least - 1} is too short.*{least} or"):
        check_windows(config(least - 1), n)
