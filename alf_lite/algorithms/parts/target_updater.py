"""Target networks, the delayed copies that targets bootstrap from, and their period."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

_Module = TypeVar("_Module", bound=nn.Module)


def target_copy(module: _Module) -> _Module:
    """A copy of ``module`` whose parameters want no gradient, hence no optimizer."""
    return copy.deepcopy(module).requires_grad_(False)


class UpdateCounter(nn.Module):
    """Counts gradient updates and tells which of them are due.

    A module without parameters: as a part of an algorithm it is in its checkpoint.

    Args:
        period: updates from one that is due to the next; the first one that is due is
            the one with this number.
        name: of the period in messages.
    """

    def __init__(self, period: int = 1, *, name: str = "period") -> None:
        super().__init__()
        if not isinstance(period, int) or isinstance(period, bool) or period < 1:
            raise ValueError(f"{name} must be a positive integer, got {period!r}")
        self._period = period
        self._count = 0
        # A flag beside the count: a compiled function that asks for it is compiled
        # anew for each of two values, not for every count.
        self.is_due = period == 1

    @property
    def count(self) -> int:
        """How many updates have been counted."""
        return self._count

    def advance(self) -> bool:
        """Counts one update and returns whether it was due.

        ``is_due`` told so before, and now tells it of the next update.
        """
        was_due = self.is_due
        self._set(self._count + 1)
        return was_due

    def _set(self, count: int) -> None:
        # Not through the module's own, which looks for parameters first.
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "is_due", (count + 1) % self._period == 0)

    def get_extra_state(self) -> Tensor:
        """[] int64, for ``state_dict``."""
        return torch.tensor(self._count)

    def set_extra_state(self, state: Tensor) -> None:
        """Takes over what ``get_extra_state`` returned."""
        self._set(int(state))

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
        tau: τ in (0, 1].
        period: calls between two updates: gradient updates, if called after each.

    Raises:
        ValueError: if ``tau`` or ``period`` is out of range, or the modules differ.
    """

    def __init__(
        self,
        sources: Sequence[nn.Module],
        targets: Sequence[nn.Module],
        *,
        tau: float = 1.0,
        period: int = 1,
    ) -> None:
        super().__init__()
        if not 0 < tau <= 1:
            raise ValueError(f"target_update_tau must lie in (0, 1], got {tau}")
        # Tuples, because modules in attributes would become parts of this one.
        self._sources: tuple[nn.Module, ...] = ()
        self._targets: tuple[nn.Module, ...] = ()
        self._tau = tau
        self._counter = UpdateCounter(period, name="target_update_period")
        self.add(sources, targets)

    def add(self, sources: Sequence[nn.Module], targets: Sequence[nn.Module]) -> None:
        """Lets more targets follow, of modules with the same structure."""
        self._sources += tuple(sources)
        self._targets += tuple(targets)
        self._check_same_tensors()
        self._tensors: _Tensors | None = None
        self._move(1.0)

    @property
    def is_due(self) -> bool:
        """Whether the next call will move the targets."""
        return self._counter.is_due

    def forward(self) -> None:
        """Counts one update and moves the targets if it is due."""
        if self._counter.advance():
            self._move(self._tau)

    @torch.no_grad()
    def _move(self, tau: float) -> None:
        if self._tensors is None:
            self._tensors = _Tensors(
                parameters=[p for m in self._sources for p in m.parameters()],
                target_parameters=[p for m in self._targets for p in m.parameters()],
                buffers=[b for m in self._sources for b in m.buffers()],
                target_buffers=[b for m in self._targets for b in m.buffers()],
            )
        tensors = self._tensors
        if tensors.parameters:
            # At 1, the result is the second argument to the bit.
            torch._foreach_lerp_(tensors.target_parameters, tensors.parameters, tau)
        if tensors.buffers:
            torch._foreach_copy_(tensors.target_buffers, tensors.buffers)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        # Moving to another device gives modules other tensors.
        self._tensors = None
        return super()._apply(fn, recurse)

    def _check_same_tensors(self) -> None:
        sources, targets = (
            [
                (name, tuple(tensor.shape))
                for module in modules
                for name, tensor in (
                    *module.named_parameters(),
                    *module.named_buffers(),
                )
            ]
            for modules in (self._sources, self._targets)
        )
        if sources != targets:
            raise ValueError(
                "TargetUpdater: sources and targets must have the same parameters and "
                f"buffers, got {sources} and {targets}"
            )


class _Tensors(NamedTuple):
    """The tensors of both sides, in lists of the same order."""

    parameters: list[Tensor]
    target_parameters: list[Tensor]
    buffers: list[Tensor]
    target_buffers: list[Tensor]
