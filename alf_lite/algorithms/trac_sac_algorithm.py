"""SAC whose updates move the policy no farther than a trust region allows.

After ALF's trusted actor-critic (TRAC) around SAC: what an update moves the policy by
too far, measured on the steps it is trained on, is taken back, see
:class:`~alf_lite.algorithms.parts.trust_region.TrustRegion`. Critics and temperatures
move as they do in :mod:`~alf_lite.algorithms.sac_algorithm`.

Differences from ALF: the mean KL divergence in place of a distance of the parameters of
each distribution.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.parts.trust_region import TrustRegion
from alf_lite.algorithms.sac_algorithm import SacAlgorithm, SacEvaluation, SacInfo
from alf_lite.config import configurable
from alf_lite.data_structures import LossInfo, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.errors import ConfigError
from alf_lite.utils.checks import check_positive

Nest = Any


class TracSacInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss`` and ``after_update``."""

    sac: SacInfo
    policy: Nest  # [T, B, ...] π(·|s_t) before the update


@configurable
class TracSacAlgorithm(SacAlgorithm):
    """TRAC around SAC, for nests of continuous and discrete actions."""

    def __init__(self, *specs: Any, max_policy_kl: float = 0.01, **kwargs: Any) -> None:
        """Builds the networks; see :class:`SacAlgorithm` for what is not here.

        Args:
            max_policy_kl: mean KL divergence, over the steps of an update, that this
                may move the policy by.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
            ConfigError: for networks with memory, and a policy with batch normalization
                or dropout.
        """
        check_positive(max_policy_kl=max_policy_kl)
        super().__init__(*specs, **kwargs)
        if self._is_recurrent:
            raise ConfigError(
                f"{self._name}: a limit for policies with memory is not implemented. "
                "Take SacAlgorithm"
            )
        if not self._is_eval:
            self._trust_region = TrustRegion(self._policy, max_policy_kl)

    def _extend_info(
        self, info: SacInfo, transition: Transition, evaluation: SacEvaluation
    ) -> TracSacInfo:
        self._trust_region.begin()
        return TracSacInfo(info, distributions.detach(evaluation.policy))

    def calc_loss(self, info: Any) -> LossInfo:
        """That of SAC, [T-n, B].

        Args:
            info: TracSacInfo, [T, B, ...].
        """
        return super().calc_loss(info.sac)

    def after_update(self, root_inputs: TimeStep, info: Any) -> None:
        """Takes back what moved the policy too far, and moves the targets."""
        if self._actor_updates.is_due:
            self._trust_region.limit_on(
                root_inputs.observation, info.policy, ~root_inputs.is_last()
            )
        super().after_update(root_inputs, info)
