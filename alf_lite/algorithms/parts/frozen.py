"""Evaluating a module without training it."""

from __future__ import annotations

from types import TracebackType

from torch import nn


class Frozen:
    """What ``module`` computes in a ``with`` block has gradient to its inputs only.

    A policy is improved through a critic in this way, within the same backward pass
    that trains the critic on something else. The parameters are left as they were.

    Args:
        module: its parameters are looked up at the first use.
    """

    def __init__(self, module: nn.Module) -> None:
        # A tuple, so that an owner that is a module does not take it for a part.
        self._module = (module,)
        self._parameters: list[nn.Parameter] | None = None
        self._frozen: list[nn.Parameter] = []

    def __enter__(self) -> None:
        if self._parameters is None:
            self._parameters = list(self._module[0].parameters())
        self._frozen = [p for p in self._parameters if p.requires_grad]
        for parameter in self._frozen:
            parameter.requires_grad_(False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for parameter in self._frozen:
            parameter.requires_grad_(True)
