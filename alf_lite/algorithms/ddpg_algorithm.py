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
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.critic_ensembles import smallest_critic, td_loss
from alf_lite.algorithms.parts.diagnostics import diagnostic
from alf_lite.algorithms.parts.frozen import Frozen
from alf_lite.algorithms.parts.target_updater import TargetUpdater, target_copy
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Field, LossInfo, TimeStep
from alf_lite.distributions.action_vectors import BoxActions
from alf_lite.distributions.exploration import ActionNoise, OrnsteinUhlenbeckNoise
from alf_lite.networks.actor_networks import ActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.network import Network, as_critic_network, as_network
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.update_counter import UpdateCounter

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


class DdpgLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each."""

    critic_loss: Tensor
    actor_loss: Field  # () if the actor is not updated
    q: Tensor


@configurable
class DdpgAlgorithm(RLAlgorithm):
    """DDPG for nests of continuous actions."""

    # As Fujimoto et al. 2018 (arXiv:1802.09477) train DDPG and TD3: an update of 256
    # transitions for every step.
    default_settings = DefaultSettings(
        updates_per_env_step=1.0,
        unroll_length=1,
        mini_batch_size=256,
        mini_batch_length=2,
        initial_collect_steps=1000,
        initial_random_policy=True,
        lr=1e-3,
    )

    _alternatives: ClassVar[str] = (
        "Use DqnAlgorithm for discrete actions, SacAlgorithm for mixed and "
        "PPOAlgorithm for unbounded ones."
    )

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        reward_spec: TensorSpec = TensorSpec(()),
        actor_network_ctor: Callable[..., Network] = ActorNetwork,
        critic_network_ctor: Callable[..., CriticNetwork] = CriticNetwork,
        num_critics: int = 1,
        exploration_noise_ctor: Callable[..., ActionNoise] = OrnsteinUhlenbeckNoise,
        gamma: float = 0.99,
        n_step: int = 1,
        actor_update_period: int = 1,
        target_update_tau: float = 0.005,
        target_update_period: int = 1,
        actor_optimizer: Optimizer | None = None,
        critic_optimizer: Optimizer | None = None,
        is_eval: bool = False,
        **kwargs: Any,
    ) -> None:
        """Builds the actor and, for training, the critics and the targets of both.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest of continuous specs with bounds.
            reward_spec: rank 0 or 1.
            actor_network_ctor: called as ``ctor(observation_spec, action_size)``; gives
                vectors in [-1, 1], which are stretched to the bounds.
            critic_network_ctor: called as ``ctor(observation_spec, action_size,
                num_critics, output_shape)``; see :class:`CriticNetwork`.
            num_critics: n; the smallest of them is believed.
            exploration_noise_ctor: called as ``ctor(action_size)``.
            gamma: γ in [0, 1].
            n_step: rewards that are summed before the target bootstraps. The windows
                of ``TrainerConfig.mini_batch_length`` need one step more.
            actor_update_period: gradient updates between two of the actor.
            target_update_tau: τ in (0, 1].
            target_update_period: gradient updates between two target updates.
            actor_optimizer: of the actor; None: ``optimizer`` trains it, too.
            critic_optimizer: of the critics; as above.
            is_eval: see :class:`RLAlgorithm`, as for ``kwargs``.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        try:
            actions = BoxActions(action_spec)
        except ValueError as error:
            raise ValueError(
                f"{type(self).__name__} cannot handle these actions. {error}. "
                f"{self._alternatives}"
            ) from error
        actor_network = as_network(
            actor_network_ctor(observation_spec, actions.numel),
            *(observation_spec, "actor_network_ctor", (actions.numel,)),
        )
        critic_network: Any = None  # a CriticNetwork, unless is_eval
        critic_state_spec: NestedTensorSpec = ()
        if not is_eval:
            critic_network = critic_network_ctor(
                observation_spec, actions.numel, num_critics, tuple(reward_spec.shape)
            )
            as_critic_network(critic_network, "critic_network_ctor")
            critic_state_spec = critic_network.state_spec
        noise = exploration_noise_ctor(actions.numel)
        actor_state_spec = actor_network.state_spec
        train_state_spec = DdpgState(
            actor=actor_state_spec,
            critic=critic_state_spec,
            target_actor=() if is_eval else actor_state_spec,
            target_critic=critic_state_spec,
        )
        is_recurrent = not nest.is_empty(train_state_spec)
        rollout_state_spec = train_state_spec._replace(noise=noise.state_spec)
        super().__init__(
            observation_spec,
            action_spec,
            reward_spec=reward_spec,
            # Where states are stored, training gets that of the noise with the others.
            train_state_spec=rollout_state_spec if is_recurrent else DdpgState(),
            rollout_state_spec=rollout_state_spec,
            predict_state_spec=DdpgState(actor=actor_state_spec),
            is_on_policy=False,
            is_eval=is_eval,
            **kwargs,
        )
        transitions.check_coefficients(gamma, n_step, self._config)
        self._actions = actions
        self._noise = noise
        self._gamma = gamma
        self._n_step = self.num_bootstrap_steps = n_step
        self._is_recurrent = is_recurrent
        self._actor_network = actor_network
        self._critic_network = critic_network
        if is_eval:
            return
        self._target_actor_network = target_copy(actor_network)
        self._target_critic_network = target_copy(critic_network)
        self._frozen_critics = Frozen(critic_network)
        self._update_targets = TargetUpdater(
            [actor_network, critic_network],
            [self._target_actor_network, self._target_critic_network],
            tau=target_update_tau,
            period=target_update_period,
        )
        self._actor_updates = UpdateCounter(
            actor_update_period, name="actor_update_period"
        )
        for own_optimizer, network in (
            (actor_optimizer, actor_network),
            (critic_optimizer, critic_network),
        ):
            if own_optimizer is not None:
                self.add_optimizer(own_optimizer, [network])

    # Acting

    def predict_step(self, inputs: TimeStep, state: DdpgState) -> AlgStep:
        """Acts without noise."""
        action, actor_state = self._actor_network(inputs.observation, state.actor)
        return AlgStep(
            output=self._actions.to_action(action), state=DdpgState(actor=actor_state)
        )

    def rollout_step(self, inputs: TimeStep, state: DdpgState) -> AlgStep:
        """Acts with noise. The replayed steps tell the action; there is no info."""
        action, actor_state = self._actor_network(inputs.observation, state.actor)
        action, noise_state = self._noise.perturb(action, state.noise)
        critic_state = state.critic
        if not nest.is_empty(critic_state):
            _, critic_state = self._critic_network.encode(
                inputs.observation, critic_state
            )
        return AlgStep(
            output=self._actions.to_action(action),
            # Stored states start the target networks, too.
            state=DdpgState(
                actor_state, critic_state, actor_state, critic_state, noise_state
            ),
        )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """All but the actor, and critics whose state is stored."""
        modules: list[nn.Module] = [
            self._target_actor_network,
            self._target_critic_network,
        ]
        if nest.is_empty(self.rollout_state_spec.critic):
            modules.append(self._critic_network)
        return modules

    # Learning

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Transition]:
        """Sums up the rewards of n steps."""
        make = (
            transitions.to_sequence
            if self._is_recurrent
            else transitions.to_transitions
        )
        return make(root_inputs, self._n_step, self._gamma)

    def train_step(
        self, inputs: TimeStep, state: DdpgState, rollout_info: Transition
    ) -> AlgStep:
        """Values the actions that were taken and those that the actor would take."""
        observation = inputs.observation
        features, critic_state = self._critic_network.encode(observation, state.critic)
        taken = self._actions.to_vector(rollout_info.action)
        q = self._critic_network.evaluate(features, taken)
        action, policy_value, actor_state = self._evaluate_policy(
            observation, features, state.actor
        )
        # With memory, calc_loss moves the value of a step to those that bootstrap from
        # it.
        next_observation = (
            observation if self._is_recurrent else rollout_info.next_observation
        )
        next_value, target_actor_state, target_critic_state = self._next_value(
            next_observation, state.target_actor, state.target_critic
        )
        info = DdpgInfo(
            q=q,
            policy_value=policy_value,
            next_value=next_value,
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            num_steps=rollout_info.num_steps,
            step_type=inputs.step_type,
        )
        new_state = DdpgState(
            actor_state,
            critic_state,
            target_actor_state,
            target_critic_state,
            state.noise,
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
        action, actor_state = self._actor_network(observation, actor_state)
        with self._frozen_critics:
            values = self._critic_network.evaluate(features.detach(), action)
        return action, self.scalar_reward(values[:, 0]), actor_state

    @torch.no_grad()
    def _next_value(
        self, observation: Nest, actor_state: Nest, critic_state: Nest
    ) -> tuple[Tensor, Nest, Nest]:
        """min_k Q_k(s, μ(s; θ⁻); θ⁻), [B] or [B, D], and the new states."""
        action, actor_state = self._target_actor_network(observation, actor_state)
        features, critic_state = self._target_critic_network.encode(
            observation, critic_state
        )
        values = self._target_critic_network.evaluate(
            features, self._target_action(action)
        )
        value = smallest_critic(values, self.scalar_reward(values))
        return value, actor_state, critic_state

    def _target_action(self, action: Tensor) -> Tensor:
        """What the target critics value, given the action of the target actor."""
        return action

    def calc_loss(self, info: DdpgInfo) -> LossInfo:
        """The losses of the critics and, if it is due, of the actor, [T-n, B]."""
        if self._is_recurrent:
            info = transitions.align(info, ("next_value",), self._n_step)
        critic_loss, td_error = self._critic_loss(info)
        loss, actor_loss = critic_loss, info.policy_value
        if self._actor_updates.is_due:
            actor_loss = self._actor_loss(info)
            loss = critic_loss + actor_loss
        return LossInfo(
            loss=loss,
            extra=diagnostic(
                lambda: DdpgLossInfo(
                    critic_loss=critic_loss,
                    actor_loss=actor_loss,
                    q=self.scalar_reward(info.q).mean(-1),
                )
            ),
            priority=self.priority_of(td_error, info.step_type),
        )

    def _critic_loss(self, info: DdpgInfo) -> tuple[Tensor, Callable[[], Tensor]]:
        """Eq. 4: Σ_k (G_t + Γ_t Q'(s_{t+m}) − Q_k(s_t, a_t))²; for mean_k |δ_k|."""
        return td_loss(
            info.q, info.reward, info.discount, info.next_value, self.scalar_reward
        )

    def _actor_loss(self, info: DdpgInfo) -> Tensor:
        """−Q_0(s_t, μ(s_t)), whose gradient is that of eq. 6."""
        return -info.policy_value

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Moves the targets towards the networks."""
        self._actor_updates.advance()
        self._update_targets.forward()
