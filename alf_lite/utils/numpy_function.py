"""Functions of tensors that are computed in numpy, and so are their gradients.

On a CPU a call of numpy takes a third of the time of one of torch, and torch's graph
costs as much again: a loss of a few hundred numbers is little more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

# From gradients of the outputs, None where there is none, to those of the inputs
Pullback = Callable[..., tuple[np.ndarray | None, ...]]
# From arrays to the outputs and their pullback
NumpyFunction = Callable[..., tuple[tuple[np.ndarray, ...], Pullback]]

# Of more numbers torch makes several threads, if it may.
_MAX_SIZE = 2**15


def is_traced() -> bool:
    """Whether operations are recorded or transformed, so that all must be torch's."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def is_quick(x: Tensor) -> bool:
    """Whether numpy computes with ``x`` and such as it, and faster than torch."""
    return (
        x.is_cpu
        and x.dtype is torch.float32
        and not is_traced()  # before the size, which has no value in a graph
        and (x.numel() <= _MAX_SIZE or torch.get_num_threads() == 1)
    )


def by_numpy(
    function: NumpyFunction, plain: Callable[..., Any], *inputs: Tensor
) -> tuple[Tensor, ...]:
    """The outputs of ``function``, differentiable in its inputs.

    Args:
        function: called with the inputs as arrays, which it leaves as they are.
        plain: the same in torch, for gradients of gradients: a tensor or several.
        inputs: float32 on the CPU, see :func:`is_quick`.
    """
    if torch.is_grad_enabled():
        return _Function.apply(function, plain, *inputs)
    with np.errstate(all="ignore"):
        outputs, _ = function(*[x.detach().numpy() for x in inputs])
    return tuple([torch.from_numpy(x) for x in outputs])


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Any, plain: Any, *inputs: Tensor) -> Any:
        with np.errstate(all="ignore"):  # torch does not warn either
            outputs, ctx.pullback = function(*[x.detach().numpy() for x in inputs])
        ctx.plain = plain
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        return tuple([torch.from_numpy(x) for x in outputs])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors  # notices when they were changed
        if torch.is_grad_enabled():
            return None, None, *_differentiable(ctx, inputs, gradients)
        with np.errstate(all="ignore"):
            found = ctx.pullback(*[None if g is None else g.numpy() for g in gradients])
        return None, None, *[None if x is None else torch.from_numpy(x) for x in found]


def _differentiable(
    ctx: Any, inputs: tuple[Tensor, ...], gradients: tuple[Any, ...]
) -> list[Tensor | None]:
    """The gradients of the inputs, by torch."""
    inputs = tuple([x.view_as(x) for x in inputs])  # one may depend on another
    outputs = ctx.plain(*inputs)
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
    needs = ctx.needs_input_grad[2:]
    wanted = [x for x, is_needed in zip(inputs, needs, strict=True) if is_needed]
    found = iter(
        torch.autograd.grad(
            [o for o, _ in pairs],
            wanted,
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    )
    return [next(found) if is_needed else None for is_needed in needs]
