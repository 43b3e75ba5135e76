"""How much is collected, by whom, and what is kept of it."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from alf_lite.data_structures import TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.testing.masked_environment import ForbiddenActionEnv
from alf_lite.testing.structured_environments import CountingEnv
from alf_lite.tools import collector
from alf_lite.tools.collector import (
    EpsilonGreedyPolicy,
    NumEpisodes,
    NumSteps,
    RandomPolicy,
    ScriptedPolicy,
    collect,
    import_function,
)
from tests.datasets.recorded_episodes import make_env, nested_env, rows
from tests.trainers.toys import ScriptedEnvironment

F, M, L = 0, 1, 2


def counting_env(num: int = 1, **kwargs):
    return create_environment(
        env_ctor=lambda: CountingEnv(**kwargs), num_parallel_environments=num
    )


def step_types(buffer) -> list[list[int]]:
    return [
        rows(buffer, e).time_step.step_type.tolist() if buffer.sizes[e] else []
        for e in range(buffer.num_environments)
    ]


def parity(time_step: TimeStep) -> torch.Tensor:
    """Acts 1 at odd observations."""
    return time_step.observation[:, 0].long() % 2


def run(env, amount, function=parity, **kwargs):
    return collect(env, ScriptedPolicy(function, "f", env), amount, **kwargs)


@pytest.mark.parametrize(
    ("num_env_steps", "expected"),
    [
        (1, [[F, M], []]),
        (2, [[F, M], [F, M]]),
        (5, [[F, M, M, L], [F, M, M]]),
        (6, [[F, M, M, L], [F, M, M, L]]),
        # The FIRST steps are no environment steps, and the last of them leads nowhere.
        (7, [[F, M, M, L, F, M], [F, M, M, L]]),
    ],
)
def test_exactly_so_many_steps_of_all_environments_are_kept(num_env_steps, expected):
    buffer = run(counting_env(2), NumSteps(num_env_steps))
    assert step_types(buffer) == expected


@pytest.mark.parametrize(
    ("num_env_steps", "expected"),
    [
        (1, [[F, M, M, L], [F, M, M, L]]),
        (6, [[F, M, M, L], [F, M, M, L]]),
        (7, [[F, M, M, L, F, M, M, L], [F, M, M, L, F, M, M, L]]),
    ],
)
def test_episodes_are_completed_on_demand(num_env_steps, expected):
    buffer = run(counting_env(2), NumSteps(num_env_steps, whole_episodes=True))
    assert step_types(buffer) == expected


def test_every_environment_contributes_its_first_episodes():
    env = ScriptedEnvironment(
        [lambda i: (1, 0.0), lambda i: (4, 0.0), lambda i: (2, 0)]
    )
    buffer = run(env, NumEpisodes(4), lambda time_step: torch.zeros(3).long())
    assert step_types(buffer) == [[F, L, F, L], [F, M, M, M, L], [F, M, L]]


def test_fewer_episodes_than_environments():
    buffer = run(counting_env(3), NumEpisodes(2))
    assert step_types(buffer) == [[F, M, M, L], [F, M, M, L], []]


@pytest.mark.parametrize("chunk_length", [1, 2, 3, 1000])
def test_steps_are_kept_as_they_came_with_what_was_done(monkeypatch, chunk_length):
    monkeypatch.setattr(collector, "_CHUNK_LENGTH", chunk_length)
    env = counting_env(2, episode_lengths=(3, 2), reward_is_time=True)
    buffer = run(env, NumSteps(11))
    steps = rows(buffer, 0)
    time_step = steps.time_step
    assert time_step.observation[:, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 200, 201]
    assert time_step.step_type.tolist() == [F, M, M, L, F, M, L, F, M]
    assert time_step.reward.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1]
    assert time_step.discount.tolist() == [1, 1, 1, 0, 1, 1, 0, 1, 1]
    # Nothing counts at LAST, whose observation 3 is odd, and at the newest step.
    assert steps.action.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert time_step.prev_action.tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    second = rows(buffer, 1).time_step
    assert second.observation[:, 0].tolist() == [0, 1, 2, 3, 100, 101, 102]


class StubbornEnvironment(ScriptedEnvironment):
    """Says that action 1 was executed, whatever it is given."""

    def step(self, action):
        time_step = super().step(action)
        executed = torch.where(time_step.is_first(), 0, 1)
        return time_step._replace(prev_action=executed)


@pytest.mark.parametrize(
    ("overwrite", "expected"), [(False, [0, 0, 0, 0]), (True, [1, 1, 1, 0])]
)
def test_the_executed_action_is_kept_on_demand(overwrite, expected):
    env = StubbornEnvironment([lambda episode: (3, 0.0)])
    buffer = run(
        env,
        NumEpisodes(1),
        lambda time_step: torch.zeros(1).long(),
        overwrite_policy_output=overwrite,
    )
    assert rows(buffer).action.tolist() == expected


def test_same_seed_same_steps_and_nothing_drawn_from_others():
    env = create_environment("CartPole-v1", num_parallel_environments=2)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, second, other = (
        rows(collect(env, RandomPolicy(env), NumSteps(50), seed=seed), 1)
        for seed in (7, 7, 8)
    )
    assert torch.rand(1) == expected
    assert (first.time_step.observation == second.time_step.observation).all()
    assert (first.action == second.action).all()
    assert first.time_step.observation[0].tolist() != (
        other.time_step.observation[0].tolist()
    )


def test_random_actions_fill_the_spec():
    env = nested_env()
    policy = RandomPolicy(env)
    actions = [policy.act(TimeStep()) for _ in range(200)]
    gears = {int(action["gear"]) for action in actions}
    force = torch.cat([action["force"] for action in actions])
    assert gears == {0, 1, 2}
    assert -1 <= force.min() < -0.9
    assert 0.9 < force.max() <= 1


def test_random_actions_are_those_that_the_mask_allows():
    env = create_environment(env_ctor=ForbiddenActionEnv, num_parallel_environments=2)
    steps = rows(collect(env, RandomPolicy(env), NumSteps(100)), 0)
    rewards = steps.time_step.reward
    assert len(rewards) > 40
    assert (rewards >= 0).all()  # -100 for a forbidden one


def test_what_is_no_mask_of_the_actions_is_not_heeded_and_that_is_said(caplog):
    spaces = gymnasium.spaces
    env = make_env(
        spaces.Dict({"action_mask": spaces.MultiBinary(3)}), spaces.Discrete(2)
    )
    actions = [int(RandomPolicy(env).act(TimeStep())) for _ in range(30)]
    assert set(actions) == {0, 1}
    assert "do not heed observation['action_mask']: " in caplog.text


def test_epsilon_is_the_probability_of_a_random_action():
    env = counting_env(400)
    time_step = env.reset(0)
    scripted = ScriptedPolicy(lambda ts: torch.ones(400).long(), "f", env)
    torch.manual_seed(0)
    zeros = [
        int((EpsilonGreedyPolicy(scripted, epsilon, env).act(time_step) == 0).sum())
        for epsilon in (0.0, 0.5, 1.0)
    ]
    assert zeros[0] == 0
    assert 60 < zeros[1] < 140  # half of the random ones are 0, too: 100 ± 5 σ
    assert 150 < zeros[2] < 250


def test_arrays_are_actions_too():
    env = counting_env(2)
    buffer = run(env, NumSteps(2), lambda time_step: np.array([1, 0]))
    assert [rows(buffer, e).action.tolist() for e in (0, 1)] == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.zeros(3).long(), r"expected shape \(2,\).*got \(3,\)"),
        (torch.zeros(2), "expected integers"),
        (torch.tensor([0, 2]), "expected integers between 0 and 1, got 2"),
        (torch.tensor([-1, 0]), "expected integers between 0 and 1, got -1"),
        ({"a": torch.zeros(2).long()}, "f returned no action of"),
        ("left", "f returned no action of"),
    ],
)
def test_what_is_no_action_is_an_error_that_names_the_function(action, message):
    with pytest.raises(ConfigError, match=message):
        run(counting_env(2), NumSteps(1), lambda time_step: action)


def test_actions_in_units_of_the_environment_are_warned_of_once(caplog):
    env = create_environment(env_name="Pendulum-v1", num_parallel_environments=2)
    torques = [torch.full((2, 1), 1.0), torch.full((2, 1), -2.0)]
    run(env, NumSteps(2), lambda time_step: torques[0])
    assert "expected actions" not in caplog.text
    run(env, NumSteps(6), lambda time_step: torques[1])
    warned = [r for r in caplog.records if "expected actions" in r.getMessage()]
    assert len(warned) == 1
    assert "f: expected actions between -1.0 and 1.0, got -2.0" in caplog.text


def test_a_function_may_change_what_it_is_given():
    def zero(time_step):
        time_step.observation.zero_()
        return time_step.step_type.long() * 0

    buffer = run(counting_env(), NumSteps(2), zero)
    assert rows(buffer).time_step.observation[:, 0].tolist() == [0, 1, 2]


def test_functions_and_classes_are_imported_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_controllers.py").write_text(
        "def swing(time_step): return 1\n"
        "class Controller:\n"
        "    def __call__(self, time_step): return 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert import_function("my_controllers:swing")(TimeStep()) == 1
    assert import_function("my_controllers:Controller")(TimeStep()) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("greedy", "expected random or module:function"),
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("math:no_such_function", "cannot be imported.*no_such_function"),
        ("math:pi", "is a float, no function"),
    ],
)
def test_a_policy_that_there_is_not_is_an_error(name, message):
    with pytest.raises(ConfigError, match=message):
        import_function(name)
