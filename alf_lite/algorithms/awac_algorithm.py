"""Advantage-weighted actor-critic, for offline training and for going on online.

Nair, Gupta, Dalal and Levine, "AWAC: Accelerating Online Reinforcement Learning with
Offline Datasets", arXiv:2006.09359. The policy is a regression on the actions of the
data, each weighted by how much better it is than what the policy does by itself.

With V(s) = E_{a~π(·|s)} min_k Q_k(s, a), V⁻ the same of the target critics, and
A_t = min_k Q_k(s_t, a_t) − V(s_t):

    L_Q = Σ_k (G_t + Γ_t V⁻(s_{t+m}) − Q_k(s_t, a_t))²
    L_π = −min(exp(A_t / λ), w_max) log π(a_t|s_t)

Differences from the paper:

1. The weights are neither divided by their sum over the states nor over the batch: they
   would depend on the size of the batch, and in a batch whose best action stands out,
   all others would count for nothing. Instead, a single weight is limited to w_max.
2. An action may have continuous and discrete parts. The critics value every joint value
   of the discrete parts, given the continuous ones, and the expectation over them is
   exact; that over the continuous parts is a mean of samples, clipped to the bounds.
3. Both losses are minimised by one backward pass; neither reaches the parameters of the
   other.
4. The deviation of the policy is one for each element; actions are kept a little away
   from their bounds, see :class:`RecordedActions`.
5. A reward of D dimensions has a critic output for each; the advantage and the choice
   between critics follow from their weighted sum.
6. n-step returns, which are those of whoever collected the data.
7. A step that ends by a time limit is bootstrapped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.off_policy_algorithm import (
    OffPolicyActorCriticAlgorithm,
    OffPolicyState,
)
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, Field, LossInfo, TimeStep
from alf_lite.distributions.action_masks import RecordedActions
from alf_lite.networks.actor_networks import NormalActorNetwork
from alf_lite.networks.network import takes_whole_sequences
from alf_lite.utils import losses
from alf_lite.utils.checks import check_positive, check_unused
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any


class AwacInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``. All with D for a reward of D dimensions."""

    q: Tensor  # [T, B, n] or [T, B, n, D], Q_k(s_t, a_t)
    advantage: Tensor  # [T, B] A_t, no gradient
    log_prob: Tensor  # [T, B] log π(a_t|s_t)
    next_value: Tensor  # [T, B] or [T, B, D], V⁻(s_{t+m}), no gradient
    reward: Tensor  # [T, B] or [T, B, D], G_t
    discount: Tensor  # [T, B] Γ_t
    num_steps: Field  # [T, B] m, of a network with memory
    step_type: Tensor  # [T, B]


class AwacLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each."""

    actor_loss: Tensor
    critic_loss: Tensor
    q: Tensor
    advantage: Tensor
    weight: Tensor  # of the regression
    log_prob: Tensor


@configurable(defaults={"actor_network_ctor": NormalActorNetwork})
class AwacAlgorithm(OffPolicyActorCriticAlgorithm):
    """AWAC for nests of continuous and discrete actions."""

    # Nair et al. 2020; batches as SAC has them.
    default_settings = DefaultSettings(
        unroll_length=1, mini_batch_size=256, mini_batch_length=2, lr=3e-4
    )

    _recorded: RecordedActions

    _temperature = Coefficient()
    _max_weight = Coefficient()

    def __init__(
        self,
        *specs: Any,
        temperature: Scheduled = 1.0,
        max_weight: Scheduled = 100.0,
        num_action_samples: int = 1,
        action_margin: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`OffPolicyActorCriticAlgorithm`.

        Args:
            *specs: of one observation, and of one action: any nest of bounded specs.
            temperature: λ, in units of the return. Large values imitate all actions
                alike, small ones only the best.
            max_weight: w_max, of one step in the regression.
            num_action_samples: of the continuous parts, in each expectation.
            action_margin: see :class:`RecordedActions`.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        check_positive(
            temperature=temperature,
            max_weight=max_weight,
            num_action_samples=num_action_samples,
        )
        super().__init__(*specs, **kwargs)
        self._build_networks()
        self._recorded = RecordedActions(self.action_spec, self._mask, action_margin)
        set_coefficients(self, _temperature=temperature, _max_weight=max_weight)
        if not self._actions.vector_size:
            reason = "without continuous actions, the expectation is exact"
            check_unused(type(self), reason, num_action_samples=num_action_samples)
        self._num_action_samples = num_action_samples

    @takes_whole_sequences
    def train_step(
        self, inputs: TimeStep, state: OffPolicyState, rollout_info: Transition
    ) -> AlgStep:
        """Values the actions that were taken and those that the policy would take."""
        observation, action = inputs.observation, rollout_info.action
        policy, actor_state = self._policy(observation, state.actor)
        features, critic_state = self._critics.online.encode(observation, state.critic)
        values = self._critics.online.evaluate(
            features, self._actions.to_vector(action)
        )  # [B, n, A, ...]
        q = self._actions.values_of(action, values)
        if self._is_recurrent:
            # calc_loss moves the value of a step to those that bootstrap from it.
            next_observation, next_policy = observation, policy
        else:
            next_observation = rollout_info.next_observation
            with torch.no_grad():
                next_policy, _ = self._policy(next_observation)
        next_features, target_state = self._critics.target.encode(
            next_observation, state.target_critic
        )
        info = AwacInfo(
            q=q,
            advantage=self._advantage(q, features, policy),
            log_prob=self._recorded.log_prob(policy, action, observation),
            next_value=self._value(self._critics.target, next_features, next_policy),
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            num_steps=rollout_info.num_steps,
            step_type=inputs.step_type,
        )
        return AlgStep(
            output=action,
            state=OffPolicyState(actor_state, critic_state, target_state),
            info=info,
        )

    @torch.no_grad()
    def _advantage(self, q: Tensor, features: Tensor, policy: Nest) -> Tensor:
        """A = min_k Q_k(s, a) − V(s), weighted to [B].

        Args:
            q: [B, n] or [B, n, D], Q_k(s, a).
            features: [B, F], of the critics for s.
            policy: π(·|s).
        """
        value = self._value(self._critics.online, features, policy)
        return self.scalar_reward(self._critics.smallest(q) - value)

    @torch.no_grad()
    def _value(self, critic: Any, features: Tensor, policy: Nest) -> Tensor:
        """V(s) = E_{a~π(·|s)} min_k Q_k(s, a), [B] or [B, D].

        Args:
            critic: Q.
            features: [B, F], of ``critic`` for s.
            policy: π(·|s).
        """
        num_samples = self._num_action_samples
        if num_samples > 1:
            policy, features = nest.map_structure(
                lambda t: t.repeat(num_samples, *(1,) * (t.ndim - 1)),
                (policy, features),
            )
        sample = self._actions.draw(policy)
        vector = None if sample.vector is None else sample.vector.clamp(-1, 1)
        values = critic.evaluate(features, vector)
        value = sample.expectation(self._critics.smallest(values))
        # [num_samples · B, ...]
        return value.unflatten(0, (num_samples, -1)).mean(0)

    def calc_loss(self, info: AwacInfo) -> LossInfo:
        """The losses of critics and actor, [T-n, B]."""
        info = self._align(info, "next_value")
        critic_loss, td_error = self._critics.td_loss(
            info.q, info.reward, info.discount, info.next_value
        )
        weight = losses.exponential_weights(
            info.advantage, 1 / self._temperature, self._max_weight
        )
        actor_loss = -weight * info.log_prob
        return LossInfo(
            loss=critic_loss + actor_loss,
            extra=diagnostic(
                lambda: AwacLossInfo(
                    actor_loss=actor_loss,
                    critic_loss=critic_loss,
                    q=self.scalar_reward(info.q).mean(-1),
                    advantage=info.advantage,
                    weight=weight,
                    log_prob=info.log_prob,
                )
            ),
            priority=self.priority_of(td_error, info.step_type),
        )
