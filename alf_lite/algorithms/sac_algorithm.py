"""Soft actor-critic with automatic temperature.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905; for
discrete actions Christodoulou, "Soft Actor-Critic for Discrete Action Settings",
arXiv:1910.07207.

Differences from the papers:

1. An action may have continuous and discrete parts. The critics value every joint value
   of the discrete parts, given the continuous ones, and the expectation over them is
   exact. Each kind has a temperature of its own.
2. The losses of actor, critics and temperatures are minimised by one backward pass;
   none reaches the parameters of another.
3. A reward of D dimensions has a critic output for each, and one more for the entropy.
   Their weighted sum is maximised, and is what decides between the critics of a pair.
4. n-step returns, which leave out the entropy of the steps in between.
5. A step that ends by a time limit is bootstrapped.
6. Under an action mask, expectation and entropy are over the joint values allowed, and
   the discrete target entropy of a state follows from their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite import nest
from alf_lite.algorithms.off_policy_algorithm import PathwiseActorCriticAlgorithm
from alf_lite.algorithms.parts.critics import with_clipped_slope
from alf_lite.algorithms.parts.prior import Prior, make_prior
from alf_lite.algorithms.parts.temperature import (
    BoxSamples,
    TargetEntropy,
    Temperatures,
)
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, Field, LossInfo, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_vectors import Entropies, PolicySample
from alf_lite.distributions.sample_noise import SampleNoise
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.network import Network, takes_whole_sequences
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.utils.checks import check_left_out
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Scheduled

Nest = Any


class SacState(NamedTuple):
    """Recurrent states, empty for feed-forward networks, and that of the noise."""

    actor: Nest = ()  # [B, ...]
    critic: Nest = ()  # [B, ...]
    target_critic: Nest = ()  # [B, ...]
    noise: Nest = ()  # [B, ...]


class SacInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``. D' is D+1 for a reward of D dimensions.

    What the actor learns from is () where it is not due.
    """

    q: Tensor  # [T, B, n] or [T, B, n, D'], Q_k(s_t, a_t)
    policy_value: Field  # [T, B] E_π min_k Q_k(s_t, ·), with gradient to π only
    entropies: Entropies  # [T, B] of π(·|s_t), with gradient
    next_value: Tensor  # [T, B] or [T, B, D'], V(s_{t+m}), no gradient
    reward: Tensor  # [T, B] or [T, B, D], G_t
    discount: Tensor  # [T, B] Γ_t
    num_steps: Field  # [T, B] m, of a network with memory
    step_type: Tensor  # [T, B]
    num_allowed: Field = ()  # [T, B] joint values that a mask leaves, if there is one


class SacEvaluation(NamedTuple):
    """What ``train_step`` has at hand, for subclasses whose loss needs more."""

    observation: Nest  # [B, ...] s_t
    policy: Nest  # π(·|s_t), with gradient
    next_policy: Nest  # π(·|s_{t+m}), no gradient; () in a sequence
    features: Tensor  # [B, F], of the critics for s_t
    values: Tensor  # [B, n, A, ...] Q_k(s_t, ·), given the vector that was taken


class Following(NamedTuple):
    """What a step bootstraps from."""

    observation: Nest  # [B, ...] s_{t+m}, or with memory s_t
    policy: Nest  # π of it
    target_state: Nest  # of the target critics


class SacLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each; alpha []."""

    actor_loss: Field  # (), as the next two, if the actor is not updated
    critic_loss: Tensor
    alpha_loss: Field
    q: Tensor
    entropy: Entropies
    alpha: Entropies


@configurable(defaults={"actor_network_ctor": SquashedActorNetwork})
class SacAlgorithm(PathwiseActorCriticAlgorithm):
    """SAC for nests of continuous and discrete actions."""

    # Haarnoja et al. 2018, table 1: an update of 256 transitions for every step.
    default_settings = DefaultSettings(
        updates_per_env_step=1.0,
        unroll_length=1,
        mini_batch_size=256,
        mini_batch_length=2,
        initial_collect_steps=1000,
        initial_random_policy=True,
        lr=1e-3,
    )

    def __init__(
        self,
        *specs: Any,
        exploration_noise_ctor: Callable[..., SampleNoise] | None = None,
        initial_alpha: float = 1.0,
        learn_alpha: bool = True,
        max_log_alpha: float | None = None,
        target_entropy: TargetEntropy | None = None,
        discrete_target_entropy: Scheduled | None = None,
        use_entropy_reward: bool = True,
        prior_actor_ctor: Callable[..., Network] | None = None,
        prior_checkpoint: str | None = None,
        target_kld_per_dim: float | None = None,
        alpha_optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the networks and, for training, the temperatures.

        Args:
            *specs: of one observation, and of one action: any nest of bounded specs.
            exploration_noise_ctor: ``CorrelatedNoise``, ``RepeatedNoise`` or
                ``StateDependentNoise``, called as ``ctor(action_size, feature_size)``,
                so that the samples that the rollout takes hang together in time; None:
                each is independent.
            initial_alpha: of both temperatures.
            learn_alpha: False keeps them.
            max_log_alpha: the largest log of a temperature; None: any.
            target_entropy: of the continuous part; None: −1 for each element, with its
                range scaled to [-1, 1]. A function such as ``concentrated_entropy`` is
                called with the actions.
            discrete_target_entropy: of the discrete part; None: that of a policy which
                takes one of the A joint values in 90 percent of the cases and the
                others alike. A mask changes A from state to state. A number holds for
                every state; masks should leave enough values to reach it on average.
            use_entropy_reward: False leaves the entropy out of the targets: it is asked
                of the policy, and not of what follows.
            prior_actor_ctor: called as ``actor_network_ctor``, for a policy without
                memory that stays as it is. The policy then keeps near to that one:
                −KL(π ‖ prior) takes the place of the entropy. For continuous actions.
            prior_checkpoint: see :class:`Prior`, as for the next one.
            target_kld_per_dim: in place of ``target_entropy``.
            alpha_optimizer: of the temperatures; None: ``optimizer`` trains them, too.
            **kwargs: see :class:`PathwiseActorCriticAlgorithm`. The continuous
                distributions of ``actor_network_ctor`` must be reparametrised and
                within bounds. The temperatures are updated when the actor is.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
            ConfigError: for a policy that no gradient goes through, or that leaves the
                bounds; for a target that no policy reaches, and for a setting that
                would be ignored.
        """
        super().__init__(*specs, **kwargs)
        self._set_noise(exploration_noise_ctor)
        self._use_entropy_reward = use_entropy_reward
        self._prior: Prior | None = None
        if self._is_eval:
            return
        boxes = self._policy.differentiable_boxes()
        self._prior = make_prior(
            prior_actor_ctor,
            self.action_spec,
            self._actor_mask,
            prior_checkpoint,
            target_kld_per_dim,
            target_entropy,
        )
        if self._prior is not None:
            boxes = BoxSamples(max_entropy=0.0)  # of −KL
            target_entropy = self._prior.target_entropy if learn_alpha else None
        if not learn_alpha:
            check_left_out(
                "learn_alpha = False keeps the temperatures",
                target_kld_per_dim=target_kld_per_dim,
                alpha_optimizer=alpha_optimizer,
            )
        self._temperatures = Temperatures(
            self._actions,
            target_entropy,
            discrete_target_entropy,
            boxes=boxes,
            initial_value=initial_alpha,
            is_learnt=learn_alpha,
            max_log_alpha=max_log_alpha,
        )
        self._claim(alpha_optimizer, self._temperatures)

    def _set_noise(self, ctor: Callable[..., SampleNoise] | None) -> None:
        self._noise: SampleNoise | None = None
        rollout = states = SacState(*self.train_state_spec)
        if ctor is not None:
            self._noise = self._policy.make_noise(ctor)
            rollout = states._replace(noise=self._noise.state_spec)
        self._set_state_specs(
            # Where states are stored, training gets that of the noise with the others.
            train=states if nest.is_empty(states) else rollout,
            rollout=rollout,
            predict=SacState(actor=states.actor),
        )

    def _load_own_checkpoints(self, name: str) -> None:
        """The prior, too."""
        super()._load_own_checkpoints(name)
        if self._prior is not None:
            self._prior.load(name)

    def _critic_output_shape(self) -> tuple[int, ...]:
        """With D' values for a reward of D dimensions, the last of them the entropy."""
        dims = (self.reward_spec.numel + 1,) if self.has_multidim_reward else ()
        return (self._actions.num_joint_values, *dims)

    def _weighted_sum(self, values: Tensor) -> Tensor:
        """[..., D'] → [...]: the entropy is worth what it is."""
        return self.scalar_reward(values[..., :-1]) + values[..., -1]

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """The temperatures and the prior, too."""
        prior = [] if self._prior is None else [self._prior]
        return [*super().training_only_modules, self._temperatures, *prior]

    # Acting

    def rollout_step(self, inputs: TimeStep, state: SacState) -> AlgStep:
        """Samples an action. The replayed steps tell it; there is no info."""
        observation, noise = inputs.observation, self._noise
        features: Nest = ()
        if noise is not None and noise.uses_features:
            policy, features, actor_state = self._policy.with_features(
                observation, state.actor
            )
        else:
            policy, actor_state = self._policy.forward(observation, state.actor)
        policy = self._exploring(policy, observation, state)
        if noise is None:
            action = distributions.sample(policy)
        else:
            epsilon, noise_state = noise.draw(features, state.noise)
            action = distributions.sample_with_noise(policy, epsilon)
            state = state._replace(noise=noise_state)
        state = self._next_state(inputs, state, actor_state)
        return AlgStep(output=action, state=state)

    def _exploring(self, policy: Nest, observation: Nest, state: SacState) -> Nest:
        """What the rollout samples from, given π(·|s)."""
        return policy

    # Learning

    @takes_whole_sequences
    def train_step(
        self, inputs: TimeStep, state: SacState, rollout_info: Transition
    ) -> AlgStep:
        """Values the actions that were taken and those that the policy would take."""
        observation, action = inputs.observation, rollout_info.action
        is_due = self._actor_updates.is_due
        with torch.set_grad_enabled(is_due and torch.is_grad_enabled()):
            policy, actor_state = self._policy(observation, state.actor)
        sample = self._sample(observation, policy) if is_due else None
        features, critic_state = self._critics.online.encode(observation, state.critic)
        next_policy: Nest = ()
        if self._is_recurrent:
            # calc_loss moves the value of a step to those that bootstrap from it.
            following = Following(observation, policy, state.target_critic)
        else:
            next_observation = rollout_info.next_observation
            with torch.no_grad():
                next_policy, _ = self._policy(next_observation)
            following = Following(next_observation, next_policy, state.target_critic)
        values, next_value, target_state = self._evaluate(
            (observation, features), self._actions.to_vector(action), following
        )
        info = SacInfo(
            q=self._actions.values_of(action, values),
            policy_value=self._policy_value(features, values, sample),
            entropies=sample.entropies if sample else Entropies(),
            next_value=next_value,
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            num_steps=rollout_info.num_steps,
            step_type=inputs.step_type,
        )
        if self._mask.exists and self._temperatures.follow_masks:
            num_allowed = self._mask.num_joint_values(observation)
            info = info._replace(num_allowed=num_allowed)
        evaluation = SacEvaluation(observation, policy, next_policy, features, values)
        return AlgStep(
            output=action,
            state=SacState(actor_state, critic_state, target_state, state.noise),
            info=self._extend_info(info, rollout_info, evaluation),
        )

    def _sample(self, observation: Nest, policy: Nest) -> PolicySample:
        """What π(·|s) would do; with a prior, the entropy is relative to that."""
        sample = self._actions.sample(policy)
        if self._prior is None:
            return sample
        prior, _ = self._prior(observation)
        action = self._actions.to_action(sample.vector)
        relative = sample.entropies.continuous + distributions.log_prob(prior, action)
        return sample._replace(entropies=sample.entropies._replace(continuous=relative))

    def _extend_info(
        self, info: SacInfo, transition: Transition, evaluation: SacEvaluation
    ) -> Nest:
        """What a subclass hands to its ``calc_loss``, [B, ...]."""
        return info

    def _policy_value(
        self, features: Tensor, values: Tensor, sample: PolicySample | None
    ) -> Field:
        """E_π min_k Q_k(s, ·) [B], with gradient to the policy only; () if not due.

        Args:
            features: [B, F], of the critics for s.
            values: [B, n, A, ...], Q_k(s, ·) given the vector that was taken.
            sample: of π(·|s); None if not due.
        """
        if sample is None:
            return ()
        if sample.vector is None:
            values = values.detach()
        else:
            values = self._critics.evaluate_frozen(features, sample.vector)
        value = sample.expectation(self._opinion(self._weigh(values)))
        if sample.vector is None:
            return value
        return with_clipped_slope(value, sample.vector, self._dqda_clipping)

    def _opinion(self, values: Tensor) -> Tensor:
        """What the actor believes, of what all critics expect: [B, n, A] → [B, A]."""
        return values.amin(1)

    def _target_opinion(self, values: Tensor) -> Tensor:
        """What a target believes, of target critics: [B, n, A, ...] → [B, A, ...]."""
        return self._critics.smallest(values)

    def _evaluate(
        self, now: tuple[Nest, Tensor], vector: Tensor | None, following: Following
    ) -> tuple[Tensor, Tensor, Nest]:
        """Q_k(s_t, ·) and, without gradient, V(s_{t+m}).

        Args:
            now: s_t [B, ...], and [B, F] features of the critics for it.
            vector: [B, vector_size], that was taken.
            following: s_{t+m}.

        Returns:
            [B, n, A, ...], [B] or [B, D'], the new state of the target critics.
        """
        values = self._critics.online.evaluate(now[1], vector)
        return values, *self._next_value(*following)

    @torch.no_grad()
    def _next_value(
        self, observation: Nest, policy: Nest, target_state: Nest
    ) -> tuple[Tensor, Nest]:
        """V(s) = E_π [min_k Q_k(s, ·; θ⁻) − α log π], eq. 3 of the paper.

        Args:
            observation: [B, ...], s.
            policy: π(·|s).
            target_state: recurrent state of the target critics.

        Returns:
            [B] or [B, D'], and the new state of the target critics.
        """
        features, target_state = self._critics.target.encode(observation, target_state)
        sample = self._sample(observation, policy)
        values = self._critics.target.evaluate(features, sample.vector)
        return self._soft_value(sample, values), target_state

    def _soft_value(self, sample: PolicySample, values: Tensor) -> Tensor:
        """The same, of a sample of the policy and its values [B, n, A, ...].

        Of a model of the return, the outputs of V [B, N] and then the entropy's part.
        """
        value = sample.expectation(self._target_opinion(values))
        if not self._use_entropy_reward:
            return value
        bonus = self._temperatures.bonus(sample.entropies)
        if self.has_multidim_reward:
            bonus = F.pad(bonus.unsqueeze(-1), (value.shape[-1] - 1, 0))
        elif self._return_model is not None:
            # It moves the whole distribution, whatever the outputs stand for.
            return torch.cat([value, bonus.unsqueeze(-1)], -1)
        return value + bonus

    def calc_loss(self, info: SacInfo) -> LossInfo:
        """The sum of the losses of actor, critics and temperatures, [T-n, B]."""
        info = self._align(info, "next_value")
        critic_loss, td_error = self._critic_loss(info)
        loss, actor_loss, alpha_loss = critic_loss, info.policy_value, info.policy_value
        if self._actor_updates.is_due:
            actor_loss = self._actor_loss(info)
            alpha_loss = self._temperatures(info.entropies, info.num_allowed)
            loss = actor_loss + critic_loss + alpha_loss
        extra = diagnostic(
            lambda: SacLossInfo(
                actor_loss=actor_loss,
                critic_loss=critic_loss,
                alpha_loss=alpha_loss,
                q=self._weigh(info.q).mean(-1),
                entropy=info.entropies,
                alpha=self._temperatures.alpha,
            )
        )
        return LossInfo(loss, (), extra, self.priority_of(td_error, info.step_type))

    def _critic_loss(self, info: SacInfo) -> tuple[Tensor, Callable[[], Tensor]]:
        """Eq. 5: Σ_k ½ (Q_k(s_t, a_t) − G_t − Γ_t V(s_{t+m}))²; for mean_k |δ_k|."""
        reward, next_value = info.reward, info.next_value
        if self.has_multidim_reward:
            reward = F.pad(reward, (0, 1))  # the entropy is none of the environment's
        elif self._return_model is not None and self._use_entropy_reward:
            reward = reward + info.discount * next_value[..., -1]
            next_value = next_value[..., :-1]
        return self._critics.td_loss(
            info.q, reward, info.discount, next_value, halved=True
        )

    def _actor_loss(self, info: SacInfo) -> Tensor:
        """Eq. 7: E_π [α log π − min_k Q_k(s_t, ·)]."""
        return -self._temperatures.bonus(info.entropies) - info.policy_value

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Moves the targets, and keeps the temperatures within their limit."""
        super().after_update(root_inputs, info)
        self._temperatures.limit()

    def _reset_parameters(self) -> None:
        super()._reset_parameters()
        self._temperatures.reset()
