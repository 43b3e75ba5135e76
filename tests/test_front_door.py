"""Building, training and using an algorithm in Python."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
import pydoc
import re
import subprocess
import sys
import threading

import gymnasium
import numpy as np
import pytest
import torch

import alf_lite
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.bin import collect, play
from alf_lite.bin import train as train_program
from alf_lite.config import files as config_files
from alf_lite.data_transformers import ObservationNormalizer, RewardNormalizer
from alf_lite.environments.environment import Environment
from alf_lite.errors import CheckpointError, ConfigError, EnvError
from alf_lite.networks import (
    ActorDistributionNetwork,
    LSTMEncodingNetwork,
    ValueNetwork,
)
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.trainers.hooks import Hook, ReplaySaver
from alf_lite.trainers.shipped_hooks import EarlyStop
from alf_lite.utils import random_state
from alf_lite.utils.schedulers import LinearScheduler, Schedule
from tests.source_code import ROOT

SMALL = {
    "unroll_length": 8,
    "epochs": 2,
    "mini_batch_size": 4,
    "num_iterations": 4,
    "random_seed": 7,
}
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _generators_stay():
    with random_state.preserved():
        yield


def cart_pole(**kwargs) -> Environment:
    return alf_lite.create_environment("CartPole-v1", 2, **kwargs)


def make(env=None, *, lr=None, checkpoint=None, **settings):
    config = alf_lite.TrainerConfig(
        data_transformer_ctor=RewardNormalizer, **{**SMALL, **settings}
    )
    schedule = LinearScheduler([(0.0, 1e-2), (1.0, 0.0)])
    return alf_lite.PPOAlgorithm(
        env=env or cart_pole(),
        config=config,
        optimizer=Adam(lr=lr or schedule),
        checkpoint=checkpoint,
    )


def weights(algorithm) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in algorithm.state_dict().items()}


def assert_same(a, b) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def own_loop(algorithm, num=4) -> list[float]:
    """Trains, and returns the learning rates after each iteration."""
    rates = []
    for _ in range(num):
        algorithm.train_iter()
        rates.append(algorithm.optimizers()[0][1].learning_rate)
    return rates


def test_without_a_directory_only_hooks_write(tmp_path):
    found = []

    class Look(Hook):
        def after_train(self, training):
            training.request_checkpoint()
            found.append([path.name for path in training.root_dir.iterdir()])

    alf_lite.Trainer(make(), hooks=[Look()]).train()
    assert found == [[".lock"]]
    config = alf_lite.TrainerConfig(num_iterations=1)
    algorithm = alf_lite.DqnAlgorithm(env=cart_pole(), config=config)
    with pytest.raises(ConfigError, match=r"ReplaySaver.* Give Trainer a root_dir"):
        alf_lite.Trainer(algorithm, hooks=[ReplaySaver()]).train()


@pytest.mark.ci
def test_a_loop_of_ones_own_gives_the_numbers_of_the_trainer(tmp_path):
    mine = make()
    assert own_loop(mine) == pytest.approx([0.0075, 0.005, 0.0025, 0.0])
    assert (mine.progress.iterations, mine.progress.percent) == (4, 1.0)
    kept = make()
    alf_lite.Trainer(kept, tmp_path / "run").train()
    unkept = make()
    result = alf_lite.Trainer(unkept).train()
    assert result.checkpoint is None
    assert not result.root_dir.exists()
    with pytest.raises(ConfigError, match="this run kept nothing"):
        alf_lite.load_policy(result)
    from_config = alf_lite.Trainer(
        alf_lite.TrainerConfig(
            algorithm_ctor=functools.partial(
                alf_lite.PPOAlgorithm,
                optimizer=Adam(lr=LinearScheduler([(0.0, 1e-2), (1.0, 0.0)])),
            ),
            data_transformer_ctor=RewardNormalizer,
            **SMALL,
        ),
        tmp_path / "config",
        create_env=lambda num_parallel_environments=2, **kwargs: cart_pole(**kwargs),
    )
    from_config.train()
    for other in (kept, unkept, from_config.algorithm):
        assert_same(weights(mine), weights(other))


def test_two_algorithms_of_a_process_do_not_disturb_each_other():
    first, second = make(), make(num_iterations=8)
    own_loop(first, 2)
    assert own_loop(second, 2) == pytest.approx([0.00875, 0.0075])
    assert first.optimizers()[0][1].learning_rate == pytest.approx(0.005)
    assert (first.progress.iterations, second.progress.iterations) == (2, 2)


@pytest.mark.ci
def test_a_run_built_in_python_is_resumed_played_and_collected_from(tmp_path, capsys):
    root_dir = tmp_path / "run"
    alf_lite.Trainer(make(), root_dir).train()
    whole = make(num_iterations=6)
    alf_lite.Trainer(whole, root_dir).train()  # resumed
    again = alf_lite.Trainer(make(num_iterations=6), root_dir).train()
    assert again.was_finished
    assert play.main([f"--root_dir={root_dir}", "--num_episodes=1"]) == 0
    config_files.reset()
    output = f"--output={tmp_path / 'x.replay'}"
    assert collect.main([f"--root_dir={root_dir}", "--num_episodes=1", output]) == 0
    config_files.reset()
    more = "--gin_param=TrainerConfig.num_iterations = 8"
    assert train_program.main([f"--root_dir={root_dir}", more]) == 0
    config_files.reset()
    assert "Trained 8 iterations" in capsys.readouterr().out
    text = (root_dir / "user.gin").read_text()
    assert "create_environment.env_name = 'CartPole-v1'" in text
    assert "optimizer_lr/LinearScheduler.schedule = " in text


def test_what_no_conf_can_say_is_told_when_the_trainer_is_built(tmp_path, caplog):
    env = alf_lite.create_environment(env_ctor=lambda: gymnasium.make("CartPole-v1"))
    alf_lite.Trainer(make(env), tmp_path / "run").train()
    assert "can be resumed and played only from Python" in caplog.text
    assert "create_env" in caplog.text
    assert play.main([f"--root_dir={tmp_path / 'run'}"]) == 2
    config_files.reset()
    observation = np.zeros(4)
    assert alf_lite.load_policy(tmp_path / "run").predict(observation) in (0, 1)


@pytest.mark.parametrize(
    ("hooks", "settings", "message"),
    [
        ((Hook(),), {}, "what hooks are. Give them as TrainerConfig.hook_ctors"),
        (
            (),
            {"hook_ctors": [lambda: Hook()]},
            "what TrainerConfig.hook_ctors is. Use classes",
        ),
    ],
)
def test_a_run_whose_hooks_no_conf_can_say_is_played(
    hooks, settings, message, tmp_path, caplog, capsys
):
    alf_lite.Trainer(make(**settings), tmp_path / "run", hooks=hooks).train()
    assert "This run can be resumed only from Python" in caplog.text
    assert message in caplog.text
    assert play.main([f"--root_dir={tmp_path / 'run'}", "--num_episodes=1"]) == 0
    assert "Episode 1" in capsys.readouterr().out
    config_files.reset()
    assert train_program.main([f"--root_dir={tmp_path / 'run'}"]) == 2
    assert "what " + message.split()[1] in capsys.readouterr().err
    config_files.reset()


@pytest.mark.ci
def test_one_checkpoint_of_a_run_is_loaded_by_its_path(tmp_path, monkeypatch):
    result = alf_lite.Trainer(make(num_checkpoints=4), tmp_path / "run").train()
    monkeypatch.chdir(tmp_path)
    first, observations = "run/checkpoints/ckpt-2", np.eye(4)
    earlier = alf_lite.load_policy("run", 2).distribution(observations).logits
    assert earlier.tolist() == (
        alf_lite.load_policy(first).distribution(observations).logits.tolist()
    )
    last = alf_lite.load_policy("run").distribution(observations).logits
    assert not torch.equal(earlier, last)
    for run, checkpoint in (
        (result.checkpoint, "latest"),
        (result.checkpoint, 4),
        ("run", result.checkpoint),
        (result, "run/checkpoints/ckpt-4/"),
    ):
        policy = alf_lite.load_policy(run, checkpoint)
        assert torch.equal(policy.distribution(observations).logits, last)
    means = [
        alf_lite.evaluate(one, "CartPole-v1", 2).mean
        for one in (first, alf_lite.load_policy("run", 2))
    ]
    assert means[0] == means[1]
    with pytest.raises(ConfigError, match=r"ckpt-2 is one checkpoint, but .*=4 asks"):
        alf_lite.load_policy(first, result.checkpoint)
    with pytest.raises(ConfigError, match="one checkpoint, but checkpoint='best' asks"):
        alf_lite.load_policy(first, "best")
    for other in (tmp_path / "run", tmp_path / "other/checkpoints/ckpt-2"):
        with pytest.raises(ConfigError, match="is not the path of a checkpoint of"):
            alf_lite.load_policy("run", other)


def test_what_was_learned_goes_on_elsewhere(tmp_path):
    """As the messages and docs say: in other environments, or from another run."""
    algorithm = make()
    alf_lite.Trainer(algorithm, tmp_path / "run").train()
    env = alf_lite.create_environment("CartPole-v1", 3, max_episode_steps=50)
    new = make(env)
    new.load_state_dict(algorithm.state_dict())
    assert_same(weights(new), weights(algorithm))
    assert alf_lite.Trainer(new).train().env_steps > 0
    again = alf_lite.Trainer(algorithm, tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"a larger limit, and Trainer\(new, '.*'\).*resumes"
    ):
        again.train()
    other = make(checkpoint=f"@{tmp_path / 'run'}")
    other.setup_training()
    assert_same(weights(other), weights(algorithm))


@pytest.mark.parametrize("how", ["thread", "event loop"])
def test_it_trains_where_notebooks_do(how):
    algorithm = make()
    results = []

    def run():
        results.append(alf_lite.Trainer(algorithm).train())

    async def cell():
        run()

    if how == "thread":
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        asyncio.run(cell())
    assert results[0].iterations == 4


# The policy


class Memory(gymnasium.Env):
    """Actions in [2, 6], integers from 3 on."""

    observation_space = gymnasium.spaces.Dict(
        {
            "position": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "mode": gymnasium.spaces.Discrete(4, start=3),
        }
    )
    action_space = gymnasium.spaces.Box(2.0, 6.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return {"position": self.np_random.normal(size=3), "mode": np.int64(3)}


@pytest.fixture(scope="module")
def policy_run(tmp_path_factory):
    root_dir = tmp_path_factory.mktemp("policy") / "run"
    env = alf_lite.create_environment(
        env_ctor=Memory, num_parallel_environments=2, max_episode_steps=5
    )
    config = alf_lite.TrainerConfig(
        num_iterations=1, unroll_length=4, mini_batch_size=4, initial_collect_steps=0
    )
    algorithm = alf_lite.SacAlgorithm(env=env, config=config)
    alf_lite.Trainer(algorithm, root_dir).train()
    return root_dir


def observation(*batch: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "position": generator.normal(size=(*batch, 3)),
        "mode": np.full(batch, 4, np.int64),
    }


@pytest.mark.ci
def test_a_policy_acts_in_the_space_of_the_environment(policy_run):
    policy = alf_lite.load_policy(policy_run)
    action = policy.predict(observation())
    assert action.shape == (2,)
    assert Memory.action_space.contains(action)
    assert np.array_equal(policy.predict(observation()), action)
    samples = [policy.predict(observation(), deterministic=False) for _ in range(5)]
    assert len({sample.tobytes() for sample in samples}) > 1
    # It remembers nothing: batches of any size may follow each other.
    batch = policy.predict(observation(7))
    assert batch.shape == (7, 2)
    assert np.allclose(policy.predict(observation()), action)
    assert np.array_equal(policy.predict(observation(7)), batch)
    policy.reset(np.arange(7) == 2)
    with pytest.raises(ValueError, match=r"reset: expected done \[7\]"):
        policy.reset([True])
    assert policy.observation_space == Memory.observation_space
    assert policy.action_space == Memory.action_space


def test_rows_that_begin_follow_no_action(policy_run):
    policy = alf_lite.load_policy(policy_run)
    policy.predict(observation(3))
    before = policy._prev_action
    assert before.any(1).all()
    policy.reset([False, True, False])
    assert not policy._prev_action[1].any()
    assert torch.equal(policy._prev_action[::2], before[::2])


def test_a_policy_needs_no_environment_and_leaves_the_configuration_alone(policy_run):
    config_files.parse_config(None, ["SacAlgorithm.gamma = 0.5"])
    user_gin = policy_run / "user.gin"
    text = user_gin.read_text()
    try:
        missing = text.replace("tests.test_front_door.Memory", "not_there.Memory")
        assert missing != text
        user_gin.write_text(missing)
        alf_lite.load_policy(policy_run).predict(observation())
    finally:
        user_gin.write_text(text)
    assert "SacAlgorithm.gamma = 0.5" in config_files.user_config_text()


# A live algorithm


def recurrent_ppo():
    """Training disturbed by whatever changes generators, statistics or memories."""
    lstm = functools.partial(LSTMEncodingNetwork, hidden_size=(4,))
    networks = {
        name: functools.partial(network, encoding_network_ctor=lstm)
        for name, network in {
            "actor_network_ctor": ActorDistributionNetwork,
            "value_network_ctor": ValueNetwork,
        }.items()
    }
    config = alf_lite.TrainerConfig(
        data_transformer_ctor=ObservationNormalizer, **SMALL
    )
    env = alf_lite.create_environment("Pendulum-v1", 2)
    return alf_lite.PPOAlgorithm(env=env, config=config, **networks)


def short_pendulum():
    return gymnasium.make("Pendulum-v1", max_episode_steps=5)


class Look(Hook):
    """Acts and evaluates in the middle of a training."""

    def __init__(self):
        super().__init__()
        self.returns = []

    def before_train(self, training):
        self.policy = training.algorithm.policy()

    def after_iter(self, training):
        algorithm, epsilon = training.algorithm, training.algorithm.predict_epsilon
        modes = [module.training for module in algorithm.modules()]
        samples = {
            self.policy.predict(np.zeros((2, 3)), deterministic=False).tobytes()
            for _ in range(3)
        }
        assert len(samples) == 3
        for policy in (algorithm, self.policy):
            result = alf_lite.evaluate(policy, short_pendulum, 2)
            self.returns.append(result.returns)
        assert algorithm.predict_epsilon == epsilon
        assert [module.training for module in algorithm.modules()] == modes


@pytest.mark.ci
def test_a_live_policy_is_of_the_moment_and_does_not_disturb_training(tmp_path):
    undisturbed, look = recurrent_ppo(), Look()
    alf_lite.Trainer(undisturbed).train()
    algorithm = recurrent_ppo()
    alf_lite.Trainer(algorithm, tmp_path / "run", hooks=[look]).train()
    assert_same(weights(algorithm), weights(undisturbed))
    assert len(look.returns) == 8
    assert look.returns[::2] == look.returns[1::2]
    assert len({tuple(returns) for returns in look.returns}) == 4  # it has learned
    # Afterwards it is what a run gives.
    result = alf_lite.evaluate(tmp_path / "run", short_pendulum, 2)
    assert result.returns == look.returns[-1]
    live, loaded = algorithm.policy(), alf_lite.load_policy(tmp_path / "run")
    steps = np.random.default_rng(0).normal(size=(4, 5, 3))
    for observation in steps:
        action = live.predict(observation)
        assert np.array_equal(action, loaded.predict(observation))
    assert not np.array_equal(algorithm.policy().predict(observation), action)
    live.reset()
    assert not np.array_equal(live.predict(observation), action)
    with pytest.raises(ConfigError, match=r"remembers.*policy = algorithm.policy\(\)"):
        algorithm.predict(observation)


def test_an_algorithm_predicts_with_the_parameters_of_the_moment():
    algorithm = make(alf_lite.create_environment("Pendulum-v1", 2))
    observation = np.ones(3, np.float32)
    action = algorithm.predict(observation)
    assert np.array_equal(algorithm.predict(observation), action)
    with torch.no_grad():
        for parameter in algorithm.parameters():
            parameter += 0.01
    assert not np.array_equal(algorithm.predict(observation), action)
    draws = [algorithm.predict(observation, deterministic=False) for _ in range(2)]
    assert draws[0] != draws[1]
    with pytest.raises(ConfigError, match="built without env"):
        SacAlgorithm(algorithm.observation_spec, algorithm.action_spec).policy()


@pytest.mark.ci
@pytest.mark.parametrize(
    "ctor",
    [
        alf_lite.DdpgAlgorithm,
        pytest.param(alf_lite.MbrlAlgorithm, marks=pytest.mark.slow),
        functools.partial(alf_lite.Tdmpc2Algorithm, gamma=0.9),
        functools.partial(alf_lite.BcAlgorithm, deterministic=True),
    ],
)
def test_what_has_no_distribution_says_that_nothing_is_drawn(ctor):
    env = alf_lite.create_environment("Pendulum-v1", 1)
    policy = ctor(env=env, config=alf_lite.TrainerConfig(num_iterations=1)).policy()
    with pytest.raises(ConfigError, match=r"deterministic=False: .*Algorithm has no"):
        policy.predict(np.ones(3, np.float32), deterministic=False)
    with pytest.raises(ConfigError, match=r"deterministic=False: .*Algorithm has no"):
        alf_lite.evaluate(policy, "Pendulum-v1", 1, deterministic=False)
    assert policy.predict(np.ones(3, np.float32)).shape == (1,)


@pytest.mark.ci
def test_evaluations_take_what_makes_an_environment():
    algorithm = make()
    names = ["CartPole-v1", lambda: gymnasium.make("CartPole-v1")]
    results = [alf_lite.evaluate(algorithm, env, 3, seed=5) for env in names]
    assert results[0].returns == results[1].returns
    assert len(results[0].lengths) == 3
    low, high = results[0].ci95
    assert low <= results[0].mean == np.mean(results[0].returns) <= high
    drawn = alf_lite.evaluate(algorithm, names[0], 3, deterministic=False, seed=5)
    assert drawn.returns != results[0].returns
    with cart_pole() as batch, gymnasium.make("CartPole-v1") as single:
        for env in (batch, single):
            returns = alf_lite.evaluate(algorithm, env, 2, seed=5).returns
            assert alf_lite.evaluate(algorithm, env, 2, seed=5).returns == returns
    with pytest.raises(ConfigError, match=r"returned 2 .*alf_lite\.evaluate takes"):
        alf_lite.evaluate(algorithm, cart_pole, 3)
    with alf_lite.create_environment(env_ctor=cart_pole) as batch:
        assert len(alf_lite.evaluate(algorithm, batch, 3).returns) == 3


def test_one_object_is_not_evaluated_in_while_something_else_plays_in_it():
    algorithm, single = make(), gymnasium.make("CartPole-v1")
    with pytest.raises(EnvError, match=r"environment 1 of 2 is the same CartPoleEnv"):
        alf_lite.evaluate(algorithm, lambda: single, 2)
    batch = alf_lite.create_environment(lambda: single)
    with batch, pytest.raises(EnvError, match="environment 0 of another batch"):
        alf_lite.evaluate(algorithm, single, 2)
    assert alf_lite.evaluate(algorithm, single, 2).mean > 0


def test_half_an_episode_is_not_evaluated():
    with pytest.raises(ValueError, match=r"must be an integer, at .* got 2\.5"):
        alf_lite.evaluate(make(), "CartPole-v1", num_episodes=2.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda a: alf_lite.evaluate(a, a.env),
            "must not be broken off",
        ),
        (lambda a: alf_lite.evaluate(a, 5), "expected the name of an environment"),
        (lambda a: alf_lite.evaluate(PERCENT, "CartPole-v1"), "expected a policy"),
        (
            lambda a: alf_lite.evaluate(a, "Acrobot-v1"),
            r"trained for(.|\n)*action: \(\) int64 in \[0, 2\], trained for .*1\]\n"
            r"  observation: \(6,\)",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_said(call, message):
    with pytest.raises(ConfigError, match=message):
        call(make())


# What is offered


@pytest.mark.ci
def test_names_are_loaded_when_they_are_asked_for():
    code = (
        "import sys, alf_lite; assert 'torch' not in sys.modules, 'eager'; "
        "names = dir(alf_lite); assert 'torch' not in sys.modules, 'dir'; "
        "[getattr(alf_lite, name) for name in names]; "
        "from alf_lite.replay_buffers import ReplayBuffer; "
        "from alf_lite.networks import QNetwork; from alf_lite.algorithms import *; "
        "assert SacAlgorithm is alf_lite.SacAlgorithm; print(*names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    names = done.stdout.split()
    for name in ("PPOAlgorithm", "Td3Algorithm", "train", "load_policy", "Adam"):
        assert name in names
    for name, here in {
        "PPOAlgoritm": "PPOAlgorithm",
        "SAC": "SacAlgorithm",
        "A2C": "ActorCriticAlgorithm",
    }.items():
        with pytest.raises(AttributeError, match=here):
            getattr(alf_lite, name)
    with pytest.raises(ImportError):
        from alf_lite.replay_buffers import ReplayBufer  # noqa: F401


@pytest.mark.parametrize("name", ["PPOAlgorithm", "SacAlgorithm", "DqnAlgorithm"])
def test_help_lists_every_parameter_on_its_first_screens(name):
    algorithm = getattr(alf_lite, name)
    text = pydoc.render_doc(algorithm, renderer=pydoc.plaintext)
    text, *others = re.split(r"inherited from \S+\.(?:RLAlgorithm|Module):", text)
    assert others
    assert len(text.splitlines()) < 200
    for parameter in inspect.signature(algorithm).parameters:
        assert re.search(rf"^ \| +{parameter}: \S", text, re.MULTILINE), parameter
    assert re.search(r"gamma: γ in \[0, 1\].* Default: 0.99\.", text)
    assert {"predict_step", "parameters", "train_iter"} <= {*dir(make())}
    assert " at 0x" not in str(inspect.signature(alf_lite.TrainerConfig))


@pytest.mark.ci
def test_the_second_example_of_the_readme_runs(tmp_path, monkeypatch):
    [code] = re.findall(r"```python\n(import alf_lite\n.*?)```", README, re.DOTALL)
    for line in (
        'env = alf_lite.create_environment("CartPole-v1", num_parallel_environments=8)',
        "config = alf_lite.TrainerConfig(num_env_steps=100_000)",
        "algorithm = alf_lite.PPOAlgorithm(env=env, config=config)",
        'alf_lite.Trainer(algorithm, root_dir="runs/ppo").train()',
    ):
        assert line in code
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code.replace("100_000", "1_000"), names)
    assert names["action"] in (0, 1)


def test_a_conf_is_trained_by_a_function(tmp_path):
    result = alf_lite.train(
        "ppo_cart_pole",
        tmp_path / "run",
        gin_params=[
            "TrainerConfig.num_env_steps = 0",
            "TrainerConfig.num_iterations = 1",
            "TrainerConfig.evaluate = False",
        ],
        seed=3,
    )
    assert result.iterations == 1
    assert config_files.user_config_text() == ""
    assert alf_lite.load_policy(result).predict(np.zeros((3, 4))).shape == (3,)


# Misuse


class Bare:
    """Not an environment."""


class Custom(alf_lite.PPOAlgorithm):
    """Not decorated."""


def _finished():
    algorithm = make()
    algorithm.finish_train()
    return algorithm


def _train_twice():
    trainer = alf_lite.Trainer(make())
    trainer.train()
    trainer.train()


def _other_spec():
    return alf_lite.PPOAlgorithm(
        alf_lite.create_environment("Pendulum-v1").observation_spec,
        env=cart_pole(),
        config=alf_lite.TrainerConfig(**SMALL),
    )


CONFIG = functools.partial(alf_lite.TrainerConfig, **SMALL)
PERCENT = LinearScheduler([(0.0, 1.0), (1.0, 0.0)])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: alf_lite.PPOAlgorithm(env=cart_pole()), ConfigError, "but no config"),
        (
            lambda: alf_lite.PPOAlgorithm(config=CONFIG()),
            ConfigError,
            "no env to train in",
        ),
        (
            lambda: alf_lite.PPOAlgorithm(cart_pole(), CONFIG()),
            ConfigError,
            r"Name it: PPOAlgorithm\(env=env, config=config\)",
        ),
        (
            lambda: alf_lite.PPOAlgorithm(env=Bare(), config=CONFIG()),
            ConfigError,
            "env must be an environment of alf_lite",
        ),
        (
            lambda: alf_lite.PPOAlgorithm(env=cart_pole(), config=CONFIG(), gama=0.9),
            TypeError,
            "no parameter 'gama'. Did you mean 'gamma'",
        ),
        (
            lambda: Custom(env=cart_pole(), config=CONFIG(), clip_range=0.1),
            TypeError,
            "'Custom' has no parameter 'clip_range'. Here that is .*clip_epsilon`",
        ),
        (
            lambda: alf_lite.PPOAlgorithm(env=cart_pole(), config=CONFIG(), gamma="x"),
            TypeError,
            "^PPOAlgorithm.gamma: expected a number.*, got 'x'$",
        ),
        (
            lambda: ValueNetwork(TensorSpec((3,)), hidden_size_list=(3,)),
            TypeError,
            "'ValueNetwork' has no parameter .* Here that is `fc_layer_params`",
        ),
        (
            lambda: alf_lite.DqnAlgorithm(
                env=cart_pole(), config=CONFIG(), q_network_ctor=torch.nn.Linear(4, 2)
            ),
            TypeError,
            r"q_network_ctor is what .* Write q_network_ctor=lambda \*specs: Linear",
        ),
        (
            lambda: alf_lite.create_environment(Bare, env_ctor=Bare),
            ConfigError,
            "env_name must be an id",
        ),
        (
            lambda: alf_lite.TrainerConfig(num_env_step=5),
            TypeError,
            "Did you mean 'num_env_steps'",
        ),
        (
            lambda: alf_lite.create_environment(env_nam="CartPole-v1"),
            TypeError,
            "Did you mean 'env_name'",
        ),
        (
            lambda: alf_lite.create_environment("CartPole-v1", num_envs=3),
            TypeError,
            "Here that is `create_environment.num_parallel_environments`",
        ),
        (_other_spec, ConfigError, "Leave observation_spec out"),
        (
            lambda: alf_lite.SacAlgorithm(
                env=cart_pole(),
                config=CONFIG(algorithm_ctor=alf_lite.PPOAlgorithm, epochs=1),
            ),
            ConfigError,
            "Leave algorithm_ctor out",
        ),
        (
            lambda: alf_lite.SacAlgorithm(
                env=cart_pole(), config=dataclasses.replace(CONFIG(), device="cpu")
            ),
            ConfigError,
            "replace has fixed .* unroll_length = .* algorithm_ctor=SacAlgorithm",
        ),
        (
            lambda: make(num_iterations=0),
            ConfigError,
            "num_iterations and num_env_steps are 0, but PPO",
        ),
        (
            lambda: alf_lite.Trainer(_finished()).train(),
            ConfigError,
            r"to its end.*env=new_env, config=config\), then new\.load_state_dict\(",
        ),
        (_train_twice, ConfigError, "trained already.*larger limit.* same root_dir"),
        (lambda: alf_lite.Trainer(CONFIG(), cart_pole), ConfigError, "create_env="),
        (
            lambda: alf_lite.Trainer(alf_lite.PPOAlgorithm, "x"),
            ConfigError,
            r"expected an algorithm or a TrainerConfig, got PPOAlgorithm",
        ),
        (
            lambda: alf_lite.Trainer(make(initial_collect_steps=5)),
            ConfigError,
            "initial_collect_steps is 5",
        ),
        (
            lambda: make(async_unroll=True, max_policy_lag=0),
            ConfigError,
            "workers build environments of their own",
        ),
        (
            lambda: alf_lite.Trainer(make(), hooks=[EarlyStop]),
            ConfigError,
            "got the class EarlyStop: call it",
        ),
        (lambda: alf_lite.Trainer(make(), hooks=[print]), ConfigError, "got a builtin"),
        (lambda: alf_lite.load_policy("nothing_here"), Exception, "nothing_here"),
    ],
)
def test_misuse_says_what_to_do(call, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one names a directory for its run
    with pytest.raises(error, match=message):
        call()


def test_a_directory_of_another_run_is_refused(tmp_path):
    alf_lite.Trainer(make(), tmp_path / "run").train()
    env = alf_lite.create_environment("Acrobot-v1", 2)
    with pytest.raises(CheckpointError, match="Use another root_dir"):
        alf_lite.Trainer(make(env, num_iterations=9), tmp_path / "run").train()
    with pytest.raises(CheckpointError, match=r"written by PPO(.|\n)*another root_dir"):
        other = alf_lite.DqnAlgorithm(
            env=cart_pole(), config=alf_lite.TrainerConfig(num_iterations=9)
        )
        alf_lite.Trainer(other, tmp_path / "run").train()
    trained = make(num_iterations=9)
    own_loop(trained, 1)
    with pytest.raises(ConfigError, match="trained elsewhere"):
        alf_lite.Trainer(trained, tmp_path / "run").train()


@pytest.mark.parametrize("num_before", [2, 4])
def test_what_was_trained_by_hand_may_be_the_best(tmp_path, num_before):
    settings = {"evaluate": True, "eval_interval": 2, "num_eval_episodes": 1}
    algorithm = make(num_iterations=4, **settings)
    own_loop(algorithm, num_before)
    result = alf_lite.Trainer(algorithm, tmp_path / "run").train()
    assert result.iterations == 4
    assert result.best_score is not None
    alf_lite.load_policy(tmp_path / "run", "best")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (np.zeros(3), ValueError, "observation: expected the structure"),
        ({"position": np.zeros(3)}, ValueError, "expected the structure"),
        (
            {"position": np.zeros(4), "mode": 3},
            ValueError,
            r"observation\['position'\]: expected shape \[3\].*got \[4\]",
        ),
        (
            {"position": np.zeros((2, 3)), "mode": np.full(5, 3)},
            ValueError,
            "of different batches",
        ),
        (
            {"position": np.zeros(3), "mode": 3.5},
            TypeError,
            r"observation\['mode'\]: expected integers",
        ),
        (
            {"position": ["a", "b"], "mode": 3},
            TypeError,
            r"observation\['position'\]: expected numbers",
        ),
        (
            {"position": [0.0, np.nan, 1.0], "mode": 3},
            ValueError,
            r"observation\['position'\]: expected finite numbers, got nan",
        ),
        *[
            (
                {"position": np.zeros(3), "mode": mode},
                ValueError,
                r"observation\['mode'\]: expected an integer from 3 to 6, as in "
                rf"Discrete\(4, start=3\), got {mode}",
            )
            for mode in (2, 7)
        ],
    ],
)
def test_a_wrong_observation_is_named(policy_run, wrong, error, message):
    policy = alf_lite.load_policy(policy_run)
    with pytest.raises(error, match=message):
        policy.predict(wrong)
    expected = policy.predict(observation())
    assert expected.shape == (2,)
    lists = {name: np.asarray(part).tolist() for name, part in observation().items()}
    assert np.array_equal(policy.predict(lists), expected)


def test_specs_alone_build_a_part_of_another():
    env = alf_lite.create_environment("Pendulum-v1")
    part = SacAlgorithm(env.observation_spec, env.action_spec)
    assert part.env is None
    with pytest.raises(ConfigError, match="built without"):
        part.train_iter()


class Late(alf_lite.PPOAlgorithm):
    """Has a module that its base knows nothing of."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        assert self.built_from is None  # by the constructors of the bases
        self.late = torch.nn.Module()
        self.late.coefficient = scheduled_from(1.0)


def scheduled_from(start):
    return Schedule(LinearScheduler([(0.0, start), (1.0, 0.0)]))


def test_a_root_is_completed_after_the_constructor_of_a_subclass():
    assert type(alf_lite.PPOAlgorithm) is type
    algorithm = Late(env=cart_pole(), config=CONFIG(), gamma=0.9)
    assert algorithm.built_from.arguments == {"gamma": 0.9}
    algorithm.train_iter()
    assert algorithm.late.coefficient() == pytest.approx(0.75)
    part = SacAlgorithm(TensorSpec((3,)), BoundedTensorSpec((1,)))
    assert vars(copy.deepcopy(part)).keys() == vars(part).keys()
    assert [*inspect.signature(Late).parameters] == ["args", "kwargs"]
    assert {"self", "env"} & {*inspect.signature(alf_lite.RLAlgorithm).parameters} == {
        "env"
    }
