"""Deep Q-learning from demonstrations.

Hester et al., "Deep Q-learning from Demonstrations", AAAI 2018, arXiv:1704.03732. To
the loss of DQN it adds, for steps of demonstrations, a margin by which the action that
was demonstrated, a_E, shall be better than all others (eq. 1 of the paper):

    J_E(s) = max_a (Q(s, a) + l [a ≠ a_E]) − Q(s, a_E)
    loss = DQN's + λ J_E

Demonstrations are the rows of offline buffers, and the others the run's own steps.

Differences from the paper:

1. Those of :mod:`~alf_lite.algorithms.dqn_algorithm`. There is one loss, of n-step
   returns, where the paper adds that of one step; L2 regularization is the
   ``weight_decay`` of an optimizer.
2. How many rows of a batch are demonstrations is a ratio, see
   ``TrainerConfig.offline_buffer_dir``, and no bonus of their priorities.
3. An action of several components has a margin for each, and the mean over them counts.
   Values that a mask rules out are no rivals.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm, DqnInfo, DqnLossInfo
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import configurable
from alf_lite.data_structures import LossInfo
from alf_lite.utils.checks import check_not_negative, check_positive
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients
from alf_lite.utils.tensor_utils import select

Nest = Any


class DqfdInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    dqn: DqnInfo
    margin_loss: Tensor  # [T, B] J_E, mean of the components, with gradient
    is_offline: Tensor  # [T, B] bool


class DqfdLossInfo(NamedTuple):
    """Diagnostics, [T, B] each; margin_loss is 0 for own steps."""

    dqn: DqnLossInfo
    margin_loss: Tensor


@configurable
class DqfdAlgorithm(DqnAlgorithm):
    """DQfD for nests of discrete actions."""

    _margin_weight = Coefficient()

    def __init__(
        self,
        *specs: Any,
        margin: float = 0.8,
        margin_weight: Scheduled = 1.0,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`DqnAlgorithm` for what is not here.

        Args:
            margin: l, in units of the return.
            margin_weight: λ.

        Raises:
            ValueError: if the action is not discrete or a coefficient is out of range.
        """
        check_positive(margin=margin)
        check_not_negative(margin_weight=margin_weight)
        super().__init__(*specs, **kwargs)
        set_coefficients(self, _margin_weight=margin_weight)
        self._margin = margin
        self._offline_rows_only = self.needs_recorded_steps = True

    def _extend_info(
        self, info: DqnInfo, transition: Transition, observation: Nest, outputs: Tensor
    ) -> DqfdInfo:
        """Adds J_E."""
        q = self._return_model.mean(outputs)  # [B, C, A]
        _, mask = self._mask.split(observation)
        allowed = self._actions.allowed(mask, q.device)
        taken = self._actions.to_index(transition.action)  # [B, C]
        demonstrated = select(q, taken)
        rivals = q + self._margin
        if allowed is not None:
            rivals = rivals.masked_fill(~allowed, -torch.inf)
        rivals = rivals.scatter(-1, taken.unsqueeze(-1), demonstrated.unsqueeze(-1))
        margin_loss = (rivals.amax(-1) - demonstrated).mean(-1)
        return DqfdInfo(info, margin_loss, transition.is_offline)

    def calc_loss(self, info: Any) -> LossInfo:
        """The loss of DQN and λ J_E, [T-n, B].

        Args:
            info: DqfdInfo, [T, B, ...].
        """
        loss = super().calc_loss(info.dqn)
        num_rows = loss.loss.shape[0]
        is_offline = info.is_offline[:num_rows]
        margin_loss = torch.where(is_offline, info.margin_loss[:num_rows], 0.0)
        return loss._replace(
            loss=loss.loss + self._margin_weight * margin_loss,
            extra=DqfdLossInfo(dqn=loss.extra, margin_loss=margin_loss),
        )
