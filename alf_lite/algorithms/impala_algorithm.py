"""Actor-critic with V-trace: on-policy learning from what older parameters did.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures", arXiv:1802.01561.

Differences from the paper:

1. ``td_lambda`` also mixes the bootstrap of the advantage, so that the advantage of an
   unroll of the current policy is the generalized one; 1, the default, is the paper's.
2. Actor and value network are separate by default, and the optimizer is free to choose.
3. A step that ends by a time limit is bootstrapped.
4. The loss is the mean over the steps, not their sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
    Estimate,
)
from alf_lite.algorithms.parts.policy_lag import LagCorrector
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import BatchInfo, Field, TimeStep
from alf_lite.distributions import functions as distributions

Nest = Any


@configurable(defaults={"td_lambda": 1.0})
class ImpalaAlgorithm(ActorCriticAlgorithm):
    """IMPALA's learner; where the unrolls come from is up to ``TrainerConfig``.

    Acting and the loss are those of :class:`ActorCriticAlgorithm`. μ is the policy that
    acted, π the one that is trained; without a lag both algorithms are the same.
    """

    # Espeholt et al. 2018, table G.1: batches of 32 unrolls of 20 steps.
    default_settings = DefaultSettings(
        num_parallel_environments=32, unroll_length=20, lr=6e-4, gradient_clipping=40.0
    )

    def __init__(
        self, *specs: Any, rho_clip: float = 1.0, c_clip: float = 1.0, **kwargs: Any
    ) -> None:
        """Builds the networks; see :class:`ActorCriticAlgorithm` for what is not here.

        Args:
            rho_clip: ρ̄, where importance weights π/μ are truncated. Decides which
                policy's value is learnt; ``inf`` learns that of π, with more variance.
            c_clip: c̄ ≤ ρ̄, where those that carry corrections back are truncated.

        Raises:
            ValueError: if a coefficient is out of its range.
        """
        super().__init__(*specs, **kwargs)
        self._correct_lag = LagCorrector(
            type(self)._td_lambda.given(self), rho_clip, c_clip
        )

    @property
    def corrects_policy_lag(self) -> bool:
        """True: this is what the algorithm is for."""
        return True

    def _rollout_info(
        self, action: Nest, distribution: Nest, value: Field
    ) -> ActorCriticInfo:
        """Keeps μ. Its probabilities are left to training, which batches them."""
        return ActorCriticInfo(action=action, action_distribution=distribution)

    def preprocess_experience(
        self,
        root_inputs: TimeStep,
        rollout_info: ActorCriticInfo,
        batch_info: BatchInfo,
    ) -> tuple[TimeStep, ActorCriticInfo]:
        """Computes log μ(a_t|s_t), which is all that is needed of μ."""
        log_prob = distributions.log_prob(
            rollout_info.action_distribution, rollout_info.action
        )
        return root_inputs, rollout_info._replace(
            action_distribution=(), rollout_log_prob=log_prob
        )

    def _estimate(self, info: ActorCriticInfo, log_prob: Tensor) -> Estimate:
        """min(ρ̄, π/μ) A_t, and v_t of eq. 1, as :func:`correct_policy_lag` says."""
        correction = self._correct_lag(
            info.reward,
            info.value.detach(),
            info.step_type,
            self._gamma * info.discount,
            torch.cat([log_prob, info.rollout_log_prob[-1:]]),  # of the bootstrap row
            info.rollout_log_prob,
        )
        weights = correction.weights
        advantage = self._scaled(correction.advantage, info)
        return Estimate(
            advantage=weights.truncated * advantage,
            value_target=correction.value_target,
            policy_lag=weights.summarize(),
        )
