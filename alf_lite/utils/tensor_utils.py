"""Small operations on tensors that have no better home."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest

Nest = Any


def expand_dims_as(x: Tensor, y: Tensor) -> Tensor:
    """``x`` with dimensions of size 1 appended, until it has as many as ``y``.

    So a mask [T, B] multiplies a reward [T, B, D]. A view if possible.

    Raises:
        ValueError: if ``x`` has more dimensions than ``y``, or the sizes of the
            dimensions they share differ.
    """
    if x.shape != y.shape[: x.ndim]:
        raise ValueError(
            f"expand_dims_as: shape {list(y.shape)} does not begin with {list(x.shape)}"
        )
    return x if x.ndim == y.ndim else x.reshape(x.shape + (1,) * (y.ndim - x.ndim))


def flatten_outer(values: Nest) -> Nest:
    """[B, T, ...] → [B·T, ...] in every leaf, views if possible."""

    def flatten(leaf: Tensor) -> Tensor:
        # A squeeze takes half of the time.
        return leaf.squeeze(0) if len(leaf) == 1 else leaf.flatten(0, 1)

    return nest.map_structure(flatten, values)


def unflatten_last(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[..., N] → [..., *shape], which has N elements."""
    if len(shape) == 1:
        return x
    return x.squeeze(-1) if not shape else x.unflatten(-1, shape)


def select(values: Tensor, indices: Tensor) -> Tensor:
    """One entry of the last dimension per row, such as Q(s, a) out of Q(s, ·).

    Args:
        values: [..., N].
        indices: [...], integers in [0, N).

    Returns:
        [...].

    Raises:
        ValueError: if the shapes do not fit.
    """
    if values.shape[:-1] != indices.shape:
        raise ValueError(
            f"select: indices {list(indices.shape)} must have the shape of values "
            f"{list(values.shape)} without the last dimension"
        )
    return values.gather(-1, indices.long().unsqueeze(-1)).squeeze(-1)


def total(terms: Iterable[Tensor]) -> Tensor:
    """The sum of one or more terms; ``sum`` begins with 0, which is one term more."""
    return functools.reduce(operator.add, terms)


def reset_state(state: Nest, initial_state: Nest, is_first: Tensor) -> Nest:
    """``state`` with the rows where ``is_first`` [B] replaced by the initial state.

    Args:
        state: [B, ...].
        initial_state: [B, ...].
        is_first: [B] bool.
    """
    return where_rows(is_first, initial_state, state)


def where_rows(is_new: Tensor, new: Nest, old: Nest) -> Nest:
    """[B, ...] from ``new`` where ``is_new`` [B], else from ``old``."""

    def chosen(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(is_new.reshape(-1, *[1] * (y.ndim - 1)), x, y)

    return nest.map_structure(chosen, new, old)


class DeviceConstants:
    """Read-only tensors made from arrays, copied once to every device that asks."""

    def __init__(self, *arrays: np.ndarray) -> None:
        # A tensor that is made in inference mode could never be used for training.
        with torch.inference_mode(False):
            tensors = tuple(torch.tensor(array) for array in arrays)
        self._tensors = {torch.device("cpu"): tensors}

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """The tensors on ``device``, in the order of the arrays."""
        tensors = self._tensors.get(device)
        if tensors is None:
            with torch.inference_mode(False):
                on_cpu = self._tensors[torch.device("cpu")]
                tensors = tuple(tensor.to(device) for tensor in on_cpu)
            self._tensors[device] = tensors
        return tensors
