"""What the training loop writes to TensorBoard and to the logs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.policies.evaluator import EvalResult
from alf_lite.runs.curves import settings_in
from alf_lite.runs.directory import OPERATIVE_CONFIG, USER_CONFIG
from alf_lite.trainers.progress_measures import SpeedMeter
from alf_lite.utils import summary
from alf_lite.utils.row_log import EPISODES

# ALF's name -> the name that tools for comparing libraries look for.
_CHARTS = {
    "AverageReturn": "charts/episodic_return",
    "AverageEpisodeLength": "charts/episodic_length",
}


# Of the first interval: whoever asks for a summary once in a million iterations does
# not want a million of them.
_MOST_FIRST_SUMMARIES = 100

# Of no interest beside other runs.
_NOT_COMPARED = (".root_dir", ".random_seed")


def is_due(iteration: int, config: TrainerConfig) -> bool:
    """Whether the iteration (the first is 1) is summarised."""
    interval = config.summary_interval
    first = min(interval, _MOST_FIRST_SUMMARIES) * config.summarize_first_interval
    return iteration <= first or iteration % interval == 0


def axis(config: TrainerConfig) -> summary.Axis:
    """What the curves of a run are drawn over."""
    if config.summary_axis is not None:
        return config.summary_axis
    # Updates without a step in the environment would be one point.
    return "iterations" if config.rl_train_after_update_steps else "env_steps"


def summarize_iteration(
    algorithm: RLAlgorithm, speed: SpeedMeter, iteration_seconds: float
) -> None:
    """Writes the metrics on all three axes, and the speed."""
    if not summary.should_record():
        return
    summarize_metrics(algorithm)
    env_steps = algorithm.num_env_steps
    summary.scalar("time/env_steps_per_second", speed.measure(env_steps))
    summary.scalar("time/iteration", iteration_seconds)


def summarize_metrics(algorithm: RLAlgorithm) -> None:
    """Writes every metric against environment steps, iterations and episodes."""
    results = algorithm.metrics.results()
    axes = {
        f"Metrics_vs_{name}": int(results[name])
        for name in ("EnvironmentSteps", "NumberOfEpisodes")
    }
    axes["Metrics_vs_Iterations"] = algorithm.progress.global_counter
    for name, value in results.items():
        summary.scalar(f"Metrics/{name}", value)
        for group, step in axes.items():
            if group != f"Metrics_vs_{name}":
                summary.scalar_at(f"{group}/{name}", value, step)
    charts = {"AverageReturn": average_return(algorithm)}
    charts["AverageEpisodeLength"] = results.get("AverageEpisodeLength", math.nan)
    for name, tag in _CHARTS.items():
        if not math.isnan(charts[name]):
            summary.scalar_at(tag, charts[name], axes["Metrics_vs_EnvironmentSteps"])


def losses_in(row: Mapping[str, Any], name: str) -> dict[str, float]:
    """``loss`` and its parts, of a row of summaries.

    Those on recorded steps if there are no others, and else ``loss_offline`` beside
    them.

    Args:
        row: tag -> number, and where the run was.
        name: of the algorithm.
    """
    own, offline = _below(row, f"{name}/loss"), _below(row, f"{name}/loss_offline")
    if own and offline:
        return {**own, "loss_offline": offline["loss"]}
    return own or offline


def _below(row: Mapping[str, Any], tag: str) -> dict[str, float]:
    return {
        "loss" if key == tag else key.removeprefix(f"{tag}/"): value
        for key, value in row.items()
        if key == tag or key.startswith(f"{tag}/")
    }


def average_return(algorithm: RLAlgorithm) -> float:
    """Mean return of the latest training episodes; NaN if none has ended.

    For a reward of several dimensions it is their weighted sum. Two sides that are
    played in turn have no common return: NaN.
    """
    metrics = {metric.name: metric for metric in algorithm.get_metrics()}
    if "AverageReturn" not in metrics:
        return math.nan
    result = np.asarray(metrics["AverageReturn"].result())
    if algorithm.reward_weights is not None:
        return float(result @ algorithm.reward_weights.double().cpu().numpy())
    return float(result)


def summarize_evaluation(result: EvalResult, seconds: float) -> None:
    """Writes what the episodes say, and a row for each of them."""
    for name, value in result._replace(losses={}).numbers.items():
        summary.scalar(f"eval/{name}", value)
        summary.scalar_at(f"eval_vs_EnvironmentSteps/{name}", value, result.env_steps)
        summary.scalar_at(f"eval_vs_Iterations/{name}", value, result.iterations)
    summary.scalar("time/evaluate", seconds)
    summary.rows(EPISODES, _episode_rows(result))
    if result.video is not None:
        summary.gif("eval/episodes", result.video.gif, result.video.gif_size)


def _episode_rows(result: EvalResult) -> Iterator[dict[str, Any]]:
    """One for each episode: its return and length, and what env_info told."""
    for index, episode in enumerate(result.episodes):
        vector = episode.return_vector or []
        yield {
            "episode": index,
            "return": episode.episode_return,
            "length": episode.length,
            "environment": episode.environment,
            "number": episode.number,
            "seed": episode.seed,
            **{f"return/{d}": value for d, value in enumerate(vector)},
            **{f"EnvInfo/{name}": value for name, value in episode.info.items()},
            **episode.metrics,
            **({} if episode.game is None else episode.game._asdict()),
        }


def summarize_config(texts: Mapping[str, str], config: TrainerConfig) -> None:
    """Writes the texts of the configuration, shown as code, and the table of runs."""
    found = settings_in(texts[OPERATIVE_CONFIG], texts[USER_CONFIG])
    # TensorBoard shows the first five: the command line is the end of what was given.
    given = reversed(settings_in("", texts[USER_CONFIG]))
    settings = {
        name: found[name]
        for name in (*given, *found)
        if found[name] is not None and not name.endswith(_NOT_COMPARED)
    }
    results = [*_CHARTS.values(), *(["eval/AverageReturn"] if config.evaluate else [])]
    summary.hparams(settings, results)
    for name, text in texts.items():
        # TensorBoard renders Markdown; four spaces make it code.
        summary.text(
            f"config/{name}", "".join(f"    {line}\n" for line in text.split("\n"))
        )
