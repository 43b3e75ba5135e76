"""How large a mini-batch is worth it: the gradient noise scale.

McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162,
appendix A.1. With g_t the gradient of one mini-batch, and the mean of K of them, in
which the parameters hardly move, for one of a mini-batch that is K times as large,

    s = mean_t |g_t|²,   b = |mean_t g_t|²
    |G|² ≈ (K b − s) / (K − 1),   tr Σ ≈ K (s − b) / (K − 1)
    noise scale = tr Σ / |G|²

in mini-batches. Below 1, gradients hardly differ, and half the mini-batch does as well;
far above 1 a larger one, with a larger learning rate, takes fewer updates.

Differences from the paper: its two sizes are those of the parts of one update; here
they are single updates and K of them, so that nothing is computed twice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.trainers.hooks import Hook, Training
from alf_lite.utils import summary


class NoiseScale:
    """The estimate for one optimizer, which calls it at every update.

    Args:
        num_updates: K, at least 2.
        decay: of the means of |G|² and tr Σ, from one estimate to the next.
    """

    def __init__(self, num_updates: int, decay: float) -> None:
        self._num_updates = num_updates
        self._decay = decay
        self._sums: list[Tensor] = []
        self._squares: Tensor | float = 0.0
        self._count = 0
        self._signal: Tensor | float = 0.0
        self._noise: Tensor | float = 0.0

    @property
    def value(self) -> float:
        """In mini-batches; NaN while nothing is known, or |G|² is lost in noise."""
        signal = float(self._signal)
        return float(self._noise) / signal if signal > 0 else math.nan

    @torch.no_grad()
    def __call__(self, gradients: list[Tensor], norm: Tensor) -> None:
        """Takes the gradients of an update; those of fewer parameters are left out."""
        if len(gradients) < len(self._sums):
            return
        if self._count and len(gradients) == len(self._sums):
            torch._foreach_add_(self._sums, gradients)
        else:
            self._sums = [g.clone() for g in gradients]
            self._squares, self._count = 0.0, 0
        self._squares = self._squares + norm.square()
        self._count += 1
        if self._count < self._num_updates:
            return
        k, self._count = self._num_updates, 0
        s = self._squares / k
        b = torch.stack(torch._foreach_norm(self._sums)).square().sum() / k**2
        self._signal = self._decay * self._signal + (k * b - s) / (k - 1)
        self._noise = self._decay * self._noise + k * (s - b) / (k - 1)


@configurable
class GradientNoiseScale(Hook):
    """Writes ``optimizer/OWNER/noise_scale``, in mini-batches, for every optimizer.

    Costs the sum of the gradients at each update. A resumed run estimates anew.

    Args:
        num_updates: K, at least 2.
        decay: in [0, 1), of the means that are divided.
        priority: see :class:`Hook`.
    """

    def __init__(
        self, num_updates: int = 10, decay: float = 0.95, priority: int = 50
    ) -> None:
        super().__init__(priority)
        if num_updates < 2 or not 0 <= decay < 1:
            raise ConfigError(
                "GradientNoiseScale: expected num_updates of 2 or more and a decay in "
                f"[0, 1), got {num_updates} and {decay}"
            )
        self._make = lambda: NoiseScale(num_updates, decay)
        self.scales: dict[str, NoiseScale] = {}

    def before_train(self, training: Training) -> None:
        if training.algorithm.config.cuda_graphs:
            raise ConfigError(
                "GradientNoiseScale looks at every update, which "
                "TrainerConfig.cuda_graphs repeats unseen. Leave one of them out"
            )
        for name, optimizer in training.algorithm.optimizers():
            self.scales[name] = self._make()
            optimizer.watch(self.scales[name])

    def after_iter(self, training: Training) -> None:
        if summary.should_record():
            for name, scale in self.scales.items():
                if not math.isnan(value := scale.value):
                    summary.scalar(f"optimizer/{name}/noise_scale", value)

    def after_train(self, training: Training) -> None:
        for name, optimizer in training.algorithm.optimizers():
            if name in self.scales:
                optimizer.unwatch(self.scales.pop(name))
