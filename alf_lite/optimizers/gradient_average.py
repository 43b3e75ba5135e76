"""The gradient of an update whose batch is divided among ranks, in one collective."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from alf_lite.utils.ranks import ranks


class GradientAverage:
    """Averages gradients over all ranks, weighted by the steps that they are means of.

        g = Σ_r c_r g_r / Σ_r c_r

    With c_r valid steps on rank r, whose mean gradient is g_r, this is the mean over
    all valid steps of all ranks. Everything travels in one tensor for each kind of
    parameter; afterwards the gradients are views of it.

    Args:
        parameters: of all optimizers, the same ones in the same order on every rank.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        kinds: dict[tuple[torch.device, torch.dtype], list[Parameter]] = {}
        for parameter in parameters:
            kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        self._parts = [_Part(of_one_kind) for of_one_kind in kinds.values()]

    @torch.no_grad()
    def __call__(self, loss: Tensor, weight: Tensor | float) -> Tensor:
        """Replaces the gradients of the parameters.

        One without gradient on some ranks counts as 0 there; one without gradient on
        all ranks stays without.

        Args:
            loss: [], of this rank.
            weight: c_r.

        Returns:
            [], the average of the losses.
        """
        averages = [part.average(loss, weight) for part in self._parts]
        return averages[0] if averages else loss


class _Part:
    """The parameters of one device and dtype, and the tensor that travels for them."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self._parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        first = parameters[0]
        # The gradients and the loss; the weight, and which gradients there are.
        self._flat = torch.zeros(
            sum(sizes) + len(sizes) + 2, dtype=first.dtype, device=first.device
        )
        *pieces, loss, weight, self._exists = self._flat.split(
            [*sizes, 1, 1, len(sizes)]
        )
        self._averaged = self._flat[: sum(sizes) + 1]
        self._loss, self._weight = loss[0], weight[0]
        self._views = [
            piece.view(parameter.shape)
            for piece, parameter in zip(pieces, parameters, strict=True)
        ]

    def average(self, loss: Tensor, weight: Tensor | float) -> Tensor:
        gradients = [parameter.grad for parameter in self._parameters]
        there = [gradient for gradient in gradients if gradient is not None]
        is_complete = len(there) == len(gradients)
        if is_complete:
            torch._foreach_copy_(self._views, there)
            self._exists.fill_(1.0)
        else:
            self._flat.zero_()
            pairs = zip(self._views, self._exists, gradients, strict=True)
            for view, exists, gradient in pairs:
                if gradient is not None:
                    view.copy_(gradient)
                    exists.fill_(1.0)
        self._loss.copy_(loss.detach())
        self._averaged.mul_(weight)
        self._weight.copy_(torch.as_tensor(weight))
        ranks.sum_(self._flat)
        self._averaged.div_(self._weight.clamp(min=1.0))
        exists_somewhere = [True] * len(gradients)
        if not is_complete:
            exists_somewhere = (self._exists > 0).tolist()
        for parameter, view, exists in zip(
            self._parameters, self._views, exists_somewhere, strict=True
        ):
            parameter.grad = view if exists else None
        return self._loss.clone()
