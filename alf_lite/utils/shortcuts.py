"""Whether a shortcut stands for the objects at hand, and a flag for a subclass.

A shortcut computes in one go what the methods of some objects would, and calls none of
them. Nothing tells it of an equation that a subclass has written anew, in whichever
method: it is taken for objects of the very classes that it was written for.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

# Of classes that were asked for; None of those that shortcuts were not written for
_methods: dict[type, frozenset[str] | None] = {}
# Attribute of an object: how many it had when no method was replaced, which adds one
_SIZE = "_size_as_shipped"


def are_as_shipped(*parts: Any) -> bool:
    """Whether the shortcuts of these objects compute what their methods do.

    They do if the class of each says ``keeps_shortcuts = True`` itself, which no
    subclass inherits, and no method was replaced on the object.
    """
    for part in parts:
        kind, own = type(part), part.__dict__
        if kind not in _methods:
            _methods[kind] = _methods_of(kind)
        methods = _methods[kind]
        if methods is None:
            return False
        if own.get(_SIZE) == len(own):  # asked at every step
            continue
        if not methods.isdisjoint(own):
            return False
        if not torch.compiler.is_compiling():
            own[_SIZE] = len(own) + (_SIZE not in own)
    return True


def _methods_of(cls: type) -> frozenset[str] | None:
    """The names of all there are."""
    if not vars(cls).get("keeps_shortcuts", False):
        return None
    return frozenset(
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if inspect.isfunction(value)
    )


def is_outdated(cls: type, shortcut: str, *methods: str) -> bool:
    """Whether a class nearer than the one that gives ``shortcut`` rewrote a method.

    A shortcut is a flag or a method that others use in place of the ``methods``: it was
    true of those of its own class, or of one that class inherits. Mixins count, too.

    Args:
        cls: whose method resolution order is looked at.
        shortcut: an attribute that it has.
        methods: names; those that it has not are left out.
    """
    place = _place(cls, shortcut)
    return any(_place(cls, name) < place for name in methods)


def _place(cls: type, name: str) -> int:
    """Of the class that gives an attribute; behind all others, if none does."""
    order = cls.__mro__
    return next((i for i, c in enumerate(order) if name in vars(c)), len(order))
