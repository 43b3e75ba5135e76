"""The raw step is kept for the algorithm, whatever the transformers change."""

from __future__ import annotations

import pytest
import torch

from alf_lite.data_structures import Experience, TimeStep
from alf_lite.data_transformers.create_data_transformer import create_data_transformer
from alf_lite.data_transformers.reward_transformers import RewardScaling
from alf_lite.data_transformers.untransformed import UntransformedTimeStep
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec


def scaling(observation_spec, reward_spec):
    return RewardScaling(observation_spec, reward_spec, scale=10.0)


def steps(*outer_dims):
    return TimeStep(
        step_type=torch.ones(outer_dims, dtype=torch.int32),
        reward=torch.randn(outer_dims),
        observation=torch.randn(*outer_dims, 2),
    )


def test_the_raw_step_is_kept_in_acting_and_in_training():
    transformer = create_data_transformer(
        [UntransformedTimeStep, scaling], TensorSpec((2,))
    )
    raw = steps(3)
    acting, _ = transformer.transform_timestep(raw, ((), ()))
    assert acting.untransformed is raw
    assert torch.equal(acting.reward, 10 * raw.reward)
    raw = steps(3, 4)
    trained = transformer.transform_experience(Experience(time_step=raw)).time_step
    assert trained.untransformed is raw
    assert torch.equal(trained.reward, 10 * raw.reward)


def test_it_must_come_first():
    with pytest.raises(ConfigError, match=r"UntransformedTimeStep \(KEEP_RAW\) must"):
        create_data_transformer([scaling, UntransformedTimeStep], TensorSpec((2,)))
