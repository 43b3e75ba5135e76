"""Torch's optimizers without its compiler, in which nobody traces a graph of theirs.

To make one, and to make its first step, torch would load the compiler: two seconds of
CPU time and 70 MiB. Once somebody else has loaded it, torch does as it wants to.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

# Private parts of torch. Where they are gone, it loads its compiler.
_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_OWN_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_decorate: Any = getattr(torch_optimizer, "_use_grad_for_differentiable", None)


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Inside, optimizers are made; the compiler is not told to leave that alone."""
    method = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if method is None or "torch._dynamo" in sys.modules:
        yield
        return
    vars(method)["__dynamo_disable"] = method  # see torch._compile._disable_dynamo
    try:
        yield
    finally:
        vars(method).pop("__dynamo_disable", None)


def step_without_compiler(optimizer: torch.optim.Optimizer) -> None:
    """``optimizer.step()``, which would ask the compiler for a break of its graph."""
    body = None if "torch._dynamo" in sys.modules else _body_of_step(optimizer)
    if body is None:
        optimizer.step()
        return
    with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
        body(optimizer)


def _body_of_step(optimizer: Any) -> Callable[[Any], object] | None:
    """What torch's own step does, if there are no hooks before it and after it."""
    with_break: Any = getattr(type(optimizer).step, "__wrapped__", None)
    code = getattr(with_break, "__code__", None)
    if _decorate is None or code is not _decorate(_body_of_step).__code__:
        return None
    hooks = [getattr(torch_optimizer, name, True) for name in _HOOKS]
    hooks += [getattr(optimizer, name, True) for name in _OWN_HOOKS]
    if any(hooks) or "step" in vars(optimizer):
        return None
    body: Callable[[Any], object] = with_break.__wrapped__
    return body
