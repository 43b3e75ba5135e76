"""Which settings of a replay buffer contradict each other."""

from __future__ import annotations

from typing import Any


def replay_conflicts(config: Any) -> list[tuple[set[str], str]]:
    """The fields of every conflict, and what to do about it.

    Args:
        config: a TrainerConfig.
    """
    conflicts: list[tuple[set[str], str]] = []
    if config.priority_replay and config.whole_replay_buffer_training:
        conflicts.append(
            (
                {"priority_replay", "whole_replay_buffer_training"},
                "priority_replay draws by priority, whole_replay_buffer_training "
                "takes everything: set one of them.",
            )
        )
    if config.clear_replay_buffer and not config.whole_replay_buffer_training:
        conflicts.append(
            (
                {"clear_replay_buffer", "whole_replay_buffer_training"},
                "clear_replay_buffer clears after whole_replay_buffer_training, which "
                "is False: set both or none.",
            )
        )
    limit_gb = config.checkpoint_replay_buffer_gb
    if config.checkpoint_replay_buffer is not None and limit_gb != 1:
        conflicts.append(
            (
                {"checkpoint_replay_buffer", "checkpoint_replay_buffer_gb"},
                f"checkpoint_replay_buffer_gb={limit_gb} has no effect where "
                f"checkpoint_replay_buffer is {config.checkpoint_replay_buffer}: leave "
                "one of them out.",
            )
        )
    collected, num_env_steps = config.initial_collect_steps, config.num_env_steps
    if _are_ints(collected, num_env_steps) and 0 < num_env_steps <= collected:
        conflicts.append(
            (
                {"num_env_steps", "initial_collect_steps"},
                f"initial_collect_steps={collected} are collected before training, but "
                f"the run ends after num_env_steps={num_env_steps}: nothing would be "
                "trained. Collect less, or run longer.",
            )
        )
    burn_in, length = config.burn_in_length, config.mini_batch_length
    if _are_ints(burn_in, length) and burn_in >= length:
        conflicts.append(
            (
                {"burn_in_length", "mini_batch_length"},
                f"burn_in_length={burn_in} leaves nothing of a "
                f"mini_batch_length={length} to train on: make it shorter.",
            )
        )
    return conflicts


def _are_ints(*values: Any) -> bool:
    """What is of a wrong type is reported as such."""
    return all(isinstance(value, int) for value in values)
