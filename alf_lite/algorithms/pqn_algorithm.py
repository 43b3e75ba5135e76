"""Parallelised Q-learning: DQN without replay buffer and target network.

Gallici et al., "Simplifying Deep Temporal Difference Learning", arXiv:2407.04811. Many
environments act ε-greedily for a few steps; the steps are passed over a few times in
mini-batches, and forgotten. Layer normalization keeps Q from diverging. The target is
Peng's Q(λ), computed once, backwards through the unroll, with the values that acted:

    R_t = r_{t+1} + γ d_{t+1} [λ R_{t+1} + (1 − λ) max_a Q(s_{t+1}, a)]

and the loss ½ (Q(s_t, a_t) − R_t)². A random action does not cut the sum.

Differences from the paper:

1. Adam, not RAdam; rewards are not scaled.
2. A step that ends by a time limit is bootstrapped.
3. Several components of an action each have a target; the loss is their mean.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.algorithms.parts.return_heads import mean_of_components, outputs_of
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Field, LossInfo, TimeStep
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.action_vectors import DiscreteActions
from alf_lite.distributions.exploration import (
    EpsilonGreedy,
    choose,
    epsilon_greedy,
    masked_argmax,
)
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.network import Network, as_network, takes_whole_sequences
from alf_lite.networks.noisy_layers import exploring_by_noise
from alf_lite.networks.value_networks import QNetwork
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils import losses, value_ops
from alf_lite.utils.checks import check_unit_interval
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any

NORMALIZED_Q_NETWORK = functools.partial(
    QNetwork,
    activation="relu",
    encoding_network_ctor=functools.partial(EncodingNetwork, layer_norm=True),
)
"""A :class:`QNetwork` with layer normalization after each hidden layer."""


class PqnInfo(NamedTuple):
    """From ``rollout_step`` to ``calc_loss``, for C components of an action."""

    action: Nest  # [T, B, ...] a_t
    value: Tensor  # [T, B, C] max_a Q(s_t, a) of the parameters that acted
    target: Field = ()  # [T, B, C] R_t
    q: Field = ()  # [T, B, C] Q(s_t, a_t), with gradient


class PqnLossInfo(NamedTuple):
    """Diagnostics, [T, B] each."""

    q: Tensor  # Q(s_t, a_t), mean of the components
    td_error: Tensor  # |R_t − Q(s_t, a_t)|, likewise


@configurable
class PqnAlgorithm(RLAlgorithm):
    """PQN for nests of discrete actions; with a recurrent network, too."""

    takes_negative_discounts = True
    has_stochastic_policy = False

    # Gallici et al. 2024, table of the classic control tasks; the rate is Adam's.
    default_settings = DefaultSettings(
        num_parallel_environments=32,
        unroll_length=64,
        epochs=4,
        mini_batch_size=128,
        mini_batch_length=1,
        lr=((0.0, 1e-3), (1.0, 0.0)),
        gradient_clipping=10.0,
    )

    _gamma = Coefficient()
    _td_lambda = Coefficient()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        q_network_ctor: Callable[..., Network] = NORMALIZED_Q_NETWORK,
        gamma: Scheduled = 0.99,
        td_lambda: Scheduled = 0.95,
        rollout_epsilon_greedy: Scheduled | Sequence[Scheduled] = (
            (0.0, 1.0),
            (0.2, 0.1),
        ),
        action_mask_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the network.

        Args:
            observation_spec: of one observation.
            action_spec: of one action: any nest of discrete specs.
            q_network_ctor: called as ``ctor(observation_spec, num_values, 1)``; a
                :class:`QNetwork` with layer normalization, without which Q may diverge.
            gamma: γ in [0, 1], or a schedule of it.
            td_lambda: λ, likewise.
            rollout_epsilon_greedy: ε of ``rollout_step``: a number, the points of a
                line over the run or a scheduler, or one of them for every environment.
                ``predict_step`` uses ``TrainerConfig.epsilon_greedy``.
            action_mask_key: of the mask in a dict of observations; see
                :class:`ActionMask`. The network does not see it.
            **kwargs: see :class:`RLAlgorithm`. Rewards of several dimensions are
                weighted and summed.

        Raises:
            ValueError: if the action is not discrete or a coefficient is out of range.
        """
        check_unit_interval(gamma=gamma, td_lambda=td_lambda)
        self._actions = DiscreteActions(action_spec)
        super().__init__(observation_spec, action_spec, is_on_policy=True, **kwargs)
        set_coefficients(self, _gamma=gamma, _td_lambda=td_lambda)
        self._mask = ActionMask(observation_spec, action_spec, action_mask_key)
        self._explore = EpsilonGreedy(rollout_epsilon_greedy)
        if self._env is not None:
            self.set_num_environments(self._env.batch_size)
        sizes, spec = self._actions.sizes, self._mask.remaining_spec
        self._q_network = as_network(
            q_network_ctor(spec, sizes.tolist(), 1),
            spec,
            "q_network_ctor",
            (*sizes.shape, int(sizes.max()), 1),
        )
        state_spec = self._q_network.state_spec
        self._train_state_spec = self._rollout_state_spec = state_spec
        self._predict_state_spec = state_spec

    def set_num_environments(self, num_environments: int) -> None:
        """There is one ε for all, or one for each."""
        name = f"{self.name}.rollout_epsilon_greedy"
        self._explore.check_number(num_environments, name)

    # Acting

    def predict_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """Acts greedily, or as ``TrainerConfig.epsilon_greedy`` says."""
        q, allowed, state = self._evaluate(inputs.observation, state)
        index = epsilon_greedy(q, self.predict_epsilon, allowed)
        return AlgStep(output=self._actions.to_action(index), state=state)

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """Acts ε-greedily, and keeps what the best action was worth."""
        with exploring_by_noise():
            q, allowed, state = self._evaluate(inputs.observation, state)
        explores = self._explore.toss(q.shape[:-1], q.device, inputs.env_id)
        action = self._actions.to_action(choose(q, explores, allowed))
        best = masked_argmax(q, allowed).unsqueeze(-1)
        value = q.gather(-1, best).squeeze(-1)
        return AlgStep(
            output=action, state=state, info=PqnInfo(action=action, value=value)
        )

    def _evaluate(
        self, observation: Nest, state: Nest
    ) -> tuple[Tensor, Tensor | None, Nest]:
        """Q(s, ·) [B, C, A], which values are allowed, and the new state."""
        observation, mask = self._mask.split(observation)
        outputs, state = self._q_network(observation, state)
        return outputs.squeeze(-1), self._actions.allowed(mask, outputs.device), state

    # Learning

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: PqnInfo, batch_info: BatchInfo
    ) -> tuple[TimeStep, PqnInfo]:
        """Computes R_t, which stays fixed during the updates, [B, T, C]."""
        value = rollout_info.value
        reward = self.scalar_reward(root_inputs.reward)
        advantage = value_ops.generalized_advantage_estimation(
            reward.unsqueeze(-1).expand_as(value),
            value,
            root_inputs.step_type,
            self._gamma * root_inputs.discount,
            self._td_lambda,
            time_major=False,
        )
        # The last row is the next unroll's first, and not trained here.
        target = torch.cat([advantage + value[:, :-1], value[:, -1:]], dim=1)
        return root_inputs, rollout_info._replace(target=target)

    @takes_whole_sequences
    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: PqnInfo
    ) -> AlgStep:
        """Evaluates the actions that were taken."""
        observation = self._mask.remaining(inputs.observation)
        outputs, state = self._q_network(observation, state)
        index = self._actions.to_index(rollout_info.action)
        q = outputs_of(outputs, index).squeeze(-1)
        return AlgStep(
            output=rollout_info.action, state=state, info=rollout_info._replace(q=q)
        )

    def calc_loss(self, info: PqnInfo) -> LossInfo:
        """½ (Q(s_t, a_t) − R_t)², the mean of the components, [T, B]."""
        q, target = info.q, info.target
        assert isinstance(q, Tensor)
        assert isinstance(target, Tensor)
        return LossInfo(
            loss=mean_of_components(0.5 * losses.squared(q, target)),
            extra=diagnostic(
                lambda: PqnLossInfo(
                    q=mean_of_components(q.detach()),
                    td_error=mean_of_components((target - q.detach()).abs()),
                )
            ),
        )
