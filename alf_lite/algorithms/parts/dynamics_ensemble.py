"""An ensemble of probabilistic models of what an action leads to.

Chua et al., "Deep reinforcement learning in a handful of trials using probabilistic
dynamics models", arXiv:1805.12114. Each of n members tells, of a state s and an action
a, the means μ and variances σ² of y = (s' − s, r), and the probability c that the
episode goes on. With d the discount that came with s':

    L = Σ_k w_k [Σ_i ((μ_i − y_i)² / σ_i² + log σ_i²) + BCE(c, d)]          (eq. 1)
        + 0.01 Σ_k Σ_i (max_i − min_i)

The logarithms of variances stay between bounds that are learnt (appendix A.1):

    log σ² ← max − softplus(max − log σ²),   log σ² ← min + softplus(log σ² − min)

s and y are brought to mean 0 and deviation 1 by running statistics; all variances are
in these units. w_k is how often a transition is in the data of member k, if these are
as many as there are transitions, drawn with replacement: Poisson(1), by a hash of where
the transition is stored, so that it is the same whenever it is replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.networks.critic_networks import ParallelMLP
from alf_lite.networks.layers import Activation
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_positive
from alf_lite.utils.normalizers import Normalizer
from alf_lite.utils.ranks import share_statistics

Nest = Any

_PRIME = 2**31 - 1
# Probabilities of at most 0, 1, … times: Σ_{j≤i} e⁻¹ / j!
_POISSON = [
    sum(math.exp(-1) / math.factorial(j) for j in range(i + 1)) for i in range(7)
]


class Transitions(NamedTuple):
    """What members are fitted to."""

    state: Tensor  # [B, O]
    action: Tensor  # [B, A] in [-1, 1]
    next_state: Tensor  # [B, O]
    reward: Tensor  # [B]
    discount: Tensor  # [B], 0 where next_state is terminal


class Outputs(NamedTuple):
    """What members tell, in normalised units."""

    mean: Tensor  # [n, B, O+1]
    log_variance: Tensor  # [n, B, O+1]
    continues: Tensor  # [n, B] logits


class FitLoss(NamedTuple):
    """The parts of the loss, weighted by w and summed over members, [B] each."""

    likelihood: Tensor
    continues: Tensor


@configurable
class DynamicsEnsemble(nn.Module):
    """n members of one shape, as batched matrix products.

    Args:
        state_size: O.
        action_size: A.
        num_members: n.
        fc_layer_params: hidden layers of each.
        activation: of them.
    """

    def __init__(
        self,
        state_size: int,
        action_size: int,
        *,
        num_members: int = 5,
        fc_layer_params: Sequence[int] = (200, 200, 200),
        activation: Activation = "silu",
    ) -> None:
        check_positive(num_members=num_members)
        super().__init__()
        self.num_members, size = num_members, state_size + 1
        inputs, outputs = state_size + action_size, 2 * size + 1
        self._network = ParallelMLP(
            num_members, inputs, fc_layer_params, outputs, activation
        )
        self._states = Normalizer(TensorSpec((state_size,)))
        self._changes = Normalizer(TensorSpec((size,)))
        self.min_log_variance = nn.Parameter(torch.full((size,), -10.0))
        self.max_log_variance = nn.Parameter(torch.full((size,), 0.5))
        generator = torch.Generator().manual_seed(0)
        factors = torch.randint(2**20, 2**30, (3, num_members, 1), generator=generator)
        self.register_buffer("_factors", factors, persistent=False)
        self.register_buffer("_poisson", torch.tensor(_POISSON), persistent=False)

    _factors: Tensor  # [3, n, 1] int64, of the hash
    _poisson: Tensor  # [7]

    def forward(self, state: Tensor, action: Tensor) -> Outputs:
        """Of [B, ...], or of [n, B, ...] where each member has its own."""
        x = torch.cat([self._states.normalize(state), action], -1)
        size = len(self.min_log_variance)
        mean, raw, continues = self._network(x).split([size, size, 1], -1)
        low, high = self.min_log_variance, self.max_log_variance
        log_variance = high - F.softplus(high - raw)
        log_variance = low + F.softplus(log_variance - low)
        return Outputs(mean, log_variance, continues.squeeze(-1))

    # Learning

    def update_statistics(self, data: Transitions, valid: Tensor) -> None:
        """Takes what is ``valid`` [B] into the statistics of s and y."""
        self._states.update(data.state, valid)
        self._changes.update(_changes(data), valid)
        share_statistics([self._states, self._changes])

    def fit(self, data: Transitions, weights: Tensor) -> FitLoss:
        """Eq. 1 of transitions [B, ...], with weights w [n, B]."""
        outputs = self(data.state, data.action)
        error = outputs.mean - self._changes.normalize(_changes(data))
        precision = (-outputs.log_variance).exp()
        terms = error.square() * precision + outputs.log_variance
        target = data.discount.expand_as(outputs.continues)
        continues = F.binary_cross_entropy_with_logits(
            outputs.continues, target, reduction="none"
        )
        return FitLoss((weights * terms.sum(-1)).sum(0), (weights * continues).sum(0))

    def bound_loss(self) -> Tensor:
        """0.01 Σ_k Σ_i (max_i − min_i), [], which keeps the bounds near the data."""
        width = (self.max_log_variance - self.min_log_variance).sum()
        return 0.01 * self.num_members * width

    def bootstrap_weights(self, env_ids: Tensor, positions: Tensor) -> Tensor:
        """W [n, B] of the transitions that begin at these steps [B]."""
        a, b, c = self._factors
        x = (positions % _PRIME * a + (env_ids + 1) * b) % _PRIME
        x = ((x ^ (x >> 13)) * c) % _PRIME  # below 2^61
        x = ((x ^ (x >> 15)) * a) % _PRIME
        return torch.bucketize(x / _PRIME, self._poisson).float()

    # Foretelling

    def step(
        self, state: Tensor, action: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step of P particles, the first P/n of them by the first member, etc.

        Args:
            state: [P, R, O].
            action: [P, R, A] in [-1, 1].
            noise: [P, R, O] or [P, 1, O], standard normal.

        Returns:
            s' [P, R, O], drawn; the mean of r and the probability c, [P, R] each.
        """
        n = self.num_members

        def of_members(x: Tensor) -> Tensor:
            return x.unflatten(0, (n, -1)).flatten(1, 2)  # [n, P/n · R, ...]

        def of_particles(x: Tensor) -> Tensor:
            return x.unflatten(1, (len(state) // n, -1)).flatten(0, 1)

        outputs = self(of_members(state), of_members(action))
        mean = of_particles(outputs.mean)
        std = of_particles((outputs.log_variance[..., :-1] / 2).exp())
        drawn = mean[..., :-1] + std * noise
        changes = self._changes.denormalize(torch.cat([drawn, mean[..., -1:]], -1))
        continues = of_particles(outputs.continues).sigmoid()
        return state + changes[..., :-1], changes[..., -1], continues


def _changes(data: Transitions) -> Tensor:
    """Y [B, O+1]."""
    return torch.cat([data.next_state - data.state, data.reward.unsqueeze(-1)], -1)


class ObservationVectors:
    """Nests of numbers as vectors, and back.

    Args:
        observation_spec: of one observation.

    Raises:
        ValueError: if a leaf does not hold floats; the message names its path.
    """

    def __init__(self, observation_spec: NestedTensorSpec) -> None:
        for path, spec in nest.flatten_with_path(observation_spec):
            if not spec.is_continuous:
                raise ValueError(
                    f"{nest.leaf_name('observation', path)}: expected floats, whose "
                    f"changes a model can tell, got {spec}"
                )
        self._spec = observation_spec
        self._specs = nest.flatten(observation_spec)
        self._sizes = [spec.numel for spec in self._specs]
        self.size = sum(self._sizes)

    def to_vector(self, observation: Nest) -> Tensor:
        """[B, *shape] in every leaf → [B, O]."""
        leaves = [
            leaf.reshape(leaf.shape[0], size)
            for leaf, size in zip(nest.flatten(observation), self._sizes, strict=True)
        ]
        return leaves[0] if len(leaves) == 1 else torch.cat(leaves, 1)

    def to_nest(self, vector: Tensor) -> Nest:
        """[B, O] → [B, *shape] in every leaf."""
        columns = vector.split(self._sizes, 1)
        leaves = [
            column.reshape(-1, *spec.shape)
            for column, spec in zip(columns, self._specs, strict=True)
        ]
        return nest.pack_sequence_as(self._spec, leaves)
