"""Simple functions of the reward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.data_transformers.create_data_transformer import create_data_transformer
from alf_lite.data_transformers.single_step_transformers import (
    IgnoreTermination,
    ImageScaleTransformer,
    LifeLossDiscount,
    RewardClipping,
    RewardScaling,
    RewardShifting,
    UntransformedTimeStep,
)
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

SPECS = TensorSpec((1,)), TensorSpec(())
REWARD = torch.tensor([0.0, -3.0, 0.5, 4.0])
FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
IMAGE_SPEC = BoundedTensorSpec((3, 2, 2), torch.uint8, 0, 255)
SPEC = {"camera": IMAGE_SPEC, "map": IMAGE_SPEC, "speed": TensorSpec((2,))}


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


def game(**changes):
    """One game [1, 6]: a life is lost at step 2, all are at step 4."""
    fields = {
        "step_type": torch.tensor([[FIRST, MID, MID, MID, LAST, FIRST]]),
        "reward": torch.arange(6.0).unsqueeze(0),
        "discount": torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0, 1.0]]),
        "observation": torch.arange(6.0).reshape(1, 6, 1),
        "env_info": {"life_lost": torch.tensor([[0.0, 0.0, 1.0, 0.0, 1.0, 0.0]])},
    }
    return TimeStep(**(fields | changes))


def test_the_discount_is_0_where_a_life_is_lost():
    steps = game()
    changed = LifeLossDiscount(TensorSpec((1,))).transform(steps)
    assert changed.discount.tolist() == [[1.0, 1.0, 0.0, 1.0, 0.0, 1.0]]
    assert changed.discount.dtype == torch.float32
    for name in TimeStep._fields:
        if name != "discount":
            assert getattr(changed, name) is getattr(steps, name)
    assert steps.discount.tolist() == [[1.0, 1.0, 1.0, 1.0, 0.0, 1.0]]


def test_a_time_limit_without_a_lost_life_is_still_bootstrapped():
    steps = game(discount=torch.ones(1, 6), env_info={"life_lost": torch.zeros(1, 6)})
    changed = LifeLossDiscount(TensorSpec((1,))).transform(steps)
    assert changed.discount.tolist() == [[1.0] * 6]


def test_acting_and_training_see_the_same():
    transformer = LifeLossDiscount(TensorSpec((1,)))
    steps = game()
    trained = transformer.transform_experience(Experience(time_step=steps)).time_step
    acted, state = transformer.transform_timestep(steps, ())
    assert state == ()
    assert torch.equal(trained.discount, acted.discount)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, [1.0, 1.0]), ({"discount": 0.5}, [0.5, 0.5]), ({"info_key": "late"}, [1, 0])],
)
def test_what_would_come_after_an_end_counts(options, expected):
    discount = torch.tensor([[1.0, 1, 0, 1, 0, 1]])
    late = torch.tensor([[0.0, 1, 1, 1, 0, 0]])
    steps = game(discount=discount, env_info={"late": late})
    transformer = IgnoreTermination(TensorSpec((1,)), **options)
    changed = transformer.transform(steps)
    first, second = expected
    assert changed.discount.tolist() == [[1, 1, first, 1, second, 1]]
    assert discount.tolist() == [[1, 1, 0, 1, 0, 1]]
    assert transformer.transform(TimeStep(reward=REWARD)).reward is REWARD
    env = SimpleNamespace(name="Pong", env_info_spec={})
    if "info_key" in options:
        with pytest.raises(ConfigError, match="IgnoreTermination: Pong has no env_inf"):
            transformer.set_environment(env)
    with pytest.raises(ConfigError, match="discount must lie in"):
        IgnoreTermination(TensorSpec((1,)), discount=1.5)


def test_another_key_can_say_it():
    steps = game(env_info={"crashed": torch.tensor([[0.0, 2.0, 0.0, 0.0, 0.0, 0.0]])})
    transformer = LifeLossDiscount(TensorSpec((1,)), info_key="crashed")
    assert transformer.transform(steps).discount[0, 1] == 0


@pytest.mark.parametrize(
    ("env_info_spec", "message"),
    [
        ((), r"Pong has no env_info 'life_lost'.*env_info_keys = \['life_lost'\]"),
        ({"lives": TensorSpec(())}, r"Pong has no env_info 'life_lost'"),
        ({"life_lost": TensorSpec((2,))}, r"Pong has shape \(2,\) for the env_info"),
    ],
)
def test_an_environment_that_does_not_say_it_is_refused(env_info_spec, message):
    env = SimpleNamespace(name="Pong", env_info_spec=env_info_spec)
    transformer = LifeLossDiscount(TensorSpec((1,)))
    with pytest.raises(ConfigError, match=message):
        transformer.set_environment(env)
    env.env_info_spec = {"life_lost": TensorSpec(())}
    transformer.set_environment(env)


@pytest.mark.parametrize(
    ("minimum", "maximum"), [(-1.0, 1.0), (0.0, 1.0), (-0.5, 0.5), (0.0, 255.0)]
)
def test_all_bytes_are_mapped_linearly(minimum, maximum):
    transformer = ImageScaleTransformer(
        BoundedTensorSpec((256,), torch.uint8, 0, 255), minimum=minimum, maximum=maximum
    )
    image = torch.arange(256, dtype=torch.uint8)
    output = transformer.transform(TimeStep(observation=image)).observation
    assert output.dtype == torch.float32
    assert (output[0], output[-1]) == (minimum, maximum)
    expected = torch.linspace(minimum, maximum, 256, dtype=torch.float64)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-4)
    assert transformer.transformed_observation_spec == BoundedTensorSpec(
        (256,), torch.float32, minimum, maximum
    )


def test_only_images_are_scaled():
    transformer = ImageScaleTransformer(SPEC)
    observation = {name: spec.sample((5,)) for name, spec in SPEC.items()}
    outputs = transformer.transform(TimeStep(observation=observation)).observation
    assert outputs["speed"] is observation["speed"]
    expected = (observation["map"].float() / 127.5) - 1
    torch.testing.assert_close(outputs["map"], expected)
    assert observation["map"].dtype == torch.uint8


def test_only_the_named_images_are_scaled():
    transformer = ImageScaleTransformer(SPEC, fields=["camera"])
    observation = {name: spec.sample((5,)) for name, spec in SPEC.items()}
    outputs = transformer.transform(TimeStep(observation=observation)).observation
    assert outputs["map"] is observation["map"]
    assert outputs["camera"].dtype == torch.float32
    assert transformer.transformed_observation_spec["map"] == IMAGE_SPEC


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        (SPEC, {"fields": ["speed"]}, "'speed' must be uint8"),
        (TensorSpec((2,)), {}, "no part of the observation is uint8"),
        (SPEC, {"minimum": 1.0, "maximum": 1.0}, "minimum must be less than maximum"),
    ],
)
def test_bad_arguments_of_an_image_scale_are_refused(spec, arguments, message):
    with pytest.raises(ConfigError, match=message):
        ImageScaleTransformer(spec, **arguments)
