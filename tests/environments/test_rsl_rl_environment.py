"""Environments that reset within a step, behind the interface of rsl_rl."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch

from alf_lite.environments import RslRlEnvironment, create_environment
from alf_lite.errors import ConfigError, EnvError
from alf_lite.testing.environment_contract import EnvironmentContract


class Runner:
    """x grows by 1 + action; falls at 6, time limit after 4 steps; resets at once.

    Writes its observations into the same tensor at each step.
    """

    num_actions = 1
    device = "cpu"

    def __init__(self, num_envs=3, *, final=None, time_outs=True, style="mapping"):
        self.num_envs = num_envs
        self.generator = torch.Generator()
        self.x = torch.zeros(num_envs, 1)
        self.t = torch.zeros(num_envs)
        self.final, self.time_outs, self.style = final, time_outs, style
        self.actions = []
        self.is_closed = 0

    def seed(self, seed):
        self.generator.manual_seed(seed)

    def reset(self):
        self._begin(torch.ones(self.num_envs, dtype=torch.bool))

    def _begin(self, rows):
        start = torch.rand(self.num_envs, 1, generator=self.generator)
        self.x[rows], self.t[rows] = start[rows], 0

    def _observed(self):
        groups = {"policy": self.x, "critic": torch.cat([self.x, self.t[:, None]], 1)}
        if self.style == "tensor":
            return self.x
        if self.style == "old":
            return self.x, {"observations": groups}
        return UserDict(groups)  # a mapping that is no dict, like a TensorDict

    def get_observations(self):
        return self._observed()

    def step(self, actions):
        self.actions.append(actions.clone())
        self.x += 1 + actions
        self.t += 1
        reward = self.x[:, 0].clone()
        terminated, truncated = self.x[:, 0] > 6, self.t >= 4
        dones = (terminated | truncated).long()
        extras = {"log": {"/speed": 1.5}, "height": self.x[:, 0] * 2}
        if self.time_outs:
            extras["time_outs"] = truncated & ~terminated
        if self.final:
            extras[self.final] = {
                "policy": self.x.clone(),
                "critic": torch.cat([self.x, self.t[:, None]], 1),
            }
        self._begin(dones.bool())
        observed = self._observed()
        return observed[0] if self.style == "old" else observed, reward, dones, extras

    def close(self):
        self.is_closed += 1


class TestRunner(EnvironmentContract):
    def make(self, num_environments, seed):
        return RslRlEnvironment(Runner(num_environments), seed=seed)


class TestRunnerWithFinalObservations(EnvironmentContract):
    def make(self, num_environments, seed):
        runner = Runner(num_environments, final="final_observation")
        return RslRlEnvironment(
            runner, seed=seed, action_bound=2.0, env_info_keys=["height", "log/speed"]
        )


def steps(env, actions):
    return [env.reset(0), *(env.step(torch.tensor(action)) for action in actions)]


def column(time_steps, field, row=0):
    return [getattr(step, field)[row].item() for step in time_steps]


@pytest.mark.parametrize("final", [None, "final_observation", "terminal_observation"])
def test_a_time_limit_is_bootstrapped_and_the_step_after_it_is_first(final):
    runner = Runner(1, final=final)
    env = RslRlEnvironment(runner, observation_groups=["policy"])
    time_steps = steps(env, [[[0.0]]] * 4 + [[[5.0]]] + [[[0.0]]] * 2)
    assert column(time_steps, "step_type") == [0, 1, 1, 1, 2, 0, 1, 1]
    assert column(time_steps, "discount") == [1] * 8
    x = [step.observation["policy"].item() for step in time_steps]
    # Where the episode ended, or one step before, where that is not told.
    assert x[4] == pytest.approx(x[3] + 1 if final else x[3])
    assert time_steps[4].reward.item() == pytest.approx(x[3] + 1)
    # The step that is not the agent's: with an action of zeros, without reward.
    assert [action.item() for action in runner.actions] == [0] * 7
    assert time_steps[5].reward.item() == 0
    assert time_steps[5].prev_action.item() == 0
    assert 1 <= x[5] <= 2
    assert x[6] == pytest.approx(x[5] + 1)
    assert time_steps[6].reward.item() == pytest.approx(x[6])


def test_other_ends_are_terminal():
    env = RslRlEnvironment(Runner(2), observation_groups=["policy"])
    time_steps = steps(env, [[[9.0], [0.0]]] + [[[0.0], [0.0]]] * 2)
    assert column(time_steps, "step_type") == [0, 2, 0, 1]
    assert column(time_steps, "discount") == [1, 0, 1, 1]
    assert column(time_steps, "step_type", row=1) == [0, 1, 1, 1]


def test_an_episode_of_a_single_step_that_is_not_the_agents_is_left_out():
    class Short(Runner):
        def step(self, actions):
            self.x += 10  # ends at every step
            return super().step(actions)

    time_steps = steps(RslRlEnvironment(Short(1)), [[[0.0]]] * 4)
    assert column(time_steps, "step_type") == [0, 2, 0, 2, 0]
    assert column(time_steps, "reward")[2] == 0


def test_agents_see_the_groups_that_are_named():
    everything = RslRlEnvironment(Runner(2)).reset(0).observation
    assert {key: tuple(x.shape) for key, x in everything.items()} == {
        "critic": (2, 2),
        "policy": (2, 1),
    }
    assert RslRlEnvironment(Runner(2, style="tensor")).reset(0).observation.shape == (
        2,
        1,
    )
    old = RslRlEnvironment(Runner(2, style="old"))
    assert old.reset(0).observation.shape == (2, 1)
    assert old.step(torch.zeros(2, 1)).observation.shape == (2, 1)


def test_actions_are_scaled_if_they_have_a_bound():
    bounded, free = Runner(1), Runner(1)
    one, other = RslRlEnvironment(bounded, action_bound=3.0), RslRlEnvironment(free)
    assert (one.action_spec.minimum, one.action_spec.maximum) == (-1, 1)
    for env in (one, other):
        env.reset(0)
        env.step(torch.tensor([[0.5]]))
        env.step(torch.tensor([[-1.2]]))
    assert [a.item() for a in bounded.actions] == [1.5, -3]
    assert [a.item() for a in free.actions] == [0.5, pytest.approx(-1.2)]


def test_extras_become_infos():
    env = RslRlEnvironment(Runner(2), env_info_keys=["height", "log/speed", "none"])
    env.reset(0)
    step = env.step(torch.zeros(2, 1))
    assert step.env_info["log/speed"].tolist() == [1.5, 1.5]
    assert torch.equal(step.env_info["height"], step.reward * 2)
    assert step.env_info["none"].tolist() == [0, 0]


def test_create_environment_takes_it_and_its_size_rules():
    def make():
        return RslRlEnvironment(Runner(4), seed=0)

    with create_environment("runner", env_ctor=make) as env:
        assert env.batch_size == 4
    with pytest.raises(ConfigError, match="returned 4 environments"):
        create_environment("runner", 8, env_ctor=make)


def test_closing_closes_it_once():
    runner = Runner(1)
    env = RslRlEnvironment(runner)
    env.close()
    env.close()
    assert runner.is_closed == 1


# Mistakes


def test_time_outs_must_be_told_or_declared_absent():
    silent = RslRlEnvironment(Runner(1, time_outs=False))
    with pytest.raises(
        EnvError, match=r"no time_outs, only log, height.*has_time_outs"
    ):
        steps(silent, [[[0.0]]] * 4)
    finite = RslRlEnvironment(Runner(1, time_outs=False), has_time_outs=False)
    assert column(steps(finite, [[[0.0]]] * 4), "discount")[-1] == 0
    contradicting = RslRlEnvironment(Runner(1), has_time_outs=False)
    with pytest.raises(EnvError, match="leave has_time_outs out"):
        steps(contradicting, [[[0.0]]])


def broken(**changes):
    return type("Broken", (Runner,), changes)(2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_actions": 0}, "num_actions must be a positive integer, got 0"),
        (
            {"get_observations": lambda self: torch.zeros(3, 1)},
            r"observation has the shape \(3, 1\), but num_envs is 2",
        ),
        (
            {"get_observations": lambda self: {"policy": 1.0}},
            r"observation\['policy'\] is a float, not a tensor",
        ),
        ({"get_observations": lambda self: 1.0}, "observations are float"),
        ({"device": "meta"}, "is on cpu, but the environment says .* meta"),
    ],
)
def test_what_is_wrong_is_said_where_it_is_built(changes, message):
    with pytest.raises(ConfigError, match=message):
        RslRlEnvironment(broken(**changes))


def test_another_interface_and_unknown_groups_are_refused():
    with pytest.raises(ConfigError, match="object has no num_envs"):
        RslRlEnvironment(object())
    with pytest.raises(ConfigError, match="no 'actor', the environment has policy"):
        RslRlEnvironment(Runner(2), observation_groups=["actor"])
    with pytest.raises(ConfigError, match="action_bound must be positive"):
        RslRlEnvironment(Runner(2), action_bound=0.0)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda o, r, d, e: (o, r, d, d, e), "got 5 parts"),
        (
            lambda o, r, d, e: (o, r[:1], d, e),
            "rewards must be a tensor of num_envs = 2",
        ),
        (lambda o, r, d, e: (o, r, [0, 0], e), "dones must be a tensor"),
        (lambda o, r, d, e: (o, r, d, None), "extras must be a dict"),
        (lambda o, r, d, e: (o["policy"], r, d, e), "observation: "),
        (
            lambda o, r, d, e: ({**o, "policy": o["policy"].long()}, r, d, e),
            r"observation\['policy'\] was .* at first, now it is torch.int64",
        ),
        (
            lambda o, r, d, e: (o, r, d, {**e, "time_outs": d[:1]}),
            r"extras\['time_outs'\] must be a tensor of num_envs = 2",
        ),
        (
            lambda o, r, d, e: (o, r, d, {**e, "final_obs": {"policy": r[:, None]}}),
            r"extras\['final_obs'\]",
        ),
    ],
)
def test_what_is_wrong_is_said_at_the_first_step(result, message):
    env = RslRlEnvironment(
        broken(step=lambda self, actions: result(*Runner.step(self, actions)))
    )
    env.reset(0)
    with pytest.raises(EnvError, match=message):
        env.step(torch.zeros(2, 1))


def test_without_reset_and_seed_it_begins_once(caplog):
    class Minimal:
        num_envs, num_actions, device = 2, 1, "cpu"

        def get_observations(self):
            return torch.zeros(2, 3)

        def step(self, actions):
            ends = torch.zeros(2, dtype=torch.long)
            return torch.ones(2, 3), torch.ones(2), ends, {"time_outs": ends}

    env = RslRlEnvironment(Minimal(), seed=0)
    env.reset()
    assert "Minimal has no seed()" in caplog.text
    assert env.step(torch.zeros(2, 1)).reward.tolist() == [1, 1]
    with pytest.raises(EnvError, match="has no reset"):
        env.reset()
