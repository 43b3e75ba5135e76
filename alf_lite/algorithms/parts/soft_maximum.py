"""The logarithm of a sum of exponentials over all actions: a maximum that is smooth.

Kumar et al. 2020 (arXiv:2006.04779) call it log Σ_a exp Q(s, a). It is at least the
largest value, and its gradient goes to every action in proportion to exp Q / T.
"""

from __future__ import annotations

import math

from torch import Tensor

from alf_lite.distributions.masked_logits import mask_logits


def soft_maximum(
    values: Tensor, temperature: float = 1.0, allowed: Tensor | None = None
) -> Tensor:
    """T log Σ_a exp(v_a / T).

    Args:
        values: [..., A].
        temperature: T > 0; the smaller, the closer to the maximum.
        allowed: bool that broadcasts to ``values``; the others are left out. None: all.

    Returns:
        [...].
    """
    logits = values / temperature
    if allowed is not None:
        logits = mask_logits(logits, allowed)
    return temperature * logits.logsumexp(-1)


def sampled_soft_maximum(
    values: Tensor,
    log_densities: Tensor,
    temperature: float = 1.0,
    allowed: Tensor | None = None,
) -> Tensor:
    """T log Σ_a ∫ exp(v(u, a) / T) du, estimated from samples of u.

    The integral over u is the mean over the S samples of exp(v / T) / p, where p is the
    density that the sample was drawn with. Samples of several distributions may be
    mixed: the estimate of each is unbiased. But a narrow distribution seldom goes where
    most of the integral is, and what it gives then is too low nearly always: never use
    one without another that goes everywhere, such as the uniform one.

    Args:
        values: [S, B, n, A], A values for every sample of each of n critics.
        log_densities: [S, B], log p.
        temperature: T > 0.
        allowed: [B, A] bool; None: all values.

    Returns:
        [B, n].
    """
    logits = values / temperature - log_densities[..., None, None]
    if allowed is not None:
        logits = mask_logits(logits, allowed.unsqueeze(1))
    log_sum = logits.movedim(0, -2).flatten(-2).logsumexp(-1)
    return temperature * (log_sum - math.log(values.shape[0]))
