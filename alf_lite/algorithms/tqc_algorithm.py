"""Truncated quantile critics.

Kuznetsov et al., "Controlling Overestimation Bias with Truncated Mixture of Continuous
Distributional Quantile Critics", arXiv:2005.04269. It is SAC whose critics tell N
quantiles of the return each: the target is the pool of the quantiles of all n critics
without the k·n largest (eq. 13), and the actor follows the mean of all.

Differences from the paper: those of :mod:`~alf_lite.algorithms.sac_algorithm`; and the
loss is the sum over quantiles, as in QR-DQN, where the paper has their mean, which Adam
does not tell apart.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from alf_lite.algorithms.parts.return_heads import QuantileHead, ReturnHead
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import configurable
from alf_lite.errors import ConfigError


@configurable(defaults={"num_critics": 5})
class TqcAlgorithm(SacAlgorithm):
    """TQC for nests of continuous actions."""

    # Kuznetsov et al. 2020, table 5 of the appendix.
    default_settings = SacAlgorithm.default_settings._replace(lr=3e-4)

    def __init__(
        self, *specs: Any, num_dropped_quantiles: int = 2, **kwargs: Any
    ) -> None:
        """Builds the networks; see :class:`SacAlgorithm` for what is not here.

        Args:
            num_dropped_quantiles: k, for each critic; more of them expect less. The
                paper has 5 for Hopper, 0 for HalfCheetah, and 2 for most others.
            **kwargs: ``return_model`` is ``QuantileHead(25)`` unless given.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
            ConfigError: for a ``return_model`` that has no quantiles.
        """
        self._num_dropped = num_dropped_quantiles
        super().__init__(*specs, **kwargs)

    def _checked_return_model(self, model: ReturnHead | None) -> ReturnHead:
        model = super()._checked_return_model(model or QuantileHead(num_quantiles=25))
        if not isinstance(model, QuantileHead):
            raise ConfigError(
                f"{self._name}: return_model: quantiles are pooled and the largest "
                f"left out, which needs a QuantileHead(); got {type(model).__name__}"
            )
        if not 0 <= self._num_dropped < model.num_outputs:
            raise ValueError(
                "num_dropped_quantiles must be at least 0 and less than the "
                f"{model.num_outputs} of a critic, got {self._num_dropped}"
            )
        return model

    def _target_opinion(self, values: Tensor) -> Tensor:
        """The pool of all critics without its largest: [B, n, A, N] → [B, A, M]."""
        pool = values.transpose(1, 2).flatten(2).sort(-1).values
        return pool[..., : pool.shape[-1] - self._num_dropped * values.shape[1]]

    def _opinion(self, values: Tensor) -> Tensor:
        """Eq. 15: the mean of all critics."""
        return values.mean(1)
