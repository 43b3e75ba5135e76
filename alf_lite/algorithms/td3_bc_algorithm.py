"""TD3 that stays near the stored actions: TD3+BC.

Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning",
arXiv:2106.06860. The loss of the actor, eq. 3 and 4, is

    −λ Q_0(s_t, μ(s_t)) + mean_i (μ_i(s_t) − a_{t,i})²,   λ = α / mean |Q_0(s, μ(s))|

with actions as vectors in [-1, 1], whatever their bounds, and the mean in λ over the
valid steps of the mini-batch, without gradient. A small α clones the behaviour, a large
one maximises Q.

With ``critic_bc_weight``, targets stay near the stored actions, too, which is ReBRAC,
Tarasov et al., "Revisiting the Minimalist Approach to Offline Reinforcement Learning",
arXiv:2305.09836, eq. 3: from the value of the action a' that a target bootstraps from,

    β Σ_i (a'_i − a_{t+m,i})²

is taken, its distance from what the data did there; a time limit is no step of theirs.
β_1 of the paper is 1 / (α D) for actions of D elements, β_2 is β.

Nothing here asks where steps come from: the algorithm learns from a replay buffer of
its own, from offline buffers, or from both.

The paper normalizes observations by the mean and the deviation of the data; that is the
task of the data transformer ``ObservationNormalizer``.

Differences from the paper:

1. Those of :mod:`~alf_lite.algorithms.ddpg_algorithm`.
2. As in the authors' code, λ has the values of the actor's actions, not those of the
   stored ones, and the squares are averaged over the elements of the action.
3. A stored action beyond the bounds counts as one on the bound.
4. For a reward of several dimensions, Q is their weighted sum.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.ddpg_algorithm import DdpgInfo, DdpgLossInfo
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import Field, LossInfo
from alf_lite.errors import ConfigError
from alf_lite.utils.checks import check_not_negative, extremes
from alf_lite.utils.losses import batch_mean
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any

# Values that are all 0 have no scale; λ stays finite.
_MIN_SCALE = 1e-6


class Td3BcInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    td3: DdpgInfo
    distance: Field  # [T, B] mean_i (μ_i(s_t) − a_{t,i})², with gradient; () if not due
    is_offline: Field  # [T, B] bool, if only these rows count


class Td3BcLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each."""

    td3: DdpgLossInfo  # its actor_loss is −λ Q, and what action_l2 adds
    bc_loss: Field  # () if the actor is not updated


@configurable
class Td3BcAlgorithm(Td3Algorithm):
    """TD3+BC for nests of continuous actions."""

    # Fujimoto and Gu 2021, table 1.
    default_settings = DefaultSettings(
        unroll_length=1, mini_batch_size=256, mini_batch_length=2, lr=3e-4
    )

    _bc_alpha = Coefficient()
    _critic_bc_weight = Coefficient()

    def __init__(
        self,
        *specs: Any,
        bc_alpha: Scheduled = 2.5,
        critic_bc_weight: Scheduled = 0.0,
        offline_rows_only: bool = False,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`Td3Algorithm` for what is not here.

        Args:
            bc_alpha: α, how much Q counts; 0 clones the behaviour.
            critic_bc_weight: β of ReBRAC, for targets; their windows have one step more
                than n + 1, the action after them. 0: TD3+BC.
            offline_rows_only: clone the actions of offline buffers, not those of the
                run's own steps, whose targets are not kept near them either.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
            ConfigError: ``critic_bc_weight``, for networks with memory, distributions
                of the return, rewards of several dimensions or windows that are short.
        """
        check_not_negative(critic_bc_weight=critic_bc_weight)
        if not all(0 <= alpha < math.inf for alpha in extremes(bc_alpha)):
            raise ValueError(
                f"bc_alpha must be finite and not negative, got {bc_alpha}"
            )
        super().__init__(*specs, **kwargs)
        set_coefficients(self, _bc_alpha=bc_alpha, _critic_bc_weight=critic_bc_weight)
        if max(extremes(critic_bc_weight)) > 0:
            self._check_near_targets()
        self._offline_rows_only = self.needs_recorded_steps = offline_rows_only

    def _check_near_targets(self) -> None:
        for what, is_there in {
            "networks with memory": self._is_recurrent,
            "a return_model": self._return_model is not None,
            "a reward of several dimensions": self.has_multidim_reward,
        }.items():
            if is_there:
                raise ConfigError(
                    f"{self._name}.critic_bc_weight does not go together with {what}. "
                    "Leave one of them out."
                )
        self._take_next_action(
            "n_step, and the action after them, for critic_bc_weight"
        )

    def _believed(
        self, value: Tensor, action: Tensor, transition: Transition
    ) -> Tensor:
        """Eq. 3 of ReBRAC: less what the action differs by from what the data did."""
        if not self._takes_next_action:
            return value
        taken, is_free = transition.next_action  # at a LAST, nothing was done
        if isinstance(transition.is_offline, Tensor):
            is_free = is_free | ~transition.is_offline
        taken = self._actions.to_vector(taken).clamp(-1.0, 1.0)
        distance = (action - taken).square().sum(-1)
        return value - self._critic_bc_weight * torch.where(is_free, 0.0, distance)

    def _extend_info(
        self, info: DdpgInfo, transition: Transition, taken: Tensor, action: Field
    ) -> Td3BcInfo:
        """Adds the distance from the stored action."""
        distance: Field = ()
        if isinstance(action, Tensor):
            distance = (action - taken.clamp(-1.0, 1.0)).square().mean(-1)
        return Td3BcInfo(info, distance, transition.is_offline)

    def calc_loss(self, info: Any) -> LossInfo:
        """The losses of TD3, with λ Q for Q, and the distance; [T-n, B].

        Args:
            info: Td3BcInfo, [T, B, ...].
        """
        loss = super().calc_loss(info.td3)
        bc_loss = info.distance
        if isinstance(bc_loss, Tensor):
            num_rows = loss.loss.shape[0]
            bc_loss = bc_loss[:num_rows]
            if self._offline_rows_only:
                bc_loss = torch.where(info.is_offline[:num_rows], bc_loss, 0.0)
            loss = loss._replace(loss=loss.loss + bc_loss)
        return loss._replace(extra=Td3BcLossInfo(td3=loss.extra, bc_loss=bc_loss))

    def _actor_loss(self, info: DdpgInfo) -> Tensor:
        """−λ Q_0(s_t, μ(s_t)), [T-n, B]."""
        size = info.policy_value.detach().abs()
        scale = batch_mean(size, valid_steps(info.step_type)).clamp(min=_MIN_SCALE)
        return -self._bc_alpha / scale * info.policy_value
