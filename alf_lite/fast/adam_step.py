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
    steps: list[Tensor]
    one: Tensor  # for each parameter 1 if it is in here, else 0


class FusedAdamStep:
    """Steps a fused ``torch.optim.Adam`` or ``AdamW``, whose moments exist.

    What it needs is looked up once: make a new one after a state was loaded. The
    counters of steps become views of one tensor, to which one call adds.

    Args:
        optimizer: with one group of parameters on one device, all of them floats.
    """

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        (group,) = optimizer.param_groups
        self._optimizer, self._group = optimizer, group
        self._parameters: list[Tensor] = list(group["params"])
        self._states = [optimizer.state[parameter] for parameter in self._parameters]
        self._steps = torch.stack([state["step"] for state in self._states])
        for state, step in zip(self._states, self._steps.unbind(), strict=True):
            state["step"] = step
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
            return False
        part = self._whole
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if len(gradients) < len(self._parameters):
            part = self._part_with(tuple(p.grad is not None for p in self._parameters))
        if gradients:
            self._steps.add_(part.one)
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
                self._steps.addcmul_(part.one, skip, value=-1)
        for hook in itertools.chain(
            optimizer._optimizer_step_post_hooks.values(),
            _POST_HOOKS.values(),
        ):
            hook(optimizer, (), {})
        return True

    def _part_with(self, has_gradient: tuple[bool, ...]) -> _Part:
        if has_gradient not in self._parts:
            states = [*itertools.compress(self._states, has_gradient)]
            amsgrad = self._group["amsgrad"]
            keys = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
            self._parts[has_gradient] = _Part(
                parameters=[*itertools.compress(self._parameters, has_gradient)],
                moments=[
                    [state[key] for state in states] if amsgrad or i < 2 else []
                    for i, key in enumerate(keys)
                ],
                steps=[state["step"] for state in states],
                one=self._steps.new_tensor(has_gradient),
            )
        return self._parts[has_gradient]


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
    if any(not optimizer.state.get(p) for p in parameters):
        if not _CAN_BEGIN or any(
            p.grad is None or p.grad.is_sparse for p in parameters
        ):
            return None  # without a gradient so far
        # As torch's first step does, which would load its compiler.
        optimizer._init_group(groups[0], *([] for _ in range(6)))
    return FusedAdamStep(optimizer)


def _decays_apart(optimizer: torch.optim.Adam) -> bool:
    return isinstance(optimizer, torch.optim.AdamW) or bool(
        optimizer.param_groups[0].get("decoupled_weight_decay")
    )
