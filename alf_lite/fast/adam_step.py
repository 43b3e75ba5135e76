"""A step of torch's fused Adam without what surrounds its kernel.

``torch.optim.Adam.step`` looks up every parameter and its moments, groups them by
device and marks itself for the profiler. On the CPU that takes twice as long as the
kernel does for networks of 64 units, at every update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

# Private parts of torch. Where they are gone, torch makes its own steps.
_PRE_HOOKS: Any = getattr(torch_optimizer, "_global_optimizer_pre_hooks", None)
_POST_HOOKS: Any = getattr(torch_optimizer, "_global_optimizer_post_hooks", None)
_HAS_KERNELS = all(hasattr(torch, f"_fused_{name}_") for name in ("adam", "adamw"))
_CAN_BEGIN = hasattr(torch.optim.Adam, "_init_group")


class _Part(NamedTuple):
    """The parameters that have a gradient, with what the kernel takes."""

    parameters: list[Tensor]
    moments: list[list[Tensor]]
    counters: list[Tensor]  # each once
    steps: list[Tensor]  # the counter of each parameter


class FusedAdamStep:
    """Steps a fused ``torch.optim.Adam`` or ``AdamW``, whose moments exist.

    What it needs is looked up once: make a new one after a state was loaded. Parameters
    that always have a gradient together share a counter of their steps.

    Args:
        optimizer: with one group of parameters on one device, all of them floats.
    """

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        (group,) = optimizer.param_groups
        self._optimizer = optimizer
        self._group = group
        self._parameters: list[Tensor] = list(group["params"])
        self._states = [optimizer.state[parameter] for parameter in self._parameters]
        numbers = torch.stack([state["step"] for state in self._states]).tolist()
        self._kinds: list[Any] = numbers  # those of one kind share a counter
        self.layout = 0  # counts how often the counters were made anew
        self._share_counters()
        # By which parameters have a gradient; an actor may be updated more rarely.
        self._parts: dict[tuple[bool, ...], _Part] = {}
        self._whole = self._part_with((True,) * len(self._parameters))
        self._kernel: Callable[..., None] = (
            torch._fused_adamw_ if _decays_apart(optimizer) else torch._fused_adam_
        )

    @torch.no_grad()
    def __call__(self, skip: Tensor | None = None) -> bool:
        """Moves the parameters by their gradients, as ``optimizer.step()`` does.

        Args:
            skip: [] float32 on their device; at 1 everything stays as it is.

        Returns:
            Whether it could: not if a hook, or another ``step`` of this optimizer
            alone, may change things.
        """
        optimizer, group = self._optimizer, self._group
        has_own_step = "step" in optimizer.__dict__
        if optimizer._optimizer_step_pre_hooks or _PRE_HOOKS or has_own_step:
            self.part_counters()
            return False
        part = self._whole
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if len(gradients) < len(self._parameters):
            part = self._part_with(tuple(p.grad is not None for p in self._parameters))
        if gradients:
            torch._foreach_add_(part.counters, 1)
            beta1, beta2 = group["betas"]
            self._kernel(
                part.parameters,
                gradients,
                *part.moments,
                part.steps,
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=group["amsgrad"],
                maximize=group["maximize"],
                grad_scale=None,
                found_inf=skip,
            )
            if skip is not None:
                torch._foreach_sub_(part.counters, [skip] * len(part.counters))
        for hook in itertools.chain(
            optimizer._optimizer_step_post_hooks.values(),
            _POST_HOOKS.values(),
        ):
            hook(optimizer, (), {})
        return True

    def _part_with(self, has_gradient: tuple[bool, ...]) -> _Part:
        if has_gradient not in self._parts:
            kinds = list(zip(self._kinds, has_gradient, strict=True))
            if len(set(kinds)) > len(set(self._kinds)):
                self._kinds = kinds
                self._share_counters()
                self._parts.clear()
                self._whole = self._part_with((True,) * len(kinds))
            chosen = list(itertools.compress(range(len(kinds)), has_gradient))
            states = [self._states[i] for i in chosen]
            keys = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
            amsgrad = self._group["amsgrad"]
            self._parts[has_gradient] = _Part(
                parameters=[self._parameters[i] for i in chosen],
                moments=[
                    [state[key] for state in states] if amsgrad or i < 2 else []
                    for i, key in enumerate(keys)
                ],
                counters=list({id(s["step"]): s["step"] for s in states}.values()),
                steps=[state["step"] for state in states],
            )
        return self._parts[has_gradient]

    def _share_counters(self) -> None:
        """Gives parameters of one kind, with as many steps each, one counter."""
        self.layout += 1
        counters: dict[Any, Tensor] = {}
        for kind, state in zip(self._kinds, self._states, strict=True):
            if kind not in counters:
                counters[kind] = state["step"].clone()
            state["step"] = counters[kind]

    def part_counters(self) -> None:
        """As torch's own step wants them: one for each parameter."""
        for state in self._states:
            state["step"] = state["step"].clone()


def fused(optimizer: torch.optim.Adam) -> FusedAdamStep | None:
    """The step of an optimizer, if it is one of these, and knows all gradients."""
    if _PRE_HOOKS is None or _POST_HOOKS is None or not _HAS_KERNELS:
        return None
    groups = optimizer.param_groups
    if len(groups) != 1 or not groups[0]["fused"]:
        return None
    parameters: list[Any] = groups[0]["params"]
    if len({(p.device, p.dtype) for p in parameters}) != 1:
        return None
    has_begun = all(optimizer.state.get(p) for p in parameters)
    if not has_begun and not _begin(optimizer, parameters):
        return None
    return FusedAdamStep(optimizer)


def _begin(optimizer: Any, parameters: list[Any]) -> bool:
    """Makes the moments, as torch's first step does, which would load its compiler.

    Returns:
        Whether it could. On a CPU torch makes its own steps while a parameter had no
        gradient so far; elsewhere it begins, too, as no graph can repeat those.
    """
    without = [p for p in parameters if p.grad is None]
    if not _CAN_BEGIN or (without and parameters[0].device.type == "cpu"):
        return False
    if any(p.grad is not None and p.grad.is_sparse for p in parameters):
        return False
    for parameter in without:
        parameter.grad = torch.zeros_like(parameter)
    optimizer._init_group(optimizer.param_groups[0], *([] for _ in range(6)))
    for parameter in without:
        parameter.grad = None
    return True


def _decays_apart(optimizer: torch.optim.Adam) -> bool:
    return isinstance(optimizer, torch.optim.AdamW) or bool(
        optimizer.param_groups[0].get("decoupled_weight_decay")
    )
