"""Which settings of offline data contradict each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

# What has a meaning only with offline_buffer_dir.
_OFFLINE_FIELDS = (
    "offline_buffer_length",
    "rl_train_after_update_steps",
    "rl_train_every_update_steps",
    "mixing_ratios",
    "source_loss_weights",
)


def offline_conflicts(
    config: Any, sources: Sequence[str]
) -> list[tuple[set[str], str]]:
    """The fields of every conflict, and what to do about it.

    Args:
        config: a TrainerConfig.
        sources: its offline buffers.
    """
    if not sources:
        return [
            (
                {field.name},
                f"{field.name} is {getattr(config, field.name)!r} but "
                "offline_buffer_dir names no source: set it or leave "
                f"{field.name} out.",
            )
            for field in dataclasses.fields(config)
            if field.name in _OFFLINE_FIELDS
            and getattr(config, field.name) != field.default
        ]
    conflicts: list[tuple[set[str], str]] = []
    if config.whole_replay_buffer_training:
        conflicts.append(
            (
                {"offline_buffer_dir", "whole_replay_buffer_training"},
                "whole_replay_buffer_training takes all own steps, offline buffers "
                "are mixed in by windows: set one of them.",
            )
        )
    for name in ("mixing_ratios", "source_loss_weights"):
        problem = _problem(name, getattr(config, name), len(sources))
        if problem:
            conflicts.append(({name, "offline_buffer_dir"}, f"{name} {problem}."))
    return conflicts


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
