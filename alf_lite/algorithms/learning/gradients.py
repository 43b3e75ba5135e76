"""The gradient of a loss, with less around it than torch's ``backward`` has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.fast import Node

# Private parts of torch; where one is gone, the public way is taken.
_ENGINE: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
_NODE: Any = getattr(Node, "_backward_cls", None)
_ones: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # gradients of losses


def backward(loss: Tensor) -> None:
    """``loss.backward()``, without the half of its time that looks at its arguments.

    If the loss is one node, parameters get their gradients from that, and the engine of
    torch has the rest to do, if there is any. With hooks it does everything.
    """
    if (
        _ENGINE is None
        or type(loss) is not Tensor
        or loss.shape
        or not loss.requires_grad
    ):
        loss.backward()
        return
    one = _ones.get((loss.device, loss.dtype))
    if one is None:
        one = torch.ones((), dtype=loss.dtype, device=loss.device)
        _ones[loss.device, loss.dtype] = one
    if not _fill_from_node(loss, one):
        _run_engine((loss,), (one,))


def _fill_from_node(loss: Tensor, gradient: Tensor) -> bool:
    """Whether the loss is a node; parameters have their gradients then."""
    node: Any = loss.grad_fn
    if type(node) is not _NODE or _is_watched(loss):
        return False
    needs = node.needs_input_grad[1:]
    pairs = list(zip(node.saved_tensors, needs, strict=True))
    if any(needed and x.is_leaf and not _is_plain(x) for x, needed in pairs):
        return False
    with torch.no_grad(), np.errstate(all="ignore"):  # torch does not warn either
        gradients = node.computation.backward(needs, gradient)
    others, of_others = [], []
    for (x, needed), found in zip(pairs, gradients, strict=True):
        if not needed or found is None or not x.requires_grad:  # not any more
            continue
        if not x.is_leaf:
            others.append(x)
            of_others.append(found)
        elif x.grad is None:
            x.grad = found.contiguous()
        else:  # it is there twice
            x.grad = x.grad + found
    if others:
        _run_engine(others, of_others)
    return True


def _is_watched(loss: Tensor) -> bool:
    """Whether somebody wants its own gradient, or to know where one is not finite."""
    has_hooks = bool(loss._backward_hooks)
    return has_hooks or loss.retains_grad or torch.is_anomaly_enabled()


def _is_plain(leaf: Tensor) -> bool:
    """Whether its gradient is simply put down, by the engine as well."""
    return (
        leaf.grad is None
        and not leaf._backward_hooks
        and not leaf._post_accumulate_grad_hooks
        and leaf.is_contiguous()
    )


def _run_engine(roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    keep_graph, create_graph, inputs, allow_unreachable = False, False, (), True
    _ENGINE.run_backward(
        tuple(roots),
        tuple(gradients),
        keep_graph,
        create_graph,
        inputs,
        allow_unreachable,
        accumulate_grad=True,
    )
