"""Switching a tree of modules between training and evaluation, many times a second."""

from __future__ import annotations

from typing import Any

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
        self._attributes: list[dict[str, Any]] = []
        self._is_plain: bool | None = None

    def set(self, mode: bool) -> None:
        """Training if ``mode`` is true, else evaluation."""
        (root,) = self._root
        if self._is_plain is None:
            modules = list(root.modules())
            self._is_plain = all(type(m).train is nn.Module.train for m in modules)
            self._attributes = [vars(module) for module in modules]
        if not self._is_plain:
            root.train(mode)  # a module of its own kind knows better
            return
        for attributes in self._attributes:
            # Not by attribute, where nn.Module looks for parameters first.
            attributes["training"] = mode
