"""Ensemble-diversified actor-critic: many critics whose slopes by the action differ.

An et al., "Uncertainty-Based Offline Reinforcement Learning with Diversified
Q-Ensemble", arXiv:2110.01548. The smallest of N critics is far too small for actions
that the data do not have, where the critics disagree; that alone is SAC-N, which is SAC
with ``num_critics`` = N. Fewer critics do, if they are kept from leaning the same way:
with u_k the direction of ∇_a Q_k(s_t, a_t) at the action that was taken,

    similarity = 1/(N−1) Σ_{i≠j} u_i · u_j
    loss = SAC's + ½ η similarity,   SAC's critics: ½ Σ_k (Q_k(s_t, a_t) − y_t)²

Differences from the paper:

1. Those of :mod:`~alf_lite.algorithms.sac_algorithm`. The whole loss of the critics is
   halved, so that η is the paper's.
2. An action may have discrete parts, too: the slopes are by its continuous part, of the
   value of the joint value that was taken.
3. For a reward of several dimensions, the slopes are those of the weighted sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.sac_algorithm import (
    SacAlgorithm,
    SacEvaluation,
    SacInfo,
    SacLossInfo,
)
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import LossInfo
from alf_lite.errors import ConfigError
from alf_lite.utils.checks import check_not_negative
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients


class EdacInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    sac: SacInfo
    similarity: Tensor  # [T, B], with gradient to the critics


class EdacLossInfo(NamedTuple):
    """Diagnostics, [T, B] each; similarity in [-N/(N-1), N]."""

    sac: SacLossInfo
    similarity: Tensor


@configurable
class EdacAlgorithm(SacAlgorithm):
    """EDAC for nests of actions, of which some are continuous."""

    # An et al. 2021, appendix C.
    default_settings = DefaultSettings(
        unroll_length=1, mini_batch_size=256, mini_batch_length=2, lr=3e-4
    )

    slope_in_loss = "diversity_weight"

    _diversity_weight = Coefficient()

    def __init__(
        self,
        *specs: Any,
        num_critics: int = 10,
        diversity_weight: Scheduled = 1.0,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`SacAlgorithm` for what is not here.

        Args:
            num_critics: N, at least 2. 10 to 50 in the paper.
            diversity_weight: η; more of it is more pessimistic. 1 to 5 in the paper.
            **kwargs: networks of a ``critic_network_ctor`` must ``evaluate`` features
                and actions of each critic, [N, B, ...], too.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        if num_critics < 2:
            raise ValueError(
                f"num_critics must be at least 2, which differ, got {num_critics}. Use "
                "SacAlgorithm for one"
            )
        check_not_negative(diversity_weight=diversity_weight)
        super().__init__(*specs, num_critics=num_critics, **kwargs)
        set_coefficients(self, _diversity_weight=diversity_weight)
        if not self._actions.vector_size:
            raise ConfigError(
                f"{self._name} needs an action with a continuous part, by which its "
                "critics have slopes. Take CqlAlgorithm"
            )

    def _extend_info(
        self, info: SacInfo, transition: Transition, evaluation: SacEvaluation
    ) -> EdacInfo:
        """Adds 1/(N−1) Σ_{i≠j} u_i · u_j."""
        num_critics = info.q.shape[1]
        vector = self._actions.to_vector(transition.action)
        vectors, features = (
            x.expand(num_critics, *x.shape) for x in (vector, evaluation.features)
        )
        with torch.enable_grad():  # also where a loss is only looked at
            vectors = vectors.clone().requires_grad_()  # of each critic its own
            values = self._critics.online.evaluate(features, vectors)  # [B, N, A, ...]
            q = self._weigh(self._actions.values_of(transition.action, values))
            (slope,) = torch.autograd.grad(q.sum(), vectors, create_graph=True)
        direction = F.normalize(slope, dim=-1)  # [N, B, vector_size]
        # |Σ u_k|² has each pair twice, and each one with itself.
        pairs = direction.sum(0).square().sum(-1) - direction.square().sum((0, -1))
        return EdacInfo(info, pairs / (num_critics - 1))

    def calc_loss(self, info: Any) -> LossInfo:
        """The losses of SAC, and ½ η of the similarity, [T-n, B].

        Args:
            info: EdacInfo, [T, B, ...].
        """
        loss = super().calc_loss(info.sac)
        similarity = info.similarity[: loss.loss.shape[0]]
        return loss._replace(
            loss=loss.loss + 0.5 * self._diversity_weight * similarity,
            extra=EdacLossInfo(loss.extra, similarity),
        )
