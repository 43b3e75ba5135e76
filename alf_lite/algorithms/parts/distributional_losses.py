"""Losses between return distributions, by quantiles or by a fixed support."""

from __future__ import annotations

import torch
from torch import Tensor


def quantile_huber(quantiles: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile regression with the Huber loss.

    Dabney et al. 2018 (arXiv:1710.10044), eq. 10 of the paper, with N quantiles θ_i at
    the midpoints τ̂_i = (i + ½) / N, i = 0 … N-1, and M equally likely targets y_j:

        Σ_i (1/M) Σ_j |τ̂_i − 1{y_j < θ_i}| · L_κ(y_j − θ_i) / κ

    Args:
        quantiles: [..., N], θ.
        targets: [..., M], y; usually detached.
        kappa: κ > 0, where the loss goes from quadratic to linear.

    Returns:
        [...].

    Raises:
        ValueError: if the shapes do not fit or κ is not positive.
    """
    if quantiles.shape[:-1] != targets.shape[:-1]:
        raise ValueError(
            f"quantile_huber: quantiles {list(quantiles.shape)} and targets "
            f"{list(targets.shape)} must agree in all but the last dimension"
        )
    if not kappa > 0:
        raise ValueError(f"quantile_huber: kappa must be positive, got {kappa}")
    error = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., N, M]
    size = error.abs()
    quadratic = size.clamp(max=kappa)
    huber = 0.5 * quadratic.square() + kappa * (size - quadratic)
    num_quantiles = quantiles.shape[-1]
    midpoints = (torch.arange(num_quantiles, device=error.device) + 0.5) / num_quantiles
    weight = (midpoints.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    return (weight * huber / kappa).mean(-1).sum(-1)


def project_onto_support(positions: Tensor, probs: Tensor, support: Tensor) -> Tensor:
    """Distributes probabilities at any positions over the atoms of a fixed support.

    Bellemare et al. 2017 (arXiv:1707.06887), eq. 7 of the paper: every position is
    clipped to the support, and its probability is split between the two nearest atoms
    in proportion to their closeness.

        p_i = Σ_j [1 − |clip(x_j) − z_i| / Δz]₀¹ · q_j

    Args:
        positions: [..., M], x.
        probs: [..., M], q, which sum to 1. The two broadcast.
        support: [N], z, equally spaced and rising, N > 1.

    Returns:
        [..., N], which sum to 1.
    """
    positions, probs = torch.broadcast_tensors(positions, probs)
    num_atoms = support.shape[0]
    low, high = support[0], support[-1]
    spacing = (high - low) / (num_atoms - 1)
    # Rounding must not go beyond the last atom.
    rank = ((positions.clamp(low, high) - low) / spacing).clamp(0, num_atoms - 1)
    below = rank.floor()
    to_upper = rank - below
    lower = below.long()
    upper = (lower + 1).clamp(max=num_atoms - 1)
    projected = probs.new_zeros((*probs.shape[:-1], num_atoms))
    projected.scatter_add_(-1, lower, probs * (1 - to_upper))
    return projected.scatter_add_(-1, upper, probs * to_upper)


def cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:
    """−Σ_i p_i log softmax(logits)_i over the last dimension: [..., N] twice → [...].

    Its gradient is that of the divergence KL(p ‖ softmax(logits)).
    """
    return -(target_probs * logits.log_softmax(-1)).sum(-1)
