"""An actor and critics that see different entries of a dict of observations."""

from __future__ import annotations

import functools
import json

import gymnasium as gym
import numpy as np
import pytest
import torch

import alf_lite
from alf_lite import algorithms
from alf_lite.bin import play
from alf_lite.config import TrainerConfig
from alf_lite.errors import ConfigError
from alf_lite.networks import (
    ActorDistributionNetwork,
    ActorNetwork,
    SquashedActorNetwork,
    ValueNetwork,
)
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.trainers.trainer import Trainer
from tests.fast.twins import without_twins

SPEC = {"sensors": TensorSpec((2,)), "state": TensorSpec((3,))}
BOX = BoundedTensorSpec((1,), torch.float32, -1, 1)
ACTORS = {
    "PPOAlgorithm": ActorDistributionNetwork,
    "ActorCriticAlgorithm": ActorDistributionNetwork,
    "ImpalaAlgorithm": ActorDistributionNetwork,
    "PPGAlgorithm": ActorDistributionNetwork,
    "SacAlgorithm": SquashedActorNetwork,
    "Td3Algorithm": ActorNetwork,
    "DdpgAlgorithm": ActorNetwork,
    "IqlAlgorithm": SquashedActorNetwork,
    "TaacAlgorithm": SquashedActorNetwork,
}


def build(name, spec=SPEC, **kwargs):
    torch.manual_seed(0)
    return getattr(algorithms, name)(
        spec,
        BOX,
        actor_network_ctor=functools.partial(ACTORS[name], fc_layer_params=(8,)),
        optimizer=Adam(lr=1e-3),
        **kwargs,
    )


def sample(rows=4):
    torch.manual_seed(1)
    return {key: torch.randn(rows, *spec.shape) for key, spec in SPEC.items()}


def slopes(output, observation) -> dict[str, bool]:
    """By entry, whether the output depends on it."""
    found = torch.autograd.grad(
        output.sum(), list(observation.values()), allow_unused=True
    )
    return {
        key: slope is not None and bool(slope.any())
        for key, slope in zip(observation, found, strict=True)
    }


@pytest.mark.parametrize("name", ["PPOAlgorithm", "ActorCriticAlgorithm"])
def test_value_and_policy_see_their_entries(name):
    algorithm = build(
        name, actor_observation_keys=["sensors"], critic_observation_keys=["state"]
    )
    observation = {k: x.requires_grad_() for k, x in sample().items()}
    value, _ = algorithm._value(observation)
    assert slopes(value, observation) == {"sensors": False, "state": True}
    policy, _ = algorithm._policy(observation)
    assert slopes(policy.mean, observation) == {"sensors": True, "state": False}


@pytest.mark.parametrize("name", ["SacAlgorithm", "Td3Algorithm", "DdpgAlgorithm"])
def test_critics_and_actor_see_their_entries(name):
    algorithm = build(
        name, actor_observation_keys=["sensors"], critic_observation_keys=["state"]
    )
    observation = {k: x.requires_grad_() for k, x in sample().items()}
    action, _ = algorithm._policy.sample(observation, ())[:2]
    if name == "SacAlgorithm":
        action = algorithm._policy(observation)[0].rsample()
    assert slopes(action, observation) == {"sensors": True, "state": False}
    features, _ = algorithm._critics.online.encode(observation)
    q = algorithm._critics.online.evaluate(features, torch.zeros(4, 1))
    assert slopes(q, observation) == {"sensors": False, "state": True}


@pytest.mark.parametrize("name", ACTORS)
def test_what_the_actor_does_not_see_is_optional(name):
    algorithm = build(name, actor_observation_keys=["sensors"])
    if name == "TaacAlgorithm":  # whose critics decide whether the action is repeated
        assert not algorithm.optional_entries
        return
    assert algorithm.optional_entries == {"state"}
    assert set(algorithm.needed(SPEC)) == {"sensors"}
    observation = sample(2)
    state = observation.pop("state")
    completed = algorithm.completed(observation, 2)
    assert completed["state"].equal(torch.zeros_like(state))
    assert build(name).optional_entries == frozenset()


@pytest.mark.parametrize(
    ("keys", "spec", "message"),
    [
        (["sensor"], SPEC, "Did you mean 'sensors'"),
        ("sensors", SPEC, "expected a list of entries"),
        ([], SPEC, "expected a list of entries"),
        (["sensors"], TensorSpec((2,)), "which has none"),
    ],
)
@pytest.mark.parametrize("part", ["actor", "critic"])
@pytest.mark.parametrize("name", ["PPOAlgorithm", "SacAlgorithm"])
def test_wrong_keys_are_refused(name, part, keys, spec, message):
    with pytest.raises(ConfigError, match=f"{part}_observation_keys: .*{message}"):
        build(name, spec, **{f"{part}_observation_keys": keys})


class Arm(gym.Env):
    """The best action is the sign that the sensors show."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, tells_state=True):
        box = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
        entries = {"sensors": box, "state": box} if tells_state else {"sensors": box}
        self.observation_space = gym.spaces.Dict(entries)

    def _observe(self):
        self._place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return dict.fromkeys(self.observation_space, self._place)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._observe(), {}

    def step(self, action):
        reward = -float(abs(np.sign(self._place[0]) - action[0]))
        self._count += 1
        return self._observe(), reward, False, self._count >= 10, {}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root_dir = tmp_path_factory.mktemp("arm")
    algorithm = algorithms.PPOAlgorithm(
        env=alf_lite.create_environment(env_ctor=Arm, num_parallel_environments=8),
        config=TrainerConfig(num_env_steps=8192, unroll_length=32, random_seed=0),
        actor_network_ctor=functools.partial(
            ActorDistributionNetwork, fc_layer_params=(32,)
        ),
        value_network_ctor=functools.partial(ValueNetwork, fc_layer_params=(32,)),
        optimizer=Adam(lr=3e-3),
        actor_observation_keys=["sensors"],
    )
    Trainer(algorithm, root_dir=root_dir).train()
    return algorithm


@pytest.mark.ci
def test_it_learns_and_acts_on_sensors_alone(run):
    signs = np.linspace(-1, 1, 21)[:, None].astype(np.float32)
    sensors = torch.from_numpy(np.concatenate([signs, np.zeros_like(signs)], axis=1))
    distribution, _ = run._policy(run.completed({"sensors": sensors}, 21))
    right = np.sign(distribution.mean.detach().numpy()) == np.sign(signs)
    assert right[np.abs(signs) > 0.15].mean() > 0.95


def trained_parameters(root_dir):
    algorithm = algorithms.PPOAlgorithm(
        env=alf_lite.create_environment(env_ctor=Arm, num_parallel_environments=4),
        config=TrainerConfig(num_iterations=4, unroll_length=16, random_seed=0),
        optimizer=Adam(lr=1e-3),
        actor_observation_keys=["sensors"],
        critic_observation_keys=["state"],
    )
    Trainer(algorithm, root_dir=root_dir).train()
    return torch.cat([p.detach().flatten() for p in algorithm.parameters()])


@pytest.mark.ci
def test_the_loss_in_numpy_sees_the_same(tmp_path):
    fast = trained_parameters(tmp_path / "fast")
    with without_twins():
        slow = trained_parameters(tmp_path / "slow")
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=0)


CONF = f"""
create_environment.env_ctor = @{Arm.__module__}.Arm
create_environment.num_parallel_environments = 2
TrainerConfig.algorithm_ctor = @PPOAlgorithm
TrainerConfig.num_iterations = 1
TrainerConfig.unroll_length = 8
PPOAlgorithm.actor_observation_keys = ["sensors"]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conf")
    (folder / "arm.gin").write_text(CONF)
    alf_lite.train(folder / "arm.gin", root_dir=folder / "run")
    return folder / "run"


@pytest.mark.ci
def test_a_loaded_and_an_exported_policy_need_what_the_actor_sees(trained, tmp_path):
    policy = alf_lite.load_policy(trained)
    sensors = np.array([0.5, -0.5], np.float32)
    action = policy.predict({"sensors": sensors})
    everything = {"sensors": sensors, "state": np.full(2, 9.0, np.float32)}
    np.testing.assert_array_equal(policy.predict(everything), action)
    with pytest.raises(ValueError, match="missing \\['sensors'\\]"):
        policy.predict({"state": sensors})
    out = tmp_path / "policy"
    alf_lite.export_policy(trained, out, file_format="torch", num_steps=20)
    specs = json.loads((out / "policy.json").read_text())
    assert [entry["name"] for entry in specs["inputs"]] == ["observation_sensors"]
    [exported] = torch.export.load(out / "policy.pt2").module()(
        torch.from_numpy(sensors)[None]
    )
    np.testing.assert_allclose(exported[0].detach().numpy(), action, atol=1e-6)


class Sensors(Arm):
    def __init__(self):
        super().__init__(tells_state=False)


class Blind(Arm):
    def __init__(self):
        super().__init__()
        box = self.observation_space["state"]
        self.observation_space = gym.spaces.Dict({"state": box})


@pytest.mark.parametrize("env_class", [Arm, Sensors, Blind])
def test_it_plays_where_there_is_what_the_actor_sees(trained, env_class, capsys):
    ctor = f"@{Arm.__module__}.{env_class.__name__}"
    flags = ["--num_episodes=1", f"--gin_param=create_environment.env_ctor = {ctor}"]
    code = play.main([f"--root_dir={trained}", *flags])
    captured = capsys.readouterr()
    if env_class is Blind:
        assert code != 0
        assert "does not observe ['sensors'], which the policy" in captured.err
    else:
        assert code == 0
        assert "10 steps" in captured.out
