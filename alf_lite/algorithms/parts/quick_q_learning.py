"""Q-learning of one discrete action in numpy, without what surrounds it in torch.

For Q-networks that are a chain of layers, acting and the loss are little more than the
calls that lead to them. What is here gives what the network, the head and the losses
give, to the bit, and the random numbers are the same, drawn in the same order. None
where something else is asked for: another network, another device, a graph.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from alf_lite.algorithms.parts.return_heads import ExpectedReturnHead, ReturnHead
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.distributions.exploration import choose_in_numpy
from alf_lite.networks.built_layers import has_hooks
from alf_lite.networks.network import Network
from alf_lite.networks.numpy_layers import Arrays, pull_back, run
from alf_lite.networks.value_networks import QNetwork
from alf_lite.utils.losses import NumpyMean
from alf_lite.utils.numpy_function import is_quick
from alf_lite.utils.shortcuts import are_as_shipped


def greedy_action(
    network: Network, observation: Any, epsilon: float, num_values: int
) -> Tensor | None:
    """The best action or, with probability ε, any: [B] int64.

    Args:
        network: its outputs are [B, 1, A, 1].
        observation: [B, ...].
        epsilon: ε.
        num_values: A.
    """
    if not isinstance(network, QNetwork) or not are_as_shipped(network):
        return None
    if has_hooks(network):
        return None
    layers = network.chain.arrays(observation)
    if layers is None:
        return None
    return choose_in_numpy(
        lambda: run(layers, observation), epsilon, observation.shape[0], num_values
    )


def mean_td_loss(
    networks: tuple[Network, Network],
    head: ReturnHead,
    observation: Any,
    transition: Transition,
    valid: Tensor,
    *,
    double: bool,
) -> Tensor | None:
    """The mean loss [] over the valid transitions, one node of torch's graph.

    Args:
        networks: the one that is trained, and the one of the targets.
        head: says how far the values are from their targets, with shortcuts of its own.
        observation: [B, ...].
        transition: [B, ...], of an action [B].
        valid: [B] bool.
        double: choose the action of the target with the first network.
    """
    network, target_network = networks
    if not isinstance(network, QNetwork) or not isinstance(target_network, QNetwork):
        return None
    if any(map(has_hooks, networks)) or not are_as_shipped(*networks):
        return None
    if not isinstance(head, ExpectedReturnHead) or not head.has_slope:
        return None
    layers = network.chain.arrays(observation)
    target_layers = target_network.chain.arrays(transition.next_observation)
    if layers is None or target_layers is None or not is_quick(transition.reward):
        return None
    if (
        not torch.is_grad_enabled()
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
    ):
        return None
    with torch.no_grad():
        next_q = run(target_layers, transition.next_observation)
        if double:
            best = run(layers, transition.next_observation).argmax(1)
            next_value = next_q.reshape(-1).take(_places(best, next_q))
        else:  # column by column, faster than the maximum over few of them
            next_value = functools.reduce(np.maximum, next_q.T)
    with np.errstate(all="ignore"):  # torch does not warn either
        target = transition.discount.numpy() * next_value
        target += transition.reward.numpy()
    return _MeanTdLoss.apply(
        *(layers, head, observation, transition.action.numpy(), target, valid),
        *network.chain.parameters(),
    )


def _places(index: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where the entries ``index`` [B] of the rows of values [B, A] are among B·A."""
    batch_size, num_values = values.shape
    return np.arange(0, batch_size * num_values, num_values) + index


class _MeanTdLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layers: list[Arrays],
        head: ExpectedReturnHead,
        observation: Tensor,
        action: np.ndarray,
        target: np.ndarray,
        valid: Tensor,
        *parameters: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(*parameters)  # notices when they are changed
        ctx.inputs = []
        q = run(layers, observation, ctx.inputs)
        places = _places(action, q)
        with np.errstate(all="ignore"):
            loss, slope = head.loss_and_slope(q.reshape(-1).take(places), target)
            (mean,), ctx.pullback = NumpyMean(valid.numpy())(loss)
        ctx.layers, ctx.places, ctx.slope, ctx.shape = layers, places, slope, q.shape
        return torch.from_numpy(mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        _ = ctx.saved_tensors
        with np.errstate(all="ignore"):
            (share,) = ctx.pullback(gradients[0].numpy())
            gradient = np.zeros(ctx.shape, np.float32)
            gradient.reshape(-1)[ctx.places] = ctx.slope * share
            needs = False, *ctx.needs_input_grad[6:]
            _, *found = pull_back(ctx.layers, ctx.inputs, gradient, needs)
        return None, None, None, None, None, None, *found
