"""R2D2: recurrent DQN from prioritised sequences.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning",
ICLR 2019. A sequence starts from the state that was stored when its first step was
acted on. Its first steps only bring that up to date (burn-in); the others are trained
on n-step targets of double Q-learning with rescaled values,

    y_t = h(G_t + Γ_t h⁻¹(Q(s_{t+n}, a*; θ⁻))),   h(x) = sign(x) (√(|x| + 1) − 1) + ε x

and the priority of a sequence is η max_t |δ_t| + (1 − η) mean_t |δ_t|.

What is recurrent here, DQN can do, too. This class has what the paper adds to it, and
declares its settings: the stored state, the burn-in and priorities.

Differences from the paper:

1. A sequence may begin at every step, not at every fortieth.
2. η holds for priorities alone. Importance weights multiply the loss of every step.
3. The loss is δ², averaged over all steps.
4. An ε for each of many actors: ``rollout_epsilon_greedy`` takes a list of them, one
   for each environment.
5. The target network is copied every 128 updates, as that of DQN here; the paper's
   2500 is ``target_update_period=2500``.
6. A sequence may go on over the end of an episode, where the state begins anew and no
   target looks beyond; the paper's end there.
"""

from __future__ import annotations

from typing import Any

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.parts.return_heads import RescaledReturnHead, ReturnHead
from alf_lite.config import DefaultSettings, configurable
from alf_lite.errors import ConfigError
from alf_lite.utils.checks import check_unit_interval, check_unused


@configurable(defaults={"n_step": 5, "gamma": 0.997})
class R2d2Algorithm(DqnAlgorithm):
    """R2D2 for nests of discrete actions."""

    # Table 2 of the paper; sequences are 40 + 80 steps and those of the last target,
    # five by default.
    default_settings = DefaultSettings(
        num_updates_per_train_iter=1,
        unroll_length=8,
        mini_batch_size=64,
        mini_batch_length=121,
        burn_in_length=40,
        use_rollout_state=True,
        priority_replay=True,
        initial_collect_steps=5000,
        lr=1e-4,
        gradient_clipping=40.0,
        priority_alpha=0.9,
        priority_beta=0.6,
    )

    def __init__(
        self,
        *specs: Any,
        return_model: ReturnHead | None = None,
        max_priority_weight: float = 0.9,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`DqnAlgorithm` for what is not here.

        Args:
            return_model: None: the rescaled return.
            max_priority_weight: η, with ``TrainerConfig.priority_replay``.

        Raises:
            ValueError: if the action is not discrete or a coefficient is out of range.
            ConfigError: if the network has no memory, or for η without priorities.
        """
        check_unit_interval(max_priority_weight=max_priority_weight)
        super().__init__(
            *specs, return_model=return_model or RescaledReturnHead(), **kwargs
        )
        self._max_priority_weight = max_priority_weight
        if self._config is not None and not self._config.priority_replay:
            reason = "TrainerConfig.priority_replay is False"
            check_unused(type(self), reason, max_priority_weight=max_priority_weight)
        if not self._is_recurrent:
            raise ConfigError(
                f"{self._name} needs a network with memory, which "
                f"{type(self._q_network).__name__} has not. Set "
                "QNetwork.encoding_network_ctor = @LSTMEncodingNetwork, or take "
                "DqnAlgorithm."
            )
