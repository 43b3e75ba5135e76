"""Whether a flag or a method was written before what it tells of was rewritten."""

from __future__ import annotations


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
