"""Replay buffers of runs, of checkpoints and in files of their own are read again."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import Experience, StepType
from alf_lite.data_transformers.normalizing_transformers import RewardNormalizer
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.step_assembly import experience_spec
from alf_lite.environments.creation import create_environment
from alf_lite.errors import DataError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import FILE_NAME
from alf_lite.tensor_specs import TensorSpec
from alf_lite.trainers.dataset_evaluator import DatasetEvaluator
from alf_lite.trainers.trainer import Trainer
from tests.datasets.recorded_episodes import flat_episode, make_env, nested_env, rows


def recorded_step(number: int, num_environments: int, length: int = 4) -> Experience:
    """Step ``number`` of episodes that terminate; with an info and a state."""
    in_episode = number % (length + 1)
    B = num_environments
    offset = 100.0 * torch.arange(B)
    spec = experience_spec(make_env()).time_step
    time_step = nest.zeros(spec, (B,))._replace(
        step_type=torch.full(
            (B,), 0 if in_episode == 0 else 2 if in_episode == length else 1
        ).int(),
        reward=torch.full((B,), float(number) if in_episode else 0.0),
        discount=torch.full((B,), float(in_episode < length)),
        observation=(offset + number)[:, None],
        prev_action=torch.full((B, 1), (number - 1) / 100 if in_episode else 0.0),
    )
    return Experience(
        time_step,
        action=torch.full((B, 1), number / 100),
        rollout_info={"log_prob": torch.ones(B)},
        state=torch.ones(B, 3),
    )


def recorded_buffer(num_steps: int, max_length: int, num_environments: int = 2):
    spec = nest.extract_spec(recorded_step(0, num_environments))
    buffer = ReplayBuffer(spec, num_environments, max_length)
    for number in range(num_steps):
        buffer.add_batch(recorded_step(number, num_environments))
    return buffer


def save(buffer, path):
    buffer.save().write_to(path)
    return str(path)


@pytest.mark.parametrize("num_steps", [1, 4, 10, 12, 15, 29])
def test_steps_come_back_in_the_order_of_time(tmp_path, num_steps):
    file = save(recorded_buffer(num_steps, 10), tmp_path / "some.replay")
    buffer = load_replay_buffer(file, make_env())
    assert buffer.num_environments == 2
    numbers = np.arange(max(num_steps - 10, 0), num_steps)
    for env_id in range(2):
        steps = rows(buffer, env_id)
        observation = steps.time_step.observation[:, 0]
        assert observation.tolist() == (numbers + 100 * env_id).tolist()
        types = [0 if n % 5 == 0 else 2 if n % 5 == 4 else 1 for n in numbers]
        assert steps.time_step.step_type.tolist() == [*types[:-1], 2]
        discount = [float(n % 5 < 4) for n in numbers]
        assert steps.time_step.discount.tolist() == discount
        taken = steps.time_step.step_type != 2
        assert steps.action[taken, 0] == pytest.approx(numbers[taken] / 100)
        assert steps.rollout_info == ()
        assert steps.state == ()


def test_the_newest_steps_of_all_environments_are_kept(tmp_path):
    file = save(recorded_buffer(29, 10), tmp_path / "some.replay")
    buffer = load_replay_buffer(file, make_env(), 7)
    assert buffer.sizes.tolist() == [3, 3]
    assert rows(buffer, 1).time_step.observation[:, 0].tolist() == [126, 127, 128]


def test_environments_may_have_stored_different_numbers(tmp_path):
    buffer = recorded_buffer(3, 10)
    buffer.add_batch(
        nest.map_structure(lambda t: t[1:], recorded_step(3, 2)), torch.tensor([1])
    )
    loaded = load_replay_buffer(save(buffer, tmp_path / "some.replay"), make_env())
    assert loaded.sizes.tolist() == [3, 4]
    assert rows(loaded, 1).time_step.observation[:, 0].tolist() == [100, 101, 102, 103]


def recorded_rows(*lengths: int) -> ReplayBuffer:
    """Environments that have stored so many steps, each from a FIRST on."""
    buffer = recorded_buffer(0, max(lengths), len(lengths))
    for number in range(max(lengths)):
        ids = torch.tensor([e for e, n in enumerate(lengths) if number < n])
        step = recorded_step(number, len(lengths))
        buffer.add_batch(nest.map_structure(lambda t, ids=ids: t[ids], step), ids)
    return buffer


@pytest.mark.parametrize("lengths", [(8, 8, 8), (3, 12, 0, 6), (5, 1, 5)])
def test_environments_follow_each_other_where_windows_go_on(tmp_path, lengths):
    file = save(recorded_rows(*lengths), tmp_path / "some.replay")
    apart = load_replay_buffer(file, make_env())
    joined = load_replay_buffer(file, make_env(), join_environments=True)
    assert joined.sizes.tolist() == [sum(lengths)]
    stored = [rows(apart, e) for e, n in enumerate(lengths) if n]
    expected = nest.map_structure(lambda *a: np.concatenate(a), *stored)
    for a, b in zip(nest.flatten(expected), nest.flatten(rows(joined)), strict=True):
        assert (a == b).all()
    joined.check_valid()


@pytest.mark.parametrize(
    "options", [{"max_length": 10}, {"memory_map": True}, {"keep_open_ends": True}]
)
def test_environments_stay_apart_where_they_do_not_fit(tmp_path, options):
    file = save(recorded_rows(8, 8), tmp_path / "some.replay")
    loaded = load_replay_buffer(file, make_env(), join_environments=True, **options)
    assert loaded.num_environments == 2
    within = save(recorded_buffer(12, 10), tmp_path / "within.replay")
    loaded = load_replay_buffer(within, make_env(), join_environments=True)
    assert loaded.sizes.tolist() == [10, 10]


def cloning(file, num_iterations: int, **settings) -> BcAlgorithm:
    """On what is recorded alone."""
    config = TrainerConfig(
        num_iterations=num_iterations,
        rl_train_after_update_steps=num_iterations,
        offline_buffer_dir=file,
        **settings,
    )
    return BcAlgorithm(env=make_env(), config=config, optimizer=Adam(lr=0.01))


def test_rows_shorter_than_a_window_are_trained_and_held_out(tmp_path):
    file = save(recorded_rows(3, 4, 2, 3), tmp_path / "some.replay")
    algorithm = cloning(file, 20, mini_batch_length=6, mini_batch_size=8)
    assert all(algorithm.train_iter() > 0 for _ in range(20))
    evaluator = DatasetEvaluator(algorithm, algorithm.config, [file])
    assert np.isfinite(evaluator.evaluate()["loss"])


@pytest.mark.ci
def test_returns_of_environments_that_follow_each_other_are_normalized(tmp_path):
    # 1205 steps are observed in two parts, and the second begins within an episode.
    file = save(recorded_rows(403, 400, 402), tmp_path / "some.replay")
    algorithm = cloning(file, 1, data_transformer_ctor=RewardNormalizer)
    algorithm.setup_training()
    steps = rows(load_replay_buffer(file, make_env(), join_environments=True)).time_step
    returns, total = [], 0.0
    for step_type, reward in zip(steps.step_type, steps.reward, strict=True):
        total = 0.0 if step_type == StepType.FIRST else 0.99 * total + reward
        returns += [total] if step_type != StepType.FIRST else []
    normalizer = algorithm.data_transformer.normalizer
    assert int(normalizer.count) == len(returns)
    assert float(normalizer.variance) == pytest.approx(np.var(returns), rel=1e-6)


def test_no_return_goes_on_in_another_source_or_environment(tmp_path):
    file = save(recorded_buffer(12, 9), tmp_path / "some.replay")  # begins with a MID
    algorithm = cloning([file] * 2, 1, data_transformer_ctor=RewardNormalizer)
    algorithm.setup_training()
    buffer, returns = load_replay_buffer(file, make_env()), []
    for env_id in range(2):
        steps, total = rows(buffer, env_id).time_step, 0.0
        assert steps.step_type[0] == StepType.MID
        numbers = zip(steps.step_type[1:], steps.reward[1:], strict=True)
        for step_type, reward in numbers:
            total = 0.0 if step_type == StepType.FIRST else 0.99 * total + reward
            returns += [total] if step_type != StepType.FIRST else []
    normalizer = algorithm.data_transformer.normalizer
    assert int(normalizer.count) == 2 * len(returns)
    assert float(normalizer.variance) == pytest.approx(np.var(returns), rel=1e-6)


def test_a_source_that_is_added_leaves_the_returns_of_the_run(tmp_path):
    file = save(recorded_rows(7, 8), tmp_path / "some.replay")
    algorithm = cloning(file, 1, data_transformer_ctor=RewardNormalizer)
    step = recorded_step(3, algorithm.env.batch_size).time_step
    algorithm.data_transformer.observe(nest.map_structure(lambda t: t[None], step))
    algorithm.add_offline_replay_buffer(load_replay_buffer(file, make_env()))
    returns = algorithm.data_transformer.training_state_dict()["returns"]
    assert returns[: algorithm.env.batch_size].tolist() == step.reward[:, None].tolist()


def test_the_file_is_not_changed(tmp_path):
    file = tmp_path / "some.replay"
    save(recorded_buffer(12, 10), file)
    before = file.read_bytes()
    load_replay_buffer(str(file), make_env()).clear()
    assert file.read_bytes() == before


@pytest.mark.parametrize("max_length", [None, 7, 1])
def test_rows_that_are_mapped_are_those_that_are_read(tmp_path, max_length):
    file = save(recorded_buffer(29, 10), tmp_path / "some.replay")
    content = Path(file).read_bytes()
    read = load_replay_buffer(file, make_env(), max_length and 2 * max_length)
    mapped = load_replay_buffer(
        file, make_env(), max_length and 2 * max_length, memory_map=True
    )
    for env_id in range(2):
        expected, found = rows(read, env_id), rows(mapped, env_id)
        assert len(expected.action) == (max_length or 10)
        for a, b in zip(nest.flatten(expected), nest.flatten(found), strict=True):
            assert (a == b).all()
    mapped.get_batch(20, 1)
    # The last step is marked as LAST in memory only.
    assert Path(file).read_bytes() == content


def test_rows_taken_as_they_are_equal_those_loaded_field_by_field(tmp_path):
    buffer = recorded_buffer(29, 10)
    direct = load_replay_buffer(save(buffer, tmp_path / "a.replay"), make_env())
    # Environments of different lengths are not loaded directly.
    buffer.add_batch(
        nest.map_structure(lambda t: t[1:], recorded_step(29, 2)), torch.tensor([1])
    )
    buffer.clear(torch.tensor([1]))
    by_field = load_replay_buffer(save(buffer, tmp_path / "b.replay"), make_env())
    expected, found = rows(direct, 0), rows(by_field, 0)
    taken = expected.time_step.step_type != 2
    for a, b in zip(nest.flatten(expected), nest.flatten(found), strict=True):
        assert (a[taken] == b[taken]).all()


def test_actions_beyond_the_bounds_count_as_executed(tmp_path, caplog):
    buffer = ReplayBuffer(nest.extract_spec(recorded_step(0, 2)), 2, 10)
    for number in range(10):
        step = recorded_step(number, 2)
        step.time_step.prev_action.mul_(15)  # up to 1.2
        buffer.add_batch(step)
    file = save(buffer, tmp_path / "a.replay")
    steps = rows(load_replay_buffer(file, make_env()))
    assert steps.time_step.prev_action[-2:, 0] == pytest.approx([1, 1])
    assert steps.action[-3:, 0] == pytest.approx([1, 1, 0])
    assert "4 of 16 actions are outside of their bounds" in caplog.text
    # Those of a mapped file stay as they are.
    load_replay_buffer(file, make_env(), memory_map=True)
    assert "time_step.prev_action has numbers outside of its bounds" in caplog.text


@pytest.mark.parametrize("num_steps", [10, 12])  # of each environment 10
def test_observations_of_other_units_are_warned_of(tmp_path, caplog, num_steps):
    file = save(recorded_buffer(num_steps, 10), tmp_path / "a.replay")
    load_replay_buffer(file, make_env(spaces.Box(0.0, 111.0005, (1,))))
    assert "other units" not in caplog.text
    load_replay_buffer(file, make_env(spaces.Box(0.0, 1.0, (1,))))
    assert "observation is outside of the bounds" in caplog.text


def test_only_buffers_of_the_same_types_are_mapped(tmp_path):
    np.savez(tmp_path / "a.npz", **flat_episode(3))
    with pytest.raises(DataError, match="memory_map is set, but only own"):
        load_replay_buffer(str(tmp_path / "a.npz"), make_env(), memory_map=True)


def test_a_seam_inside_is_ended_there(tmp_path):
    buffer = ReplayBuffer(nest.extract_spec(recorded_step(0, 2)), 2, 10)
    for number in (0, 1, 2, 5, 6):
        buffer.add_batch(recorded_step(number, 2))
    loaded = load_replay_buffer(save(buffer, tmp_path / "some.replay"), make_env())
    assert rows(loaded, 1).time_step.step_type.tolist() == [0, 1, 2, 0, 2]


def test_every_field_that_differs_is_named(tmp_path):
    file = save(recorded_buffer(12, 10), tmp_path / "some.replay")
    with pytest.raises(DataError) as error:
        load_replay_buffer(file, nested_env())
    assert "observation: expected nothing, found (1,) float32\n" in str(error.value)
    assert "prev_action/gear: expected () int64, found nothing\n" in str(error.value)


def test_bad_numbers_are_found_and_left_out(tmp_path):
    other = recorded_buffer(2, 10)
    step = recorded_step(2, 2)
    step.time_step.observation[1] = np.nan
    other.add_batch(step)
    for number in range(3, 10):
        other.add_batch(recorded_step(number, 2))
    file = save(other, tmp_path / "some.replay")
    with pytest.raises(
        DataError, match=r"observation\[0\] is nan at step 2 of envi.* 1"
    ):
        load_replay_buffer(file, make_env())
    loaded = load_replay_buffer(file, make_env(), drop_bad_episodes=True)
    assert loaded.sizes.tolist() == [10, 5]


@pytest.mark.ci
@pytest.mark.parametrize("kept", [0.2, 0.9])
def test_a_truncated_file_is_refused(tmp_path, kept):
    file = tmp_path / "some.replay"
    save(recorded_buffer(300, 300), file)
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DataError, match=r"cut off|its header speaks of"):
        load_replay_buffer(str(file), make_env())


def test_a_buffer_of_other_things_is_refused(tmp_path):
    buffer = ReplayBuffer({"a": TensorSpec((2,))}, 1, 10)
    buffer.add_batch({"a": torch.zeros(1, 2)})
    with pytest.raises(DataError, match="no steps of an environment; the fields are"):
        load_replay_buffer(save(buffer, tmp_path / "some.replay"), make_env())


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two Pendulums, 30 steps of each stored in a ring of 20."""
    directory = tmp_path_factory.mktemp("run")
    config = TrainerConfig(
        algorithm_ctor=functools.partial(DdpgAlgorithm, optimizer=Adam(lr=1e-3)),
        num_iterations=3,
        unroll_length=10,
        mini_batch_length=2,
        mini_batch_size=4,
        initial_collect_steps=0,
        replay_buffer_length=20,
        checkpoint_replay_buffer=True,
        random_seed=0,
    )
    Trainer(config, directory, create_env=pendulums).train()
    return directory


def pendulums(seed=None, num_parallel_environments=2):
    return create_environment("Pendulum-v1", num_parallel_environments, seed)


def test_a_run_and_its_checkpoints_are_sources(run):
    checkpoint = run / "checkpoints/ckpt-3"
    for path in (run, run / "checkpoints", checkpoint, checkpoint / FILE_NAME):
        buffer = load_replay_buffer(str(path), pendulums())
        assert buffer.sizes.tolist() == [20, 20]
        steps = rows(buffer, 1)
        # The equation of motion, with a torque of twice the action.
        _, sin, speed = steps.time_step.observation.T
        predicted = speed + (15 * sin + 6 * steps.action[:, 0]) * 0.05
        moves = steps.time_step.step_type[:-1] != 2
        assert np.clip(predicted, -8, 8)[:-1][moves] == pytest.approx(
            speed[1:][moves], abs=1e-4
        )
        assert steps.time_step.env_id.tolist() == [1] * 20


def test_a_truncated_checkpoint_is_refused(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    file = copy / "checkpoints/ckpt-3" / FILE_NAME
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"safetensors: missing or truncated"):
        load_replay_buffer(str(copy), pendulums())


def test_a_checkpoint_without_steps_says_how_to_get_them(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"algorithm": {}})
    with pytest.raises(DataError, match="checkpoint_replay_buffer = True"):
        load_replay_buffer(str(tmp_path), make_env())
    checkpointer.save(2, {"algorithm": {}}, resumable=False, best_score=1.0)
    with pytest.raises(DataError, match="a policy only"):
        load_replay_buffer(str(tmp_path / "ckpt-2"), make_env())
