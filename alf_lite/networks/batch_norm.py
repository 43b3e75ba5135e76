"""Batch normalization, of layers and of ensembles of layers.

Ioffe and Szegedy 2015 (arXiv:1502.03167); with limits on how far a batch may lie from
all others, Ioffe, "Batch Renormalization", 2017 (arXiv:1702.03275). In critics:
Bhatt et al., "CrossQ", ICLR 2024 (arXiv:1902.05605).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.networks.lean_layers import LinearMap
from alf_lite.utils.checks import check_unused

_trained_rows: Tensor | None = None  # [B] bool of the innermost ``trained_rows``
_frozen_by_batch = False  # within ``statistics_of_batch``


class trained_rows:  # noqa: N801 - used like a function
    """Batches of as many rows are normalized by the statistics of these alone.

    A row that no loss is computed of, such as one that begins at the end of an episode,
    holds whatever was stored there: it shall not move the values of the others.

    Args:
        valid: [B] bool, the rows that have a loss.
    """

    __slots__ = ("_before", "_valid")

    def __init__(self, valid: Tensor) -> None:
        self._valid: Tensor | None = valid

    @classmethod
    def repeated(cls, times: int) -> trained_rows:
        """Those of a batch that consists of so many, one after the other."""
        block = cls.__new__(cls)
        block._valid = None if _trained_rows is None else _trained_rows.repeat(times)
        return block

    def __enter__(self) -> None:
        global _trained_rows  # one for the process: acting takes no statistics
        self._before, _trained_rows = _trained_rows, self._valid

    def __exit__(self, *error: object) -> None:
        global _trained_rows
        _trained_rows = self._before


class statistics_of_batch:  # noqa: N801 - used like a function
    """Frozen layers, too, normalize by the batch within; they keep nothing of it.

    So a target network can see the same rows as the one that is trained, and both are
    normalized alike. Needs training mode.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        global _frozen_by_batch
        self._before, _frozen_by_batch = _frozen_by_batch, True

    def __exit__(self, *error: object) -> None:
        global _frozen_by_batch
        _frozen_by_batch = self._before


@torch.library.custom_op(
    "alf_lite::snapshot", mutates_args=(), schema="(Tensor x) -> Tensor"
)
def _snapshot(x: Tensor) -> Tensor:
    """A copy. What such an operation returned is kept, not computed again."""
    return x.clone()


@_snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@configurable
class BatchNorm(LinearMap):
    """Features with mean 0 and variance 1 in the batch, times a gain, plus a bias.

    The statistics are those of the batch where the layer itself is trained, and then
    move the running ones: in training mode, with gradient, and if its parameters are
    not frozen. Acting, evaluation, bootstrapped values, target networks, and a policy
    that is improved through frozen critics, use the running statistics, except within
    :class:`statistics_of_batch`. Rows without a loss are no part of either, see
    :class:`trained_rows`.

    Differs from the papers: until ``renorm_after`` batches, and without ``renorm``, a
    batch counts by its own statistics alone; after that the limits are constant.

    Args:
        size: features of one input.
        num_members: of an ensemble, each with statistics and parameters of its own;
            None for a single layer.
        momentum: share that running statistics keep in an update.
        epsilon: added to variances.
        renorm: correct the statistics of a batch to the running ones, within limits.
        renorm_after: batches before this begins.
        max_scale: r_max, how much wider or narrower a batch may be.
        max_shift: d_max, how many deviations it may be away.
    """

    running_mean: Tensor  # [size] or [n, 1, size], as all that follow
    running_variance: Tensor
    num_batches: Tensor  # []

    def __init__(
        self,
        size: int,
        num_members: int | None = None,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        renorm: bool = False,
        renorm_after: int = 100_000,
        max_scale: float = 3.0,
        max_shift: float = 5.0,
    ) -> None:
        super().__init__()
        if not renorm:
            check_unused(
                BatchNorm,
                "renorm is False",
                renorm_after=renorm_after,
                max_scale=max_scale,
                max_shift=max_shift,
            )
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
        if max_scale < 1 or max_shift < 0:
            raise ValueError(
                "expected max_scale of at least 1 and max_shift of at least 0, got "
                f"{max_scale} and {max_shift}"
            )
        shape = (size,) if num_members is None else (num_members, 1, size)
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_variance", torch.ones(shape))
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))
        self._momentum = momentum
        self._epsilon = epsilon
        self._renorm = renorm
        self._renorm_after = renorm_after
        self._max_scale = max_scale
        self._max_shift = max_shift

    def forward(self, x: Tensor) -> Tensor:
        """Any shape [..., size]; of an ensemble [B, size] or [n, B, size].

        Returns:
            The same shape; of an ensemble [n, B, size].
        """
        x = x.float()  # sums need the precision
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        is_trained = weight.requires_grad and torch.is_grad_enabled()
        if self.training and (is_trained or _frozen_by_batch):
            centered, scale, shift = self._of_batch(x, is_trained)
            if shift is not None:
                bias = torch.addcmul(bias, weight, shift)
        else:
            centered = x - self._kept(self.running_mean)
            scale = (self._kept(self.running_variance) + self._epsilon).rsqrt()
        # Both factors first: they are one number for each feature, not for each row.
        return torch.addcmul(bias, centered, weight * scale)

    def _kept(self, statistics: Tensor) -> Tensor:
        """Those that a compiled update reads, which may move them later on.

        Its backward pass computes some things again instead of keeping them, and would
        from the statistics of then (pytorch/pytorch#197039).
        """
        if self.training and torch.compiler.is_compiling():
            return _snapshot(statistics)
        return statistics

    def forward_first(self, x: Tensor) -> Tensor:
        """What the first member makes of [B, size], by its running statistics."""
        scale = self.weight[0] * (self.running_variance[0] + self._epsilon).rsqrt()
        return torch.addcmul(self.bias[0], x - self.running_mean[0], scale)

    def _of_batch(
        self, x: Tensor, is_trained: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """``x`` less its mean, and what it is multiplied by and moved by after that."""
        is_ensemble = self.weight.ndim == 3
        if is_ensemble and x.ndim == 2:
            x = x.expand(len(self.weight), *x.shape)
        rows = (1,) if is_ensemble else tuple(range(x.ndim - 1))
        if x.numel() == self.weight.numel():
            raise ValueError(
                "batch_norm: a batch of one row has no variance to train with. Use "
                "larger mini-batches."
            )
        share = self._share_of_rows(x)
        # Torch's ``var_mean`` of columns takes 20 times as long as these.
        mean = x.mean(rows, keepdim=True) if share is None else _weighted(share, x)
        centered = x - mean  # of a mean [1, size] or [n, 1, size]
        square = centered.square()
        if share is None:
            variance = square.mean(rows, keepdim=True)
        else:
            variance = _weighted(share, square)
        if not is_ensemble:
            variance, mean = variance.flatten(), mean.flatten()
        scale = (variance + self._epsilon).rsqrt()
        shift: Tensor | None = None
        momentum: Any = 1 - self._momentum
        if share is not None:
            momentum = momentum * share.sum()  # 0 of a batch without valid rows
        with torch.no_grad():
            if self._renorm:
                factor, shift = self._correction(mean, scale.reciprocal())
            if is_trained:
                self.running_mean.lerp_(mean, momentum)
                self.running_variance.lerp_(variance, momentum)
                self.num_batches += 1
        if self._renorm:
            scale = scale * factor
        return centered, scale, shift

    def _share_of_rows(self, x: Tensor) -> Tensor | None:
        """[1, B], what each row counts in a mean; None if all count alike."""
        valid = _trained_rows
        if valid is None or x.ndim != max(2, self.weight.ndim):
            return None
        if len(valid) != x.shape[-2]:
            return None  # something else than the rows of the loss
        share = valid.to(x.dtype)
        return (share / share.sum().clamp(min=1)).unsqueeze(0)

    def _correction(self, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """The r and d of algorithm 1: constants, no gradient goes through them."""
        running = (self._kept(self.running_variance) + self._epsilon).sqrt()
        factor = (deviation / running).clamp(1 / self._max_scale, self._max_scale)
        shift = (mean - self._kept(self.running_mean)) / running
        shift = shift.clamp(-self._max_shift, self._max_shift)
        # No question to the processor that computes it
        is_on = self._kept(self.num_batches) >= self._renorm_after
        return torch.where(is_on, factor, 1.0), torch.where(is_on, shift, 0.0)

    def extra_repr(self) -> str:
        return " x ".join(str(n) for n in self.weight.shape if n != 1)


def _weighted(share: Tensor, x: Tensor) -> Tensor:
    """Sums over rows: of [1, B] and [(n,) B, size]."""
    if torch.is_autocast_enabled(x.device.type):  # it would round a product
        return (share.mT * x).sum(-2, keepdim=True)
    return share @ x


def normalizes_by_batch(module: nn.Module) -> bool:
    """Whether it is a layer whose output for a row depends on the others."""
    return isinstance(module, BatchNorm | nn.modules.batchnorm._BatchNorm)


def make_batch_norm(
    batch_norm: object, size: int, num_members: int | None = None
) -> list[nn.Module]:
    """The layer in a list, which is empty if there is none.

    Args:
        batch_norm: whether there is one, or what builds it.
        size: features of one input.
        num_members: of an ensemble.
    """
    if not batch_norm:
        return []
    ctor = BatchNorm if batch_norm is True else batch_norm
    if not callable(ctor):
        raise TypeError(
            f"batch_norm: expected True, False or a constructor, got {batch_norm!r}"
        )
    return [cast(nn.Module, ctor(size, num_members))]
