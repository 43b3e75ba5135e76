"""Mixtures of normal distributions, for actions with more than one good answer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from alf_lite.distributions.action_distribution import ActionDistribution, SampleShape
from alf_lite.distributions.continuous import (
    ActionBounds,
    log_tanh_derivative,
    normal_log_prob,
)
from alf_lite.distributions.discrete import sample_index


class NormalMixture(ActionDistribution):
    """One of K diagonal normal distributions, squashed to bounds by tanh or not.

        p(u) = Σ_k w_k N(u; loc_k, scale_k),  a = u or a = middle + half · tanh(u)

    ``mode`` is the mean of the component where the density of u is highest. Entropy
    and divergence have no closed form; a sample of every component estimates them,
    without bias and with the gradients of weights and components. There is no
    reparametrised sample: which component is drawn has no gradient.

    Args:
        logits: [*batch, K], of the weights w.
        loc: [*batch, K, N], the means of the N elements of u.
        scale: [*batch, K, N], standard deviations.
        shape: of one action, with N elements.
        bounds: the box of squashed actions; None: actions are u itself.
    """

    parameter_names = ("logits", "loc", "scale")
    constant_names = ("shape", "bounds")

    def __init__(
        self,
        logits: Tensor,
        loc: Tensor,
        scale: Tensor,
        shape: torch.Size,
        bounds: ActionBounds | None = None,
    ) -> None:
        self.logits = logits
        self.loc = loc
        self.scale = scale
        self.shape = shape
        self.bounds = bounds
        self.is_unbounded = bounds is None

    @property
    def batch_shape(self) -> torch.Size:
        return self.logits.shape[:-1]

    @property
    def event_shape(self) -> torch.Size:
        return self.shape

    @property
    def probs(self) -> Tensor:
        """[*batch, K], w."""
        return self.logits.softmax(-1)

    @property
    def mode(self) -> Tensor:
        # The means of all components as K values of each row
        densities = self._log_prob_of_u(self.loc)  # [*batch, K]
        return self._action(_chosen(self.loc, densities.argmax(-1)))

    def sample(self, sample_shape: SampleShape = ()) -> Tensor:
        logits = self.logits.detach().expand(*sample_shape, *self.logits.shape)
        component = sample_index(logits)
        shape = torch.Size((*sample_shape, *self.loc.shape))
        loc = _chosen(self.loc.detach().expand(shape), component)
        scale = _chosen(self.scale.detach().expand(shape), component)
        return self._action(torch.addcmul(loc, scale, torch.randn_like(loc)))

    def log_prob(self, value: Tensor) -> Tensor:
        num_dims = len(self.shape)
        if self.bounds is not None:
            value = self.bounds.unsquash(value)
        batch_shape = value.shape[: value.ndim - num_dims]
        u = value.reshape(*batch_shape, -1)
        log_prob = self._log_prob_of_u(u.unsqueeze(-2)).squeeze(-1)
        return log_prob - self._log_derivative(u)

    def entropy(self) -> Tensor:
        u = self._sample_of_each()
        log_probs = self._log_prob_of_u(u) - self._log_derivative(u)  # [*batch, K]
        return -(self.probs * log_probs).sum(-1)

    def kl_divergence(self, other: Distribution) -> Tensor:
        """A one-to-one map keeps the divergence: it is that of u."""
        other = self._same_kind(other)
        u = self._sample_of_each()
        distance = self._log_prob_of_u(u) - other._log_prob_of_u(u)
        return (self.probs * distance).sum(-1)

    def _sample_of_each(self) -> Tensor:
        """[*batch, K, N], one u of every component, with gradient."""
        return torch.addcmul(self.loc, self.scale, torch.randn_like(self.loc))

    def _log_prob_of_u(self, u: Tensor) -> Tensor:
        """[..., J, N], J values of each row → [..., J]."""
        loc, scale = self.loc.unsqueeze(-3), self.scale.unsqueeze(-3)  # [..., 1, K, N]
        log_probs = normal_log_prob(u.unsqueeze(-2), loc, scale)
        weights = self.logits.log_softmax(-1).unsqueeze(-2)
        return (log_probs.sum(-1) + weights).logsumexp(-1)

    def _log_derivative(self, u: Tensor) -> Tensor | float:
        """The log |da/du| of u [..., N], summed over the elements."""
        if self.bounds is None:
            return 0.0
        return log_tanh_derivative(u).sum(-1) + self.bounds.log_half_widths

    def _action(self, u: Tensor) -> Tensor:
        """[..., N] → [..., *event]."""
        u = u.reshape(*u.shape[:-1], *self.shape)
        return u if self.bounds is None else self.bounds.squash(u)


def _chosen(values: Tensor, component: Tensor) -> Tensor:
    """[..., K, N] and [...] → [..., N]."""
    index = component[..., None, None].expand(*component.shape, 1, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)
