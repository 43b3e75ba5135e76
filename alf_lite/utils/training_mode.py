"""Switching a tree of modules between training and evaluation, many times a second."""

from __future__ import annotations

from torch import nn


class TrainingMode:
    """Does what ``module.train(mode)`` does, for modules that stay the same.

    An iteration of one step and one update switches twice. ``torch.nn.Module.train``
    walks through the tree and takes about 10 µs for every module of it.

    Args:
        module: its submodules are looked up at the first switch.
    """

    def __init__(self, module: nn.Module) -> None:
        # A tuple, so that an owner that is a module does not take it for a part.
        self._root = (module,)
        self._modules: list[nn.Module] = []

    def set(self, mode: bool) -> None:
        """Training if ``mode`` is true, else evaluation."""
        (root,) = self._root
        if not self._modules:
            self._modules = list(root.modules())
            if any(type(m).train is not nn.Module.train for m in self._modules):
                self._modules = [root]  # they know better
        if len(self._modules) == 1:
            root.train(mode)
            return
        for module in self._modules:
            # Not through the module's own, which looks for parameters first.
            object.__setattr__(module, "training", mode)
