"""Critics, the target networks that they bootstrap from, and periods of updates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from alf_lite.algorithms.parts.return_heads import ReturnHead
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.networks.critic_networks import ParallelMLP
from alf_lite.networks.network import Network, as_critic_network, takes_whole_sequences
from alf_lite.utils import losses
from alf_lite.utils.schedulers import (
    Scheduled,
    as_scheduler,
    extreme_values,
    value_at_start,
)
from alf_lite.utils.tensor_utils import expand_dims_as

Nest = Any
_Module = TypeVar("_Module", bound=nn.Module)


class Critics(nn.Module):
    """n critics Q_k, trained, and Q⁻_k, which follow them.

    ``online`` and ``target`` are networks like :class:`CriticNetwork`: what they
    ``encode`` an observation to serves to ``evaluate`` several actions.

    Args:
        network: from :func:`make_critic_network`.
        weigh: values [..., D] to [...], what is maximised; of one value, itself.
        tau: see :class:`TargetUpdater`.
        period: likewise.
        return_model: what the outputs of a critic [..., N] stand for, if it is not the
            expected return itself.
        has_targets: False: there is no ``target``.
    """

    target: Any

    def __init__(
        self,
        network: Any,
        weigh: Callable[[Tensor], Tensor],
        *,
        tau: Scheduled,
        period: Scheduled,
        return_model: ReturnHead | None = None,
        has_targets: bool = True,
    ) -> None:
        super().__init__()
        self.online = network
        self.target = target_copy(network) if has_targets else None
        self.target_updater = TargetUpdater(
            *([network], [self.target]) if has_targets else ([], []),
            tau=tau,
            period=period,
        )
        self._ensembles = [m for m in network.modules() if isinstance(m, ParallelMLP)]
        self._weigh = weigh
        self._return_model = return_model
        self._trained: list[nn.Parameter] | None = None
        # In a tuple, which makes it no part of this module.
        self._evaluation = (_Evaluation(network),)

    def evaluate_frozen(
        self, features: Tensor, vector: Tensor, *, only_first: bool = False
    ) -> Tensor:
        """The values of ``online``, with gradient to the vector only, [B, n, ...].

        A policy is improved through the critics in this way, within the same backward
        pass that trains them on something else.

        Args:
            features: [B, F], from ``online.encode``.
            vector: [B, vector_size], of an action.
            only_first: the others are not wanted, and left out if that saves time:
                [B, 1, ...] or more.
        """
        if torch.compiler.is_compiling():
            # What needs a gradient cannot change within a graph.
            detached = {
                f"network.{name}": parameter.detach()
                for name, parameter in self.online.named_parameters()
            }
            arguments = (features.detach(), vector)
            return functional_call(*self._evaluation, detached, arguments)
        if self._trained is None:
            self._trained = list(self.online.parameters())
        trained = [p for p in self._trained if p.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        for ensemble in self._ensembles:
            ensemble.is_only_first = only_first
        try:
            return self.online.evaluate(features.detach(), vector)
        finally:
            for ensemble in self._ensembles:
                ensemble.is_only_first = False
            for parameter in trained:
                parameter.requires_grad_(True)

    def smallest(self, values: Tensor) -> Tensor:
        """The values of the most pessimistic critic: [B, n, ...] → [B, ...].

        Of a reward of several dimensions, all values are those of one critic: of the
        one whose weighted sum is smallest. The smallest values one by one would belong
        to none.
        """
        weighted = self._weigh(values)
        if weighted is values:
            return values.amin(1)
        critic = expand_dims_as(weighted.argmin(1, keepdim=True), values[:, :1])
        return values.gather(1, critic.expand_as(values[:, :1])).squeeze(1)

    def td_loss(
        self,
        q: Tensor,
        reward: Tensor,
        discount: Tensor,
        next_value: Tensor,
        *,
        halved: bool = False,
    ) -> tuple[Tensor, Callable[[], Tensor]]:
        """Σ_k (G_t + Γ_t V(s_{t+m}) − Q_k(s_t, a_t))², and what computes mean_k |δ_k|.

        Both [T, B]; few need the latter. Of values of several dimensions, the squares
        are summed over them, and δ is weighted. Of a model of the return, the sum is
        that of its own loss, and δ that of the expected returns.

        Args:
            q: [T, B, n], [T, B, n, D] or [T, B, n, N], with gradient.
            reward: [T, B] or [T, B, D], G_t.
            discount: [T, B] Γ_t.
            next_value: [T, B], [T, B, D] or [T, B, N], V(s_{t+m}); quantiles may be
                more or fewer than N.
            halved: ½ of each square.
        """
        model = self._return_model
        if model is not None:
            each = q.shape[:-1]  # [T, B, n]
            outputs = next_value.unsqueeze(2).expand(*each, next_value.shape[-1])
            reward, discount = (x.unsqueeze(2).expand(each) for x in (reward, discount))

            def td_error() -> Tensor:
                target = reward + discount * model.mean(outputs)
                return model.td_error(model.mean(q.detach()), target).abs().mean(2)

            return model.loss(q, outputs, reward, discount).sum(2), td_error
        discount = expand_dims_as(discount, reward)
        target = (reward + discount * next_value).unsqueeze(2).expand_as(q)
        squares = losses.squared(q, target)
        loss = (0.5 * squares if halved else squares).flatten(2).sum(2)
        return loss, lambda: self._weigh(target - q.detach()).abs().mean(2)


def with_clipped_slope(value: Tensor, vector: Tensor, limit: float | None) -> Tensor:
    """``value`` itself, whose derivative by the vector is clipped to ±limit.

    Args:
        value: [B], row by row a function of the vector.
        vector: [B, size], of an action.
        limit: of every element; None: there is none.
    """
    if limit is None or not value.requires_grad:
        return value
    (slope,) = torch.autograd.grad(value.sum(), vector, retain_graph=True)
    excess = slope - slope.clamp(-limit, limit)
    return value - (excess * (vector - vector.detach())).sum(-1)


class _Evaluation(nn.Module):
    """``evaluate`` of a network as the call of a module."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, vector: Tensor) -> Tensor:
        return self.network.evaluate(features, vector)


def make_critic_network(
    network_ctor: Callable[..., Any],
    mask: ActionMask,
    *arguments: Any,
    what: str = "critic_network_ctor",
) -> Any:
    """Critics for observations of which they do not see a mask, or other entries.

    Args:
        network_ctor: called as ``ctor(observation_spec, vector_size, num_critics,
            output_shape)``; see :class:`CriticNetwork`.
        mask: of the observations.
        arguments: of the constructor, after the spec.
        what: the parameter that named the constructor, for messages.
    """
    network = as_critic_network(network_ctor(mask.remaining_spec, *arguments), what)
    return network if mask.is_plain else _WithoutMask(network, mask)


class _WithoutMask(Network):
    """Takes observations with a mask and has the state of the network inside."""

    def __init__(self, network: Any, mask: ActionMask) -> None:
        super().__init__(mask.observation_spec, network.state_spec)
        self._network = network
        self._mask = mask

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        observation, action = inputs
        features, state = self.encode(observation, state)
        return self.evaluate(features, action), state

    def encode(self, observation: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        return self._network.encode(self._mask.remaining(observation), state)

    def evaluate(self, features: Tensor, action: Tensor | None) -> Tensor:
        return self._network.evaluate(features, action)


# Target networks


def target_copy(module: _Module) -> _Module:
    """A copy of ``module`` whose parameters want no gradient, hence no optimizer."""
    return copy.deepcopy(module).requires_grad_(False)


# In the state of a counter, above all counts.
_IS_NOT_DUE, _IS_DUE = 1 << 60, 2 << 60


class UpdateCounter(nn.Module):
    """Counts gradient updates and tells which of them are due.

    A module without parameters: as a part of an algorithm it is in its checkpoint.

    Args:
        period: updates from one that is due to the next; the first one that is due is
            the one with this number. With a schedule, those are due whose number is a
            multiple of what the period is then.
        name: of the period in messages.
    """

    def __init__(self, period: Scheduled = 1, *, name: str = "period") -> None:
        super().__init__()
        is_number = isinstance(period, int | float | str)
        if is_number and (not isinstance(period, int) or isinstance(period, bool)):
            raise ValueError(f"{name} must be a positive integer, got {period!r}")
        schedule = as_scheduler(period)
        if not all(value >= 1 for value in extreme_values(schedule)):
            raise ValueError(f"{name} must be a positive integer, got {period!r}")
        self._schedule = None if isinstance(period, int) else schedule
        self._period = int(value_at_start(schedule))
        self._count = 0
        # A flag beside the count: a compiled function that asks for it is compiled
        # anew for each of two values, not for every count.
        self.is_due = self._period == 1

    @property
    def count(self) -> int:
        """How many updates have been counted."""
        return self._count

    def advance(self) -> bool:
        """Counts one update and returns whether it was due.

        ``is_due`` told so before, and now tells it of the next update.
        """
        was_due = self.is_due
        # Not through the module's own, which looks for parameters first.
        if self._schedule is not None:
            object.__setattr__(self, "_period", max(1, round(self._schedule())))
        object.__setattr__(self, "_count", self._count + 1)
        object.__setattr__(self, "is_due", (self._count + 1) % self._period == 0)
        return was_due

    def get_extra_state(self) -> Tensor:
        """[] int64, for ``state_dict``.

        The count; with a schedule also whether the next update is due, which the
        schedule has told by the progress before it.
        """
        told = 0 if self._schedule is None else _IS_DUE if self.is_due else _IS_NOT_DUE
        return torch.tensor(self._count + told)

    def set_extra_state(self, state: Tensor) -> None:
        """Takes over what ``get_extra_state`` returned."""
        told, count = divmod(int(state), _IS_NOT_DUE)
        self._count = count - 1
        self.advance()  # to the last one that was counted, and to what is due then
        # Checkpoints of versions up to 0.2 hold the count alone.
        if self._schedule is not None and told:
            self.is_due = told * _IS_NOT_DUE == _IS_DUE

    def extra_repr(self) -> str:
        return f"period={self._period}, count={self._count}"


class TargetUpdater(nn.Module):
    """Moves targets towards their sources, once in ``period`` calls.

        θ⁻ ← θ⁻ + τ (θ − θ⁻)

    ``tau=1`` copies, as in Mnih et al. 2015; a small ``tau`` with ``period=1`` is the
    soft update of Lillicrap et al. 2016. Buffers, such as the statistics of
    normalization layers, are always copied. The targets start as copies, too.

    The modules stay parts of whoever owns them; this one only holds the count.

    Args:
        sources: the modules that are trained.
        targets: their targets, of the same structure.
        tau: τ in (0, 1], or a schedule of it.
        period: calls between two updates: gradient updates, if called after each.
            Likewise.

    Raises:
        ValueError: if ``tau`` or ``period`` is out of range, or the modules differ.
    """

    def __init__(
        self,
        sources: Sequence[nn.Module],
        targets: Sequence[nn.Module],
        *,
        tau: Scheduled = 1.0,
        period: Scheduled = 1,
    ) -> None:
        super().__init__()
        schedule = as_scheduler(tau)
        if not all(0 < value <= 1 for value in extreme_values(schedule)):
            raise ValueError(f"target_update_tau must lie in (0, 1], got {tau}")
        # Of no loss: what compiles or captures those need not know of it.
        self._schedule = None if isinstance(tau, int | float) else schedule
        self._tau = value_at_start(schedule)
        # Tuples, because modules in attributes would become parts of this one.
        self._sources: tuple[nn.Module, ...] = ()
        self._targets: tuple[nn.Module, ...] = ()
        self._counter = UpdateCounter(period, name="target_update_period")
        self.add(sources, targets)

    def add(self, sources: Sequence[nn.Module], targets: Sequence[nn.Module]) -> None:
        """Lets more targets follow, of modules with the same structure."""
        self._sources += tuple(sources)
        self._targets += tuple(targets)
        self._check_same_tensors()
        self._tensors: tuple[list[Tensor], ...] | None = None
        self._move(1.0)

    @property
    def is_due(self) -> bool:
        """Whether the next call will move the targets."""
        return self._counter.is_due

    def forward(self) -> None:
        """Counts one update and moves the targets if it is due."""
        if self._counter.advance():
            self._move(self._tau if self._schedule is None else self._schedule())

    def copy(self) -> None:
        """Makes the targets equal to their sources, whatever τ."""
        self._move(1.0)

    @torch.no_grad()
    def _move(self, tau: float) -> None:
        if self._tensors is None:
            self._tensors = tuple(
                [tensor for module in side for tensor in tensors_of(module)]
                for tensors_of in (nn.Module.parameters, nn.Module.buffers)
                for side in (self._sources, self._targets)
            )
        parameters, target_parameters, buffers, target_buffers = self._tensors
        if parameters:
            # At 1, the result is the second argument to the bit.
            torch._foreach_lerp_(target_parameters, parameters, tau)
        if buffers:
            torch._foreach_copy_(target_buffers, buffers)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        # Moving to another device gives modules other tensors.
        self._tensors = None
        return super()._apply(fn, recurse)

    def _check_same_tensors(self) -> None:
        sources, targets = (
            [
                (name, tuple(tensor.shape))
                for module in modules
                for named in (module.named_parameters(), module.named_buffers())
                for name, tensor in named
            ]
            for modules in (self._sources, self._targets)
        )
        if sources != targets:
            raise ValueError(
                "TargetUpdater: sources and targets must have the same parameters and "
                f"buffers, got {sources} and {targets}"
            )
