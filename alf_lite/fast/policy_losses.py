"""The loss of policy gradients in numpy: of its parts, and of a whole mini-batch.

Where policy and value network are chains of layers, the loss of an update is little
more than the calls that lead to it. One node of the graph makes fewer of them, and
gives what the networks, the distribution and the loss give, to the bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
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
from alf_lite.fast import (
    Computation,
    Node,
    Pullback,
    by_numpy,
    is_exactly,
    may_make_node,
    may_use_numpy,
    torch_body,
)
from alf_lite.fast.array_nodes import pull_back
from alf_lite.fast.chains import NumpyChain, PreparedInput, chain_of
from alf_lite.fast.likelihoods import Likelihood, likelihood_of
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
    if not is_small or not may_use_numpy(log_prob):
        return NotImplemented
    quick = NumpyClippedLoss if isinstance(part, ClippedLoss) else NumpyLoss
    function, body = quick(part, *more), torch_body(type(part).__call__)
    (loss,) = by_numpy(
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

    mean = _mean_loss(
        algorithm,
        nest.map_structure(_flatten, inputs.observation),
        nest.map_structure(lambda t: t[:-1].flatten(0, 1), info.action),
        batch.valid[:-1].reshape(-1),
    )
    if mean is None:
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

    return looked_at(algorithm, batch, mean.of(loss_of))


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
    mean = _mean_loss(algorithm, inputs.observation, info.action, batch.valid[0])
    if mean is None:
        return None
    loss = NumpyClippedLoss(part, algorithm._advantage_of(info), info)
    return looked_at(algorithm, batch, mean.of(lambda *_: loss))


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
    algorithm: ActorCriticAlgorithm, observation: Any, action: Any, valid: Tensor
) -> _MeanLoss | None:
    """The mean loss over the valid steps, as one node of torch's graph.

    Args:
        algorithm: whose policy and value network have no memory.
        observation: [N, ...].
        action: [M, ...], of the first M of them; the others only have a value.
        valid: [M] bool.

    Returns:
        None if it cannot be computed so.
    """
    chains = _chains_of(algorithm)
    if chains is None or not may_make_node():
        return None
    observation, allowed = algorithm._policy.mask.split(observation)
    policy, value = (chain.prepared(observation) for chain in chains)
    if policy is None or value is None or not may_use_numpy(policy.x):
        return None
    likelihood = likelihood_of(algorithm._policy.network._head, action, allowed)
    if likelihood is None:
        return None
    parameters = [parameter for chain in chains for parameter in chain.parameters()]
    return _MeanLoss(policy, value, parameters, likelihood, valid)


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


class _MeanLoss(Computation):
    """From the inputs of the likelihood and the parameters of both networks."""

    def __init__(
        self,
        policy: PreparedInput,
        value: PreparedInput,
        parameters: list[Tensor | None],
        likelihood: Likelihood,
        valid: Tensor,
    ) -> None:
        self._policy, self._value = policy, value
        self._parameters = parameters
        self._kept: tuple[list[Any], list[Any]] = [], []  # of both
        self._likelihood = likelihood
        self._valid = valid
        self._loss_of: Callable[[Tensor, Tensor], NumpyLoss]

    def of(self, loss_of: Callable[[Tensor, Tensor], NumpyLoss]) -> Tensor:
        """The mean [], of the loss [M] that log π [M] and V [N] lead to."""
        self._loss_of = loss_of
        return Node.apply(self, *self._likelihood.inputs, *self._parameters)

    def forward(self, *inputs: Tensor) -> Tensor:
        num_steps = self._valid.shape[0]
        outputs = self._policy.run(self._kept[0])
        values = self._value.run(self._kept[1])
        likelihood = self._likelihood
        (log_prob, entropy), self._to_outputs = likelihood.function(
            outputs[:num_steps], *[x.detach().numpy() for x in likelihood.inputs]
        )
        value = values.reshape(-1)
        numpy_loss = self._loss_of(torch.from_numpy(log_prob), torch.from_numpy(value))
        (loss,), self._to_parts = numpy_loss(log_prob, value[:num_steps], entropy)
        (mean,), self._to_loss = numpy_mean(loss, self._valid.numpy())
        return torch.from_numpy(mean)

    def backward(self, needs: Sequence[bool], gradient: Tensor) -> list[Tensor | None]:
        to_loss = self._to_loss(gradient.numpy())
        to_log_prob, to_value, to_entropy = self._to_parts(*to_loss)
        to_output, *found = self._to_outputs(to_log_prob, to_entropy)
        assert to_output is not None
        assert to_value is not None
        needs = needs[len(found) :]
        own = sum(len(node.parameters) for node in self._policy.nodes)
        return [
            *[None if x is None else torch.from_numpy(x) for x in found],
            *_pull_back(self._policy, self._kept[0], to_output, needs[:own]),
            *_pull_back(self._value, self._kept[1], to_value[:, None], needs[own:]),
        ]


def _pull_back(
    network: PreparedInput,
    kept: list[Any],
    gradient: np.ndarray,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of the parameters, from that of the first of the outputs."""
    num_rows, num_steps = network.x.shape[0], len(gradient)
    if num_steps < num_rows:
        padded = np.zeros((num_rows, gradient.shape[1]), np.float32)
        padded[:num_steps] = gradient
        gradient = padded
    return pull_back(network.nodes, kept, gradient, (False, *needs))[1:]
