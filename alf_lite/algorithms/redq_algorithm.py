"""Randomized ensembled double Q-learning.

Chen et al., "Randomized Ensembled Double Q-Learning: Learning Fast Without a Model",
arXiv:2101.05982. It is SAC with three changes: many updates for every step; the target
is the smallest of a few critics of many, others in every update; the actor follows the
mean of all of them.

Differences from the paper: those of :mod:`~alf_lite.algorithms.sac_algorithm`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import configurable


@configurable(defaults={"actor_update_period": 20})
class RedqAlgorithm(SacAlgorithm):
    """REDQ for nests of continuous and discrete actions.

    ``CriticNetwork.dropout=0.01`` and ``CriticNetwork.layer_norm=True`` with two
    critics, both of which are asked, make it DroQ (Hiraoka et al., arXiv:2110.02034).
    """

    # Chen et al. 2021, table 1 of the appendix: G = 20, the actor once for every step.
    default_settings = SacAlgorithm.default_settings._replace(
        updates_per_env_step=20.0, lr=3e-4, initial_collect_steps=5000
    )

    def __init__(
        self,
        *specs: Any,
        num_critics: int = 10,
        num_target_critics: int | None = 2,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`SacAlgorithm` for what is not here.

        Args:
            num_critics: N.
            num_target_critics: M, how many of the target critics are asked, drawn anew
                for every update; None: all.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        num_asked = num_critics if num_target_critics is None else num_target_critics
        if not 1 <= num_asked <= num_critics:
            raise ValueError(
                f"num_target_critics must lie between 1 and num_critics={num_critics}, "
                f"got {num_target_critics}"
            )
        super().__init__(*specs, num_critics=num_critics, **kwargs)
        self._num_target_critics = num_target_critics

    def _target_opinion(self, values: Tensor) -> Tensor:
        """The smallest of M, others every time.

        Of many critics, the smallest value is far too small; that of M of them is not,
        and differs from update to update.
        """
        if self._num_target_critics is not None:
            chosen = torch.randperm(values.shape[1], device=values.device)
            values = values[:, chosen[: self._num_target_critics]]
        return super()._target_opinion(values)

    def _opinion(self, values: Tensor) -> Tensor:
        """Algorithm 1, line 11: the mean of all critics."""
        return values.mean(1)
