"""The optimizers that confs choose from. In a conf: ``@Adam()``, ``Adam.lr = 3e-4``."""

from __future__ import annotations

import torch

from alf_lite.config import configurable
from alf_lite.optimizers.optimizer import Optimizer
from alf_lite.optimizers.parameter_options import ParameterOptions
from alf_lite.utils.checks import check_left_out
from alf_lite.utils.schedulers import Scheduled

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "RMSprop"]


@configurable
class Adam(Optimizer):
    """Kingma and Ba 2015 (arXiv:1412.6980)."""

    def __init__(
        self,
        lr: Scheduled = 1e-3,
        *,
        gradient_clipping: float | None = None,
        parameter_options: ParameterOptions | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            torch.optim.Adam,
            lr,
            gradient_clipping,
            parameter_options,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
        )


@configurable
class AdamW(Optimizer):
    """Adam with decoupled weight decay, Loshchilov and Hutter (arXiv:1711.05101)."""

    def __init__(
        self,
        lr: Scheduled = 1e-3,
        *,
        gradient_clipping: float | None = None,
        parameter_options: ParameterOptions | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            torch.optim.AdamW,
            lr,
            gradient_clipping,
            parameter_options,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
        )


@configurable
class SGD(Optimizer):
    """Stochastic gradient descent, with or without momentum."""

    def __init__(
        self,
        lr: Scheduled = 1e-2,
        *,
        gradient_clipping: float | None = None,
        parameter_options: ParameterOptions | None = None,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if not momentum and not parameter_options:  # some parameters may have one
            check_left_out("momentum is 0", dampening=dampening or None)
        super().__init__(
            torch.optim.SGD,
            lr,
            gradient_clipping,
            parameter_options,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )


@configurable
class RMSprop(Optimizer):
    """Gradients divided by a running root mean square, Hinton 2012 (lecture 6e)."""

    def __init__(
        self,
        lr: Scheduled = 1e-2,
        *,
        gradient_clipping: float | None = None,
        parameter_options: ParameterOptions | None = None,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            torch.optim.RMSprop,
            lr,
            gradient_clipping,
            parameter_options,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
        )
