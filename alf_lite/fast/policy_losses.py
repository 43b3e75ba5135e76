"""The loss of policy gradients in numpy: of its parts, and of a whole mini-batch.

Where policy and value network are chains of layers, the loss of an update is little
more than the calls that lead to it. One node of the graph makes fewer of them, and
gives what the networks, the distribution and the loss give, to the bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import fast, nest
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.learning.batch_loss import looked_at
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.policy import Policy
from alf_lite.algorithms.parts.policy_gradient import (
    ClippedLoss,
    PolicyGradientLoss,
    PPOLossInfo,
)
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.data_structures import LossInfo
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.fast import Pullback, is_exactly
from alf_lite.fast.chains import NumpyChain, chain_of, quiet
from alf_lite.fast.likelihoods import likelihood_of
from alf_lite.fast.statistics import numpy_mean
from alf_lite.networks import actor_networks
from alf_lite.networks.lean_layers import has_hooks
from alf_lite.networks.value_networks import ValueNetwork

_flatten = operator.methodcaller("flatten", 0, 1)
_POLICIES = (
    actor_networks.ActorDistributionNetwork,
    actor_networks.NormalActorNetwork,
    actor_networks.SquashedActorNetwork,
)


def of_steps(
    part: Any, log_prob: Tensor, value: Tensor, entropy: Tensor, *more: Any
) -> tuple[Any, ...]:
    """See the ``__call__`` of the two loss parts."""
    is_small = log_prob.shape == more[0].shape == value.shape
    if not is_small or not fast.may_use_numpy(log_prob):
        return NotImplemented
    quick = NumpyClippedLoss if isinstance(part, ClippedLoss) else NumpyLoss
    function, body = quick(part, *more), fast.torch_body(type(part).__call__)
    (loss,) = fast.by_numpy(
        function, lambda *x: body(part, *x, *more)[0], log_prob, value, entropy
    )
    policy_loss, value_loss = (torch.from_numpy(x) for x in function.parts)
    if quick is NumpyLoss:
        return loss, policy_loss, value_loss
    return loss, PPOLossInfo(policy_loss, value_loss, entropy)


def of_actor_critic(
    algorithm: ActorCriticAlgorithm, batch: TrainingBatch
) -> tuple[LossInfo, Any] | None:
    """See :meth:`Algorithm.quick_loss`, of the steps of whole unrolls."""
    inputs, info = batch.inputs, batch.rollout_info
    num_steps, batch_size = inputs.step_type.shape
    if num_steps < 2 or not inputs.step_type.is_contiguous():
        return None  # sums may differ in the last bits
    part = algorithm._policy_gradient_loss
    if not is_exactly(part, PolicyGradientLoss):
        return None

    def loss_of(log_prob: Tensor, value: Tensor) -> NumpyLoss:
        estimate = algorithm._estimate(
            info._replace(
                value=value.view(num_steps, batch_size),
                reward=inputs.reward,
                discount=inputs.discount,
                step_type=inputs.step_type,
            ),
            log_prob.view(num_steps - 1, batch_size),
        )
        return NumpyLoss(
            part, estimate.advantage.reshape(-1), estimate.value_target.reshape(-1)
        )

    mean = _mean_loss(
        algorithm,
        nest.map_structure(_flatten, inputs.observation),
        nest.map_structure(lambda t: t[:-1].flatten(0, 1), info.action),
        batch.valid[:-1].reshape(-1),
        loss_of,
    )
    return None if mean is None else looked_at(algorithm, batch, mean)


def of_ppo(
    algorithm: PPOAlgorithm, batch: TrainingBatch
) -> tuple[LossInfo, Any] | None:
    """See :meth:`Algorithm.quick_loss`, of steps that were prepared."""
    if len(batch.valid) > 1:
        return None
    if algorithm._adaptive_rate is not None or algorithm._log_prob_clip is not None:
        return None
    part = algorithm._clipped_loss
    inputs, info, _ = batch.flattened()
    # Of a reward of several dimensions
    if info.old_value.ndim > 1 or not is_exactly(part, ClippedLoss):
        return None
    mean = _mean_loss(
        algorithm,
        inputs.observation,
        info.action,
        batch.valid[0],
        lambda *_: NumpyClippedLoss(part, algorithm._advantage_of(info), info),
    )
    return None if mean is None else looked_at(algorithm, batch, mean)


def computes_loss_of(algorithm: Any) -> bool:
    """See :func:`alf_lite.fast.computes_loss_of`."""
    if not algorithm.is_temporally_independent:
        return False
    chains = _chains_of(algorithm)
    return chains is not None and all(chain._layers for chain in chains)


class NumpyLoss:
    """The loss in numpy, as :func:`by_numpy` wants it."""

    def __init__(self, part: Any, advantage: Tensor, value_target: Tensor) -> None:
        """Of the weights of the loss part, with advantages and values of one shape."""
        self._advantage = advantage.numpy()
        self._target = value_target.numpy()
        self._value_weight = np.float32(part._value_weight)
        entropy_weight = part._entropy_weight
        self._entropy_weight = np.float32(entropy_weight) if entropy_weight else None
        # Losses of policy and value
        self.parts: tuple[np.ndarray, np.ndarray]

    def __call__(
        self, log_prob: np.ndarray, value: np.ndarray, entropy: np.ndarray
    ) -> tuple[tuple[np.ndarray], Pullback]:
        policy_loss, policy_slope = self._policy_loss(log_prob)
        value_loss, value_slope = self._value_loss(value)
        self.parts = policy_loss, value_loss
        loss = self._value_weight * value_loss
        loss += policy_loss
        entropy_weight = self._entropy_weight
        if entropy_weight is not None:
            loss -= entropy_weight * entropy

        def pullback(gradient: Any) -> tuple[np.ndarray | None, ...]:
            to_value = value_slope * gradient
            to_value *= self._value_weight
            to_entropy = None
            if entropy_weight is not None:
                to_entropy = gradient * -entropy_weight
            return policy_slope * gradient, to_value, to_entropy

        return (loss,), pullback

    def _policy_loss(self, log_prob: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss and its derivative."""
        slope = -self._advantage
        return slope * log_prob, slope

    def _value_loss(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss and its derivative."""
        error = value - self._target
        return error * error, error + error


class NumpyClippedLoss(NumpyLoss):
    """That of :class:`ClippedLoss`."""

    def __init__(self, part: ClippedLoss, advantage: Tensor, info: Any) -> None:
        """See :meth:`ClippedLoss.__call__`."""
        super().__init__(part, advantage, info.value_target)
        self._old_log_prob = info.log_prob.numpy()
        self._old_value = info.old_value.numpy()
        self._weights = info.weights.truncated.numpy() if info.weights else None
        epsilon, clip = part._clip_epsilon, part._value_clip
        self._low, self._high = np.float32(1 - epsilon), np.float32(1 + epsilon)
        self._value_clip = None if clip is None else np.float32(clip)

    def _policy_loss(self, log_prob: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ratio = np.exp(log_prob - self._old_log_prob)
        clipped = np.minimum(np.maximum(ratio, self._low), self._high)
        clipped *= self._advantage
        ratio *= self._advantage
        if self._weights is not None:
            clipped *= self._weights
            ratio *= self._weights
        # The derivative of r is r, that of the clipped one is 0 where they differ.
        slope = ratio * (ratio <= clipped)
        loss = np.minimum(ratio, clipped, out=clipped)
        return np.negative(loss, out=loss), np.negative(slope, out=slope)

    def _value_loss(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        error = value - self._target
        loss = error * error
        slope = error + error
        if self._value_clip is not None:
            moved = value - self._old_value
            is_inside = np.abs(moved) <= self._value_clip
            np.minimum(moved, self._value_clip, out=moved)
            np.maximum(moved, -self._value_clip, out=moved)
            moved += self._old_value
            moved -= self._target
            moved *= moved
            # Inside of the bounds both are the same but for rounding.
            slope *= is_inside | (loss >= moved)
            np.maximum(loss, moved, out=loss)
        return loss, slope


# The mean of a mini-batch


def _mean_loss(
    algorithm: ActorCriticAlgorithm,
    observation: Any,
    action: Any,
    valid: Tensor,
    loss_of: Callable[[Tensor, Tensor], NumpyLoss],
) -> Tensor | None:
    """The mean loss [] over the valid steps, whose gradients are known.

    Args:
        algorithm: whose policy and value network have no memory.
        observation: [N, ...].
        action: [M, ...], of the first M of them; the others only have a value.
        valid: [M] bool.
        loss_of: the loss [M] that log π [M] and V [N] lead to.

    Returns:
        None if it cannot be computed so.
    """
    chains = _chains_of(algorithm)
    if chains is None or not fast.may_make_node():
        return None
    seen, allowed = algorithm._policy.mask.split(observation)
    policy, value = chains
    x = policy.prepared(seen)
    y = value.prepared(algorithm._value_mask.remaining(observation))
    if x is None or y is None or not fast.may_use_numpy(x):
        return None
    likelihood = likelihood_of(algorithm._policy.network._head, action, allowed)
    if likelihood is None:
        return None
    num_steps, num_rows, inputs = len(valid), len(x), likelihood.inputs
    kept: tuple[list[Any], list[Any]] = [], []
    with torch.no_grad(), quiet():
        outputs, values = policy.run(x, kept[0]), value.run(y, kept[1]).reshape(-1)
        (log_prob, entropy), to_outputs = likelihood.function(
            outputs[:num_steps], *[each.detach().numpy() for each in inputs]
        )
        numpy_loss = loss_of(torch.from_numpy(log_prob), torch.from_numpy(values))
        (loss,), to_parts = numpy_loss(log_prob, values[:num_steps], entropy)
        (mean,), to_loss = numpy_mean(loss, valid.numpy())
        to_log_prob, to_value, to_entropy = to_parts(*to_loss(np.float32(1)))
        to_output, *to_inputs = to_outputs(to_log_prob, to_entropy)
        assert to_output is not None
        assert to_value is not None
        gradients = [
            *[torch.from_numpy(g) for g in to_inputs],
            *policy.pull_back(to_output, kept[0], num_rows),
            *value.pull_back(to_value[:, None], kept[1], num_rows),
        ]
    parameters = [*inputs, *policy.parameters(), *value.parameters()]
    return fast.known_loss(torch.from_numpy(mean), parameters, gradients)


def _chains_of(
    algorithm: ActorCriticAlgorithm,
) -> tuple[NumpyChain, NumpyChain] | None:
    """Policy and value network, if the loss is all that is made of their outputs."""
    policy, value_network = algorithm._policy, algorithm._value_network
    if algorithm._trust_region is not None:  # looks at the distributions
        return None
    if not is_exactly(policy, Policy) or not is_exactly(value_network, ValueNetwork):
        return None
    network: Any = policy.network
    if (
        not is_exactly(policy.mask, ActionMask)
        or not is_exactly(network, *_POLICIES)
        or not value_network._is_scalar
        or has_hooks(network)
        or has_hooks(value_network)
    ):
        return None
    return chain_of(network), chain_of(value_network)
