"""What one rank of a run does: its share of the settings, its seed, its parameters.

A configuration is that of the whole run, however many ranks train it.
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import torch

from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.config import TrainerConfig, rules
from alf_lite.errors import ConfigError
from alf_lite.networks.batch_norm import normalizes_by_batch
from alf_lite.utils import random_state
from alf_lite.utils.ranks import ranks


def share_of_rank(config: TrainerConfig) -> TrainerConfig:
    """The configuration of this rank, of that of the whole run.

    Raises:
        ConfigError: if a setting cannot be divided by the number of ranks, or none of
            several ranks can do what it says.
    """
    if ranks.size == 1:
        return config
    rules.check(config, "ranks", num_ranks=ranks.size)
    changes: dict[str, Any] = {
        "initial_collect_steps": math.ceil(config.initial_collect_steps / ranks.size),
        "metric_min_buffer_size": math.ceil(config.metric_min_buffer_size / ranks.size),
    }
    divided = ["mini_batch_size", "unroll_episodes"]
    if config.async_unroll:
        divided.append("num_unroll_workers")
    for name in divided:
        total = getattr(config, name)
        if total is not None:
            changes[name] = ranks.share_of(total, f"TrainerConfig.{name}")
    if config.device == "cuda":
        changes["device"] = f"cuda:{os.environ.get('LOCAL_RANK', ranks.index)}"
    return dataclasses.replace(config, **changes)


def become_a_rank(algorithm: Any) -> None:
    """Begins with what the first rank has built, and with random numbers of one's own.

    Raises:
        ConfigError: if the algorithm cannot be trained by several ranks.
    """
    if ranks.size == 1:
        return
    for name, module in algorithm.named_modules():
        if normalizes_by_batch(module):
            raise ConfigError(
                f"{algorithm.name} cannot be trained by {ranks.size} ranks: {name} "
                f"({type(module).__name__}) normalizes by its batch, of which each "
                "rank has only a part. Train with one rank, or without batch_norm."
            )
    equal_on_all_ranks(algorithm)
    seed = algorithm.config.random_seed
    if seed is not None and not ranks.is_first:
        random_state.seed_everything(ranks.seed_of(seed))


def equal_on_all_ranks(algorithm: Algorithm) -> None:
    """Gives all ranks the parameters and buffers of the first one."""
    own = own_buffers(algorithm)
    ranks.broadcast_(
        tensor for name, tensor in algorithm.state_dict().items() if name not in own
    )


def own_buffers(algorithm: Algorithm) -> dict[str, torch.Tensor]:
    """The buffers that every rank has for itself, such as steps that are kept."""
    found: dict[str, torch.Tensor] = {}
    for path, module in algorithm.named_modules():
        if getattr(module, "differs_by_rank", False):
            prefix = f"{path}." if path else ""
            found |= module.state_dict(prefix=prefix)
    return found
