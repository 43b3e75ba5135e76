"""Deep deterministic policy gradient.

Lillicrap et al., "Continuous control with deep reinforcement learning",
arXiv:1509.02971.

Differences from the paper:

1. The actor is changed by the critic as it was before this update, not after it: both
   losses are minimised by one backward pass. Neither reaches the other's parameters.
2. No weight decay, and no batch normalization unless a network of your own has it.
3. n-step returns, several critics of which the smallest is believed, and updates of the
   actor less often than of the critic are options.
4. A step that ends by a time limit is bootstrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.off_policy_algorithm import PathwiseActorCriticAlgorithm
from alf_lite.algorithms.parts.critics import target_copy, with_clipped_slope
from alf_lite.algorithms.parts.policy import DeterministicPolicy
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, Field, LossInfo, TimeStep
from alf_lite.distributions.action_vectors import BoxActions
from alf_lite.distributions.exploration import ActionNoise, OrnsteinUhlenbeckNoise
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorNetwork
from alf_lite.networks.network import Network, takes_whole_sequences
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_not_negative, check_unit_interval
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Coefficient, Scheduled, is_zero, set_coefficients

Nest = Any


class DdpgState(NamedTuple):
    """Recurrent states, empty for feed-forward networks, and that of the noise."""

    actor: Nest = ()  # [B, ...]
    critic: Nest = ()  # [B, ...]
    target_actor: Nest = ()  # [B, ...]
    target_critic: Nest = ()  # [B, ...]
    noise: Nest = ()  # [B, ...]


class DdpgInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    q: Tensor  # [T, B, n] or [T, B, n, D], Q_k(s_t, a_t)
    policy_value: Field  # [T, B] Q_0(s_t, μ(s_t)), gradient to μ only; () if not due
    next_value: Tensor  # [T, B] or [T, B, D], no gradient
    reward: Tensor  # [T, B] or [T, B, D], G_t
    discount: Tensor  # [T, B] Γ_t
    num_steps: Field  # [T, B] m, of a network with memory
    step_type: Tensor  # [T, B]
    action_cost: Field = ()  # [T, B] of μ(s_t), with gradient; () without action_l2


class DdpgLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each."""

    critic_loss: Tensor
    actor_loss: Field  # () if the actor is not updated
    q: Tensor


@configurable(defaults={"actor_network_ctor": ActorNetwork, "num_critics": 1})
class DdpgAlgorithm(PathwiseActorCriticAlgorithm):
    """DDPG for nests of continuous actions."""

    # As Fujimoto et al. 2018 (arXiv:1802.09477) train DDPG and TD3: an update of 256
    # transitions for every step.
    has_stochastic_policy = False
    explores_by_epsilon = False
    default_settings = DefaultSettings(
        updates_per_env_step=1.0,
        unroll_length=1,
        mini_batch_size=256,
        mini_batch_length=2,
        initial_collect_steps=1000,
        initial_random_policy=True,
        lr=1e-3,
    )

    _action_l2 = Coefficient()

    def __init__(
        self,
        *specs: Any,
        exploration_noise_ctor: Callable[..., ActionNoise] = OrnsteinUhlenbeckNoise,
        rollout_random_action: float = 0.0,
        action_l2: Scheduled = 0.0,
        **kwargs: Any,
    ) -> None:
        """Builds the networks and, for training, the targets of both.

        Args:
            *specs: of one observation, and of one action: any nest of continuous specs
                with bounds.
            exploration_noise_ctor: called as ``ctor(action_size)``.
            rollout_random_action: probability that an action of the rollout is any
                between the bounds.
            action_l2: weight of the actor's loss by the squares of its actions, scaled
                to [-1, 1]: what the actor does without need is small.
            **kwargs: see :class:`PathwiseActorCriticAlgorithm`. But
                ``actor_network_ctor`` is called as ``ctor(observation_spec,
                action_size)`` and gives vectors in [-1, 1], which are stretched to the
                bounds.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        check_unit_interval(rollout_random_action=rollout_random_action)
        check_not_negative(action_l2=action_l2)
        super().__init__(*specs, **kwargs)
        self._rollout_random_action = rollout_random_action
        set_coefficients(self, _action_l2=action_l2)
        self._noise = exploration_noise_ctor(self._actions.vector_size)
        if not isinstance(self._noise, ActionNoise):
            raise ConfigError(
                "exploration_noise_ctor must build GaussianNoise or "
                "OrnsteinUhlenbeckNoise for a deterministic policy, got "
                f"{type(self._noise).__name__}"
            )
        states = DdpgState(**self.train_state_spec._asdict())
        if not self._is_eval:
            self._target_policy = target_copy(self._policy)
            self._critics.target_updater.add([self._policy], [self._target_policy])
            states = states._replace(target_actor=states.actor)
        rollout = states._replace(noise=self._noise.state_spec)
        self._set_state_specs(
            # Where states are stored, training gets that of the noise with the others.
            train=DdpgState() if nest.is_empty(states) else rollout,
            rollout=rollout,
            predict=DdpgState(actor=states.actor),
        )

    def _make_actions(self, action_spec: NestedTensorSpec) -> BoxActions:
        return BoxActions(action_spec)

    def _make_policy(
        self, actor_network_ctor: Callable[..., Network]
    ) -> DeterministicPolicy:
        return DeterministicPolicy(actor_network_ctor, self._actor_mask, self._actions)

    def _critic_output_shape(self) -> tuple[int, ...]:
        return tuple(self.reward_spec.shape)

    # Acting

    def rollout_step(self, inputs: TimeStep, state: DdpgState) -> AlgStep:
        """Acts with noise. The replayed steps tell the action; there is no info."""
        vector, actor_state = self._policy.forward(inputs.observation, state.actor)
        vector, noise_state = self._noise.perturb(vector, state.noise)
        if self._rollout_random_action:
            is_random = torch.rand_like(vector[:, :1]) < self._rollout_random_action
            vector = torch.where(is_random, torch.rand_like(vector) * 2 - 1, vector)
        state = self._next_state(inputs, state, actor_state)
        return AlgStep(
            output=self._actions.to_action(vector),
            state=state._replace(target_actor=actor_state, noise=noise_state),
        )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """The target of the actor, too."""
        return [*super().training_only_modules, self._target_policy]

    # Learning

    @takes_whole_sequences
    def train_step(
        self, inputs: TimeStep, state: DdpgState, rollout_info: Transition
    ) -> AlgStep:
        """Values the actions that were taken and those that the actor would take."""
        observation = inputs.observation
        features, critic_state = self._critics.online.encode(observation, state.critic)
        taken = self._actions.to_vector(rollout_info.action)
        q = self._critics.online.evaluate(features, taken)
        action, policy_value, actor_state = self._evaluate_policy(
            observation, features, state.actor
        )
        # With memory, calc_loss moves the value of a step to those that bootstrap from
        # it.
        next_observation = (
            observation if self._is_recurrent else rollout_info.next_observation
        )
        next_value, target_actor, target_critic = self._next_value(
            next_observation, rollout_info, state.target_actor, state.target_critic
        )
        info = DdpgInfo(
            q=q,
            policy_value=policy_value,
            next_value=next_value,
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            num_steps=rollout_info.num_steps,
            step_type=inputs.step_type,
            action_cost=self._cost_of(action),
        )
        new_state = DdpgState(
            actor_state, critic_state, target_actor, target_critic, state.noise
        )
        return AlgStep(
            output=rollout_info.action,
            state=new_state,
            info=self._extend_info(info, rollout_info, taken, action),
        )

    def _extend_info(
        self, info: DdpgInfo, transition: Transition, taken: Tensor, action: Field
    ) -> Nest:
        """What a subclass hands to its ``calc_loss``, [B, ...].

        Args:
            info: what it is without.
            transition: that is trained.
            taken: [B, action_size] in [-1, 1], the vector of a_t.
            action: likewise of μ(s_t), with gradient; () if not due.
        """
        return info

    def _evaluate_policy(
        self, observation: Nest, features: Tensor, actor_state: Nest
    ) -> tuple[Field, Field, Nest]:
        """μ(s), Q_0(s, μ(s)) [B] with gradient to μ only, the actor's new state."""
        if not self._actor_updates.is_due:
            return (), (), actor_state
        action, actor_state = self._policy(observation, actor_state)
        values = self._critics.evaluate_frozen(features, action, only_first=True)
        value = self._weigh(values[:, 0])
        value = with_clipped_slope(value, action, self._dqda_clipping)
        return action, value, actor_state

    def _cost_of(self, action: Field) -> Field:
        """What ``action_l2`` takes for the actor's action [B, action_size], [B]."""
        if not isinstance(action, Tensor) or is_zero(self._action_l2):
            return ()
        return self._action_l2 * action.square().sum(-1)

    @torch.no_grad()
    def _next_value(
        self,
        observation: Nest,
        transition: Transition,
        actor_state: Nest,
        critic_state: Nest,
    ) -> tuple[Tensor, Nest, Nest]:
        """min_k Q_k(s, μ(s; θ⁻); θ⁻), [B] or [B, D], and the new states."""
        action, actor_state = self._target_policy(observation, actor_state)
        action = self._target_action(action)
        features, critic_state = self._critics.target.encode(observation, critic_state)
        values = self._critics.target.evaluate(features, action)
        value = self._believed(self._critics.smallest(values), action, transition)
        return value, actor_state, critic_state

    def _believed(
        self, value: Tensor, action: Tensor, transition: Transition
    ) -> Tensor:
        """What a target takes for the value of ``action`` [B, action_size]."""
        return value

    def _target_action(self, action: Tensor) -> Tensor:
        """What the target critics value, given the action of the target actor."""
        return action

    def calc_loss(self, info: DdpgInfo) -> LossInfo:
        """The losses of the critics and, if it is due, of the actor, [T-n, B]."""
        info = self._align(info, "next_value")
        critic_loss, td_error = self._critic_loss(info)
        loss, actor_loss = critic_loss, info.policy_value
        if self._actor_updates.is_due:
            actor_loss = self._actor_loss(info)
            if isinstance(info.action_cost, Tensor):
                actor_loss = actor_loss + info.action_cost
            loss = critic_loss + actor_loss
        return LossInfo(
            loss=loss,
            extra=diagnostic(
                lambda: DdpgLossInfo(
                    critic_loss=critic_loss,
                    actor_loss=actor_loss,
                    q=self._weigh(info.q).mean(-1),
                )
            ),
            priority=self.priority_of(td_error, info.step_type),
        )

    def _critic_loss(self, info: DdpgInfo) -> tuple[Tensor, Callable[[], Tensor]]:
        """Eq. 4: Σ_k (G_t + Γ_t Q'(s_{t+m}) − Q_k(s_t, a_t))²; for mean_k |δ_k|."""
        return self._critics.td_loss(
            info.q, info.reward, info.discount, info.next_value
        )

    def _actor_loss(self, info: DdpgInfo) -> Tensor:
        """−Q_0(s_t, μ(s_t)), whose gradient is that of eq. 6."""
        return -info.policy_value
