from __future__ import annotations

import torch

from alf_lite import nest
from alf_lite.data_structures import (
    AlgStep,
    BatchInfo,
    Experience,
    LossInfo,
    StepType,
    TimeStep,
    time_step_spec,
)
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.time_steps import restart, termination, transition, truncation


def test_every_field_defaults_to_absent():
    for cls in (TimeStep, AlgStep, Experience, LossInfo, BatchInfo):
        assert all(value == () for value in cls())
        assert nest.is_empty(cls())


def test_step_types_are_told_apart():
    steps = TimeStep(step_type=torch.tensor([0, 1, 2, 1], dtype=torch.int32))
    assert steps.is_first().tolist() == [True, False, False, False]
    assert steps.is_mid().tolist() == [False, True, False, True]
    assert steps.is_last().tolist() == [False, False, True, False]
    assert [int(t) for t in StepType] == [0, 1, 2]


def test_time_step_spec_has_a_spec_for_every_field_the_environment_fills():
    spec = time_step_spec(
        {"x": TensorSpec((3,))}, BoundedTensorSpec((), torch.int64, 0, 1)
    )
    zeros = nest.zeros(spec, (4,))
    assert zeros.observation["x"].shape == (4, 3)
    assert zeros.prev_action.dtype == torch.int64
    assert zeros.step_type.dtype == torch.int32
    assert zeros.env_info == ()


def test_steps_of_an_episode_are_made_in_a_line():
    observation = {"arm": torch.ones(3, 2), "map": torch.zeros(3, 4, 4)}
    action = torch.tensor([1, 0, 1])
    first = restart(observation, BoundedTensorSpec((), torch.int64, 0, 1))
    assert first.is_first().all()
    assert first.reward.tolist() == [0, 0, 0]
    assert first.discount.tolist() == [1, 1, 1]
    assert first.prev_action.tolist() == [0, 0, 0]
    assert first.prev_action.dtype == torch.int64
    assert first.env_id.tolist() == [0, 1, 2]
    middle = transition(observation, action, torch.tensor([1.0, 2.0, 3.0]), 0.5)
    assert middle.is_mid().all()
    assert middle.reward.tolist() == [1, 2, 3]
    assert middle.discount.tolist() == [0.5, 0.5, 0.5]
    assert middle.prev_action is action
    ends = termination(observation, action, -1.0), truncation(observation, action, -1.0)
    assert all(end.is_last().all() and end.reward.tolist() == [-1] * 3 for end in ends)
    assert [end.discount.unique().tolist() for end in ends] == [[0], [1]]


def test_made_steps_have_the_structure_of_an_environments_specs():
    spec = BoundedTensorSpec((), torch.int64, 0, 1)
    made = restart(torch.zeros(2, 4), spec)
    expected = time_step_spec(TensorSpec((4,)), spec)
    nest.assert_same_structure(made, expected)
    assert nest.extract_spec(made).step_type.dtype == expected.step_type.dtype
