"""Batches that mix a run's own steps with those of offline buffers.

Source 0 is the run's own replay buffer, source k the k-th offline buffer. Every update
gets the same number of windows of each source, by the largest remainders of
``TrainerConfig.mixing_ratios``; while own steps are left out, the others share the
batch in proportion. ``BatchInfo.source`` says where a row comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.replay_training import ReplayTraining
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.data_transformers.data_transformer import DataTransformer
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.mixing import shares

Nest = Any


class Windows(NamedTuple):
    """The windows of one or more sources for all updates of an iteration."""

    experience: Experience  # [U·n, T, ...], those of one update after the other
    batch_info: BatchInfo  # [U·n]
    per_update: int  # n
    is_own: bool  # of source 0


class ReplayMixture:
    """Draws windows from the sources of a run.

    Args:
        config: has the ratios, the loss weights and the size of a batch.
        own: the run's own replay buffer.
        offline: the offline buffers, in the order of ``offline_buffer_dir``.
    """

    def __init__(
        self,
        config: TrainerConfig,
        own: ReplayTraining,
        offline: Sequence[ReplayTraining] = (),
    ) -> None:
        self.has_offline = bool(offline)
        self._num_updates = config.num_updates_per_train_iter
        self._sources = [own, *offline]
        self._ratios = config.mixing_ratios or [
            0.5 if offline else 1.0,
            *(0.5 / len(offline) for _ in offline),
        ]
        self._loss_weights = config.source_loss_weights
        self._use_priority = config.priority_replay

    def sample(
        self, transformer: DataTransformer, device: torch.device, *, with_own: bool
    ) -> list[Windows]:
        """Draws the windows of all updates of one iteration, source by source.

        Args:
            transformer: applied to each source on its own.
            device: of the result.
            with_own: whether the run's own steps take part.

        Returns:
            Those of source 0 first; none of a source whose share is 0.
        """
        parts = []
        for index, count in self._counts(with_own):
            experience, info = self._sources[index].sample(
                transformer,
                device,
                count * self._num_updates,
                index if self.has_offline else None,
            )
            info = self._with_loss_weight(info, index, device)
            parts.append(Windows(experience, info, count, is_own=index == 0))
        return parts

    def _counts(self, with_own: bool) -> list[tuple[int, int]]:
        """The sources that take part, each with its windows per update."""
        num_windows = self._sources[0].mini_batch_size
        if with_own and not self.has_offline:
            return [(0, num_windows)]
        ratios = list(self._ratios)
        if not with_own:
            ratios[0] = 0.0
        counts = enumerate(shares(num_windows, ratios))
        return [(index, count) for index, count in counts if count]

    def _with_loss_weight(
        self, info: BatchInfo, source: int, device: torch.device
    ) -> BatchInfo:
        """Multiplies the importance weights; makes them if some source has them."""
        if not self.has_offline:
            return info
        if self._loss_weights is None and not self._use_priority:
            return info
        weight = 1.0 if self._loss_weights is None else self._loss_weights[source]
        weights = info.importance_weights
        if isinstance(weights, tuple):
            weights = torch.ones(info.env_ids.shape, device=device)
        return info._replace(importance_weights=weight * weights)

    def update_priority(self, batch_info: BatchInfo, priority: Tensor) -> None:
        """Gives the own windows of a mini-batch their new priorities [b]."""
        source = batch_info.source
        if not isinstance(source, tuple):
            own = source == 0
            if not own.any():  # while pre-training
                return
            batch_info = nest.map_structure(lambda t: t[own.to(t.device)], batch_info)
            if not isinstance(priority, tuple):
                priority = priority[own.to(priority.device)]
        self._sources[0].update_priority(batch_info, priority)


def join(parts: Sequence[Windows]) -> Windows:
    """The windows of several sources as one, update by update."""
    if len(parts) == 1:
        return parts[0]

    def interleave(*leaves: Tensor) -> Tensor:
        by_update = [
            leaf.view(-1, part.per_update, *leaf.shape[1:])
            for leaf, part in zip(leaves, parts, strict=True)
        ]
        return torch.cat(by_update, dim=1).flatten(0, 1)

    num_rows = len(parts[0].batch_info.env_ids)
    # One update needs no interleaving, and ten small copies are most of what it costs.
    put_together = (
        interleave if num_rows > parts[0].per_update else lambda *rows: torch.cat(rows)
    )
    experience, batch_info = nest.map_structure(
        put_together, *((part.experience, part.batch_info) for part in parts)
    )
    return Windows(
        experience,
        batch_info,
        sum(part.per_update for part in parts),
        is_own=any(part.is_own for part in parts),
    )


def alike(parts: Sequence[Windows], state_spec: NestedTensorSpec) -> list[Windows]:
    """Gives offline windows the states that own ones have stored: zeros.

    Raises:
        ConfigError: if own steps have an info that offline ones lack.
    """
    own = next((part.experience for part in parts if part.is_own), None)
    if own is None or len(parts) == 1:
        return list(parts)
    result = []
    for part in parts:
        experience = part.experience
        if not nest.is_empty(own.rollout_info) and nest.is_empty(
            experience.rollout_info
        ):
            paths = [path for path, _ in nest.flatten_with_path(own.rollout_info)]
            raise ConfigError(
                f"the algorithm stores {paths} as info of rollout_step, which an "
                "offline buffer does not have. Override train_step_offline and "
                "calc_loss_offline, or compute it in preprocess_experience."
            )
        if not nest.is_empty(own.state) and nest.is_empty(experience.state):
            step_type = experience.time_step.step_type
            zeros = nest.map_structure(
                torch.Tensor.to,
                nest.zeros(state_spec, step_type.shape),
                nest.map_structure(lambda _, d=step_type.device: d, state_spec),
            )
            experience = experience._replace(state=zeros)
        result.append(part._replace(experience=experience))
    return result
