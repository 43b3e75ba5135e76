"""Implicit Q-learning, for offline training and for going on online.

Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning",
arXiv:2110.06169. No critic is ever asked about an action that is not in the data.

With Q⁻(s, a) the smallest of the target critics and A_t = Q⁻(s_t, a_t) − V(s_t):

    L_V = |τ − 1(A_t < 0)| (Q⁻(s_t, a_t) − V(s_t))²
    L_Q = Σ_k (G_t + Γ_t V(s_{t+m}) − Q_k(s_t, a_t))²
    L_π = −min(exp(β A_t), w_max) log π(a_t|s_t)

Differences from the paper:

1. The three losses are minimised by one backward pass; none reaches the parameters of
   another. Q and π see V as it was before this update.
2. An action may have discrete parts: the critics value every joint value of them.
3. The mean of the policy is not squashed by tanh; actions are kept a little away from
   their bounds, see :class:`RecordedActions`.
4. A reward of D dimensions has a critic and a value output for each. The advantage is
   their weighted sum, and both weights above follow from it alone.
5. n-step returns, which are those of whoever collected the data.
6. A step that ends by a time limit is bootstrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.off_policy_algorithm import OffPolicyActorCriticAlgorithm
from alf_lite.algorithms.parts.critics import make_critic_network
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, Field, LossInfo, TimeStep
from alf_lite.distributions.action_masks import RecordedActions
from alf_lite.networks.actor_networks import NormalActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.network import takes_whole_sequences
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.utils import losses
from alf_lite.utils.checks import check_positive, extremes
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any


class IqlState(NamedTuple):
    """Recurrent states; all empty for feed-forward networks."""

    actor: Nest = ()  # [B, ...]
    critic: Nest = ()  # [B, ...]
    target_critic: Nest = ()  # [B, ...]
    value: Nest = ()  # [B, ...]


class IqlInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``. All with D for a reward of D dimensions."""

    q: Tensor  # [T, B, n] or [T, B, n, D], Q_k(s_t, a_t)
    target_q: Tensor  # [T, B] or [T, B, D], Q⁻(s_t, a_t), no gradient
    value: Tensor  # [T, B] or [T, B, D], V(s_t)
    next_value: Tensor  # [T, B] or [T, B, D], V(s_{t+m}), no gradient
    log_prob: Tensor  # [T, B] log π(a_t|s_t)
    reward: Tensor  # [T, B] or [T, B, D], G_t
    discount: Tensor  # [T, B] Γ_t
    num_steps: Field  # [T, B] m, of a network with memory
    step_type: Tensor  # [T, B]


class IqlLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each."""

    actor_loss: Tensor
    critic_loss: Tensor
    value_loss: Tensor
    q: Tensor
    value: Tensor
    advantage: Tensor
    weight: Tensor  # of the regression
    log_prob: Tensor


@configurable(defaults={"actor_network_ctor": NormalActorNetwork})
class IqlAlgorithm(OffPolicyActorCriticAlgorithm):
    """IQL for nests of continuous and discrete actions."""

    # Kostrikov et al. 2021, appendix B.
    default_settings = DefaultSettings(
        unroll_length=1, mini_batch_size=256, mini_batch_length=2, lr=3e-4
    )

    _recorded: RecordedActions

    _expectile = Coefficient()
    _beta = Coefficient()
    _max_weight = Coefficient()

    def __init__(
        self,
        *specs: Any,
        value_network_ctor: Callable[..., CriticNetwork] = CriticNetwork,
        expectile: Scheduled = 0.7,
        beta: Scheduled = 3.0,
        max_weight: Scheduled = 100.0,
        action_margin: float = 1e-3,
        value_optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`OffPolicyActorCriticAlgorithm`.

        Args:
            *specs: of one observation, and of one action: any nest of bounded specs.
            value_network_ctor: called as that of the critics, for a single one without
                action.
            expectile: τ in (0, 1); 0.5 values the policy of the data, near 1 the best
                that can be put together from it.
            beta: β, in units of one over the return. Small values imitate all actions
                alike, large ones only the best.
            max_weight: w_max, of one step in the regression.
            action_margin: see :class:`RecordedActions`.
            value_optimizer: of the value network; None: ``optimizer`` trains it, too.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        if not all(0 < tau < 1 for tau in extremes(expectile)):
            raise ValueError(f"expectile must lie in (0, 1), got {expectile}")
        check_positive(beta=beta, max_weight=max_weight)
        super().__init__(*specs, **kwargs)
        self._build_networks()
        self._recorded = RecordedActions(self.action_spec, self._mask, action_margin)
        set_coefficients(self, _expectile=expectile, _beta=beta, _max_weight=max_weight)
        states = IqlState(*self.train_state_spec)
        if not self._is_eval:
            shape = tuple(self.reward_spec.shape)
            self._value_network = make_critic_network(
                value_network_ctor,
                self._critic_mask,
                0,
                1,
                shape,
                what="value_network_ctor",
            )
            self._claim(value_optimizer, self._value_network)
            states = states._replace(value=self._value_network.state_spec)
        self._set_state_specs(states, predict=IqlState(actor=states.actor))

    # Acting

    def rollout_step(self, inputs: TimeStep, state: IqlState) -> AlgStep:
        """Samples an action; a value network with memory sees the observation, too."""
        step = super().rollout_step(inputs, state)
        if nest.is_empty(state.value):
            return step
        _, value_state = self._value_network.encode(inputs.observation, state.value)
        return step._replace(state=step.state._replace(value=value_state))

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """A value network without memory, too."""
        has_state = not nest.is_empty(self.rollout_state_spec.value)
        others: list[nn.Module] = [] if has_state else [self._value_network]
        return [*super().training_only_modules, *others]

    # Learning

    @takes_whole_sequences
    def train_step(
        self, inputs: TimeStep, state: IqlState, rollout_info: Transition
    ) -> AlgStep:
        """Evaluates all networks on the actions that were taken."""
        observation, action = inputs.observation, rollout_info.action
        policy, actor_state = self._policy(observation, state.actor)
        q, critic_state = self._q(
            self._critics.online, observation, action, state.critic
        )
        with torch.no_grad():
            target_q, target_state = self._q(
                self._critics.target, observation, action, state.target_critic
            )
        value, value_state = self._value(observation, state.value)
        if self._is_recurrent:
            # calc_loss moves the value of a step to those that bootstrap from it.
            next_value = value.detach()
        else:
            with torch.no_grad():
                next_value, _ = self._value(rollout_info.next_observation)
        info = IqlInfo(
            q=q,
            target_q=self._critics.smallest(target_q),
            value=value,
            next_value=next_value,
            log_prob=self._recorded.log_prob(policy, action, observation),
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            num_steps=rollout_info.num_steps,
            step_type=inputs.step_type,
        )
        return AlgStep(
            output=action,
            state=IqlState(actor_state, critic_state, target_state, value_state),
            info=info,
        )

    def _q(
        self, critic: Any, observation: Nest, action: Nest, state: Nest
    ) -> tuple[Tensor, Nest]:
        """Q_k(s, a), [B, n] or [B, n, D], and the new state."""
        features, state = critic.encode(observation, state)
        values = critic.evaluate(features, self._actions.to_vector(action))
        return self._actions.values_of(action, values), state

    def _value(self, observation: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """V(s), [B] or [B, D], and the new state."""
        values, state = self._value_network((observation, None), state)
        return values.squeeze(1), state

    def calc_loss(self, info: IqlInfo) -> LossInfo:
        """The sum of the losses of value network, critics and actor, [T-n, B]."""
        info = self._align(info, "next_value")
        advantage = self.scalar_reward(info.target_q - info.value.detach())
        weight = losses.exponential_weights(advantage, self._beta, self._max_weight)
        value_loss = self._value_loss(info, advantage)
        critic_loss, td_error = self._critics.td_loss(
            info.q, info.reward, info.discount, info.next_value
        )  # eq. 6
        actor_loss = -weight * info.log_prob  # eq. 7
        return LossInfo(
            loss=value_loss + critic_loss + actor_loss,
            extra=diagnostic(
                lambda: IqlLossInfo(
                    actor_loss=actor_loss,
                    critic_loss=critic_loss,
                    value_loss=value_loss,
                    q=self.scalar_reward(info.q).mean(-1),
                    value=self.scalar_reward(info.value),
                    advantage=advantage,
                    weight=weight,
                    log_prob=info.log_prob,
                )
            ),
            priority=self.priority_of(td_error, info.step_type),
        )

    def _value_loss(self, info: IqlInfo, advantage: Tensor) -> Tensor:
        """Eq. 5: |τ − 1(A_t < 0)| (Q⁻(s_t, a_t) − V(s_t))²."""
        error = losses.squared(info.value, info.target_q)
        if self.has_multidim_reward:
            error = error.sum(-1)
        return losses.expectile_weights(advantage, self._expectile) * error
