"""Twin delayed deep deterministic policy gradient.

Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods",
arXiv:1802.09477. It is DDPG with three changes: the smaller of two critics is believed;
the actor and the targets are updated less often than the critics; the target critics
value not one action but its neighbourhood.

Differences from the paper: those of :mod:`~alf_lite.algorithms.ddpg_algorithm`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.config import configurable
from alf_lite.distributions.exploration import GaussianNoise
from alf_lite.utils.checks import check_not_negative
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients


@configurable(
    defaults={
        "num_critics": 2,
        "exploration_noise_ctor": GaussianNoise,
        "actor_update_period": 2,
        "target_update_period": 2,
    }
)
class Td3Algorithm(DdpgAlgorithm):
    """TD3 for nests of continuous actions."""

    _target_noise_std = Coefficient()
    _target_noise_clip = Coefficient()

    def __init__(
        self,
        *specs: Any,
        target_noise_std: Scheduled = 0.2,
        target_noise_clip: Scheduled = 0.5,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`DdpgAlgorithm` for what is not here.

        Args:
            target_noise_std: σ of the noise on the action of a target, in halves of
                the action's range, as for the next one.
            target_noise_clip: c, the largest noise.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        check_not_negative(
            target_noise_std=target_noise_std, target_noise_clip=target_noise_clip
        )
        super().__init__(*specs, **kwargs)
        set_coefficients(
            self,
            _target_noise_std=target_noise_std,
            _target_noise_clip=target_noise_clip,
        )

    def _target_action(self, action: Tensor) -> Tensor:
        """Eq. 14: clip(a + clip(ε, −c, c), −1, 1), ε ~ N(0, σ)."""
        noise = self._target_noise_std * torch.randn_like(action)
        clip = self._target_noise_clip
        noise = noise.clamp(-clip, clip)
        return (action + noise).clamp(-1.0, 1.0)
