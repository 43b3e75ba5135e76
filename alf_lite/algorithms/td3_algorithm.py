"""Twin delayed deep deterministic policy gradient.

Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods",
arXiv:1802.09477. It is DDPG with three changes: the smaller of two critics is believed;
the actor and the targets are updated less often than the critics; the target critics
value not one action but its neighbourhood.

Differences from the paper: those of :mod:`~alf_lite.algorithms.ddpg_algorithm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.config import TrainerConfig, configurable
from alf_lite.environments.environment import Environment
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.deterministic_actor_networks import ActorNetwork
from alf_lite.networks.network import Network
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.action_noise import ActionNoise, GaussianNoise


@configurable
class Td3Algorithm(DdpgAlgorithm):
    """TD3 for nests of continuous actions."""

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        reward_spec: TensorSpec = TensorSpec(()),
        actor_network_ctor: Callable[..., Network] = ActorNetwork,
        critic_network_ctor: Callable[..., CriticNetwork] = CriticNetwork,
        num_critics: int = 2,
        exploration_noise_ctor: Callable[..., ActionNoise] = GaussianNoise,
        target_noise_std: float = 0.2,
        target_noise_clip: float = 0.5,
        gamma: float = 0.99,
        n_step: int = 1,
        actor_update_period: int = 2,
        target_update_tau: float = 0.005,
        target_update_period: int = 2,
        actor_optimizer: Optimizer | None = None,
        critic_optimizer: Optimizer | None = None,
        reward_weights: Sequence[float] | None = None,
        env: Environment | None = None,
        config: TrainerConfig | None = None,
        optimizer: Optimizer | None = None,
        checkpoint: str | None = None,
        is_eval: bool = False,
        debug_summaries: bool = False,
        name: str | None = None,
    ) -> None:
        """Builds the networks; see :class:`DdpgAlgorithm` for what is not here.

        Args:
            target_noise_std: σ of the noise on the action of a target, in halves of
                the action's range, as for the next one.
            target_noise_clip: c, the largest noise.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        for key, value in {
            "target_noise_std": target_noise_std,
            "target_noise_clip": target_noise_clip,
        }.items():
            if not value >= 0:
                raise ValueError(f"{key} must not be negative, got {value}")
        super().__init__(
            observation_spec,
            action_spec,
            reward_spec=reward_spec,
            actor_network_ctor=actor_network_ctor,
            critic_network_ctor=critic_network_ctor,
            num_critics=num_critics,
            exploration_noise_ctor=exploration_noise_ctor,
            gamma=gamma,
            n_step=n_step,
            actor_update_period=actor_update_period,
            target_update_tau=target_update_tau,
            target_update_period=target_update_period,
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            reward_weights=reward_weights,
            env=env,
            config=config,
            optimizer=optimizer,
            checkpoint=checkpoint,
            is_eval=is_eval,
            debug_summaries=debug_summaries,
            name=name,
        )
        self._target_noise_std = target_noise_std
        self._target_noise_clip = target_noise_clip

    def _target_action(self, action: Tensor) -> Tensor:
        """Eq. 14: clip(a + clip(ε, −c, c), −1, 1), ε ~ N(0, σ)."""
        noise = self._target_noise_std * torch.randn_like(action)
        noise = noise.clamp(-self._target_noise_clip, self._target_noise_clip)
        return (action + noise).clamp(-1.0, 1.0)
