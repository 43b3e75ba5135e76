"""A configuration names transformers by their classes; None changes nothing."""

from __future__ import annotations

import gin
import pytest
import torch

from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.create_data_transformer import create_data_transformer
from alf_lite.data_transformers.data_transformer import IdentityDataTransformer
from alf_lite.data_transformers.observation_normalizer import ObservationNormalizer
from alf_lite.data_transformers.reward_transformers import RewardScaling
from alf_lite.data_transformers.sequential_data_transformer import (
    SequentialDataTransformer,
)
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec

SPEC = TensorSpec((2,))


def steps(*outer_dims):
    return TimeStep(
        reward=torch.randn(outer_dims), observation=torch.randn(*outer_dims, 2)
    )


def test_nothing_is_changed_or_copied_without_a_transformer():
    transformer = create_data_transformer(None, SPEC)
    assert isinstance(transformer, IdentityDataTransformer)
    time_step = steps(4)
    assert transformer.transform_timestep(time_step, ()) == (time_step, ())
    assert transformer.transform_timestep(time_step, ())[0] is time_step
    assert transformer.transformed_observation_spec == SPEC


@pytest.mark.parametrize("ctor", [[], ()])
def test_an_empty_list_changes_nothing(ctor):
    transformer = create_data_transformer(ctor, SPEC)
    time_step = steps(4)
    assert transformer.transform_timestep(time_step, ())[0] is time_step


def test_a_single_class_is_built_alone():
    transformer = create_data_transformer(ObservationNormalizer, SPEC)
    assert isinstance(transformer, ObservationNormalizer)


@pytest.mark.parametrize(
    ("ctor", "message"),
    [
        ("ObservationNormalizer", "given by its class, got 'ObservationNormalizer'"),
        (["ObservationNormalizer"], "given by its class, got 'ObservationNormalizer'"),
        ([IdentityDataTransformer(SPEC)], "without quotes and parentheses"),
        (lambda observation_spec, reward_spec: 3, "must build a DataTransformer"),
    ],
)
def test_what_is_no_class_is_refused(ctor, message):
    with pytest.raises(ConfigError, match=message):
        create_data_transformer(ctor, SPEC)


@pytest.mark.parametrize(
    "bindings",
    [
        """
        TrainerConfig.data_transformer_ctor = [
            @ObservationNormalizer, @RewardScaling]
        """,
        """
        TrainerConfig.data_transformer_ctor = @SequentialDataTransformer
        SequentialDataTransformer.data_transformer_ctors = [
            @ObservationNormalizer, @RewardScaling]
        """,
    ],
)
def test_transformers_come_from_a_conf(bindings):
    gin.parse_config(bindings)
    gin.parse_config("""
        ObservationNormalizer.clipping = 3.0
        RewardScaling.scale = 0.5
    """)
    ctor = TrainerConfig(num_iterations=1).data_transformer_ctor
    transformer = create_data_transformer(ctor, SPEC)
    assert isinstance(transformer, SequentialDataTransformer)
    assert [type(t) for t in transformer.transformers] == [
        ObservationNormalizer,
        RewardScaling,
    ]
    observation = torch.tensor([[-9.0, 1.0]])
    time_step = TimeStep(observation=observation, reward=torch.tensor([4.0]))
    outputs, _ = transformer.transform_timestep(time_step, ((), ()))
    assert outputs.observation.tolist() == [[-3.0, 1.0]]
    assert outputs.reward.tolist() == [2.0]
