"""Conservative Q-learning: critics that do not overrate actions they never saw.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning",
arXiv:2006.04779. It is SAC whose critics also make small what the paper calls CQL(H),
eq. 4: the gap between the soft maximum of the values of all actions and the value of
the stored one,

    gap_k(s_t, a_t) = T log ∫ exp(Q_k(s_t, a) / T) da − Q_k(s_t, a_t)
    loss of critic k = ½ (Q_k(s_t, a_t) − y_t)² + α gap_k(s_t, a_t)

The integral is estimated from N actions each that are uniform, drawn from π(·|s_t) and
drawn from π(·|s_{t+m}), weighted by one over their density (appendix F). Over discrete
parts of the action it is a sum, and exact. With a threshold τ, α is learnt as the
multiplier of the constraint gap ≤ τ (eq. 30).

Nothing here asks where steps come from: the algorithm learns from a replay buffer of
its own, from offline buffers, or from both.

Differences from the paper:

1. Those of :mod:`~alf_lite.algorithms.sac_algorithm`. The Bellman error is halved, as
   in the paper; the authors' code does not do so, and its weight is twice the α here.
2. The weights are densities of vectors in [-1, 1], whatever the bounds of the action,
   and there is a temperature T.
3. The weighted samples are averaged, so that the gap does not depend on N; the authors'
   code leaves a constant out, by which its thresholds differ.
4. The loss of α is in log α, as that of SAC's temperature.
5. What the targets bootstrap from is an option: ``"expected"`` has no entropy in it, as
   the authors' code by default; ``"soft"`` is SAC's; ``"max"`` is the best of N actions
   of the policy, each of them as good as its most pessimistic critic says.
6. Networks with memory have no draws from π(·|s_{t+m}).
7. The actor is not trained by cloning the behaviour first.
8. For a reward of several dimensions, values are their weighted sum.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts.conservative import (
    ConservativeWeight,
    sampled_logsumexp,
    scaled_logsumexp,
)
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.sac_algorithm import (
    SacAlgorithm,
    SacEvaluation,
    SacInfo,
    SacLossInfo,
)
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import Field, LossInfo
from alf_lite.distributions.exploration import masked_argmax
from alf_lite.networks.batch_norm import trained_rows
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.utils.checks import (
    check_choice,
    check_left_out,
    check_positive,
    check_unused,
)
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any

Backup = Literal["expected", "max", "soft"]


class CqlInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    sac: SacInfo
    gap: Tensor  # [T, B, n], with gradient to the critics
    is_offline: Field  # [T, B] bool, if only these rows count


class CqlLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each; cql_alpha []."""

    sac: SacLossInfo
    conservative_loss: Tensor
    gap: Tensor  # mean of the critics
    cql_alpha: Tensor


@configurable
class CqlAlgorithm(SacAlgorithm):
    """CQL for nests of continuous and discrete actions."""

    # Kumar et al. 2020, appendix F; there the policy's rate is smaller.
    default_settings = DefaultSettings(
        unroll_length=1, mini_batch_size=256, mini_batch_length=2, lr=3e-4
    )

    _cql_temperature = Coefficient()

    def __init__(
        self,
        *specs: Any,
        cql_alpha: Scheduled = 5.0,
        cql_threshold: float | None = None,
        cql_temperature: Scheduled = 1.0,
        num_sampled_actions: int = 10,
        importance_weighted: bool = True,
        backup: Backup = "expected",
        offline_rows_only: bool = False,
        cql_alpha_optimizer: Optimizer | None = None,
        use_entropy_reward: None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`SacAlgorithm` for what is not here.

        Args:
            cql_alpha: α; with a threshold, where it starts.
            cql_threshold: τ, the gap that is wanted; None keeps α. No gap is smaller
                than the entropy of the stored actions.
            cql_temperature: T of the soft maximum.
            num_sampled_actions: N, of each of the three kinds.
            importance_weighted: False leaves the densities of samples out. It is the
                paper's CQL(ρ) then, with the mixture of the three kinds for ρ.
            backup: see the top of this module.
            offline_rows_only: conservative about rows of offline buffers, not about the
                run's own steps, whose mistakes are found out.
            cql_alpha_optimizer: of α with a threshold; None: ``optimizer`` trains it.
            use_entropy_reward: has no effect, ``backup`` says it.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        check_choice(Backup, backup=backup)
        check_positive(
            cql_temperature=cql_temperature, num_sampled_actions=num_sampled_actions
        )
        check_left_out(
            f"{type(self).__name__}.backup says what targets hold of the entropy",
            use_entropy_reward=use_entropy_reward,
        )
        super().__init__(*specs, use_entropy_reward=backup == "soft", **kwargs)
        set_coefficients(self, _cql_temperature=cql_temperature)
        if not self._actions.vector_size:
            check_unused(
                type(self),
                "no part of the action is continuous",
                num_sampled_actions=num_sampled_actions,
                importance_weighted=importance_weighted,
            )
        self._num_sampled_actions = num_sampled_actions
        self._importance_weighted = importance_weighted
        self._backup_kind = backup
        self._offline_rows_only = self.needs_recorded_steps = offline_rows_only
        if self._is_eval:
            return
        self._conservative_weight = ConservativeWeight(
            cql_alpha, cql_threshold, cql_alpha_optimizer
        )
        self._claim(cql_alpha_optimizer, self._conservative_weight)

    def _extend_info(
        self, info: SacInfo, transition: Transition, evaluation: SacEvaluation
    ) -> CqlInfo:
        """Adds the gap."""
        gap = self._logsumexp(evaluation) - self._weigh(info.q)
        return CqlInfo(sac=info, gap=gap, is_offline=transition.is_offline)

    def _logsumexp(self, evaluation: SacEvaluation) -> Tensor:
        """T log ∫ exp(Q_k(s_t, a) / T) da, [B, n]."""
        allowed = self._mask.allowed_joint_values(evaluation.observation)
        if not self._actions.vector_size:
            if allowed is not None:
                allowed = allowed.unsqueeze(1)  # [B, 1, A]
            values = self._weigh(evaluation.values)
            return scaled_logsumexp(values, self._cql_temperature, allowed)
        vectors, log_densities = self._sample_vectors(evaluation)
        values = self._values_of_samples(
            self._critics.online, evaluation.features, vectors
        )
        return sampled_logsumexp(
            self._weigh(values), log_densities, self._cql_temperature, allowed
        )

    @torch.no_grad()
    def _sample_vectors(self, evaluation: SacEvaluation) -> tuple[Tensor, Tensor]:
        """What the soft maximum is estimated from.

        Returns:
            vectors [S, B, vector_size], and the logarithms of their densities [S, B].
        """
        policies = [evaluation.policy]
        if not nest.is_empty(evaluation.next_policy):
            policies.append(evaluation.next_policy)
        drawn, log_densities = self._actions.sample_vectors(
            nest.cat(policies), self._num_sampled_actions
        )  # [N, 2 B, ...]
        batch_size = evaluation.features.shape[0]
        drawn = torch.cat(drawn.split(batch_size, dim=1))
        log_densities = torch.cat(log_densities.split(batch_size, dim=1))
        uniform = 2 * torch.rand_like(drawn[: self._num_sampled_actions]) - 1
        log_density = -self._actions.vector_size * math.log(2.0)
        log_densities = torch.cat(
            [log_densities, log_densities.new_full(uniform.shape[:2], log_density)]
        )
        if not self._importance_weighted:
            log_densities = torch.zeros_like(log_densities)
        return torch.cat([drawn, uniform]), log_densities

    @staticmethod
    def _values_of_samples(
        critic: CriticNetwork, features: Tensor, vectors: Tensor
    ) -> Tensor:
        """Q_k of S vectors for every row, evaluated at once.

        Args:
            critic: whose values are wanted.
            features: [B, F], of the critics.
            vectors: [S, B, vector_size].

        Returns:
            [S, B, n, A, ...].
        """
        repeated = features.expand(len(vectors), *features.shape).flatten(0, 1)
        with trained_rows.repeated(len(vectors)):
            values = critic.evaluate(repeated, vectors.flatten(0, 1))
        return values.unflatten(0, vectors.shape[:2])

    @torch.no_grad()
    def _next_value(
        self, observation: Nest, policy: Nest, target_state: Nest
    ) -> tuple[Tensor, Nest]:
        """V(s) of the target critics, see the top of this module."""
        if self._backup_kind != "max":
            return super()._next_value(observation, policy, target_state)
        features, target_state = self._critics.target.encode(observation, target_state)
        return self._best_value(observation, policy, features), target_state

    def _best_value(self, observation: Nest, policy: Nest, features: Tensor) -> Tensor:
        """max_a min_k Q_k(s, a; θ⁻), [B] or [B, D'].

        The maximum is over the samples of the policy, and over what is discrete.
        """
        critic = self._critics.target
        if not self._actions.vector_size:
            values = self._critics.smallest(critic.evaluate(features, None))
            values = values.unsqueeze(1)
        else:
            vectors, _ = self._actions.sample_vectors(policy, self._num_sampled_actions)
            values = self._values_of_samples(critic, features, vectors)
            values = self._critics.smallest(values.flatten(0, 1))
            values = values.unflatten(0, vectors.shape[:2]).transpose(0, 1)
        # [B, S, A, ...], S = 1 without vectors
        allowed = self._mask.allowed_joint_values(observation)
        if allowed is not None:
            allowed = allowed.unsqueeze(1).expand(values.shape[:3]).flatten(1)
        values = values.flatten(1, 2)
        best = masked_argmax(self._weigh(values), allowed)
        return values[torch.arange(len(best), device=best.device), best]

    def calc_loss(self, info: Any) -> LossInfo:
        """The losses of SAC and, of the critics, α Σ_k gap_k, eq. 4; [T-n, B].

        Args:
            info: CqlInfo, [T, B, ...].
        """
        loss = super().calc_loss(info.sac)
        num_rows = loss.loss.shape[0]
        gap = info.gap[:num_rows]
        weight = self._conservative_weight
        conservative_loss = weight.alpha * gap.sum(-1)
        added = conservative_loss + weight(gap.mean(-1))
        if self._offline_rows_only:
            added = torch.where(info.is_offline[:num_rows], added, 0.0)
        extra = CqlLossInfo(
            sac=loss.extra,
            conservative_loss=conservative_loss,
            gap=gap.mean(-1),
            cql_alpha=weight.alpha,
        )
        return loss._replace(loss=loss.loss + added, extra=extra)
