"""Tests of alf_lite.trainers.train_summaries: what the curves hold."""

from __future__ import annotations

import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from alf_lite.config import TrainerConfig
from alf_lite.trainers import train_summaries
from tests.trainers.conftest import build_trainer
from tests.trainers.toys import ScriptedEnvironment, ToyAlgorithm


@pytest.mark.parametrize(
    ("interval", "first", "expected"),
    [
        (3, True, [1, 2, 3, 6, 9]),
        (3, False, [3, 6, 9]),
        (1, False, list(range(1, 11))),
        (100, False, []),
    ],
)
def test_summary_interval(interval, first, expected):
    config = TrainerConfig(
        num_iterations=10, summary_interval=interval, summarize_first_interval=first
    )
    due = [i for i in range(1, 11) if train_summaries.is_due(i, config)]
    assert due == expected


def test_first_interval_ends_after_a_hundred_summaries():
    config = TrainerConfig(num_iterations=10, summary_interval=250)
    due = [i for i in range(1, 751) if train_summaries.is_due(i, config)]
    assert due == [*range(1, 101), 250, 500, 750]


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    root_dir = tmp_path_factory.mktemp("summaries")
    build_trainer(
        root_dir,
        num_iterations=6,
        summary_interval=3,
        evaluate=True,
        eval_interval=3,
        num_eval_episodes=2,
    ).train()
    accumulator = EventAccumulator(str(root_dir / "train"))
    accumulator.Reload()
    return accumulator


def points(accumulator: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_metrics_are_drawn_over_three_axes(curves):
    iterations = points(curves, "Metrics_vs_Iterations/AverageReturn")
    env_steps = points(curves, "Metrics_vs_Iterations/EnvironmentSteps")
    episodes = points(curves, "Metrics_vs_Iterations/NumberOfEpisodes")
    assert [step for step, _ in env_steps] == [1, 2, 3, 6]
    returns = dict(iterations)
    over_env_steps = [
        (int(x), returns[step]) for step, x in env_steps if step in returns
    ]
    assert points(curves, "Metrics_vs_EnvironmentSteps/AverageReturn") == over_env_steps
    assert points(curves, "Metrics/AverageReturn") == over_env_steps
    assert points(curves, "Metrics_vs_NumberOfEpisodes/AverageReturn")[-1] == (
        int(episodes[-1][1]),
        returns[6],
    )
    assert (
        "Metrics_vs_EnvironmentSteps/EnvironmentSteps" not in curves.Tags()["scalars"]
    )


def test_iterations_may_be_the_axis_and_are_where_there_are_no_steps(tmp_path):
    build_trainer(tmp_path, num_iterations=3, summary_axis="iterations").train()
    curves = EventAccumulator(str(tmp_path / "train")).Reload()
    for tag in ("Metrics/EnvironmentSteps", "ToyAlgorithm/loss"):
        assert [step for step, _ in points(curves, tag)] == [1, 2]
    offline = TrainerConfig(
        num_iterations=9, rl_train_after_update_steps=9, offline_buffer_dir="data"
    )
    assert train_summaries.axis(offline) == "iterations"
    assert train_summaries.axis(TrainerConfig(num_iterations=9)) == "env_steps"


class NumbersInExtra(ToyAlgorithm):
    def calc_loss(self, info):
        return super().calc_loss(info)._replace(extra={"weight": 2.5, "count": 3})


def test_a_part_of_the_loss_may_be_a_number(tmp_path):
    build_trainer(tmp_path, algorithm_ctor=NumbersInExtra, num_iterations=1).train()
    curves = EventAccumulator(str(tmp_path / "train")).Reload()
    for name, expected in (("weight", 2.5), ("count", 3.0)):
        assert curves.Scalars(f"NumbersInExtra/loss/{name}")[0].value == expected


def test_charts_follow_environment_steps(curves):
    for chart, metric in (
        ("charts/episodic_return", "AverageReturn"),
        ("charts/episodic_length", "AverageEpisodeLength"),
    ):
        expected = points(curves, f"Metrics_vs_EnvironmentSteps/{metric}")
        assert points(curves, chart) == expected
        assert expected


def test_evaluations_losses_times_and_texts_are_there(curves):
    tags = curves.Tags()
    evaluations = points(curves, "eval_vs_Iterations/AverageReturn")
    assert [step for step, _ in evaluations] == [0, 3, 6]
    assert points(curves, "eval/AverageReturn") == points(
        curves, "eval_vs_EnvironmentSteps/AverageReturn"
    )
    assert {
        "eval/StdReturn",
        "eval/MinReturn",
        "eval/MaxReturn",
        "eval/AverageEpisodeLength",
        "eval_vs_EnvironmentSteps/AverageReturn",
        "ToyAlgorithm/loss",
        "time/iteration",
        "time/env_steps_per_second",
        "time/unroll",
        "time/train",
        "time/evaluate",
        "time/checkpoint",
    } <= set(tags["scalars"])
    assert {"config/user.gin/text_summary", "config/operative.gin/text_summary"} <= set(
        tags["tensors"]
    )
    assert all(value > 0 for _, value in points(curves, "time/env_steps_per_second"))


def test_settings_and_results_are_in_the_table_of_runs(tmp_path):
    build_trainer(tmp_path, evaluate=True, num_eval_episodes=1).train()
    found = {
        value.tag: value.metadata.plugin_data.content
        for path in (tmp_path / "train").iterdir()
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    }
    start = HParamsPluginData.FromString(found["_hparams_/session_start_info"])
    settings = start.session_start_info.hparams
    assert settings["TrainerConfig.unroll_length"].number_value == 5
    assert settings["TrainerConfig.evaluate"].string_value == "True"
    assert "TrainerConfig.random_seed" not in settings
    experiment = HParamsPluginData.FromString(found["_hparams_/experiment"]).experiment
    # Only the first five are shown: what was given, not all the defaults.
    first = [info.name for info in experiment.hparam_infos][:5]
    assert "TrainerConfig.num_eval_episodes" in first
    assert [info.name.tag for info in experiment.metric_infos] == [
        "charts/episodic_return",
        "charts/episodic_length",
        "eval/AverageReturn",
    ]


def test_text_of_the_config_is_shown_as_code(curves):
    (event,) = curves.Tensors("config/operative.gin/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    lines = text.splitlines()
    assert any("TrainerConfig.check_finite = True" in line for line in lines)
    assert all(line.startswith("    ") for line in lines)


def test_average_return_weights_the_dimensions_of_the_reward():
    env = ScriptedEnvironment([lambda i: (2, [1.0, 10.0])], reward_dims=2)
    algorithm = ToyAlgorithm(
        env.observation_spec,
        env.action_spec,
        reward_spec=env.reward_spec,
        reward_weights=[2.0, 0.5],
        env=env,
        config=TrainerConfig(num_iterations=1),
    )
    assert math.isnan(train_summaries.average_return(algorithm))
    algorithm.unroll(7)
    assert train_summaries.average_return(algorithm) == 7
    results = algorithm.metrics.results()
    assert results["AverageReturn/0"] == 1
    assert results["AverageReturn/1"] == 10
    assert results["AverageEnvInfo/last/height"] == 20


def test_the_losses_of_a_row_are_found_for_the_display():
    row = {"iteration": 3, "A/loss": 1.0, "A/loss/entropy": 0.5, "B/loss": 2.0}
    offline = {"A/loss_offline": 3.0, "A/loss_offline/q": 4.0}
    losses_in = train_summaries.losses_in
    assert losses_in(row, "A") == {"loss": 1.0, "entropy": 0.5}
    assert losses_in(offline, "A") == {"loss": 3.0, "q": 4.0}
    both = losses_in(row | offline, "A")
    assert both == {"loss": 1.0, "entropy": 0.5, "loss_offline": 3.0}
    assert losses_in({}, "A") == {}
