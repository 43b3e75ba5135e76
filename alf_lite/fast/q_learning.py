"""Q-learning of one discrete action in numpy, without what surrounds it in torch.

For Q-networks that are a chain of array nodes, acting and the loss are little more than
the calls that lead to them. What is here gives what the network, the head and the
losses give, to the bit, and the random numbers are the same, drawn in the same order.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm, DqnState
from alf_lite.algorithms.learning.batch_loss import looked_at
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.return_heads import (
    ExpectedReturnHead,
    RescaledReturnHead,
)
from alf_lite.data_structures import AlgStep, LossInfo, TimeStep
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.action_vectors import DiscreteActions
from alf_lite.distributions.exploration import (
    MAX_TO_READ,
    EpsilonGreedy,
    random_index,
)
from alf_lite.fast import is_exactly, known_loss, may_make_node, may_use_numpy
from alf_lite.fast.chains import chain_of, quiet
from alf_lite.fast.statistics import numpy_mean
from alf_lite.networks.lean_layers import has_hooks
from alf_lite.networks.value_networks import QNetwork


def predict_step(algorithm: DqnAlgorithm, inputs: TimeStep, state: DqnState) -> AlgStep:
    """See :meth:`DqnAlgorithm.predict_step`."""
    return _act(algorithm, inputs, state, algorithm.predict_epsilon)


def rollout_step(algorithm: DqnAlgorithm, inputs: TimeStep, state: DqnState) -> AlgStep:
    """See :meth:`DqnAlgorithm.rollout_step`."""
    return _act(algorithm, inputs, state, algorithm._explore.epsilon)


def of_dqn(
    algorithm: DqnAlgorithm, batch: TrainingBatch
) -> tuple[LossInfo, Any] | None:
    """See :meth:`Algorithm.quick_loss`, of transitions whose steps count alike."""
    config = algorithm._config
    if (
        batch.inputs.step_type.shape[0] > 1
        or batch.batch_info.importance_weights != ()
        or algorithm.uses_episode_returns
        or config is None
        or config.priority_replay
        or not _is_plain(algorithm)
    ):
        return None
    inputs, transition, _ = batch.flattened()
    loss = _mean_td_loss(algorithm, inputs.observation, transition, batch.valid[0])
    return None if loss is None else looked_at(algorithm, batch, loss)


def _is_plain(algorithm: DqnAlgorithm) -> bool:
    """Whether the greedy action is all that the outputs say of an observation."""
    actions = algorithm._actions
    return (
        is_exactly(algorithm._return_model, ExpectedReturnHead, RescaledReturnHead)
        and is_exactly(algorithm._explore, EpsilonGreedy)
        and is_exactly(algorithm._mask, ActionMask)
        and is_exactly(actions, DiscreteActions)
        and actions.is_index
        and not algorithm.prioritizes_new_steps
        and not algorithm._is_recurrent
    )


# Acting


def _act(
    algorithm: DqnAlgorithm, inputs: TimeStep, state: DqnState, epsilon: float | None
) -> AlgStep:
    """The best action or, with probability ε, any."""
    network: Any = algorithm._modules["_q_network"]  # faster than by attribute
    if epsilon is None or not _is_plain(algorithm):
        return NotImplemented
    if not is_exactly(network, QNetwork) or has_hooks(network):
        return NotImplemented
    chain = chain_of(network)
    if not chain.is_ready():
        return NotImplemented
    observation: Any = inputs.observation
    allowed: Tensor | None = None
    draw: Any = _any_index
    if algorithm._mask.exists:
        observation, allowed = algorithm._mask.split(observation)
        draw = random_index
    shape, num_values = inputs.step_type.shape, algorithm._actions.max_values
    explores: Any = False
    if epsilon:  # see toss_coins and choose
        coins = torch.rand(shape)
        if shape[0] > MAX_TO_READ:
            explores = (coins < epsilon).numpy()
        else:
            explores = [coin < epsilon for coin in coins.tolist()]
            if all(explores):
                return AlgStep(draw(shape, num_values, allowed), state)
            explores = any(explores) and explores
    prepared = chain.read(observation)
    if prepared is None:
        values = network(observation)[0].detach().flatten(1).numpy()
    else:
        with quiet():
            values = chain.run(prepared)
    best = _best(values, allowed)
    if explores is not False:
        random = draw(shape, num_values, allowed)
        best = np.where(explores, random.numpy(), best)
    return AlgStep(torch.from_numpy(best), state)


def _any_index(shape: torch.Size, num_values: int, _: None) -> Tensor:
    """As ``random_index``, where all are allowed."""
    return torch.randint(num_values, shape)


def _best(values: np.ndarray, allowed: Tensor | None) -> np.ndarray:
    """The index [B] of the largest of the allowed values [B, A]."""
    if allowed is not None:
        values = np.where(allowed.numpy(), values, np.float32(-np.inf))
    return values.argmax(-1)


# Learning


def _mean_td_loss(
    algorithm: DqnAlgorithm, observation: Any, transition: Any, valid: Tensor
) -> Tensor | None:
    """The mean loss [] over the valid transitions, whose gradients are known.

    Args:
        algorithm: of one action [B].
        observation: [B, ...].
        transition: [B, ...].
        valid: [B] bool.
    """
    head: Any = algorithm._return_model
    network = algorithm._q_network
    target = algorithm._target_q_network
    for each in (network, target):
        if not is_exactly(each, QNetwork) or has_hooks(each):
            return None
    if not is_exactly(head, ExpectedReturnHead) or head._loss_fn is not None:
        return None
    mask, chain, target_chain = algorithm._mask, chain_of(network), chain_of(target)
    next_observation, allowed = mask.split(transition.next_observation)
    now = chain.prepared(mask.remaining(observation))
    then = target_chain.prepared(next_observation)
    if now is None or then is None or not may_use_numpy(transition.reward):
        return None
    if not may_make_node():
        return None
    with torch.no_grad(), quiet():
        next_q = chooser = target_chain.run(then)
        if algorithm._double:
            chooser = chain.run(then)
        if algorithm._double or allowed is not None:
            best = _best(chooser, allowed)
            next_value = next_q.reshape(-1).take(_places(best, next_q))
        else:  # column by column, faster than the maximum over few of them
            next_value = functools.reduce(np.maximum, next_q.T)
        td_target = transition.discount.numpy() * next_value
        td_target += transition.reward.numpy()
        kept: list[Any] = []
        q = chain.run(now, kept)
        taken = _places(transition.action.numpy(), q)
        value = q.reshape(-1).take(taken)
        loss, slope = _loss_and_slope(value, td_target, head._huber_delta)
        (mean,), to_loss = numpy_mean(loss, valid.numpy())
        to_q = np.zeros(q.shape, np.float32)
        to_q.reshape(-1)[taken] = slope * to_loss(np.float32(1))[0]
        gradients = chain.pull_back(to_q, kept, len(q))
    return known_loss(torch.from_numpy(mean), chain.parameters(), gradients)


def _places(index: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where the entries ``index`` [B] of the rows of values [B, A] are among B·A."""
    batch_size, num_values = values.shape
    return np.arange(0, batch_size * num_values, num_values) + index


def _loss_and_slope(
    value: np.ndarray, target: np.ndarray, delta: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """The Huber loss of values [B], or the squared error, and its derivative."""
    error = value - target
    if delta is None:
        return error * error, error + error
    size = np.abs(error)
    loss = np.where(
        size < np.float32(delta),
        np.float32(0.5) * size * size,
        np.float32(delta) * (size - np.float32(0.5 * delta)),
    )
    return loss, np.clip(error, np.float32(-delta), np.float32(delta))
