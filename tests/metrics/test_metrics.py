"""Each metric is the number that its name says, on an episode computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from alf_lite.data_structures import TimeStep
from alf_lite.metrics.metrics import MetricSet, create_metrics
from alf_lite.tensor_specs import TensorSpec

FIRST, MID, LAST = 0, 1, 2
NAMES = [
    "NumberOfEpisodes",
    "EnvironmentSteps",
    "AverageReturn",
    "AverageEpisodeLength",
    "AverageEnvInfo",
    "AverageDiscountedReturn",
    "AverageReward",
    "EpisodicStartAverageDiscountedReturn",
]


def make_metrics(reward_shape=(), env_info_spec=(), buffer_size=10, gamma=0.5):
    return create_metrics(
        TensorSpec(reward_shape), env_info_spec, 1, buffer_size, gamma
    )


def episode(rewards, env_info=()):
    """One environment, [L + 1, 1]."""
    length = len(rewards)
    return TimeStep(
        step_type=torch.tensor([FIRST, *[MID] * (length - 1), LAST]).unsqueeze(1),
        reward=torch.tensor([0.0, *rewards]).unsqueeze(1),
        discount=torch.tensor([1.0] * length + [0.0]).unsqueeze(1),
        env_id=torch.zeros(length + 1, 1, dtype=torch.int32),
        env_info=env_info,
    )


def result(metrics, name):
    return metrics[NAMES.index(name)].result()


def test_there_are_eight_in_this_order():
    metrics = make_metrics()
    assert isinstance(metrics, MetricSet)
    assert [m.name for m in metrics] == NAMES
    assert [type(m).__name__ for m in metrics] == NAMES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NumberOfEpisodes", 1),
        ("EnvironmentSteps", 3),
        ("AverageReturn", 13.0),
        ("AverageEpisodeLength", 3.0),
        ("AverageEnvInfo", ()),
        # γ = 1/2: G_2 = 8, G_1 = 4 + 4 = 8, G_0 = 1 + 4 = 5
        ("AverageDiscountedReturn", 7.0),
        ("AverageReward", 13 / 3),
        ("EpisodicStartAverageDiscountedReturn", 5.0),
    ],
)
def test_one_episode_by_hand(name, expected):
    metrics = make_metrics()
    metrics.observe(episode([1.0, 4.0, 8.0]))
    assert result(metrics, name) == pytest.approx(expected)


def test_episodes_count_once_each_whatever_their_length():
    metrics = make_metrics()
    metrics.observe(episode([1.0]))
    metrics.observe(episode([2.0, 2.0, 2.0]))
    assert result(metrics, "AverageReturn") == pytest.approx((1 + 6) / 2)
    assert result(metrics, "AverageReward") == pytest.approx((1 + 2) / 2)
    assert result(metrics, "AverageEpisodeLength") == 2.0


def test_only_the_last_episodes_count():
    metrics = make_metrics(buffer_size=2)
    for reward in (100.0, 1.0, 3.0):
        metrics.observe(episode([reward]))
    assert result(metrics, "AverageReturn") == 2.0
    assert result(metrics, "NumberOfEpisodes") == 3


def test_env_info_has_mean_and_last_value():
    info = {
        "speed": torch.tensor([[9.0], [1.0], [2.0], [6.0]]),
        "won": torch.tensor([[False], [False], [False], [True]]),
    }
    spec = {"speed": TensorSpec(()), "won": TensorSpec((), torch.bool)}
    metrics = make_metrics(env_info_spec=spec)
    metrics.observe(episode([1.0, 1.0, 1.0], env_info=info))
    assert result(metrics, "AverageEnvInfo") == {
        "mean": {"speed": pytest.approx(3.0), "won": pytest.approx(1 / 3)},
        "last": {"speed": 6.0, "won": 1.0},
    }
    assert metrics.results()["AverageEnvInfo/last/won"] == 1.0


def test_rewards_of_several_dimensions_give_lists():
    metrics = make_metrics(reward_shape=(2,))
    steps = episode([0.0, 0.0])._replace(
        reward=torch.tensor([[[0.0, 0.0]], [[1.0, 10.0]], [[2.0, 20.0]]])
    )
    metrics.observe(steps)
    assert result(metrics, "AverageReturn") == [3.0, 30.0]
    assert result(metrics, "EpisodicStartAverageDiscountedReturn") == [2.0, 20.0]
    assert metrics.results()["AverageReturn/1"] == 30.0


def test_averages_are_nan_and_left_out_until_an_episode_has_ended():
    metrics = make_metrics()
    assert math.isnan(result(metrics, "AverageReturn"))
    assert metrics.results() == {"NumberOfEpisodes": 0, "EnvironmentSteps": 0}


def test_a_reset_set_starts_anew():
    metrics = make_metrics()
    metrics.observe(episode([1.0, 2.0]))
    metrics.reset()
    assert metrics.results() == {"NumberOfEpisodes": 0, "EnvironmentSteps": 0}


def test_a_restored_set_has_the_same_results():
    metrics, restored = make_metrics(), make_metrics()
    metrics.observe(episode([1.0, 2.0]))
    restored.load_state_dict(metrics.state_dict())
    assert restored.results() == metrics.results()
    assert {type(v) for v in metrics.results().values()} == {int, float}
