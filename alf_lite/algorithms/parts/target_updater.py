"""Target networks: delayed copies that bootstrap targets are computed with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from alf_lite.utils.update_counter import UpdateCounter

_Module = TypeVar("_Module", bound=nn.Module)


def target_copy(module: _Module) -> _Module:
    """A copy of ``module`` whose parameters want no gradient, hence no optimizer."""
    return copy.deepcopy(module).requires_grad_(False)


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
        self._sources = tuple(sources)
        self._targets = tuple(targets)
        self._tau = tau
        self._counter = UpdateCounter(period, name="target_update_period")
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
