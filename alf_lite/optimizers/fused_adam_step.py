"""A step of torch's fused Adam without what surrounds its kernel.

``torch.optim.Adam.step`` looks up every parameter and its moments, groups them by
device and marks itself for the profiler. On the CPU that takes twice as long as the
kernel does for networks of 64 units, at every update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

# Private parts of torch. Where they are gone, torch makes its own steps.
_PRE_HOOKS: Any = getattr(torch_optimizer, "_global_optimizer_pre_hooks", None)
_POST_HOOKS: Any = getattr(torch_optimizer, "_global_optimizer_post_hooks", None)
_HAS_KERNELS = hasattr(torch, "_fused_adam_") and hasattr(torch, "_fused_adamw_")


class FusedAdamStep:
    """Steps a fused ``torch.optim.Adam`` or ``AdamW``, which has made a step before.

    What it needs is looked up once: make a new one after a state was loaded.

    Args:
        optimizer: with one group of parameters on one device, all of them floats.
    """

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        (group,) = optimizer.param_groups
        self._optimizer = optimizer
        self._group = group
        self._parameters: list[Tensor] = list(group["params"])
        states = [optimizer.state[parameter] for parameter in self._parameters]
        self._moments: list[list[Tensor]] = [
            [state[key] for state in states] for key in ("exp_avg", "exp_avg_sq")
        ]
        self._moments.append(
            [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else []
        )
        self._states = states
        self._steps: list[Tensor] = [state["step"] for state in states]
        self._counters = self._steps
        self._share_counter()
        self._kernel: Callable[..., None] = (
            torch._fused_adamw_ if _decays_apart(optimizer) else torch._fused_adam_
        )

    @torch.no_grad()
    def __call__(self) -> bool:
        """Moves the parameters by their gradients, as ``optimizer.step()`` does.

        Returns:
            Whether it could: not if a gradient is missing or a hook may change things.
        """
        gradients = [parameter.grad for parameter in self._parameters]
        optimizer, group = self._optimizer, self._group
        if (
            any(gradient is None for gradient in gradients)
            or optimizer._optimizer_step_pre_hooks
            or _PRE_HOOKS
        ):
            self._part_counters()
            return False
        torch._foreach_add_(self._counters, 1)
        beta1, beta2 = group["betas"]
        self._kernel(
            self._parameters,
            gradients,
            *self._moments,
            self._steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=group["amsgrad"],
            maximize=group["maximize"],
            grad_scale=None,
            found_inf=None,
        )
        for hook in itertools.chain(
            optimizer._optimizer_step_post_hooks.values(),
            _POST_HOOKS.values(),
        ):
            hook(optimizer, (), {})
        return True

    def _share_counter(self) -> None:
        """Counts once for all parameters, if they have made as many steps."""
        first = self._steps[0]
        if torch.stack(self._steps).eq(first).all():
            self._counters = [first]
            self._steps = [first] * len(self._steps)
            for state in self._states:
                state["step"] = first

    def _part_counters(self) -> None:
        """As torch's own step wants them: one for each parameter."""
        if self._counters is self._steps:
            return
        self._steps = [step.clone() for step in self._steps]
        self._counters = self._steps
        for state, step in zip(self._states, self._steps, strict=True):
            state["step"] = step


def fused_adam_step(optimizer: torch.optim.Optimizer) -> FusedAdamStep | None:
    """The step of an optimizer that has made one before, if it is one of these."""
    if _PRE_HOOKS is None or _POST_HOOKS is None or not _HAS_KERNELS:
        return None
    # Not of a subclass, whose step may be another one.
    if not (
        isinstance(optimizer, torch.optim.Adam)
        and type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
    ):
        return None
    groups = optimizer.param_groups
    if len(groups) != 1 or not groups[0]["fused"]:
        return None
    parameters: list[Any] = groups[0]["params"]
    if len({(p.device, p.dtype) for p in parameters}) != 1:
        return None
    if any(not optimizer.state.get(p) for p in parameters):
        return None  # without a gradient so far
    return FusedAdamStep(optimizer)


def _decays_apart(optimizer: torch.optim.Adam) -> bool:
    return isinstance(optimizer, torch.optim.AdamW) or bool(
        optimizer.param_groups[0].get("decoupled_weight_decay")
    )
