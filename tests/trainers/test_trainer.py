"""Tests of alf_lite.trainers.trainer: the loop and its ends."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import alf_lite
from alf_lite import nest
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import TrainerConfig
from alf_lite.errors import CheckpointError, ConfigError, DivergedError, EnvError
from alf_lite.tensor_specs import TensorSpec
from alf_lite.trainers import signals, trainer
from alf_lite.trainers.hooks import Hook
from tests.trainers.async_toys import WitnessAlgorithm
from tests.trainers.conftest import make_noise
from tests.trainers.run_comparison import Dies
from tests.trainers.toys import NoiseEnvironment, ScriptedEnvironment, ToyAlgorithm


def steps_in(root) -> list[int]:
    return [info.step for info in Checkpointer(root / "checkpoints").list_checkpoints()]


class At(Hook):
    """Does something before or after the given iteration."""

    def __init__(self, iteration: int, action, place: str = "before_iter") -> None:
        super().__init__()
        self._iteration, self._action = iteration, action
        setattr(self, place, self._act)

    def _act(self, training) -> None:
        if training.run.iterations == self._iteration:
            self._action(training)


# Length


def test_trains_the_given_number_of_iterations(train, tmp_path):
    result = train(num_iterations=7)
    assert (result.iterations, result.stop_reason) == (7, "finished")
    # 7 unrolls of 5 steps in 2 environments, without the FIRST steps
    assert 0.7 * 70 < result.env_steps <= 70
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "ckpt-7"
    assert result.evaluation is None
    assert not result.was_finished
    assert 0 < result.average_return < 50


def test_env_steps_end_the_run_too(train):
    result = train(num_iterations=0, num_env_steps=41)
    assert 41 <= result.env_steps < 41 + 10
    assert train("both", num_iterations=2, num_env_steps=1000).iterations == 2


def test_a_run_that_trains_nothing_says_so(train, caplog):
    config = {"algorithm_ctor": WitnessAlgorithm, "mini_batch_length": 2}
    with caplog.at_level(logging.WARNING, logger="alf_lite"):
        train("long", initial_collect_steps=80, **config)
        assert not caplog.records
        assert train(initial_collect_steps=100, **config).num_updates == 0
    (record,) = caplog.records
    assert "steps, and training waits for initial_collect_steps=100" in record.message
    assert "and for all windows of an iteration" in record.message


def test_progress_reaches_one_and_follows_the_iterations(make_trainer):
    seen = []

    def see(trainer):
        seen.append(trainer.algorithm.progress.percent)

    trainer = make_trainer(num_iterations=4, hooks=[At(i, see) for i in range(4)])
    trainer.train()
    progress = trainer.algorithm.progress
    assert seen == [0, 0.25, 0.5, 0.75]
    assert progress.percent == 1
    assert progress.iterations == progress.global_counter == 4


def test_checkpoints_are_spread_over_the_run_and_old_ones_deleted(train, tmp_path):
    train(num_iterations=8, num_checkpoints=4, keep_checkpoints=3)
    assert steps_in(tmp_path / "run") == [4, 6, 8]
    train("no", num_iterations=3, num_checkpoints=0)
    assert steps_in(tmp_path / "no") == [3]


def test_every_checkpoint_and_the_directory_hold_the_config_texts(train, tmp_path):
    path = train(num_iterations=2).checkpoint
    for name in ("user.gin", "operative.gin", "inoperative.gin"):
        assert (path / name).is_file()
        assert (tmp_path / "run" / name).is_file()
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["seed"] == 3
    assert record["pid"] == os.getpid()


def test_environments_are_closed_also_after_an_error(train):
    made = []

    def create(**kwargs):
        kwargs.pop("seed")
        made.append(ScriptedEnvironment([lambda i: (3, 1.0)]))
        return made[-1]

    train(create_env=create, evaluate=True)
    with pytest.raises(ZeroDivisionError):
        train("b", create_env=create, hooks=[At(1, lambda t: 1 / 0)])
    assert len(made) == 3
    assert all(env.closed for env in made)


# Seeds


def test_threads_that_are_left_when_all_is_closed_are_looked_for(train, monkeypatch):
    at_end = []

    def look() -> None:
        at_end.append(Closed.num_closed)

    class Closed(NoiseEnvironment):
        num_closed = 0

        def close(self) -> None:
            Closed.num_closed += 1

    monkeypatch.setattr(trainer, "watch_end_of_program", look)
    train(create_env=lambda *, seed: Closed(2, seed), num_iterations=1)
    assert len(at_end) == 1
    assert at_end[0] > 0


@pytest.mark.ci
def test_same_seed_same_parameters_and_another_seed_others(make_trainer):
    def parameters(root, seed):
        trainer = make_trainer(root, random_seed=seed)
        trainer.train()
        return trainer.algorithm.state_dict()["_policy.1.weight"]

    first = parameters("a", 1)
    assert torch.equal(parameters("b", 1), first)
    assert not torch.equal(parameters("c", 2), first)


@pytest.mark.ci
def test_chosen_seed_is_recorded_and_kept_on_resume(train, tmp_path):
    train(random_seed=None)
    run_file = tmp_path / "run" / "run.json"
    seed = json.loads(run_file.read_text())["seed"]
    train(random_seed=None, num_iterations=10)
    assert json.loads(run_file.read_text())["seed"] == seed
    train(random_seed=seed, num_iterations=11)
    texts = [run_file.read_text(), (tmp_path / "run" / "user.gin").read_text()]
    with pytest.raises(ConfigError, match=f"seed is {seed + 1}, .* with seed {seed},"):
        train(random_seed=seed + 1, num_iterations=12)
    after = [run_file.read_text(), (tmp_path / "run" / "user.gin").read_text()]
    assert after == texts


# Evaluation


class Marks:
    """Creates NoiseEnvironments to train in and scripted ones to evaluate in.

    The n-th evaluation has the n-th return.
    """

    def __init__(self, returns) -> None:
        self.returns = returns

    def __call__(self, *, seed, num_parallel_environments=None):
        if num_parallel_environments is None:
            return NoiseEnvironment(2, seed)
        env = ScriptedEnvironment([lambda i: (2, self.returns[len(env.seeds) - 1])])
        self.eval_env = env
        return env


EVALUATE = {"evaluate": True, "num_eval_episodes": 2}


def test_evaluates_at_every_interval_and_at_the_end(train):
    marks = Marks([0.0, 1.0, 2.0, 3.0, 4.0])
    result = train(create_env=marks, num_iterations=7, eval_interval=2, **EVALUATE)
    assert result.evaluation.returns == [4, 4]
    assert len(marks.eval_env.seeds) == 5  # at 0, 2, 4, 6 and 7
    assert len(set(marks.eval_env.seeds)) == 5


def test_last_checkpoint_is_the_best_if_the_last_evaluation_says_so(train, tmp_path):
    marks = Marks([4.0])
    result = train(create_env=marks, num_iterations=4, **EVALUATE)
    assert result.best_score == 4
    best = Checkpointer(tmp_path / "run" / "checkpoints").load("best", resumable=True)
    assert best.step == 4
    # A run that goes on from there makes no evaluation here.
    assert best.state["trainer"]["run"]["last_eval_iteration"] is None
    again = train(create_env=marks, num_iterations=4, **EVALUATE)
    assert again.was_finished
    assert again.best_score == 4


def test_final_evaluation_is_not_done_twice(train):
    marks = Marks([0.0, 1.0, 2.0])
    train(create_env=marks, num_iterations=4, eval_interval=2, **EVALUATE)
    assert len(marks.eval_env.seeds) == 3


@pytest.mark.parametrize("interval", [0, 4])
@pytest.mark.parametrize("is_signal", [True, False])
def test_the_same_command_makes_a_final_evaluation_that_was_broken_off(
    train, tmp_path, interval, is_signal
):
    class Fails(Marks):
        def __call__(self, *, num_parallel_environments=None, **kwargs):
            if num_parallel_environments is None:
                return super().__call__(**kwargs)
            return ScriptedEnvironment([self._play])

        def _play(self, episode):
            if not interval or steps_in(tmp_path / "run"):  # not that of iteration 0
                if not is_signal:
                    raise EnvError("a pole fell")
                os.kill(os.getpid(), signal.SIGTERM)
            return 2, 5.0

    config = {"num_iterations": 4, "eval_interval": interval, **EVALUATE}
    config |= {"num_checkpoints": 4}
    expected = train("straight", create_env=Marks([0.0] * 9), **config)
    with contextlib.nullcontext() if is_signal else pytest.raises(EnvError):
        train(create_env=Fails([]), **config)
    marks = Marks([3.0])
    again = train(create_env=marks, **config)
    assert again.iterations == 4
    assert not again.was_finished
    assert again.evaluation.returns == [3, 3]
    seeds = [episode.seed for episode in again.evaluation.episodes]
    assert seeds == [episode.seed for episode in expected.evaluation.episodes]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["stop_reason"], record["evaluation"]) == ("finished", 3)
    assert train(create_env=marks, **config).was_finished


def test_a_best_policy_of_later_than_the_last_checkpoint_stays(train, tmp_path):
    train(num_iterations=4)
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints")
    policy = {"algorithm": checkpointer.load(4).state["algorithm"]}
    checkpointer.save(6, policy, best_score=9.0, resumable=False)
    assert train(num_iterations=5).iterations == 5
    assert checkpointer.load("best", ["algorithm"]).step == 6


@pytest.mark.parametrize(("score", "is_again"), [(5.0, False), (9.0, True)])
def test_a_best_policy_of_a_part_that_was_killed_stays_unless_it_comes_again(
    train, tmp_path, score, is_again
):
    config = {"eval_interval": 2, "num_checkpoints": 1, **EVALUATE}
    train(create_env=Marks([0.0, 1.0, 3.0]), num_iterations=4, **config)
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints")
    policy = {"algorithm": checkpointer.load(4).state["algorithm"]}
    checkpointer.save(6, policy, best_score=9.0, resumable=False)
    marks = Marks([score, 2.0])
    result = train(create_env=marks, num_iterations=8, **config)
    assert result.best_score == 9
    best = checkpointer.load("best", ["algorithm"])
    assert best.step == 6
    is_same = all(
        torch.equal(tensor, policy["algorithm"][name])
        for name, tensor in best.state["algorithm"].items()
    )
    assert is_same != is_again
    run = checkpointer.load(resumable=True).state["trainer"]["run"]
    assert run["best_iteration"] == (6 if is_again else None)


def test_a_checkpoint_leaves_the_best_policy_of_a_part_that_was_killed(train, tmp_path):
    config = {"eval_interval": 2, "num_checkpoints": 4, **EVALUATE}
    train(create_env=Marks([0.0, 1.0, 3.0]), num_iterations=4, **config)
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints")
    policy = {"algorithm": checkpointer.load(4).state["algorithm"]}
    checkpointer.save(6, policy, best_score=9.0, resumable=False)
    train(create_env=Marks([5.0, 2.0]), num_iterations=8, **config)
    assert checkpointer.load("best", ["algorithm"]).step == 6
    assert steps_in(tmp_path / "run") == [4, 6, 7, 8]


@pytest.mark.parametrize("interval", [0, 2])
def test_the_last_checkpoint_leaves_the_best_policy_of_a_part_that_was_killed(
    train, tmp_path, caplog, interval
):
    config = {"num_checkpoints": 3, **EVALUATE}
    marks = Marks([0.0, 1.0, 3.0])
    train(create_env=marks, num_iterations=4, eval_interval=2, **config)
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints")
    policy = {"algorithm": checkpointer.load(4).state["algorithm"]}
    checkpointer.save(6, policy, best_score=9.0, resumable=False)
    config["eval_interval"] = interval
    result = train(create_env=Marks([5.0] * 2), num_iterations=6, **config)
    assert (result.best_score, result.checkpoint.name) == (9, "ckpt-6")
    assert checkpointer.load(resumable=True).step == 6
    best = checkpointer.load("best", ["algorithm"])
    assert best.step == 5
    for name, tensor in best.state["algorithm"].items():
        assert torch.equal(tensor, policy["algorithm"][name])
    assert "its policy is now ckpt-5" in caplog.text
    train(create_env=Marks([7.0] * 2), num_iterations=8, **config)
    assert checkpointer.load("best", ["algorithm"]).step == 5


def test_what_was_not_evaluated_is_not_called_the_best(train, tmp_path):
    config = {"eval_interval": 2, **EVALUATE}
    train(create_env=Marks([0.0, 1.0, 3.0]), num_iterations=4, **config)
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints")
    policy = {"algorithm": checkpointer.load(4).state["algorithm"]}
    checkpointer.save(6, policy, best_score=9.0, resumable=False)
    train(num_iterations=6)
    by_step = {info.step: info.best_score for info in checkpointer.list_checkpoints()}
    assert by_step[6] is None


def test_best_policy_is_kept_and_only_a_strictly_better_one_replaces_it(
    train, tmp_path
):
    marks = Marks([9.0, 3.0, 7.0, 5.0, 7.0, 1.0, 1.0, 1.0, 1.0])
    result = train(
        create_env=marks,
        num_iterations=8,
        eval_interval=1,
        num_checkpoints=2,
        keep_checkpoints=1,
        **EVALUATE,
    )
    # The evaluation at 0 is of a policy that has learned nothing.
    assert result.best_score == 7
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints")
    best = checkpointer.load("best", ["algorithm"])
    assert best.step == 2
    assert steps_in(tmp_path / "run") == [2, 8]
    assert checkpointer.load(resumable=True).step == 8


def test_stops_when_an_evaluation_reaches_the_threshold(train):
    marks = Marks([99.0, 3.0, 10.0, 12.0])
    config = {"eval_interval": 2, "early_stop_return": 10.0, **EVALUATE}
    result = train(create_env=marks, num_iterations=100, **config)
    assert result.iterations == 4
    assert result.stop_reason == "early_stop_return: 10 reaches 10"
    again = train(create_env=marks, num_iterations=100, **config)
    assert again.was_finished
    longer = train(
        create_env=Marks([5.0, 12.0]),
        num_iterations=100,
        **{**config, "early_stop_return": 11.0},
    )
    assert longer.iterations == 8


def test_evaluation_does_not_change_training(make_trainer):
    states = []
    for root, config in (("off", {}), ("on", {"eval_interval": 1, **EVALUATE})):
        trainer = make_trainer(root, random_seed=5, num_checkpoints=2, **config)
        trainer.train()
        states.append((trainer.algorithm.state_dict(), torch.rand(2)))
    (off, off_random), (on, on_random) = states
    assert off.keys() == on.keys()
    assert all(torch.equal(off[key], on[key]) for key in off)
    assert torch.equal(off_random, on_random)


# Hooks


def test_hooks_are_called_in_order_at_their_places(train):
    tape = []

    class Recorder(Hook):
        def __init__(self, name, priority):
            super().__init__(priority)
            for place in (
                "before_train",
                "before_iter",
                "after_iter",
                "after_eval",
                "after_train",
            ):
                setattr(self, place, lambda *a, p=place: tape.append(f"{name}.{p}"))

    hooks = [Recorder("a", 20), Recorder("b", 10), Recorder("c", 20)]
    train(num_iterations=2, hooks=hooks, eval_interval=2, **EVALUATE)
    places = [entry for entry in tape if entry.startswith("a.")]
    assert places == [
        "a.before_train",
        "a.after_eval",  # of the policy that has learned nothing
        *("a.before_iter", "a.after_iter"),
        *("a.before_iter", "a.after_eval", "a.after_iter"),
        "a.after_train",
    ]
    assert tape[:3] == ["b.before_train", "a.before_train", "c.before_train"]
    assert len(tape) == 3 * len(places)


def test_hook_can_stop_the_run_and_it_can_be_continued(train, tmp_path):
    result = train(hooks=[At(3, lambda t: t.request_stop("enough"), "after_iter")])
    assert (result.iterations, result.stop_reason) == (3, "enough")
    assert steps_in(tmp_path / "run")[-1] == 3
    assert train().iterations == 8


def fail(training) -> None:
    raise ZeroDivisionError


@pytest.mark.ci
@pytest.mark.parametrize("place", ["before_iter", "after_iter", "after_eval"])
def test_exception_of_a_hook_saves_the_last_whole_iteration(train, tmp_path, place):
    class Fails(Hook):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, place, self._act)

        def _act(self, training, *args) -> None:
            if training.run.iterations == 3:
                raise ZeroDivisionError

    config = {"num_checkpoints": 0, "eval_interval": 3, **EVALUATE}
    with pytest.raises(ZeroDivisionError) as error:
        train(hooks=[Fails()], **config)
    assert steps_in(tmp_path / "run") == [3]
    (note,) = error.value.__notes__
    assert note.startswith("Stopped in iteration 4. Kept: ")
    train("straight", **config)
    assert train(**config).iterations == 8


class FailsAt(ToyAlgorithm):
    """Raises at the n-th call of a method, counted from 1."""

    place, countdown = "", 0

    def _count(self, place: str) -> None:
        if place == FailsAt.place:
            FailsAt.countdown -= 1
            if FailsAt.countdown == 0:
                raise ZeroDivisionError

    def rollout_step(self, inputs, state):
        self._count("rollout_step")
        return super().rollout_step(inputs, state)

    def calc_loss(self, info):
        self._count("calc_loss")
        return super().calc_loss(info)

    def after_update(self, root_inputs, info):
        self._count("after_update")
        super().after_update(root_inputs, info)


@pytest.mark.parametrize(
    ("place", "countdown", "kept", "remark"),
    [
        ("rollout_step", 3 * 6 + 2, [2, 3], "Stopped in iteration 4. Kept"),
        ("calc_loss", 4, [2, 3], "Stopped in iteration 4. Kept"),
        ("after_update", 4, [2], "in iteration 4. Its updates had begun"),
    ],
)
def test_exception_of_an_algorithm_saves_what_is_whole(
    train, make_trainer, tmp_path, place, countdown, kept, remark
):
    FailsAt.place, FailsAt.countdown = place, countdown
    with pytest.raises(ZeroDivisionError) as error:
        train(algorithm_ctor=FailsAt)
    assert remark in error.value.__notes__[0]
    assert f"ckpt-{kept[-1]}" in error.value.__notes__[0]
    assert steps_in(tmp_path / "run") == kept
    trainer = make_trainer(algorithm_ctor=FailsAt)
    result = trainer.train()
    assert result.iterations == trainer.algorithm.progress.global_counter == 8


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_every_hook_is_closed_once_and_the_first_error_is_raised(train, caplog, error):
    called = []

    def close(training) -> None:
        called.append(training.run.iterations)
        raise error("closing")

    hooks = [At(1, close, "after_train"), At(1, fail), At(1, close, "after_train")]
    with pytest.raises(ZeroDivisionError):
        train(hooks=hooks)
    assert called == [1, 1]
    assert caplog.text.count("At.after_train failed") == 2
    called.clear()
    hooks = [At(2, close, "after_train"), At(2, fail, "after_train")]
    with pytest.raises(error, match="closing"):
        train("b", num_iterations=2, hooks=hooks)
    assert "ZeroDivisionError" in caplog.text
    assert train("b", num_iterations=2).was_finished


def test_hook_can_ask_for_a_checkpoint(train, tmp_path, caplog):
    hook = At(5, lambda t: t.request_checkpoint())
    train(hooks=[hook], num_checkpoints=1)
    assert steps_in(tmp_path / "run") == [6, 8]


class Counts(Hook):
    """Counts the iterations of the whole run."""

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(())

    def after_iter(self, training) -> None:
        self.count += 1

    def state_dict(self):
        return {"count": self.count.clone()}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_state_of_hooks_is_part_of_the_checkpoint(train, caplog):
    train(hooks=[Hook(), Counts(), Counts()], num_iterations=4)
    other = Counts()
    other.priority = 60
    again = [Counts(), other]
    train(hooks=again, num_iterations=8)
    assert [int(hook.count) for hook in again] == [8, 8]
    assert "state of a hook" not in caplog.text
    alone = Counts()
    train(hooks=[alone], num_iterations=9)
    assert int(alone.count) == 9
    assert "the state of a hook Counts-2, which this run does not have" in caplog.text

    class Renamed(Counts):
        def load_state_dict(self, state):
            self.count = state["number"]

    Renamed.__name__ = "Counts"
    with pytest.raises(CheckpointError, match="hook Counts in the checkpoint"):
        train(hooks=[Renamed()], num_iterations=12)


def test_hook_with_a_state_that_cannot_be_saved_loses_only_that(train, tmp_path):
    class Opaque(Hook):
        def state_dict(self):
            return {"thing": object()}

    with pytest.raises(TypeError, match=r"Opaque.*cannot hold a object") as error:
        train(hooks=[Opaque()], num_checkpoints=2)
    assert "ckpt-4" in error.value.__notes__[0]
    assert train().iterations == 8


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_finishes_the_iteration_and_saves(train, tmp_path, number):
    hook = At(2, lambda t: os.kill(os.getpid(), number))
    result = train(hooks=[hook], num_checkpoints=1)
    assert result.iterations == 3
    assert result.stop_signal == number
    assert steps_in(tmp_path / "run") == [3]
    assert train().iterations == 8


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, SystemExit),
        (signal.SIGHUP, SystemExit),
    ],
)
def test_signal_ends_a_loop_over_runs_when_the_run_is_saved(
    train, tmp_path, number, end
):
    hook = At(2, lambda t: os.kill(os.getpid(), number))
    done = []
    with pytest.raises(end) as error:
        for seed in range(3):
            train(f"{seed}", hooks=[hook], random_seed=seed, on_signal="raise")
            done.append(seed)
    assert not done
    assert error.value.args == (() if end is KeyboardInterrupt else (128 + number,))
    path = tmp_path / "0/checkpoints/ckpt-3"
    assert error.value.__notes__ == [
        f"The run was stopped after 3 iterations, and saved in {path}."
    ]
    assert path.is_dir()
    record = json.loads((tmp_path / "0/run.json").read_text())
    assert record["exit_code"] == 128 + number
    assert record["stop_reason"] == number.name


def test_what_a_program_does_after_a_signal_is_one_of_two(make_trainer):
    with pytest.raises(ValueError, match=r'"raise" or "return", got \'exit\''):
        make_trainer(on_signal="exit")


class Interrupts:
    """Ctrl-C where Python keeps what is raised, and prints it."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


class SequenceThatInterrupts(list):
    def __iter__(self):
        Interrupts()
        return super().__iter__()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("on_signal", ["raise", "return"])
@pytest.mark.parametrize("place", ["before", "environment", "algorithm", "episodes"])
def test_ctrl_c_while_the_run_is_built_is_not_lost(tmp_path, place, on_signal):
    class Algorithm(ToyAlgorithm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            if place == "algorithm":
                Interrupts()

        def reset_environment(self, seed):
            super().reset_environment(seed)
            if place == "episodes":
                Interrupts()

        def train_iter(self):
            raise AssertionError("training goes on")

    def create(*, seed):
        if place == "environment":
            Interrupts()
        return make_noise(seed=seed)

    config = TrainerConfig(
        algorithm_ctor=Algorithm, num_iterations=1, unroll_length=5, evaluate=False
    )
    hooks = SequenceThatInterrupts() if place == "before" else []
    options = {"hooks": hooks, "create_env": create, "on_signal": on_signal}
    if place == "episodes" and on_signal == "return":  # there is a result
        result = alf_lite.train(config, tmp_path / "run", **options)
        assert (result.stop_signal, result.iterations) == (signal.SIGINT, 0)
    else:
        with pytest.raises(KeyboardInterrupt):
            alf_lite.train(config, tmp_path / "run", **options)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class HangingEnvironment(NoiseEnvironment):
    """Gets two signals at its 12th step, which does not end."""

    numbers: tuple[signal.Signals, ...] = ()

    def step(self, action):
        if self.steps_of_all_instances == 11:
            NoiseEnvironment.steps_of_all_instances += 1
            for number in HangingEnvironment.numbers:
                os.kill(os.getpid(), number)
                time.sleep(0.01)
            time.sleep(60)
        return super().step(action)


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)],
)
def test_second_signal_gives_a_hanging_environment_up_and_saves(
    train, tmp_path, numbers
):
    HangingEnvironment.numbers = numbers
    result = train(
        create_env=lambda *, seed: HangingEnvironment(2, seed), num_checkpoints=1
    )
    assert result.stop_signal == numbers[0]
    assert result.stop_reason == numbers[0].name
    assert result.iterations == 2
    assert "Stopped in iteration 3. Kept" in result.note
    assert steps_in(tmp_path / "run") == [2]
    assert train().iterations == 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_signal_of_a_scheduler_gives_a_hanging_environment_up(
    train, tmp_path, number, monkeypatch
):
    monkeypatch.setattr(signals, "PATIENCE_SECONDS", 0.3)
    HangingEnvironment.numbers = (number,)
    result = train(
        create_env=lambda *, seed: HangingEnvironment(2, seed), num_checkpoints=1
    )
    assert result.stop_signal == number
    assert steps_in(tmp_path / "run") == [2]


def test_updates_come_to_their_end_after_a_second_signal(train, tmp_path):
    class SlowUpdates(ToyAlgorithm):
        num_calls = 0

        def calc_loss(self, info):
            SlowUpdates.num_calls += 1
            if SlowUpdates.num_calls == 3:
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.3)
            return super().calc_loss(info)

    result = train(algorithm_ctor=SlowUpdates, num_checkpoints=1)
    assert result.stop_signal == signal.SIGINT
    assert result.iterations == 3
    assert steps_in(tmp_path / "run") == [3]


def test_sigusr2_saves_and_the_run_goes_on(train, tmp_path):
    hook = At(4, lambda t: os.kill(os.getpid(), signal.SIGUSR2))
    result = train(hooks=[hook], num_checkpoints=1)
    assert result.iterations == 8
    assert steps_in(tmp_path / "run") == [5, 8]


def test_sigusr1_writes_the_stacks_and_the_run_goes_on(train, tmp_path):
    path = tmp_path / "run" / signals.STACKS_FILE

    def ask(training) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 120
        while not path.exists() or "in ask" not in path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    assert train(hooks=[At(4, ask)]).iterations == 8
    text = path.read_text()
    assert f"process {os.getpid()}" in text
    assert "in ask" in text


def test_signal_ends_an_evaluation_that_would_take_for_ever(train, tmp_path):
    class Endless(NoiseEnvironment):
        def step(self, action):
            time_step = super().step(action)
            if self.steps_of_all_instances == 50:
                os.kill(os.getpid(), signal.SIGTERM)
            return time_step._replace(step_type=torch.ones(self.batch_size))

    def create(*, seed, num_parallel_environments=None):
        return NoiseEnvironment(2) if num_parallel_environments is None else Endless(1)

    result = train(create_env=create, num_iterations=1, evaluate=True)
    assert result.stop_signal == signal.SIGTERM
    assert result.evaluation is None
    assert steps_in(tmp_path / "run") == [1]


# Divergence and failures


def test_nan_loss_keeps_the_last_good_checkpoint(train, tmp_path):
    def poison(training) -> None:
        training.algorithm.poison = "loss"

    with pytest.raises(DivergedError, match="policy") as error:
        train(hooks=[At(5, poison)])
    assert steps_in(tmp_path / "run") == [2, 4]
    (note,) = error.value.__notes__
    assert note.startswith("Stopped in iteration 6. Kept: ")
    assert "ckpt-4" in note


def test_non_finite_parameters_are_never_written(train, tmp_path):
    def poison(training) -> None:
        training.algorithm.poison = "parameter"

    with pytest.raises(DivergedError, match=r"_policy\.1\.bias"):
        train(hooks=[At(3, poison)])
    assert steps_in(tmp_path / "run") == [2]


def test_checkpoint_with_non_finite_parameters_is_refused(train, tmp_path):
    result = train()
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints")
    loaded = checkpointer.load()
    loaded.state["algorithm"]["_policy.1.bias"][0] = math.inf
    loaded.state["trainer"]["run"]["iterations"] = 9
    checkpointer.save(9, loaded.state, loaded.texts, loaded.metadata)
    with pytest.raises(CheckpointError, match=r"non-finite parameters.*_policy\.1"):
        train(num_iterations=20)
    assert result.checkpoint.is_dir()


def test_failing_environment_saves_what_was_learned(train, make_trainer, tmp_path):
    def create(**kwargs):
        return make_noise(**kwargs, fail_at=23)  # in the fifth unroll of 5 steps

    with pytest.raises(EnvError, match="fell over") as error:
        train(create_env=create, num_checkpoints=1)
    assert "Stopped in iteration 5" in error.value.__notes__[0]
    assert "ckpt-4" in error.value.__notes__[0]
    assert steps_in(tmp_path / "run") == [4]
    NoiseEnvironment.steps_of_all_instances = 100
    trainer = make_trainer()
    assert trainer.train().iterations == 8
    assert trainer.algorithm.progress.global_counter == 8


class FullDisk:
    """Makes writing fail for the given attempts."""

    def __init__(self, monkeypatch, failing) -> None:
        self.attempts = 0
        original = Checkpointer.save

        def save(checkpointer, *args, **kwargs):
            self.attempts += 1
            if self.attempts in failing:
                raise CheckpointError("could not write: No space left.")
            return original(checkpointer, *args, **kwargs)

        monkeypatch.setattr(Checkpointer, "save", save)


def test_failed_checkpoint_does_not_end_the_run(train, monkeypatch, caplog, tmp_path):
    FullDisk(monkeypatch, {2, 3})
    assert train().iterations == 8
    assert steps_in(tmp_path / "run") == [2, 8]
    assert caplog.text.count("No space left. Trying again") == 2


def test_third_failed_checkpoint_in_a_row_ends_the_run(train, monkeypatch):
    disk = FullDisk(monkeypatch, set(range(2, 100)))
    with pytest.raises(CheckpointError, match="No space left") as error:
        train(num_checkpoints=8)
    assert disk.attempts == 4
    assert "ckpt-1" in error.value.__notes__[0]


def test_last_checkpoint_must_be_written(train, monkeypatch):
    FullDisk(monkeypatch, {1})
    with pytest.raises(CheckpointError, match="No space left"):
        train(num_checkpoints=0)


# Wrong directories and devices


def test_second_run_in_a_directory_is_refused(train):
    def start_another(training) -> None:
        with pytest.raises(ConfigError, match="another run is training in"):
            train()

    train(num_iterations=2, hooks=[At(1, start_another)])


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made anew"])
def test_a_root_dir_that_is_deleted_ends_the_run_and_stays_as_it_is(
    make_trainer, tmp_path, again
):
    root = tmp_path / "run"
    made = [root] if again else []

    def delete(training) -> None:
        shutil.rmtree(root)
        for path in made:
            path.mkdir()

    trainer = make_trainer(hooks=[At(3, delete)])
    with pytest.raises(CheckpointError, match="no longer the directory") as error:
        trainer.train()
    assert "There is no checkpoint" in error.value.__notes__[0]
    assert sorted(tmp_path.rglob("*")) == made


def test_environment_that_changes_the_directory_does_not_move_the_run(
    train, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    class Moves(NoiseEnvironment):
        def step(self, action):
            os.chdir(tmp_path / "elsewhere")
            return super().step(action)

    def create(*, seed):
        return Moves(2, seed)

    assert train(Path("run"), create_env=create).checkpoint.parent.parent == (
        tmp_path / "run"
    )
    assert list((tmp_path / "elsewhere").iterdir()) == []


class OtherAlgorithm(ToyAlgorithm):
    pass


class WiderAlgorithm(ToyAlgorithm):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._policy = nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 2))


WiderAlgorithm.__name__ = "ToyAlgorithm"


class WiderEnvironment(NoiseEnvironment):
    @property
    def observation_spec(self):
        return {"pixels": TensorSpec((7,))}


def test_checkpoint_of_another_algorithm_or_spec_is_refused_and_kept(train, tmp_path):
    train(num_iterations=2)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.*") if p.is_file()}
    with pytest.raises(CheckpointError, match=r"written by ToyAlg.*OtherAlg"):
        train(algorithm_ctor=OtherAlgorithm)
    with pytest.raises(
        CheckpointError, match=r"observation/pixels: expected \(7,\) float32"
    ):
        train(create_env=lambda **kwargs: WiderEnvironment(2))
    with pytest.raises(
        CheckpointError, match=r"_policy\.0\.weight\s+\(5, 2\) float32\s+-"
    ):
        train(algorithm_ctor=WiderAlgorithm)
    lock = tmp_path / "run" / ".lock"
    for path, content in before.items():
        assert path == lock or path.read_bytes() == content


def test_missing_device_is_refused(train):
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(ConfigError, match=r"device 'cuda'.*--device=cpu"):
        train(device="cuda")


# What a run is told


def test_finished_run_is_left_as_it_is(train, tmp_path):
    first = train()
    files = [p for p in (tmp_path / "run").rglob("*") if p.name != ".lock"]
    before = [(p, p.stat().st_mtime_ns) for p in files]
    again = train()
    assert again.was_finished
    assert (again.iterations, again.env_steps) == (8, first.env_steps)
    after = [(p, p.stat().st_mtime_ns) for p in files]
    assert after == before
    assert set((tmp_path / "run").rglob("*")) - {*files} == {tmp_path / "run" / ".lock"}


def test_run_that_died_before_its_first_checkpoint_says_it_begins_anew(train, caplog):
    with pytest.raises(ZeroDivisionError) as error:
        train(hooks=[At(0, fail)])
    assert "There is no checkpoint" in error.value.__notes__[0]
    assert train().iterations == 8
    assert "ended before its first checkpoint" in caplog.text


def test_run_that_died_with_a_best_policy_alone_begins_anew(train, tmp_path, caplog):
    config = {"eval_interval": 1, "num_checkpoints": 1, **EVALUATE}
    first = Marks([0.0, 9.0, 3.0, 2.0])
    with pytest.raises(KeyboardInterrupt):
        train(create_env=first, num_iterations=4, hooks=[Dies(3)], **config)
    assert steps_in(tmp_path / "run") == [1]
    again = Marks([0.0, 1.0, 2.0, 1.0, 1.0])
    result = train(create_env=again, num_iterations=4, **config)
    assert (result.iterations, result.best_score) == (4, 9)
    assert steps_in(tmp_path / "run") == [1, 4]
    assert "ended before its first checkpoint" in caplog.text
    # What had checkpoints is no run without them.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "ckpt-4")
    with pytest.raises(CheckpointError, match="none of these holds what training"):
        train(create_env=again, num_iterations=5, **config)


def test_damaged_checkpoint_is_reported_and_an_earlier_one_used(
    train, caplog, tmp_path
):
    train()
    (tmp_path / "run" / "checkpoints" / "ckpt-8" / "training.pt").unlink()
    with caplog.at_level(logging.INFO):
        assert train().iterations == 8
    assert "ckpt-8" in caplog.text
    assert "Resuming from" in caplog.text
    assert "ckpt-6: iteration 6" in caplog.text


def test_only_damaged_checkpoints_stop_the_run(train, tmp_path):
    train()
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        (path / "manifest.json").write_text("{")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no usable checkpoint"):
            train()


def test_display_is_told_how_far_the_run_is(train):
    class Recorder:
        def __init__(self) -> None:
            self.statuses, self.closed = [], False

        def start(self, status) -> None:
            self.statuses.append(status)

        def begin_measuring(self, status) -> None:
            self.measured_from = status.iterations

        def show_evaluation(self, num_steps, num_episodes, num_wanted) -> None:
            self.num_steps = num_steps

        def is_due(self, fraction) -> bool:
            return fraction in (0.5, 1.0)

        def show(self, status) -> None:
            self.statuses.append(status)

        def close(self) -> None:
            self.closed = True

    display = Recorder()
    result = train(display=display, **EVALUATE)
    assert display.num_steps >= sum(result.evaluation.lengths)
    assert display.measured_from == 1
    fractions = [status.fraction for status in display.statuses]
    assert fractions == [0, 0.5, 1]
    assert math.isnan(display.statuses[0].average_return)
    assert display.statuses[-1].average_return > 0
    assert display.closed


def test_nest_of_specs_is_flat_in_the_fingerprint(make_trainer):
    trainer = make_trainer(num_iterations=1)
    path = trainer.train().checkpoint
    metadata = json.loads((path / "manifest.json").read_text())["metadata"]
    specs = {
        "observation": trainer.algorithm.observation_spec,
        "action": trainer.algorithm.action_spec,
        "reward": trainer.algorithm.reward_spec,
    }
    assert len(metadata["specs"]) == len(nest.flatten(specs))
