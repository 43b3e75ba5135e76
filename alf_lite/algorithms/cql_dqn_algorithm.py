"""Conservative Q-learning for discrete actions, on top of DQN.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning",
arXiv:2006.04779. To the loss of DQN it adds what the paper calls CQL(H), eq. 4: the gap
between the soft maximum of the values of all actions and the value of the stored one,

    gap(s_t, a_t) = T log Σ_a exp(Q(s_t, a) / T) − Q(s_t, a_t)
    loss = DQN's + α gap(s_t, a_t)

With a threshold τ, α is learnt as the multiplier of the constraint gap ≤ τ (eq. 30).

Nothing here asks where steps come from: the algorithm learns from a replay buffer of
its own, from offline buffers, or from both.

Differences from the paper:

1. Those of :mod:`~alf_lite.algorithms.dqn_algorithm`. The paper has quantiles of the
   return: ``return_model = @QuantileHead()``. Q is their mean.
2. An action of several components has a gap for each, and the mean over them counts.
3. Values that a mask rules out are left out of the sum.
4. A temperature T. The loss of α is in log α.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm, DqnInfo, DqnLossInfo
from alf_lite.algorithms.parts.conservative import ConservativeWeight, scaled_logsumexp
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import Field, LossInfo
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.utils.checks import check_positive
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients
from alf_lite.utils.tensor_utils import select

Nest = Any


class CqlDqnInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    dqn: DqnInfo
    gap: Tensor  # [T, B], mean of the components, with gradient
    is_offline: Field  # [T, B] bool, if only these rows count


class CqlDqnLossInfo(NamedTuple):
    """Diagnostics, [T, B] each; cql_alpha []."""

    dqn: DqnLossInfo
    gap: Tensor
    cql_alpha: Tensor


@configurable(defaults={"target_update_tau": 0.005})
class CqlDqnAlgorithm(DqnAlgorithm):
    """CQL for nests of discrete actions."""

    # Batches as the offline algorithms have them.
    default_settings = DefaultSettings(
        unroll_length=1, mini_batch_size=256, mini_batch_length=2, lr=3e-4
    )

    _cql_temperature = Coefficient()

    def __init__(
        self,
        *specs: Any,
        cql_alpha: Scheduled = 1.0,
        cql_threshold: float | None = None,
        cql_temperature: Scheduled = 1.0,
        offline_rows_only: bool = False,
        cql_alpha_optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`DqnAlgorithm` for what is not here.

        Args:
            cql_alpha: α; with a threshold, where it starts.
            cql_threshold: τ, the gap that is wanted; None keeps α. No gap is smaller
                than the entropy of the stored actions.
            cql_temperature: T of the soft maximum.
            offline_rows_only: conservative about rows of offline buffers, not about the
                run's own steps, whose mistakes are found out.
            cql_alpha_optimizer: of α with a threshold; None: ``optimizer`` trains it.

        Raises:
            ValueError: if the action is not discrete or a coefficient is out of range.
        """
        check_positive(cql_temperature=cql_temperature)
        super().__init__(*specs, **kwargs)
        set_coefficients(self, _cql_temperature=cql_temperature)
        self._offline_rows_only = self.needs_recorded_steps = offline_rows_only
        if self._is_eval:
            return
        self._conservative_weight = ConservativeWeight(
            cql_alpha, cql_threshold, cql_alpha_optimizer
        )
        self._claim(cql_alpha_optimizer, self._conservative_weight)

    def _extend_info(
        self, info: DqnInfo, transition: Transition, observation: Nest, outputs: Tensor
    ) -> CqlDqnInfo:
        """Adds the gap."""
        q = self._return_model.mean(outputs)  # [B, C, A]
        _, mask = self._mask.split(observation)
        allowed = self._actions.allowed(mask, q.device)
        taken = select(q, self._actions.to_index(transition.action))
        gap = scaled_logsumexp(q, self._cql_temperature, allowed) - taken
        return CqlDqnInfo(info, gap.mean(-1), transition.is_offline)

    def calc_loss(self, info: Any) -> LossInfo:
        """The loss of DQN and α gap, eq. 4; [T-n, B].

        Args:
            info: CqlDqnInfo, [T, B, ...].
        """
        loss = super().calc_loss(info.dqn)
        num_rows = loss.loss.shape[0]
        gap = info.gap[:num_rows]
        weight = self._conservative_weight
        added = weight.alpha * gap + weight(gap)
        if self._offline_rows_only:
            added = torch.where(info.is_offline[:num_rows], added, 0.0)
        extra = CqlDqnLossInfo(dqn=loss.extra, gap=gap, cql_alpha=weight.alpha)
        return loss._replace(loss=loss.loss + added, extra=extra)
