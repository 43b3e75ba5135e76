from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.dynamic_action_repeat_agent import DynamicActionRepeatAgent
from alf_lite.algorithms.learning.batch_loss import aggregate_loss
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.data_structures import AlgStep, LossInfo
from alf_lite.data_transformers.single_step_transformers import RewardScaling
from alf_lite.environments.creation import create_environment
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.optimizers.optimizers import SGD
from alf_lite.tensor_specs import TensorSpec
from alf_lite.testing.structured_environments import CountingEnv

HOLDS = functools.partial(
    DynamicActionRepeatAgent,
    rl_algorithm_ctor=functools.partial(DqnAlgorithm, n_step=1),
)


class Info(NamedTuple):
    action: Any = ()
    observation: Any = ()


class Recorder(RLAlgorithm):
    """Keeps what it is asked to train on; its loss is its only parameter."""

    def __init__(self, observation_spec, action_spec, *, recurrent=False, **kwargs):
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=TensorSpec((), torch.int64) if recurrent else (),
            is_on_policy=False,
            **kwargs,
        )
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches: list[Any] = []
        self.states: list[list[int]] = []
        self.calls: list[str] = []

    def rollout_step(self, inputs, state):
        action = torch.zeros(inputs.reward.shape[0], dtype=torch.int64)
        info = Info(action=action, observation=inputs.observation)
        return AlgStep(action, nest.map_structure(lambda s: s + 1, state), info)

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        self.calls.append(f"preprocess_experience {list(root_inputs.reward.shape)}")
        self.batch_info = batch_info
        return root_inputs, rollout_info

    def train_step(self, inputs, state, rollout_info):
        if isinstance(state, Tensor):
            self.states.append(state.tolist())
            return AlgStep(state=state + 1, info=inputs.reward * self.weight)
        self.batches.append((inputs, rollout_info))
        return AlgStep(info=inputs.reward * self.weight)

    def calc_loss(self, info):
        self.calls.append(f"calc_loss {list(info.shape)}")
        return LossInfo(
            loss=info[:-1] + self.weight, priority=torch.ones(info.shape[1])
        )

    def after_update(self, root_inputs, info):
        self.calls.append(f"after_update {list(root_inputs.reward.shape)}")

    def after_train_iter(self, root_inputs, rollout_info):
        self.calls.append(f"after_train_iter {list(root_inputs.reward.shape)}")


def make(*, recurrent: bool = False, num: int = 2, **settings) -> Recorder:
    torch.manual_seed(0)
    env = create_environment(
        env_ctor=CountingEnv, num_parallel_environments=num, seed=0
    )
    settings = {"unroll_length": 3, "mini_batch_length": 2, **settings}
    return Recorder(
        env.observation_spec,
        env.action_spec,
        recurrent=recurrent,
        env=env,
        config=TrainerConfig(num_iterations=1, **settings),
        optimizer=SGD(lr=0.1),
    )


def test_methods_are_called_in_the_order_of_the_contract_with_its_shapes():
    algorithm = make(mini_batch_size=4, num_updates_per_train_iter=2, num=3)
    assert algorithm.train_iter() == 2 * 4 * 2
    assert algorithm.calls == [
        "preprocess_experience [8, 2]",
        *["calc_loss [2, 4]", "after_update [2, 4]"] * 2,
        "after_train_iter [3, 3]",
    ]
    assert algorithm.batches[0][0].reward.shape == (8,)  # [T·b]


def test_windows_are_consecutive_steps_of_one_environment():
    algorithm = make(mini_batch_size=64, mini_batch_length=3)
    for _ in range(4):
        algorithm.train_iter()
    inputs, info = algorithm.batches[-1]
    observation = inputs.observation.reshape(3, 64)
    episode, step = observation // 100, observation % 100
    follows = (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
    restarts = (episode[1:] == episode[:-1] + 1) & (step[1:] == 0)
    assert (follows | restarts).all()
    assert restarts.any()
    assert torch.equal(info.observation, inputs.observation)


def test_nothing_is_trained_before_enough_is_collected():
    algorithm = make(initial_collect_steps=20)
    trained = [algorithm.train_iter() for _ in range(5)]
    # 2 environments times 3 steps per iteration.
    assert [steps > 0 for steps in trained] == [False, False, False, True, True]
    assert algorithm.num_env_steps > 0


def test_a_fractional_unroll_length_unrolls_every_few_iterations():
    algorithm = make(unroll_length=0.25, mini_batch_size=2)
    sizes = []
    for _ in range(12):
        algorithm.train_iter()
        sizes.append(algorithm.training_run.replay.own.num_steps)
    assert sizes == [0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6]
    # Updates go on between the unrolls; there is no unroll to finish then.
    assert algorithm.calls.count("calc_loss [2, 2]") == 5
    assert sum("after_train_iter" in call for call in algorithm.calls) == 2


@pytest.mark.parametrize("unroll_length", [0.1, 1 / 3])
def test_a_fraction_of_a_step_adds_up_exactly_also_after_resuming(unroll_length):
    period = round(1 / unroll_length)
    algorithm, acted = make(unroll_length=unroll_length, mini_batch_size=2), []
    unroll, replay = algorithm.unroll, algorithm.training_run.replay
    algorithm.unroll = lambda length: (
        acted.append(replay._num_iterations + 1) or unroll(length)
    )
    for _ in range(10 * period):
        algorithm.train_iter()
        kept = replay.state_dict()
        assert isinstance(kept["collection"]["remainder"], float)
        replay._remainder = None
        replay.load_state_dict(kept)
    assert acted == list(range(period, 10 * period + 1, period))


@pytest.mark.parametrize("is_dict", [False, True])
def test_random_actions_replace_the_policys_while_collecting(monkeypatch, is_dict):
    if is_dict:
        rollout_step = Recorder.rollout_step

        def with_dict(self, inputs, state):
            step = rollout_step(self, inputs, state)
            return step._replace(info=step.info._asdict())

        monkeypatch.setattr(Recorder, "rollout_step", with_dict)
    algorithm = make(
        unroll_length=30,
        initial_collect_steps=100,
        initial_random_policy=True,
        mini_batch_size=256,
    )
    for _ in range(3):
        algorithm.train_iter()
    inputs, info = algorithm.batches[-1]
    drawn = algorithm.replay_buffer.gather_all()[0]
    action = drawn.action  # [B, T]; the policy itself always takes 0
    stored = drawn.rollout_info
    if is_dict:
        info, stored = Info(**info), Info(**stored)
    assert 0.2 < action[:, :60].float().mean() < 0.8
    assert (action[:, 60:] == 0).all()
    # What is trained on is what was executed, stored once.
    assert set(info.action.tolist()) == {0, 1}
    assert stored.action == ()
    first, second = inputs.prev_action.reshape(2, -1), info.action.reshape(2, -1)
    follows = inputs.step_type.reshape(2, -1)[1] != 0
    assert torch.equal(first[1][follows], second[0][follows])


def test_the_buffer_holds_raw_steps_and_training_sees_transformed_ones():
    algorithm = make(mini_batch_size=16)
    algorithm.data_transformer = RewardScaling(
        algorithm.observation_spec, algorithm.reward_spec, scale=10.0
    )
    algorithm.train_iter()
    stored = algorithm.replay_buffer.gather_all()[0].time_step.reward
    assert set(stored.flatten().tolist()) == {0.0, 1.0}
    assert set(algorithm.batches[-1][0].reward.tolist()) == {0.0, 10.0}


def test_training_starts_from_the_stored_state_or_from_zeros():
    stored = make(
        recurrent=True, use_rollout_state=True, mini_batch_length=2, mini_batch_size=50
    )
    stored.train_iter()
    assert set(stored.states[0]) == {0, 1}  # windows start at step 0 or 1
    zeros = make(recurrent=True, mini_batch_length=2, mini_batch_size=50)
    zeros.train_iter()
    assert set(zeros.states[0]) == {0}


def test_burn_in_builds_the_state_without_training_on_it():
    algorithm = make(
        recurrent=True, unroll_length=4, mini_batch_length=4, burn_in_length=1
    )
    algorithm.train_iter()
    # The window is the whole episode: FIRST, 1, 2, LAST.
    assert algorithm.states == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert "calc_loss [3, 2]" in algorithm.calls
    assert "after_update [3, 2]" in algorithm.calls


def test_only_valid_steps_count_and_importance_weights_scale_them():
    loss = torch.tensor([[1.0, 2.0], [3.0, 100.0]])
    valid = torch.tensor([[True, True], [True, False]])
    weights = torch.tensor([0.5, 2.0])
    total = aggregate_loss(LossInfo(loss=loss), valid, weights).loss
    assert total.item() == pytest.approx((0.5 * 1 + 2 * 2 + 0.5 * 3) / 3)


def test_priorities_are_updated_after_every_update():
    algorithm = make(
        priority_replay=True, mini_batch_size=4, num_updates_per_train_iter=3
    )
    updates = []
    algorithm.train_iter()
    algorithm.replay_buffer.update_priority = lambda *args: updates.append(args)
    algorithm.train_iter()
    assert [[t.shape for t in args] for args in updates] == [[(4,)] * 3] * 3
    assert algorithm.batch_info.importance_weights.shape == (4,)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, [12]),
        ({"updates_per_draw": 2}, [8, 4]),
        ({"priority_replay": True}, [4, 4, 4]),
        ({"priority_replay": True, "updates_per_draw": 2}, [8, 4]),
        ({"priority_replay": True, "updates_per_draw": 100}, [12]),
    ],
)
def test_windows_are_drawn_for_so_many_updates_at_once(settings, sizes):
    algorithm = make(mini_batch_size=4, num_updates_per_train_iter=3, **settings)
    assert algorithm.train_iter() == 3 * 4 * 2
    preprocessed = [call for call in algorithm.calls if "preprocess" in call]
    assert preprocessed == [f"preprocess_experience [{size}, 2]" for size in sizes]
    assert algorithm.calls.count("after_update [2, 4]") == 3


def test_every_update_has_its_part_of_the_newest_steps():
    config_files.parse_config(None, ("SamplingOptions.recent_data_ratio = 0.25",))
    settings = {"mini_batch_size": 8, "num_updates_per_train_iter": 3}
    algorithm = make(unroll_length=30, **settings)
    newest = []

    def calc_loss(info):
        newest.append(int((algorithm.batch_info.positions == 28).sum()))
        return LossInfo(loss=info[:-1] + algorithm.weight)

    algorithm.calc_loss = calc_loss
    algorithm.train_iter()
    assert len(newest) == 3
    assert 2 <= min(newest) <= max(newest) < 8
    with pytest.raises(ConfigError, match="Leave updates_per_draw out"):
        make(updates_per_draw=2, **settings).train_iter()


def test_an_update_is_drawn_by_what_the_one_before_has_learned():
    algorithm = make(
        priority_replay=True, mini_batch_size=32, num_updates_per_train_iter=4
    )
    drawn = []

    def calc_loss(info):
        windows = algorithm.batch_info
        is_surprise = (windows.env_ids == 1) & (windows.positions == 1)
        drawn.append(is_surprise.float().mean().item())
        return LossInfo(loss=info[:-1] + algorithm.weight, priority=1e9 * is_surprise)

    algorithm.calc_loss = calc_loss
    algorithm.train_iter()
    # One of four windows at first, from then on the only one worth a look.
    assert drawn == [0.25, 1.0, 1.0, 1.0]


def test_every_batch_has_a_largest_importance_weight_of_one():
    algorithm = make(
        priority_replay=True,
        updates_per_draw=4,
        mini_batch_size=3,
        num_updates_per_train_iter=4,
        unroll_length=50,
    )
    algorithm.calc_loss = lambda info: LossInfo(
        loss=info[:-1] + algorithm.weight, priority=torch.rand(3).exp()
    )
    for _ in range(3):
        algorithm.train_iter()
    weights = algorithm.batch_info.importance_weights.view(4, 3)
    assert (weights.amax(dim=1) == 1).all()
    assert weights.min() < 1


def test_prioritised_replay_needs_priorities():
    algorithm = make(priority_replay=True)
    algorithm.calc_loss = lambda info: LossInfo(loss=info[:-1])
    with pytest.raises(ConfigError, match="has no priority"):
        algorithm.train_iter()


def test_the_whole_buffer_is_trained_and_cleared():
    algorithm = make(
        unroll_length=5,
        mini_batch_length=2,
        mini_batch_size=2,
        num_updates_per_train_iter=2,
        whole_replay_buffer_training=True,
        clear_replay_buffer=True,
    )
    for num_transitions in (4, 5):
        # Of each of 2 environments, twice.
        assert algorithm.train_iter() == 2 * num_transitions * 2
        assert algorithm.training_run.replay.own.num_steps == 2  # the newest ones
    starts = [b[0].observation.view(2, -1)[0] for b in algorithm.batches[:4]]
    # Each but the newest is the first step of a window once in a pass.
    assert sorted(torch.cat(starts).tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("unroll_length", "num_iterations"), [(4, 1), (8, 1), (9, 1), (1, 10), (3, 3)]
)
@pytest.mark.parametrize(
    ("length", "n", "burn_in"), [(2, 1, 0), (4, 1, 0), (4, 3, 0), (4, 1, 2), (4, 2, 1)]
)
def test_every_transition_is_trained_once_whatever_the_length(
    unroll_length, num_iterations, length, n, burn_in
):
    algorithm = make(
        recurrent=burn_in > 0,
        unroll_length=unroll_length,
        mini_batch_length=length,
        burn_in_length=burn_in,
        whole_replay_buffer_training=True,
        clear_replay_buffer=True,
    )
    algorithm.num_bootstrap_steps = n
    batches = []

    def calc_loss(info):
        return LossInfo(loss=info[: length - burn_in - n] + algorithm.weight)

    def preprocess(experience, valid, batch_info):
        batches.append((batch_info, valid))
        return Recorder.preprocess(algorithm, experience, valid, batch_info)

    algorithm.calc_loss, algorithm.preprocess = calc_loss, preprocess
    for _ in range(num_iterations):
        algorithm.train_iter()
    pairs = []
    for info, valid in batches:
        trained = valid.clone()
        trained[:, :burn_in] = trained[:, length - n :] = False
        position = info.positions.unsqueeze(1) + torch.arange(length)
        env_id = info.env_ids.unsqueeze(1).expand_as(position)
        of_batch = env_id[trained].tolist(), position[trained].tolist()
        pairs += zip(*of_batch, strict=True)
    num_steps = unroll_length * num_iterations
    # Every fourth step is a LAST one, which has no transition.
    assert sorted(pairs) == [
        (e, p) for e in (0, 1) for p in range(burn_in, num_steps - n) if p % 4 != 3
    ]


@pytest.mark.parametrize(
    ("ctor", "length"),
    [
        (BcAlgorithm, 2),
        (BcAlgorithm, 4),
        (functools.partial(HOLDS, max_repeats=3), 4),
    ],
)
def test_passes_leave_out_no_step_whatever_an_algorithm_trains_of_a_window(
    monkeypatch, ctor, length
):
    steps = []

    def train_step(self, inputs, state, rollout_info):
        steps.append(inputs.observation.flatten() % 100)
        return trained(self, inputs, state, rollout_info)

    kind = BcAlgorithm if ctor is BcAlgorithm else DqnAlgorithm
    trained = kind.train_step
    monkeypatch.setattr(kind, "train_step", train_step)
    env = create_environment(env_ctor=lambda: CountingEnv((90,)), seed=0)
    config = TrainerConfig(
        num_iterations=1,
        unroll_length=10,
        initial_collect_steps=0,
        mini_batch_length=length,
        num_updates_per_train_iter=1,
        whole_replay_buffer_training=True,
    )
    algorithm = ctor(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=config,
        optimizer=SGD(lr=0.1),
    )
    num_trained = algorithm.train_iter()
    num_steps = 9 if kind is BcAlgorithm else 7  # that are seen as far ahead
    assert set(torch.cat(steps).tolist()) == set(range(num_steps))
    assert num_trained in (num_steps, 9)


def test_without_a_window_length_training_does_not_start():
    with pytest.raises(ConfigError, match="mini_batch_length is not set"):
        make(mini_batch_length=None).train_iter()


def resume(original: Recorder, resumed: Recorder, directory: Path) -> None:
    """What a checkpoint does for these two."""
    path = Checkpointer(directory).save(
        1, {}, mapped_files=original.training_run.files()
    )
    resumed.training_run.load_state_dict(original.training_run.state_dict())
    resumed.training_run.load_files(
        {entry.name: entry for entry in path.iterdir() if entry.suffix != ".json"}
    )


@pytest.mark.parametrize("saved", [True, False])
def test_a_checkpoint_holds_the_buffer_when_asked(tmp_path, saved):
    original = make(checkpoint_replay_buffer=saved, initial_collect_steps=6)
    original.train_iter()
    resumed = make(checkpoint_replay_buffer=saved, initial_collect_steps=100)
    resume(original, resumed, tmp_path)
    resumed.reset_environment(1)
    resumed.train_iter()
    steps = resumed.replay_buffer.gather_all()[0].time_step
    # The three stored steps end before the new ones begin.
    expected = [[0, 1, 2, 0, 1, 1]] if saved else [[0, 1, 1]]
    assert steps.step_type.tolist() == expected * 2


def test_a_resumed_run_does_not_collect_again(tmp_path):
    settings = {"checkpoint_replay_buffer": True, "initial_collect_steps": 6}
    original = make(**settings, replay_buffer_length=4)
    for _ in range(2):
        original.train_iter()
    resumed = make(**settings, replay_buffer_length=4)
    assert resumed.training_run.replay.own.is_collecting
    resume(original, resumed, tmp_path)
    replay = resumed.training_run.replay.own
    assert replay.num_steps == original.training_run.replay.own.num_steps == 8
    assert not replay.is_collecting
    shorter = make(**settings | {"initial_collect_steps": 4}, replay_buffer_length=2)
    resume(original, shorter, tmp_path)
    assert shorter.training_run.replay.own.num_steps == 4


def test_a_run_that_is_stopped_before_it_unrolls_keeps_the_steps(tmp_path):
    original, stopped, resumed = (make(checkpoint_replay_buffer=True) for _ in range(3))
    original.train_iter()
    resume(original, stopped, tmp_path / "first")
    resume(stopped, resumed, tmp_path / "second")
    resumed.train_iter()
    assert resumed.training_run.replay.own.num_steps == 12


def test_what_another_algorithm_stored_is_refused_leaf_by_leaf(tmp_path):
    original = make(checkpoint_replay_buffer=True)
    original.train_iter()
    other = make(checkpoint_replay_buffer=True, recurrent=True, use_rollout_state=True)
    resume(original, other, tmp_path)
    with pytest.raises(CheckpointError, match=r"state: expected .* saved nothing"):
        other.train_iter()


def test_a_reset_of_the_environments_ends_the_stored_episodes():
    algorithm = make()
    algorithm.train_iter()
    algorithm.reset_environment(1)
    algorithm.train_iter()
    step_type = algorithm.replay_buffer.gather_all()[0].time_step.step_type
    assert step_type.tolist() == [[0, 1, 2, 0, 1, 1]] * 2
