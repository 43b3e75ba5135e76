"""What the training loop writes to TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from alf_lite import nest
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.nest import path_parts
from alf_lite.trainers.evaluator import EvalResult
from alf_lite.trainers.progress_display import SpeedMeter
from alf_lite.utils import summary

# ALF's name -> the name that tools for comparing libraries look for.
_CHARTS = {
    "AverageReturn": "charts/episodic_return",
    "AverageEpisodeLength": "charts/episodic_length",
}


def is_due(iteration: int, config: TrainerConfig) -> bool:
    """Whether the iteration (the first is 1) is summarised."""
    if config.summarize_first_interval and iteration <= config.summary_interval:
        return True
    return iteration % config.summary_interval == 0


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
    """Writes every metric against iterations, environment steps and episodes."""
    results = metric_results(algorithm)
    axes = {
        f"Metrics_vs_{name}": int(results[name])
        for name in ("EnvironmentSteps", "NumberOfEpisodes")
    }
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


def metric_results(algorithm: RLAlgorithm) -> dict[str, float]:
    """All numbers that there are by now, such as ``AverageEnvInfo/last/success``."""
    named = {
        "/".join((metric.name, *path_parts(path))): value
        for metric in algorithm.get_metrics()
        for path, value in nest.flatten_with_path(metric.result())
    }
    return {name: value for name, value in named.items() if not math.isnan(value)}


def average_return(algorithm: RLAlgorithm) -> float:
    """Mean return of the latest training episodes; NaN if none has ended.

    For a reward of several dimensions it is their weighted sum.
    """
    metrics = {metric.name: metric for metric in algorithm.get_metrics()}
    result = np.asarray(metrics["AverageReturn"].result())
    if algorithm.reward_weights is not None:
        return float(result @ algorithm.reward_weights.double().cpu().numpy())
    return float(result)


def summarize_evaluation(result: EvalResult, seconds: float) -> None:
    """Writes what the episodes say, against iterations and environment steps."""
    for name, value in result._replace(losses={}).numbers.items():
        summary.scalar_at(f"eval/{name}", value, result.iterations)
        summary.scalar_at(f"eval_vs_EnvironmentSteps/{name}", value, result.env_steps)
    summary.scalar("time/evaluate", seconds)


def summarize_config(texts: Mapping[str, str]) -> None:
    """Writes the texts of the configuration, shown as code."""
    for name, text in texts.items():
        # TensorBoard renders Markdown; four spaces make it code.
        summary.text(
            f"config/{name}", "".join(f"    {line}\n" for line in text.split("\n"))
        )
