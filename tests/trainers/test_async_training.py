"""Training on the unrolls of worker processes: same data, no hang, no leftovers."""

from __future__ import annotations

import functools
import gc
import os
import queue
import random
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.data_structures import StepType
from alf_lite.data_transformers.normalizing_transformers import ObservationNormalizer
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError, EnvError, WorkerError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.processes.ray_cluster import RayCluster
from alf_lite.testing.fault_environment import HARD_MESSAGE
from alf_lite.trainers.hooks import Hook
from alf_lite.trainers.trainer import Trainer
from alf_lite.unrollers.process_pool import ProcessPool
from tests.environments.light_environments import NumberedEnv
from tests.other_process import shared_memory_left
from tests.trainers.async_toys import (
    ImportingEnv,
    WitnessAlgorithm,
    async_algorithm,
    async_config,
    env_fn,
)

ON_RAY = pytest.param(
    "ray",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
        pytest.mark.filterwarnings("default"),
    ],
)

# Each starts processes; the others say as much.
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def ray_cluster():
    """Keeps Ray running from test to test."""
    cluster = RayCluster(None, num_cpus=4)
    yield
    cluster.close()


@pytest.fixture(params=["processes", ON_RAY])
def make(request):
    """``async_algorithm`` whose workers end with the test."""
    made = []
    engine = {"unroll_engine": request.param}
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")

    def build(create_env=None, **fields):
        made.append(async_algorithm(create_env or env_fn(), **{**engine, **fields}))
        return made[-1]

    yield build
    for algorithm in made:
        algorithm.finish_train()


def make_trainer(root: Path, create_env=None, hooks=(), **fields) -> Trainer:
    return Trainer(
        async_config(**fields),
        root / "run",
        create_env=create_env or env_fn(),
        hooks=hooks,
    )


def children() -> set[int]:
    """The living processes that ``multiprocessing`` knows as unroll workers."""
    import multiprocessing

    return {p.pid for p in multiprocessing.active_children() if "unroll" in p.name}


def stored_steps(algorithm) -> list:
    """What the replay buffer holds of every environment, in the order of time."""
    replay = algorithm.replay_buffer
    return [
        replay.get_windows(
            torch.tensor([b]), replay.begin_positions[b : b + 1], int(replay.sizes[b])
        )
        for b in range(replay.num_environments)
        if replay.sizes[b]
    ]


# The same data as in this process


@pytest.mark.ci
def test_every_environment_is_stored_in_the_order_of_time(make):
    algorithm = make(env_fn(num_parallel_environments=3), num_unroll_workers=2)
    for _ in range(30):
        algorithm.train_iter()
    replay = algorithm.replay_buffer
    assert replay.num_environments == 6
    assert replay.total_size == 30 * 2 * 6
    for steps in stored_steps(algorithm):
        time_step = steps.time_step
        count = len(time_step.step_type[0])
        # FaultEnv: observation t in step t of an episode of 10 steps
        expected = torch.arange(count) % 11
        assert torch.equal(time_step.observation[0, :, 0], expected.float())
        assert torch.equal(time_step.is_first()[0], expected == 0)
        assert torch.equal(time_step.is_last()[0], expected == 10)
        assert (time_step.env_id == time_step.env_id[0, 0]).all()
        # the recurrent state begins anew and goes on across unrolls
        assert torch.equal(steps.rollout_info.count[0], expected.float())
        # the action that was taken is what the next step reports
        assert torch.equal(steps.action[0], expected % 2)
        assert torch.equal(
            time_step.prev_action[0, 1:], steps.action[0, :-1] * (expected[1:] > 0)
        )


def test_metrics_count_every_step_once(make):
    algorithm = make(env_fn(num_parallel_environments=2), num_unroll_workers=2)
    for _ in range(40):
        algorithm.train_iter()
    results = {metric.name: metric.result() for metric in algorithm.get_metrics()}
    num_stored = sum(
        int((steps.time_step.step_type != StepType.FIRST).sum())
        for steps in stored_steps(algorithm)
    )
    # The newest step of each environment has been seen, but is stored with the next
    # unroll.
    assert 0 <= results["EnvironmentSteps"] - num_stored <= 4
    assert results["AverageReturn"] == 10
    assert results["AverageEpisodeLength"] == 10


@pytest.mark.ci
def test_the_run_ends_at_num_env_steps_and_leaves_no_process(tmp_path):
    begin = time.monotonic()
    result = make_trainer(tmp_path, num_iterations=0, num_env_steps=100).train()
    assert 100 <= result.env_steps < 100 + 2 * 2 + 2
    assert not children()
    assert time.monotonic() - begin < 120  # also on a busy machine


def test_an_iteration_takes_as_many_steps_as_in_this_process(make):
    fractional = make(unroll_length=1.5, num_unroll_workers=2)
    for _ in range(10):
        fractional.train_iter()
    assert fractional.replay_buffer.total_size == 15 * 2


def test_on_policy_every_transition_is_trained(make):
    algorithm = make(
        algorithm_ctor=functools.partial(WitnessAlgorithm, on_policy=True),
        unroll_length=4,
        mini_batch_length=None,
        mini_batch_size=None,
        num_unroll_workers=1,
        use_rollout_state=True,
    )
    last = None
    for _ in range(10):
        experience = algorithm.unroll(4)
        observation = experience.time_step.observation[:, 0, 0].clone()
        assert observation.shape == (5,)
        if last is not None:
            assert observation[0] == last
        last = observation[-1]


# Parameters


def on_policy(make, **fields):
    return make(
        algorithm_ctor=functools.partial(WitnessAlgorithm, on_policy=True),
        mini_batch_length=None,
        mini_batch_size=None,
        use_rollout_state=True,
        **fields,
    )


def seen_versions(algorithm, iterations: int) -> list[tuple[int, int]]:
    """(updates made, updates that the acting parameters knew) of every unroll."""
    seen = []
    for _ in range(iterations):
        made = int(algorithm.weights[0])
        experience = algorithm.unroll(int(algorithm._config.unroll_length))
        info = experience.rollout_info
        assert torch.equal(info.first_weight, info.last_weight), "torn"
        for column in range(info.first_weight.shape[1]):
            weights = info.first_weight[:, column]
            assert (weights == weights[0]).all(), "changed within an unroll"
            seen.append((made, int(weights[0])))
        algorithm.set_training(True)
        algorithm.train_from_unroll(experience, experience.rollout_info)
    return seen


def test_without_lag_workers_act_with_the_newest_parameters(make):
    algorithm = on_policy(make, max_policy_lag=0)
    assert all(made == known for made, known in seen_versions(algorithm, 20))


@pytest.mark.ci
@pytest.mark.parametrize("max_lag", [slow(1), 3])
def test_the_policy_lag_is_bounded(make, max_lag):
    algorithm = on_policy(make, max_policy_lag=max_lag, num_unroll_workers=3)
    seen = seen_versions(algorithm, 40)
    lags = [made - known for made, known in seen]
    assert 0 < max(lags) <= max_lag
    assert min(lags) >= 0


def test_parameters_may_be_published_every_few_iterations(make):
    algorithm = make(unroll_parameter_update_period=5, unroll_queue_size=1)
    for _ in range(30):
        algorithm.train_iter()
    for steps in stored_steps(algorithm):
        known = steps.rollout_info.first_weight[0]
        # the first iteration trains, too
        assert set(known.unique().tolist()) <= {0.0, 5, 10, 15, 20, 25, 30}
        assert (known.diff() >= 0).all()
        assert known[-1] >= 10


def test_statistics_of_the_trainer_normalize_in_the_workers(make):
    algorithm = on_policy(
        make, max_policy_lag=0, data_transformer_ctor=ObservationNormalizer
    )
    for _ in range(5):
        raw = torch.arange(11.0)[:, None].expand(11, 4)
        expected, _ = algorithm.transform_timestep(_time_step(raw), ())
        experience = algorithm.unroll(2)
        count = experience.rollout_info.count.long() % 11
        torch.testing.assert_close(
            experience.time_step.observation, expected.observation[count]
        )
        algorithm.set_training(True)
        algorithm.train_from_unroll(experience, experience.rollout_info)


def _time_step(observation):
    from alf_lite.data_structures import TimeStep

    rows = len(observation)
    return TimeStep(
        step_type=torch.ones(rows, dtype=torch.int32),
        reward=torch.zeros(rows),
        discount=torch.ones(rows),
        observation=observation,
        prev_action=torch.zeros(rows, dtype=torch.int64),
        env_id=torch.zeros(rows, dtype=torch.int32),
    )


def test_every_environment_of_a_worker_explores_as_much_as_it_shall(make):
    torch.manual_seed(0)  # of the network: another one may change its mind more often
    algorithm = make(
        env_fn(num_parallel_environments=2),
        algorithm_ctor=functools.partial(
            DqnAlgorithm,
            optimizer=Adam(lr=0.001),
            rollout_epsilon_greedy=[0.0, 1.0, 0.0, 1.0],
        ),
        unroll_length=50,
        num_unroll_workers=2,
        max_policy_lag=0,
    )
    algorithm.train_iter()
    # The values hardly change with the step, so a greedy policy repeats itself.
    changes = [
        int((steps.action[0].diff() != 0).sum()) for steps in stored_steps(algorithm)
    ]
    assert changes[0] <= 10
    assert changes[2] <= 10
    assert min(changes[1], changes[3]) > 10


# Taking what is there


@pytest.mark.ci
def test_takes_what_is_there_and_trains_meanwhile(make):
    algorithm = make(unroll_length=0, max_unroll_length=3, unroll_step_interval=0.5)
    sizes = [0]
    for _ in range(200):
        algorithm.train_iter()
        sizes.append(algorithm.replay_buffer.total_size)
    taken = torch.tensor(sizes).diff()
    assert sizes[1] >= 1
    assert taken.max() <= 2 * 3
    assert (taken == 0).sum() > 50


@pytest.mark.ci
def test_samples_per_insert_holds_the_ratio_whoever_is_faster(make):
    for interval in (0.0, 0.005):
        algorithm = make(
            unroll_length=0,
            max_unroll_length=100,
            samples_per_insert=2.0,
            initial_collect_steps=20,
            unroll_step_interval=interval,
        )
        for _ in range(40):
            algorithm.train_iter()
        sampled = algorithm.training_run.updates.num_updates * 4
        inserted = algorithm.replay_buffer.total_size
        assert abs((inserted - 20) * 2.0 - sampled) <= 2 * 4 + 8


def test_keeps_the_pace_that_is_asked_for(make):
    algorithm = make(unroll_step_interval=0.02, num_unroll_workers=1)
    algorithm.train_iter()
    begin = time.monotonic()
    for _ in range(10):
        algorithm.train_iter()
    # Four unrolls may have been waiting in the queue, and one was under way.
    assert time.monotonic() - begin >= 0.02 * 2 * (10 - 6)


def test_a_slow_trainer_stops_its_workers(make):
    algorithm = make(unroll_queue_size=2, num_unroll_workers=1)
    algorithm.train_iter()
    pool = algorithm.training_run.collector.unroller._pool
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        before = heartbeat(pool)
        time.sleep(0.3)
        if heartbeat(pool) == before:
            break
    # two that wait, one in use and one under way, of two steps each, and the reset
    assert 0 < heartbeat(pool) <= 1 + 2 * (2 + 2)


def heartbeat(pool) -> int:
    """Resets and steps of the first worker."""
    if isinstance(pool, ProcessPool):
        return int(pool._heartbeats[0])
    answers: queue.SimpleQueue = queue.SimpleQueue()
    pool._workers[0].actor.ask("look", group="news", then=answers.put)
    return answers.get(timeout=60).result().heartbeat


# Faults


@pytest.mark.parametrize(
    ("mode", "error", "text"),
    [
        ("raise", EnvError, HARD_MESSAGE),
        ("kill", WorkerError, "was killed by SIGKILL"),
        ("segmentation_fault", WorkerError, "fault_environment.py"),
        slow("exit", WorkerError, "exited with code 0"),
        slow("nan_observation", EnvError, "observation[3] = nan"),
        slow("short_observation", EnvError, "observation"),
        slow("system_exit", EnvError, "SystemExit"),
        slow("raise_unprintable", EnvError, "UnprintableError"),
    ],
)
def test_a_fault_is_an_error_that_names_the_worker(tmp_path, mode, error, text):
    create_env = env_fn(mode, at_step=12)
    trainer = make_trainer(tmp_path, create_env, max_worker_restarts=0)
    begin = time.monotonic()
    with pytest.raises(error) as caught:
        trainer.train()
    assert text in str(caught.value)
    assert "unroll worker" in str(caught.value)
    assert "Kept: " in caught.value.__notes__[-1]
    assert time.monotonic() - begin < 120  # also on a busy machine
    assert not children()


# Less than a second is less than the time between two looks at the workers.
@pytest.mark.ci
@pytest.mark.parametrize(
    ("mode", "timeout"), [("hang", 0.5), slow("spin", 1.5), ("stop", 1.5)]
)
def test_a_worker_that_hangs_is_ended(tmp_path, mode, timeout):
    create_env = env_fn(mode, at_step=12)
    trainer = make_trainer(
        tmp_path,
        create_env,
        num_unroll_workers=1,
        max_worker_restarts=0,
        worker_timeout_seconds=timeout,
    )
    with pytest.raises(WorkerError, match=f"its environments for {timeout}") as e:
        trainer.train()
    if mode == "hang":
        assert "fault_environment.py" in str(e.value)
    assert not children()


def test_a_fault_in_the_constructor_is_not_tried_again(tmp_path):
    create_env = functools.partial(create_environment, env_ctor=ImportingEnv)
    with pytest.raises(EnvError, match="No module named 'surely_not_installed'"):
        make_trainer(tmp_path, create_env, max_worker_restarts=3).train()
    assert not children()


@pytest.mark.ci
def test_workers_are_replaced_as_often_as_is_allowed(tmp_path, caplog):
    create_env = env_fn("raise", at_step=12)  # every instance once
    trainer = make_trainer(
        tmp_path, create_env, max_worker_restarts=3, num_iterations=1000
    )
    with pytest.raises(EnvError) as caught:
        trainer.train()
    assert "replaced 3 times" in "".join(caught.value.__notes__)
    assert sum("is replaced" in record.message for record in caplog.records) == 3


class KillsWorkers(Hook):
    """Kills one worker or another after every few iterations."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every = every
        self._random = random.Random(0)
        self.num_killed = 0

    def after_iter(self, trainer: Trainer) -> None:
        pids = sorted(children())
        if trainer.run.iterations % self._every == 0 and pids:
            os.kill(self._random.choice(pids), signal.SIGKILL)
            self.num_killed += 1


@pytest.mark.ci
def test_survives_workers_killed_at_any_moment(tmp_path):
    hook = KillsWorkers(every=6)
    trainer = make_trainer(
        tmp_path,
        env_fn(num_parallel_environments=2),
        hooks=[hook],
        num_iterations=60,
        max_worker_restarts=100,
        unroll_length=8,
    )
    result = trainer.train()
    assert result.iterations == 60
    assert hook.num_killed >= 9
    algorithm = trainer.algorithm
    assert algorithm.replay_buffer.total_size == 60 * 8 * 4
    for steps in stored_steps(algorithm):
        time_step = steps.time_step
        observation = time_step.observation[0, :, 0]
        begins = time_step.is_first()[0]
        # Within an episode every step follows the one before; a cut one ends LAST, be
        # it with the step that it began with.
        begins |= time_step.is_last()[0] & (observation == 0)
        assert torch.equal(observation == 0, begins)
        follows = observation.diff() == 1
        assert (follows | begins[1:]).all()
        assert (time_step.is_last()[0, :-1] == begins[1:]).all()
        cut = time_step.is_last()[0] & (observation < 10)
        assert (time_step.discount[0][cut] == 1).all()
    # What was seen of episodes that were cut does not count.
    results = {metric.name: metric.result() for metric in algorithm.get_metrics()}
    assert results["AverageReturn"] == 10


@pytest.mark.slow
def test_memory_and_descriptors_do_not_leak(tmp_path):
    def num_descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    make_trainer(tmp_path / "warm up", num_iterations=2).train()
    before, shared_memory = num_descriptors(), set(os.listdir("/dev/shm"))
    for i in range(2):
        make_trainer(tmp_path / str(i), num_iterations=2).train()
    with pytest.raises(WorkerError):
        make_trainer(
            tmp_path / "e", env_fn("kill", at_step=5), max_worker_restarts=0
        ).train()
    assert num_descriptors() <= before + 1
    assert not shared_memory_left(shared_memory)


def test_close_may_be_called_again_and_while_the_queue_is_full(make):
    algorithm = make(unroll_queue_size=1)
    algorithm.train_iter()
    time.sleep(0.3)
    begin = time.monotonic()
    algorithm.finish_train()
    algorithm.finish_train()
    assert time.monotonic() - begin < 60
    assert not children()


# Resume


@pytest.mark.ci
def test_a_run_is_continued_with_new_workers(tmp_path):
    fields = {"checkpoint_replay_buffer": True}
    first = make_trainer(tmp_path, num_iterations=20, **fields).train()
    trainer = make_trainer(tmp_path, num_iterations=40, **fields)
    second = trainer.train()
    assert (first.iterations, second.iterations) == (20, 40)
    assert second.env_steps > first.env_steps
    algorithm = trainer.algorithm
    assert algorithm.replay_buffer.total_size == 40 * 2 * 2
    assert int(algorithm.weights[0]) == algorithm.training_run.updates.num_updates
    for steps in stored_steps(algorithm):
        # where the run was interrupted, an episode ends
        begins = steps.time_step.observation[0, :, 0] == 0
        assert (steps.time_step.is_last()[0, :-1] == begins[1:]).all()
    assert nest.flatten(steps.rollout_info.first_weight)[0].max() > 20


# What cannot be


def test_an_on_policy_algorithm_must_correct_for_the_lag(make):
    with pytest.raises(ConfigError, match="max_policy_lag = 0"):
        make(
            algorithm_ctor=functools.partial(
                WitnessAlgorithm, on_policy=True, corrects=False
            ),
            mini_batch_length=None,
        )
    with pytest.raises(ConfigError, match=r"update_period is 2, but .* is on-policy"):
        on_policy(make, unroll_parameter_update_period=2)


def test_what_cannot_be_sent_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="cannot be sent to their processes"):
        make_trainer(tmp_path, lambda seed: None).train()
    assert not children()


def test_too_little_memory_is_said_with_numbers(make, monkeypatch):
    from alf_lite.processes import shared_memory

    # enough for the parameters
    monkeypatch.setattr(shared_memory, "free_ram", lambda: 20_000)
    with pytest.raises(ConfigError, match=r"GB of shared memory.*unroll_queue_size"):
        make(env_fn(num_parallel_environments=100))
    assert not children()


def test_every_environment_of_a_run_has_a_number_of_its_own(tmp_path):
    create_env = functools.partial(
        create_environment,
        num_parallel_environments=2,
        env_ctor=functools.partial(NumberedEnv, tmp_path),
    )
    fields = {"evaluate": True, "num_eval_environments": 2, "num_eval_episodes": 2}
    create_env = functools.partial(create_env, max_episode_steps=5)
    make_trainer(tmp_path, create_env, num_iterations=1, **fields).train()
    numbers: dict[int, list[int]] = {}  # of the environments of each process
    for path in tmp_path.glob("*-*"):
        number, pid = map(int, path.name.split("-"))
        numbers.setdefault(pid, []).append(number)
    in_this = sorted(numbers.pop(os.getpid()))
    # Two to know what the workers' are like, which are closed before those start.
    assert in_this == [0, 1, 4, 5]
    assert sorted(map(sorted, numbers.values())) == [[0, 1], [2, 3]]
