"""A configuration names transformers by their classes; None changes nothing."""

from __future__ import annotations

import functools

import gin
import pytest
import torch

from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, TimeStep
from alf_lite.data_transformers.create_data_transformer import (
    SequentialDataTransformer,
    create_data_transformer,
)
from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    IdentityDataTransformer,
    TransformStage,
    WindowOrigin,
)
from alf_lite.data_transformers.normalizing_transformers import (
    ObservationNormalizer,
    RewardNormalizer,
)
from alf_lite.data_transformers.single_step_transformers import (
    ImageScaleTransformer,
    RewardScaling,
    RewardShifting,
)
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

SPEC = TensorSpec((2,))
IMAGE_SPEC = BoundedTensorSpec((2,), torch.uint8, 0, 255)


def steps(*outer_dims):
    return TimeStep(
        reward=torch.randn(outer_dims), observation=torch.randn(*outer_dims, 2)
    )


@pytest.mark.parametrize("ctor", [None, [], ()])
def test_nothing_is_changed_or_copied_without_a_transformer(ctor):
    transformer = create_data_transformer(ctor, SPEC)
    time_step = steps(4)
    assert transformer.transform_timestep(time_step, ())[0] is time_step
    assert transformer.transformed_observation_spec == SPEC


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


def scaling(observation_spec, reward_spec):
    return RewardScaling(observation_spec, reward_spec, scale=10.0)


def shifting(observation_spec, reward_spec):
    return RewardShifting(observation_spec, reward_spec, bias=1.0)


class LastReward(DataTransformer):
    """Replaces the reward by that of the step before, the simplest use of a state."""

    stage = TransformStage.HISTORY

    def __init__(self, observation_spec, reward_spec):
        super().__init__(observation_spec, reward_spec)
        self.state_spec = reward_spec

    def transform_timestep(self, time_step, state):
        before = torch.where(time_step.is_first(), 0.0, state)
        return time_step._replace(reward=before), time_step.reward

    def transform_experience(self, experience, source=None):
        raise NotImplementedError

    def transform_unroll(self, time_steps):
        raise NotImplementedError


class SourceRecorder(DataTransformer):
    """Keeps the sources that it is given."""

    stage = TransformStage.HISTORY
    num_history_steps = 2

    def __init__(self, observation_spec, reward_spec):
        super().__init__(observation_spec, reward_spec)
        self.sources = []

    def transform_timestep(self, time_step, state):
        raise NotImplementedError

    def transform_experience(self, experience, source=None):
        self.sources.append(source)
        return experience

    def transform_unroll(self, time_steps):
        raise NotImplementedError


def steps_with(*outer_dims, **fields):
    fields = {
        "step_type": torch.ones(outer_dims, dtype=torch.int32),
        "reward": torch.randn(outer_dims),
        "discount": torch.ones(outer_dims),
        "observation": torch.randn(*outer_dims, 2),
    } | fields
    return TimeStep(**fields)


def test_the_order_is_that_of_the_list():
    time_step = steps_with(3, reward=torch.tensor([0.0, 1.0, 2.0]))
    for ctors, expected in [
        ([scaling, shifting], [1.0, 11.0, 21.0]),
        ([shifting, scaling], [10.0, 20.0, 30.0]),
    ]:
        transformer = create_data_transformer(ctors, SPEC)
        acting, state = transformer.transform_timestep(time_step, ((), ()))
        trained = transformer.transform_experience(Experience(time_step=time_step))
        assert acting.reward.tolist() == expected
        assert trained.time_step.reward.tolist() == expected
        assert state == ((), ())


def test_specs_are_handed_on():
    transformer = create_data_transformer(
        [ImageScaleTransformer, ObservationNormalizer], IMAGE_SPEC
    )
    assert transformer.observation_spec == IMAGE_SPEC
    assert transformer.transformed_observation_spec == BoundedTensorSpec(
        (2,), torch.float32, -10.0, 10.0
    )


def test_every_transformer_has_its_own_state():
    transformer = create_data_transformer([LastReward, scaling, shifting], SPEC)
    assert transformer.state_spec == (TensorSpec(()), (), ())
    state = (torch.zeros(2), (), ())
    rewards = []
    for reward in (1.0, 2.0, 3.0):
        time_step, state = transformer.transform_timestep(
            steps_with(2, reward=torch.full((2,), reward)), state
        )
        rewards.append(time_step.reward[0].item())
    assert rewards == [1.0, 11.0, 21.0]


def test_statistics_are_those_of_what_arrives():
    transformer = create_data_transformer([scaling, RewardNormalizer], SPEC)
    alone = RewardNormalizer(SPEC)
    step_type = torch.tensor([[0, 0]] + [[1, 1]] * 9)
    data = steps_with(10, 2, step_type=step_type)
    transformer.observe(data)
    alone.observe(data._replace(reward=data.reward * 10))
    for name, value in alone.state_dict().items():
        assert torch.equal(transformer.state_dict()[f"transformers.1.{name}"], value)


def test_all_statistics_of_a_chain_are_updated_from_one_unroll():
    transformer = create_data_transformer(
        [ObservationNormalizer, scaling, RewardNormalizer, shifting], SPEC
    )
    assert transformer.has_statistics
    transformer.observe(steps_with(10, 2, step_type=torch.ones(10, 2)))
    counts = {k: int(v) for k, v in transformer.state_dict().items() if "count" in k}
    assert counts == {
        "transformers.0.normalizer.count": 20,
        "transformers.2.normalizer.count": 20,
    }


def test_without_statistics_an_unroll_is_not_even_transformed():
    transformer = create_data_transformer([LastReward, scaling], SPEC)
    assert not transformer.has_statistics
    transformer.observe(steps_with(10, 2))  # LastReward.transform_unroll would raise


def test_each_transformer_is_told_how_much_history_is_left():
    transformer = create_data_transformer([SourceRecorder] * 3, SPEC)
    assert transformer.num_history_steps == 6
    source = WindowOrigin(None, BatchInfo(), num_history_steps=6)
    transformer.transform_experience(Experience(time_step=steps_with(1, 7)), source)
    sources = [t.sources for t in transformer.transformers]
    assert [[s.num_history_steps for s in given] for given in sources] == [
        [6],
        [4],
        [2],
    ]


def test_training_state_is_saved_and_restored():
    ctors = [scaling, RewardNormalizer]
    original, restored = (create_data_transformer(ctors, SPEC) for _ in range(2))
    original.observe(steps_with(10, 2))
    restored.load_state_dict(original.state_dict())
    restored.load_training_state_dict(original.training_state_dict())
    data = steps_with(10, 2)
    for transformer in (original, restored):
        transformer.observe(data)
    for name, value in original.state_dict().items():
        assert torch.equal(value, restored.state_dict()[name])


def test_a_wrong_order_is_refused_at_construction():
    with pytest.raises(ConfigError, match=r"LastReward \(HISTORY\) must come before"):
        create_data_transformer([scaling, LastReward], SPEC)


def test_whoever_derives_from_what_changes_nothing_changes_something():
    class Halves(IdentityDataTransformer):
        def transform(self, time_step):
            return time_step._replace(reward=time_step.reward / 2)

    assert IdentityDataTransformer(SPEC).is_identity
    assert not Halves(SPEC).is_identity
    same = [functools.partial(RewardScaling, scale=1.0), IdentityDataTransformer]
    assert create_data_transformer(same, SPEC).is_identity
    assert not create_data_transformer([scaling], SPEC).is_identity


def test_a_factor_of_rewards_is_told_where_nothing_else_is_changed():
    class Squares(RewardScaling):
        def transform_reward(self, reward):
            return reward**2 * self._scale

    def factor_of(*ctors):
        return create_data_transformer(ctors, SPEC).reward_factor

    assert factor_of() == 1.0
    assert factor_of(scaling) == 10.0
    assert factor_of(IdentityDataTransformer, scaling, scaling) == 100.0
    for other in (shifting, ObservationNormalizer, functools.partial(Squares, scale=2)):
        assert factor_of(other) is None
        assert factor_of(other, scaling) is None
