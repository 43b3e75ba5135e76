"""Vector environments that speak torch: the same rules, on their own device."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from alf_lite.environments import torch_time_steps
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.errors import DivergedError, EnvError
from alf_lite.testing.environment_contract import EnvironmentContract


class TorchVectorEnv(VectorEnv):
    """A batch in tensors that it writes in place; even infos are tensors."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs=2, device="cpu"):
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.single_observation_space = spaces.Dict(
            {
                "x": spaces.Box(-1, 1, (2,), np.float64),
                "mode": spaces.Discrete(3, start=1),
                "image": spaces.Box(0, 255, (2, 2, 1), np.uint8),
            }
        )
        self.single_action_space = spaces.Dict(
            {"force": spaces.Box(-2, 6, (1,)), "gear": spaces.Discrete(2, start=-1)}
        )
        self.generator = torch.Generator(self.device)
        self.x = torch.zeros(num_envs, 2, dtype=torch.float64, device=device)
        self.mode = torch.ones(num_envs, dtype=torch.int64, device=device)
        self.image = torch.zeros(num_envs, 2, 2, 1, dtype=torch.uint8, device=device)
        self.ended = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.reward = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.action = None
        self.fault = lambda env: None

    def _draw(self):
        self.x.uniform_(-1, 1, generator=self.generator)
        self.mode.random_(1, 4, generator=self.generator)
        self.image.random_(0, 256, generator=self.generator)

    def _observation(self):
        return {"x": self.x, "mode": self.mode, "image": self.image}

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.generator.manual_seed(seed)
        self._draw()
        self.ended.zero_()
        return self._observation(), {}

    def step(self, actions):
        self.action = actions
        first = self.ended.clone()
        self._draw()
        self.reward.copy_(self.x[:, 0].masked_fill(first, 0))
        self.ended.copy_(~first & (self.x[:, 1] > 0.7))
        self.fault(self)
        infos = {"x": self.x[:, 1], "_x": ~first}
        return self._observation(), self.reward, self.ended, self.ended & False, infos


def make(num_environments=2, seed=0, device="cpu", **kwargs):
    vector_env = TorchVectorEnv(num_environments, device)
    return GymnasiumEnvironment(vector_env, seed=seed, **kwargs)


def noop(device="cpu"):
    return {
        "force": torch.zeros(2, 1, device=device),
        "gear": torch.zeros(2, dtype=torch.int64, device=device),
    }


class TestTorchEnvironment(EnvironmentContract):
    def make(self, num_environments, seed):
        return make(num_environments, seed)


class TestWithInfos(EnvironmentContract):
    def make(self, num_environments, seed):
        return make(num_environments, seed, env_info_keys=["x", "never?"])


@pytest.mark.gpu
class TestOnGpu(EnvironmentContract):
    def make(self, num_environments, seed):
        return make(num_environments, seed, "cuda", env_info_keys=["x", "never?"])


@pytest.mark.gpu
def test_tensors_stay_on_the_gpu():
    env = make(device="cuda")
    for time_step in (env.reset(), env.step(noop())):
        leaves = [time_step.reward, time_step.step_type, time_step.env_id]
        leaves += [time_step.discount, *time_step.observation.values()]
        assert {leaf.device.type for leaf in leaves} == {"cuda"}


def test_torch_and_numpy_give_the_same_time_steps():
    env = make(seed=1)
    mirror = GymnasiumEnvironment(_AsNumpy(TorchVectorEnv()), seed=1)
    assert_equal(env.reset(), mirror.reset())
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        action = {
            "force": torch.randn(2, 1, generator=generator),
            "gear": torch.randint(0, 2, (2,), generator=generator),
        }
        assert_equal(env.step(action), mirror.step(action))
        assert torch.equal(
            env.vector_env.action["force"],
            torch.from_numpy(mirror.vector_env.env.action["force"]),
        )


class _AsNumpy(VectorEnv):
    def __init__(self, env):
        self.env = env
        self.metadata = env.metadata
        self.num_envs = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space

    def reset(self, *, seed=None, options=None):
        observation, _ = self.env.reset(seed=seed)
        return {key: value.numpy() for key, value in observation.items()}, {}

    def step(self, actions):
        observation, *rest = self.env.step(actions)
        arrays = [part.numpy() for part in rest[:3]]
        return {k: v.numpy() for k, v in observation.items()}, *arrays, {}


def assert_equal(one, two):
    for field in ("step_type", "reward", "discount"):
        assert torch.equal(getattr(one, field), getattr(two, field))
    for field in ("observation", "prev_action"):
        for key, value in getattr(one, field).items():
            assert torch.equal(value, getattr(two, field)[key])


def test_actions_reach_the_environment_as_tensors_of_its_space():
    env = make()
    env.reset()
    env.step({"force": torch.tensor([[0.5], [-9]]), "gear": torch.tensor([0, 1])})
    given = env.vector_env.action
    assert given["force"].tolist() == [[4], [-2]]
    assert given["force"].dtype == torch.float32
    assert given["gear"].tolist() == [-1, 0]


def nan(name, index):
    def fault(env):
        getattr(env, name)[index] = torch.nan

    return fault


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (nan("x", (1, 0)), r"environment 1 returned observation\['x'\]\[0\] = nan"),
        (nan("reward", 0), "environment 0 returned reward = nan"),
        (
            lambda env: env.mode.fill_(9),
            r"environment 0 .*\['mode'\] = 9, which is not",
        ),
    ],
)
def test_bad_values_on_the_cpu_are_found_at_once(fault, message):
    env = make()
    env.reset()
    env.step(noop())
    env.vector_env.fault = fault
    with pytest.raises(EnvError, match=rf"step\(\) at step 2: {message}"):
        env.step(noop())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (nan("x", (1, 0)), r"environment 1 returned observation\['x'\] that is not"),
        (nan("reward", 0), "environment 0 returned reward that is not finite"),
    ],
)
def test_where_checks_are_rare_a_passing_fault_is_still_found(
    fault, message, monkeypatch
):
    env = make()
    env.reset()
    time_steps = env._time_steps
    monkeypatch.setattr(time_steps, "_interval", 5)
    time_steps._steps_until_check = 5
    env.vector_env.fault = fault
    env.step(noop())
    env.vector_env.fault = lambda env: None
    for _ in range(3):
        env.step(noop())
    with pytest.raises(EnvError, match=f"{message}.* in the last 5 steps"):
        env.step(noop())


@pytest.mark.gpu
def test_a_passing_fault_on_the_gpu_is_found():
    env = make(device="cuda")
    env.reset()
    env.vector_env.fault = nan("x", (1, 0))
    env.step(noop())
    env.vector_env.fault = lambda env: None
    with pytest.raises(EnvError, match="environment 1"):
        for _ in range(torch_time_steps._GPU_CHECK_INTERVAL):
            env.step(noop())


def test_leaving_a_box_warns():
    env = make()
    env.reset()
    env.vector_env.fault = lambda env: env.x[0].fill_(1.5)
    with pytest.warns(UserWarning, match=r"environment 0 returned observation\['x'\]"):
        env.step(noop())
    env.step(noop())


def test_wrong_shapes_dtypes_and_kinds_are_named():
    cases = [
        ("x", torch.zeros(2, 3, dtype=torch.float64), r"shape \(2, 2\), got"),
        ("x", torch.zeros(2, 2, dtype=torch.int64), "got torch.int64"),
        ("mode", torch.ones(2), "got torch.float32"),
        ("mode", np.ones(2, np.int64), "expected a torch tensor"),
    ]
    for name, value, message in cases:
        env = make()
        env.reset()
        setattr(env.vector_env, name, value)
        env.vector_env._draw = lambda: None
        env.vector_env.step = lambda actions, e=env.vector_env: (
            e._observation(),
            torch.zeros(2),
            e.ended,
            e.ended,
            {},
        )
        with pytest.raises(EnvError, match=rf"observation\['{name}'\]: .*{message}"):
            env.step(noop())


def test_rewards_of_a_wrong_shape_are_named():
    env = make()
    env.reset()
    env.vector_env.fault = lambda env: setattr(env, "reward", torch.zeros(2, 1))
    with pytest.raises(EnvError, match=r"reward: expected shape \(2,\), got \(2, 1\)"):
        env.step(noop())


def test_an_environment_that_only_claims_next_step_mode_is_found_out():
    env = make()
    env.reset()
    env.vector_env.fault = lambda env: env.ended.fill_(True)
    env.step(noop())
    with pytest.raises(EnvError, match=r"AutoresetMode.NEXT_STEP"):
        env.step(noop())


def test_actions_that_are_not_finite_blame_the_policy():
    env = make()
    env.reset()
    action = noop()
    action["force"][1] = torch.nan
    with pytest.raises(DivergedError, match=r"action\['force'\]\[0\] = nan"):
        env.step(action)


def test_actions_of_another_device_or_precision_are_converted():
    env = make()
    env.reset()
    action = {"force": torch.ones(2, 1).double(), "gear": torch.ones(2).int()}
    time_step = env.step(action)
    assert time_step.prev_action["force"].dtype == torch.float32
    assert time_step.prev_action["gear"].dtype == torch.int64


def test_gymnasium_wrappers_around_it_work():
    class Passing(gymnasium.vector.VectorWrapper):
        pass

    env = GymnasiumEnvironment(Passing(TorchVectorEnv()))
    assert env.reset(0).observation["x"].shape == (2, 2)
