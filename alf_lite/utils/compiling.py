"""``torch.compile`` of functions whose results are nests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from alf_lite import nest


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``function`` by ``torch.compile``, with its options.

    Its result is put together anew: torch 2.11 returns NamedTuples of ``_replace``
    without their elements.
    """

    def with_new_nodes(*args: Any) -> Any:
        return nest.map_structure(_same, function(*args))

    return torch.compile(with_new_nodes, **options)


def _same(leaf: Any) -> Any:
    return leaf
