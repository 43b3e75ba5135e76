"""Goals in hindsight are reached in the same episode, and rewarded as such."""

from __future__ import annotations

import functools
import itertools

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from alf_lite import nest
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.muzero_algorithm import MuzeroAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, StepType, TimeStep
from alf_lite.data_transformers.create_data_transformer import create_data_transformer
from alf_lite.data_transformers.data_transformer import WindowOrigin
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.data_transformers.hindsight import (
    HindsightExperienceTransformer,
    reward_function_of,
)
from alf_lite.data_transformers.normalizing_transformers import ObservationNormalizer
from alf_lite.data_transformers.single_step_transformers import (
    RewardScaling,
    UntransformedTimeStep,
)
from alf_lite.environments.creation import create_environment
from alf_lite.environments.episode_wrappers import ActionRepeat
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import TensorSpec
from alf_lite.testing.goal_environment import PointGoalEnv
from alf_lite.testing.probe_environments import ValueEnv

FIRST, MID, LAST = (int(t) for t in StepType)
GOAL = TensorSpec((1,))
SPEC = {"observation": GOAL, "achieved_goal": GOAL, "desired_goal": GOAL}
THREE_STEPS = [FIRST, MID, MID, LAST]
ACHIEVED = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]])
DESIRED = torch.tensor([[0.0, 0.0, 0.01], [0.5, 0.5, 0.9]])


def is_equal(achieved, desired):
    return (achieved == desired).all(-1).float()


def her(**arguments):
    arguments = {"her_proportion": 1.0, "reward_function": is_equal} | arguments
    return HindsightExperienceTransformer(SPEC, **arguments)


def her_ctor(**arguments):
    arguments = {"her_proportion": 1.0, "reward_function": is_equal} | arguments

    def ctor(observation_spec, reward_spec):
        return HindsightExperienceTransformer(
            observation_spec, reward_spec, **arguments
        )

    return ctor


def buffer_of(*columns, desired=-9.0, max_length=None):
    """A buffer with the given step types of each environment.

    What is achieved at position p of environment e is 100 e + p, a number of its own.
    """
    step_type = torch.tensor(columns, dtype=torch.int32).T  # [T, E]
    num_steps, num_environments = step_type.shape
    achieved = torch.arange(num_steps).unsqueeze(1) + 100 * torch.arange(
        num_environments
    )
    achieved = achieved.unsqueeze(-1).float()
    time_step = TimeStep(
        step_type=step_type,
        reward=torch.where(step_type == FIRST, 0.0, -1.0),
        discount=torch.where(step_type == LAST, 0.0, 1.0),
        observation={
            "observation": achieved + 0.5,
            "achieved_goal": achieved,
            "desired_goal": torch.full_like(achieved, desired),
        },
    )
    experience = Experience(time_step=time_step, action=achieved * 2)
    buffer = ReplayBuffer(
        nest.extract_spec(experience, from_dim=2),
        num_environments,
        max_length or num_steps,
    )
    buffer.add_batch(experience, time_major=True)
    return buffer


def windows(buffer, starts, length):
    """Raw windows that begin at [(environment, position), ...], and their source."""
    env_ids, positions = (torch.tensor(column) for column in zip(*starts, strict=True))
    paths = nest.map_structure_with_path(lambda path, _: path, buffer.data_spec)
    experience = buffer.get_field(
        paths, env_ids.unsqueeze(1), positions.unsqueeze(1) + torch.arange(length)
    )
    return experience, WindowOrigin(buffer, BatchInfo(env_ids, positions))


def relabel(transformer, buffer, starts, length):
    """(desired goals [B, T], rewards [B, T])."""
    experience, source = windows(buffer, starts, length)
    experience, source = source.with_history(experience, transformer.num_history_steps)
    time_step = transformer.transform_experience(experience, source).time_step
    return time_step.observation["desired_goal"].squeeze(-1), time_step.reward


# Which goals


def test_final_relabels_with_what_the_episode_ended_at():
    buffer = buffer_of(THREE_STEPS)
    desired, reward = relabel(her(strategy="final"), buffer, [(0, 0)], 4)
    assert desired.tolist() == [[3, 3, 3, 3]]
    assert reward.tolist() == [[0, 0, 0, 1]]
    # The same, transition by transition.
    starts = [(0, 0), (0, 1), (0, 2)]
    desired, reward = relabel(her(strategy="final"), buffer, starts, 2)
    assert desired.tolist() == [[3, 3]] * 3
    assert reward[:, 1].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("strategy", "start", "goals"),
    [
        ("future", 0, [1, 2, 3, 4]),
        ("future", 2, [3, 4]),
        ("episode", 0, [1, 2, 3, 4]),
        ("episode", 3, [1, 2, 3, 4]),
        ("final", 1, [4]),
    ],
)
def test_goals_are_drawn_uniformly(strategy, start, goals):
    buffer = buffer_of([FIRST, MID, MID, MID, LAST])
    torch.manual_seed(0)
    num_draws = 4000
    desired, reward = relabel(
        her(strategy=strategy), buffer, [(0, start)] * num_draws, 2
    )
    counts = torch.bincount(desired[:, 1].long(), minlength=5)
    assert counts.nonzero().flatten().tolist() == goals
    expected = num_draws / len(goals)
    chi_squared = ((counts[goals] - expected) ** 2 / expected).sum().item()
    assert chi_squared < 16.3  # 0.999 quantile with 3 degrees of freedom
    assert torch.equal(reward[:, 1] == 1, desired[:, 1] == start + 1)


def goals_of_parts(step_types, oldest, start, length, strategy):
    """(positions, possible goals) of each part of a window that is in one episode.

    Of one environment, step by step; no goals where the part is all that follows.
    """
    newest = len(step_types) - 1
    window = range(start, start + length)
    begins = [p for p in window if p == start or step_types[p] == FIRST]
    for begin, following in itertools.zip_longest(begins, begins[1:]):
        first = last = begin
        while first > oldest and step_types[first] != FIRST:
            first -= 1
        while last < newest and step_types[last] != LAST:
            last += 1
        goals = {
            "future": set(range(begin + 1, last + 1)),
            "final": {last},
            "episode": set(range(first + 1, last + 1)),
        }[strategy]
        end = start + length if following is None else following
        yield range(begin, end), goals if begin < last else set()


@pytest.mark.ci
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["future", "final", "episode"]),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(2, 7),
)
def test_each_part_of_a_window_has_a_goal_of_its_own_episode(
    strategy, lengths, num_missing, num_overwritten, length
):
    """Also where the begin is missing or overwritten, and the last one is open."""
    steps = [t for n in lengths for t in (FIRST, *[MID] * (n - 1), LAST)]
    column = [*steps[num_missing:], FIRST, MID]
    other = [FIRST] + [MID] * (len(column) - 1)
    assume(len(column) - num_overwritten >= length)
    buffer = buffer_of(column, other, max_length=len(column) - num_overwritten)
    starts = range(num_overwritten, len(column) - length + 1)
    places = [(0, start) for start in starts for _ in range(60)]
    desired, reward = relabel(her(strategy=strategy), buffer, places, length)
    seen: dict[tuple[int, int], set[float]] = {}
    for (_, start), row, rewards in zip(
        places, desired.tolist(), reward.tolist(), strict=True
    ):
        for part, goals in goals_of_parts(
            column, num_overwritten, start, length, strategy
        ):
            (goal,) = {row[p - start] for p in part}
            assert goal in (goals or {-9})
            seen.setdefault((start, part.start), set()).add(goal)
            for p in part:
                expected = -1.0 if goal == -9 else float(goal == p)
                expected = 0.0 if column[p] == FIRST else expected
                assert rewards[p - start] == expected
    for start in starts:
        for part, goals in goals_of_parts(
            column, num_overwritten, start, length, strategy
        ):
            assert len(goals) > 3 or seen[start, part.start] == (goals or {-9})


# Which windows and which steps


def test_proportion_zero_changes_nothing_and_needs_no_rewards():
    buffer = buffer_of(THREE_STEPS)
    experience, source = windows(buffer, [(0, t) for t in range(3)], 2)
    transformer = her(her_proportion=0.0, reward_function=None)
    transformer._reward_function = lambda *goals: pytest.fail("not needed")
    unchanged = transformer.transform_experience(experience, source)
    for before, after in zip(
        nest.flatten(experience), nest.flatten(unchanged), strict=True
    ):
        assert torch.equal(before, after)


def test_windows_are_relabelled_independently_with_the_given_proportion():
    torch.manual_seed(0)
    num_windows = 5000
    desired, reward = relabel(
        her(her_proportion=0.3, strategy="final"),
        buffer_of(THREE_STEPS),
        [(0, 2)] * num_windows,
        2,
    )
    relabelled = desired[:, 1] == 3
    assert torch.equal(desired[:, 0], desired[:, 1])
    sigma = (0.3 * 0.7 / num_windows) ** 0.5
    assert abs(relabelled.float().mean().item() - 0.3) < 4 * sigma
    # The other windows keep goal and reward, though -1 is nothing is_equal returns.
    assert (desired[~relabelled] == -9).all()
    assert (reward[~relabelled] == -1).all()
    assert (reward[relabelled, 1] == 1).all()
    # Neighbours have nothing to do with each other.
    both = (relabelled[1:] & relabelled[:-1]).float().mean().item()
    assert abs(both - 0.09) < 0.02


def test_nothing_but_goal_and_reward_changes():
    buffer = buffer_of(THREE_STEPS, THREE_STEPS)
    experience, source = windows(buffer, [(0, 1), (1, 2)], 2)
    before = nest.map_structure(torch.clone, experience)
    stored = nest.map_structure(torch.clone, buffer.gather_all()[0])
    after = her().transform_experience(experience, source)
    kept = ("discount", "step_type")
    for name in kept:
        assert torch.equal(
            getattr(after.time_step, name), getattr(before.time_step, name)
        )
    assert (after.time_step.discount[1, 1] == 0) & (after.time_step.discount[0, 1] == 1)
    for name in ("observation", "achieved_goal"):
        assert torch.equal(
            after.time_step.observation[name], before.time_step.observation[name]
        )
    assert torch.equal(after.action, before.action)
    # Neither the sample nor what is stored was written to.
    for one, other in zip(
        nest.flatten((before, stored)),
        nest.flatten((experience, buffer.gather_all()[0])),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_the_reward_of_a_first_step_stays_zero():
    transformer = her(reward_function=lambda achieved, desired: 7 + 0 * achieved[:, 0])
    _, reward = relabel(transformer, buffer_of(THREE_STEPS), [(0, 0), (0, 1)], 2)
    assert reward.tolist() == [[0, 7], [7, 7]]


def test_every_part_is_relabelled_with_the_given_proportion():
    torch.manual_seed(0)
    desired, _ = relabel(
        her(her_proportion=0.5), buffer_of(THREE_STEPS * 2), [(0, 0)] * 4000, 8
    )
    first, second = desired[:, 0] != -9, desired[:, 4] != -9
    for fraction, expected in [(first, 0.5), (second, 0.5), (first & second, 0.25)]:
        assert abs(fraction.float().mean().item() - expected) < 0.04


# In a sequence


def test_stacked_goals_are_all_relabelled():
    def stacker(observation_spec, reward_spec):
        return FrameStacker(observation_spec, reward_spec, stack_size=3)

    columns = [THREE_STEPS * 2]
    transformer = create_data_transformer([her_ctor(), stacker], SPEC)
    assert transformer.num_history_steps == 2
    buffer = buffer_of(*columns)
    starts = [(0, t) for t in (2, 4, 5, 6)] * 50
    experience, source = windows(buffer, starts, 2)
    experience, source = source.with_history(experience, 2)
    observation = transformer.transform_experience(
        experience, source
    ).time_step.observation
    assert observation["desired_goal"].shape == (200, 2, 3)
    for (_, start), goals, achieved in zip(
        starts,
        observation["desired_goal"].tolist(),
        observation["achieved_goal"].tolist(),
        strict=True,
    ):
        [goal] = set(itertools.chain(*goals))
        # Never what was achieved in the history, though the stack shows it.
        assert start < goal <= (3 if start < 4 else 7)
        begin = 0 if start < 4 else 4
        for t, stack in enumerate(achieved, start):
            assert stack == [max(t - 2, begin), max(t - 1, begin), t]


def test_later_transformers_see_the_new_goals():
    def scaling(observation_spec, reward_spec):
        return RewardScaling(observation_spec, reward_spec, scale=10.0)

    transformer = create_data_transformer(
        [UntransformedTimeStep, her_ctor(strategy="final"), scaling], SPEC
    )
    experience, source = windows(buffer_of(THREE_STEPS), [(0, 2)], 2)
    time_step = transformer.transform_experience(experience, source).time_step
    assert time_step.reward.tolist() == [[0, 10]]
    assert time_step.untransformed.reward.tolist() == [[-1, -1]]
    assert (time_step.untransformed.observation["desired_goal"] == -9).all()


def test_acting_and_statistics_see_the_goals_that_are_meant():
    transformer = her()
    step, _ = windows(buffer_of(THREE_STEPS), [(0, 1)], 2)
    raw = step.time_step
    assert transformer.transform_timestep(raw, ()) == (raw, ())
    assert transformer.transform_unroll(raw) is raw
    assert transformer.state_spec == ()


@pytest.mark.parametrize("other", [ObservationNormalizer, FrameStacker])
def test_it_must_come_before_what_changes_goals(other):
    with pytest.raises(ConfigError, match=r"\(HINDSIGHT\) must come before"):
        create_data_transformer([other, her_ctor()], SPEC)


# Rewards and bad input


def test_rewards_can_have_several_parts():
    def two_rewards(achieved, desired):
        return torch.cat([achieved, desired], dim=-1)

    transformer = HindsightExperienceTransformer(
        SPEC,
        TensorSpec((2,)),
        her_proportion=1.0,
        strategy="final",
        reward_function=two_rewards,
    )
    experience, source = windows(buffer_of(THREE_STEPS), [(0, 0)], 3)
    time_step = experience.time_step
    time_step = time_step._replace(reward=torch.zeros(1, 3, 2))
    trained = transformer.transform_experience(
        experience._replace(time_step=time_step), source
    )
    assert trained.time_step.reward.tolist() == [[[0, 0], [1, 3], [2, 3]]]


def test_a_reward_function_may_compute_with_numpy():
    experience, source = windows(buffer_of(THREE_STEPS), [(0, 0)], 3)
    expected = her(strategy="final").transform_experience(experience, source)
    computed = her(
        strategy="final", reward_function=lambda *goals: is_equal(*goals).numpy()
    ).transform_experience(experience, source)
    assert torch.equal(computed.time_step.reward, expected.time_step.reward)
    with pytest.raises(ConfigError, match="must be a function of achieved and desired"):
        her(reward_function="is_equal")


@pytest.mark.parametrize("reanalyze_ratio", [0.9, 1.0])
def test_muzero_does_not_learn_what_was_found_for_another_goal(reanalyze_ratio):
    algorithm = MuzeroAlgorithm(
        env=create_environment(env_ctor=PointGoalEnv, seed=0),
        config=TrainerConfig(
            num_iterations=1, data_transformer_ctor=[HindsightExperienceTransformer]
        ),
        reanalyze_ratio=reanalyze_ratio,
        optimizer=Adam(lr=1e-3),
    )
    if reanalyze_ratio == 1:
        algorithm.setup_training()
    else:
        with pytest.raises(ConfigError, match="reanalyze_ratio = 1, so"):
            algorithm.setup_training()


def test_rewards_of_a_wrong_shape_are_refused():
    transformer = her(reward_function=lambda achieved, desired: achieved)
    with pytest.raises(
        ValueError, match=r"must return shape \(2,\) for as many goals, "
    ):
        relabel(transformer, buffer_of(THREE_STEPS), [(0, 1)], 2)


def test_goals_may_be_anywhere_in_the_observation():
    spec = ({"place": GOAL}, GOAL)
    transformer = HindsightExperienceTransformer(
        spec,
        her_proportion=1.0,
        strategy="final",
        achieved_goal_field="0.place",
        desired_goal_field="1",
        reward_function=is_equal,
    )
    goals = torch.arange(3.0).view(3, 1, 1)
    experience = Experience(
        time_step=TimeStep(
            step_type=torch.tensor([[FIRST], [MID], [LAST]], dtype=torch.int32),
            reward=torch.zeros(3, 1),
            observation=({"place": goals}, goals - 5),
        )
    )
    buffer = ReplayBuffer(nest.extract_spec(experience, from_dim=2), 1, 3)
    buffer.add_batch(experience, time_major=True)
    sample, info = buffer.gather_all()
    trained = transformer.transform_experience(sample, WindowOrigin(buffer, info))
    assert trained.time_step.observation[1].flatten().tolist() == [2, 2, 2]
    assert trained.time_step.reward.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"her_proportion": 1.5}, r"her_proportion must be in \[0, 1\], got 1.5"),
        ({"strategy": "past"}, "strategy must be one of .*, got 'past'"),
        ({"desired_goal_field": "goal"}, "no field 'goal'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        her(**arguments)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TensorSpec((2,)), "must have the same shape and dtype"),
        (TensorSpec((1,), torch.float64), "must have the same shape and dtype"),
        ({"x": GOAL, "y": GOAL}, "'desired_goal' must be one tensor, it has 2 parts"),
    ],
)
def test_goals_that_cannot_be_exchanged_are_refused(other, message):
    with pytest.raises(ConfigError, match=message):
        HindsightExperienceTransformer(SPEC | {"desired_goal": other})


class GoalEnvOfThreeArguments(PointGoalEnv):
    """As the environments of gymnasium-robotics declare it."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        assert info == {}
        return super().compute_reward(achieved_goal, desired_goal) * 2


@pytest.mark.parametrize(
    ("env_ctor", "expected"),
    [
        (PointGoalEnv, [0, -1]),
        (GoalEnvOfThreeArguments, [0, -2]),
        (lambda: gymnasium.wrappers.TimeLimit(PointGoalEnv(), 5), [0, -1]),
    ],
)
def test_single_environments_of_this_process_are_asked(env_ctor, expected):
    with create_environment(env_ctor=env_ctor, num_parallel_environments=2) as env:
        compute_reward = reward_function_of(env)
        reward = compute_reward(ACHIEVED, DESIRED)
    assert reward.dtype == torch.float32
    assert reward.tolist() == expected


def test_gymnasiums_own_vector_environments_are_asked():
    vector_env = gymnasium.vector.SyncVectorEnv([PointGoalEnv] * 2)
    with GymnasiumEnvironment(vector_env) as env:
        assert reward_function_of(env)(ACHIEVED, DESIRED).tolist() == [0, -1]


def test_a_batched_environment_may_compute_rewards_itself():
    class VectorEnv(gymnasium.vector.SyncVectorEnv):
        def compute_reward(self, achieved_goals, desired_goals):
            return np.full(len(achieved_goals), 3.0)

    class TensorEnvironment(GymnasiumEnvironment):
        def compute_reward(self, achieved_goals, desired_goals):
            return achieved_goals.sum(-1)

    with GymnasiumEnvironment(VectorEnv([PointGoalEnv])) as env:
        assert reward_function_of(env)(ACHIEVED, DESIRED).tolist() == [3, 3]
    with TensorEnvironment(VectorEnv([PointGoalEnv])) as env:
        assert reward_function_of(env)(ACHIEVED, DESIRED).tolist() == [0, 1.5]


def test_an_environment_without_one_is_refused():
    with create_environment(env_ctor=ValueEnv) as env:
        assert reward_function_of(env) is None
    with (
        create_environment(env_ctor=PointGoalEnv, vectorization_mode="async") as env,
        pytest.raises(ConfigError, match=r"no compute_reward.*reward_function"),
    ):
        create_data_transformer(
            HindsightExperienceTransformer, env.observation_spec, training_env=env
        )


@pytest.mark.parametrize(
    ("wrappers", "is_told"),
    [([], False), ([functools.partial(ActionRepeat, num_repeats=4)], True)],
)
def test_wrappers_that_change_rewards_are_told(caplog, wrappers, is_told):
    with create_environment(
        env_ctor=PointGoalEnv, num_parallel_environments=2, wrappers=wrappers, seed=0
    ) as env:
        algorithm = DdpgAlgorithm(
            env.observation_spec,
            env.action_spec,
            env=env,
            config=TrainerConfig(
                num_iterations=1,
                unroll_length=30,
                initial_collect_steps=0,
                num_updates_per_train_iter=1,
                mini_batch_length=2,
                data_transformer_ctor=HindsightExperienceTransformer,
            ),
            optimizer=Adam(lr=1e-3),
        )
        algorithm.train_iter()
    assert ("such as -1.0 in place of -4.0" in caplog.text) == is_told


def test_a_given_function_goes_before_the_environments():
    def ones(achieved, desired):
        return torch.ones(len(achieved))

    def ctor(observation_spec, reward_spec):
        return HindsightExperienceTransformer(
            observation_spec, reward_spec, reward_function=ones
        )

    with create_environment(env_ctor=PointGoalEnv) as env:
        transformer = create_data_transformer(
            [ctor], env.observation_spec, training_env=env
        )
    assert transformer.transformers[0]._reward_function is ones
