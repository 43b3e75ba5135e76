"""The losses of SAC, TD3 and DDPG together with their gradients, without a graph.

Nearly all of the time of such an update is that of the products of seven networks. Each
critic is evaluated, differentiated and forgotten before the next, and the slope of the
critics that the actor follows is computed where they are the smallest, nowhere else.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm, DdpgLossInfo
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.critics import Critics
from alf_lite.algorithms.parts.policy import DeterministicPolicy, Policy
from alf_lite.algorithms.parts.temperature import Temperature, Temperatures
from alf_lite.algorithms.sac_algorithm import SacAlgorithm, SacLossInfo
from alf_lite.data_structures import Field, LossInfo
from alf_lite.distributions.action_vectors import BoxActions, Entropies
from alf_lite.fast import is_exactly, known_loss, may_make_node
from alf_lite.fast.chains import quiet
from alf_lite.fast.stacks import Stack, pull_back, run, stack_of
from alf_lite.networks.actor_networks import ActorNetwork, SquashedActorNetwork
from alf_lite.networks.continuous_projections import NormalProjection
from alf_lite.networks.critic_networks import CriticNetwork, ParallelMLP
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.lean_layers import has_hooks
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import is_zero

_CONSTANT = 0.5 * math.log(2 * math.pi) + 2 * math.log(2)
_Result = tuple[LossInfo, Any] | None


def of_sac(algorithm: SacAlgorithm, batch: TrainingBatch) -> _Result:
    """See :meth:`Algorithm.quick_loss`."""
    temperature: Any = algorithm._temperatures._modules.get("continuous")
    policy, network = algorithm._policy, algorithm._policy.network
    if (
        algorithm._prior is not None
        or not is_exactly(policy, Policy)
        or not is_exactly(network, SquashedActorNetwork)
        or not is_exactly(network._head, NormalProjection)
        or not is_exactly(algorithm._temperatures, Temperatures)
        or not is_exactly(temperature, Temperature)
        or not temperature._log_alpha.requires_grad
        or any(map(has_hooks, (policy, algorithm._temperatures, temperature)))
    ):
        return None
    head: Any = network._head
    actor = _stack_of_actor(network, [head._loc, head._log_std_linear])
    task = _Task.of(algorithm, batch)
    if actor is None or task is None or not actor.is_trained():
        return None
    with torch.no_grad(), quiet():
        return _sac_loss(algorithm, task, actor, head, temperature)


def _sac_loss(
    algorithm: SacAlgorithm,
    task: _Task,
    actor: Stack,
    head: NormalProjection,
    temperature: Temperature,
) -> _Result:
    is_due, size = algorithm._actor_updates.is_due, len(task.taken)
    alpha = temperature.alpha
    rows = task.next_observation
    if is_due:  # of these first, as their random numbers are
        rows = torch.cat([task.observation, rows])
    inputs: list[Tensor] = []
    (layers,) = actor.members
    sample = _Sample(head, run(layers, rows, "actor", inputs), size)
    # Eq. 3
    next_value = task.next_value(sample.vector[-size:])
    if algorithm._use_entropy_reward:
        next_value = next_value - alpha * sample.log_prob[-size:]
    loss = critic_loss = task.learn_values(next_value, 0.5)
    actor_loss: Field = ()
    alpha_loss: Field = ()
    entropies = Entropies()
    if is_due:
        log_prob = sample.log_prob[:size]
        value, slope = task.value_and_slope(sample.vector[:size])
        actor_loss = alpha * log_prob - value
        gap = -log_prob - temperature.target_entropy
        alpha_loss = temperature._log_alpha * gap
        loss = actor_loss + critic_loss + alpha_loss
        to_outputs = sample.pull_back(slope, alpha * task.share, size)
        gradients, (places,) = actor.new_gradients()
        pull_back(layers, [x[:size] for x in inputs], to_outputs, places)
        task.learn(actor.parameters(), gradients)
        task.learn([temperature._log_alpha], [gap.dot(task.share)])
        entropies = Entropies(-log_prob)

    def parts(q: Tensor) -> SacLossInfo:
        return SacLossInfo(
            _timed(actor_loss),
            _timed(critic_loss),
            _timed(alpha_loss),
            _timed(q),
            entropy=Entropies(*map(_timed, entropies)),
            alpha=algorithm._temperatures.alpha,
        )

    return task.result(loss, parts)


def of_ddpg(algorithm: DdpgAlgorithm, batch: TrainingBatch) -> _Result:
    """See :meth:`Algorithm.quick_loss`; of TD3, too."""
    stacks = []
    for policy in (algorithm._policy, algorithm._target_policy):
        network: Any = policy._network
        if (
            not is_exactly(policy, DeterministicPolicy)
            or not is_exactly(network, ActorNetwork)
            or has_hooks(policy)
        ):
            return None
        stacks.append(_stack_of_actor(network, [network._linear]))
    actor, target_actor = stacks
    task = _Task.of(algorithm, batch)
    if actor is None or target_actor is None or task is None:
        return None
    if not actor.is_trained() or not is_zero(algorithm._action_l2):
        return None
    with torch.no_grad(), quiet():
        (layers,), (target_layers,) = actor.members, target_actor.members
        action = _tanh_(run(target_layers, task.next_observation, "actor"))
        loss = critic_loss = task.learn_values(
            task.next_value(algorithm._target_action(action)), 1.0
        )
        actor_loss: Field = ()
        if algorithm._actor_updates.is_due:
            inputs: list[Tensor] = []
            action = _tanh_(run(layers, task.observation, "actor", inputs))
            value, slope = task.value_and_slope(action, only_first=True)
            actor_loss = -value
            loss = critic_loss + actor_loss
            slope *= 1 - action * action
            gradients, (places,) = actor.new_gradients()
            pull_back(layers, inputs, slope, places)
            task.learn(actor.parameters(), gradients)

        def parts(q: Tensor) -> DdpgLossInfo:
            return DdpgLossInfo(*map(_timed, (critic_loss, actor_loss, q)))

        return task.result(loss, parts)


class _Task:
    """What the losses of one batch [B] have in common.

    The critics are those of the algorithm. Each has one output for every row.
    """

    def __init__(
        self, algorithm: Any, batch: TrainingBatch, online: Stack, target: Stack
    ) -> None:
        inputs, self._transition, _ = batch.flattened()
        self.observation: Tensor = inputs.observation
        self.next_observation: Tensor = self._transition.next_observation
        self.taken: Tensor = algorithm._actions.to_vector(self._transition.action)
        valid, weights = batch.valid[0], batch.batch_info.importance_weights
        share = valid / valid.count_nonzero().clamp_(min=1)
        if not isinstance(weights, tuple):
            share *= weights
        self.share = share  # [B], of each row in the mean
        self._algorithm, self._step_type = algorithm, batch.inputs.step_type
        self._online, self._target = online, target
        self._parameters: list[Tensor] = []
        self._gradients: list[Tensor] = []

    @classmethod
    def of(cls, algorithm: Any, batch: TrainingBatch) -> _Task | None:
        """None if the losses are others than here."""
        critics = algorithm._critics
        if (
            not may_make_node()
            or algorithm._is_recurrent
            or algorithm.has_multidim_reward
            or algorithm._mask.exists
            or algorithm._return_model is not None
            or algorithm._dqda_clipping is not None
            or not is_exactly(algorithm._actions, BoxActions)
            or not is_exactly(critics, Critics)
            or len(batch.inputs.step_type) != 1
        ):
            return None
        online = _stack_of_critics(critics.online)
        target = _stack_of_critics(critics.target)
        if online is None or target is None or not online.is_trained():
            return None
        task = cls(algorithm, batch, online, target)
        return task if task._reads_numbers_alone() else None

    def _reads_numbers_alone(self) -> bool:
        """False if somebody waits for their gradients, or torch would convert them."""
        inputs = (self.observation, self.next_observation, self.taken)
        read = (*inputs, self._transition.reward, self._transition.discount)
        return not any(x.requires_grad or x.dtype is not torch.float32 for x in read)

    def next_value(self, action: Tensor) -> Tensor:
        """[B], what the most pessimistic of the target critics tells."""
        inputs = torch.cat([self.next_observation, action], 1)
        values = [run(layers, inputs, "critic") for layers in self._target.members]
        return functools.reduce(torch.minimum, values).squeeze(1)

    def learn_values(self, next_value: Tensor, factor: float) -> Tensor:
        """Σ_k factor · (G + Γ V − Q_k)² [B], whose gradients are kept."""
        inputs = torch.cat([self.observation, self.taken], 1)
        target = self._transition.reward + self._transition.discount * next_value
        share = self.share * (2 * factor)
        self._errors = []
        gradients, places = self._online.new_gradients()
        for layers, own in zip(self._online.members, places, strict=True):
            kept: list[Tensor] = []
            error = run(layers, inputs, "critic", kept).squeeze(1) - target
            pull_back(layers, kept, (error * share).unsqueeze(1), own)
            self._errors.append(error)
        self._next = target
        self.learn(self._online.parameters(), gradients)
        return factor * functools.reduce(operator.add, (e * e for e in self._errors))

    def value_and_slope(
        self, action: Tensor, only_first: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The smallest values [B] of online critics, and −share · their slopes."""
        inputs = torch.cat([self.observation, action], 1)
        members = self._online.members[: 1 if only_first else None]
        kept: list[list[Tensor]] = [[] for _ in members]
        values = [run(layers, inputs, k, kept[k]) for k, layers in enumerate(members)]
        columns, share = slice(self.observation.shape[1], None), -self.share
        if len(members) == 1:
            slope = pull_back(members[0], kept[0], share[:, None], columns=columns)
            return values[0].squeeze(1), slope
        value = functools.reduce(torch.minimum, values)
        are_smallest = [(each == value).squeeze(1) for each in values]
        share /= functools.reduce(torch.add, map(Tensor.float, are_smallest))
        slope = torch.zeros_like(action)
        for layers, own, is_it in zip(members, kept, are_smallest, strict=True):
            rows = is_it.nonzero().squeeze(1)  # the others have no slope
            num_rows = len(rows)
            # oneDNN makes and keeps code, 0.6 MiB, for each number of rows: let there
            # be few. What is added is the first row, times 0.
            rows = F.pad(rows, (0, -num_rows % 16))
            own = [x.index_select(0, rows) for x in own]
            to_value = share.index_select(0, rows).unsqueeze(1)
            to_value[num_rows:] = 0
            found = pull_back(layers, own, to_value, columns=columns)
            slope.index_add_(0, rows, found)
        return value.squeeze(1), slope

    def learn(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        self._parameters += parameters
        self._gradients += gradients

    def result(self, loss: Tensor, parts: Callable[[Tensor], Any]) -> _Result:
        """Of the loss [B], with its parts given the mean of the critics' values."""
        mean = known_loss(loss.dot(self.share), self._parameters, self._gradients)
        errors = self._errors
        algorithm, num_critics = self._algorithm, len(errors)
        extra = diagnostic(lambda: parts(self._next + sum(errors) / num_critics))
        priority = algorithm.priority_of(
            lambda: _timed(sum(map(torch.abs, errors)) / num_critics), self._step_type
        )
        return LossInfo(mean, (), extra, priority), ()


def _tanh_(x: Tensor) -> Tensor:
    """In place; torch takes several times as long."""
    values = x.numpy()
    return torch.from_numpy(np.tanh(values, out=values))


def _timed(x: Any) -> Any:
    """[B] → [1, B]."""
    return x.unsqueeze(0) if isinstance(x, Tensor) else x


class _Sample:
    """Of tanh of normal distributions, there and back, see :class:`SquashedNormal`."""

    def __init__(self, head: Any, outputs: Tensor, num_rows: int) -> None:
        """Of outputs [B, 2 N], with random numbers for so many rows at once."""
        loc, log_std = outputs.chunk(2, -1)
        limited = log_std.clamp(*head._log_std_bounds)
        self._is_inside = limited == log_std
        shape = num_rows, loc.shape[1]
        noise = torch.cat([torch.randn(shape) for _ in range(len(loc) // num_rows)])
        self._deviation = limited.exp().mul_(noise)
        u = loc + self._deviation
        log_probs = noise.square_().mul_(-0.5).sub_(_CONSTANT).sub_(limited)
        log_probs.add_(F.softplus(-2 * u).add_(u), alpha=2)
        self.log_prob = log_probs.sum(-1).sub_(head._bounds.log_half_widths)
        self.vector = u.tanh_()

    def pull_back(self, to_vector: Tensor, to_log_prob: Tensor, size: int) -> Tensor:
        """From gradients [B, N] and [B] to that of the outputs, of the first rows."""
        y, to_log_prob = self.vector[:size], to_log_prob.unsqueeze(-1)
        to_u = to_vector * (1 - y * y) + 2 * to_log_prob * y
        to_log_std = to_u * self._deviation[:size] - to_log_prob
        return torch.cat([to_u, to_log_std.mul_(self._is_inside[:size])], -1)


def _stack_of_actor(network: Any, last: list[Any]) -> Stack | None:
    encoder = network._encoder
    if not _is_vector_encoder(encoder) or has_hooks(network):
        return None
    return stack_of(network, encoder._mlp, last)


def _stack_of_critics(network: Any) -> Stack | None:
    """Of critics whose features are the observation itself."""
    if not is_exactly(network, CriticNetwork):
        return None
    encoder, ensemble = network._encoder, network._critics
    if not _is_vector_encoder(encoder) or len(encoder._mlp):
        return None
    if not is_exactly(ensemble, ParallelMLP):
        return None
    return stack_of(ensemble, ensemble._hidden_layers, [ensemble._output_layer])


def _is_vector_encoder(encoder: Any) -> bool:
    return is_exactly(encoder, EncodingNetwork) and encoder._is_plain
