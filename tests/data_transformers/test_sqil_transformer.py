"""Rewards follow from where a step comes from, and from nothing else."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.data_structures import BatchInfo, Experience, StepType, TimeStep
from alf_lite.data_transformers.create_data_transformer import (
    SequentialDataTransformer,
    create_data_transformer,
)
from alf_lite.data_transformers.data_transformer import WindowOrigin
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.data_transformers.normalizing_transformers import RewardNormalizer
from alf_lite.data_transformers.single_step_transformers import (
    RewardClipping,
    RewardScaling,
    RewardShifting,
)
from alf_lite.data_transformers.sqil_transformer import SqilTransformer
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

SPECS = TensorSpec((1,)), TensorSpec(())
FIRST, MID, LAST = (int(t) for t in StepType)
STEP_TYPES = [FIRST, MID, MID, LAST, FIRST, MID]


def buffer(num_environments: int = 4) -> ReplayBuffer:
    """Every environment had 6 steps, with rewards that nothing else is equal to."""
    time_step = TimeStep(
        step_type=torch.tensor(STEP_TYPES, dtype=torch.int32)
        .unsqueeze(1)
        .expand(-1, num_environments),
        reward=7.0 + torch.arange(6.0 * num_environments).reshape(6, num_environments),
        discount=torch.ones(6, num_environments),
        observation=torch.randn(6, num_environments, 1),
    )
    experience = Experience(time_step=time_step, action=torch.randn(6, 4))
    spec = nest.extract_spec(experience, from_dim=2)
    filled = ReplayBuffer(spec, num_environments, 6)
    filled.add_batch(experience, time_major=True)
    return filled


def sampled(source, length: int = 3) -> tuple[Experience, WindowOrigin]:
    """Windows [4, length] from the rows of all environments."""
    filled = buffer()
    experience, info = filled.get_batch(4, length)
    return experience, WindowOrigin(filled, info._replace(source=source))


def rewards(source, length: int = 3, **arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """What the transformer makes of windows, and where they are FIRST."""
    experience, origin = sampled(source, length)
    transformed = SqilTransformer(*SPECS, **arguments).transform_experience(
        experience, origin
    )
    return transformed.time_step.reward, experience.time_step.is_first()


@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [0.0, 1.0, 1.0, 0.0]),
        ({"demonstration_sources": [2]}, [0.0, 0.0, 1.0, 0.0]),
        ({"demonstration_sources": [1, 2]}, [0.0, 1.0, 1.0, 0.0]),
        ({"demonstration_reward": 0.0, "own_reward": -1.0}, [-1.0, 0.0, 0.0, -1.0]),
    ],
)
def test_rewards_tell_demonstrations_from_own_steps(arguments, expected, length):
    reward, is_first = rewards(torch.tensor([0, 1, 2, 0]), length, **arguments)
    assert reward.shape == (4, length)
    for row in range(4):
        for t in range(length):
            assert reward[row, t] == (0.0 if is_first[row, t] else expected[row])


def test_rows_without_a_source_are_own_ones():
    reward, is_first = rewards((), own_reward=-0.5)
    assert torch.equal(reward, torch.where(is_first, 0.0, -0.5))


def test_stored_rewards_and_everything_else_stay():
    experience, source = sampled(torch.tensor([1, 1, 0, 0]))
    kept = nest.map_structure(torch.clone, experience)
    stored = nest.map_structure(torch.clone, source.buffer.gather_all()[0])
    transformed = SqilTransformer(*SPECS).transform_experience(experience, source)
    for now, then in (
        (experience, kept),
        (source.buffer.gather_all()[0], stored),
        (
            transformed._replace(
                time_step=transformed.time_step._replace(
                    reward=experience.time_step.reward
                )
            ),
            kept,
        ),
    ):
        nest.map_structure(torch.testing.assert_close, now, then)


def test_steps_that_are_acted_on_have_the_reward_that_they_will_be_trained_with():
    transformer = SqilTransformer(*SPECS, own_reward=-1.0)
    experience, source = sampled(torch.zeros(4, dtype=torch.int64), length=5)
    trained = transformer.transform_experience(experience, source).time_step
    time_step = experience.time_step
    for t in range(5):
        now = nest.map_structure(lambda x, t=t: x[:, t], time_step)
        acted_on, state = transformer.transform_timestep(now, ())
        assert state == ()
        assert torch.equal(acted_on.reward, trained.reward[:, t])
    unroll = transformer.transform_unroll(time_step)
    assert torch.equal(unroll.reward, trained.reward)


def test_windows_with_a_history_are_rewarded_before_it_is_taken_off():
    stacker = functools.partial(FrameStacker, stack_size=3)
    transformer = create_data_transformer([stacker, SqilTransformer], *SPECS)
    filled = buffer()
    info = BatchInfo(
        env_ids=torch.tensor([0, 3]),
        positions=torch.tensor([2, 2]),
        source=torch.tensor([1, 0]),
    )
    paths = nest.map_structure_with_path(lambda path, _: path, filled.data_spec)
    positions = info.positions.unsqueeze(1) + torch.arange(3)
    window = filled.get_field(paths, info.env_ids.unsqueeze(1), positions)
    window, source = WindowOrigin(filled, info).with_history(window, 2)
    reward = transformer.transform_experience(window, source).time_step.reward
    # Steps MID, LAST, FIRST.
    assert reward.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


def test_rewards_are_scaled_after_they_are_given():
    scaling = functools.partial(RewardScaling, scale=10.0)
    transformer = create_data_transformer([SqilTransformer, scaling], *SPECS)
    experience, source = sampled(torch.tensor([1, 1, 1, 1]))
    trained = transformer.transform_experience(experience, source).time_step
    assert torch.equal(trained.reward, torch.where(trained.is_first(), 0.0, 10.0))


@pytest.mark.parametrize(
    "earlier",
    [
        functools.partial(RewardScaling, scale=2.0),
        functools.partial(RewardShifting, bias=2.0),
        RewardClipping,
        RewardNormalizer,
        functools.partial(
            SequentialDataTransformer, data_transformer_ctors=[RewardClipping]
        ),
    ],
)
def test_a_reward_transformer_without_effect_is_refused(earlier):
    with pytest.raises(ConfigError, match="SqilTransformer must come before Reward"):
        create_data_transformer([earlier, SqilTransformer], *SPECS)


def test_statistics_of_a_constant_reward_are_refused_wherever_they_are():
    message = "SqilTransformer and RewardNormalizer do not go together"
    with pytest.raises(ConfigError, match=message):
        create_data_transformer([SqilTransformer, RewardNormalizer], *SPECS)
    inner = functools.partial(
        SequentialDataTransformer, data_transformer_ctors=[SqilTransformer]
    )
    with pytest.raises(ConfigError, match=message):
        create_data_transformer([inner, RewardNormalizer], *SPECS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"own_reward": 1.0}, "demonstration_reward > own_reward, got 1.0 and 1.0"),
        ({"demonstration_reward": float("inf")}, "finite rewards"),
        ({"demonstration_sources": []}, r"demonstration_sources .* got \[\]"),
        ({"demonstration_sources": [0]}, "the first is 1"),
        ({"demonstration_sources": ["expert"]}, "numbers of offline buffers"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SqilTransformer(*SPECS, **arguments)


def test_a_reward_of_several_dimensions_is_refused():
    with pytest.raises(ConfigError, match="expected a reward that is a number"):
        SqilTransformer(SPECS[0], TensorSpec((2,)))


def test_it_is_for_replayed_steps():
    assert SqilTransformer(*SPECS).needs_replay


def test_q_learning_on_these_rewards_prefers_what_was_demonstrated():
    """Two actions, the environment rewards the other one; one step per episode."""
    torch.manual_seed(0)
    choice = BoundedTensorSpec((), torch.int64, 0, 1)
    algorithm = DqnAlgorithm(SPECS[0], choice, gamma=0.9)
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(40, 2)
    source = torch.arange(40) % 2
    # Half of the own steps took the demonstrated action, too.
    action = torch.where(source == 1, 1, torch.arange(40) // 2 % 2)
    time_step = TimeStep(
        step_type=step_type,
        reward=torch.where(action == 1, -5.0, 5.0).unsqueeze(1).expand(40, 2),
        discount=torch.tensor([1.0, 0.0]).expand(40, 2),
        observation=torch.ones(40, 2, 1),
        prev_action=action.unsqueeze(1).expand(40, 2),
    )
    info = BatchInfo(source=source)
    experience = SqilTransformer(*SPECS).transform_experience(
        Experience(time_step=time_step), WindowOrigin(buffer(), info)
    )
    inputs, transition = algorithm.preprocess_experience(experience.time_step, (), info)
    assert transition.reward.squeeze(1).tolist() == source.tolist()
    optimizer = torch.optim.Adam(algorithm._q_network.parameters(), lr=0.03)
    inputs, transition = nest.map_structure(
        lambda t: t.squeeze(1), (inputs, transition)
    )
    for _ in range(200):
        step = algorithm.train_step(
            inputs, algorithm.get_initial_train_state(40), transition
        )
        step_info = nest.map_structure(lambda t: t.unsqueeze(0), step.info)
        optimizer.zero_grad()
        algorithm.calc_loss(step_info).loss.mean().backward()
        optimizer.step()
    values = algorithm._q_network(torch.ones(1, 1))[0].squeeze()
    # 20 demonstrations and 10 own steps took action 1; only own steps took action 0.
    assert values.tolist() == pytest.approx([0.0, 2 / 3], abs=0.02)
