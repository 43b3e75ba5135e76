"""A choice that is written as a vector with one element that differs."""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from alf_lite.distributions.action_distribution import ActionDistribution, SampleShape
from alf_lite.distributions.continuous import ActionBounds
from alf_lite.distributions.discrete import Categorical


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
        if not self.bounds.spec.is_continuous:
            raise ValueError(f"{self!r} has integers, which no gradient goes through")
        soft = self.bounds.from_unit(self.probs)
        return sample + (soft - soft.detach())

    def log_prob(self, value: Tensor) -> Tensor:
        return Categorical(self.logits).log_prob(self._index(value))

    def entropy(self) -> Tensor:
        return Categorical(self.logits).entropy()

    def log_prob_and_entropy(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return Categorical(self.logits).log_prob_and_entropy(self._index(value))

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

    @property
    def _num_parameter_event_dims(self) -> int:
        return 1
