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
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.critic_ensembles import smallest_critic, td_loss
from alf_lite.algorithms.parts.target_updater import TargetUpdater, target_copy
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Field, LossInfo, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask, RecordedActions
from alf_lite.distributions.mixed_actions import MixedActions
from alf_lite.networks.actor_networks import NormalActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.masked_networks import critic_without_mask, masked_actor
from alf_lite.networks.network import Network
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils import losses
from alf_lite.utils.checks import check_positive

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


@configurable
class IqlAlgorithm(RLAlgorithm):
    """IQL for nests of continuous and discrete actions."""

    # Kostrikov et al. 2021, appendix B.
    default_settings = DefaultSettings(
        unroll_length=1, mini_batch_size=256, mini_batch_length=2, lr=3e-4
    )

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        reward_spec: TensorSpec = TensorSpec(()),
        actor_network_ctor: Callable[..., Network] = NormalActorNetwork,
        critic_network_ctor: Callable[..., CriticNetwork] = CriticNetwork,
        value_network_ctor: Callable[..., CriticNetwork] = CriticNetwork,
        num_critics: int = 2,
        gamma: float = 0.99,
        n_step: int = 1,
        expectile: float = 0.7,
        beta: float = 3.0,
        max_weight: float = 100.0,
        target_update_tau: float = 0.005,
        target_update_period: int = 1,
        action_margin: float = 1e-3,
        action_mask_key: str | None = None,
        actor_optimizer: Optimizer | None = None,
        critic_optimizer: Optimizer | None = None,
        value_optimizer: Optimizer | None = None,
        is_eval: bool = False,
        **kwargs: Any,
    ) -> None:
        """Builds the actor and, for training, the critics and the value network.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest of bounded specs.
            reward_spec: rank 0 or 1.
            actor_network_ctor: called as ``ctor(observation_spec, action_spec)``.
            critic_network_ctor: called as ``ctor(observation_spec, vector_size,
                num_critics, output_shape)``; see :class:`CriticNetwork`.
            value_network_ctor: called alike, for a single critic without action.
            num_critics: n; the smallest of them is believed.
            gamma: γ in [0, 1].
            n_step: rewards that are summed before the target bootstraps. The windows
                of ``TrainerConfig.mini_batch_length`` need one step more.
            expectile: τ in (0, 1); 0.5 values the policy of the data, near 1 the best
                that can be put together from it.
            beta: β, in units of one over the return. Small values imitate all actions
                alike, large ones only the best.
            max_weight: w_max, of one step in the regression.
            target_update_tau: in (0, 1].
            target_update_period: gradient updates between two target updates.
            action_margin: see :class:`RecordedActions`.
            action_mask_key: of the mask in a dict of observations; see
                :class:`ActionMask`. The networks do not see it.
            actor_optimizer: of the actor; None: ``optimizer`` trains it, too. As for
                the critics and the value network.
            is_eval: see :class:`RLAlgorithm`, as for ``kwargs``.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        if not 0 < expectile < 1:
            raise ValueError(f"expectile must lie in (0, 1), got {expectile}")
        check_positive(beta=beta, max_weight=max_weight)
        try:
            actions = MixedActions(action_spec)
        except ValueError as error:
            raise ValueError(
                f"IqlAlgorithm cannot handle these actions. {error}. Use BcAlgorithm "
                "for unbounded actions and for many discrete components."
            ) from error
        mask = ActionMask(observation_spec, action_spec, action_mask_key)
        actor_network = masked_actor(
            actor_network_ctor(mask.remaining_spec, action_spec), mask
        )
        # CriticNetworks, unless is_eval.
        critic_network: Any = None
        value_network: Any = None
        state_spec = IqlState(actor=actor_network.state_spec)
        if not is_eval:
            dims = tuple(reward_spec.shape)
            critic_network = critic_without_mask(
                critic_network_ctor(
                    mask.remaining_spec,
                    actions.vector_size,
                    num_critics,
                    (actions.num_joint_values, *dims),
                ),
                mask,
            )
            value_network = critic_without_mask(
                value_network_ctor(mask.remaining_spec, 0, 1, dims), mask
            )
            state_spec = IqlState(
                actor=actor_network.state_spec,
                critic=critic_network.state_spec,
                target_critic=critic_network.state_spec,
                value=value_network.state_spec,
            )
        super().__init__(
            observation_spec,
            action_spec,
            reward_spec=reward_spec,
            train_state_spec=state_spec,
            predict_state_spec=IqlState(actor=actor_network.state_spec),
            is_on_policy=False,
            is_eval=is_eval,
            **kwargs,
        )
        transitions.check_coefficients(gamma, n_step, self._config)
        self._actions = actions
        self._mask = mask
        self._recorded = RecordedActions(action_spec, mask, action_margin)
        self._gamma = gamma
        self._n_step = self.num_bootstrap_steps = n_step
        self._expectile = expectile
        self._beta = beta
        self._max_weight = max_weight
        self._is_recurrent = not nest.is_empty(state_spec)
        self._actor_network = actor_network
        self._critic_network = critic_network
        self._value_network = value_network
        if is_eval:
            return
        self._target_critic_network = target_copy(critic_network)
        self._update_target = TargetUpdater(
            [critic_network],
            [self._target_critic_network],
            tau=target_update_tau,
            period=target_update_period,
        )
        for own_optimizer, network in (
            (actor_optimizer, actor_network),
            (critic_optimizer, critic_network),
            (value_optimizer, value_network),
        ):
            if own_optimizer is not None:
                self.add_optimizer(own_optimizer, [network])

    # Acting

    def predict_step(self, inputs: TimeStep, state: IqlState) -> AlgStep:
        """Acts greedily, or as ``TrainerConfig.epsilon_greedy`` says."""
        policy, actor_state = self._actor_network(inputs.observation, state.actor)
        epsilon = 0.0 if self._config is None else self._config.epsilon_greedy
        return AlgStep(
            output=distributions.epsilon_greedy(policy, epsilon),
            state=IqlState(actor=actor_state),
        )

    def rollout_step(self, inputs: TimeStep, state: IqlState) -> AlgStep:
        """Samples an action. The replayed steps tell it; there is no info."""
        observation = inputs.observation
        policy, actor_state = self._actor_network(observation, state.actor)
        critic_state, value_state = state.critic, state.value
        if not nest.is_empty(critic_state):
            _, critic_state = self._critic_network.encode(observation, critic_state)
        if not nest.is_empty(value_state):
            _, value_state = self._value_network.encode(observation, value_state)
        return AlgStep(
            output=distributions.sample(policy),
            # Stored states start the target critics, too.
            state=IqlState(actor_state, critic_state, critic_state, value_state),
        )

    def random_action(self, inputs: TimeStep) -> Nest:
        """Any action that the mask allows."""
        return self._mask.redraw(super().random_action(inputs), inputs.observation)

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
        steps, transition = make(root_inputs, self._n_step, self._gamma)
        action = self._recorded.clip(transition.action)
        return steps, transition._replace(action=action)

    def train_step(
        self, inputs: TimeStep, state: IqlState, rollout_info: Transition
    ) -> AlgStep:
        """Evaluates all networks on the actions that were taken."""
        observation, action = inputs.observation, rollout_info.action
        policy, actor_state = self._actor_network(observation, state.actor)
        q, critic_state = self._q(
            self._critic_network, observation, action, state.critic
        )
        with torch.no_grad():
            target_q, target_state = self._q(
                self._target_critic_network, observation, action, state.target_critic
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
            target_q=smallest_critic(target_q, self.scalar_reward(target_q)),
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
        if self._is_recurrent:
            info = transitions.align(info, ("next_value",), self._n_step)
        advantage = self.scalar_reward(info.target_q - info.value.detach())
        weight = losses.exponential_weights(advantage, self._beta, self._max_weight)
        value_loss = self._value_loss(info, advantage)
        critic_loss, td_error = td_loss(
            info.q, info.reward, info.discount, info.next_value, self.scalar_reward
        )  # eq. 6
        actor_loss = -weight * info.log_prob  # eq. 7
        return LossInfo(
            loss=value_loss + critic_loss + actor_loss,
            extra=IqlLossInfo(
                actor_loss=actor_loss,
                critic_loss=critic_loss,
                value_loss=value_loss,
                q=self.scalar_reward(info.q).mean(-1),
                value=self.scalar_reward(info.value),
                advantage=advantage,
                weight=weight,
                log_prob=info.log_prob,
            ),
            priority=self.priority_of(td_error, info.step_type),
        )

    def _value_loss(self, info: IqlInfo, advantage: Tensor) -> Tensor:
        """Eq. 5: |τ − 1(A_t < 0)| (Q⁻(s_t, a_t) − V(s_t))²."""
        error = losses.squared(info.value, info.target_q)
        if self.has_multidim_reward:
            error = error.sum(-1)
        return losses.expectile_weights(advantage, self._expectile) * error

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Moves the target critics towards the critics."""
        self._update_target()
