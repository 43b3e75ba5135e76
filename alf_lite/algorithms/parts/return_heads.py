"""Heads of Q-networks: how their outputs stand for the return of an action.

A head turns the outputs into the expected return, which actions are chosen by, and into
the loss against the return one or several steps later:

| head                 | outputs of an action                      | paper  |
|----------------------|-------------------------------------------|--------|
| `ExpectedReturnHead` | one number, the expected return           | DQN    |
| `RescaledReturnHead` | one number, h of the expected return      | R2D2   |
| `QuantileHead`       | N quantiles of the return                 | QR-DQN |
| `CategoricalHead`    | N logits, of the return being near atom i | C51    |
| `TwoHotHead`         | N logits, whose mean is f of the return   | MuZero |
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.utils import losses
from alf_lite.utils.checks import (
    check_choice,
    check_count,
    check_positive,
    check_unused,
)
from alf_lite.utils.tensor_utils import DeviceConstants

# (values, targets) → the loss of each, of their shape
ElementwiseLoss = Callable[[Tensor, Tensor], Tensor]


class ReturnHead(abc.ABC):
    """See the top of this module."""

    num_outputs: int  # N, for every action

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

    def td_error(self, value: Tensor, target: Tensor) -> Tensor:
        """δ [...] of expected returns, what priorities are made of."""
        return target - value


@configurable
class ExpectedReturnHead(ReturnHead):
    """The expected return, fitted with the Huber loss.

    Args:
        huber_delta: where the loss goes from quadratic to linear; None: the squared
            error, not halved.
        loss_fn: another loss, called as ``loss_fn(values, targets)`` with two tensors
            of one shape; gives the loss of every element. Then ``huber_delta`` is left
            out.

    Raises:
        ValueError: if it gives something else, or ``huber_delta`` is not positive.
        ConfigError: if both are given.
    """

    num_outputs = 1

    def __init__(
        self, huber_delta: float | None = 1.0, loss_fn: ElementwiseLoss | None = None
    ) -> None:
        if huber_delta is not None and not huber_delta > 0:
            raise ValueError(f"huber_delta must be positive or None, got {huber_delta}")
        if loss_fn is not None:
            _check_elementwise(loss_fn)
            check_unused(type(self), "loss_fn is given", huber_delta=huber_delta)
        self._huber_delta = huber_delta
        self._loss_fn = loss_fn

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def loss(
        self, outputs: Tensor, next_outputs: Tensor, reward: Tensor, discount: Tensor
    ) -> Tensor:
        target = reward + discount * self.mean(next_outputs)
        return self._distance(outputs.squeeze(-1), target)

    def _distance(self, value: Tensor, target: Tensor) -> Tensor:
        if self._loss_fn is not None:
            return self._loss_fn(value, target)
        if self._huber_delta is None:
            return losses.squared(value, target)
        return losses.huber(value, target, self._huber_delta)


@configurable
class RescaledReturnHead(ExpectedReturnHead):
    """The expected return, rescaled so that large ones are not much larger.

    Pohlen et al. 2018 (arXiv:1805.11593), section 3.2, as R2D2 has it. The output is
    h of the return, and what it is fitted to

        h(G + Γ h⁻¹(next output)),    h(x) = sign(x) (√(|x| + 1) − 1) + ε x

    Rewards need not be clipped then. δ is the difference of the outputs.

    Args:
        epsilon: ε, which keeps h⁻¹ from growing faster and faster.
        huber_delta: see :class:`ExpectedReturnHead`, as for the last one.
        loss_fn: of the rescaled values.
    """

    def __init__(
        self,
        epsilon: float = 1e-3,
        huber_delta: float | None = None,
        loss_fn: ElementwiseLoss | None = None,
    ) -> None:
        check_positive(epsilon=epsilon)
        super().__init__(huber_delta, loss_fn)
        self._epsilon = epsilon

    def mean(self, outputs: Tensor) -> Tensor:
        return unscaled(outputs.squeeze(-1), self._epsilon)

    def loss(
        self, outputs: Tensor, next_outputs: Tensor, reward: Tensor, discount: Tensor
    ) -> Tensor:
        target = reward + discount * self.mean(next_outputs)
        return self._distance(outputs.squeeze(-1), rescaled(target, self._epsilon))

    def td_error(self, value: Tensor, target: Tensor) -> Tensor:
        return rescaled(target, self._epsilon) - rescaled(value, self._epsilon)


@configurable
class QuantileHead(ReturnHead):
    """Quantile regression, QR-DQN: quantiles at equal distances.

    Dabney et al. 2018 (arXiv:1710.10044).

    Args:
        num_quantiles: N.
        kappa: see :func:`quantile_huber`.
    """

    def __init__(self, num_quantiles: int = 51, kappa: float = 1.0) -> None:
        check_count(num_quantiles=num_quantiles)
        check_positive(kappa=kappa)
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


Transform = Literal["h", "symlog"]


@configurable
class TwoHotHead(ReturnHead):
    """The expected return f⁻¹(E[z]), with probabilities of fixed atoms z.

    A number x is fitted by cross-entropy to the two atoms around f(x), weighted so that
    their mean is f(x). f is h of MuZero (Schrittwieser et al. 2020, appendix F; ε =
    0.001, see :func:`rescaled`) or symlog of DreamerV3 (Hafner et al. 2023). The mean
    is taken before f⁻¹: the mean of f⁻¹(z) would lie above.

    It serves rewards as well: :meth:`fit` needs no next value.

    Args:
        transform: f.
        low: the lowest atom, of f(x), not of x; a lower one counts as this.
        high: the highest atom.
        bins: N, at equal distances.
    """

    def __init__(
        self,
        transform: Transform = "h",
        low: float = -20.0,
        high: float = 20.0,
        bins: int = 41,
    ) -> None:
        check_choice(Transform, transform=transform)
        if not (low < high and bins > 1):
            raise ValueError(
                "TwoHotHead: low must be below high and bins at least 2, got "
                f"{low}, {high} and {bins}"
            )
        self.num_outputs = bins
        self._transform = transform
        self._atoms = DeviceConstants(np.linspace(low, high, bins, dtype=np.float32))

    def mean(self, outputs: Tensor) -> Tensor:
        mean = outputs.softmax(-1) @ self._atoms.on(outputs.device)[0]
        return unscaled(mean, 1e-3) if self._transform == "h" else losses.symexp(mean)

    def loss(
        self, outputs: Tensor, next_outputs: Tensor, reward: Tensor, discount: Tensor
    ) -> Tensor:
        return self.fit(outputs, reward + discount * self.mean(next_outputs))

    def fit(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy [...] of outputs [..., N] to numbers [...]."""
        return cross_entropy(outputs, self.two_hot(targets))

    def two_hot(self, x: Tensor) -> Tensor:
        """Probabilities of the atoms whose mean is f(x): [...] → [..., N]."""
        y = self._transformed(x).unsqueeze(-1)
        return project_onto_support(y, torch.ones_like(y), self._atoms.on(x.device)[0])

    def is_clipped(self, x: Tensor) -> Tensor:
        """Whether f(x) lies beyond the atoms, of which the outermost stands for it.

        A share of them that stays large says that ``low`` and ``high`` are too near.

        Args:
            x: [...].

        Returns:
            [...] of 0 and 1.
        """
        (atoms,) = self._atoms.on(x.device)
        y = self._transformed(x)
        return ((y < atoms[0]) | (y > atoms[-1])).float()

    def _transformed(self, x: Tensor) -> Tensor:
        """F of x."""
        return rescaled(x, 1e-3) if self._transform == "h" else losses.symlog(x)


def rescaled(x: Tensor, epsilon: float) -> Tensor:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x, without the rounding of a small |x|."""
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def unscaled(y: Tensor, epsilon: float) -> Tensor:
    """The inverse of :func:`rescaled`.

    With w = √(|x| + 1) − 1, |y| = ε w² + (1 + 2ε) w. Its solution and |x| = w (w + 2)
    are written so that no difference of near numbers occurs, as in the paper's form.
    """
    slope = 1 + 2 * epsilon
    w = 2 * y.abs() / (slope + (slope**2 + 4 * epsilon * y.abs()).sqrt())
    return y.sign() * (w * (w + 2))


def _check_elementwise(loss_fn: ElementwiseLoss) -> None:
    loss = loss_fn(torch.zeros(2, 1), torch.ones(2, 1))
    if not isinstance(loss, Tensor) or loss.shape != (2, 1):
        got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(
            "loss_fn: expected a function of two tensors [2, 1] that gives the loss of "
            f"every element, [2, 1]; got {got}. Those of torch reduce it unless they "
            "are told reduction='none'."
        )


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
        ValueError: if the shapes do not fit.
    """
    if quantiles.shape[:-1] != targets.shape[:-1]:
        raise ValueError(
            f"quantile_huber: quantiles {list(quantiles.shape)} and targets "
            f"{list(targets.shape)} must agree in all but the last dimension"
        )
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
