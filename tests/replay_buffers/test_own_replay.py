"""Transformers that look beyond a step get the steps they need from the buffer."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning import construction
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.data_structures import AlgStep, LossInfo
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.data_transformers.hindsight import HindsightExperienceTransformer
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import SGD
from alf_lite.replay_buffers.window_sampler import SamplingOptions
from alf_lite.testing.goal_environment import PointGoalEnv
from alf_lite.testing.structured_environments import CountingEnv


class Recorder(RLAlgorithm):
    """Acts at random and keeps what it sees: acting, and in training [B, T]."""

    def __init__(self, observation_spec, action_spec, **kwargs):
        super().__init__(
            observation_spec,
            action_spec,
            is_on_policy=False,
            optimizer=SGD(lr=0.1),
            **kwargs,
        )
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.acted_on: list[Any] = []
        self.trained_on: list[Any] = []
        self.batch_infos: list[Any] = []

    def rollout_step(self, inputs, state):
        self.acted_on.append(inputs.observation)
        return AlgStep(self.action_spec.sample(inputs.reward.shape))

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        self.trained_on.append(root_inputs)
        self.batch_infos.append(batch_info)
        return root_inputs, rollout_info

    def train_step(self, inputs, state, rollout_info):
        return AlgStep(info=inputs.reward * self.weight)

    def calc_loss(self, info):
        return LossInfo(loss=info + self.weight, priority=torch.ones(info.shape[1]))


def make(env_ctor, *transformers, num=2, **settings) -> Recorder:
    torch.manual_seed(0)
    env = create_environment(env_ctor=env_ctor, num_parallel_environments=num, seed=0)
    settings = {
        "unroll_length": 3,
        "mini_batch_length": 2,
        "mini_batch_size": 64,
        "num_iterations": 1,
        **settings,
    }
    config = TrainerConfig(
        algorithm_ctor=Recorder, data_transformer_ctor=transformers, **settings
    )
    return create_algorithm(config, env)


def triples(observation_spec, reward_spec):
    return FrameStacker(observation_spec, reward_spec, stack_size=3)


def all_hindsight(observation_spec, reward_spec):
    return HindsightExperienceTransformer(
        observation_spec, reward_spec, her_proportion=1.0
    )


def counting_env():
    return CountingEnv(episode_lengths=(3, 1, 5))


@pytest.mark.parametrize("priority_replay", [False, True])
@pytest.mark.parametrize("mini_batch_length", [2, 6])
def test_training_sees_the_stacks_that_the_policy_saw(
    mini_batch_length, priority_replay
):
    algorithm = make(
        counting_env,
        triples,
        mini_batch_length=mini_batch_length,
        priority_replay=priority_replay,
        replay_buffer_length=14,
    )
    for _ in range(10):
        algorithm.train_iter()
    acted_on = torch.stack(algorithm.acted_on, dim=1)  # [B, steps, 3]
    assert len(algorithm.trained_on) >= 7
    for time_step, info in zip(
        algorithm.trained_on, algorithm.batch_infos, strict=True
    ):
        steps = info.positions.unsqueeze(1) + torch.arange(mini_batch_length)
        expected = acted_on[info.env_ids.unsqueeze(1), steps]
        assert torch.equal(time_step.observation, expected)
    # One frame per step is stored.
    buffer = algorithm.replay_buffer
    assert buffer.data_spec.time_step.observation.shape == (1,)


def test_training_waits_until_windows_have_their_history():
    algorithm = make(counting_env, triples, unroll_length=1)
    trained = [algorithm.train_iter() > 0 for _ in range(6)]
    # Two steps to train on, and two before them.
    assert trained == [False, False, False, True, True, True]


def test_the_whole_buffer_is_trained_with_its_history():
    algorithm = make(
        counting_env, triples, unroll_length=9, whole_replay_buffer_training=True
    )
    # 9 steps: 2 are history, the newest one has no successor.
    assert algorithm.train_iter() == 2 * 6
    acted_on = torch.stack(algorithm.acted_on, dim=1)
    windows = torch.stack([acted_on[:, 2:-1], acted_on[:, 3:]], dim=2).flatten(0, 1)
    assert torch.equal(algorithm.trained_on[0].observation, windows)


def test_a_buffer_too_short_for_one_window_is_refused():
    with pytest.raises(ConfigError, match=r"=3 is too short.* read 2 steps before it"):
        make(counting_env, triples, replay_buffer_length=3)


def test_training_sees_goals_that_were_reached():
    algorithm = make(PointGoalEnv, all_hindsight, triples, unroll_length=30)
    algorithm.train_iter()
    [time_step] = algorithm.trained_on
    observation = time_step.observation
    meant = torch.stack([step["desired_goal"] for step in algorithm.acted_on]).flatten(
        0, 1
    )
    is_new = ~(observation["desired_goal"].unsqueeze(2) == meant).all(-1).any(-1)
    starts = time_step.step_type[:, 0] != 2
    assert is_new[starts].all()
    # Some windows reach their new goal, which chance does not.
    newest = observation["achieved_goal"][..., -3:]
    goal = observation["desired_goal"][..., -3:]
    reached = (newest - goal).norm(dim=-1) <= 0.05
    assert reached[:, 1].any()
    counted = starts.unsqueeze(1) & (time_step.step_type != 0)
    assert torch.equal(time_step.reward[counted] == 0, reached[counted])


def test_hindsight_needs_an_algorithm_that_replays():
    with create_environment(env_ctor=PointGoalEnv) as env:
        config = TrainerConfig(
            algorithm_ctor=PPOAlgorithm,
            data_transformer_ctor=[all_hindsight],
            num_iterations=1,
        )
        with pytest.raises(ConfigError, match="PPOAlgorithm is on-policy"):
            create_algorithm(config, env)


@pytest.mark.parametrize(
    "settings",
    [
        {"replay_buffer_length": 500},
        {"updates_per_draw": 3},
        {"whole_replay_buffer_training": True},
        {"checkpoint_replay_buffer": True},
        {"checkpoint_replay_buffer_gb": 3.0},
    ],
)
def test_without_replay_its_settings_are_refused(settings):
    ((name, _),) = settings.items()
    with create_environment("CartPole-v1", 1) as env:
        config = TrainerConfig(num_iterations=1, **settings)
        with pytest.raises(ConfigError, match=f"{name} is .* has no replay buffer"):
            PPOAlgorithm(env=env, config=config)


def test_stored_steps_have_no_graph():
    with create_environment("CartPole-v1", 1) as env:
        config = TrainerConfig(num_iterations=1, unroll_with_grad=True)
        with pytest.raises(ConfigError, match=r"unroll_with_grad .* off-policy"):
            DqnAlgorithm(env=env, config=config)


def test_only_training_needs_the_reward_function():
    with create_environment(env_ctor=PointGoalEnv, vectorization_mode="async") as env:
        config = TrainerConfig(
            algorithm_ctor=Recorder,
            data_transformer_ctor=[all_hindsight],
            num_iterations=1,
        )
        create_algorithm(config, env, is_eval=True)
        with pytest.raises(ConfigError, match="no compute_reward"):
            create_algorithm(config, env)


# Options of the buffer, from a conf


def configured(*bindings: str, **settings) -> Recorder:
    config_files.parse_config(None, bindings)
    with config_files.gin_errors():
        algorithm = make(counting_env, **settings)
        algorithm.setup_training()
    return algorithm


def test_every_option_is_reached_from_a_conf(tmp_path):
    algorithm = configured(
        "StorageOptions.storage = 'memmap'",
        f"StorageOptions.directory = '{tmp_path}'",
        "SamplingOptions.recent_data_ratio = 0.5",
        "SamplingOptions.recent_data_steps = 2",
        "PriorityOptions.alpha = 1.0",
        "PriorityOptions.beta = @LinearScheduler()",
        "LinearScheduler.schedule = ((0.0, 0.4), (1.0, 1.0))",
        "PriorityOptions.eps = 0.5",
        "PriorityOptions.initial_priority = 2.0",
        "PriorityOptions.normalization = 'batch'",
        priority_replay=True,
    )
    # All are read before anything is trained, as a misspelt one shall be noticed.
    assert config_files.unused_bindings() == []
    algorithm.train_iter()
    buffer = algorithm.replay_buffer
    assert buffer._storage.directory == str(tmp_path)
    assert buffer._sampling == SamplingOptions(
        recent_data_ratio=0.5, recent_data_steps=2
    )
    priority = buffer._sampler._priority
    assert (priority.alpha, priority.eps) == (1.0, 0.5)
    assert (priority.initial_priority, priority.normalization) == (2.0, "batch")
    algorithm.progress.percent = 0.5
    assert priority.beta() == pytest.approx(0.7)


def test_the_memory_map_of_a_run_is_in_its_directory(tmp_path):
    algorithm = configured(
        "StorageOptions.storage = 'memmap'", root_dir=str(tmp_path / "run")
    )
    algorithm.train_iter()
    assert algorithm.replay_buffer._storage.directory == str(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []  # it has no name


@pytest.mark.parametrize(
    ("bindings", "settings", "message"),
    [
        (["StorageOptions.storage = 'memmap'"], {}, "nothing says where the file"),
        (
            ["StorageOptions.storage = 'disk'"],
            {},
            r"^StorageOptions: storage must be one of .*\n.*StorageOptions\.storage",
        ),
        (["SamplingOptions.max_use = 0"], {}, "max_use must be at least 1, got 0"),
        (
            ["PriorityOptions.beta = @LinearScheduler"],
            {"priority_replay": True},
            "beta.*with parentheses",
        ),
        (
            ["SamplingOptions.with_replacement = False"],
            {"priority_replay": True},
            "prioritized sampling needs SamplingOptions.with_replacement",
        ),
        (
            ["SamplingOptions.max_use = 2"],
            {"whole_replay_buffer_training": True},
            "SamplingOptions have no effect",
        ),
    ],
)
def test_options_that_cannot_be_are_refused_before_training(
    bindings, settings, message
):
    with pytest.raises(ConfigError, match=message):
        configured(*bindings, **settings)


def test_options_of_priorities_without_priorities_are_reported():
    configured("PriorityOptions.alpha = 0.7")
    [unused] = config_files.unused_bindings()
    assert "PriorityOptions.alpha" in unused


def test_a_buffer_that_does_not_fit_says_how_many_gigabytes_it_needs():
    algorithm = configured(replay_buffer_length=10**13)
    with pytest.raises(
        ConfigError, match=r"needs [\d.]+ GB of cpu memory.*replay_buffer_length"
    ):
        algorithm.train_iter()


def test_the_size_is_logged_once(caplog):
    caplog.set_level("INFO", logger="alf_lite")
    algorithm = configured(replay_buffer_length=1_000_000)
    for _ in range(3):
        algorithm.train_iter()
    [line] = [text for text in caplog.messages if "Replay buffer" in text]
    assert re.search(r"2 environments x 1000000 steps x \d+ bytes = 0\.\d+ GB", line)


def ages(algorithm: Recorder) -> set[int]:
    """How many steps ago the windows of the last batch were collected."""
    newest = algorithm.replay_buffer.end_positions[0] - 1
    return set((newest - algorithm.batch_infos[-1].positions).tolist())


@pytest.mark.parametrize(
    ("max_staleness", "expected"),
    [(0, {1, 2}), (1, {1, 2, 3, 4, 5}), (None, set(range(1, 15)))],
)
def test_stale_steps_are_not_trained(max_staleness, expected):
    algorithm = configured(
        f"SamplingOptions.max_staleness = {max_staleness}", mini_batch_size=2000
    )
    for _ in range(5):
        algorithm.train_iter()  # of 3 steps each; the newest one has no successor
    assert ages(algorithm) == expected


def test_training_waits_until_there_is_something_fresh():
    algorithm = configured(
        "SamplingOptions.max_staleness = 0", unroll_length=0.5, mini_batch_size=4
    )
    trained = [algorithm.train_iter() > 0 for _ in range(8)]
    # A step every other iteration: the newest one has no successor, all others are old.
    assert not any(trained)
    fresher = configured_again(
        "SamplingOptions.max_staleness = 2", unroll_length=0.5, mini_batch_size=4
    )
    trained = [fresher.train_iter() > 0 for _ in range(8)]
    # Steps come in iterations 1, 3, 5, 7 and are starts while at most 2 old.
    assert trained == [False, False, False, True, False, True, False, True]


def configured_again(*bindings: str, **settings) -> Recorder:
    config_files.reset()
    return configured(*bindings, **settings)


def test_steps_are_trained_on_so_often_and_no_more():
    algorithm = configured("SamplingOptions.max_use = 1", mini_batch_size=4)
    trained = [algorithm.train_iter() for _ in range(4)]
    # 3 steps of 2 environments come in an iteration: 4 windows at first, then 6.
    assert trained == [8, 8, 8, 8]
    counts = Counter(
        pair
        for info in algorithm.batch_infos
        for pair in zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)
    )
    assert set(counts.values()) == {1}


@pytest.mark.ci
@pytest.mark.parametrize("updates_per_draw", [None, 1, 3])
@pytest.mark.parametrize("priority_replay", [False, True])
@pytest.mark.parametrize("max_use", [1, 3])
def test_training_waits_until_an_iteration_uses_nothing_too_often(
    max_use, priority_replay, updates_per_draw
):
    algorithm = configured(
        f"SamplingOptions.max_use = {max_use}",
        unroll_length=5,
        mini_batch_size=4,
        num_updates_per_train_iter=8,
        updates_per_draw=updates_per_draw,
        priority_replay=priority_replay,
    )
    trained = [algorithm.train_iter() for _ in range(20)]
    assert set(trained) == {0, 8 * 4 * 2}
    counts = Counter(
        pair
        for info in algorithm.batch_infos
        for pair in zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)
    )
    assert max(counts.values()) == max_use
    # 8 windows come in the first iteration and 10 in every other: 32 are drawn as soon
    # as their uses are enough.
    assert counts.total() == 32 * int(198 * max_use // 32) or max_use == 3
    assert trained[-1] or max_use == 1


def test_training_waits_until_no_window_has_to_come_twice():
    algorithm = configured(
        "SamplingOptions.with_replacement = False",
        mini_batch_size=4,
        num_updates_per_train_iter=4,
    )
    trained = [algorithm.train_iter() > 0 for _ in range(5)]
    # 4 windows come in the first iteration and 6 in every other; 16 are drawn.
    assert trained == [False, False, True, True, True]
    [pairs, *_] = [
        set(zip(info.env_ids.tolist(), info.positions.tolist(), strict=True))
        for info in algorithm.batch_infos
    ]
    assert len(pairs) == 16


@pytest.mark.parametrize(
    ("bindings", "settings", "message"),
    [
        (
            ["with_replacement = False"],
            {"replay_buffer_length": 20, "mini_batch_size": 39},
            r"with_replacement=False: 39 windows .* replay_buffer_length=20 there are "
            "never more than 38",
        ),
        (
            ["max_use = 2"],
            {"replay_buffer_length": 20, "mini_batch_size": 77},
            "max_use=2: 77 windows .* never more than 76",
        ),
        (
            ["max_use = 1", "max_staleness = 3"],
            {"num_updates_per_train_iter": 2, "mini_batch_size": 12},
            "max_use=1: 24 windows .* with max_staleness=3 .* never more than 22",
        ),
        (
            [
                "with_replacement = False",
                "recent_data_ratio = 0.5",
                "recent_data_steps = 9",
            ],
            {"mini_batch_size": 38},
            "19 different ones of the newest .* of 2 environments are only 18",
        ),
    ],
)
def test_batches_that_there_can_never_be_are_refused_before_training(
    bindings, settings, message
):
    with pytest.raises(ConfigError, match=message):
        configured(*(f"SamplingOptions.{binding}" for binding in bindings), **settings)


def test_what_a_new_beginning_cuts_off_is_marked_as_an_end():
    algorithm = make(CountingEnv, unroll_length=3)
    algorithm.unroll(3)
    # As when the only unroll worker is replaced.
    algorithm.training_run.collector.unroller.reset()
    algorithm.unroll(3)
    experience, _ = algorithm.replay_buffer.gather_all()
    steps = experience.time_step
    assert steps.step_type[:, :4].tolist() == [[0, 1, 2, 0]] * 2
    assert steps.discount[:, 2].tolist() == [1, 1]


@pytest.mark.ci
@pytest.mark.parametrize("most_at_once", [1, 3, 1000])  # that workers can hold
@pytest.mark.parametrize("samples_per_insert", [0.5, 4.0, 40.0])
def test_samples_per_insert_is_kept_whatever_the_workers_deliver(
    monkeypatch, most_at_once, samples_per_insert
):
    # The unrolls of the workers are made here.
    monkeypatch.setattr(construction, "RemoteEnvironment", Environment)
    algorithm = make(
        CountingEnv,
        async_unroll=True,
        unroll_length=0,
        max_unroll_length=8,
        samples_per_insert=samples_per_insert,
        initial_collect_steps=40,
        mini_batch_size=10,
        num_updates_per_train_iter=2,
    )
    inserted, sampled = 0, 0
    tolerance = max(2 * max(20, samples_per_insert * 2), 4 * samples_per_insert)

    def take(at_least: int, at_most: int):
        nonlocal inserted
        assert 0 <= at_least <= at_most <= 8
        number = min(max(at_least, at_most // 2), most_at_once)
        if number == 0:
            return None
        inserted += 2 * number
        return algorithm.unroll(number)

    algorithm.training_run.collector.take_what_is_there = take
    num_trained = 0
    for _ in range(100):
        if algorithm.train_iter():
            num_trained += 1
            sampled += 20
        if sampled:
            assert inserted >= 40
            assert abs(samples_per_insert * (inserted - 40) - sampled) <= tolerance
    assert num_trained > 3
