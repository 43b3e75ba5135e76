"""Draws batches that mix a run's own steps with those of offline buffers.

Source 0 is the run's own replay buffer, source k the k-th offline buffer. Every update
gets the same number of windows of each source, by the largest remainders of
``TrainerConfig.mixing_ratios``; while own steps are left out, the others share the
batch in proportion. ``BatchInfo.source`` says where a row comes from.

With priorities every source has its own. The importance weights of a source are divided
by their mean in the batch, then those of the whole batch by the largest one: they
correct for what is drawn within a source, and each source keeps the part of the loss
that its ratio says, however different the errors are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.own_replay import OwnReplay
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_settings import default_ratios, shares
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


class Windows(NamedTuple):
    """The windows of one or more sources for some updates."""

    experience: Experience  # [U·n, T, ...], those of one update after the other
    batch_info: BatchInfo  # [U·n]
    per_update: int  # n
    is_own: bool  # of source 0

    @property
    def source(self) -> int:
        """Which one they are from, if it is one."""
        return 0 if self.is_own else int(self.batch_info.source[0])

    def importance_weights(self, num_updates: int, device: torch.device) -> Tensor:
        """[U, n]; 1 where the source has none."""
        weights = self.batch_info.importance_weights
        if isinstance(weights, tuple):
            return torch.ones((num_updates, self.per_update), device=device)
        return weights.view(num_updates, -1)


class ReplayMixture:
    """Draws windows from the sources of a run.

    Args:
        config: has the ratios, the loss weights and the size of a batch.
        own: the run's own replay buffer.
        offline: the offline buffers, in the order of ``offline_buffer_dir``.
        scale_weights: whether importance weights have a scale of their own in every
            batch.
    """

    def __init__(
        self,
        config: TrainerConfig,
        own: OwnReplay,
        offline: Sequence[ReplayBuffer] = (),
        *,
        scale_weights: bool = False,
    ) -> None:
        self.has_offline = bool(offline)
        self._own = own
        self._offline = offline
        self._ratios = config.mixing_ratios or default_ratios(len(offline))
        self._loss_weights = config.source_loss_weights
        self._scales_weights = scale_weights
        # Whether own windows make batches as they are drawn, without this class.
        self.is_plain = (
            not offline
            and config.source_loss_weights is None
            and not (scale_weights and own.options.draws_per_iteration()[0] > 1)
        )

    def buffer(self, index: int) -> ReplayBuffer:
        """That of a source: 0 is the run's own."""
        return self._offline[index - 1] if index else self._own.require_buffer()

    def draw(
        self, num_updates: int, *, with_own: bool, device: torch.device | None = None
    ) -> Iterator[tuple[Windows, ReplayBuffer]]:
        """Draws the windows of some updates, source by source.

        Args:
            num_updates: U, for which windows are drawn at once.
            with_own: whether the run's own steps take part.
            device: where the windows are made; None: where they are stored.

        Yields:
            Untransformed windows and the buffer that they are from, those of source 0
            first; none of a source whose share is 0.
        """
        for index, count in self._counts(with_own):
            buffer = self.buffer(index)
            experience, info = buffer.get_batch(
                count * num_updates, self._own.mini_batch_length, device
            )
            if self.has_offline:
                env_ids, positions = info.env_ids.cpu(), info.positions.cpu()
                source = torch.full_like(env_ids, index)
                info = info._replace(
                    env_ids=env_ids, positions=positions, source=source
                )
            yield Windows(experience, info, count, is_own=index == 0), buffer

    def weighted(
        self, parts: list[Windows], num_updates: int, device: torch.device
    ) -> list[Windows]:
        """The windows of all sources, with what multiplies their loss.

        Args:
            parts: of :meth:`draw`, transformed or not.
            num_updates: U.
            device: of the weights.
        """
        weights = self._weights(parts, num_updates, device)
        if weights is None:
            return parts
        return [
            part._replace(
                batch_info=part.batch_info._replace(
                    importance_weights=of_part.flatten()
                )
            )
            for part, of_part in zip(parts, weights, strict=True)
        ]

    def _counts(self, with_own: bool) -> list[tuple[int, int]]:
        """The sources that take part, each with its windows per update."""
        if with_own and not self.has_offline:
            return [(0, self._own.mini_batch_size)]
        ratios = list(self._ratios)
        if not with_own:
            ratios[0] = 0.0
        counts = enumerate(shares(self._own.mini_batch_size, ratios))
        return [(index, count) for index, count in counts if count]

    def _weights(
        self, parts: list[Windows], num_updates: int, device: torch.device
    ) -> list[Tensor] | None:
        """What multiplies the loss of the windows of each source, [U, n] of each.

        None if that is what the sources say themselves.
        """
        infos = [part.batch_info for part in parts]
        is_weighted = not all(isinstance(i.importance_weights, tuple) for i in infos)
        loss_weights = self._loss_weights
        is_one_draw = len(parts) == num_updates == 1
        if loss_weights is None and (is_one_draw or not is_weighted):
            return None
        weights = [part.importance_weights(num_updates, device) for part in parts]
        if is_weighted and self._scales_weights:
            if len(weights) > 1:
                weights = [w / w.mean(dim=1, keepdim=True) for w in weights]
            largest = torch.cat(weights, dim=1).amax(dim=1, keepdim=True)
            weights = [w / largest for w in weights]
        if loss_weights is not None:
            columns = zip(weights, parts, strict=True)
            weights = [w * loss_weights[part.source] for w, part in columns]
        return weights

    def update_priority(self, batch_info: BatchInfo, priority: Tensor) -> None:
        """Gives the windows of a mini-batch their new priorities [b].

        Args:
            batch_info: where they come from.
            priority: of each.

        Raises:
            ConfigError: if there are none.
        """
        source = batch_info.source
        if isinstance(priority, tuple):
            is_offline = not isinstance(source, tuple) and bool((source > 0).all())
            raise ConfigError(
                "TrainerConfig.priority_replay is set, but the LossInfo of "
                f"{'calc_loss_offline' if is_offline else 'calc_loss'} has no priority"
            )
        env_ids, positions = batch_info.env_ids, batch_info.positions
        if isinstance(source, tuple):
            self.buffer(0).update_priority(env_ids, positions, priority)
            return
        priority = priority.detach().cpu()
        for index in range(1 + len(self._offline)):
            rows = source == index
            if rows.any():
                self.buffer(index).update_priority(
                    env_ids[rows], positions[rows], priority[rows]
                )


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
        if nest.is_empty(experience.rollout_info):
            if not nest.is_empty(own.rollout_info):
                paths = [path for path, _ in nest.flatten_with_path(own.rollout_info)]
                raise ConfigError(
                    f"the algorithm stores {paths} as info of rollout_step, which an "
                    "offline buffer does not have. Override train_step_offline and "
                    "calc_loss_offline, or compute it in preprocess_experience."
                )
            experience = experience._replace(rollout_info=own.rollout_info)
        if nest.is_empty(experience.state):
            step_type = experience.time_step.step_type
            zeros = own.state  # nothing, in the structure that the algorithm gives it
            if not nest.is_empty(zeros):
                zeros = nest.map_structure(
                    lambda spec, s=step_type: spec.zeros(s.shape).to(s.device),
                    state_spec,
                )
            experience = experience._replace(state=zeros)
        result.append(part._replace(experience=experience))
    return result
