"""Environments in torch: the rules of every environment, resuming, and mistakes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import check_env, create_environment, nest
from alf_lite.config import files as config_files
from alf_lite.environments.creation import EnvironmentsOfRun
from alf_lite.environments.torch_tasks import TorchCartPole, TorchPendulum
from alf_lite.environments.torch_vector_env import TorchVectorEnv
from alf_lite.errors import CheckpointError, ConfigError, DivergedError, EnvError
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.stand_in_device import StandInDevice
from alf_lite.utils import random_state
from tests.source_code import ROOT


class Walk(TorchVectorEnv):
    """Walks from anywhere in [0, 1), by what two forces and a side say."""

    observation_space = spaces.Dict(
        {"x": spaces.Box(-9.0, 9.0, (1,)), "side": spaces.Discrete(2)}
    )
    action_space = spaces.Tuple(
        (spaces.Discrete(2, start=-1), spaces.Box(-3.0, 1.0, (2,)))
    )
    num_random_numbers = 2
    time_limit = 6

    def initial_state(self, random):
        return random[:, 0]

    def transition(self, state, action, random):
        side, force = action
        state = state + side + 0.5 + force.mean(-1) + 0.1 * random[:, 1]
        return state, state, state.abs() > 2

    def observe(self, state):
        return {"x": state[:, None].clamp(-9, 9), "side": (state > 0).long()}


class TestWalk(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment("walk", num_environments, seed, env_ctor=Walk)


class TestCartPole(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment("torch/CartPole", num_environments, seed)


class TestPendulum(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment(
            "torch/Pendulum", num_environments, seed, max_episode_steps=20
        )


class TestPointMass(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment(
            "torch/PointMass", num_environments, seed, max_episode_steps=20
        )


@pytest.mark.gpu
class TestOnGpu(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment(
            "torch/CartPole", num_environments, seed, env_kwargs={"device": "cuda"}
        )


def walk_action(num_environments, side=0, force=-1.0):
    force = torch.full((num_environments, 2), force)
    return torch.full((num_environments,), side), force


# Ends


def test_an_end_is_terminal_or_a_time_limit_and_the_next_step_ignores_its_action():
    env = Walk(2, seed=0)
    env.reset()
    env._state = env.state._replace(physics=torch.tensor([0.0, 1.4]))
    # By side 0 (that is -1 + 0.5) and force 1 + 0.1 r.
    time_steps = [env.step(walk_action(2, 0, 1.0)) for _ in range(8)]
    moves = [step.step_type.tolist() for step in time_steps]
    # The second one is beyond 2 after its second step and begins again.
    assert moves[:4] == [[1, 1], [1, 2], [1, 0], [2, 1]]
    assert time_steps[1].discount.tolist() == [1, 0]
    assert time_steps[3].discount.tolist() == [0, 1]
    first = time_steps[2]
    assert first.reward.tolist()[1] == 0
    assert 0 <= first.observation["x"][1, 0] < 1
    assert first.prev_action[0][1] == 0
    assert (first.prev_action[1][1] == 0).all()


def test_a_time_limit_counts_the_steps_of_each_episode():
    env = create_environment("torch/Pendulum", 3, 0, max_episode_steps=4)
    types = [env.reset().step_type]
    types += [env.step(torch.zeros(3, 1)).step_type for _ in range(9)]
    assert torch.stack(types)[:, 1].tolist() == [0, 1, 1, 1, 2, 0, 1, 1, 1, 2]
    assert (env.current_time_step.discount == 1).all()


def test_first_episodes_may_be_cut_at_random_steps():
    env = TorchPendulum(1000, max_episode_steps=10, random_first_length=True, seed=0)
    env.reset()
    ends = [env.step(torch.zeros(1000, 1)).is_last() for _ in range(21)]
    lengths = torch.stack(ends).int().argmax(0) + 1
    assert sorted(set(lengths.tolist())) == list(range(1, 11))
    # Then they have their length, and a step to begin.
    assert (torch.stack(ends).sum(0) == 2)[lengths <= 10].all()
    with pytest.raises(ConfigError, match="set max_episode_steps"):
        TorchPendulum(2, max_episode_steps=0, random_first_length=True)


def test_without_a_limit_nothing_ends_but_what_is_terminal():
    env = create_environment("torch/Pendulum", 2, 0, max_episode_steps=0)
    env.reset()
    for _ in range(300):
        time_step = env.step(torch.zeros(2, 1))
    assert time_step.is_mid().all()


def test_actions_reach_the_environment_in_its_own_bounds():
    given = []

    class Recorded(Walk):
        def transition(self, state, action, random):
            given.append(action)
            return super().transition(state, action, random)

    env = Recorded(1, seed=0)
    env.reset()
    env.step((torch.tensor([1]), torch.tensor([[-1.0, 0.5]])))
    side, force = given[0]
    assert side.tolist() == [0]  # counted from -1
    assert force.tolist() == [[-3.0, 0.0]]


def test_one_draw_for_many_steps_is_that_of_single_steps():
    together, apart = Walk(5, seed=1), Walk(5, seed=1)
    together.reset()
    apart.reset()
    expected = torch.cat([apart.draw(1) for _ in range(7)])
    assert torch.equal(together.draw(7), expected)


def test_a_step_is_a_pure_function():
    env = TorchCartPole(4, seed=0)
    env.reset()
    before = nest.map_structure(torch.clone, env.state)
    random, action = torch.rand(4, 4), torch.ones(4, dtype=torch.int64)
    first, second = (env.next_step(env.state, action, random) for _ in range(2))
    for one, other in zip(nest.flatten(first), nest.flatten(second), strict=True):
        assert torch.equal(one, other)
    for old, kept in zip(nest.flatten(before), nest.flatten(env.state), strict=True):
        assert torch.equal(old, kept)


def test_a_setting_may_be_changed():
    env = TorchPendulum(2, seed=0)
    env.set_attribute("gravity", 5.0)
    assert env.gravity == 5.0
    assert TorchPendulum.gravity == 10.0
    with pytest.raises(EnvError, match="no attribute gravty"):
        env.set_attribute("gravty", 5.0)


# Resuming


def test_open_episodes_are_resumed_to_the_bit():
    env = create_environment("torch/CartPole", 8, 3)
    actions = torch.randint(0, 2, (60, 8), generator=torch.Generator().manual_seed(0))
    env.reset()
    for action in actions[:25]:
        env.step(action)
    state = env.episode_state()
    kept = nest.map_structure(torch.clone, env.current_time_step)
    expected = [env.step(action) for action in actions[25:]]

    resumed = create_environment("torch/CartPole", 8, 99)
    assert resumed.restore_episodes(state, seed=5) == {}
    steps = [resumed.current_time_step, *(resumed.step(a) for a in actions[25:])]
    assert any(step.is_first().any() for step in steps)
    for one, other in zip([kept, *expected], steps, strict=True):
        for leaf, same in zip(nest.flatten(one), nest.flatten(other), strict=True):
            assert torch.equal(leaf, same)


def test_episodes_of_other_environments_are_refused():
    env = TorchCartPole(8, seed=0)
    assert env.episode_state() is None
    env.reset()
    with pytest.raises(CheckpointError, match="another number"):
        TorchCartPole(4).restore_episodes(env.episode_state(), seed=0)
    with pytest.raises(CheckpointError, match="another environment"):
        TorchPendulum(8).restore_episodes(env.episode_state(), seed=0)
    with pytest.raises(CheckpointError, match="another kind"):
        TorchPendulum(8).restore_episodes({"starts": []}, seed=0)


def test_episodes_of_another_device_begin_anew():
    env = TorchCartPole(2, seed=0)
    env.reset()
    state = {**env.episode_state(), "device": "cuda"}
    reasons = TorchCartPole(2).restore_episodes(state, seed=0)
    assert reasons.keys() == {0, 1}
    assert "they were on cuda" in reasons[0]


def test_without_a_seed_every_batch_is_another_one():
    assert not torch.equal(
        TorchCartPole(2).reset().observation, TorchCartPole(2).reset().observation
    )


# How it is created


def test_an_id_and_a_class_make_as_many_as_are_asked_for():
    with create_environment("torch/PointMass", 7) as env:
        assert (env.batch_size, env.name) == (7, "TorchPointMass")
    with create_environment(env_ctor=TorchPendulum, num_parallel_environments=5) as env:
        assert env.batch_size == 5


def test_a_conf_names_it_and_binds_its_parameters():
    text = (
        "create_environment.env_ctor = @TorchPendulum\n"
        "create_environment.num_parallel_environments = 3\n"
        "TorchPendulum.max_episode_steps = 7\n"
    )
    with config_files.own_config():
        config_files.parse_config_text(text)
        env = create_environment()
    assert (env.batch_size, env.max_episode_steps) == (3, 7)


def test_what_does_not_fit_it_is_refused():
    cases = [
        (
            {"vectorization_mode": "async"},
            "leave create_environment.vectorization_mode",
        ),
        ({"wrappers": [lambda env: env]}, "create_environment.wrappers"),
        ({"env_info_keys": ["x"]}, "create_environment.env_info_keys"),
        ({"env_kwargs": {"device": "nowhere"}}, "device 'nowhere' was asked for"),
        ({"num_parallel_environments": 0}, "must be a positive integer"),
    ]
    for arguments, message in cases:
        with pytest.raises(ConfigError, match=message):
            create_environment("torch/CartPole", **arguments)
    with pytest.raises(ConfigError, match="Did you mean 'torch/CartPole'"):
        create_environment("torch/Cartpole")
    with pytest.raises(ConfigError, match="max_episode_steps must be"):
        TorchCartPole(1, max_episode_steps=-1)


def test_check_env_is_for_others():
    for env in ("torch/CartPole", TorchCartPole):
        with pytest.raises(ConfigError, match="EnvironmentContract"):
            check_env(env)


@pytest.mark.ci
def test_the_device_of_the_run_is_its_own():
    of_run = EnvironmentsOfRun(device="cpu")
    with create_environment("torch/CartPole", 2, of_run=of_run) as env:
        assert env.device == torch.device("cpu")
    with random_state.preserved(), StandInDevice() as device:
        of_run = EnvironmentsOfRun(device=device.name)
        env = create_environment("torch/Pendulum", 2, seed=3, of_run=of_run)
        step = env.reset()
        assert env.device == step.reward.device == device.device
        assert isinstance(env.observation_spec.minimum, np.ndarray)
        assert "of_run" not in env.created_with


# Mistakes


class Undeclared(TorchVectorEnv):
    observation_space = action_space = spaces.Discrete(2)

    def initial_state(self, random):
        return random[:, 0]

    def transition(self, state, action, random):
        return state, state, state > 2

    def observe(self, state):
        return (state > 0).long()


def test_what_is_not_declared_is_named():
    with pytest.raises(ConfigError, match="must declare num_random_numbers"):
        Undeclared(2)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("observe", lambda self, s: s, "observation is torch.float32, not torch.int64"),
        (
            "observe",
            lambda self, s: (s > 0).long()[:1],
            r"shape \(1,\), expected \(2,\)",
        ),
        ("observe", lambda self, s: {"a": s}, r"observe\(\)"),
        (
            "transition",
            lambda self, s, a, r: (s, s[:, None], s > 2),
            r"the reward has the shape \(2, 2\)|the reward has the shape \(2, 1\)",
        ),
        (
            "transition",
            lambda self, s, a, r: (s.double(), s, s > 2),
            "was .* torch.float32 and has become .* torch.float64",
        ),
    ],
)
def test_what_contradicts_the_spaces_is_an_error_at_the_first_step(
    name, wrong, message
):
    kind = type("Wrong", (Undeclared,), {"num_random_numbers": 1, name: wrong})
    env = kind(2, seed=0)
    with pytest.raises((EnvError, ValueError), match=message):
        env.reset()
        env.step(torch.zeros(2, dtype=torch.int64))


def test_the_documented_environment_is_one():
    page = (ROOT / "docs/environments_in_torch.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```python\n(import torch\n.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(text, names)
    env = create_environment("walk", 64, 0, env_ctor=names["Walk"])
    env.reset()
    for _ in range(20):
        time_step = env.step(env.action_spec.sample((64,)))
    assert (time_step.observation.abs() <= 9).all()


def test_an_observation_is_no_memory_of_the_state():
    class Shared(Undeclared):
        observation_space = spaces.Dict(
            same=spaces.Box(-9, 9, ()),
            view=spaces.Box(-9, 9, (1,)),
            own=spaces.Box(-9, 9),
        )
        num_random_numbers = 1

        def observe(self, state):
            return {"same": state, "view": state[:, None], "own": state[:, None] + 1}

    env = Shared(2, seed=0)
    time_step = env.reset()
    for _ in range(3):
        state = env.state.physics
        for leaf in time_step.observation.values():
            leaf.fill_(7.0)
        assert not (state == 7).any()
        time_step = env.step(torch.zeros(2, dtype=torch.int64))
        assert torch.equal(time_step.observation["view"][:, 0], env.state.physics)
        assert torch.equal(time_step.observation["same"], env.state.physics)


def test_numbers_that_are_not_finite_are_errors():
    env = TorchPendulum(3, seed=0)
    env.reset()
    with pytest.raises(DivergedError, match="the policy chose action"):
        env.step(torch.tensor([[0.0], [torch.nan], [0.0]]))
    env.reset()
    env.gravity = torch.tensor([1.0, 1.0, torch.nan])
    with pytest.raises(EnvError, match="environment 2 returned observation"):
        env.step(torch.zeros(3, 1))


def test_actions_of_a_wrong_kind_are_errors():
    env = TorchCartPole(2, seed=0)
    env.reset()
    with pytest.raises(TypeError, match="expected integers"):
        env.step(torch.zeros(2))
    with pytest.raises(ValueError, match="expected shape"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))
