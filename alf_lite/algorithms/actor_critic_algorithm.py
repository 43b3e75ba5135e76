"""Advantage actor-critic.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783,
in its synchronous form (A2C), with the advantages of Schulman et al., arXiv:1506.02438.

Differences from the paper:

1. The advantage is the generalized one; ``td_lambda=1`` gives the paper's.
2. One Adam or RMSprop for both networks, which share nothing by default.
3. A step that ends by a time limit is bootstrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.parts.policy import Policy
from alf_lite.algorithms.parts.policy_lag import LagSummary
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, Field, LossInfo, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.network import Network, as_network
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils import losses, value_ops
from alf_lite.utils.checks import check_unit_interval
from alf_lite.utils.summary import diagnostic

Nest = Any


class ActorCriticState(NamedTuple):
    """Recurrent states; both empty for feed-forward networks."""

    actor: Nest = ()  # [B, ...]
    value: Nest = ()  # [B, ...]


class ActorCriticInfo(NamedTuple):
    """From ``rollout_step`` to ``train_step``, and from there to ``calc_loss``."""

    action: Nest = ()  # [T, B, ...] a_t
    action_distribution: Nest = ()  # [T, B, ...] π(·|s_t)
    value: Field = ()  # [T, B] or [T, B, D], V(s_t)
    reward: Field = ()  # [T, B] or [T, B, D], came with s_t
    discount: Field = ()  # [T, B] 0 where s_t is terminal
    step_type: Field = ()  # [T, B]
    rollout_log_prob: Field = ()  # [T, B] log μ(a_t|s_t) of the policy that acted


class ActorCriticLossInfo(NamedTuple):
    """The parts of the loss, [T, B] each."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    explained_variance: Field = ()  # [] of the targets, by V; a diagnostic
    policy_lag: LagSummary | tuple[()] = ()  # if it is corrected


class Estimate(NamedTuple):
    """What the policy and the value learn from, detached."""

    advantage: Tensor  # [T-1, B], weighted
    value_target: Tensor  # [T-1, B] or [T-1, B, D]
    policy_lag: LagSummary | tuple[()] = ()


@configurable
class ActorCriticAlgorithm(RLAlgorithm):
    """A2C with generalized advantage estimates."""

    trains_on_sequences = True

    # Mnih et al. 2016 (arXiv:1602.01783): 16 actors, an update after 5 steps.
    default_settings = DefaultSettings(
        num_parallel_environments=16,
        unroll_length=5,
        lr=((0.0, 1.5e-3), (1.0, 0.0)),
        gradient_clipping=0.5,
    )

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        actor_network_ctor: Callable[..., Network] = ActorDistributionNetwork,
        value_network_ctor: Callable[..., Network] = ValueNetwork,
        gamma: float = 0.99,
        td_lambda: float = 0.95,
        use_gae: bool = True,
        entropy_regularization: float = 0.01,
        value_loss_weight: float = 0.5,
        normalize_advantages: bool = False,
        action_mask_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the actor and, for training, the value network.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest that the actor network can handle.
            actor_network_ctor: called as ``ctor(observation_spec, action_spec)``.
            value_network_ctor: called as ``ctor(observation_spec, reward_spec)``.
            gamma: γ in [0, 1].
            td_lambda: λ of the advantages and of the value's target, in [0, 1].
            use_gae: advantages are GAE(λ); otherwise R - V, with R the n-step return
                up to the end of the unroll (TD(λ=1)) for the policy and the λ-return
                for the value.
            entropy_regularization: weight of the entropy bonus.
            value_loss_weight: weight of the squared value error.
            normalize_advantages: to mean 0 and deviation 1 over the valid steps.
            action_mask_key: of the mask in a dict of observations; see
                :class:`ActionMask`. The networks do not see it.
            **kwargs: see :class:`RLAlgorithm`.

        Raises:
            ValueError: if a coefficient is out of its range or there is no such mask.
        """
        check_unit_interval(gamma=gamma, td_lambda=td_lambda)
        mask = ActionMask(observation_spec, action_spec, action_mask_key)
        super().__init__(observation_spec, action_spec, is_on_policy=True, **kwargs)
        self._policy = Policy(actor_network_ctor, action_spec, mask)
        states = ActorCriticState(actor=self._policy.state_spec)
        self._predict_state_spec = states
        if not self._is_eval:
            network = value_network_ctor(mask.remaining_spec, self.reward_spec)
            self._value_network = as_network(
                network,
                *(mask.remaining_spec, "value_network_ctor"),
                tuple(self.reward_spec.shape),
            )
            states = states._replace(value=self._value_network.state_spec)
        self._train_state_spec = self._rollout_state_spec = states
        self._is_masked = mask.exists
        self._gamma = gamma
        self._td_lambda = td_lambda
        self._use_gae = use_gae
        self._entropy_regularization = entropy_regularization
        self._value_loss_weight = value_loss_weight
        self._normalize_advantages = normalize_advantages

    # Acting

    def predict_step(self, inputs: TimeStep, state: ActorCriticState) -> AlgStep:
        """Acts greedily, or as ``TrainerConfig.epsilon_greedy`` says."""
        action, actor_state = self._policy.act(
            inputs.observation, state.actor, self.predict_epsilon
        )
        return AlgStep(output=action, state=ActorCriticState(actor=actor_state))

    def rollout_step(self, inputs: TimeStep, state: ActorCriticState) -> AlgStep:
        """Samples an action. The value is left to training, which batches it.

        Only recurrent value networks are evaluated, for the sake of their state.
        """
        distribution, actor_state = self._policy.forward(
            inputs.observation, state.actor
        )
        action = distributions.sample(distribution)
        value: Field = ()
        value_state = state.value
        if not nest.is_empty(value_state):
            value, value_state = self._value(inputs.observation, value_state)
        return AlgStep(
            output=action,
            state=ActorCriticState(actor=actor_state, value=value_state),
            info=self._rollout_info(action, distribution, value),
        )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """The value network, unless its state is stored."""
        has_state = not nest.is_empty(self.rollout_state_spec.value)
        return [] if has_state else [self._value_network]

    def _rollout_info(
        self, action: Nest, distribution: Nest, value: Field
    ) -> ActorCriticInfo:
        """What is kept of a step for training."""
        return ActorCriticInfo(action=action)

    def _value(self, observation: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """V(s), [B] or [B, D], and the new state."""
        if self._is_masked:
            observation = self._policy.mask.remaining(observation)
        return self._value_network(observation, state)

    # Learning

    def train_step(
        self, inputs: TimeStep, state: ActorCriticState, rollout_info: Nest
    ) -> AlgStep:
        """Evaluates both networks on the steps of the unroll."""
        distribution, actor_state = self._policy(inputs.observation, state.actor)
        value, value_state = self._value(inputs.observation, state.value)
        info = rollout_info._replace(
            action_distribution=distribution,
            value=value,
            reward=inputs.reward,
            discount=inputs.discount,
            step_type=inputs.step_type,
        )
        return AlgStep(
            output=rollout_info.action,
            state=ActorCriticState(actor=actor_state, value=value_state),
            info=info,
        )

    def calc_loss(self, info: Nest) -> LossInfo:
        """−A_t log π(a_t|s_t) + c_v (R_t − V(s_t))² − c_e H(π(·|s_t)), [T-1, B]."""
        distribution = nest.map_structure(lambda t: t[:-1], info.action_distribution)
        action = nest.map_structure(lambda t: t[:-1], info.action)
        log_prob, entropy = distributions.log_prob_and_entropy(distribution, action)
        estimate = self._estimate(info, log_prob.detach())
        value_error = losses.squared(estimate.value_target, info.value[:-1])
        policy_loss = -estimate.advantage * log_prob
        value_loss = self._sum_dims(value_error)
        parts = ActorCriticLossInfo(
            policy_loss, value_loss, entropy, policy_lag=estimate.policy_lag
        )
        extra = diagnostic(
            lambda: parts._replace(
                explained_variance=losses.explained_variance(
                    info.value[:-1].detach(),
                    estimate.value_target,
                    valid_steps(info.step_type[:-1]),
                )
            )
        )
        return LossInfo(loss=self._weighted_sum(parts), extra=extra or parts)

    def _estimate(self, info: ActorCriticInfo, log_prob: Tensor) -> Estimate:
        """Computes advantages and value targets.

        Args:
            info: [T, B, ...].
            log_prob: [T-1, B], log π(a_t|s_t).
        """
        value = info.value.detach()
        discount = self._gamma * info.discount
        args = (info.reward, value, info.step_type, discount)
        if self._use_gae:
            advantage = value_ops.generalized_advantage_estimation(
                *args, self._td_lambda
            )
            value_target = advantage + value[:-1]
        else:
            advantage = value_ops.discounted_return(*args) - value[:-1]
            value_target = value_ops.lambda_return(*args, self._td_lambda)
        return Estimate(self._scaled(advantage, info), value_target)

    def _scaled(self, advantage: Tensor, info: ActorCriticInfo) -> Tensor:
        """[T-1, B] or [T-1, B, D] → [T-1, B], normalized if so configured."""
        advantage = self.scalar_reward(advantage)
        if not self._normalize_advantages:
            return advantage
        return losses.normalize(advantage, valid_steps(info.step_type[:-1]))

    def _weighted_sum(self, parts: Any) -> Tensor:
        """The loss [T, B] of its parts ``policy_loss``, ``value_loss``, ``entropy``."""
        loss = parts.policy_loss + self._value_loss_weight * parts.value_loss
        if not self._entropy_regularization:
            return loss
        return loss - self._entropy_regularization * parts.entropy

    def _sum_dims(self, value: Tensor) -> Tensor:
        """[..., D] of a reward of several dimensions → [...]."""
        return value.sum(-1) if self.has_multidim_reward else value
