"""Munchausen DQN: the log of the policy is added to the reward.

Vieillard et al., "Munchausen Reinforcement Learning", arXiv:2007.14430. The policy is
the soft one of the target network, π = softmax(Q(s, ·; θ⁻) / τ), and

    y_t = G_t + α [τ log π(a_t|s_t)]_{l₀}^0 + Γ_t V(s_{t+m})
    V(s) = Σ_a π(a|s) (Q(s, a; θ⁻) − τ log π(a|s))

It is penalised to take actions that one does not believe in, which
keeps the next policy near to this one and widens the gap between actions.

Differences from the paper:

1. Those of :mod:`~alf_lite.algorithms.dqn_algorithm`; there is no double Q-learning.
2. With n steps, the first action alone has the addend.
3. The sum over actions is τ log Σ_a exp(Q / τ), what it equals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite.algorithms.dqn_algorithm import DqnInfo, QLearningAlgorithm
from alf_lite.algorithms.parts.conservative import scaled_logsumexp
from alf_lite.algorithms.parts.return_heads import ExpectedReturnHead
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.utils.checks import check_positive, check_unit_interval, extremes
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients
from alf_lite.utils.tensor_utils import select

Nest = Any


@configurable
class MunchausenDqnAlgorithm(QLearningAlgorithm):
    """M-DQN for nests of discrete actions."""

    _alpha = Coefficient()
    _temperature = Coefficient()
    _clipping = Coefficient()

    def __init__(
        self,
        *specs: Any,
        munchausen_alpha: Scheduled = 0.9,
        munchausen_temperature: Scheduled = 0.03,
        munchausen_clipping: Scheduled = -1.0,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`QLearningAlgorithm` for the others.

        Args:
            munchausen_alpha: α in [0, 1].
            munchausen_temperature: τ, in the unit of the return.
            munchausen_clipping: l₀, below which τ log π does not count.

        Raises:
            ValueError: if the action is not discrete or a coefficient is out of range.
            ConfigError: for a network with memory, or a distribution of the return.
        """
        check_unit_interval(munchausen_alpha=munchausen_alpha)
        check_positive(munchausen_temperature=munchausen_temperature)
        if not all(bound < 0 for bound in extremes(munchausen_clipping)):
            raise ValueError(
                f"munchausen_clipping must be negative, got {munchausen_clipping}"
            )
        super().__init__(*specs, **kwargs)
        self._require_no_memory("addends")
        if type(self._return_model) is not ExpectedReturnHead:
            raise ConfigError(
                f"{self._name}: return_model must be an ExpectedReturnHead, whose "
                "output is the Q of the policy, got "
                f"{type(self._return_model).__name__}"
            )
        set_coefficients(
            self,
            _alpha=munchausen_alpha,
            _temperature=munchausen_temperature,
            _clipping=munchausen_clipping,
        )

    def _bootstrap(
        self,
        observation: Nest,
        transition: Transition,
        online_outputs: Tensor | None,
        target_state: Nest,
    ) -> tuple[Tensor, Nest]:
        """τ log Σ_a exp(Q(s, a; θ⁻) / τ), the value of the soft policy, [B, C, 1]."""
        q, allowed = self._target_values(observation)
        value = scaled_logsumexp(q, self._temperature, allowed)
        return value.unsqueeze(-1), target_state

    def _extend_info(
        self, info: DqnInfo, transition: Transition, observation: Nest, outputs: Tensor
    ) -> DqnInfo:
        """Adds α [τ log π(a_t|s_t)]_{l₀}^0."""
        q, allowed = self._target_values(observation)
        taken = select(q, self._actions.to_index(transition.action))
        log_policy = taken - scaled_logsumexp(q, self._temperature, allowed)  # times τ
        bonus = self._alpha * log_policy.clamp(self._clipping, 0.0)
        return info._replace(bonus=bonus)

    @torch.no_grad()
    def _target_values(self, observation: Nest) -> tuple[Tensor, Tensor | None]:
        """Q(s, ·; θ⁻) [B, C, A], and which of them are allowed."""
        outputs, allowed, _ = self._outputs(self._target_q_network, observation)
        return outputs.squeeze(-1), allowed
