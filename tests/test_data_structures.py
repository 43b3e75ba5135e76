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
