"""Proximal policy optimization with the clipped surrogate.

Schulman et al., "Proximal Policy Optimization Algorithms", arXiv:1707.06347.

Differences from the paper:

1. The advantages are normalised in every mini-batch (``normalize_advantages``).
2. Actor and value network are separate by default.
3. Optional clipping of the value (``value_clip``), early stop of the updates of an
   iteration by the KL divergence (``target_kl``) and learning rates that follow it
   (``desired_kl``), all in wide use.
4. A step that ends by a time limit is bootstrapped.
5. Optionally (``off_policy_correction``) older parameters may have acted. Then there
   are three policies, as in Hilton, Cobbe and Schulman, "Batch size-invariance for
   policy optimization", arXiv:2110.00641: μ acted, π_prox is the one at the start of
   the updates, which keeps them near, and π is trained. Unlike there, the weights
   π_prox/μ are truncated, and V-trace corrects the advantages, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
    ActorCriticState,
)
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.batch_loss import info_of_steps
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.policy_gradient import ClippedLoss, PPOLossInfo
from alf_lite.algorithms.parts.policy_lag import ImportanceWeights, LagCorrector
from alf_lite.algorithms.parts.trust_region import KlAdaptiveRate, check_measures_kl
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import (
    AlgStep,
    BatchInfo,
    Experience,
    Field,
    LossInfo,
    TimeStep,
)
from alf_lite.distributions import functions as distributions
from alf_lite.errors import ConfigError
from alf_lite.networks.network import takes_whole_sequences
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.utils import losses
from alf_lite.utils.checks import check_choice, check_positive, check_unused
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any

OffPolicyCorrection = Literal["none", "vtrace"]


class PPOInfo(NamedTuple):
    """From ``preprocess_experience`` through ``train_step`` to ``calc_loss``."""

    action: Nest  # [T, B, ...] a_t
    log_prob: Tensor  # [T, B] log π_old(a_t|s_t), of π_prox if a lag is corrected
    advantage: Tensor  # [T, B] A_t
    value_target: Tensor  # [T, B] or [T, B, D]
    old_value: Tensor  # [T, B] or [T, B, D], V_old(s_t)
    valid: Tensor  # [T, B] bool, steps with a transition in this unroll
    action_distribution: Nest = ()  # [T, B, ...] π(·|s_t), with gradient
    value: Field = ()  # [T, B] or [T, B, D], V(s_t), with gradient
    weights: ImportanceWeights | tuple[()] = ()  # [T, B] π_prox/μ
    old_distribution: Nest = ()  # [T, B, ...] π_old(·|s_t), if ``desired_kl`` is set
    normalized_advantage: Field = ()  # [T, B], where a loss sees a part of the steps


@configurable(defaults={"entropy_regularization": 0.0, "normalize_advantages": True})
class PPOAlgorithm(ActorCriticAlgorithm):
    """PPO-clip.

    The passes over an unroll and their mini-batches are those of
    ``TrainerConfig.epochs``, ``mini_batch_size`` and
    ``mini_batch_length`` (1 for feed-forward networks).
    """

    needs_successors = False  # advantages are computed before the updates
    # With ``target_kl``. The diagnostics of every update are computed for it.
    stops_updates_early = False

    # Schulman et al. 2017: 8 actors x 128 steps (table 5), in 4 mini-batches, each of
    # the steps of two actors; 10 passes (table 3). ε is that of their program; with
    # 1e-8, small gradients make long steps (on LunarLander it costs 10 points).
    default_settings = DefaultSettings(
        num_parallel_environments=8,
        unroll_length=128,
        epochs=10,
        mini_batch_size=64,
        mini_batch_length=1,
        lr=((0.0, 3e-4), (1.0, 0.0)),
        gradient_clipping=0.5,
        eps=1e-5,
    )

    _clip_epsilon = Coefficient()
    _log_prob_clip = Coefficient()

    def __init__(
        self,
        *specs: Any,
        clip_epsilon: Scheduled = 0.2,
        value_clip: Scheduled | None = None,
        target_kl: float | None = None,
        desired_kl: float | None = None,
        log_prob_clip: Scheduled | None = None,
        off_policy_correction: OffPolicyCorrection = "none",
        rho_clip: float = 1.0,
        c_clip: float = 1.0,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`ActorCriticAlgorithm` for what is not here.

        Args:
            clip_epsilon: ε of the surrogate.
            value_clip: how far the value may move from the old one; None for no limit.
            target_kl: no more updates on this unroll once the approximate KL divergence
                from the old policy exceeds 1.5 times this; None for no limit.
            desired_kl: learning rates rise and fall, so that the updates on an unroll
                move the policy about so far, see :class:`KlAdaptiveRate`; None: they
                are those of the optimizers.
            log_prob_clip: log-probabilities count as if they were in [-c, c]; None for
                no limit.
            off_policy_correction: "vtrace" if older parameters may have acted, as in
                asynchronous unrolls; costs one more evaluation of the unroll. "none"
                takes the policy that acted for the one at the start of the updates.
            rho_clip: ρ̄ of the correction, see :class:`ImpalaAlgorithm`.
            c_clip: c̄ of the correction.

        Raises:
            ValueError: if a coefficient is out of its range.
        """
        check_choice(OffPolicyCorrection, off_policy_correction=off_policy_correction)
        check_positive(
            clip_epsilon=clip_epsilon,
            value_clip=value_clip,
            target_kl=target_kl,
            desired_kl=desired_kl,
            log_prob_clip=log_prob_clip,
        )
        super().__init__(*specs, **kwargs)
        set_coefficients(self, _clip_epsilon=clip_epsilon, _log_prob_clip=log_prob_clip)
        cls = type(self)
        self._clipped_loss = ClippedLoss(
            cls._clip_epsilon.given(self),
            value_clip,
            cls._value_loss_weight.given(self),
            cls._entropy_regularization.given(self),
        )
        self._target_kl = target_kl
        if target_kl is not None:
            self.stops_updates_early = True
        self._adaptive_rate: KlAdaptiveRate | None = None
        if not self._is_eval:
            check_measures_kl(self._policy, target_kl=target_kl, desired_kl=desired_kl)
            if desired_kl is not None:
                self._adaptive_rate = KlAdaptiveRate(desired_kl)
        self._correct_lag: LagCorrector | None = None
        if off_policy_correction == "vtrace":
            td_lambda = cls._td_lambda.given(self)
            self._correct_lag = LagCorrector(td_lambda, rho_clip, c_clip)
        else:
            reason = "off_policy_correction is 'none'"
            check_unused(LagCorrector, reason, rho_clip=rho_clip, c_clip=c_clip)

    @property
    def corrects_policy_lag(self) -> bool:
        """As ``off_policy_correction`` says."""
        return self._correct_lag is not None

    # Acting

    def _rollout_info(
        self, action: Nest, distribution: Nest, value: Field
    ) -> ActorCriticInfo:
        """Keeps π_old, and V_old where a recurrent network was evaluated."""
        return ActorCriticInfo(
            action=action, action_distribution=distribution, value=value
        )

    # Learning

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """Evaluates π_prox and V on the unroll [B, T, ...] if a lag is corrected."""
        if self.corrects_policy_lag:
            info = experience.rollout_info
            log_prob = distributions.log_prob(info.action_distribution, info.action)
            batch = TrainingBatch(
                experience.time_step, info, experience.state, valid, batch_info
            )
            with torch.no_grad():
                info = info_of_steps(self, batch)
            experience = experience._replace(
                rollout_info=info._replace(rollout_log_prob=log_prob)
            )
        if self._adaptive_rate is not None:
            self._adaptive_rate.scale(self._own_optimizers())
        return super().preprocess(experience, valid, batch_info)

    def preprocess_experience(
        self,
        root_inputs: TimeStep,
        rollout_info: ActorCriticInfo,
        batch_info: BatchInfo,
    ) -> tuple[TimeStep, PPOInfo]:
        """Computes what stays fixed during the updates: log π_old, A and the target."""
        value = rollout_info.value
        if isinstance(value, tuple):
            value, _ = self._value(flatten_outer(root_inputs.observation))
            value = value.unflatten(0, root_inputs.step_type.shape)
        old_distribution = rollout_info.action_distribution
        log_prob = distributions.log_prob(old_distribution, rollout_info.action)
        advantage, value_target, weights = self._advantages(
            root_inputs, value, log_prob, rollout_info.rollout_log_prob
        )
        advantage, weights = nest.map_structure(
            _with_bootstrap_row, (advantage, weights)
        )
        valid = valid_steps(root_inputs.step_type)
        valid[:, -1] = False
        info = PPOInfo(
            action=rollout_info.action,
            log_prob=log_prob,
            advantage=self.scalar_reward(advantage),
            value_target=torch.cat([value_target, value[:, -1:]], dim=1),
            old_value=value,
            valid=valid,
            weights=weights,
            old_distribution=() if self._adaptive_rate is None else old_distribution,
        )
        return root_inputs, info

    def _advantages(
        self, steps: TimeStep, value: Tensor, log_prob: Tensor, rollout_log_prob: Field
    ) -> tuple[Tensor, Tensor, ImportanceWeights | tuple[()]]:
        """A_t and R_t of the first T-1 steps; those of V-trace if a lag is corrected.

        Args:
            steps: [B, T, ...].
            value: [B, T] or [B, T, D], V_old.
            log_prob: [B, T], log π_old(a_t|s_t).
            rollout_log_prob: [B, T], log μ(a_t|s_t); () if they are the same.
        """
        if self._correct_lag is not None:
            assert isinstance(rollout_log_prob, Tensor)
            return self._correct_lag(
                steps.reward,
                value,
                steps.step_type,
                self._gamma * steps.discount,
                log_prob,
                rollout_log_prob,
                time_major=False,
            )
        advantage = self._generalized_advantage(
            steps.reward, value, steps.step_type, steps.discount, time_major=False
        )
        return advantage, advantage + value[:, :-1], ()

    @takes_whole_sequences
    def train_step(
        self, inputs: TimeStep, state: ActorCriticState, rollout_info: PPOInfo
    ) -> AlgStep:
        """Evaluates the current networks on the steps of the unroll."""
        distribution, actor_state = self._policy(inputs.observation, state.actor)
        value, value_state = self._value(inputs.observation, state.value)
        return AlgStep(
            output=rollout_info.action,
            state=ActorCriticState(actor=actor_state, value=value_state),
            info=rollout_info._replace(action_distribution=distribution, value=value),
        )

    def calc_loss(self, info: PPOInfo) -> LossInfo:
        """−L^CLIP + c_v (V − R)² − c_e H, eq. 9 of the paper, [T, B]."""
        log_prob, entropy = distributions.log_prob_and_entropy(
            info.action_distribution, info.action
        )
        advantage = self._advantage_of(info)
        clip = self._log_prob_clip
        if clip is not None:
            bounds = (-clip, clip)
            log_prob = log_prob.clamp(*bounds)
            info = info._replace(log_prob=info.log_prob.clamp(*bounds))
        loss, parts = self._clipped_loss(log_prob, info.value, entropy, advantage, info)
        extra = diagnostic(lambda: self._with_diagnostics(parts, log_prob, info))
        return LossInfo(loss=loss, extra=extra or parts)

    def add_batch_statistics(
        self, rollout_infos: Sequence[PPOInfo]
    ) -> Sequence[PPOInfo]:
        """Normalizes the advantages by the whole mini-batch."""
        if not self._normalize_advantages:
            return rollout_infos
        batches = [(info.advantage, info.valid) for info in rollout_infos]
        return [
            info._replace(normalized_advantage=advantage)
            for info, advantage in zip(
                rollout_infos, losses.normalize_each(batches), strict=True
            )
        ]

    def _advantage_of(self, info: PPOInfo) -> Tensor:
        """A_t, normalized and clipped if so configured."""
        advantage = info.advantage
        if isinstance(info.normalized_advantage, Tensor):
            advantage = info.normalized_advantage
        elif self._normalize_advantages:
            advantage = losses.normalize(advantage, info.valid)
        return self._clipped(advantage)

    def _with_diagnostics(
        self, parts: PPOLossInfo, log_prob: Tensor, info: PPOInfo
    ) -> PPOLossInfo:
        log_ratio = log_prob - info.log_prob
        ratio = log_ratio.exp()
        return parts._replace(
            approx_kl=ratio - 1 - log_ratio,
            clip_fraction=((ratio - 1).abs() > self._clip_epsilon).float(),
            explained_variance=losses.explained_variance(
                info.old_value, info.value_target, info.valid
            ),
            policy_lag=info.weights.summarize() if info.weights else (),
        )

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Adapts the learning rates by how far the policy was before the update."""
        super().after_update(root_inputs, info)
        if self._adaptive_rate is None:
            return
        policies = info.old_distribution, info.action_distribution
        with torch.no_grad():
            kl = losses.batch_mean(distributions.kl_divergence(*policies), info.valid)
        self._adaptive_rate.adapt(kl)
        self._adaptive_rate.scale(self._own_optimizers())

    def _trained(self, info: Nest) -> Tensor:
        return info.valid

    def check_optimizers(self) -> None:
        """``desired_kl`` needs one of its own."""
        if self._adaptive_rate is not None:
            self._own_optimizers()

    def _own_optimizers(self) -> list[Optimizer]:
        """Also of a part of a composition, whose root has the names."""
        claims = [optimizer for optimizer, _ in self._claims]
        if not claims:
            raise ConfigError(
                f"{self.name}.desired_kl changes the learning rate of an optimizer of "
                f"its own: set {type(self).__name__}.optimizer = @Adam()"
            )
        return claims

    def should_stop_updates(self, loss_info: LossInfo, valid: Tensor) -> bool | Tensor:
        """Stops once the policy moved 1.5 times as far as ``target_kl`` wants."""
        if self._target_kl is None:
            return False
        approx_kl = losses.batch_mean(loss_info.extra.approx_kl, valid)
        return approx_kl > 1.5 * self._target_kl


def _with_bootstrap_row(x: Tensor) -> Tensor:
    """[B, T-1, ...] → [B, T, ...] with zeros, of a row that is not trained."""
    return torch.cat([x, torch.zeros_like(x[:, :1])], dim=1)
