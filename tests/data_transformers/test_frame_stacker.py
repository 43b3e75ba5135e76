"""Stacks from a replay buffer are those that the policy saw when it acted."""

from __future__ import annotations

import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import BatchInfo, Experience, StepType, TimeStep
from alf_lite.data_transformers.create_data_transformer import create_data_transformer
from alf_lite.data_transformers.data_transformer import WindowOrigin
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.data_transformers.normalizing_transformers import ObservationNormalizer
from alf_lite.data_transformers.single_step_transformers import ImageScaleTransformer
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

FIRST, MID, LAST = (int(t) for t in StepType)


def stacker(observation_spec=TensorSpec((1,)), **arguments):
    return FrameStacker(observation_spec, **arguments)


def time_steps(step_types, observation):
    """[T, B] step types as lists, and a nest of [T, B, ...] observations."""
    step_type = torch.tensor(step_types, dtype=torch.int32)
    return TimeStep(
        step_type=step_type,
        reward=torch.zeros(step_type.shape),
        observation=observation,
    )


def random_episodes(num_steps, num_environments, seed):
    """[T, B] step types of episodes with 1 to 6 steps after the first one."""
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for _ in range(num_environments):
        column = []
        while len(column) < num_steps:
            length = int(torch.randint(1, 7, (), generator=generator))
            column += [FIRST, *[MID] * (length - 1), LAST]
        columns.append(column[:num_steps])
    return torch.tensor(columns, dtype=torch.int32).T


def naive_stack(frames, step_type, t, stack_size):
    """The frames of one environment up to t, walked back one by one, oldest first."""
    stack, i = [frames[t]], t
    for _ in range(stack_size - 1):
        i = i if step_type[i] == FIRST else i - 1
        stack.insert(0, frames[i])
    return torch.stack(stack)


def run_policy(transformer, steps):
    """What acting sees, [T, B, ...]."""
    num_steps, batch_size = steps.step_type.shape
    state = nest.zeros(transformer.state_spec, (batch_size,))
    seen = []
    for t in range(num_steps):
        step, state = transformer.transform_timestep(
            nest.map_structure(lambda x, t=t: x[t], steps), state
        )
        seen.append(step)
    return nest.stack(seen)


def filled_buffer(steps, max_length, num_ignored, **arguments):
    experience = Experience(time_step=steps, action=torch.zeros(steps.step_type.shape))
    buffer = ReplayBuffer(
        nest.extract_spec(experience, from_dim=2),
        steps.step_type.shape[1],
        max_length,
        num_earliest_frames_ignored=num_ignored,
        **arguments,
    )
    buffer.add_batch(experience, time_major=True)
    return buffer


def replayed(transformer, buffer, experience, info):
    experience, source = WindowOrigin(buffer, info).with_history(
        experience, transformer.num_history_steps
    )
    return transformer.transform_experience(experience, source)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stack_size", [1, 2, 4])
def test_every_window_equals_what_acting_saw(stack_size, seed):
    """Also across episodes, across the seam of the ring and at its oldest steps."""
    num_steps, num_environments, length = 60, 3, 23
    step_type = random_episodes(num_steps, num_environments, seed)
    steps = time_steps(
        step_type.tolist(), torch.randn(num_steps, num_environments, 2, 3)
    )
    transformer = stacker(TensorSpec((2, 3)), stack_size=stack_size, stack_axis=0)
    seen = run_policy(transformer, steps).observation
    buffer = filled_buffer(steps, length, transformer.num_history_steps)
    starts = set()
    for batch_length in (1, 2, 7, length - stack_size + 1):
        experience, info = buffer.get_batch(64, batch_length)
        trained = replayed(transformer, buffer, experience, info)
        starts |= set(info.positions.tolist())
        assert trained.action.shape == (64, batch_length)
        for b, (env, start) in enumerate(
            zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)
        ):
            window = slice(start, start + batch_length)
            expected = seen[window, env]
            assert torch.equal(trained.time_step.observation[b], expected)
            assert torch.equal(trained.time_step.step_type[b], step_type[window, env])
            t = start + batch_length - 1
            naive = naive_stack(
                steps.observation[:, env], step_type[:, env], t, stack_size
            )
            assert torch.equal(expected[-1], naive.flatten(0, 1))
    # The oldest steps serve as history only.
    assert min(starts) == num_steps - length + stack_size - 1


def test_recorded_data_without_a_first_step_is_cut_after_the_last_one():
    steps = time_steps([[MID], [LAST], [MID], [MID]], torch.arange(4.0).view(4, 1, 1))
    transformer = stacker(stack_size=3)
    buffer = filled_buffer(steps, 4, 2)
    trained = replayed(transformer, buffer, *buffer.gather_all())
    assert trained.time_step.observation.tolist() == [[[2, 2, 2], [2, 2, 3]]]


def test_images_stay_bytes_and_join_their_channels():
    spec = BoundedTensorSpec((2, 2, 3), torch.uint8, 0, 255)
    transformer = stacker(spec, stack_size=2)
    assert transformer.transformed_observation_spec == BoundedTensorSpec(
        (2, 2, 6), torch.uint8, 0, 255
    )
    assert transformer.state_spec == {
        "observation": TensorSpec((1, 2, 2, 3), spec.dtype)
    }
    images = torch.randint(0, 256, (6, 1, 2, 2, 3), dtype=torch.uint8)
    steps = time_steps([[FIRST], [MID], [MID], [LAST], [FIRST], [MID]], images)
    seen = run_policy(transformer, steps).observation
    buffer = filled_buffer(steps, 6, 1)
    trained = replayed(transformer, buffer, *buffer.gather_all())
    for observation in (seen[1], trained.time_step.observation[0, :1]):
        assert observation.dtype == torch.uint8
        assert torch.equal(observation, torch.cat([images[0], images[1]], dim=-1))


def test_bounds_are_repeated_with_their_frame():
    spec = BoundedTensorSpec((2,), torch.float32, [-1, -2], [1, 2])
    stacked = stacker(spec, stack_size=2).transformed_observation_spec
    assert stacked.minimum.tolist() == [-1, -2, -1, -2]
    assert stacked.maximum.tolist() == [1, 2, 1, 2]


def test_only_the_named_fields_are_stacked():
    spec = {
        "camera": TensorSpec((2,)),
        "arm": {"angle": TensorSpec((1,))},
        "n": TensorSpec(()),
    }
    named = stacker(spec, stack_size=3, fields=["camera"])
    assert named.transformed_observation_spec == spec | {"camera": TensorSpec((6,))}
    # By default everything that has a dimension to join along.
    everything = stacker(spec, stack_size=3)
    assert everything.transformed_observation_spec == {
        "camera": TensorSpec((6,)),
        "arm": {"angle": TensorSpec((3,))},
        "n": TensorSpec(()),
    }
    observation = nest.map_structure(lambda s: torch.randn(8, 2, *s.shape), spec)
    steps = time_steps(random_episodes(8, 2, 1).tolist(), observation)
    for transformer in (named, everything):
        seen = run_policy(transformer, steps).observation
        buffer = filled_buffer(steps, 8, 2)
        trained = replayed(transformer, buffer, *buffer.gather_all())
        for actual, expected, leaf_spec in zip(
            nest.flatten(trained.time_step.observation),
            nest.flatten(seen),
            nest.flatten(transformer.transformed_observation_spec),
            strict=True,
        ):
            assert torch.equal(actual, expected[2:].transpose(0, 1))
            assert actual.shape[2:] == leaf_spec.shape


def test_the_inputs_are_left_as_they_are():
    steps = time_steps([[FIRST], [MID], [MID]], torch.randn(3, 1, 1))
    before = nest.map_structure(torch.clone, steps)
    transformer = stacker(stack_size=2)
    run_policy(transformer, steps)
    transformer.transform_unroll(steps)
    buffer = filled_buffer(steps, 3, 1)
    replayed(transformer, buffer, *buffer.gather_all())
    for original, after in zip(nest.flatten(before), nest.flatten(steps), strict=True):
        assert torch.equal(original, after)


def test_unrolls_continue_the_stacks_of_the_unroll_before():
    steps = time_steps(random_episodes(30, 3, 2).tolist(), torch.randn(30, 3, 2))
    transformer = stacker(TensorSpec((2,)), stack_size=4)
    expected = run_policy(transformer, steps).observation
    begin = 0
    for length in (2, 1, 7, 1, 1, 18):
        part = nest.map_structure(lambda t, a=begin, n=length: t[a : a + n], steps)
        unrolled = transformer.transform_unroll(part).observation
        assert torch.equal(unrolled, expected[begin : begin + length])
        begin += length


def test_unrolls_of_several_workers_and_a_resumed_run_continue_their_own_stacks():
    steps = time_steps(random_episodes(30, 4, 2).tolist(), torch.randn(30, 4, 2))
    steps = steps._replace(env_id=torch.arange(4).expand(30, 4))
    transformer = stacker(TensorSpec((2,)), stack_size=4)
    expected = run_policy(transformer, steps).observation
    for begin, end in ((0, 2), (2, 9), (9, 30)):
        for worker in (slice(2, 4), slice(0, 2)):
            part = nest.map_structure(
                lambda t, a=begin, b=end, w=worker: t[a:b, w], steps
            )
            unrolled = transformer.transform_unroll(part).observation
            assert torch.equal(unrolled, expected[begin:end, worker])
        saved = transformer.training_state_dict()
        transformer = stacker(TensorSpec((2,)), stack_size=4)
        transformer.load_training_state_dict(saved)


def test_statistics_are_those_of_the_stacks():
    steps = time_steps(random_episodes(30, 3, 2).tolist(), torch.randn(30, 3, 2))
    spec = TensorSpec((2,))

    def stacked(observation_spec, reward_spec):
        return FrameStacker(observation_spec, reward_spec, stack_size=3)

    transformer = create_data_transformer([stacked, ObservationNormalizer], spec)
    alone = ObservationNormalizer(TensorSpec((6,)))
    for begin in (0, 10, 20):
        transformer.observe(nest.map_structure(lambda t, a=begin: t[a : a + 10], steps))
        seen = run_policy(stacked(spec, TensorSpec(())), steps)
        alone.observe(nest.map_structure(lambda t, a=begin: t[a : a + 10], seen))
    for name, value in alone.state_dict().items():
        assert torch.equal(transformer.state_dict()[f"transformers.1.{name}"], value)


@pytest.mark.parametrize("seed", range(3))
def test_two_stackers_in_a_row_need_both_histories(seed):
    def pairs(observation_spec, reward_spec):
        return FrameStacker(observation_spec, reward_spec, stack_size=2)

    def triples(observation_spec, reward_spec):
        return FrameStacker(observation_spec, reward_spec, stack_size=3)

    steps = time_steps(random_episodes(40, 2, seed).tolist(), torch.randn(40, 2, 1))
    transformer = create_data_transformer(
        [pairs, triples, ObservationNormalizer], TensorSpec((1,))
    )
    assert transformer.num_history_steps == 3
    expected = run_policy(transformer, steps).observation
    buffer = filled_buffer(steps, 20, 3)
    trained = replayed(transformer, buffer, *buffer.gather_all())
    assert torch.equal(trained.time_step.observation, expected[-17:].transpose(0, 1))


def test_scaled_images_are_scaled_after_stacking():
    spec = BoundedTensorSpec((2, 2, 1), torch.uint8, 0, 255)
    transformer = create_data_transformer([FrameStacker, ImageScaleTransformer], spec)
    assert transformer.transformed_observation_spec == BoundedTensorSpec(
        (2, 2, 4), torch.float32, -1, 1
    )
    with pytest.raises(ConfigError, match=r"FrameStacker \(HISTORY\) must come before"):
        create_data_transformer([ImageScaleTransformer, FrameStacker], spec)


def test_windows_without_their_history_are_refused():
    experience = Experience(time_step=time_steps([[FIRST, MID]], torch.zeros(1, 2, 1)))
    with pytest.raises(ValueError, match="needs 3 steps before every window"):
        stacker().transform_experience(experience)
    buffer = filled_buffer(
        time_steps([[FIRST], [MID]], torch.zeros(2, 1, 1)), 2, num_ignored=0
    )
    info = BatchInfo(torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(ValueError, match="needs 3 steps before every window"):
        stacker().transform_experience(experience, WindowOrigin(buffer, info))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stack_size": 0}, "stack_size must be at least 1, got 0"),
        (
            {"stack_axis": 1},
            r"'observation' has shape \(1,\), so there is no stack_axis 1",
        ),
        ({"fields": ["obs"]}, "has no field 'obs'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        stacker(**arguments)


def test_a_number_without_dimensions_cannot_be_stacked():
    with pytest.raises(ConfigError, match="'n' must be of rank 1 or more"):
        stacker({"n": TensorSpec(()), "x": TensorSpec((1,))}, fields=["n"])
