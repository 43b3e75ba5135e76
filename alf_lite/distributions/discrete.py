"""Distributions of discrete actions: one category, several categories, binary vectors.

A category is ruled out by a very low logit, -inf included; one of them must stay.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from alf_lite.distributions.action_distribution import (
    ActionDistribution,
    SampleShape,
)
from alf_lite.distributions.torch_distributions import mask_log_odds, mask_logits
from alf_lite.fast import is_exactly
from alf_lite.tensor_specs import BoundedTensorSpec, num_categories
from alf_lite.utils.tensor_utils import DeviceConstants

_TINY = torch.finfo(torch.float32).tiny


class Categorical(ActionDistribution):
    """One of n categories, numbered from ``minimum``.

    Args:
        logits: [*batch, n], unnormalised.
        minimum: number of the first category.
        dtype: dtype of the actions.
    """

    parameter_names = ("logits",)
    constant_names = ("minimum", "dtype")

    def __init__(
        self, logits: Tensor, minimum: int = 0, dtype: torch.dtype = torch.int64
    ) -> None:
        self.logits = logits
        self.minimum = minimum
        self.dtype = dtype

    @property
    def batch_shape(self) -> torch.Size:
        return self.logits.shape[:-1]

    @property
    def event_shape(self) -> torch.Size:
        return torch.Size()

    @property
    def mode(self) -> Tensor:
        return self._action(self.logits.argmax(-1))

    @property
    def probs(self) -> Tensor:
        """[*batch, n]."""
        return self.logits.softmax(-1)

    def sample(self, sample_shape: SampleShape = ()) -> Tensor:
        logits = self.logits.detach()
        if sample_shape:
            logits = logits.expand(*sample_shape, *logits.shape)
        return self._action(sample_index(logits))

    def log_prob(self, value: Tensor) -> Tensor:
        return _log_prob_of_index(self.logits, self._index(value))

    def entropy(self) -> Tensor:
        return _entropy(self.logits)

    def _index(self, value: Tensor) -> Tensor:
        index = value.long()
        return index - self.minimum if self.minimum else index

    def kl_divergence(self, other: Distribution) -> Tensor:
        other = self._same_kind(other)
        return _kl_divergence(self.logits, other.logits)

    def stack_key(self) -> Hashable:
        if not is_exactly(self, Categorical):
            return None
        # One draw for all uses the same random numbers as one draw after the other.
        return Categorical, self.logits.shape, self.minimum, self.dtype

    def masked(self, allowed: Tensor) -> Categorical:
        logits = mask_logits(self.logits, allowed)
        return Categorical(logits, self.minimum, self.dtype)

    def _action(self, index: Tensor) -> Tensor:
        if self.minimum:
            index = index + self.minimum
        return index if self.dtype == torch.int64 else index.to(self.dtype)


class CategoryLayout:
    """How the categories of a vector of discrete actions lie in one row of logits.

    Element i of the flattened action has n_i categories. The logits of all elements
    stand one after the other, sum(n_i) in total. Two layouts are equal if their specs
    are.

    Args:
        spec: integer spec with at least one dimension; element i takes the values
            ``minimum[i], …, maximum[i]``.
    """

    def __init__(self, spec: BoundedTensorSpec) -> None:
        self.spec = spec
        minimum = spec.minimum.astype(np.int64).reshape(-1)
        sizes = num_categories(spec)
        self.num_logits = int(sizes.sum())
        self._num_elements = sizes.size
        self._largest = int(sizes.max())
        self._is_rectangular = bool((sizes == self._largest).all())
        self._starts_at_zero = bool((minimum == 0).all())
        column = np.arange(self._largest)
        is_padding = column >= sizes[:, None]
        first = np.cumsum(sizes) - sizes
        source = np.where(is_padding, 0, first[:, None] + column).reshape(-1)
        self._constants = DeviceConstants(minimum, source, is_padding)

    def to_rows(self, logits: Tensor) -> Tensor:
        """[*batch, sum n_i] → [*batch, elements, max n_i], padded with low logits."""
        shape = (self._num_elements, self._largest)
        if self._is_rectangular:
            return logits.unflatten(-1, shape)
        _, source, is_padding = self._constants.on(logits.device)
        rows = logits.index_select(-1, source).unflatten(-1, shape)
        # Half of the lowest number: differences of two of them stay finite.
        return rows.masked_fill(is_padding, torch.finfo(logits.dtype).min / 2)

    def to_action(self, index: Tensor) -> Tensor:
        """[*batch, elements] numbered from 0 → [*batch, *spec.shape] in the bounds."""
        if not self._starts_at_zero:
            index = index + self._constants.on(index.device)[0]
        if self.spec.ndim != 1:
            index = index.unflatten(-1, self.spec.shape)
        return index.to(self.spec.dtype)

    def to_index(self, action: Tensor) -> Tensor:
        """The inverse of :meth:`to_action`."""
        index = action.long()
        if self.spec.ndim != 1:
            index = index.flatten(-self.spec.ndim)
        if not self._starts_at_zero:
            index = index - self._constants.on(index.device)[0]
        return index

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, CategoryLayout) and self.spec == other.spec
        )

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"CategoryLayout({self.spec!r})"


class MultiCategorical(ActionDistribution):
    """A vector of independent categories, each with its own number of values.

    Args:
        logits: [*batch, layout.num_logits], unnormalised.
        layout: which logits belong to which element.
    """

    parameter_names = ("logits",)
    constant_names = ("layout",)

    def __init__(self, logits: Tensor, layout: CategoryLayout) -> None:
        self.logits = logits
        self.layout = layout

    @property
    def batch_shape(self) -> torch.Size:
        return self.logits.shape[:-1]

    @property
    def event_shape(self) -> torch.Size:
        return self.layout.spec.shape

    @property
    def mode(self) -> Tensor:
        return self.layout.to_action(self.layout.to_rows(self.logits).argmax(-1))

    def sample(self, sample_shape: SampleShape = ()) -> Tensor:
        rows = self.layout.to_rows(self.logits.detach())
        if sample_shape:
            rows = rows.expand(*sample_shape, *rows.shape)
        return self.layout.to_action(sample_index(rows))

    def log_prob(self, value: Tensor) -> Tensor:
        rows = self.layout.to_rows(self.logits)
        return _log_prob_of_index(rows, self.layout.to_index(value)).sum(-1)

    def entropy(self) -> Tensor:
        return _entropy(self.layout.to_rows(self.logits)).sum(-1)

    def kl_divergence(self, other: Distribution) -> Tensor:
        other = self._same_kind(other)
        to_rows = self.layout.to_rows
        return _kl_divergence(to_rows(self.logits), to_rows(other.logits)).sum(-1)

    def masked(self, allowed: Tensor) -> MultiCategorical:
        return MultiCategorical(mask_logits(self.logits, allowed), self.layout)


class MultiBernoulli(ActionDistribution):
    """Independent binary choices.

    Args:
        logits: [*batch, *event], log-odds of a 1.
        num_event_dims: number of dimensions of one action.
        dtype: dtype of the actions.
    """

    parameter_names = ("logits",)
    constant_names = ("num_event_dims", "dtype")

    def __init__(
        self,
        logits: Tensor,
        num_event_dims: int = 1,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        self.logits = logits
        self.num_event_dims = num_event_dims
        self.dtype = dtype

    @property
    def mode(self) -> Tensor:
        return (self.logits > 0).to(self.dtype)

    @property
    def probs(self) -> Tensor:
        """[*batch, *event], of a 1."""
        return self.logits.sigmoid()

    def sample(self, sample_shape: SampleShape = ()) -> Tensor:
        probs = self.logits.detach().float().sigmoid()
        if sample_shape:
            probs = probs.expand(*sample_shape, *probs.shape)
        return (torch.rand_like(probs) < probs).to(self.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        # log σ(l) = l − softplus(l) and log σ(−l) = −softplus(l)
        log_probs = value * self.logits - F.softplus(self.logits)
        return self._sum(log_probs)

    def entropy(self) -> Tensor:
        entropies = F.softplus(self.logits) - self.logits * self.logits.sigmoid()
        return self._sum(entropies)

    def kl_divergence(self, other: Distribution) -> Tensor:
        other = self._same_kind(other)
        # E_p[a (l_p − l_q)] − softplus(l_p) + softplus(l_q)
        kl = (
            self.logits.sigmoid() * (self.logits - other.logits)
            - F.softplus(self.logits)
            + F.softplus(other.logits)
        )
        return self._sum(kl)

    def masked(self, allowed: Tensor) -> MultiBernoulli:
        log_odds = mask_log_odds(self.logits, allowed.reshape(*self.logits.shape, 2))
        return MultiBernoulli(log_odds, self.num_event_dims, self.dtype)


def sample_index(logits: Tensor) -> Tensor:
    """[..., n] → [...], a draw from softmax(logits): argmax of logits + Gumbel noise.

    The noise −log(−log u) is finite, so that a category that was ruled out is never
    drawn: u lies in [0, 1) and 0 is raised. It is float32 because a half-precision u
    has too few bits.
    """
    uniform = torch.rand_like(logits, dtype=torch.float32).clamp_(min=_TINY)
    return (logits - uniform.log_().neg_().log_()).argmax(-1)


def _log_prob_of_index(logits: Tensor, index: Tensor) -> Tensor:
    """[..., n] and [...] → [...]."""
    # Without this, gather would accept an index with fewer rows.
    if index.shape != logits.shape[:-1]:
        logits = logits.expand(*index.shape, logits.shape[-1])
    return logits.log_softmax(-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _entropy(logits: Tensor) -> Tensor:
    """[..., n] → [...]."""
    log_probs = _finite_log_softmax(logits)
    return -(log_probs.exp() * log_probs).sum(-1)


def _kl_divergence(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """[..., n] twice → [...]."""
    p, q = _finite_log_softmax(p_logits), _finite_log_softmax(q_logits)
    return (p.exp() * (p - q)).sum(-1)


def _finite_log_softmax(logits: Tensor) -> Tensor:
    """Keeps 0 · log 0 at 0, and its gradient too."""
    return logits.log_softmax(-1).clamp(min=torch.finfo(logits.dtype).min)
