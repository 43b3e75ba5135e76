"""Training on own steps and offline buffers together, through one path."""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.dqfd_algorithm import DqfdAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.data_structures import AlgStep, LossInfo
from alf_lite.data_transformers.normalizing_transformers import ObservationNormalizer
from alf_lite.data_transformers.sqil_transformer import SqilTransformer
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import SGD, Adam
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import TensorSpec
from alf_lite.testing.structured_environments import CountingEnv
from tests.datasets.recorded_episodes import load_instead


class Recorder(RLAlgorithm):
    """Keeps the observations it is trained on; its loss is its only parameter."""

    def __init__(self, observation_spec, action_spec, *, recurrent=False, **kwargs):
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=TensorSpec((), torch.int64) if recurrent else (),
            is_on_policy=False,
            **kwargs,
        )
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.info: Any = ()
        self.batches: list[torch.Tensor] = []
        self.batch_info: list[Any] = []
        self.states: list[list[int]] = []
        self.num_after_updates = 0

    def rollout_step(self, inputs, state):
        action = torch.zeros(inputs.reward.shape[0], dtype=torch.int64)
        return AlgStep(action, nest.map_structure(lambda s: s + 1, state), self.info)

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        self.batch_info.append(batch_info)
        return root_inputs, rollout_info

    def train_step(self, inputs, state, rollout_info):
        if isinstance(state, torch.Tensor):
            self.states.append(state.tolist())
            return AlgStep(
                state=state + 1, info=inputs.observation.squeeze(-1) * self.weight
            )
        self.batches.append(inputs.observation.squeeze(-1))
        return AlgStep(info=inputs.observation.squeeze(-1) * self.weight)

    def calc_loss(self, info):
        return LossInfo(loss=info, priority=torch.ones(info.shape[1]))

    def after_update(self, root_inputs, info):
        self.num_after_updates += 1


class TwoLosses(Recorder):
    """Its loss is twice as large for offline steps."""

    has_offline_loss = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.offline_batches: list[torch.Tensor] = []

    def train_step_offline(self, inputs, state, rollout_info):
        self.offline_batches.append(inputs.observation.squeeze(-1))
        return AlgStep(info=2 * inputs.observation.squeeze(-1) * self.weight)


def make_env(num: int = 2):
    return create_environment(
        env_ctor=CountingEnv, num_parallel_environments=num, seed=0
    )


def offline_buffer(offset: float, num_steps: int = 20, num: int = 1) -> ReplayBuffer:
    """Steps of CountingEnv, recognised by ``offset`` in their observations."""
    with make_env(num) as env:
        algorithm = Recorder(
            env.observation_spec,
            env.action_spec,
            env=env,
            config=TrainerConfig(num_iterations=1, mini_batch_length=1),
            optimizer=SGD(lr=0.1),
        )
        algorithm.unroll(num_steps)
        steps, _ = algorithm.replay_buffer.gather_all()
    steps = steps._replace(
        time_step=steps.time_step._replace(
            observation=steps.time_step.observation + offset
        )
    )
    buffer = ReplayBuffer(nest.extract_spec(steps, from_dim=2), num, num_steps)
    by_time = nest.map_structure(lambda t: t.transpose(0, 1), steps)
    buffer.add_batch(by_time, time_major=True)
    return buffer


def make(cls=Recorder, *, num_offline=1, recurrent=False, **settings) -> Any:
    torch.manual_seed(0)
    if num_offline:
        settings["offline_buffer_dir"] = [f"offline{k}" for k in range(num_offline)]
    settings = {
        "num_iterations": 1,
        "unroll_length": 4,
        "mini_batch_size": 10,
        "mini_batch_length": 1,
        **settings,
    }
    env = make_env()
    algorithm = cls(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=TrainerConfig(**settings),
        optimizer=SGD(lr=0.1),
        **({"recurrent": True} if recurrent else {}),
    )
    buffers = [offline_buffer(10_000.0 * (k + 1)) for k in range(num_offline)]
    load_instead(algorithm, *buffers)
    return algorithm


def sources(observation: torch.Tensor) -> dict[int, int]:
    """Source → number of rows."""
    return dict(collections.Counter((observation // 10_000).long().tolist()))


def test_every_update_has_the_same_number_of_rows_of_each_source():
    algorithm = make(
        num_offline=2, mixing_ratios=(0.5, 0.29, 0.21), num_updates_per_train_iter=3
    )
    algorithm.train_iter()
    assert [sources(batch) for batch in algorithm.batches] == [{0: 5, 1: 3, 2: 2}] * 3


def test_a_source_that_no_batch_has_a_window_of_is_refused():
    with pytest.raises(ConfigError, match=r"no window .* offline0, which would never"):
        make(mixing_ratios=[0.96, 0.04])
    with pytest.raises(ConfigError, match=r"no window .* offline1, which would never"):
        make(num_offline=2, mini_batch_size=None)


def test_half_of_a_batch_are_own_steps_by_default():
    algorithm = make(num_offline=2, mini_batch_size=12)
    algorithm.train_iter()
    assert sources(algorithm.batches[0]) == {0: 6, 1: 3, 2: 3}


def test_the_source_of_every_row_is_told():
    algorithm = make(num_offline=2, mini_batch_size=12)
    algorithm.train_iter()
    told = algorithm.batch_info[0].source
    assert told.tolist() == (algorithm.batches[0] // 10_000).long().tolist()


def test_without_offline_buffers_there_is_nothing_to_tell():
    algorithm = make(num_offline=0)
    algorithm.train_iter()
    assert algorithm.batch_info[0].source == ()


def test_pre_training_takes_no_step_and_updates_targets_all_the_same():
    algorithm = make(
        num_offline=2, mixing_ratios=(0.5, 0.1, 0.4), rl_train_after_update_steps=3
    )
    env_steps = []
    for _ in range(5):
        algorithm.train_iter()
        env_steps.append(algorithm.num_env_steps)
    assert env_steps[:3] == [0, 0, 0]
    assert 0 < env_steps[3] < env_steps[4]
    # Without own steps, the others keep their proportion.
    assert [sources(batch) for batch in algorithm.batches] == [
        *[{1: 2, 2: 8}] * 3,
        *[{0: 5, 1: 1, 2: 4}] * 2,
    ]
    assert algorithm.num_after_updates == 5


def test_own_steps_are_trained_in_some_iterations_only():
    algorithm = make(rl_train_after_update_steps=1, rl_train_every_update_steps=2)
    env_steps = []
    for _ in range(5):
        algorithm.train_iter()
        env_steps.append(algorithm.num_env_steps)
    has_own = [0 in sources(batch) for batch in algorithm.batches]
    assert has_own == [False, False, True, False, True]
    assert env_steps[0] == 0
    assert sorted(set(env_steps[1:])) == env_steps[1:]  # steps are taken in every one


def test_nothing_is_trained_while_own_steps_are_collected():
    algorithm = make(initial_collect_steps=10)
    assert algorithm.train_iter() == 0
    assert algorithm.train_iter() > 0
    assert len(algorithm.batches) == 1


def test_loss_weights_multiply_the_loss_of_their_source():
    algorithm = make(
        source_loss_weights=(1.0, 3.0), mini_batch_size=4, mini_batch_length=1
    )
    before = algorithm.weight.item()
    algorithm.train_iter()
    [observation] = algorithm.batches
    weights = torch.where(observation >= 10_000, 3.0, 1.0)
    valid = algorithm_valid(algorithm)
    gradient = (weights * observation)[valid].sum() / valid.sum()
    expected = before - 0.1 * gradient.item()
    assert algorithm.weight.item() == pytest.approx(expected, rel=1e-5)


def sources_of(algorithm: Recorder) -> list[Any]:
    """The run's own buffer and the offline ones."""
    return [algorithm.replay_buffer, *algorithm.training_run.replay.offline]


def algorithm_valid(algorithm: Recorder) -> torch.Tensor:
    """Which rows of the only batch were no LAST steps."""
    info, buffers = algorithm.batch_info[0], sources_of(algorithm)
    step_type = [
        buffers[k].get_field(
            "time_step.step_type", info.env_ids[i : i + 1], info.positions[i : i + 1]
        )
        for i, k in enumerate(info.source)
    ]
    return torch.cat(step_type) != 2


def test_offline_rows_are_trained_by_their_own_methods_if_there_are():
    algorithm = make(TwoLosses, mini_batch_size=10, mixing_ratios=(0.7, 0.3))
    algorithm.train_iter()
    assert sources(algorithm.batches[0]) == {0: 7}
    assert sources(algorithm.offline_batches[0]) == {1: 3}
    assert [sorted(set(i.source.tolist())) for i in algorithm.batch_info] == [[0], [1]]


def test_own_methods_for_offline_rows_weigh_every_row_alike():
    algorithm = make(TwoLosses, mini_batch_size=10, mixing_ratios=(0.7, 0.3))
    algorithm.train_iter()
    own, offline = algorithm.batches[0], algorithm.offline_batches[0]
    valid = [algorithm_rows_valid(algorithm, k) for k in (0, 1)]
    expected = 0.7 * own[valid[0]].mean() + 0.3 * 2 * offline[valid[1]].mean()
    assert algorithm.weight.item() == pytest.approx(-0.1 * expected.item(), rel=1e-5)


def algorithm_rows_valid(algorithm: Recorder, index: int) -> torch.Tensor:
    info, buffer = algorithm.batch_info[index], sources_of(algorithm)[index]
    step_type = buffer.get_field("time_step.step_type", info.env_ids, info.positions)
    return step_type != 2


def test_pre_training_uses_the_offline_methods_alone():
    algorithm = make(TwoLosses, rl_train_after_update_steps=2)
    algorithm.train_iter()
    assert algorithm.batches == []
    assert len(algorithm.offline_batches) == 1
    assert algorithm.num_after_updates == 1


def test_priorities_go_to_the_source_that_a_window_is_from():
    algorithm = make(priority_replay=True)
    algorithm.unroll(4)
    updates: dict[int, Any] = {}
    for index, buffer in enumerate(sources_of(algorithm)):
        buffer.update_priority = lambda *args, i=index: updates.update({i: args})
    algorithm.train_iter()
    info = algorithm.batch_info[0]
    for index in (0, 1):
        env_ids, positions, priorities = updates[index]
        assert len(env_ids) == len(positions) == len(priorities) == 5
        assert torch.equal(positions, info.positions[info.source == index])


def surprised(cls=Recorder, **settings) -> Any:
    """Errors of own steps span eight orders of magnitude, offline ones are alike."""
    algorithm = make(cls, priority_replay=True, mini_batch_size=32, **settings)

    def calc_loss(info):
        info_of_batch = algorithm.batch_info[-1]
        own = info_of_batch.source == 0
        own_error = 10 ** (8 * torch.rand(len(own)) - 7)
        return LossInfo(loss=info, priority=torch.where(own, own_error, 0.5))

    algorithm.calc_loss = calc_loss
    return algorithm


@pytest.mark.parametrize("ratios", [(0.5, 0.5), (0.25, 0.75)])
def test_each_source_has_the_part_of_the_loss_that_its_ratio_says(ratios):
    algorithm = surprised(
        mixing_ratios=ratios, num_updates_per_train_iter=3, unroll_length=50
    )
    for _ in range(10):
        algorithm.train_iter()
    assert len(algorithm.batch_info) == 30
    for info in algorithm.batch_info:
        weights = info.importance_weights
        own_share = weights[info.source == 0].sum() / weights.sum()
        assert own_share.item() == pytest.approx(ratios[0], rel=1e-4)
        assert weights.max() == 1
    assert weights[info.source == 0].std() > 0.01


def test_offline_steps_are_drawn_by_their_own_priorities():
    algorithm = make(
        priority_replay=True, rl_train_after_update_steps=9, mini_batch_size=40
    )
    position = 7

    def calc_loss(info):
        is_surprise = algorithm.batch_info[-1].positions == position
        return LossInfo(loss=info, priority=1e9 * is_surprise)

    algorithm.calc_loss = calc_loss
    for _ in range(3):
        algorithm.train_iter()
    first, *others = (info.positions for info in algorithm.batch_info)
    assert len(set(first.tolist())) == 20
    assert all((positions == position).all() for positions in others)


@pytest.mark.parametrize("prioritized_after", [True, False])
def test_a_resumed_run_knows_the_priorities_of_offline_steps(prioritized_after, caplog):
    algorithm = surprised(unroll_length=50)
    for _ in range(3):
        algorithm.train_iter()
    resumed = make(priority_replay=prioritized_after, mini_batch_size=32)
    resumed.setup_training()
    resumed.training_run.load_state_dict(algorithm.training_run.state_dict())
    before, after = (
        sources_of(each)[1].sampling_state() for each in (algorithm, resumed)
    )
    if prioritized_after:
        assert before["numbers"] == after["numbers"]
        assert torch.equal(before["arrays"]["weights"], after["arrays"]["weights"])
        assert (before["arrays"]["weights"] != 1).all()  # as they were at first
    else:
        assert "all windows count as new" in caplog.text
        assert after == {"numbers": {}, "arrays": {}}


def test_offline_losses_of_their_own_give_priorities_too():
    algorithm = make(TwoLosses, priority_replay=True)
    algorithm.train_iter()
    algorithm.calc_loss_offline = lambda info: LossInfo(loss=info)
    with pytest.raises(ConfigError, match="of calc_loss_offline has no priority"):
        algorithm.train_iter()


def test_no_offline_window_comes_twice_without_replacement():
    config_files.parse_config(None, ["SamplingOptions.with_replacement = False"])
    algorithm = make(mini_batch_size=8, num_updates_per_train_iter=4, unroll_length=20)
    algorithm.train_iter()
    [info] = algorithm.batch_info
    windows = {
        tuple(window)
        for window in zip(
            info.source.tolist(),
            info.env_ids.tolist(),
            info.positions.tolist(),
            strict=True,
        )
    }
    assert len(windows) == 32


def test_offline_data_too_small_for_different_windows_is_refused():
    config_files.parse_config(None, ["SamplingOptions.with_replacement = False"])
    settings = {"mini_batch_size": 10, "unroll_length": 50}
    make(num_updates_per_train_iter=4, **settings)
    with pytest.raises(ConfigError, match="offline0 has 20 windows, but 25 different"):
        make(num_updates_per_train_iter=5, **settings)


def test_ages_are_for_own_steps():
    config_files.parse_config(None, ["SamplingOptions.max_staleness = 0"])
    algorithm = make(mini_batch_size=40)
    for _ in range(4):
        algorithm.train_iter()
    info = algorithm.batch_info[-1]
    assert set(info.positions[info.source == 0].tolist()) <= {12, 13, 14, 15}
    assert len(set(info.positions[info.source == 1].tolist())) > 4


@pytest.mark.parametrize(
    ("binding", "settings", "message"),
    [
        ("SamplingOptions.max_use = 3", {}, "max_use=3 cannot be with offline data"),
        (
            "SamplingOptions.max_staleness = 3",
            {"num_iterations": 5, "rl_train_after_update_steps": 5},
            "max_staleness=3: recorded steps have no age, and this run trains on no",
        ),
        (
            "SamplingOptions.recent_data_ratio = 0.5",
            {"mixing_ratios": (0, 1)},
            "recent_data_ratio=0.5: recorded steps have no age",
        ),
        (
            "PriorityOptions.normalization = 'buffer'",
            {"priority_replay": True},
            "would not have their TrainerConfig.mixing_ratios",
        ),
    ],
)
def test_options_that_make_no_sense_for_recorded_steps_are_refused(
    binding, settings, message
):
    config_files.parse_config(None, [binding])
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_pre_training_is_by_priority_too():
    algorithm = make(priority_replay=True, rl_train_after_update_steps=2)
    for _ in range(3):
        algorithm.train_iter()
    assert [sources(batch) for batch in algorithm.batches] == [
        {1: 10},
        {1: 10},
        {0: 5, 1: 5},
    ]


def test_offline_rows_start_from_zero_where_own_ones_have_a_stored_state():
    algorithm = make(recurrent=True, use_rollout_state=True, mini_batch_length=2)
    algorithm.unroll(4)
    algorithm.train_iter()
    source = algorithm.batch_info[0].source
    first = torch.tensor(algorithm.states[0])
    assert (first[source == 1] == 0).all()
    assert (first[source == 0] > 0).any()


def test_an_info_that_offline_rows_lack_is_named():
    algorithm = make()
    algorithm.info = {"log_prob": torch.zeros(2)}
    with pytest.raises(ConfigError, match=r"log_prob.*Override train_step_offline"):
        algorithm.train_iter()


def test_statistics_take_offline_steps_in():
    algorithm = make(num_offline=0, mini_batch_length=1)
    spec = algorithm.observation_spec
    algorithm.data_transformer = ObservationNormalizer(spec)
    buffer = offline_buffer(10_000.0, num_steps=50)
    algorithm.add_offline_replay_buffer(buffer)
    steps, _ = buffer.gather_all()
    normalized = algorithm.data_transformer.transform_experience(steps)
    assert normalized.time_step.observation.mean().abs() < 0.1
    assert normalized.time_step.observation.std() == pytest.approx(1.0, abs=0.1)


def test_training_continues_in_the_phase_where_it_stopped():
    algorithm = make(rl_train_after_update_steps=2)
    algorithm.train_iter()
    resumed = make(rl_train_after_update_steps=2)
    resumed.setup_training()
    resumed.training_run.load_state_dict(algorithm.training_run.state_dict())
    resumed.train_iter()
    assert resumed.num_env_steps == 0
    resumed.train_iter()
    assert resumed.num_env_steps > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_transformer_ctor": SqilTransformer}, "number 1 .* there are 0 sources"),
        (
            {
                "data_transformer_ctor": [
                    functools.partial(SqilTransformer, demonstration_sources=[1, 2])
                ],
                "num_offline": 1,
            },
            "number 2 .* there are 1 sources",
        ),
        (
            {
                "cls": functools.partial(CqlDqnAlgorithm, offline_rows_only=True),
                "mini_batch_length": 2,
            },
            "CqlDqnAlgorithm learns from recorded steps, and there are none",
        ),
        (
            {"cls": DqfdAlgorithm, "mini_batch_length": 2},
            "DqfdAlgorithm learns from recorded steps, and there are none",
        ),
    ],
)
def test_what_is_for_recorded_steps_alone_is_refused_without_them(settings, message):
    algorithm = make(**{"num_offline": 0, **settings})
    with pytest.raises(ConfigError, match=message):
        algorithm.train_iter()
    assert algorithm.num_env_steps == 0


def test_on_policy_algorithms_refuse_offline_data():
    env = make_env()
    algorithm = PPOAlgorithm(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=TrainerConfig(num_iterations=1),
        optimizer=Adam(lr=0.1),
    )
    with pytest.raises(ConfigError, match="PPOAlgorithm is on-policy"):
        algorithm.add_offline_replay_buffer(offline_buffer(0.0))


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixing_ratios": (0.5, 0.5)}, "mixing_ratios.*names no source"),
        ({"rl_train_after_update_steps": 5}, "names no source"),
        (
            {"offline_buffer_dir": "a", "mixing_ratios": (0.5, 0.3, 0.2)},
            "expected 2 numbers, one for own",
        ),
        (
            {"offline_buffer_dir": "a", "mixing_ratios": (0.5, 0.6)},
            "whose sum is 1.1, expected 1",
        ),
        (
            {"offline_buffer_dir": "a", "mixing_ratios": (1.5, -0.5)},
            "expected numbers of at least 0",
        ),
        (
            {"offline_buffer_dir": "a", "mixing_ratios": (1, 0)},
            "no offline data would be trained",
        ),
        (
            {"offline_buffer_dir": ["a", "b"], "source_loss_weights": (1, 2)},
            "expected 3 numbers, one for own",
        ),
        (
            {"offline_buffer_dir": "a", "whole_replay_buffer_training": True},
            "set one of them",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrainerConfig(num_iterations=1, **settings)
