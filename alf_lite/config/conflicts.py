"""Which settings of a run contradict each other, and what to do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import gin

# The fields that contradict each other, and what is to be said of it.
Conflict = tuple[set[str], str]

# Switch → what has a meaning only with it.
_NEEDS_SWITCH = {
    "async_unroll": (
        "unroll_engine",
        "num_unroll_workers",
        "max_unroll_length",
        "unroll_queue_size",
        "unroll_step_interval",
        "unroll_parameter_update_period",
        "max_policy_lag",
        "samples_per_insert",
        "max_worker_restarts",
        "worker_timeout_seconds",
    ),
    "offline_buffer_dir": (
        "offline_buffer_length",
        "rl_train_after_update_steps",
        "rl_train_every_update_steps",
        "mixing_ratios",
        "source_loss_weights",
    ),
    "evaluate": ("eval_interval", "early_stop_return", "async_eval"),
    "evaluation_buffer_dir": ("data_metrics",),
}


# Of the process of async_eval, too.
OF_ALL_PROCESSES = ("max_worker_restarts", "worker_timeout_seconds")


def conflicts(config: Any) -> Iterator[Conflict]:
    """All conflicts of a TrainerConfig.

    Fields of a wrong type may make some up; they are reported as such instead.
    """
    for find in (_unread, _updates, _engine, _unrolls, _replay, _offline, _evaluation):
        yield from find(config)


def _unread(config: Any) -> Iterator[Conflict]:
    """What was set and has no meaning without something else."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for switch, names in _NEEDS_SWITCH.items():
        if getattr(config, switch) or _is_switched_off(switch):
            continue
        for name in names:
            value = getattr(config, name)
            if name == "eval_interval" and config.evaluation_sources:
                continue
            if name in OF_ALL_PROCESSES and config.async_eval:
                continue
            if value != defaults[name]:
                yield (
                    {name, switch},
                    f"{name} is {value!r} but {_missing(switch)} or leave {name} out.",
                )


def _is_switched_off(switch: str) -> bool:
    """Whether a conf says so: then what it says beside that is not wanted for now."""
    try:
        return gin.query_parameter(f"TrainerConfig.{switch}") is False
    except ValueError:  # it says nothing
        return False


def _missing(switch: str) -> str:
    if switch.endswith("_dir"):
        return f"{switch} names no source: set it"
    return f"{switch} is False: set {switch} = True"


def _updates(config: Any) -> Iterator[Conflict]:
    amounts = ("epochs", "num_updates_per_train_iter", "updates_per_env_step")
    given = [name for name in amounts if getattr(config, name) is not None]
    if len(given) > 1:
        yield (
            set(given),
            f"{' and '.join(given)} are set, and each says how many updates an "
            "iteration makes: epochs for on-policy algorithms, one of the others for "
            "off-policy ones.",
        )
    burn_in, length = config.burn_in_length, config.mini_batch_length
    if _are_ints(burn_in, length) and burn_in >= length:
        yield (
            {"burn_in_length", "mini_batch_length"},
            f"burn_in_length={burn_in} leaves nothing of a mini_batch_length={length} "
            "to train on: make it shorter.",
        )


def _engine(config: Any) -> Iterator[Conflict]:
    if config.unroll_engine == "ray":
        return
    for name, default in (("ray_address", None), ("ray_cpus_per_worker", 1.0)):
        value = getattr(config, name)
        if value != default:
            yield (
                {name, "unroll_engine"},
                f"{name} is {value!r} but unroll_engine is {config.unroll_engine!r}: "
                f"set unroll_engine = 'ray' or leave {name} out.",
            )


def _unrolls(config: Any) -> Iterator[Conflict]:
    takes_what_is_there = config.unroll_length == 0
    if not config.async_unroll:
        if takes_what_is_there:
            yield (
                {"unroll_length"},
                "unroll_length: got 0, expected a value > 0. With async_unroll = True "
                "and a max_unroll_length, 0 takes whatever was collected meanwhile.",
            )
        return
    if takes_what_is_there != (config.max_unroll_length > 0):
        yield (
            {"unroll_length", "max_unroll_length"},
            "unroll_length = 0 takes whatever the workers have finished, at most "
            "max_unroll_length steps per environment and iteration: set both, or "
            f"neither. They are {config.unroll_length} and {config.max_unroll_length}.",
        )
    if config.samples_per_insert is not None and not takes_what_is_there:
        yield (
            {"samples_per_insert", "unroll_length"},
            f"samples_per_insert={config.samples_per_insert} decides how much is "
            f"unrolled per iteration, and so does unroll_length={config.unroll_length}:"
            " set unroll_length = 0 and max_unroll_length, or leave "
            "samples_per_insert out.",
        )
    if config.unroll_episodes is not None:
        yield (
            {"async_unroll", "unroll_episodes"},
            f"unroll_episodes={config.unroll_episodes} begins all episodes anew in each"
            " iteration, which workers of async_unroll do not: set one of them.",
        )
    if config.unroll_with_grad:
        yield (
            {"async_unroll", "unroll_with_grad"},
            "unroll_with_grad needs the graph of rollout_step, which stays in the "
            "worker with async_unroll: set one of them.",
        )
    if config.max_policy_lag is None:
        return
    if takes_what_is_there:
        yield (
            {"max_policy_lag", "unroll_length"},
            "max_policy_lag has the trainer wait for unrolls that would become too old,"
            " and unroll_length = 0 never waits: set one of them.",
        )
    if config.unroll_parameter_update_period > 1:
        yield (
            {"max_policy_lag", "unroll_parameter_update_period"},
            "max_policy_lag needs new parameters in every iteration: leave "
            "unroll_parameter_update_period out.",
        )


def _replay(config: Any) -> Iterator[Conflict]:
    takes_everything = config.whole_replay_buffer_training
    if config.priority_replay and takes_everything:
        yield (
            {"priority_replay", "whole_replay_buffer_training"},
            "priority_replay draws by priority, whole_replay_buffer_training takes "
            "everything: set one of them.",
        )
    if config.clear_replay_buffer and not takes_everything:
        yield (
            {"clear_replay_buffer", "whole_replay_buffer_training"},
            "clear_replay_buffer clears after whole_replay_buffer_training, which is "
            "False: set both or none.",
        )
    limit_gb = config.checkpoint_replay_buffer_gb
    if config.checkpoint_replay_buffer is not None and limit_gb != 1:
        yield (
            {"checkpoint_replay_buffer", "checkpoint_replay_buffer_gb"},
            f"checkpoint_replay_buffer_gb={limit_gb} has no effect where "
            f"checkpoint_replay_buffer is {config.checkpoint_replay_buffer}: leave one "
            "of them out.",
        )
    collected, num_env_steps = config.initial_collect_steps, config.num_env_steps
    if _are_ints(collected, num_env_steps) and 0 < num_env_steps <= collected:
        yield (
            {"num_env_steps", "initial_collect_steps"},
            f"initial_collect_steps={collected} are collected before training, but the "
            f"run ends after num_env_steps={num_env_steps}: nothing would be trained. "
            "Collect less, or run longer.",
        )


def _offline(config: Any) -> Iterator[Conflict]:
    sources = config.offline_sources
    if not sources:
        return
    if config.whole_replay_buffer_training:
        yield (
            {"offline_buffer_dir", "whole_replay_buffer_training"},
            "whole_replay_buffer_training takes all own steps, offline buffers are "
            "mixed in by windows: set one of them.",
        )
    for name in ("mixing_ratios", "source_loss_weights"):
        problem = _problem(name, getattr(config, name), len(sources))
        if problem:
            yield {name, "offline_buffer_dir"}, f"{name} {problem}."


def _evaluation(config: Any) -> Iterator[Conflict]:
    patience = config.early_stop_patience
    if patience is not None and not config.eval_interval:
        yield (
            {"early_stop_patience", "eval_interval"},
            f"early_stop_patience={patience} counts evaluations, and there is only the "
            "one at the end: set eval_interval.",
        )


def _problem(name: str, values: Sequence[float] | None, num_sources: int) -> str:
    """What is wrong with one number per source, own steps first."""
    if values is None:
        return ""
    if len(values) != num_sources + 1:
        return (
            f"has {len(values)} numbers, expected {num_sources + 1}: one for own steps "
            "and one for each source"
        )
    if min(values) < 0:
        return f"is {values!r}, expected numbers of at least 0"
    if name == "mixing_ratios":
        if abs(sum(values) - 1) > 1e-6:
            return f"is {values!r}, whose sum is {sum(values):g}, expected 1"
        if values[0] == 1:
            return f"is {values!r}: no offline data would be trained"
    return ""


def _are_ints(*values: Any) -> bool:
    """What is of a wrong type is reported as such."""
    return all(isinstance(value, int) for value in values)
