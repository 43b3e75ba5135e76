"""The loss of policy gradients with value and entropy, in torch and in numpy.

Where policy and value network are chains of layers, the loss of an update is little
more than the calls that lead to it: :func:`mean_loss` makes fewer of them. It gives
what the networks, the distribution and the loss give, to the bit, so that it may be
left out where somebody looks at the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from alf_lite.algorithms.parts.policy import Policy
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.built_layers import has_hooks
from alf_lite.networks.network import Network
from alf_lite.networks.numpy_layers import Arrays, pull_back, run
from alf_lite.networks.projections import NumpyLikelihood
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.utils import losses
from alf_lite.utils.numpy_function import Pullback, by_numpy, is_quick
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.schedulers import (
    Coefficient,
    Scheduled,
    is_zero,
    set_coefficients,
)
from alf_lite.utils.shortcuts import are_as_shipped


class PolicyGradientLoss(FollowsProgress):
    """−A log π + c_v (V − R)² − c_e H, [T, B].

    Args:
        value_loss_weight: c_v, a number or a schedule.
        entropy_weight: c_e, likewise.
    """

    keeps_shortcuts = True

    _value_weight = Coefficient()
    _entropy_weight = Coefficient()

    def __init__(self, value_loss_weight: Scheduled, entropy_weight: Scheduled) -> None:
        set_coefficients(
            self, _value_weight=value_loss_weight, _entropy_weight=entropy_weight
        )

    def __call__(
        self,
        log_prob: Tensor,
        value: Tensor,
        entropy: Tensor,
        advantage: Tensor,
        value_target: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss [T, B]; its parts for policy and value, which are to look at.

        Args:
            log_prob: [T, B], log π(a_t|s_t).
            value: [T, B] or [T, B, D].
            entropy: [T, B].
            advantage: [T, B], A.
            value_target: as ``value``, R.
        """

        def in_torch(log_prob: Tensor, value: Tensor, entropy: Tensor) -> Any:
            policy_loss = -advantage * log_prob
            value_loss = losses.squared(value_target, value)
            if value_loss.ndim > policy_loss.ndim:
                value_loss = value_loss.sum(-1)  # of a reward of several dimensions
            loss = policy_loss + self._value_weight * value_loss
            entropy_weight = self._entropy_weight
            if not is_zero(entropy_weight):
                loss = loss - entropy_weight * entropy
            return loss, policy_loss, value_loss

        is_small = log_prob.shape == advantage.shape == value.shape
        if is_small and is_quick(log_prob) and are_as_shipped(self):
            quick = self.in_numpy(advantage, value_target)
            (loss,) = by_numpy(
                *(quick, lambda *x: in_torch(*x)[0]), log_prob, value, entropy
            )
            policy_loss, value_loss = (torch.from_numpy(x) for x in quick.parts)
            return loss, policy_loss, value_loss
        return in_torch(log_prob, value, entropy)

    def in_numpy(self, advantage: Tensor, value_target: Tensor) -> NumpyLoss:
        """The same of arrays, with advantages and values of one shape."""
        return NumpyLoss(
            advantage.numpy(),
            value_target.numpy(),
            np.float32(self._value_weight),
            self._entropy_weight or None,
        )


class NumpyLoss:
    """The loss in numpy, as :func:`by_numpy` wants it."""

    def __init__(
        self,
        advantage: np.ndarray,
        target: np.ndarray,
        value_weight: np.floating,
        entropy_weight: float | None,
    ) -> None:
        self._advantage = advantage
        self._target = target
        self._value_weight = value_weight
        self._entropy_weight = entropy_weight and np.float32(entropy_weight)
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


def mean_loss(
    policy: Policy,
    value_network: Network,
    observation: Any,
    action: Any,
    valid: Tensor,
    loss_of: Callable[[Tensor, Tensor], NumpyLoss],
) -> Tensor | None:
    """The mean loss [] over the valid steps, one node of torch's graph.

    Args:
        policy: without memory.
        value_network: likewise, V [N].
        observation: [N, ...].
        action: [M, ...], of the first M of them; the others only have a value.
        valid: [M] bool.
        loss_of: (log π [M], V [N]) → the loss, whose arrays are [M].

    Returns:
        None if it cannot be computed so.
    """
    network: Any = policy.unmasked_network
    if (
        not isinstance(network, ActorDistributionNetwork)  # None: there is a mask
        or not isinstance(value_network, ValueNetwork)
        or not value_network.is_scalar
        or not are_as_shipped(policy, network, value_network)
        or has_hooks(network)
        or has_hooks(value_network)
    ):
        return None
    layers = network.chain.arrays(observation)
    value_layers = value_network.chain.arrays(observation)
    if layers is None or value_layers is None or not is_quick(observation):
        return None
    if (
        not torch.is_grad_enabled()
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
    ):
        return None
    likelihood = network.likelihood(action)
    if likelihood is None:
        return None
    return _MeanLoss.apply(
        *(layers, value_layers, likelihood, loss_of, observation, valid),
        *likelihood.inputs,
        *network.chain.parameters(),
        *value_network.chain.parameters(),
    )


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layers: list[Arrays],
        value_layers: list[Arrays],
        likelihood: NumpyLikelihood,
        loss_of: Callable[[Tensor, Tensor], NumpyLoss],
        observation: Tensor,
        valid: Tensor,
        *tensors: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(*tensors)  # notices when they are changed
        num_steps = valid.shape[0]
        inputs: list[np.ndarray] = []
        value_inputs: list[np.ndarray] = []
        outputs = run(layers, observation, inputs)
        values = run(value_layers, observation, value_inputs)
        with np.errstate(all="ignore"):  # torch does not warn either
            (log_prob, entropy), to_outputs = likelihood.function(
                outputs[:num_steps], *[x.detach().numpy() for x in likelihood.inputs]
            )
            value = values.reshape(-1)
            loss = loss_of(torch.from_numpy(log_prob), torch.from_numpy(value))
            (loss_array,), to_parts = loss(log_prob, value[:num_steps], entropy)
            (mean,), to_loss = losses.NumpyMean(valid.numpy())(loss_array)

        num_inputs = len(likelihood.inputs)
        needs = ctx.needs_input_grad[6 + num_inputs :]
        num_parameters = 2 * len(layers)

        def pullback(gradient: np.ndarray) -> list[Any]:
            to_log_prob, to_value, to_entropy = to_parts(*to_loss(gradient))
            to_output, *found = to_outputs(to_log_prob, to_entropy)
            assert to_output is not None
            assert to_value is not None
            return [
                *[None if x is None else torch.from_numpy(x) for x in found],
                *_pull_back(layers, inputs, to_output, needs[:num_parameters]),
                *_pull_back(
                    *(value_layers, value_inputs, to_value[:, None]),
                    needs[num_parameters:],
                ),
            ]

        ctx.pullback = pullback
        return torch.from_numpy(mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        _ = ctx.saved_tensors
        with np.errstate(all="ignore"):
            found = ctx.pullback(gradients[0].numpy())
        return None, None, None, None, None, None, *found


def _pull_back(
    layers: list[Arrays],
    inputs: list[np.ndarray],
    gradient: np.ndarray,
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """The gradients of the parameters, from that of the first of the outputs."""
    if not any(needs):
        return [None] * len(needs)
    num_rows, num_steps = len(inputs[0]), len(gradient)
    if num_steps < num_rows:
        padded = np.zeros((num_rows, gradient.shape[1]), np.float32)
        padded[:num_steps] = gradient
        gradient = padded
    return pull_back(layers, inputs, gradient, (False, *needs))[1:]
