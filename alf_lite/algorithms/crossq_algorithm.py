"""CrossQ: batch normalization in place of target networks, or beside them.

Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater
Sample Efficiency and Simplicity", arXiv:1902.05605. It is SAC with two changes: the
critics are batch-normalized; and there are no target critics. One forward pass values
(s_t, a_t) and (s_{t+m}, a), so that both are normalized by the statistics of all rows;
the values of the latter are targets of the former.

With ``target_update_tau`` there are target critics again, which lag behind, as in
Palenicek et al. 2025 (arXiv:2502.07523) and XQC (arXiv:2509.25174). They, too, value
both steps in one pass, and are normalized by the statistics of it: by running ones of
(s_t, a_t) alone, the values of actions that the policy would take are wrong.

Differences from the paper: those of :mod:`~alf_lite.algorithms.sac_algorithm`; the
actor has no batch normalization unless its network is given one, and the critics are as
wide as those of SAC. ``CriticNetwork`` and ``BatchNorm`` tell what else they offer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.sac_algorithm import Following, SacAlgorithm
from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.networks.batch_norm import (
    normalizes_by_batch,
    statistics_of_batch,
    trained_rows,
)
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodedNetwork
from alf_lite.utils.checks import check_left_out
from alf_lite.utils.schedulers import Scheduled

Nest = Any


@configurable(defaults={"batch_norm": True})
class NormalizedCriticNetwork(CriticNetwork):
    """Critics with batch normalization; see :class:`CriticNetwork`."""


@configurable(
    defaults={"critic_network_ctor": NormalizedCriticNetwork, "actor_update_period": 3}
)
class CrossqAlgorithm(SacAlgorithm):
    """CrossQ for nests of continuous and discrete actions."""

    def __init__(
        self,
        *specs: Any,
        target_update_tau: Scheduled | None = None,
        target_update_period: Scheduled | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`SacAlgorithm` for the others.

        Args:
            target_update_tau: of target critics; None: there are none.
            target_update_period: likewise.

        Raises:
            ConfigError: if the critics are not batch-normalized, or their encoder is,
                or they have a memory; for a period without target networks.
        """
        self._has_target_critics = target_update_tau is not None
        if target_update_tau is None:
            name = type(self).__name__
            check_left_out(
                f"{name} without target_update_tau has no target networks",
                target_update_period=target_update_period,
            )
            target_update_tau = 1.0
        # Given, so that what a conf binds to a base is not counted as used.
        kwargs["target_update_tau"] = target_update_tau
        kwargs["target_update_period"] = target_update_period
        super().__init__(*specs, **kwargs)
        if self._is_eval:
            return
        network = self._critics.online
        if not any(normalizes_by_batch(m) for m in network.modules()):
            raise ConfigError(
                f"{self._name} needs critics with batch normalization, which takes the "
                "place of target networks: use NormalizedCriticNetwork, or "
                "CriticNetwork.batch_norm=True"
            )
        encoders = [m for m in network.modules() if isinstance(m, EncodedNetwork)]
        if any(normalizes_by_batch(m) for e in encoders for m in e._encoder.modules()):
            raise ConfigError(
                f"{self._name}: the encoder of the critics has batch normalization, "
                "but sees both steps of a transition one by one. Leave it out there: "
                "the critics normalize the encodings of both together"
            )
        if not nest.is_empty(network.state_spec):
            raise ConfigError(
                f"{self._name}: critic_network_ctor must build a network without "
                f"memory, got one with the state {network.state_spec}"
            )

    def _evaluate(
        self, now: tuple[Nest, Tensor], vector: Tensor | None, following: Following
    ) -> tuple[Tensor, Tensor, Nest]:
        """Values of both steps of a transition, from one pass through the critics."""
        critics, target = self._critics.online, self._critics.target
        observation, features = now
        with torch.no_grad():
            sample = self._sample(following.observation, following.policy)
            next_features, _ = critics.encode(following.observation)
        vectors = None
        if vector is not None:
            assert sample.vector is not None
            vectors = torch.cat([vector, sample.vector])
        with trained_rows.repeated(2):
            joint = critics.evaluate(torch.cat([features, next_features]), vectors)
            values, next_values = joint.chunk(2)
            if target is not None:
                with torch.no_grad(), statistics_of_batch():
                    rows = nest.cat([observation, following.observation])
                    joint = target.evaluate(target.encode(rows)[0], vectors)
                    next_values = joint.chunk(2)[1]
        next_value = self._soft_value(sample, next_values.detach())
        return values, next_value.detach(), following.target_state
