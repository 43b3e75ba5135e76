"""A choice that is written as a vector with one element that differs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from alf_lite.distributions.action_distribution import ActionDistribution, SampleShape
from alf_lite.distributions.continuous import ActionBounds
from alf_lite.distributions.discrete import Categorical

_LOG_OF_ZERO = -1e4


class OneHotCategorical(ActionDistribution):
    """One of n elements of a vector has its maximum, all others their minimum.

    The gradient of a reparametrised sample is that of the probabilities: the
    straight-through estimator of Bengio et al. 2013 (arXiv:1308.3432).

    Args:
        logits: [*batch, n], unnormalised.
        bounds: of the vectors.
    """

    parameter_names = ("logits",)
    constant_names = ("bounds",)
    has_rsample = True

    def __init__(self, logits: Tensor, bounds: ActionBounds) -> None:
        self.logits = logits
        self.bounds = bounds

    @property
    def mode(self) -> Tensor:
        return self._vector(self.logits.argmax(-1))

    @property
    def probs(self) -> Tensor:
        """[*batch, n]."""
        return self.logits.softmax(-1)

    def sample(self, sample_shape: SampleShape = ()) -> Tensor:
        return self._vector(Categorical(self.logits).sample(sample_shape))

    def rsample(self, sample_shape: SampleShape = ()) -> Tensor:
        sample = self.sample(sample_shape)
        soft = self._checked().from_unit(self.probs)
        return sample + (soft - soft.detach())

    def rsample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        """The log-probability has the gradient of minus the entropy, on average."""
        index = Categorical(self.logits).sample()
        log_probs = self.logits.log_softmax(-1)
        probs = log_probs.exp()
        chosen = F.one_hot(index, self.logits.shape[-1]) + (probs - probs.detach())
        # Of what a mask rules out, the logarithm may be infinite.
        log_prob = (chosen * log_probs.clamp(min=_LOG_OF_ZERO)).sum(-1)
        return self._checked().from_unit(chosen), log_prob

    def log_prob(self, value: Tensor) -> Tensor:
        """−∞ of binary vectors that have not a single 1."""
        log_prob = Categorical(self.logits).log_prob(self._index(value))
        if self.bounds.spec.is_continuous:
            return log_prob
        return log_prob.masked_fill(value.sum(-1) != 1, -torch.inf)

    def entropy(self) -> Tensor:
        return Categorical(self.logits).entropy()

    def kl_divergence(self, other: Distribution) -> Tensor:
        other = self._same_kind(other)
        return Categorical(self.logits).kl_divergence(Categorical(other.logits))

    def masked(self, allowed: Tensor) -> OneHotCategorical:
        """See :class:`ActionDistribution`.

        Args:
            allowed: [*batch, n] bool; or [*batch, 2n], as masks of binary vectors have
                it, whether each element may be 0 and whether it may be 1: only the
                latter counts.
        """
        if allowed.shape[-1] == 2 * self.logits.shape[-1]:
            allowed = allowed.unflatten(-1, (-1, 2))[..., 1]
        return OneHotCategorical(
            Categorical(self.logits).masked(allowed).logits, self.bounds
        )

    def _checked(self) -> ActionBounds:
        """Of vectors that a gradient may go through."""
        if not self.bounds.spec.is_continuous:
            raise ValueError(f"{self!r} has integers, which no gradient goes through")
        return self.bounds

    def _vector(self, index: Tensor) -> Tensor:
        """[...] → [..., n]."""
        chosen = F.one_hot(index, self.logits.shape[-1])
        spec = self.bounds.spec
        if not spec.is_continuous:
            return chosen.to(spec.dtype)
        return self.bounds.from_unit(chosen.to(spec.dtype))

    def _index(self, value: Tensor) -> Tensor:
        """[..., n] → [...]."""
        return self.bounds.to_unit(value.float()).argmax(-1)
