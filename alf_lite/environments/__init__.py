"""Environments: batched, and they speak TimeStep."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the processes of an asynchronous environment import parts
    # of this package and must not wait for torch.
    if name == "create_environment":
        from alf_lite.environments.creation import create_environment

        return create_environment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
