"""A run on several ranks is one run: counters, statistics, checkpoints, its end."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.normalizing_transformers import (
    ObservationNormalizer,
    RewardNormalizer,
)
from alf_lite.datasets.formats import open_source
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments.creation import EnvironmentsOfRun, create_environment
from alf_lite.errors import ConfigError, DataError
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tools.checkpoint_report import examine
from alf_lite.trainers.hooks import Hook, ReplaySaver, Training
from alf_lite.trainers.shipped_hooks import Curriculum, EarlyStop
from alf_lite.trainers.trainer import Trainer
from alf_lite.utils.ranks import RankLostError, ranks
from tests.rank_processes import on_ranks
from tests.reliability.trainer_process import Launcher
from tests.trainers.run_comparison import differences

pytestmark = pytest.mark.ci

NUM_ENVIRONMENTS = 4


def ppo(**kwargs: Any) -> PPOAlgorithm:
    return PPOAlgorithm(
        actor_network_ctor=functools.partial(
            ActorDistributionNetwork, fc_layer_params=(8,)
        ),
        value_network_ctor=functools.partial(ValueNetwork, fc_layer_params=(8,)),
        optimizer=Adam(lr=1e-3, gradient_clipping=0.5),
        **kwargs,
    )


def dqn(**kwargs: Any) -> DqnAlgorithm:
    return DqnAlgorithm(
        q_network_ctor=functools.partial(QNetwork, fc_layer_params=(8,)),
        optimizer=Adam(lr=1e-3),
        **kwargs,
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "algorithm_ctor": ppo,
        "data_transformer_ctor": [ObservationNormalizer, RewardNormalizer],
        "unroll_length": 8,
        "epochs": 2,
        "mini_batch_size": 8,
        "mini_batch_length": 1,
    },
    "dqn": {
        "algorithm_ctor": dqn,
        "unroll_length": 4,
        "initial_collect_steps": 30,
        "num_updates_per_train_iter": 2,
        "mini_batch_size": 8,
        "mini_batch_length": 2,
        "replay_buffer_length": 50,
        "priority_replay": True,
    },
}


CREATE_ENV = functools.partial(
    create_environment, "CartPole-v1", num_parallel_environments=NUM_ENVIRONMENTS
)


class Watches(Hook):
    """Notes what the normalizer of the observations sees."""

    on_all_ranks = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        self.first: TimeStep | None = None

    def before_train(self, training) -> None:
        algorithm = training.algorithm
        self.first = algorithm.env.current_time_step
        observe = algorithm.data_transformer.observe

        def watch(steps: TimeStep) -> None:
            self.seen.append(steps.observation.double().flatten(0, 1).clone())
            observe(steps)

        algorithm.data_transformer.observe = watch


class Kills(Hook):
    """Sends a signal to one rank."""

    on_all_ranks = True

    def __init__(self, rank: int, number: int) -> None:
        super().__init__()
        self._rank, self._number = rank, number

    def after_iter(self, training) -> None:
        if training.run.iterations == 2 and ranks.index == self._rank:
            os.kill(os.getpid(), self._number)


class Meanwhile(Hook):
    """Does something on the second rank while it waits for what all agree on."""

    on_all_ranks = True

    def __init__(self, does: Callable[[Training], object]) -> None:
        super().__init__(priority=99)
        self._does = does

    def after_iter(self, training) -> None:
        if training.run.iterations != 2 or ranks.index != 1:
            return

        def total(*numbers: float) -> list[float]:
            del ranks.total
            found = ranks.total(*numbers)
            self._does(training)
            return found

        ranks.total = total


MEANWHILE: dict[str, Callable[[Training], object]] = {
    "signal": lambda training: os.kill(os.getpid(), signal.SIGTERM),
    "stop": lambda training: training.request_stop("of another thread"),
    "save by signal": lambda training: os.kill(os.getpid(), signal.SIGUSR2),
    "save": lambda training: training.request_checkpoint(),
}


def run(
    kind: str, root: Path, num_iterations: int, *hooks: Hook, **changes: Any
) -> dict[str, Any]:
    """What there is at the end of a run, or of its continuation."""
    settings = {
        "num_iterations": num_iterations,
        "random_seed": 1,
        "num_checkpoints": num_iterations,
        **SETTINGS[kind],
    }
    config = TrainerConfig(**{**settings, **changes})
    trainer = Trainer(
        config, root, hooks=hooks, create_env=CREATE_ENV, on_signal="return"
    )
    result = trainer.train()
    algorithm = trainer.algorithm
    training = algorithm.training_run.state_dict()
    training["unroll"] = {}
    return {
        "iterations": result.iterations,
        "env_steps": result.env_steps,
        "num_updates": result.num_updates,
        "checkpoint": str(result.checkpoint),
        "signal": result.stop_signal,
        "return": result.average_return,
        "stored": getattr(algorithm.replay_buffer, "total_size", 0),
        "state": plain(algorithm.state_dict()),
        "training": plain(training),
        "random": plain(torch.get_rng_state()),
    }


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy().copy()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def is_equal(a: Any, b: Any) -> list[str]:
    def tensors(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.copy())
        if isinstance(value, dict):
            return {k: tensors(v) for k, v in value.items()}
        if isinstance(value, list):
            return [tensors(v) for v in value]
        return value

    return differences(tensors(a), tensors(b), "")


def runs_of_a_rank(root: Path) -> dict[str, Any]:
    watch = Watches()
    found: dict[str, Any] = {"ppo": run("ppo", root / "ppo", 4, watch)}
    assert watch.first is not None
    found["seen"] = [seen.numpy() for seen in watch.seen]
    found["first"] = watch.first.observation.numpy()
    run("ppo", root / "again", 2)
    found["ppo resumed"] = run("ppo", root / "again", 4)
    found["dqn"] = run("dqn", root / "dqn", 6)
    run("dqn", root / "dqn again", 4)
    found["dqn resumed"] = run("dqn", root / "dqn again", 6)
    before = run("dqn", root / "damaged", 4)
    if ranks.index == 1:
        parts = root / "damaged/ranks/1/checkpoints"
        os.truncate(parts / "ckpt-4/replay_buffer.safetensors", 100)
    found["dqn damaged"] = run("dqn", root / "damaged", 6)
    found["dqn before"] = run("dqn", root / "lost", 4, ReplaySaver())
    found["stored"] = found["dqn before"]["stored"]
    assert before["env_steps"] == found["dqn before"]["env_steps"]
    assert ranks.all(True)  # the other one has written its part, too
    if ranks.index == 1:
        shutil.copytree(root / "lost", root / "copy")
        shutil.rmtree(root / "lost/ranks")
    found["dqn lost"] = run("dqn", root / "lost", 5)
    found["terminated"] = run("ppo", root / "killed", 9, Kills(1, signal.SIGTERM))
    for what, does in MEANWHILE.items():
        hook = Meanwhile(does)
        found[what] = run("ppo", root / what, 5, hook, num_checkpoints=1)
    found["levels"] = levels_of_runs(root / "curriculum")
    return found


def levels_of_runs(root: Path) -> list[int]:
    """Of a curriculum that goes by evaluations, after each part of a run."""
    levels: list[int] = []
    for num_iterations in (3, 4):
        hook = Curriculum(
            [{"env.gravity": 9.0}, {"env.gravity": 9.5}, {"env.gravity": 10.0}],
            [1.0, 1000.0],
            score="eval/AverageReturn",
            min_episodes=1,
        )
        evaluates = {"evaluate": True, "eval_interval": 3, "num_eval_episodes": 1}
        run("ppo", root, num_iterations, hook, EarlyStop(threshold=1e9), **evaluates)
        levels.append(hook.level)
        assert ranks.all(True)
        if ranks.index == 1 and num_iterations == 3:
            shutil.rmtree(root / "ranks")
    return levels


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(_launcher: Launcher, root: Path) -> list[dict[str, Any]]:
    return on_ranks(_launcher, runs_of_a_rank, 2, root)


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_counters_and_metrics_are_those_of_the_whole_run(found, kind):
    first, second = found[0][kind], found[1][kind]
    counted = [r[kind]["training"]["metrics"]["num_env_steps"] for r in found]
    assert first["env_steps"] == second["env_steps"] == sum(counted)
    assert min(counted) > 0
    assert first["num_updates"] == second["num_updates"] > 0
    assert first["return"] == pytest.approx(second["return"])
    assert is_equal(first["state"], second["state"]) == []
    optimizers = [of["training"]["optimizers"] for of in (first, second)]
    assert is_equal(*optimizers) == []


def test_ranks_have_environments_and_random_numbers_of_their_own(found):
    first, second = found
    assert first["first"].shape == second["first"].shape == (2, 4)
    assert not np.allclose(first["first"], second["first"])
    assert not np.array_equal(first["ppo"]["random"], second["ppo"]["random"])


def test_normalizers_have_the_statistics_of_all_ranks(found):
    seen = np.concatenate([part for of_rank in found for part in of_rank["seen"]])
    for of_rank in found:
        state = of_rank["ppo"]["state"]
        prefix = next(k for k in state if k.endswith("0.normalizer.mean"))[:-4]
        assert state[f"{prefix}count"] == len(seen)
        np.testing.assert_allclose(state[f"{prefix}mean"], seen.mean(0), rtol=1e-9)
        np.testing.assert_allclose(state[f"{prefix}variance"], seen.var(0), rtol=1e-9)


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_resumed_run_is_that_which_was_not_interrupted(found, kind):
    for of_rank in found:
        straight, resumed = of_rank[kind], of_rank[f"{kind} resumed"]
        for run_ in (straight, resumed):
            run_.pop("checkpoint", None)
            run_["training"].pop("path", None)
        assert is_equal(straight, resumed) == []


def test_without_a_part_of_a_rank_all_go_on_from_the_checkpoint_before(found, root):
    for of_rank in found:
        straight, resumed = of_rank["dqn"], of_rank["dqn damaged"]
        for run_ in (straight, resumed):
            run_.pop("checkpoint", None)
            run_["training"].pop("path", None)
        assert is_equal(straight, resumed) == []
    there = {path.name for path in (root / "damaged/checkpoints").iterdir()}
    assert "ckpt-4.corrupt" in there


def test_without_any_part_of_a_rank_counters_go_on(found):
    first, second = (of_rank["dqn lost"] for of_rank in found)
    before = found[0]["dqn before"]["env_steps"]
    counted = [r["training"]["metrics"]["num_env_steps"] for r in (first, second)]
    assert first["env_steps"] == second["env_steps"] == sum(counted)
    assert 0 < first["env_steps"] - before <= 4 * NUM_ENVIRONMENTS
    assert 0 < counted[1] <= 4 * NUM_ENVIRONMENTS // 2


def test_recorded_steps_are_those_of_all_ranks(found, root, caplog):
    stored = sum(of_rank["stored"] for of_rank in found)
    for place in ("copy", "copy/checkpoints", "copy/checkpoints/ckpt-4", "copy/replay"):
        source = open_source(root / place)
        assert sum(source.lengths) == stored
        assert len(source.lengths) == NUM_ENVIRONMENTS
        assert sum(len(s.fields["reward"]) for s in source.sequences()) == stored
        assert [s.env_id for s in source.sequences()] == [*range(NUM_ENVIRONMENTS)]
    env = CREATE_ENV()
    assert load_replay_buffer(root / "copy", env).total_size == stored
    assert caplog.text.count("left out") == 0
    with pytest.raises(DataError, match="memory_map"):
        load_replay_buffer(root / "copy", env, memory_map=True)
    env.close()
    path = root / "copy/checkpoints/ckpt-4"
    assert examine(path).num_stored_steps == stored
    part = root / "copy/ranks/1/checkpoints/ckpt-4"
    os.truncate(part / "replay_buffer.safetensors", 100)
    assert "the part of another rank: " in examine(path).problem
    with pytest.raises(DataError, match="truncated"):
        open_source(path)
    shutil.rmtree(part)
    assert "ranks/1" in examine(path).problem
    assert sum(open_source(path).lengths) == found[0]["stored"]
    assert "left out" in caplog.text


def test_all_stop_and_save_once_if_one_is_told_to(found, root):
    for of_rank in found:
        assert of_rank["terminated"]["signal"] == signal.SIGTERM
        assert of_rank["terminated"]["iterations"] == 2
        assert of_rank["terminated"]["checkpoint"].endswith("killed/checkpoints/ckpt-2")
    checkpoints = Checkpointer(root / "killed/checkpoints", read_only=True)
    assert checkpoints.load().state["trainer"]["ranks"]["size"] == 2


def test_what_comes_while_a_rank_waits_is_agreed_on_the_next_time(found, root):
    for of_rank in found:
        for what, num_iterations in zip(MEANWHILE, (3, 3, 5, 5), strict=True):
            assert of_rank[what]["iterations"] == num_iterations, what
        assert of_rank["signal"]["signal"] == signal.SIGTERM
        assert of_rank["stop"]["signal"] is None
    for what in ("save by signal", "save"):
        for place in (root / what, root / what / "ranks/1"):
            saved = {path.name for path in (place / "checkpoints").iterdir()}
            assert {"ckpt-3", "ckpt-5"} <= saved, (what, saved)


def test_all_ranks_reach_a_level_by_evaluations_of_the_first_one(found):
    for of_rank in found:  # also when there is no part of the second one any more
        assert of_rank["levels"] == [1, 1]


def test_another_number_of_ranks_goes_on_with_what_all_have(found, root, caplog):
    before = found[0]["dqn"]
    after = run("dqn", root / "dqn", 8)
    assert "written by 2 ranks and the run goes on with 1" in caplog.text
    assert "stored steps are lost" in caplog.text
    assert after["iterations"] == 8
    added = after["training"]["metrics"]["num_env_steps"] - before["env_steps"]
    assert 0 < added <= 2 * 4 * NUM_ENVIRONMENTS
    assert after["num_updates"] >= before["num_updates"]


@pytest.mark.slow
def test_one_rank_becomes_two(launcher, tmp_path):
    before = run("ppo", tmp_path, 2)
    first, second = on_ranks(launcher, functools.partial(run, "ppo"), 2, tmp_path, 4)
    assert first["iterations"] == second["iterations"] == 4
    assert first["env_steps"] == second["env_steps"] > before["env_steps"]
    assert is_equal(first["state"], second["state"]) == []


class Breaks(Hook):
    on_all_ranks = True

    def before_iter(self, training) -> None:
        if ranks.index == 1 and training.run.iterations == 1:
            raise ZeroDivisionError


def broken_run(root: Path) -> tuple[str, list[str]]:
    try:
        run("ppo", root, 4, Breaks())
    except ZeroDivisionError:
        os._exit(0)  # as a rank that ends, without a word
    except RankLostError as error:
        return str(error), error.__notes__
    return "not reached", []


def bad_input(root: Path) -> list[str]:
    said = []
    for change in (
        {"mini_batch_size": 7},
        {"random_seed": 1 + ranks.index},
    ):
        settings = {"num_iterations": 1, "random_seed": 1, **SETTINGS["ppo"], **change}
        with pytest.raises(ConfigError) as error:
            Trainer(TrainerConfig(**settings), root, create_env=CREATE_ENV).train()
        said.append(str(error.value))
    with pytest.raises(ConfigError) as error:
        create_environment("CartPole-v1", 5, of_run=EnvironmentsOfRun(num_ranks=2))
    said.append(str(error.value))
    return said


def bad_input_and_a_lost_rank(root: Path) -> tuple[list[str], str, list[str]]:
    return bad_input(root / "bad"), *broken_run(root / "broken")


@pytest.fixture(scope="module")
def said(_launcher: Launcher, root: Path) -> tuple[list[str], str, list[str]]:
    [of_first] = on_ranks(_launcher, bad_input_and_a_lost_rank, 2, root, answering=1)
    return of_first


def test_what_cannot_be_divided_or_differs_is_refused(said):
    size, config, environments = said[0]
    assert "TrainerConfig.mini_batch_size is 7" in size
    assert "cannot be divided by its 2 ranks. Take 8" in size
    assert "ranks 1 of 2 were given another configuration" in config
    assert "num_parallel_environments is 5" in environments


def test_a_lost_rank_ends_the_others(said, root):
    _, error, notes = said
    assert "another rank has ended" in error
    assert "Kept: " in notes[0]
    assert str(root / "broken/checkpoints/ckpt-1") in notes[0]
