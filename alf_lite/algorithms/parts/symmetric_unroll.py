"""Unrolls that are seen in the mirror, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.data_transformers.data_transformer import DataTransformer
from alf_lite.data_transformers.symmetries import Symmetry
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any


class SymmetricUnroll:
    """Puts a copy of an unroll behind it for every symmetry of the task.

    A copy has the observations and actions of the mirror. All that was computed before
    the updates, advantages and probabilities of what was done among it, is that of the
    unroll: a policy that is symmetric does the same in the mirror. Mittal et al. 2024,
    "Symmetry considerations for learning task symmetric robot policies"
    (arXiv:2403.04359).

    Args:
        symmetries: of observations before ObservationNormalizer, [B, T, ...].
        policy: [N, ...] of observations → (distribution, state), without memory.
    """

    def __init__(
        self,
        symmetries: Sequence[Symmetry],
        policy: Callable[[Nest], tuple[Nest, Nest]],
    ) -> None:
        self._symmetries = symmetries
        self._policy = policy
        self.num_views = 1 + len(symmetries)  # of every unroll

    @torch.no_grad()
    def extend(
        self, batch: TrainingBatch, transformer: DataTransformer
    ) -> TrainingBatch:
        """[B, T, ...] → [B · num_views, T, ...].

        Args:
            batch: preprocessed.
            transformer: that made its observations.
        """
        copies = [self._mirrored(batch, s, transformer) for s in self._symmetries]
        return nest.cat([batch, *copies])

    def _mirrored(
        self, batch: TrainingBatch, symmetry: Symmetry, transformer: DataTransformer
    ) -> TrainingBatch:
        steps, info = batch.inputs, batch.rollout_info
        actions: list[Nest] = []

        def look(raw: Nest) -> Nest:
            seen, action = symmetry(raw, info.action)
            actions[:] = action, symmetry(raw, steps.prev_action)[1]
            return seen

        observation = transformer.change_unscaled(look, steps.observation)
        action, prev_action = actions
        info = info._replace(action=action)
        if "old_distribution" in info._fields and not nest.is_empty(
            info.old_distribution
        ):
            old, _ = self._policy(flatten_outer(observation))
            old = nest.map_structure(lambda t: t.unflatten(0, batch.valid.shape), old)
            info = info._replace(old_distribution=old)
        steps = steps._replace(observation=observation, prev_action=prev_action)
        return batch._replace(inputs=steps, rollout_info=info)
