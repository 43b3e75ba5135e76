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
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite import nest
from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.critic_ensembles import smallest_critic
from alf_lite.algorithms.parts.diagnostics import diagnostic
from alf_lite.algorithms.parts.frozen import Frozen
from alf_lite.algorithms.parts.target_updater import TargetUpdater, target_copy
from alf_lite.algorithms.parts.temperature import (
    Temperature,
    entropies_of_mostly_one_value,
    target_entropies,
)
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Field, LossInfo, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.mixed_actions import Entropies, MixedActions, PolicySample
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.masked_networks import critic_without_mask, masked_actor
from alf_lite.networks.network import Network
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils import losses
from alf_lite.utils.tensor_utils import total

Nest = Any


class SacState(NamedTuple):
    """Recurrent states; all empty for feed-forward networks."""

    actor: Nest = ()  # [B, ...]
    critic: Nest = ()  # [B, ...]
    target_critic: Nest = ()  # [B, ...]


class SacInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``. D' is D+1 for a reward of D dimensions."""

    q: Tensor  # [T, B, n] or [T, B, n, D'], Q_k(s_t, a_t)
    policy_value: Tensor  # [T, B] E_π min_k Q_k(s_t, ·), with gradient to π only
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


class SacLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each; alpha []."""

    actor_loss: Tensor
    critic_loss: Tensor
    alpha_loss: Tensor
    q: Tensor
    entropy: Entropies
    alpha: Entropies


@configurable
class SacAlgorithm(RLAlgorithm):
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

    _alternatives: ClassVar[str] = (
        "Use DqnAlgorithm for many discrete components, PPOAlgorithm for unbounded "
        "actions."
    )

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        reward_spec: TensorSpec = TensorSpec(()),
        actor_network_ctor: Callable[..., Network] = SquashedActorNetwork,
        critic_network_ctor: Callable[..., CriticNetwork] = CriticNetwork,
        num_critics: int = 2,
        gamma: float = 0.99,
        n_step: int = 1,
        initial_alpha: float = 1.0,
        learn_alpha: bool = True,
        target_entropy: float | None = None,
        discrete_target_entropy: float | None = None,
        target_update_tau: float = 0.005,
        target_update_period: int = 1,
        action_mask_key: str | None = None,
        actor_optimizer: Optimizer | None = None,
        critic_optimizer: Optimizer | None = None,
        alpha_optimizer: Optimizer | None = None,
        is_eval: bool = False,
        **kwargs: Any,
    ) -> None:
        """Builds the actor and, for training, the critics and the temperatures.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest of bounded specs.
            reward_spec: rank 0 or 1.
            actor_network_ctor: called as ``ctor(observation_spec, action_spec)``; its
                continuous distributions must be reparametrised and within bounds.
            critic_network_ctor: called as ``ctor(observation_spec, vector_size,
                num_critics, output_shape)``; see :class:`CriticNetwork`.
            num_critics: n; the smallest of them is believed.
            gamma: γ in [0, 1].
            n_step: rewards that are summed before the target bootstraps. The windows
                of ``TrainerConfig.mini_batch_length`` need one step more.
            initial_alpha: of both temperatures.
            learn_alpha: False keeps them.
            target_entropy: of the continuous part; None: −1 for each element, with its
                range scaled to [-1, 1].
            discrete_target_entropy: of the discrete part; None: that of a policy which
                takes one of the A joint values in 90 percent of the cases and the
                others alike. A mask changes A from state to state. A number holds for
                every state; masks should leave enough values to reach it on average.
            target_update_tau: τ in (0, 1].
            target_update_period: gradient updates between two target updates.
            action_mask_key: of the mask in a dict of observations; see
                :class:`ActionMask`. The networks do not see it.
            actor_optimizer: of the actor; None: ``optimizer`` trains it, too. As for
                the critics and the temperatures.
            is_eval: see :class:`RLAlgorithm`, as for ``kwargs``.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        try:
            actions = MixedActions(action_spec)
        except ValueError as error:
            raise ValueError(
                f"{type(self).__name__} cannot handle these actions. {error}. "
                f"{self._alternatives}"
            ) from error
        mask = ActionMask(observation_spec, action_spec, action_mask_key)
        actor_network = masked_actor(
            actor_network_ctor(mask.remaining_spec, action_spec), mask
        )
        critic_network: Any = None  # a CriticNetwork, unless is_eval
        critic_state_spec: NestedTensorSpec = ()
        if not is_eval:
            dims = () if reward_spec.ndim == 0 else (reward_spec.numel + 1,)
            output_shape = (actions.num_joint_values, *dims)
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
            train_state_spec=SacState(
                actor=actor_network.state_spec,
                critic=critic_state_spec,
                target_critic=critic_state_spec,
            ),
            predict_state_spec=SacState(actor=actor_network.state_spec),
            is_on_policy=False,
            is_eval=is_eval,
            **kwargs,
        )
        transitions.check_coefficients(gamma, n_step, self._config)
        self._actions = actions
        self._mask = mask
        self._has_target_for_each_mask = mask.exists and discrete_target_entropy is None
        self._gamma = gamma
        self._n_step = self.num_bootstrap_steps = n_step
        self._is_recurrent = not nest.is_empty(self.train_state_spec)
        self._actor_network = actor_network
        self._critic_network = critic_network
        if is_eval:
            return
        self._frozen_critics = Frozen(critic_network)
        self._target_critic_network = target_copy(critic_network)
        self._update_target = TargetUpdater(
            [critic_network],
            [self._target_critic_network],
            tau=target_update_tau,
            period=target_update_period,
        )
        targets = target_entropies(actions, target_entropy, discrete_target_entropy)
        self._temperatures = nn.ModuleDict(
            {
                part: Temperature(initial_alpha, target, is_learnt=learn_alpha)
                for part, target in targets.items()
            }
        )
        for own_optimizer, module in (
            (actor_optimizer, actor_network),
            (critic_optimizer, critic_network),
            (alpha_optimizer, self._temperatures),
        ):
            if own_optimizer is not None:
                self.add_optimizer(own_optimizer, [module])

    # Acting

    def predict_step(self, inputs: TimeStep, state: SacState) -> AlgStep:
        """Acts greedily, or as ``TrainerConfig.epsilon_greedy`` says."""
        policy, actor_state = self._actor_network(inputs.observation, state.actor)
        epsilon = 0.0 if self._config is None else self._config.epsilon_greedy
        return AlgStep(
            output=distributions.epsilon_greedy(policy, epsilon),
            state=SacState(actor=actor_state),
        )

    def rollout_step(self, inputs: TimeStep, state: SacState) -> AlgStep:
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
            state=SacState(actor_state, critic_state, critic_state),
        )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """All but the actor, and critics whose state is stored."""
        modules: list[nn.Module] = [self._target_critic_network, self._temperatures]
        if nest.is_empty(self.rollout_state_spec.critic):
            modules.append(self._critic_network)
        return modules

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
        return make(root_inputs, self._n_step, self._gamma)

    def train_step(
        self, inputs: TimeStep, state: SacState, rollout_info: Transition
    ) -> AlgStep:
        """Values the actions that were taken and those that the policy would take."""
        policy, actor_state = self._actor_network(inputs.observation, state.actor)
        sample = self._actions.sample(policy)
        features, critic_state = self._critic_network.encode(
            inputs.observation, state.critic
        )
        values = self._critic_network.evaluate(
            features, self._actions.to_vector(rollout_info.action)
        )  # [B, n, A, ...]
        if self._is_recurrent:
            # calc_loss moves the value of a step to those that bootstrap from it.
            next_policy: Nest = ()
            next_value, target_state = self._next_value(
                inputs.observation, policy, state.target_critic
            )
        else:
            with torch.no_grad():
                next_policy, _ = self._actor_network(rollout_info.next_observation)
            next_value, target_state = self._next_value(
                rollout_info.next_observation, next_policy, state.target_critic
            )
        info = SacInfo(
            q=self._actions.values_of(rollout_info.action, values),
            policy_value=self._policy_value(features, values, sample),
            entropies=sample.entropies,
            next_value=next_value,
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            num_steps=rollout_info.num_steps,
            step_type=inputs.step_type,
        )
        if self._has_target_for_each_mask:
            num_allowed = self._mask.num_joint_values(inputs.observation)
            info = info._replace(num_allowed=num_allowed)
        evaluation = SacEvaluation(
            inputs.observation, policy, next_policy, features, values
        )
        return AlgStep(
            output=rollout_info.action,
            state=SacState(actor_state, critic_state, target_state),
            info=self._extend_info(info, rollout_info, evaluation),
        )

    def _extend_info(
        self, info: SacInfo, transition: Transition, evaluation: SacEvaluation
    ) -> Nest:
        """What a subclass hands to its ``calc_loss``, [B, ...]."""
        return info

    def _policy_value(
        self, features: Tensor, values: Tensor, sample: PolicySample
    ) -> Tensor:
        """E_π min_k Q_k(s, ·) [B], with gradient to the policy only.

        Args:
            features: [B, F], of the critics for s.
            values: [B, n, A, ...], Q_k(s, ·) given the vector that was taken.
            sample: of π(·|s).
        """
        if sample.vector is None:
            values = values.detach()
        else:
            with self._frozen_critics:
                values = self._critic_network.evaluate(features.detach(), sample.vector)
        return self._weighted(sample.expectation(self._smallest(values)))

    @torch.no_grad()
    def _next_value(
        self, observation: Nest, policy: Nest, target_state: Nest
    ) -> tuple[Tensor, Nest]:
        """V(s), [B] or [B, D'], and the new state of the target critics.

        Args:
            observation: [B, ...], s.
            policy: π(·|s).
            target_state: recurrent state of the target critics.
        """
        features, target_state = self._target_critic_network.encode(
            observation, target_state
        )
        return self._backup(observation, policy, features), target_state

    def _backup(self, observation: Nest, policy: Nest, features: Tensor) -> Tensor:
        """V(s) = E_π [min_k Q_k(s, ·; θ⁻) − α log π], eq. 3 of the paper.

        Args:
            observation: [B, ...], s.
            policy: π(·|s).
            features: [B, F], of the target critics for s.

        Returns:
            [B] or [B, D'].
        """
        sample = self._actions.sample(policy)
        values = self._target_critic_network.evaluate(features, sample.vector)
        value = sample.expectation(self._smallest(values))
        bonus = self._entropy_bonus(sample.entropies)
        if self.has_multidim_reward:
            bonus = F.pad(bonus.unsqueeze(-1), (value.shape[-1] - 1, 0))
        return value + bonus

    def _smallest(self, values: Tensor) -> Tensor:
        """The value of the most pessimistic critic: [B, n, A, ...] → [B, A, ...]."""
        return smallest_critic(values, self._weighted(values))

    def _weighted(self, values: Tensor) -> Tensor:
        """What is maximised: [..., D'] → [...]; [...] as it is."""
        if not self.has_multidim_reward:
            return values
        return self.scalar_reward(values[..., :-1]) + values[..., -1]

    def _entropy_bonus(self, entropies: Entropies) -> Tensor:
        """Σ α H over the parts of the action."""
        return total(
            temperature.alpha * getattr(entropies, part)
            for part, temperature in self._temperatures.items()
        )

    def calc_loss(self, info: SacInfo) -> LossInfo:
        """The sum of the losses of actor, critics and temperatures, [T-n, B]."""
        if self._is_recurrent:
            info = transitions.align(info, ("next_value",), self._n_step)
        critic_loss, td_error = self._critic_loss(info)
        actor_loss = self._actor_loss(info)
        alpha_loss = self._alpha_loss(info)
        extra = diagnostic(
            lambda: SacLossInfo(
                actor_loss=actor_loss,
                critic_loss=critic_loss,
                alpha_loss=alpha_loss,
                q=self._weighted(info.q).mean(-1),
                entropy=info.entropies,
                alpha=Entropies(
                    **{part: t.alpha for part, t in self._temperatures.items()}
                ),
            )
        )
        return LossInfo(
            loss=actor_loss + critic_loss + alpha_loss,
            extra=extra,
            priority=self.priority_of(td_error, info.step_type),
        )

    def _critic_loss(self, info: SacInfo) -> tuple[Tensor, Callable[[], Tensor]]:
        """Eq. 5: Σ_k ½ (Q_k(s_t, a_t) − G_t − Γ_t V(s_{t+m}))²; for mean_k |δ_k|."""
        reward, discount = info.reward, info.discount
        if self.has_multidim_reward:
            # The entropy is no reward of the environment.
            reward, discount = F.pad(reward, (0, 1)), discount.unsqueeze(-1)
        target = (reward + discount * info.next_value).unsqueeze(2).expand_as(info.q)
        loss = (0.5 * losses.squared(info.q, target)).flatten(2).sum(2)

        def td_error() -> Tensor:
            return self._weighted(target - info.q.detach()).abs().mean(2)

        return loss, td_error

    def _actor_loss(self, info: SacInfo) -> Tensor:
        """Eq. 7: E_π [α log π − min_k Q_k(s_t, ·)]."""
        return -self._entropy_bonus(info.entropies) - info.policy_value

    def _alpha_loss(self, info: SacInfo) -> Tensor:
        """Eq. 18, summed over the parts of the action; see :class:`Temperature`."""
        targets = {}
        if isinstance(info.num_allowed, Tensor):
            targets["discrete"] = entropies_of_mostly_one_value(info.num_allowed)
        return total(
            temperature(getattr(info.entropies, part), targets.get(part))
            for part, temperature in self._temperatures.items()
        )

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Moves the target critics towards the critics."""
        self._update_target.forward()
