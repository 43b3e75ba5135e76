"""The learning contract for variants: a few probes by default, the others as slow."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest


def slow_but_for(*quick: str) -> Callable[[type], type]:
    """Marks all tests that a class inherits as slow, but for those with these names.

    For variants of an algorithm that does the whole contract whenever the tests run:
    what they have in common needs no second check.
    """

    def mark(cls: type) -> type:
        for name in dir(cls):
            test = getattr(cls, name)
            if name.startswith("test_") and test is not None and name not in quick:
                setattr(cls, name, pytest.mark.slow(_copy(test)))
        unknown = [name for name in quick if getattr(cls, name, None) is None]
        assert not unknown, f"{cls.__name__} has no {unknown}"
        return cls

    return mark


def _copy(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: object) -> None:
        test(self)

    return run
