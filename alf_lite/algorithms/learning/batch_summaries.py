"""Histograms of what an algorithm is trained on, for those who look for a mistake."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.utils import summary
from alf_lite.utils.nest_paths import path_parts

Nest = Any


def summarize_batch(config: TrainerConfig, inputs: TimeStep, info: Nest) -> None:
    """Writes what the configuration asks for about one mini-batch.

    Args:
        config: ``debug_summaries`` asks for rewards, observations and actions,
            ``summarize_action_distributions`` for the policy's parameters, if the info
            has a field ``action_distribution``.
        inputs: [T, B, ...], what the networks saw.
        info: [T, B, ...], from ``train_step``.
    """
    if not summary.should_record():
        return
    if config.debug_summaries:
        _histograms("batch/reward", inputs.reward)
        _histograms("batch/observation", inputs.observation)
        _histograms("batch/action", inputs.prev_action)
    if config.summarize_action_distributions:
        _histograms("action_distribution", getattr(info, "action_distribution", ()))


def valid_by_source(batch: TrainingBatch) -> dict[str, Tensor]:
    """The valid steps [T, B] of own rows and of offline ones, by the loss's name."""
    source = batch.batch_info.source
    if isinstance(source, tuple):
        return {"loss": batch.valid}
    own = (source == 0).to(batch.valid.device)
    parts = {"loss": own, "loss_offline": ~own}
    return {name: batch.valid & rows for name, rows in parts.items() if rows.any()}


def _histograms(name: str, values: Nest) -> None:
    for path, leaf in nest.flatten_with_path(values):
        summary.histogram("/".join((name, *path_parts(path))), leaf.detach().float())
