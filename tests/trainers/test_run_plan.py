"""Settings that cannot be fast, or have no effect, get one line of advice."""

from __future__ import annotations

import functools
import logging
import re

import pytest
import torch

import alf_lite
from alf_lite.data_transformers import (
    ObservationNormalizer,
    RewardNormalizer,
    RewardScaling,
)
from alf_lite.fast import policy_losses
from alf_lite.optimizers.optimizers import Adam
from alf_lite.trainers.run_plan import idle_parts, idle_settings, slow_settings


@pytest.fixture(autouse=True)
def threads():
    """An algorithm sets those of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def build(num_environments: int = 8, mode: str = "sync", **settings):
    env = alf_lite.create_environment(
        "CartPole-v1", num_environments, vectorization_mode=mode
    )
    settings = {"unroll_length": 4, "epochs": 1, "mini_batch_size": 4} | settings
    config = alf_lite.TrainerConfig(num_iterations=1, random_seed=0, **settings)
    return alf_lite.PPOAlgorithm(env=env, config=config), config


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, None),
        ({"num_threads": 8}, "num_threads is 8, but the networks are small"),
        ({"num_threads": 8, "mini_batch_size": 4096, "mini_batch_length": 1}, None),
        ({"num_environments": 1}, r"one environment.*num_parallel_environments = 8"),
        ({"num_environments": 1, "mode": "async"}, "'async' with one environment"),
        ({"compile": True}, "this run has only 10 iterations: leave it out"),
    ],
)
def test_a_setting_that_cannot_be_fast_gets_one_line(settings, advice):
    algorithm, config = build(**settings)
    with algorithm.env:
        lines = list(slow_settings(config, 10, algorithm))
    assert len(lines) == (advice is not None), lines
    for line in lines:
        assert re.search(advice, line)


def test_compiling_what_numpy_computes_gets_one_line():
    algorithm, config = build(compile=True)
    with algorithm.env:
        (line,) = slow_settings(config, 1_000, algorithm)
        # Replaced methods are computed by torch, which compiling helps.
        algorithm.calc_loss = algorithm.calc_loss
        assert not list(slow_settings(config, 1_000, algorithm))
    assert re.search(r"computed in numpy.*Set compile = False", line)


def test_compiling_images_and_memory_gets_no_line(monkeypatch):
    algorithm, config = build(compile=True)
    with algorithm.env:
        chain = policy_losses.chain_of(algorithm._value_network)
        monkeypatch.setattr(chain, "_layers", [])  # as of layers that it does not know
        assert not list(slow_settings(config, 1_000, algorithm))
        monkeypatch.undo()
        kind = type(algorithm)
        monkeypatch.setattr(kind, "is_temporally_independent", False)
        assert not list(slow_settings(config, 1_000, algorithm))


def test_what_is_set_of_own_steps_of_which_there_are_none_gets_one_line():
    def lines(num_iterations: int, **settings):
        config = alf_lite.TrainerConfig(
            algorithm_ctor=alf_lite.SacAlgorithm,
            num_iterations=num_iterations,
            offline_buffer_dir="steps.npz",
            rl_train_after_update_steps=5,
            **settings,
        )
        return list(idle_settings(config))

    settings = {"replay_buffer_length": 700, "initial_collect_steps": 200}
    (line,) = lines(5, **settings)
    assert line.endswith("set of initial_collect_steps, replay_buffer_length.")
    assert not lines(6, **settings)
    assert not lines(5)
    assert not lines(0, num_env_steps=1_000, **settings)


def test_random_actions_for_no_steps_get_one_line():
    def lines(**settings):
        settings |= {"algorithm_ctor": alf_lite.DqnAlgorithm, "num_iterations": 9}
        return list(idle_settings(alf_lite.TrainerConfig(**settings)))

    random = {"initial_random_policy": True}
    (line,) = lines(**random, initial_collect_steps=0)
    assert "initial_random_policy has no effect: it acts for initial_col" in line
    assert not lines(**random, initial_collect_steps=10)
    assert not lines(initial_collect_steps=0)


def test_glances_that_only_a_gpu_takes_get_one_line():
    def lines(**settings):
        settings |= {"algorithm_ctor": alf_lite.DqnAlgorithm, "num_iterations": 9}
        return list(idle_settings(alf_lite.TrainerConfig(**settings)))

    (line,) = lines(check_finite_interval=7)
    assert "check_finite_interval has no effect: on a CPU" in line
    assert not lines(check_finite_interval=7, device="cuda")
    assert not lines(check_finite_interval=100)


def test_an_optimizer_without_parameters_gets_one_line():
    def lines(*parts: str) -> list[str]:
        env = alf_lite.create_environment("Pendulum-v1", 1)
        config = alf_lite.TrainerConfig(num_iterations=1, random_seed=0)
        own = {f"{part}_optimizer": Adam(lr=0.1) for part in parts}
        algorithm = alf_lite.SacAlgorithm(
            env=env, config=config, optimizer=Adam(lr=0.2), **own
        )
        with env:
            return list(idle_parts(algorithm))

    (line,) = lines("actor", "critic", "alpha")
    assert line.startswith("SacAlgorithm: Adam of 'root' trains nothing")
    assert not lines("actor", "critic")


def test_what_changes_rewards_that_nobody_looks_at_gets_one_line():
    def lines(algorithm_class, *ctors):
        env = alf_lite.create_environment("CartPole-v1", 1)
        config = alf_lite.TrainerConfig(
            num_iterations=1, random_seed=0, data_transformer_ctor=ctors
        )
        algorithm = algorithm_class(env=env, config=config)
        with env:
            return list(idle_parts(algorithm))

    scaling = functools.partial(RewardScaling, scale=0.1)
    (line,) = lines(alf_lite.BcAlgorithm, ObservationNormalizer, scaling)
    assert line.startswith("BcAlgorithm: RewardScaling has no effect: the algorithm")
    (line,) = lines(alf_lite.BcAlgorithm, RewardNormalizer)
    assert line.startswith("BcAlgorithm: RewardNormalizer has no effect")
    assert not lines(alf_lite.BcAlgorithm, ObservationNormalizer)
    assert not lines(alf_lite.DqnAlgorithm, scaling)


def test_the_trainer_says_it_once(caplog):
    algorithm, _ = build(num_environments=1)
    with caplog.at_level(logging.WARNING, logger="alf_lite"):
        alf_lite.Trainer(algorithm).train()
    (record,) = caplog.records
    assert "A step of 8 takes hardly longer" in record.getMessage()
