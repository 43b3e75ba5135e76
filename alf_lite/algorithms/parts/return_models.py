"""How the numbers that a network puts out stand for the return of an action.

A model turns them into the expected return, which actions are chosen by, and into the
loss against the return one or several steps later:

| model               | the outputs of an action are              |
|---------------------|-------------------------------------------|
| `ExpectedReturn`    | one number, the expected return           |
| `ReturnQuantiles`   | N quantiles of the return                 |
| `ReturnCategories`  | N logits, of the return being near atom i |
"""

from __future__ import annotations

import abc

import numpy as np
from torch import Tensor

from alf_lite.algorithms.parts import distributional_losses
from alf_lite.config import configurable
from alf_lite.distributions.base import DeviceConstants
from alf_lite.utils import losses


class ReturnModel(abc.ABC):
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


@configurable
class ExpectedReturn(ReturnModel):
    """The expected return, fitted with the Huber loss.

    Args:
        huber_delta: where the loss goes from quadratic to linear; None: the squared
            error, not halved.
    """

    num_outputs = 1

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


@configurable
class ReturnQuantiles(ReturnModel):
    """Quantiles at equal distances: QR-DQN, Dabney et al. 2018 (arXiv:1710.10044).

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
        return distributional_losses.quantile_huber(outputs, target, self._kappa)


@configurable
class ReturnCategories(ReturnModel):
    """Probabilities of fixed atoms: C51, Bellemare et al. 2017 (arXiv:1707.06887).

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
        target = distributional_losses.project_onto_support(
            positions, next_outputs.softmax(-1), support
        )
        return distributional_losses.cross_entropy(outputs, target)

    def _support_on(self, outputs: Tensor) -> Tensor:
        return self._support.on(outputs.device)[0]
