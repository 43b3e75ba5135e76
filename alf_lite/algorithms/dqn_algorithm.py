"""Deep Q-learning and its extensions.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015;
double Q-learning of van Hasselt et al., arXiv:1509.06461; n-step returns and their
combination of Hessel et al. ("Rainbow"), arXiv:1710.02298. Dueling and noisy networks
are options of the network, distributional ones of the return model, prioritised replay
of the trainer. Priorities of new steps are those of Horgan et al. ("Ape-X"),
arXiv:1803.00933, lower bounds of targets those of Tang, "Self-Imitation Learning via
Generalized Lower Bound Q-learning", arXiv:2006.07442, for whole episodes.

Differences from the papers:

1. The target network is copied in every C = ``target_update_period`` updates. With
   ``target_update_tau=0.005`` it follows θ⁻ ← θ⁻ + τ (θ − θ⁻) after each instead.
2. An action of several discrete components has a value for each of them: component c
   learns y_c = G + Γ Q_c(s', ·) on its own, and the loss is the mean over them.
3. The priority is |δ| of the expected return for every return model.
4. A step that ends by a time limit is bootstrapped, and its episode bounds no target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf_lite.algorithms.parts import replay_options
from alf_lite.algorithms.parts.critics import TargetUpdater, target_copy
from alf_lite.algorithms.parts.return_heads import (
    ExpectedReturnHead,
    ReturnHead,
    mean_of_components,
    outputs_of,
)
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import (
    AlgStep,
    BatchInfo,
    Experience,
    Field,
    LossInfo,
    TimeStep,
)
from alf_lite.distributions.action_vectors import DiscreteActions
from alf_lite.distributions.exploration import (
    EpsilonGreedy,
    choose,
    epsilon_greedy,
    masked_argmax,
    random_index,
)
from alf_lite.errors import ConfigError
from alf_lite.fast import quick
from alf_lite.networks.network import Network, as_network, takes_whole_sequences
from alf_lite.networks.noisy_layers import exploring_by_noise
from alf_lite.networks.value_networks import QNetwork
from alf_lite.replay_buffers.packed_windows import PackedWindows
from alf_lite.replay_buffers.row_layout import PackedSteps
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Scheduled

Nest = Any


# Begins at random, so that the first values are not those of a single behaviour.
_EPSILON = ((0.0, 1.0), (0.16, 0.04))


class DqnState(NamedTuple):
    """Recurrent states; both empty for feed-forward networks."""

    q: Nest = ()  # [B, ...]
    target_q: Nest = ()  # [B, ...]


class DqnInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``. N outputs for each of C components."""

    outputs: Tensor  # [T, B, C, N] Z(s_t, a_t; θ)
    next_outputs: Tensor  # [T, B, C, N] Z(s_{t+m}, a*; θ⁻), no gradient
    reward: Tensor  # [T, B] G_t
    discount: Tensor  # [T, B] Γ_t
    num_steps: Field  # [T, B] m, of a network with memory
    step_type: Tensor  # [T, B]
    bonus: Field = ()  # [T, B, C] added to the reward, if a subclass says so
    episode_return: Field = ()  # [T, B] of the rest of the episode, if it is a bound


class DqnLossInfo(NamedTuple):
    """Diagnostics, [T, B] each."""

    q: Tensor  # Q(s_t, a_t), mean of the components
    td_error: Tensor  # |δ_t|, mean of the components


@configurable(
    defaults={"n_step": None, "target_update_tau": 1.0, "target_update_period": None}
)
class QLearningAlgorithm(OffPolicyAlgorithm):
    """Values of discrete actions, a target network and its loss.

    What a target bootstraps from is a subclass's.
    """

    # Mnih et al. 2015: ε that falls from 1, a target that is copied, ReLU. Tasks of few
    # numbers want more: as many updates as steps, in phases between which the policy
    # stays what it is, with larger batches, targets of five steps and Adam.
    default_settings = DefaultSettings(
        n_step=5,
        updates_per_env_step=1.0,
        unroll_length=256,
        mini_batch_size=128,
        mini_batch_length=2,
        initial_collect_steps=1000,
        lr=((0.0, 2.3e-3), (1.0, 0.0)),
        gradient_clipping=10.0,
    )

    has_stochastic_policy = False
    _learns_weighted_sum = True

    def __init__(
        self,
        *specs: Any,
        q_network_ctor: Callable[..., Network] = QNetwork,
        return_model: ReturnHead | None = None,
        rollout_epsilon_greedy: Scheduled | Sequence[Scheduled] = _EPSILON,
        lower_bound_targets: bool = False,
        prioritize_new_steps: bool = False,
        **kwargs: Any,
    ) -> None:
        """Builds the online and, for training, the target network.

        Args:
            *specs: of one observation, and of one action: any nest of discrete specs.
            q_network_ctor: called as ``ctor(observation_spec, num_values,
                num_outputs)``, with the number of values of each component; see
                :class:`QNetwork`.
            return_model: what the outputs of the network stand for; None: the expected
                return, with the Huber loss.
            rollout_epsilon_greedy: ε of ``rollout_step``: a number, the points of a
                line over the run or a scheduler, or one of them for every environment.
                ``predict_step`` uses ``TrainerConfig.epsilon_greedy``.
            lower_bound_targets: no target is below the discounted return that did
                follow, once the episode has terminated. Right where the environment is
                deterministic; too high, where luck counts.
            prioritize_new_steps: with ``TrainerConfig.priority_replay``, give a step
                that is stored the |δ| of the values that acted, not the largest
                priority there is. They are stored, too.
            **kwargs: see :class:`OffPolicyAlgorithm`. Rewards of several dimensions are
                weighted and summed.

        Raises:
            ValueError: if the action is not discrete or a coefficient is out of range.
            ConfigError: if settings contradict each other.
        """
        super().__init__(*specs, **kwargs)
        self._return_model = return_model or ExpectedReturnHead()
        self.uses_episode_returns = lower_bound_targets
        self.prioritizes_new_steps = prioritize_new_steps
        replay_options.check(self, self._return_model)
        self._explore = EpsilonGreedy(rollout_epsilon_greedy)
        if self._env is not None:
            self.set_num_environments(self._env.batch_size)
        sizes, num_outputs = self._actions.sizes, self._return_model.num_outputs
        spec = self._mask.remaining_spec
        self._q_network = as_network(
            q_network_ctor(spec, sizes.tolist(), num_outputs),
            spec,
            "q_network_ctor",
            (*sizes.shape, int(sizes.max()), num_outputs),
        )
        state_spec = self._q_network.state_spec
        self._set_state_specs(
            DqnState(q=state_spec, target_q=state_spec), predict=DqnState(q=state_spec)
        )
        if not self._is_eval:
            self._target_q_network = target_copy(self._q_network)
            self._update_target = TargetUpdater(
                [self._q_network], [self._target_q_network], **self._target_update
            )

    def _require_no_memory(self, what: str) -> None:
        if self._is_recurrent:
            raise ConfigError(
                f"{self._name}: {what} of networks with memory are not implemented, "
                f"and {type(self._q_network).__name__} has one. Take DqnAlgorithm or "
                "R2d2Algorithm."
            )

    def set_num_environments(self, num_environments: int) -> None:
        """There is one ε for all, or one for each."""
        name = f"{self.name}.rollout_epsilon_greedy"
        self._explore.check_number(num_environments, name)

    def _make_actions(self, action_spec: NestedTensorSpec) -> DiscreteActions:
        return DiscreteActions(action_spec)

    # Acting

    @quick
    def predict_step(self, inputs: TimeStep, state: DqnState) -> AlgStep:
        """Acts greedily, or as ``TrainerConfig.epsilon_greedy`` says."""
        q, allowed, q_state = self._evaluate(inputs.observation, state.q)
        index = epsilon_greedy(q, self.predict_epsilon, allowed)
        return AlgStep(output=self._actions.to_action(index), state=DqnState(q=q_state))

    @quick
    def rollout_step(self, inputs: TimeStep, state: DqnState) -> AlgStep:
        """Acts ε-greedily. The replayed steps tell the action; there is no info."""
        step_type = inputs.step_type
        device = step_type.device
        shape = (*step_type.shape, self._actions.num_components)
        explores = self._explore.toss(shape, device, inputs.env_id)
        wants_values = self._is_recurrent or self.prioritizes_new_steps
        if explores is True and not wants_values:  # whatever the values are
            _, mask = self._mask.split(inputs.observation)
            allowed = self._actions.allowed(mask, device)
            index = random_index(shape, self._actions.max_values, allowed, device)
            return AlgStep(output=self._actions.to_action(index), state=state)
        with exploring_by_noise():
            q, allowed, q_state = self._evaluate(inputs.observation, state.q)
        return AlgStep(
            output=self._actions.to_action(choose(q, explores, allowed)),
            # Stored states start both networks.
            state=DqnState(q=q_state, target_q=q_state),
            info=self._rollout_info(q, allowed),
        )

    def _rollout_info(self, q: Tensor, allowed: Tensor | None) -> Nest:
        if not self.prioritizes_new_steps:
            return ()
        return replay_options.ActingValues.of(q, allowed)

    @property
    def training_only_modules(self) -> list[nn.Module]:
        return [self._target_q_network]

    def _evaluate(
        self, observation: Nest, state: Nest
    ) -> tuple[Tensor, Tensor | None, Nest]:
        """Q(s, ·) [B, C, A], which values are allowed, and the new state."""
        outputs, allowed, state = self._outputs(
            self._q_network.forward, observation, state
        )
        return self._return_model.mean(outputs), allowed, state

    def _outputs(
        self, network: Callable[..., Any], observation: Nest, state: Nest = ()
    ) -> tuple[Tensor, Tensor | None, Nest]:
        """Z(s, ·) [B, C, A, N], which values are allowed, and the new state."""
        observation, mask = self._mask.split(observation)
        outputs, state = network(observation, state)
        return outputs, self._actions.allowed(mask, outputs.device), state

    # Learning

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Transition]:
        """Sums up the rewards of n steps, and has what episodes returned."""
        inputs, transition = super().preprocess_experience(
            root_inputs, rollout_info, batch_info
        )
        # Not if it is asked about steps of no buffer.
        returns = batch_info.episode_returns
        if self.uses_episode_returns and isinstance(returns, Tensor):
            num_rows = transition.discount.shape[1]
            transition = transition._replace(episode_return=returns[:, :num_rows])
        return inputs, transition

    def step_pairing(self) -> Callable[[PackedWindows], PackedSteps] | None:
        is_plain = not self.has_multidim_reward and not self.uses_episode_returns
        return super().step_pairing() if is_plain else None

    def priority_of_new_steps(self, experience: Experience) -> Tensor:
        """What |δ| was when they acted, [B]; with n steps and max_a Q(s, a).

        Args:
            experience: [B, T, ...], windows as training draws them.
        """
        steps = experience.time_step
        reward = self.scalar_reward(steps.reward)
        td_error, step_type = replay_options.error_of_acting(
            steps._replace(reward=reward),
            experience.rollout_info,
            self._actions,
            self._return_model,
            n_step=self._n_step,
            gamma=self._gamma,
        )
        return self.priority_of(td_error, step_type)

    @takes_whole_sequences
    def train_step(
        self, inputs: TimeStep, state: DqnState, rollout_info: Transition
    ) -> AlgStep:
        """Evaluates the actions that were taken, and the best ones that follow."""
        observation = self._mask.remaining(inputs.observation)
        outputs, q_state = self._q_network(observation, state.q)
        if self._is_recurrent:
            # calc_loss moves the values of a step to those that bootstrap from it.
            next_observation, next_online = inputs.observation, outputs
        else:
            next_observation, next_online = rollout_info.next_observation, None
        next_outputs, target_state = self._bootstrap(
            next_observation, rollout_info, next_online, state.target_q
        )
        action = self._actions.to_index(rollout_info.action)
        info = DqnInfo(
            outputs=outputs_of(outputs, action),
            next_outputs=next_outputs,
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            num_steps=rollout_info.num_steps,
            step_type=inputs.step_type,
            episode_return=rollout_info.episode_return,
        )
        return AlgStep(
            output=rollout_info.action,
            state=DqnState(q=q_state, target_q=target_state),
            info=self._extend_info(info, rollout_info, inputs.observation, outputs),
        )

    def _extend_info(
        self, info: DqnInfo, transition: Transition, observation: Nest, outputs: Tensor
    ) -> Nest:
        """What a subclass hands to its ``calc_loss``, [B, ...].

        Args:
            info: what it is without.
            transition: that is trained.
            observation: s_t, with the mask.
            outputs: [B, C, A, N] Z(s_t, ·; θ).
        """
        return info

    def _bootstrap(
        self,
        observation: Nest,
        transition: Transition,
        online_outputs: Tensor | None,
        target_state: Nest,
    ) -> tuple[Tensor, Nest]:
        """Z(s, ·; θ⁻) of what is believed to follow, without gradient.

        Args:
            observation: [B, ...], with the mask.
            transition: that ends there.
            online_outputs: of the online network for it, if they are known.
            target_state: recurrent state of the target network.

        Returns:
            [B, C, N] and the new state.
        """
        raise ConfigError(
            f"{self._name} has no _bootstrap, which targets need. Take DqnAlgorithm, "
            "SarsaAlgorithm or MunchausenDqnAlgorithm."
        )

    def calc_loss(self, info: DqnInfo) -> LossInfo:
        """The distance of Z(s_t, a_t; θ) from G_t + Γ_t Z(s_{t+m}, a*; θ⁻), [T-n, B].

        With the expected return for Z, the Huber loss of δ_t = y_t − Q(s_t, a_t; θ).
        """
        info = self._align(info, "next_outputs")
        model = self._return_model
        reward, discount = self._reward_and_discount(info)
        loss = model.loss(info.outputs, info.next_outputs, reward, discount)

        def q() -> Tensor:
            return model.mean(info.outputs.detach())  # [T-n, B, C]

        def td_error() -> Tensor:
            target = reward + discount * model.mean(info.next_outputs)
            return mean_of_components(model.td_error(q(), target).abs())

        return LossInfo(
            loss=mean_of_components(loss),
            extra=diagnostic(
                lambda: DqnLossInfo(q=mean_of_components(q()), td_error=td_error())
            ),
            priority=self.priority_of(td_error, info.step_type),
        )

    def _reward_and_discount(self, info: DqnInfo) -> tuple[Tensor, Tensor]:
        """G and Γ [T-n, B, 1] or [T-n, B, C]: with bonus, and bound as it is wanted."""
        reward, discount = info.reward.unsqueeze(-1), info.discount.unsqueeze(-1)
        if isinstance(info.bonus, Tensor):
            reward = reward + info.bonus
        if not isinstance(info.episode_return, Tensor):
            return reward, discount
        value = self._return_model.mean(info.next_outputs)
        return replay_options.bounded(reward, discount, value, info.episode_return)

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Moves the target network towards the online network."""
        self._update_target.forward()


@configurable
class DqnAlgorithm(QLearningAlgorithm):
    """DQN for nests of discrete actions."""

    takes_negative_discounts = True

    def __init__(self, *specs: Any, double: bool = True, **kwargs: Any) -> None:
        """Builds the networks; see :class:`QLearningAlgorithm` for what is not here.

        Args:
            double: choose the action of the target with the online network.

        Raises:
            ValueError: if the action is not discrete or a coefficient is out of range.
            ConfigError: if settings contradict each other.
        """
        super().__init__(*specs, **kwargs)
        self._double = double

    @torch.no_grad()
    def _bootstrap(
        self,
        observation: Nest,
        transition: Transition,
        online_outputs: Tensor | None,
        target_state: Nest,
    ) -> tuple[Tensor, Nest]:
        """Z(s, a*; θ⁻) with a* = argmax_a Q(s, a; θ), or of θ⁻ if not double."""
        outputs, allowed, target_state = self._outputs(
            self._target_q_network, observation, target_state
        )
        chooser = online_outputs if self._double else outputs
        if chooser is None:
            chooser, _ = self._q_network(self._mask.remaining(observation))
        best = masked_argmax(self._return_model.mean(chooser), allowed)
        return outputs_of(outputs, best), target_state
