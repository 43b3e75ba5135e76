"""Element-wise losses, and statistics over the valid steps of a batch.

A mask ``valid`` [T, B] is True where a step counts. Tensors [T, B, ...] are masked
along their first two dimensions. What stands at the other steps does not matter, not
even NaN.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from alf_lite.errors import ConfigError
from alf_lite.fast import quick
from alf_lite.utils.ranks import ranks
from alf_lite.utils.tensor_utils import expand_dims_as

_EPSILON = 1e-8  # against division by almost 0
_ROUNDING = 4 * float(np.finfo(np.float32).eps)


def squared(x: Tensor, y: Tensor) -> Tensor:
    """(x − y)², not halved.

    Raises:
        ValueError: if the shapes differ: broadcasting [B] against [B, 1] is a mistake
            that no error would show.
    """
    _check_same_shape(x, y, "squared")
    return functional.mse_loss(x, y, reduction="none")


def huber(x: Tensor, y: Tensor, delta: float = 1.0) -> Tensor:
    """½ (x − y)² where |x − y| ≤ δ, and δ (|x − y| − ½ δ) beyond.

    Raises:
        ValueError: if the shapes differ or δ is not positive.
    """
    _check_same_shape(x, y, "huber")
    return functional.huber_loss(x, y, reduction="none", delta=delta)


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(|x| + 1), Hafner et al. 2023 (arXiv:2301.04104), eq. 9."""
    return x.sign() * x.abs().log1p()


def symexp(y: Tensor) -> Tensor:
    """The inverse of :func:`symlog`: sign(y) (exp|y| − 1)."""
    return y.sign() * y.abs().expm1()


def expectile_weights(error: Tensor, expectile: float) -> Tensor:
    """|τ − 1(u < 0)|: [...] → [...], without gradient.

    The number v that minimises Σ |τ − 1(x − v < 0)| (x − v)² is the τ-expectile of x:
    the mean for τ = 1/2, and near the maximum for τ near 1 (Newey and Powell 1987).

    Args:
        error: u, target − prediction.
        expectile: τ in (0, 1).
    """
    return torch.where(error.detach() < 0, 1 - expectile, expectile)


def exponential_weights(
    advantage: Tensor, inverse_temperature: float, max_weight: float
) -> Tensor:
    """min(exp(β A), w_max): [...] → [...], without gradient.

    Never infinite, however large the advantage.

    Args:
        advantage: A.
        inverse_temperature: β.
        max_weight: w_max.
    """
    exponent = inverse_temperature * advantage.detach()
    return exponent.clamp(max=math.log(max_weight)).exp()


def masked_mean(
    x: Tensor, valid: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Mean of the entries of the valid steps, each multiplied with its weight.

        Σ_{t,b} valid · weight · x / Σ_{t,b} valid

    The weights scale a step's part in the gradient, as importance weights must; they
    do not change what the sum is divided by.

    Args:
        x: [T, B] or [T, B, ...].
        valid: [T, B] bool; None: all.
        weights: [B] or [T, B]; None: 1.

    Returns:
        []; 0 if no step is valid.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if weights is not None:
        if weights.ndim < x.ndim and weights.shape == x.shape[1 : 1 + weights.ndim]:
            weights = weights.expand(x.shape[: 1 + weights.ndim])  # [B] → [T, B]
        x = expand_dims_as(weights, x) * x
    return x.mean() if valid is None else _masked_mean(x, valid)


@quick
def _masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    total, count = _masked_sum_and_count(x, valid)
    return total / count.clamp(min=1)


class _Parts(threading.local):
    """Whether a loss is that of a part of a batch, in this thread."""

    count = 0


_parts = _Parts()


@contextlib.contextmanager
def losses_of_part() -> Iterator[None]:
    """In the block a statistic over a batch is refused: only a part of it is there."""
    _parts.count += 1
    try:
        yield
    finally:
        _parts.count -= 1


def _check_whole(what: str) -> None:
    if _parts.count:
        raise ConfigError(
            f"TrainerConfig.gradient_accumulation: the loss takes {what} over its "
            "batch, which a part of it does not have. Set gradient_accumulation = 1, "
            "or change the algorithm's settings so that it does not."
        )


@torch.no_grad()
def batch_mean(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """As :func:`masked_mean` without gradient, over the batches of all ranks.

    For what decides about an update, or scales it, and must be equal on all ranks.

    Args:
        x: [T, B] or [T, B, ...].
        valid: [T, B] bool; None: all.

    Raises:
        ConfigError: if there is only a part of the batch.
    """
    _check_whole("a mean")
    if ranks.size == 1:
        return masked_mean(x, valid)
    valid = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
    sums = torch.stack(_masked_sum_and_count(x.double(), valid))
    total, count = ranks.sum_(sums)
    return (total / count.clamp(min=1)).to(x.dtype)


def normalize(
    x: Tensor, valid: Tensor | None = None, epsilon: float = _EPSILON
) -> Tensor:
    """(x − mean) / (std + ε) over the valid steps; 0 at the others.

    The standard deviation is the population's, so that a single step gives 0, not NaN.
    Entries that are all equal give 0 too. With several ranks, mean and deviation are
    those of the batches of all.

    Args:
        x: [T, B] or any other shape.
        valid: bool, of the shape of ``x`` or its first dimensions; None: all.
        epsilon: ε.

    Raises:
        ConfigError: if there is only a part of the batch.
    """
    _check_whole("mean and deviation")
    if ranks.size > 1:
        return _normalized_by_all([(x, valid)], epsilon)[0]
    return _normalized(x, valid, epsilon)


@quick
def _normalized(x: Tensor, valid: Tensor | None, epsilon: float) -> Tensor:
    deviation, std = _deviation_and_std(x, valid)
    # Without spread there is nothing to normalize.
    return torch.where(std > 0, deviation / (std + epsilon), 0.0)


@torch.no_grad()
def normalize_each(batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """:func:`normalize` of each of several batches, without gradient.

    Ranks meet once for all of them. That is what this is for: a collective takes about
    as long as a small update.

    Args:
        batches: of numbers, and which of them are valid; of any shape, as there. All
            ranks give as many.
    """
    if ranks.size == 1:
        return [normalize(x, valid) for x, valid in batches]
    return _normalized_by_all(batches, _EPSILON)


def _normalized_by_all(
    batches: Sequence[tuple[Tensor, Tensor | None]], epsilon: float
) -> list[Tensor]:
    """:func:`normalize` over the batches of all ranks; no gradient through the sums."""
    parts = [part for part, _ in batches]
    sizes = [part.numel() for part in parts]
    x = torch.cat([part.flatten() for part in parts])
    mask = torch.cat([_mask_of(part, valid).flatten() for part, valid in batches])
    with torch.no_grad():
        exact = torch.where(mask, x, 0.0).double()  # so that the squares can be summed
        rows = torch.stack((exact, exact.square(), mask.double()), dim=1)
        sums = torch.stack([of_part.sum(dim=0) for of_part in rows.split(sizes)])
        total, squares, count = ranks.sum_(sums).unbind(dim=1)
        mean = total / count.clamp(min=1)
        std = (squares / count.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
        has_spread = (std > 0) & (std > _ROUNDING * mean.abs())
        scale = torch.where(has_spread, 1 / (std + epsilon), 0.0)
        mean, scale = (  # of every entry
            torch.cat([n.expand(size) for n, size in zip(of_parts, sizes, strict=True)])
            for of_parts in (mean.to(x.dtype), scale.to(x.dtype))
        )
    normalized = torch.where(mask, x - mean, 0.0) * scale
    return [
        result.view(part.shape)
        for result, part in zip(normalized.split(sizes), parts, strict=True)
    ]


def _mask_of(x: Tensor, valid: Tensor | None) -> Tensor:
    """``valid`` in the shape of ``x``."""
    if valid is None:
        return torch.ones_like(x, dtype=torch.bool)
    return expand_dims_as(valid, x).expand_as(x)


def explained_variance(
    prediction: Tensor, target: Tensor, valid: Tensor | None = None
) -> Tensor:
    """1 − Var(target − prediction) / Var(target) over the valid steps.

    1: perfect up to a constant. 0: no better than a constant. Negative: worse.

    Args:
        prediction: [T, B] or any other shape.
        target: the same.
        valid: bool, of the shape of ``target`` or its first dimensions; None: all.

    Returns:
        []; 0 if the targets do not vary.

    Raises:
        ValueError: if the shapes do not fit.
    """
    _check_same_shape(prediction, target, "explained_variance")
    _, std = _deviation_and_std(target, valid)
    _, residual_std = _deviation_and_std(target - prediction, valid)
    return torch.where(std > 0, 1 - (residual_std / std).square(), 0.0)


def _deviation_and_std(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The deviation from the mean, 0 where not valid, and the standard deviation [].

    The latter is 0 where it is only the rounding of the mean of equal entries.
    """
    if valid is None:
        count: Tensor | int = x.numel()
        mean = x.mean()
        deviation = x - mean
    else:
        total, count = _masked_sum_and_count(x, valid)
        count = count.clamp(min=1)
        mean = total / count
        deviation = torch.where(expand_dims_as(valid, x), x - mean, 0.0)
    std = torch.linalg.vector_norm(deviation) / count**0.5
    rounding = 4 * torch.finfo(x.dtype).eps * mean.abs()
    return deviation, torch.where(std > rounding, std, 0.0)


def _masked_sum_and_count(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the entries of the valid steps and their number."""
    count = valid.count_nonzero()
    if valid.shape != x.shape:
        count = count * (x.numel() // max(valid.numel(), 1))
        valid = expand_dims_as(valid, x)
    return torch.where(valid, x, 0.0).sum(), count


def _check_same_shape(x: Tensor, y: Tensor, function: str) -> None:
    if x.shape != y.shape:
        raise ValueError(
            f"{function}: the shapes must be equal, got {list(x.shape)} and "
            f"{list(y.shape)}"
        )
