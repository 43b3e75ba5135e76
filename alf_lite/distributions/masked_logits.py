"""Logits without the values that are ruled out.

A value that is ruled out gets a very low but finite logit. Its probability is exactly
0, and log-probabilities, entropies, divergences and their gradients stay finite.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mask_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """Of categories: [..., n] and bool [..., n] → [..., n].

    Where none is allowed, all are equally likely.
    """
    return logits.masked_fill(~allowed, -_large(logits.dtype))


def mask_log_odds(log_odds: Tensor, allowed: Tensor) -> Tensor:
    """Of binary choices: [...] and bool [..., 2], of 0 and of 1, → [...].

    Where none is allowed, 1 is chosen.
    """
    large = _large(log_odds.dtype)
    without_one = log_odds.masked_fill(~allowed[..., 1], -large)
    return without_one.masked_fill(~allowed[..., 0], large)


def _large(dtype: torch.dtype) -> float:
    """Leaves room for sums over many components and products with advantages.

    Also in half precision it is less than what pads components with fewer values.
    """
    return min(1e30, torch.finfo(dtype).max / 4)
