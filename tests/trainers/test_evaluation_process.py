"""Evaluations in a process of their own: the same results, and none of its troubles."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import EnvError, WorkerError
from alf_lite.trainers.evaluations import RunEvaluations
from alf_lite.trainers.hooks import Hook
from alf_lite.trainers.shipped_hooks import Curriculum
from alf_lite.trainers.trainer import Trainer
from tests.trainers.conftest import make_noise
from tests.trainers.toys import ScriptedEnvironment, ToyAlgorithm

EVALUATE = {"evaluate": True, "num_eval_episodes": 4, "num_eval_environments": 2}


class Notes(Hook):
    """Notes the results; waits for those of other processes, if it is asked to."""

    def __init__(self, waits: bool = False) -> None:
        super().__init__()
        self.results = {}
        self.arrived_at = {}
        self.pid = None
        self._waits = waits

    def before_iter(self, training) -> None:
        process = training._evaluations._process
        if process is not None:
            self.pid = process._processes.children[0].pid
        if self._waits:
            training._take_late_result(wait=True)

    def after_eval(self, training, result) -> None:
        self.results[result.iterations] = result
        self.arrived_at[result.iterations] = training.run.iterations


def make_cart_pole(*, seed, num_parallel_environments=2):
    return create_environment("CartPole-v1", num_parallel_environments, seed)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.ci
def test_the_results_the_best_policy_and_the_training_are_the_same(make_trainer):
    notes, states, bests = [], [], []
    for name in ("sync", "async"):
        hook = Notes(waits=True)
        trainer = make_trainer(
            name,
            hooks=[hook],
            num_iterations=5,
            num_checkpoints=2,
            eval_interval=1,
            async_eval=name == "async",
            **EVALUATE,
        )
        result = trainer.train()
        notes.append(hook)
        states.append(trainer.algorithm.state_dict())
        checkpoints = Checkpointer(trainer.root_dir / "checkpoints")
        best = checkpoints.load("best", ["algorithm"])
        bests.append((best.step, result.best_score, best.state["algorithm"]))
        assert checkpoints.load(resumable=True).step == 5
    sync, other = notes
    assert sorted(sync.results) == [0, 1, 2, 3, 4, 5]
    for iteration, expected in sync.results.items():
        found = other.results[iteration]
        assert found.episodes == expected.episodes
        assert (found.iterations, found.env_steps) == (iteration, expected.env_steps)
    assert bests[0][:2] == bests[1][:2]
    for first, second in (states, [state for *_, state in bests]):
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert not is_alive(other.pid)


@pytest.mark.ci
def test_what_a_curriculum_changes_of_acting_is_evaluated_so():
    level = {"algorithm.predict_epsilon": 1.0}
    returns = []
    for async_eval, hooks in ((True, []), (True, [level]), (False, [level])):
        config = TrainerConfig(
            num_iterations=1,
            unroll_length=4,
            random_seed=0,
            async_eval=async_eval,
            algorithm_ctor=PPOAlgorithm,
            **EVALUATE,
        )
        hooks = [Curriculum([each], []) for each in hooks]
        result = Trainer(config, hooks=hooks, create_env=make_cart_pole).train()
        returns.append(result.evaluation.returns)
    assert returns[0] != returns[1] == returns[2]


class Extended(ToyAlgorithm):
    def __init__(self, observation_spec, action_spec, *, size=1, **kwargs):
        super().__init__(observation_spec, action_spec, **kwargs)
        self.extension = nn.Linear(size, size)


def test_an_algorithm_that_was_built_in_python_is_built_alike():
    config = TrainerConfig(num_iterations=1, async_eval=True, **EVALUATE)
    env = make_noise(seed=0)
    algorithm = Extended(env=env, config=config, size=3)
    result = Trainer(algorithm, create_env=make_noise).train()
    assert len(result.evaluation.returns) == 4


class Waits(ScriptedEnvironment):
    """Goes on when there is a file."""

    def __init__(self, size: int, path: Path) -> None:
        super().__init__([lambda i: (2, 1.0)] * size)
        self._path = path

    def step(self, action):
        while not self._path.exists():
            time.sleep(0.01)
        return super().step(action)


def make_waiting_evaluation(path: Path, *, seed: int, num_parallel_environments=None):
    if num_parallel_environments is None:
        return make_noise(seed=seed)
    return Waits(num_parallel_environments, path)


class LetsGo(Notes):
    """Makes the file after the 30th iteration."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def after_iter(self, training) -> None:
        if training.run.iterations == 30:
            self._path.touch()


@pytest.mark.ci
def test_training_goes_on_and_what_is_due_meanwhile_is_left_out(
    train, tmp_path, caplog
):
    path = tmp_path / "go"
    hook = LetsGo(path)
    result = train(
        hooks=[hook],
        create_env=functools.partial(make_waiting_evaluation, path),
        num_iterations=40,
        eval_interval=1,
        async_eval=True,
        **EVALUATE,
    )
    assert result.evaluation.iterations == 40
    assert result.evaluation.returns == [1.0] * 4
    # The first one takes 30 iterations; of the ten others each may be evaluated.
    assert min(hook.arrived_at.values()) >= 30
    assert len(hook.results) <= 11
    assert caplog.text.count("is left out") == 1


class Kills(Notes):
    """Kills the process, as often as is said."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def after_iter(self, training) -> None:
        if self._times:
            self._times -= 1
            process = training._evaluations._process._processes.children[0]
            os.kill(process.pid, signal.SIGKILL)
            process.join(10)


@pytest.mark.ci
def test_a_process_that_is_killed_is_replaced_and_its_evaluation_repeated(
    train, caplog
):
    config = {"num_iterations": 3, "eval_interval": 2, **EVALUATE}
    expected, hook = train("sync", **config), Kills(1)
    result = train("async", hooks=[hook], async_eval=True, **config)
    assert result.evaluation.episodes == expected.evaluation.episodes
    assert "killed by SIGKILL" in caplog.text
    assert "It is replaced (1 of 3 times)" in caplog.text


def test_one_that_dies_too_often_ends_the_run_with_one_error(train):
    with pytest.raises(WorkerError, match=r"evaluation process \d+: .*SIGKILL"):
        train(
            hooks=[Kills(1)],
            num_iterations=2,
            async_eval=True,
            max_worker_restarts=0,
            **EVALUATE,
        )


def make_failing_evaluation(*, seed: int, num_parallel_environments=None):
    if num_parallel_environments is None:
        return make_noise(seed=seed)
    return make_noise(
        seed=seed, num_parallel_environments=num_parallel_environments, fail_at=3
    )


def test_what_an_environment_raises_there_ends_the_run(train):
    with pytest.raises(EnvError, match=r"evaluation process \d+: environment 1 fell"):
        train(create_env=make_failing_evaluation, async_eval=True, **EVALUATE)


def make_no_evaluation(*, seed: int, num_parallel_environments=None):
    if num_parallel_environments is None:
        return make_noise(seed=seed)
    raise EnvError("no pole")


def test_what_cannot_be_built_there_is_said_before_training(train, tmp_path):
    with pytest.raises(EnvError, match=r"evaluation process \d+: no pole"):
        train(create_env=make_no_evaluation, async_eval=True, **EVALUATE)
    assert not (tmp_path / "run" / "run.json").exists()


class Hangs(ScriptedEnvironment):
    def step(self, action):
        time.sleep(100)


def make_hanging_evaluation(*, seed: int, num_parallel_environments=None):
    if num_parallel_environments is None:
        return make_noise(seed=seed)
    return Hangs([lambda i: (2, 1.0)])


@pytest.mark.ci
def test_one_that_hangs_is_killed_and_shows_where_it_was(train):
    config = {"async_eval": True, "worker_timeout_seconds": 1.0, **EVALUATE}
    with pytest.raises(WorkerError, match=r"(?s)no step .* for 1 s.*in step"):
        train(create_env=make_hanging_evaluation, **config)


class Busy(ScriptedEnvironment):
    """Its steps take a while of the time of this process alone."""

    def step(self, action):
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        return super().step(action)


def make_busy_evaluation(*, seed: int, num_parallel_environments=None):
    if num_parallel_environments is None:
        return make_noise(seed=seed)
    return Busy([lambda i: (4, 1.0)])


@pytest.mark.ci
def test_one_that_was_stopped_together_with_the_run_goes_on(train):
    class IsStopped(Notes):
        def after_iter(self, training) -> None:
            if training.run.iterations == 2:
                os.kill(self.pid, signal.SIGSTOP)
                time.sleep(4.0)
                training._take_late_result()
                os.kill(self.pid, signal.SIGCONT)

    config = {"async_eval": True, "eval_interval": 2, **EVALUATE}
    config |= {"worker_timeout_seconds": 3.5, "num_eval_environments": 1}
    hook = IsStopped()
    train(create_env=make_busy_evaluation, hooks=[hook], num_iterations=4, **config)
    assert 4 in hook.results


class Terminates(Hook):
    """At the end of an iteration."""

    def __init__(self, iteration: int = 1) -> None:
        super().__init__()
        self._iteration = iteration

    def after_iter(self, training) -> None:
        if training.run.iterations == self._iteration:
            os.kill(os.getpid(), signal.SIGTERM)


class WithoutFirst(Hook):
    """That of iteration 0 is taken for done."""

    def before_train(self, training) -> None:
        training.run.last_eval_iteration = 0


@pytest.mark.ci
@pytest.mark.parametrize(
    ("iteration", "then"), [(2, "repeats it"), (3, "does not repeat it")]
)
def test_what_a_signal_loses_is_said(train, caplog, iteration, then):
    train(
        create_env=make_hanging_evaluation,
        hooks=[WithoutFirst(), Terminates(iteration)],
        async_eval=True,
        eval_interval=2,
        **EVALUATE,
    )
    [line] = [r.message for r in caplog.records if "evaluation of" in r.message]
    assert line.startswith("The evaluation of iteration 2 was still going on")
    assert line.endswith(f"A run that is resumed from here {then}.")


def test_none_begins_after_a_signal(train, caplog):
    train(hooks=[Terminates(2)], async_eval=True, **EVALUATE)
    assert not [r.message for r in caplog.records if "evaluation of" in r.message]


@pytest.mark.ci
def test_the_final_one_that_a_signal_loses_is_repeated(train, caplog, monkeypatch):
    wait = RunEvaluations.wait

    def is_stopped(self, *args, **kwargs):
        if self._begun is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        return wait(self, *args, **kwargs)

    config = {"num_iterations": 3, "async_eval": True, **EVALUATE}
    with monkeypatch.context() as patch:
        patch.setattr(RunEvaluations, "wait", is_stopped)
        config["num_eval_episodes"] = 5000
        assert train(**config).evaluation is None
    [line] = [r.message for r in caplog.records if "evaluation of" in r.message]
    assert line.startswith("The evaluation of iteration 3 was still going on")
    assert line.endswith("A run that is resumed from here repeats it.")
    assert train(**{**config, "num_eval_episodes": 4}).evaluation.iterations == 3


@pytest.mark.ci
def test_a_signal_does_not_wait_for_it(train, monkeypatch):
    pids, close = [], RunEvaluations.close

    def closes(self) -> None:
        pids.append(self._process._processes.children[0].pid)
        close(self)

    monkeypatch.setattr(RunEvaluations, "close", closes)
    begin = time.monotonic()
    result = train(
        create_env=make_hanging_evaluation,
        hooks=[Terminates()],
        async_eval=True,
        eval_interval=1,
        **EVALUATE,
    )
    assert result.stop_signal == signal.SIGTERM
    assert time.monotonic() - begin < 90  # it hangs for 100
    assert not is_alive(pids[0])


def test_no_better_evaluation_ends_the_run(train):
    scores = iter([1.0, 3.0, 3.0, 2.0, 9.0])  # 0 is not asked for

    class Scores(Hook):
        def score(self, result):
            return next(scores)

    config = {"eval_interval": 2, "early_stop_patience": 2, **EVALUATE}
    result = train(hooks=[Scores()], num_iterations=100, **config)
    assert result.iterations == 8
    assert result.stop_reason == (
        "early_stop_patience: none of 2 evaluations was better than that of iteration 4"
    )
    assert train(hooks=[Scores()], num_iterations=100, **config).was_finished
