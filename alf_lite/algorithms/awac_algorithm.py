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


class AwacState(NamedTuple):
    """Recurrent states; all empty for feed-forward networks."""

    actor: Nest = ()  # [B, ...]
    critic: Nest = ()  # [B, ...]
    target_critic: Nest = ()  # [B, ...]


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


@configurable
class AwacAlgorithm(RLAlgorithm):
    """AWAC for nests of continuous and discrete actions."""

    # Nair et al. 2020; batches as SAC has them.
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
        num_critics: int = 2,
        gamma: float = 0.99,
        n_step: int = 1,
        temperature: float = 1.0,
        max_weight: float = 100.0,
        num_action_samples: int = 1,
        target_update_tau: float = 0.005,
        target_update_period: int = 1,
        action_margin: float = 1e-3,
        action_mask_key: str | None = None,
        actor_optimizer: Optimizer | None = None,
        critic_optimizer: Optimizer | None = None,
        is_eval: bool = False,
        **kwargs: Any,
    ) -> None:
        """Builds the actor and, for training, the critics.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest of bounded specs.
            reward_spec: rank 0 or 1.
            actor_network_ctor: called as ``ctor(observation_spec, action_spec)``.
            critic_network_ctor: called as ``ctor(observation_spec, vector_size,
                num_critics, output_shape)``; see :class:`CriticNetwork`.
            num_critics: n; the smallest of them is believed.
            gamma: γ in [0, 1].
            n_step: rewards that are summed before the target bootstraps. The windows
                of ``TrainerConfig.mini_batch_length`` need one step more.
            temperature: λ, in units of the return. Large values imitate all actions
                alike, small ones only the best.
            max_weight: w_max, of one step in the regression.
            num_action_samples: of the continuous parts, in each expectation.
            target_update_tau: τ in (0, 1].
            target_update_period: gradient updates between two target updates.
            action_margin: see :class:`RecordedActions`.
            action_mask_key: of the mask in a dict of observations; see
                :class:`ActionMask`. The networks do not see it.
            actor_optimizer: of the actor; None: ``optimizer`` trains it, too. As for
                the critics.
            is_eval: see :class:`RLAlgorithm`, as for ``kwargs``.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        check_positive(temperature=temperature, max_weight=max_weight)
        if num_action_samples < 1:
            raise ValueError(
                f"num_action_samples must be positive, got {num_action_samples}"
            )
        try:
            actions = MixedActions(action_spec)
        except ValueError as error:
            raise ValueError(
                f"AwacAlgorithm cannot handle these actions. {error}. Use BcAlgorithm "
                "for unbounded actions and for many discrete components."
            ) from error
        mask = ActionMask(observation_spec, action_spec, action_mask_key)
        actor_network = masked_actor(
            actor_network_ctor(mask.remaining_spec, action_spec), mask
        )
        critic_network: Any = None  # a CriticNetwork, unless is_eval
        critic_state_spec: NestedTensorSpec = ()
        if not is_eval:
            output_shape = (actions.num_joint_values, *reward_spec.shape)
            critic_network = critic_without_mask(
                critic_network_ctor(
                    mask.remaining_spec, actions.vector_size, num_critics, output_shape
                ),
                mask,
            )
            critic_state_spec = critic_network.state_spec
        super().__init__(
            observation_spec,
            action_spec,
            reward_spec=reward_spec,
            train_state_spec=AwacState(
                actor=actor_network.state_spec,
                critic=critic_state_spec,
                target_critic=critic_state_spec,
            ),
            predict_state_spec=AwacState(actor=actor_network.state_spec),
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
        self._temperature = temperature
        self._max_weight = max_weight
        # Without continuous parts, the expectation is exact.
        self._num_action_samples = num_action_samples if actions.vector_size else 1
        self._is_recurrent = not nest.is_empty(self.train_state_spec)
        self._actor_network = actor_network
        self._critic_network = critic_network
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
        ):
            if own_optimizer is not None:
                self.add_optimizer(own_optimizer, [network])

    # Acting

    def predict_step(self, inputs: TimeStep, state: AwacState) -> AlgStep:
        """Acts greedily, or as ``TrainerConfig.epsilon_greedy`` says."""
        policy, actor_state = self._actor_network(inputs.observation, state.actor)
        epsilon = 0.0 if self._config is None else self._config.epsilon_greedy
        return AlgStep(
            output=distributions.epsilon_greedy(policy, epsilon),
            state=AwacState(actor=actor_state),
        )

    def rollout_step(self, inputs: TimeStep, state: AwacState) -> AlgStep:
        """Samples an action. The replayed steps tell it; there is no info."""
        policy, actor_state = self._actor_network(inputs.observation, state.actor)
        critic_state = state.critic
        if not nest.is_empty(critic_state):
            _, critic_state = self._critic_network.encode(
                inputs.observation, critic_state
            )
        return AlgStep(
            output=distributions.sample(policy),
            # Stored states start the target critics, too.
            state=AwacState(actor_state, critic_state, critic_state),
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
        self, inputs: TimeStep, state: AwacState, rollout_info: Transition
    ) -> AlgStep:
        """Values the actions that were taken and those that the policy would take."""
        observation, action = inputs.observation, rollout_info.action
        policy, actor_state = self._actor_network(observation, state.actor)
        features, critic_state = self._critic_network.encode(observation, state.critic)
        values = self._critic_network.evaluate(
            features, self._actions.to_vector(action)
        )  # [B, n, A, ...]
        q = self._actions.values_of(action, values)
        if self._is_recurrent:
            # calc_loss moves the value of a step to those that bootstrap from it.
            next_observation, next_policy = observation, policy
        else:
            next_observation = rollout_info.next_observation
            with torch.no_grad():
                next_policy, _ = self._actor_network(next_observation)
        next_features, target_state = self._target_critic_network.encode(
            next_observation, state.target_critic
        )
        info = AwacInfo(
            q=q,
            advantage=self._advantage(q, features, policy),
            log_prob=self._recorded.log_prob(policy, action, observation),
            next_value=self._value(
                self._target_critic_network, next_features, next_policy
            ),
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            num_steps=rollout_info.num_steps,
            step_type=inputs.step_type,
        )
        return AlgStep(
            output=action,
            state=AwacState(actor_state, critic_state, target_state),
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
        value = self._value(self._critic_network, features, policy)
        return self.scalar_reward(smallest_critic(q, self.scalar_reward(q)) - value)

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
        sample = self._actions.sample(policy)
        vector = None if sample.vector is None else sample.vector.clamp(-1, 1)
        values = critic.evaluate(features, vector)
        smallest = smallest_critic(values, self.scalar_reward(values))
        value = sample.expectation(smallest)  # [num_samples · B, ...]
        return value.unflatten(0, (num_samples, -1)).mean(0)

    def calc_loss(self, info: AwacInfo) -> LossInfo:
        """The losses of critics and actor, [T-n, B]."""
        if self._is_recurrent:
            info = transitions.align(info, ("next_value",), self._n_step)
        critic_loss, td_error = td_loss(
            info.q, info.reward, info.discount, info.next_value, self.scalar_reward
        )
        weight = losses.exponential_weights(
            info.advantage, 1 / self._temperature, self._max_weight
        )
        actor_loss = -weight * info.log_prob
        return LossInfo(
            loss=critic_loss + actor_loss,
            extra=AwacLossInfo(
                actor_loss=actor_loss,
                critic_loss=critic_loss,
                q=self.scalar_reward(info.q).mean(-1),
                advantage=info.advantage,
                weight=weight,
                log_prob=info.log_prob,
            ),
            priority=self.priority_of(td_error, info.step_type),
        )

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Moves the target critics towards the critics."""
        self._update_target()
