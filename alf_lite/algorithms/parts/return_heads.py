"""Heads of Q-networks: how their outputs stand for the return of an action.

A head turns the outputs into the expected return, which actions are chosen by, and into
the loss against the return one or several steps later:

| head                 | outputs of an action                      | paper  |
|----------------------|-------------------------------------------|--------|
| `ExpectedReturnHead` | one number, the expected return           | DQN    |
| `QuantileHead`       | N quantiles of the return                 | QR-DQN |
| `CategoricalHead`    | N logits, of the return being near atom i | C51    |
"""

from __future__ import annotations

import abc

import numpy as np
import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.utils import losses
from alf_lite.utils.tensor_utils import DeviceConstants


class ReturnHead(abc.ABC):
    """See the top of this module."""

    num_outputs: int  # N, for every action
    # The output, the only one, is the expected return.
    is_expected_return: bool = False

    @abc.abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """The expected return: [..., N] → [...]."""

    @abc.abstractmethod
    def loss(
        self, outputs: Tensor, next_outputs: Tensor, reward: Tensor, discount: Tensor
    ) -> Tensor:
        """How far ``outputs`` are from reward + discount · next return.

        Args:
            outputs: [..., N], with gradient.
            next_outputs: [..., N], the target network's, without.
            reward: [...], collected on the way.
            discount: [...], γ included; 0 if the episode terminated on the way.

        Returns:
            [...].
        """


@configurable
class ExpectedReturnHead(ReturnHead):
    """The expected return, fitted with the Huber loss.

    Args:
        huber_delta: where the loss goes from quadratic to linear; None: the squared
            error, not halved.
    """

    num_outputs = 1
    is_expected_return = True

    def __init__(self, huber_delta: float | None = 1.0) -> None:
        if huber_delta is not None and not huber_delta > 0:
            raise ValueError(f"huber_delta must be positive or None, got {huber_delta}")
        self._huber_delta = huber_delta

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def loss(
        self, outputs: Tensor, next_outputs: Tensor, reward: Tensor, discount: Tensor
    ) -> Tensor:
        target = reward + discount * self.mean(next_outputs)
        if self._huber_delta is None:
            return losses.squared(self.mean(outputs), target)
        return losses.huber(self.mean(outputs), target, self._huber_delta)

    def loss_and_slope(
        self, value: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """In numpy, the loss of values [...] and its derivative by them."""
        error, delta = value - target, self._huber_delta
        if delta is None:
            return error * error, error + error
        size = np.abs(error)
        loss = np.where(
            size < np.float32(delta),
            np.float32(0.5) * size * size,
            np.float32(delta) * (size - np.float32(0.5 * delta)),
        )
        return loss, np.clip(error, np.float32(-delta), np.float32(delta))


@configurable
class QuantileHead(ReturnHead):
    """Quantile regression, QR-DQN: quantiles at equal distances.

    Dabney et al. 2018 (arXiv:1710.10044).

    Args:
        num_quantiles: N.
        kappa: see :func:`quantile_huber`.
    """

    def __init__(self, num_quantiles: int = 51, kappa: float = 1.0) -> None:
        if num_quantiles < 1:
            raise ValueError(f"num_quantiles must be at least 1, got {num_quantiles}")
        if not kappa > 0:
            raise ValueError(f"kappa must be positive, got {kappa}")
        self.num_outputs = num_quantiles
        self._kappa = kappa

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)

    def loss(
        self, outputs: Tensor, next_outputs: Tensor, reward: Tensor, discount: Tensor
    ) -> Tensor:
        target = reward.unsqueeze(-1) + discount.unsqueeze(-1) * next_outputs
        return quantile_huber(outputs, target, self._kappa)


@configurable
class CategoricalHead(ReturnHead):
    """Categorical returns, C51: probabilities of fixed atoms.

    Bellemare et al. 2017 (arXiv:1707.06887).

    Args:
        v_min: the lowest atom; a lower return counts as this one.
        v_max: the highest atom.
        num_atoms: N, at equal distances.
    """

    def __init__(
        self, v_min: float = -10.0, v_max: float = 10.0, num_atoms: int = 51
    ) -> None:
        if not v_min < v_max:
            raise ValueError(f"v_min must be below v_max, got {v_min} and {v_max}")
        if num_atoms < 2:
            raise ValueError(f"num_atoms must be at least 2, got {num_atoms}")
        self.num_outputs = num_atoms
        self._support = DeviceConstants(
            np.linspace(v_min, v_max, num_atoms, dtype=np.float32)
        )

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self._support_on(outputs)

    def loss(
        self, outputs: Tensor, next_outputs: Tensor, reward: Tensor, discount: Tensor
    ) -> Tensor:
        support = self._support_on(outputs)
        positions = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support
        target = project_onto_support(positions, next_outputs.softmax(-1), support)
        return cross_entropy(outputs, target)

    def _support_on(self, outputs: Tensor) -> Tensor:
        return self._support.on(outputs.device)[0]


def mean_of_components(x: Tensor) -> Tensor:
    """[..., C] → [...]."""
    return x.squeeze(-1) if x.shape[-1] == 1 else x.mean(-1)


def outputs_of(outputs: Tensor, index: Tensor) -> Tensor:
    """One value of each component: [B, C, A, N] and [B, C] → [B, C, N]."""
    index = index[..., None, None]
    if outputs.shape[-1] > 1:
        index = index.expand(*index.shape[:3], outputs.shape[-1])
    return outputs.gather(2, index).squeeze(2)


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
