"""One node of torch's graph for what is computed in numpy, and so is its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# From gradients of the outputs, None where there is none, to those of the inputs
Pullback = Callable[..., tuple[np.ndarray | None, ...]]
# From arrays to the outputs and their pullback
NumpyFunction = Callable[..., tuple[tuple[np.ndarray, ...], Pullback]]

# From which gradients are needed, and the gradients of the outputs, to those of inputs
Backward = Callable[..., Sequence[Tensor | None]]
# Gives the outputs, a tensor or several, and how gradients go back
Compute = Callable[[], tuple[Any, Backward]]


def node(
    compute: Compute, in_torch: Callable[..., Any] | None, *inputs: Tensor | None
) -> Any:
    """What ``compute`` gives, differentiable in the inputs.

    Args:
        compute: without a graph; leaves the inputs as they are.
        in_torch: the same of the inputs, for gradients of gradients; None: there are
            none.
        inputs: which may need a gradient.
    """
    return _Node.apply(compute, in_torch, *inputs)


def by_numpy(
    function: NumpyFunction, in_torch: Callable[..., Any], *inputs: Tensor
) -> tuple[Tensor, ...]:
    """The outputs of ``function``, differentiable in its inputs.

    Args:
        function: called with the inputs as arrays, which it leaves as they are.
        in_torch: see :func:`node`.
        inputs: float32 on the CPU, see :func:`~alf_lite.fast.may_use_numpy`.
    """

    def compute() -> tuple[tuple[Tensor, ...], Backward]:
        outputs, pullback = function(*[x.detach().numpy() for x in inputs])

        def backward(needs: Any, *gradients: Tensor | None) -> list[Tensor | None]:
            found = pullback(*[None if g is None else g.numpy() for g in gradients])
            return [None if x is None else torch.from_numpy(x) for x in found]

        return tuple([torch.from_numpy(x) for x in outputs]), backward

    if torch.is_grad_enabled():
        return node(compute, in_torch, *inputs)
    with np.errstate(all="ignore"):
        return compute()[0]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Any, in_torch: Any, *inputs: Any) -> Any:
        ctx.save_for_backward(*inputs)  # notices when they are changed
        ctx.in_torch = in_torch
        with np.errstate(all="ignore"):  # torch does not warn either
            outputs, ctx.pull_back = compute()
        ctx.set_materialize_grads(isinstance(outputs, Tensor))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        inputs, needs = ctx.saved_tensors, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *_differentiable(ctx.in_torch, inputs, gradients, needs)
        with np.errstate(all="ignore"):
            return None, None, *ctx.pull_back(needs, *gradients)


def _differentiable(
    in_torch: Callable[..., Any] | None,
    inputs: Sequence[Any],
    gradients: Sequence[Any],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of the inputs, by torch."""
    if in_torch is None:
        raise RuntimeError("the gradient of a mean loss has no gradient of its own")
    # One may depend on another
    inputs = [None if x is None else x.view_as(x) for x in inputs]
    outputs = in_torch(*inputs)
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
    wanted = [x for x, is_needed in zip(inputs, needs, strict=True) if is_needed]
    found = iter(
        torch.autograd.grad(
            *([o for o, _ in pairs], wanted, [g for _, g in pairs]),
            create_graph=True,
            allow_unused=True,
        )
    )
    return [next(found) if is_needed else None for is_needed in needs]
