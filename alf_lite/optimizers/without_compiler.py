"""Torch's optimizers without its compiler, in which nobody traces a graph of theirs.

To make one, to load it and to make its first step, torch would load the compiler: two
seconds of CPU time and 70 MiB. Once somebody has loaded it, torch does as it wants to.
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
_LEFT_ALONE = ("add_param_group", "load_state_dict", "state_dict")
_OWN_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_decorate: Any = getattr(torch_optimizer, "_use_grad_for_differentiable", None)
_WITH_BREAK = None if _decorate is None else _decorate(lambda: None).__code__


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Inside, making and loading optimizers asks no compiler to leave that alone."""
    found: list[Any] = [getattr(torch.optim.Optimizer, name) for name in _LEFT_ALONE]
    methods = [method.__wrapped__ for method in found if hasattr(method, "__wrapped__")]
    if "torch._dynamo" in sys.modules:
        methods = []
    for method in methods:  # see torch._compile._disable_dynamo
        vars(method)["__dynamo_disable"] = method
    try:
        yield
    finally:
        for method in methods:
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
    if code is None or code is not _WITH_BREAK:
        return None
    hooks = [getattr(torch_optimizer, name, True) for name in _HOOKS]
    hooks += [getattr(optimizer, name, True) for name in _OWN_HOOKS]
    if any(hooks) or "step" in vars(optimizer):
        return None
    body: Callable[[Any], object] = with_break.__wrapped__
    return body
