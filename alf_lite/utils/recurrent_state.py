"""Recurrent states, which start at zero in every episode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite import nest

Nest = Any


def reset_state(state: Nest, initial_state: Nest, is_first: Tensor) -> Nest:
    """``state`` with the rows where ``is_first`` [B] replaced by the initial state.

    Args:
        state: [B, ...].
        initial_state: [B, ...].
        is_first: [B] bool.
    """

    def select(old: Tensor, initial: Tensor) -> Tensor:
        mask = is_first.reshape(-1, *[1] * (old.ndim - 1))
        return torch.where(mask, initial, old)

    return nest.map_structure(select, state, initial_state)
