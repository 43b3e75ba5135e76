"""Statistics that are those of all ranks: what each has seen is put together.

With several ranks, a module that keeps statistics only collects what is new, and takes
in that of all when :func:`share_statistics` is called, at the same point of every rank.
So it does not matter how often, or whether, a rank has seen something new.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from alf_lite.utils.ranks import ranks


class SharedStatistics(nn.Module):
    """A module with statistics that all ranks have in common."""

    @abstractmethod
    def take_pending(self) -> Tensor:
        """[K] float64, what is new here since the last call; K never changes."""

    @abstractmethod
    def take_in(self, pending: Tensor) -> None:
        """Takes in what is new on all ranks, [size, K]."""


def sharing_modules(module: nn.Module) -> list[SharedStatistics]:
    """Those below ``module``, in an order that is the same on all ranks."""
    return [part for part in module.modules() if isinstance(part, SharedStatistics)]


def share_statistics(modules: Iterable[SharedStatistics]) -> None:
    """Has the modules take in what is new on any rank, in one collective."""
    modules = list(modules)
    if ranks.size == 1 or not modules:
        return
    pending = [module.take_pending().cpu() for module in modules]
    sizes = [len(part) for part in pending]
    gathered = ranks.gather(torch.cat(pending)).split(sizes, dim=1)
    for module, parts in zip(modules, gathered, strict=True):
        module.take_in(parts)
