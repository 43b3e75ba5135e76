"""Behaviour cloning: a policy that does what was done.

Pomerleau, "Efficient Training of Artificial Neural Networks for Autonomous Navigation",
Neural Computation 3, 1991. The policy is fitted by maximum likelihood,

    min_θ E[−log π_θ(a_t|s_t) − c_e H(π_θ(·|s_t))]

or, if it is deterministic, by least squares, min_θ E[mean_i (μ_θ(s_t)_i − a_{t,i})²].

Differences from the paper:

1. Any nest of actions, with the likelihood that belongs to it. The paper has one
   steering angle, spread over outputs that are fitted by least squares.
2. Continuous actions are kept a little away from their bounds (``action_margin``); see
   :class:`RecordedActions`.
3. An entropy bonus as an option.

Imitated is what was executed: ``prev_action`` of the next step, whoever chose it. In
own steps that is an expert's action, if the environment reports one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.policy import DeterministicPolicy, Policy
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, BatchInfo, LossInfo, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask, RecordedActions
from alf_lite.distributions.action_vectors import BoxActions
from alf_lite.networks.actor_networks import ActorNetwork, NormalActorNetwork
from alf_lite.networks.network import Network, takes_whole_sequences
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_not_negative
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any


class BcInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    imitation_loss: Tensor  # [T, B] −log π(a_t|s_t), or the squared error
    entropy: Tensor  # [T, B] of π(·|s_t); 0 if deterministic
    step_type: Tensor  # [T, B]


class BcLossInfo(NamedTuple):
    """The parts of the loss, [T, B] each."""

    imitation_loss: Tensor
    entropy: Tensor


@configurable
class BcAlgorithm(RLAlgorithm):
    """Behaviour cloning for any nest of actions."""

    # Batches as the offline algorithms have them.
    default_settings = DefaultSettings(
        unroll_length=1, mini_batch_size=256, mini_batch_length=2, lr=1e-3
    )

    uses_rewards = False

    _entropy_regularization = Coefficient()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        actor_network_ctor: Callable[..., Network] | None = None,
        deterministic: bool = False,
        entropy_regularization: Scheduled = 0.0,
        action_margin: float = 1e-3,
        action_mask_key: str | None = None,
        actor_observation_keys: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the actor.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest that the actor network can handle.
            actor_network_ctor: called as ``ctor(observation_spec, action_spec)``, or as
                ``ctor(observation_spec, action_size)`` if deterministic. None:
                :class:`NormalActorNetwork` or :class:`ActorNetwork`. So that what is
                learnt can start another algorithm, take the network that it has.
            deterministic: least squares instead of maximum likelihood, in units in
                which the bounds of every action are ±1. Rollouts do not explore.
            entropy_regularization: c_e.
            action_margin: see :class:`RecordedActions`.
            action_mask_key: of the mask in a dict of observations; see
                :class:`ActionMask`. The network does not see it. An action that the
                mask rules out is not imitated.
            actor_observation_keys: of the entries of a dict of observations that the
                network sees; None: all.
            **kwargs: see :class:`RLAlgorithm`. Rewards are not used, except that
                ``reward_weights`` weigh those that evaluations report.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        check_not_negative(entropy_regularization=entropy_regularization)
        if deterministic and entropy_regularization:
            raise ValueError(
                "BcAlgorithm: a deterministic policy has no entropy. Set "
                "entropy_regularization = 0 or deterministic = False."
            )
        mask = ActionMask(observation_spec, action_spec, action_mask_key)
        seen = mask.showing(actor_observation_keys, "actor_observation_keys")
        boxes = _boxes(action_spec) if deterministic else None
        policy: Policy | DeterministicPolicy
        if boxes is not None:
            ctor: Callable[..., Network] = actor_network_ctor or ActorNetwork
            policy = DeterministicPolicy(ctor, seen, boxes)
        else:
            policy = Policy(actor_network_ctor or NormalActorNetwork, action_spec, seen)
        super().__init__(observation_spec, action_spec, is_on_policy=False, **kwargs)
        self._train_state_spec = self._rollout_state_spec = policy.state_spec
        self._predict_state_spec = policy.state_spec
        transitions.check_windows(self._config, 1)
        self.unseen_entries = seen.unused
        self.has_stochastic_policy = not deterministic
        self.explores_by_epsilon = not deterministic
        self._mask = mask
        self._boxes = boxes  # None if the policy is stochastic
        self._recorded = RecordedActions(action_spec, mask, action_margin)
        set_coefficients(self, _entropy_regularization=entropy_regularization)
        self._policy = policy

    # Acting

    def predict_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """Acts greedily, or as ``TrainerConfig.epsilon_greedy`` says."""
        action, state = self._policy.act(
            inputs.observation, state, self.predict_epsilon
        )
        return AlgStep(output=action, state=state)

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """Samples an action. The replayed steps tell it; there is no info."""
        action, state = self._policy.sample(inputs.observation, state)
        return AlgStep(output=action, state=state)

    def random_action(self, inputs: TimeStep) -> Nest:
        """Any action that the mask allows."""
        return self._mask.redraw(super().random_action(inputs), inputs.observation)

    # Learning

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Nest]:
        """All steps but the last, [B, T-1, ...], and the actions executed there."""
        first_steps, transition = transitions.to_transitions(root_inputs, 1, gamma=1.0)
        return first_steps, self._recorded.clip(transition.action)

    @takes_whole_sequences
    def train_step(self, inputs: TimeStep, state: Nest, rollout_info: Nest) -> AlgStep:
        """Compares the policy with the action that was executed, ``rollout_info``."""
        action = rollout_info
        policy, state = self._policy(inputs.observation, state)
        if self._boxes is not None:
            error = policy - self._boxes.to_vector(action)
            imitation_loss = error.square().mean(-1)
            entropy = torch.zeros_like(imitation_loss)
        else:
            imitation_loss = -self._recorded.log_prob(
                policy, action, inputs.observation
            )
            entropy = distributions.entropy(policy)
        info = BcInfo(imitation_loss, entropy, inputs.step_type)
        return AlgStep(output=action, state=state, info=info)

    def calc_loss(self, info: BcInfo) -> LossInfo:
        """−log π(a_t|s_t) − c_e H(π(·|s_t)), or the squared error, [T-1, B]."""
        loss = info.imitation_loss - self._entropy_regularization * info.entropy
        return LossInfo(
            loss=loss,
            extra=diagnostic(lambda: BcLossInfo(info.imitation_loss, info.entropy)),
            priority=self.priority_of(
                self._surprise(info.imitation_loss), info.step_type
            ),
        )

    def _surprise(self, imitation_loss: Tensor) -> Tensor:
        """How far the policy is from the action, not negative, for its priority.

        The root of the squared error; or log(1 + 1/π(a|s)), which a density above 1
        does not make negative.
        """
        if self._boxes is not None:
            return imitation_loss.detach().sqrt()
        return F.softplus(imitation_loss.detach())


def _boxes(action_spec: NestedTensorSpec) -> BoxActions:
    try:
        return BoxActions(action_spec)
    except ValueError as error:
        raise ValueError(
            f"BcAlgorithm.deterministic cannot handle these actions. {error}. Use "
            "BcAlgorithm with deterministic = False."
        ) from error
