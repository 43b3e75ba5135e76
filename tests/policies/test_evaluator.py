"""Tests of alf_lite.policies.evaluator."""

from __future__ import annotations

import functools
from unittest import mock

import numpy as np
import pytest
import torch

from alf_lite.environments import create_environment
from alf_lite.policies.evaluator import bootstrap_ci95, evaluate, quotas
from alf_lite.utils import random_state, summary
from tests.environments.light_environments import StepsCounted
from tests.trainers.toys import NoiseEnvironment, ScriptedEnvironment, ToyAlgorithm


def algorithm_for(env, **kwargs) -> ToyAlgorithm:
    random_state.seed_everything(0)
    return ToyAlgorithm(
        env.observation_spec, env.action_spec, reward_spec=env.reward_spec, **kwargs
    )


def run(env, num_episodes, **kwargs):
    return evaluate(algorithm_for(env), env, num_episodes, **kwargs)


@pytest.mark.parametrize(
    ("num_environments", "num_episodes", "expected"),
    [
        (5, 12, [3, 3, 2, 2, 2]),
        (2, 3, [2, 1]),
        (3, 2, [1, 1, 0]),
        (1, 4, [4]),
        (4, 4, [1] * 4),
    ],
)
def test_quotas_are_as_even_as_possible(num_environments, num_episodes, expected):
    assert quotas(num_environments, num_episodes).tolist() == expected


@pytest.mark.parametrize("number", [0, -1, 2.5, "2", None, True])
def test_what_is_no_number_of_episodes_is_refused(number):
    with pytest.raises(ValueError, match=f"at least 1, got {number!r}"):
        quotas(3, number)


def test_short_episodes_do_not_crowd_out_a_long_one():
    env = ScriptedEnvironment([lambda i: (1, i + 1), lambda i: (5, 100)])
    result = run(env, 3)
    assert result.returns == [1, 2, 100]
    assert result.mean == pytest.approx(34.333333, abs=1e-6)
    assert result.lengths == [1, 1, 5]
    assert result.num_env_steps == 7
    assert env.num_step_calls == 5


def test_every_episode_is_told_one_by_one():
    env = ScriptedEnvironment([lambda i: (1, i + 1), lambda i: (5, 100)])
    result = run(env, 3, seed=7)
    assert [tuple(episode)[:5] for episode in result.episodes] == [
        (0, 0, 7, 1.0, 1),
        (0, 1, 7, 2.0, 1),
        (1, 0, 7, 100.0, 5),
    ]
    assert result.episodes[2].info == {"mean/height": 30.0, "last/height": 50.0}


def test_slow_environment_contributes_its_share():
    fast, slow = (lambda i: (1, 1)), (lambda i: (100, 0))
    result = run(ScriptedEnvironment([fast] * 4 + [slow]), 12)
    assert result.mean == pytest.approx(0.833333, abs=1e-6)
    assert result.num_env_steps == 210


def test_fewer_episodes_than_environments_use_the_first_ones():
    env = ScriptedEnvironment([lambda i, b=b: (2, b) for b in range(4)])
    assert run(env, 2).returns == [0, 1]


def test_statistics_of_the_returns():
    env = ScriptedEnvironment([lambda i: (i + 1, [3.0, 1.0, 8.0][i])])
    result = run(env, 3)
    assert result.returns == [3, 1, 8]
    assert (result.mean, result.min, result.max) == (4, 1, 8)
    assert result.std == pytest.approx(np.sqrt(26 / 3))
    assert result.mean_length == 2
    low, high = result.ci95
    assert 1 <= low < 4 < high <= 8


def test_env_info_is_averaged_over_episodes():
    env = ScriptedEnvironment([lambda i: ([2, 4][i], 0.0)])
    # Heights 10, 20 in the first episode and 10, 20, 30, 40 in the second.
    result = run(env, 2)
    assert result.info == {
        "mean/height": pytest.approx((15 + 25) / 2),
        "last/height": pytest.approx((20 + 40) / 2),
    }


def test_reward_of_several_dimensions_is_weighted():
    env = ScriptedEnvironment([lambda i: (2, [1.0, 10.0])], reward_dims=2)
    algorithm = algorithm_for(env, reward_weights=[2.0, 0.5])
    result = evaluate(algorithm, env, 2)
    assert result.returns == [7, 7]
    assert result.return_vectors == [[1, 10], [1, 10]]
    assert result.episodes[1].return_vector == [1, 10]
    assert result.episodes[1].episode_return == 7


def test_every_time_step_is_shown_to_a_recorder():
    env = ScriptedEnvironment([lambda i: (2, 1)])
    seen = []
    run(env, 2, on_step=lambda t: seen.append(int(t.step_type[0])))
    assert seen == [0, 1, 2, 0, 1, 2]


def test_same_seed_same_episodes_and_another_seed_others():
    env = NoiseEnvironment(3)
    algorithm = algorithm_for(env)
    first = evaluate(algorithm, env, 10, seed=1)
    assert evaluate(algorithm, env, 10, seed=1) == first
    assert evaluate(algorithm, env, 10, seed=2) != first


@pytest.mark.parametrize(
    ("mode", "num_episodes"), [("sync", 7), ("sync", 2), ("async", 7)]
)
def test_only_steps_that_count_are_taken(mode, num_episodes, tmp_path):
    path = tmp_path / "steps"
    path.touch()
    with create_environment(
        env_ctor=functools.partial(StepsCounted, path),
        num_parallel_environments=3,
        vectorization_mode=mode,
        env_info_keys=["left"],
    ) as env:
        algorithm = algorithm_for(env)
        first = evaluate(algorithm, env, num_episodes, seed=1)
        assert path.stat().st_size == first.num_env_steps
        with mock.patch.object(env, "freeze"):  # as where it cannot be had
            assert evaluate(algorithm, env, num_episodes, seed=1) == first
        # The next evaluation wakes all of them.
        evaluate(algorithm, env, 3, seed=2)
    assert path.stat().st_size > 2 * first.num_env_steps


def draw() -> tuple[float, float]:
    return float(torch.rand(())), float(np.random.rand())  # noqa: NPY002


def test_nothing_of_training_changes(tmp_path):
    env = NoiseEnvironment(2)
    algorithm = algorithm_for(env)
    algorithm.train()
    algorithm._policy[1].eval()
    modes = [module.training for module in algorithm.modules()]
    parameters = {k: v.clone() for k, v in algorithm.state_dict().items()}
    random_state.seed_everything(3)
    expected = draw()
    random_state.seed_everything(3)
    with summary.writer_to(tmp_path):
        assert summary.should_record()
        evaluate(algorithm, env, 5, seed=7)
        assert summary.should_record()
    assert algorithm.recorded_in_predict_step == {False}
    assert draw() == expected
    assert [module.training for module in algorithm.modules()] == modes
    for key, value in parameters.items():
        assert torch.equal(algorithm.state_dict()[key], value)


def test_modules_act_in_eval_mode_and_recover_after_an_error():
    env = ScriptedEnvironment([lambda i: (3, 1)])
    algorithm = algorithm_for(env)
    algorithm.train()

    def stop(time_step) -> None:
        assert not algorithm._policy[0].training
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        evaluate(algorithm, env, 1, on_step=stop)
    assert algorithm.training
    assert algorithm._policy[0].training


def test_recurrent_state_starts_at_zero_in_every_episode():
    env = ScriptedEnvironment([lambda i: (2, 1), lambda i: (3, 1)])
    algorithm = algorithm_for(env)
    states = []

    def count_steps(inputs, state):
        states.append(state.tolist())
        step = algorithm.rollout_step(inputs, ())
        return step._replace(state=state + 1)

    algorithm.predict_step = count_steps
    algorithm.get_initial_predict_state = lambda batch_size: torch.zeros(batch_size)
    evaluate(algorithm, env, 4)
    column = [state[0] for state in states]
    assert column[:6] == [0, 1, 2, 0, 1, 2]
    assert [state[1] for state in states][:6] == [0, 1, 2, 3, 0, 1]


def test_an_episode_without_an_end_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr("alf_lite.policies.evaluator._MANY_STEPS", 20)
    run(ScriptedEnvironment([lambda i: (15, 1), lambda i: (20, 1)]), 6)
    assert not caplog.messages
    lengths = [lambda i: (7, 1), lambda i: (3 if i == 0 else 70, 1)]
    run(ScriptedEnvironment(lengths), 4)
    (message,) = caplog.messages
    assert "Environment 1 of " in message
    assert "was stepped 20 times without the end" in message
    assert "create_environment(..., max_episode_steps=...)" in message


def test_confidence_interval_covers_the_mean_at_its_nominal_rate():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        low, high = bootstrap_ci95(generator.normal(3.0, 2.0, size=50))
        covered += low <= 3.0 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_confidence_interval_is_reproducible_and_absent_for_one_episode():
    values = [1.0, 5.0, 9.0]
    assert bootstrap_ci95(values) == bootstrap_ci95(values)
    assert bootstrap_ci95([2.0, 2.0]) == (2.0, 2.0)
    assert bootstrap_ci95([1.0]) is None
