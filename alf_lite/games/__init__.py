"""Games: several policies that act in one environment, with or against each other."""

from __future__ import annotations

from typing import Any

from alf_lite.exports import load_public, public_names


def __getattr__(name: str) -> Any:
    return load_public(__name__, name)


def __dir__() -> list[str]:
    return [*globals(), *public_names(__name__)]
