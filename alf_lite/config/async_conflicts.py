"""Which settings of asynchronous unrolls contradict each other."""

from __future__ import annotations

import dataclasses
from typing import Any

# What has a meaning only with async_unroll.
_ASYNC_FIELDS = (
    "num_unroll_workers",
    "max_unroll_length",
    "unroll_queue_size",
    "unroll_step_interval",
    "unroll_parameter_update_period",
    "max_policy_lag",
    "samples_per_insert",
    "max_worker_restarts",
    "worker_timeout_seconds",
)


def async_conflicts(config: Any) -> list[tuple[set[str], str]]:
    """The fields of every conflict, and what to do about it.

    Args:
        config: a TrainerConfig.
    """
    if not config.async_unroll:
        return _without_async(config)
    conflicts: list[tuple[set[str], str]] = []
    takes_what_is_there = config.unroll_length == 0
    if takes_what_is_there != (config.max_unroll_length > 0):
        conflicts.append(
            (
                {"unroll_length", "max_unroll_length"},
                "unroll_length = 0 takes whatever the workers have finished, at most "
                "max_unroll_length steps per environment and iteration: set both, or "
                "neither. They are "
                f"{config.unroll_length} and {config.max_unroll_length}.",
            )
        )
    if config.samples_per_insert is not None and not takes_what_is_there:
        conflicts.append(
            (
                {"samples_per_insert", "unroll_length"},
                f"samples_per_insert={config.samples_per_insert} decides how much is "
                f"unrolled per iteration, and so does unroll_length="
                f"{config.unroll_length}: set unroll_length = 0 and max_unroll_length,"
                " or leave samples_per_insert out.",
            )
        )
    if config.max_policy_lag is not None and takes_what_is_there:
        conflicts.append(
            (
                {"max_policy_lag", "unroll_length"},
                "max_policy_lag has the trainer wait for unrolls that would become too"
                " old, and unroll_length = 0 never waits: set one of them.",
            )
        )
    if config.unroll_with_grad:
        conflicts.append(
            (
                {"async_unroll", "unroll_with_grad"},
                "unroll_with_grad needs the graph of rollout_step, which stays in "
                "the worker with async_unroll: set one of them.",
            )
        )
    if config.max_policy_lag is not None and config.unroll_parameter_update_period > 1:
        conflicts.append(
            (
                {"max_policy_lag", "unroll_parameter_update_period"},
                "max_policy_lag needs new parameters in every iteration: leave "
                "unroll_parameter_update_period out.",
            )
        )
    return conflicts


def _without_async(config: Any) -> list[tuple[set[str], str]]:
    conflicts: list[tuple[set[str], str]] = [
        (
            {field.name},
            f"{field.name} is {getattr(config, field.name)!r} but async_unroll is "
            f"False: set async_unroll = True or leave {field.name} out.",
        )
        for field in dataclasses.fields(config)
        if field.name in _ASYNC_FIELDS and getattr(config, field.name) != field.default
    ]
    if config.unroll_length == 0:
        conflicts.append(
            (
                {"unroll_length"},
                "unroll_length: got 0, expected a value > 0. With async_unroll = True "
                "and a max_unroll_length, 0 takes whatever was collected meanwhile.",
            )
        )
    return conflicts
