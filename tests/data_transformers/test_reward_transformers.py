"""Simple functions of the reward."""

from __future__ import annotations

import pytest
import torch

from alf_lite.data_structures import Experience, TimeStep
from alf_lite.data_transformers.reward_transformers import (
    RewardClipping,
    RewardScaling,
    RewardShifting,
)
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec

SPECS = TensorSpec((1,)), TensorSpec(())
REWARD = torch.tensor([0.0, -3.0, 0.5, 4.0])


@pytest.mark.parametrize(
    ("transformer", "expected"),
    [
        (RewardScaling(*SPECS, scale=-2.0), [0.0, 6.0, -1.0, -8.0]),
        (RewardShifting(*SPECS, bias=1.5), [1.5, -1.5, 2.0, 5.5]),
        (RewardClipping(*SPECS), [0.0, -1.0, 0.5, 1.0]),
        (RewardClipping(*SPECS, minimum=0.0, maximum=2.0), [0.0, 0.0, 0.5, 2.0]),
        (RewardClipping(*SPECS, minimum=-float("inf"), maximum=1), [0, -3, 0.5, 1]),
    ],
)
def test_rewards_acting_and_training(transformer, expected):
    raw = REWARD.clone()
    acting, state = transformer.transform_timestep(TimeStep(reward=raw), ())
    assert state == ()
    assert acting.reward.tolist() == expected
    stored = Experience(time_step=TimeStep(reward=raw.reshape(2, 2)))
    trained = transformer.transform_experience(stored)
    assert trained.time_step.reward.flatten().tolist() == expected
    assert torch.equal(raw, REWARD)
    assert not transformer.has_statistics
    assert transformer.transformed_observation_spec == SPECS[0]


def test_rewards_of_several_dimensions():
    transformer = RewardScaling(SPECS[0], TensorSpec((2,)), scale=10.0)
    outputs = transformer.transform(TimeStep(reward=torch.tensor([[1.0, 2.0]])))
    assert outputs.reward.tolist() == [[10.0, 20.0]]


@pytest.mark.parametrize(
    ("ctor", "arguments", "message"),
    [
        (RewardScaling, {"scale": float("nan")}, "scale must be finite"),
        (RewardShifting, {"bias": float("inf")}, "bias must be finite"),
        (RewardClipping, {"minimum": 1.0, "maximum": -1.0}, "minimum <= 0 <= maximum"),
        (RewardClipping, {"minimum": 1.0, "maximum": 2.0}, "got 1.0 and 2.0"),
        (RewardClipping, {"minimum": 0.0, "maximum": 0.0}, "not both 0"),
    ],
)
def test_bad_arguments_are_refused(ctor, arguments, message):
    with pytest.raises(ConfigError, match=message):
        ctor(*SPECS, **arguments)
