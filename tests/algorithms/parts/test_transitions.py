from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from alf_lite.algorithms.parts.transitions import (
    align,
    check_windows,
    mark_offline,
    sequence_priority,
    to_sequence,
    to_transitions,
)
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.utils import value_ops
from tests.fast.twins import without_twins

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


@pytest.fixture(params=["numpy", "torch"], autouse=True)
def library(request):
    """Has rewards summed up as on the CPU, or as on other devices."""
    with without_twins() if request.param == "torch" else contextlib.nullcontext():
        yield


def window(
    step_types: list[int], rewards: list[float], discounts: list[float]
) -> TimeStep:
    """One sequence [1, T]; the observation of step t is t, the action there 10 t."""
    length = len(step_types)
    return TimeStep(
        step_type=torch.tensor([step_types], dtype=torch.int32),
        reward=torch.tensor([rewards]),
        discount=torch.tensor([discounts]),
        observation={"x": torch.arange(length).float().reshape(1, length, 1)},
        prev_action=10 * torch.arange(-1, length - 1).reshape(1, length),
    )


def five_rewards(last: int | None = None, discount: float = 1.0) -> TimeStep:
    """Rewards 1 … 5 arrive at steps 1 … 5, with an end at step ``last``; step 0 FIRST.

    Two more steps follow, because only steps with n = 3 steps ahead are trained.
    """
    step_types = [FIRST, *[MID] * 7]
    discounts = [1.0] * 8
    rewards = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    if last is not None:
        step_types[last] = LAST
        discounts[last] = discount
    return window(step_types, rewards, discounts)


def result(
    time_step: TimeStep, n: int, gamma: float
) -> list[tuple[float, float, float]]:
    """(G, Γ, the step that is bootstrapped from) of every trained step."""
    _, transition = to_transitions(time_step, n, gamma)
    return list(
        zip(
            transition.reward[0].tolist(),
            transition.discount[0].tolist(),
            transition.next_observation["x"][0, :, 0].tolist(),
            strict=True,
        )
    )


def test_three_steps_without_an_end():
    assert result(five_rewards(), 3, 0.5)[:3] == [
        (2.75, 0.125, 3),
        (4.5, 0.125, 4),
        (6.25, 0.125, 5),
    ]


def test_nothing_is_added_after_a_termination():
    returns = result(five_rewards(last=2, discount=0.0), 3, 0.5)
    assert returns[0] == (2.0, 0.0, 2)
    assert returns[1] == (2.0, 0.0, 2)
    # Step 2 is LAST and trains nothing; step 3 belongs to the next episode.
    assert returns[3] == (4 + 2.5 + 1.5, 0.125, 6)


def test_a_time_limit_bootstraps_from_the_last_observation_of_its_episode():
    returns = result(five_rewards(last=2, discount=1.0), 3, 0.5)
    assert returns[0] == (2.0, 0.25, 2)
    assert returns[1] == (2.0, 0.5, 2)


def test_a_discount_of_the_environment_counts_wherever_it_stands():
    time_step = window([FIRST, MID, MID], [0.0, 1.0, 1.0], [1.0, 0.5, 0.25])
    assert result(time_step, 2, 0.8) == [(pytest.approx(1.4), pytest.approx(0.08), 2)]


def test_one_step_transitions():
    time_step = window([FIRST, MID, LAST, FIRST], [0, 1, 2, 0], [1, 1, 0, 1])
    steps, transition = to_transitions(time_step, 1, 0.9)
    assert steps.observation["x"][0, :, 0].tolist() == [0, 1, 2]
    assert transition.action[0].tolist() == [0, 10, 20]
    assert transition.reward[0, :2].tolist() == [1, 2]
    assert transition.discount[0, :2].tolist() == pytest.approx([0.9, 0.0])
    assert transition.next_observation["x"][0, :2, 0].tolist() == [1, 2]
    assert transition.num_steps == ()
    _, transition = to_sequence(time_step, 1, 0.9)
    assert transition.num_steps[0].tolist() == [1, 1, 0, 0]


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
    steps = five_rewards()
    with pytest.raises(ValueError, match=r"windows of at least 9 steps, got 8"):
        to_transitions(steps, 8, 0.9)
    with pytest.raises(ValueError, match="mini_batch_length = 11"):
        to_sequence(steps, 10, 0.9)


def test_the_priority_of_one_step_is_its_absolute_error():
    td_error = torch.tensor([[-3.0, 2.0, 5.0]])
    valid = torch.tensor([[True, True, False]])
    assert sequence_priority(td_error, valid).tolist() == [3.0, 2.0, 0.0]


def test_the_priority_of_a_sequence_mixes_its_largest_and_its_mean_error():
    td_error = torch.tensor(
        [[1.0, 1.0, 7.0, 5.0], [-2.0, 9.0, 7.0, -4.0], [3.0, 2.0, 7.0, 5.0]]
    )
    valid = torch.tensor(
        [
            [True, True, False, False],
            [True, False, False, True],
            [True, True, False, False],
        ]
    )
    priority = sequence_priority(td_error, valid).tolist()
    # 0.9 · 3 + 0.1 · 2, and 0.9 · 2 + 0.1 · 1.5.
    assert priority == pytest.approx([2.9, 1.95, 0.0, 4.0])


def test_a_priority_has_no_gradient():
    td_error = torch.ones(2, 1, requires_grad=True)
    assert not sequence_priority(td_error, torch.ones(2, 1).bool()).requires_grad


@pytest.mark.parametrize(
    ("source", "expected"),
    [(torch.tensor([0, 2, 1]), [False, True, True]), ((), [False] * 3)],
    ids=["several sources", "no source"],
)
def test_rows_of_offline_buffers_are_marked_at_every_step(source, expected):
    steps = TimeStep(
        step_type=torch.full((3, 4), StepType.MID),
        reward=torch.zeros(3, 4),
        discount=torch.ones(3, 4),
        observation=torch.zeros(3, 4, 2),
        prev_action=torch.zeros(3, 4),
    )
    for make, length in ((to_transitions, 3), (to_sequence, 4)):
        _, transition = make(steps, 1, 0.9)
        assert transition.is_offline == ()
        marked = mark_offline(transition, BatchInfo(source=source))
        assert marked.is_offline.tolist() == [[row] * length for row in expected]


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
