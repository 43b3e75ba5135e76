"""Randomized ensembled double Q-learning.

Chen et al., "Randomized Ensembled Double Q-Learning: Learning Fast Without a Model",
arXiv:2101.05982. It is SAC with three changes: many updates for every step; the target
is the smallest of a few critics of many, others in every update; the actor follows the
mean of all of them.

Differences from the paper: those of :mod:`~alf_lite.algorithms.sac_algorithm`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import configurable


@configurable(
    defaults={"num_critics": 10, "num_target_critics": 2, "actor_update_period": 20},
)
class RedqAlgorithm(SacAlgorithm):
    """REDQ for nests of continuous and discrete actions.

    ``CriticNetwork.dropout=0.01`` and ``CriticNetwork.layer_norm=True`` with two
    critics, both of which are asked, make it DroQ (Hiraoka et al., arXiv:2110.02034).
    """

    # Chen et al. 2021, table 1 of the appendix: G = 20, the actor once for every step.
    default_settings = SacAlgorithm.default_settings._replace(
        updates_per_env_step=20.0, lr=3e-4, initial_collect_steps=5000
    )

    def __init__(self, *specs: Any, **kwargs: Any) -> None:
        """Builds the networks; see :class:`SacAlgorithm`."""
        super().__init__(*specs, **kwargs)

    def _opinion(self, values: Tensor) -> Tensor:
        """Algorithm 1, line 11: the mean of all critics."""
        return values.mean(1)
