"""A conf of an environment, an algorithm and a number of steps trains as published."""

from __future__ import annotations

import functools

import gin
import gymnasium
import pytest
import torch

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.sarsa_algorithm import SarsaAlgorithm
from alf_lite.config import DefaultSettings, TrainerConfig, configurables
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.environments.creation import EnvironmentsOfRun, create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.trainers.trainer import Trainer

CONF = """
create_environment.env_name = "{env}"
TrainerConfig.algorithm_ctor = @{algorithm}
TrainerConfig.num_env_steps = {steps}
"""
MEMORY = functools.partial(QNetwork, encoding_network_ctor=LSTMEncodingNetwork)


def read(env, algorithm, steps, *more):
    config_files.parse_config(
        None, [CONF.format(env=env, algorithm=algorithm, steps=steps), *more]
    )
    return TrainerConfig()


def test_what_a_conf_leaves_out_is_as_the_algorithm_declares():
    config = read("CartPole-v1", "PPOAlgorithm", 100, "TrainerConfig.unroll_length = 7")
    assert config.unroll_length == 7
    assert (config.epochs, config.num_updates_per_train_iter) == (10, None)
    assert (config.mini_batch_size, config.mini_batch_length) == (64, 1)
    config_files.reset()
    assert TrainerConfig(num_iterations=1) == TrainerConfig(
        num_iterations=1, unroll_length=8, num_updates_per_train_iter=1
    )


@pytest.mark.parametrize(
    ("algorithm", "binding", "length"),
    [
        ("DqnAlgorithm", "", 6),
        ("DqnAlgorithm", "DqnAlgorithm.n_step = 3", 4),
        ("MunchausenDqnAlgorithm", "QLearningAlgorithm.n_step = 2", 3),
        ("SarsaAlgorithm", "SarsaAlgorithm.n_step = 3", 5),  # and the action after them
        ("CqlDqnAlgorithm", "", 2),
        ("R2d2Algorithm", "", 125),
        ("R2d2Algorithm", "DqnAlgorithm.n_step = 1", 125),  # its own is 5
        ("R2d2Algorithm", "R2d2Algorithm.n_step = 1", 121),
        ("TaacAlgorithm", "", 4),  # its n_step is None
        ("SacAlgorithm", "SacAlgorithm.n_step = 3", 4),
        ("Agent", "Agent.rl_algorithm_ctor = @R2d2Algorithm", 125),
        ("DqnAlgorithm", "TrainerConfig.mini_batch_length = 7", 7),
    ],
)
def test_windows_are_as_long_as_the_targets_need(algorithm, binding, length):
    config = read("CartPole-v1", algorithm, 9_999, *filter(None, [binding]))
    assert config.mini_batch_length == length


def test_windows_follow_what_is_given_in_python():
    config = TrainerConfig(num_env_steps=9_999)
    env = create_environment("CartPole-v1")
    assert DqnAlgorithm(env=env, config=config, n_step=3).config.mini_batch_length == 4
    env.close()
    ctor = functools.partial(DqnAlgorithm, n_step=2)
    config = TrainerConfig(algorithm_ctor=ctor, num_env_steps=9_999)
    assert config.mini_batch_length == 3


@pytest.mark.parametrize(
    ("algorithm", "length", "num_steps"),
    [
        (DqnAlgorithm, None, 5),
        (DqnAlgorithm, 2, 1),
        (DqnAlgorithm, 4, 3),
        (DqnAlgorithm, 9, 5),
        (functools.partial(DqnAlgorithm, q_network_ctor=MEMORY), 4, 1),
        (SarsaAlgorithm, None, 6),  # and the action after them
        (SarsaAlgorithm, 3, 2),
    ],
)
def test_dqn_looks_as_far_as_its_windows(algorithm, length, num_steps):
    given = {} if length is None else {"mini_batch_length": length}
    config = TrainerConfig(algorithm_ctor=algorithm, num_env_steps=9_999, **given)
    env = create_environment("CartPole-v1")
    assert algorithm(env=env, config=config).num_bootstrap_steps == num_steps
    env.close()


def test_in_python_too_and_behind_scopes_and_partials():
    config_files.parse_config(None, ["create_environment.env_ctor = @a/PPOAlgorithm"])
    scoped = gin.query_parameter("create_environment.env_ctor").scoped_configurable_fn
    for ctor in (PPOAlgorithm, scoped, functools.partial(PPOAlgorithm, gamma=0.9)):
        config = TrainerConfig(algorithm_ctor=ctor, num_iterations=1)
        assert config.unroll_length == 128
    config = TrainerConfig(algorithm_ctor=lambda **_: None, num_iterations=1)
    assert config.unroll_length == 8


def test_none_is_a_value_where_it_is_one():
    config = read(
        "CartPole-v1", "PPOAlgorithm", 100, "TrainerConfig.mini_batch_size = None"
    )
    assert config.mini_batch_size is None
    config_files.reset()
    with pytest.raises(ConfigError, match="unroll_length: got None"):
        read("CartPole-v1", "PPOAlgorithm", 100, "TrainerConfig.unroll_length = None")


def test_every_algorithm_of_the_library_declares_how_it_trains():
    for name, module in config_names.shipped().items():
        if module.startswith("alf_lite.algorithms.") and name.endswith("Algorithm"):
            if module.endswith((".off_policy_algorithm", ".planning_algorithm")):
                continue  # bases, which nobody trains
            target = configurables.target(config_names.complete_name(name))
            settings = target.default_settings
            assert settings != DefaultSettings(), name
            assert settings.lr is not None, name
            # A conf of this algorithm alone is no contradiction.
            TrainerConfig(algorithm_ctor=target, num_iterations=1)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("env", "algorithm", "num_environments", "updates"),
    [
        ("CartPole-v1", "PPOAlgorithm", 8, 40),
        ("CartPole-v1", "ActorCriticAlgorithm", 16, 1),
        ("CartPole-v1", "ImpalaAlgorithm", 32, 1),
        ("CartPole-v1", "DqnAlgorithm", 1, 8),
        ("Pendulum-v1", "SacAlgorithm", 1, 8),
        ("Pendulum-v1", "Td3Algorithm", 1, 8),
        ("Pendulum-v1", "DdpgAlgorithm", 1, 8),
    ],
)
def test_a_conf_of_three_lines_trains(
    tmp_path, env, algorithm, num_environments, updates
):
    is_on_policy = num_environments > 1
    more = [] if is_on_policy else ["TrainerConfig.initial_collect_steps = 292"]
    config = read(env, algorithm, 1 if is_on_policy else 300, *more)
    trainer = Trainer(config, tmp_path / "run")
    trainer.train()
    assert trainer.algorithm.env.batch_size == num_environments
    assert trainer.algorithm.training_run.state_dict()["num_updates"] >= updates
    text = (tmp_path / "run" / "operative.gin").read_text()
    assert f"create_environment.num_parallel_environments = {num_environments}" in text
    assert f"TrainerConfig.unroll_length = {config.unroll_length}" in text
    assert f"Adam.lr = {type(trainer.algorithm).default_settings.lr}" in text
    config_files.reset()
    config_files.parse_config_text(text)
    assert TrainerConfig().unroll_length == config.unroll_length


@pytest.mark.ci
@pytest.mark.parametrize(
    ("conf", "algorithm"),
    [
        ("dqn_cart_pole", "DqnAlgorithm"),
        pytest.param(
            "munchausen_cart_pole", "MunchausenDqnAlgorithm", marks=pytest.mark.slow
        ),
        pytest.param("sarsa_cart_pole", "SarsaAlgorithm", marks=pytest.mark.slow),
    ],
)
def test_three_lines_train_as_the_conf_of_cart_pole_does(tmp_path, conf, algorithm):
    three_lines = [
        'create_environment.env_name = "CartPole-v1"',
        f"TrainerConfig.algorithm_ctor = @{algorithm}",
    ]
    more = ["evaluate = False", "num_env_steps = 1050", "random_seed = 0"]
    trained = []
    as_they_are = ["RewardScaling.scale = 1.0"]  # rewards: the conf's are a tenth
    for name, lines in ((conf, as_they_are), (None, three_lines)):
        settings = [f"TrainerConfig.{setting}" for setting in more]
        config_files.parse_config(name, [*lines, *settings])
        trainer = Trainer(TrainerConfig(), tmp_path / str(name))
        trainer.train()
        assert trainer.algorithm.num_updates >= 256
        trained.append(list(trainer.algorithm.parameters()))
        config_files.reset()
    assert all(map(torch.equal, *trained))


@pytest.mark.ci
def test_what_is_bound_beats_what_is_declared(tmp_path):
    config = read(
        "CartPole-v1",
        "PPOAlgorithm",
        1,
        "create_environment.num_parallel_environments = 2",
        "Adam.lr = 0.5",
    )
    trainer = Trainer(config, tmp_path / "run")
    trainer.train()
    assert trainer.algorithm.env.batch_size == 2
    ((_, optimizer),) = trainer.algorithm.optimizers()
    assert optimizer.learning_rate == 0.5
    text = (tmp_path / "run" / "operative.gin").read_text()
    assert "Adam.lr = 0.5" in text
    assert "Adam.gradient_clipping = 0.5" in text


def test_what_has_no_optimizer_beside_others_gets_the_default_one():
    value = "IqlAlgorithm.value_optimizer = @Adam()"
    config = read(
        "Pendulum-v1", "IqlAlgorithm", 9_999, value, "Adam.betas = (0.8, 0.99)"
    )
    env = create_environment()
    algorithm = config.algorithm_ctor(env=env, config=config)
    (_, of_value), (_, rest) = algorithm.optimizers()
    env.close()
    lr = type(algorithm).default_settings.lr
    assert lr != of_value.learning_rate == 1e-3
    assert rest.learning_rate == lr
    text = config_files.operative_config_text()
    assert "Adam.lr = 0.001" in text
    assert f"default/Adam.lr = {lr}" in text
    config_files.reset()
    config_files.parse_config_text(text)
    env = create_environment()
    algorithm = TrainerConfig().algorithm_ctor(env=env, config=TrainerConfig())
    rates = [optimizer.learning_rate for _, optimizer in algorithm.optimizers()]
    assert rates == [1e-3, lr]
    env.close()


def test_a_part_and_the_rl_algorithm_beside_it_keep_their_rates():
    config = read(
        "CartPole-v1",
        "Agent",
        9_999,
        "Agent.rl_algorithm_ctor = @PPOAlgorithm",
        'Agent.intrinsic_rewards = {"rnd": @RndReward}',
        "RndReward.optimizer = @Adam()",
    )
    env = create_environment()
    algorithm = config.algorithm_ctor(env=env, config=config)
    algorithm.optimizers()
    env.close()
    text = config_files.operative_config_text()
    assert "\nAdam.lr = 0.001" in text
    assert f"default/Adam.lr = {PPOAlgorithm.default_settings.lr}" in text


def test_a_default_optimizer_is_not_made_where_nothing_is_left():
    parts = ("actor", "critic", "alpha")
    own = [f"SacAlgorithm.{part}_optimizer = @Adam()" for part in parts]
    config = read("Pendulum-v1", "SacAlgorithm", 9_999, *own)
    env = create_environment()
    algorithm = config.algorithm_ctor(env=env, config=config)
    assert len(algorithm.optimizers()) == 3
    env.close()


def batch_of_three():
    return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")


def test_the_size_of_a_batch_of_the_user_rules():
    env = create_environment(env_ctor=batch_of_three, of_run=EnvironmentsOfRun(8))
    assert env.batch_size == 3
    with pytest.raises(ConfigError, match="returned 3 environments"):
        create_environment(env_ctor=batch_of_three, num_parallel_environments=8)


def test_an_algorithm_of_ones_own_declares_nothing_or_what_it_likes():
    class Quick(SacAlgorithm):
        default_settings = SacAlgorithm.default_settings._replace(unroll_length=3)

    config = TrainerConfig(algorithm_ctor=Quick, num_iterations=1)
    assert (config.unroll_length, config.mini_batch_size) == (3, 256)


@pytest.mark.ci
def test_more_environments_make_as_many_updates_per_step(tmp_path):
    updates = []
    for num_environments in (1, 4):
        config = read(
            "Pendulum-v1",
            "SacAlgorithm",
            280,
            "TrainerConfig.initial_collect_steps = 260",
            f"create_environment.num_parallel_environments = {num_environments}",
        )
        trainer = Trainer(config, tmp_path / str(num_environments))
        trainer.train()
        updates.append(trainer.algorithm.num_updates)
        config_files.reset()
    assert updates[0] == pytest.approx(updates[1], abs=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "algorithm", "steps", "score"),
    [
        ("CartPole-v1", "PPOAlgorithm", 100_000, 475),
        ("CartPole-v1", "ActorCriticAlgorithm", 200_000, 475),
        ("CartPole-v1", "DqnAlgorithm", 50_000, 475),
        ("Pendulum-v1", "SacAlgorithm", 10_000, -200),
        ("Pendulum-v1", "Td3Algorithm", 20_000, -200),
        ("Pendulum-v1", "DdpgAlgorithm", 10_000, -200),
    ],
)
def test_the_declared_settings_solve_the_task(tmp_path, env, algorithm, steps, score):
    config = read(
        env,
        algorithm,
        steps,
        "TrainerConfig.evaluate = True",
        "TrainerConfig.num_eval_episodes = 100",
        "TrainerConfig.num_eval_environments = 10",
        "TrainerConfig.random_seed = 100",
    )
    result = Trainer(config, tmp_path / "run").train()
    assert result.evaluation.mean >= score
