"""The number of an environment among all those of a run, its ``env_index``.

It may tell the port of a simulator. The numbers run from 0 through those of all ranks
and unroll workers, then those of the evaluation. A worker that takes the place of
another one has its numbers; a whole batch has one number.

Environments are created in several places, which do not know of each other: ranks,
unroll workers, the evaluation. Whoever creates them says which were counted before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from alf_lite.environments.environment import Environment
from alf_lite.utils.ranks import ranks

# Environments that come before, and batches of the size of the one that is created.
_before: ContextVar[tuple[int, int] | None] = ContextVar("_before", default=None)


@contextlib.contextmanager
def counted_after(environments: int = 0, *, batches: int = 0) -> Iterator[None]:
    """What is created in the block is counted after these.

    Args:
        environments: that have the first numbers.
        batches: of the size of the one that is created, after those.
    """
    token = _before.set((environments, batches))
    try:
        yield
    finally:
        _before.reset(token)


def create_after(
    environments: int, create_env: Callable[..., Environment], /, **arguments: Any
) -> Environment:
    """``create_env(**arguments)``, counted after these; can be sent to a process."""
    with counted_after(environments):
        return create_env(**arguments)


def first_index(num_environments: int) -> int:
    """The number of the first one of a batch that is created now."""
    environments, batches = _before.get() or (0, ranks.index)
    return environments + batches * num_environments
