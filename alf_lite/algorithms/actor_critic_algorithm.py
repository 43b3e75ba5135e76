"""Advantage actor-critic.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783,
in its synchronous form (A2C), with the advantages of Schulman et al., arXiv:1506.02438.

Differences from the paper:

1. The advantage is the generalized one; ``td_lambda=1`` gives the paper's.
2. One Adam or RMSprop for both networks, which share nothing by default.
3. A step that ends by a time limit is bootstrapped.
4. Optionally an update is shortened where it moves the policy too far
   (``max_policy_kl``): what ALF's trusted actor-critic (TRAC) does, with the mean KL
   divergence in place of its distance of the parameters of each distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.policy import Policy
from alf_lite.algorithms.parts.policy_gradient import PolicyGradientLoss
from alf_lite.algorithms.parts.policy_lag import LagSummary
from alf_lite.algorithms.parts.return_streams import ReturnStream, ReturnStreams
from alf_lite.algorithms.parts.symmetric_unroll import SymmetricUnroll
from alf_lite.algorithms.parts.trust_region import TrustRegion
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import (
    AlgStep,
    BatchInfo,
    Experience,
    Field,
    LossInfo,
    TimeStep,
)
from alf_lite.data_transformers.symmetries import Symmetry, check_symmetries
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.network import Network, as_network, takes_whole_sequences
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils import losses, summary, value_ops
from alf_lite.utils.checks import check_positive, check_unit_interval
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

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

    needs_successors = True
    tells_action_distribution = True
    takes_negative_discounts = True

    # Mnih et al. 2016 (arXiv:1602.01783): 16 actors, an update after 5 steps. With an ε
    # of 1e-8, one run of five on CartPole forgot what it had learnt.
    default_settings = DefaultSettings(
        num_parallel_environments=16,
        unroll_length=5,
        lr=((0.0, 1.5e-3), (1.0, 0.0)),
        gradient_clipping=0.5,
        eps=1e-5,
    )

    _gamma = Coefficient()
    _td_lambda = Coefficient()
    _entropy_regularization = Coefficient()
    _value_loss_weight = Coefficient()
    _advantage_clip = Coefficient()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        actor_network_ctor: Callable[..., Network] = ActorDistributionNetwork,
        value_network_ctor: Callable[..., Network] = ValueNetwork,
        gamma: Scheduled = 0.99,
        td_lambda: Scheduled = 0.95,
        entropy_regularization: Scheduled = 0.01,
        value_loss_weight: Scheduled = 0.5,
        normalize_advantages: bool = False,
        advantage_clip: Scheduled | None = None,
        max_policy_kl: float | None = None,
        action_mask_key: str | None = None,
        actor_observation_keys: Sequence[str] | None = None,
        critic_observation_keys: Sequence[str] | None = None,
        symmetries: Sequence[Symmetry] = (),
        **kwargs: Any,
    ) -> None:
        """Builds the actor and, for training, the value network.

        Coefficients are numbers or schedules, as that of a learning rate.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest that the actor network can handle.
            actor_network_ctor: called as ``ctor(observation_spec, action_spec)``.
            value_network_ctor: called as ``ctor(observation_spec, reward_spec)``.
            gamma: γ in [0, 1].
            td_lambda: λ of the advantages and of the value's target, in [0, 1].
            entropy_regularization: weight of the entropy bonus.
            value_loss_weight: weight of the squared value error.
            normalize_advantages: to mean 0 and deviation 1 over the valid steps.
            advantage_clip: bounds the advantages, after that, to [-c, c]; None: not.
            max_policy_kl: mean KL divergence, over the steps of an update, that this
                may move the policy by; the rest of it is taken back. None: no limit.
            action_mask_key: of the mask in a dict of observations; see
                :class:`ActionMask`. The networks do not see it.
            actor_observation_keys: of a dict of observations, what the actor sees, and
                acting needs (Pinto et al. 2017, arXiv:1710.06542); None: all.
            critic_observation_keys: what the value network sees.
            symmetries: of the task, :class:`Reflection` or functions ``(observation,
                action)`` → both in the mirror; networks without memory train on every
                unroll in each of them, too, see :class:`SymmetricUnroll`.
            **kwargs: see :class:`RLAlgorithm`.

        Raises:
            ValueError: if a coefficient is out of its range or there is no such mask.
            ConfigError: if ``max_policy_kl`` is set for a policy with memory.
        """
        check_unit_interval(gamma=gamma, td_lambda=td_lambda)
        check_positive(advantage_clip=advantage_clip, max_policy_kl=max_policy_kl)
        mask = ActionMask(observation_spec, action_spec, action_mask_key)
        super().__init__(observation_spec, action_spec, is_on_policy=True, **kwargs)
        seen = mask.showing(actor_observation_keys, "actor_observation_keys")
        self._policy = Policy(actor_network_ctor, action_spec, seen)
        self.unseen_entries = seen.unused
        states = ActorCriticState(actor=self._policy.state_spec)
        self._predict_state_spec = states
        mask = mask.showing(critic_observation_keys, "critic_observation_keys")
        self._value_mask = mask
        if not self._is_eval:
            value_spec, shape = mask.remaining_spec, tuple(self.reward_spec.shape)
            network = value_network_ctor(value_spec, self.reward_spec)
            self._value_network: Any = as_network(
                network, value_spec, "value_network_ctor", shape
            )
            states = states._replace(value=self._value_network.state_spec)
        self._train_state_spec = self._rollout_state_spec = states
        set_coefficients(
            self,
            _gamma=gamma,
            _td_lambda=td_lambda,
            _entropy_regularization=entropy_regularization,
            _value_loss_weight=value_loss_weight,
            _advantage_clip=advantage_clip,
        )
        weights = value_loss_weight, entropy_regularization
        self._policy_gradient_loss = PolicyGradientLoss(*weights)
        self._normalize_advantages = normalize_advantages
        self._return_streams: ReturnStreams | None = None
        self._trust_region: TrustRegion | None = None
        if max_policy_kl is not None and not self._is_eval:
            self._require_no_memory("max_policy_kl")
            self._trust_region = TrustRegion(self._policy, max_policy_kl)
        self._symmetric_unroll: SymmetricUnroll | None = None
        if symmetries and not self._is_eval:
            self._symmetric_unroll = self._seen_in(symmetries)

    def _seen_in(self, symmetries: Sequence[Symmetry]) -> SymmetricUnroll:
        if not nest.is_empty(self._train_state_spec) or self.unrolls_with_grad:
            raise ConfigError(
                f"{self.name}.symmetries needs networks without memory that are "
                "trained after the unroll. Leave it out, or use others."
            )
        check_symmetries(symmetries, self.observation_spec, self.action_spec)
        return SymmetricUnroll(symmetries, self._policy)

    def _require_no_memory(self, setting: str) -> None:
        """Refuses what looks at the steps of a batch one by one, in any order."""
        if not nest.is_empty(self._policy.state_spec):
            raise ConfigError(
                f"{self.name}.{setting} needs a policy without memory, but that of "
                "actor_network_ctor is recurrent. Leave it out, or use another network."
            )

    def set_return_streams(self, streams: Sequence[ReturnStream]) -> None:
        if len(streams) != self.reward_spec.numel or not self.has_multidim_reward:
            raise ConfigError(
                f"{self.name}: {len(streams)} ways to sum a reward, which is "
                f"{self.reward_spec}. Give one for each of its dimensions."
            )
        if self.corrects_policy_lag:
            raise ConfigError(
                f"{self.name}: the correction of a policy lag (V-trace) has one γ and "
                "ends with the episode for all rewards. Leave it out where a part of "
                "the reward is summed otherwise, such as by Agent.intrinsic_gamma."
            )
        gamma = type(self)._gamma.given(self)
        self._return_streams = ReturnStreams(streams, gamma)

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
        return self._value_network(self._value_mask.remaining(observation), state)

    # Learning

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """Also remembers where the first update starts from, if they are limited."""
        if self._trust_region is not None:
            self._trust_region.begin()
        batch = super().preprocess(experience, valid, batch_info)
        if self._symmetric_unroll is None:
            return batch
        if self._part_of:
            raise ConfigError(
                f"{self.name}.symmetries: the other parts of {self._part_of} do not "
                "see the mirror. Leave it out, or train it on its own."
            )
        return self._symmetric_unroll.extend(batch, self.data_transformer)

    @takes_whole_sequences
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
        loss, policy_loss, value_loss = self._policy_gradient_loss(
            log_prob,
            info.value[:-1],
            entropy,
            estimate.advantage,
            estimate.value_target,
        )
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
        return LossInfo(loss=loss, extra=extra or parts)

    def _estimate(self, info: ActorCriticInfo, log_prob: Tensor) -> Estimate:
        """Computes advantages and value targets.

        Args:
            info: [T, B, ...].
            log_prob: [T-1, B], log π(a_t|s_t).
        """
        value = info.value.detach()
        advantage = self._generalized_advantage(
            info.reward, value, info.step_type, info.discount
        )
        return Estimate(self._scaled(advantage, info), advantage + value[:-1])

    def _generalized_advantage(
        self,
        reward: Tensor,
        value: Tensor,
        step_type: Tensor,
        discount: Tensor,
        time_major: bool = True,
    ) -> Tensor:
        """GAE(λ) of the first T-1 steps, with the γ and the end of each reward."""
        if self._return_streams is not None:
            return self._return_streams.advantages(
                reward, value, step_type, discount, self._td_lambda, time_major
            )
        return value_ops.generalized_advantage_estimation(
            reward,
            value,
            step_type,
            self._gamma * discount,
            self._td_lambda,
            time_major=time_major,
        )

    def _scaled(self, advantage: Tensor, info: ActorCriticInfo) -> Tensor:
        """[T-1, B] or [T-1, B, D] → [T-1, B], normalized if so configured."""
        advantage = self.scalar_reward(advantage)
        if self._normalize_advantages:
            advantage = losses.normalize(advantage, valid_steps(info.step_type[:-1]))
        return self._clipped(advantage)

    def _clipped(self, advantage: Tensor) -> Tensor:
        clip = self._advantage_clip
        return advantage if clip is None else advantage.clamp(-clip, clip)

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Takes back what moved the policy farther than ``max_policy_kl``."""
        if self._trust_region is None:
            return
        share = self._trust_region.limit_on(
            root_inputs.observation, info.action_distribution, self._trained(info)
        )
        summary.scalar(f"{self.name}/share_of_update", share)

    def _trained(self, info: Nest) -> Tensor:
        """Which steps are: [T, B] bool, not those that are only bootstrapped from."""
        trained = valid_steps(info.step_type)
        trained[-1] = False
        return trained

    def _sum_dims(self, value: Tensor) -> Tensor:
        """[..., D] of a reward of several dimensions → [...]."""
        return value.sum(-1) if self.has_multidim_reward else value
