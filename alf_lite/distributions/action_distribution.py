"""What a distribution of the library's own is: parameters that are leaves of a nest.

They follow the interface of ``torch.distributions`` and differ from its classes in two
points. The constructor only stores its arguments, which makes it fast, differentiable
by any route, and able to hold leaves that are not tensors. And every distribution
covers one whole action: event dimensions are summed, never left to a wrapper.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, register_kl

from alf_lite import nest
from alf_lite.fast import quick

# What torch.distributions takes as the shape of a sample.
SampleShape = torch.Size | list[int] | tuple[int, ...]


class ActionDistribution(Distribution):
    """A distribution of one action whose parameters are leaves of a nest.

    A subclass names its constructor's arguments in order: first ``parameter_names``,
    the tensors with batch dimensions, then ``constant_names``, hashable values that all
    rows share. Its constructor must not look at the parameters: a nest may be rebuilt
    with specs, None or anything else in their place, which gives a placeholder.
    """

    parameter_names: ClassVar[tuple[str, ...]] = ()
    constant_names: ClassVar[tuple[str, ...]] = ()
    # Whether ``from_noise`` makes samples of standard normal numbers.
    takes_noise: ClassVar[bool] = False
    is_unbounded = False  # whether samples may lie out of the bounds of an action
    # Read by torch.distributions.
    arg_constraints: ClassVar[dict[str, Any]] = {}
    _validate_args = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Registers every subclass as a node of nests."""
        super().__init_subclass__(**kwargs)
        parameters, constants = cls.parameter_names, cls.constant_names
        nest.register_node(
            cls,
            lambda d: (_attributes(d, parameters), _attributes(d, constants)),
            lambda metadata, children: cls(*children, *metadata),
        )
        register_kl(cls, cls)(lambda p, q: p.kl_divergence(q))

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of ``log_prob`` and ``entropy``."""
        shape = self._parameter_shape
        return shape[: len(shape) - self._num_parameter_event_dims]

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one action."""
        shape = self._parameter_shape
        return shape[len(shape) - self._num_parameter_event_dims :]

    @property
    def mode(self) -> Tensor:
        """[*batch, *event], the action to take when acting greedily."""
        raise NotImplementedError

    def sample(self, sample_shape: SampleShape = ()) -> Tensor:
        """[*sample_shape, *batch, *event], without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def rsample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        """A differentiable sample [*batch, *event] and its log_prob [*batch]."""
        action = self.rsample()
        return action, self.log_prob(action)

    def from_noise(self, noise: Tensor) -> Tensor:
        """The sample [*batch, *event] that this standard normal noise gives."""
        raise NotImplementedError

    @quick
    def log_prob_and_entropy(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Both [*batch], of an action [*batch, *event]; cheaper than two calls."""
        return self.log_prob(value), self.entropy()

    def kl_divergence(self, other: Distribution) -> Tensor:
        """[*batch], KL(self ‖ other) for another distribution of the same kind."""
        raise NotImplementedError

    def stack_key(self) -> Hashable:
        """Equal for distributions that may be stacked; None if never."""
        return None

    def stack(self, others: Sequence[Self]) -> Self:
        """Those with its ``stack_key``, [*batch] each, as one of [N, *batch]."""
        kind: Any = type(self)
        parameters = [
            torch.stack([getattr(other, name) for other in others])
            for name in self.parameter_names
        ]
        return kind(*parameters, *_attributes(self, self.constant_names))

    def masked(self, allowed: Tensor) -> Self:
        """The same distribution without the values that are not allowed.

        Args:
            allowed: [*batch, n] bool, of the values of all its components, one
                component after the other. At least one of each should be allowed.
        """
        raise ValueError(f"{self!r} is not discrete: a mask can rule nothing out")

    @property
    def _parameter_shape(self) -> torch.Size:
        return getattr(self, self.parameter_names[0]).shape

    @property
    def _num_parameter_event_dims(self) -> int:
        """How many of the parameters' last dimensions belong to one action."""
        told_by: Any = getattr(self, "bounds", self)
        return told_by.num_event_dims

    def _sum(self, values: Tensor) -> Tensor:
        """[..., *event] → [...], of one action."""
        num_dims = self._num_parameter_event_dims
        if num_dims > 1:
            values = values.flatten(-num_dims)
        return values.sum(-1) if num_dims else values

    def _extended_shape(self, sample_shape: SampleShape = ()) -> torch.Size:
        return torch.Size((*sample_shape, *self.batch_shape, *self.event_shape))

    def _same_kind(self, other: Distribution) -> Self:
        """``other``, if it has the class and the constants of this one."""
        names = self.constant_names
        if not isinstance(other, type(self)) or (
            _attributes(other, names) != _attributes(self, names)
        ):
            raise ValueError(
                "kl_divergence: expected two distributions of one kind over the same "
                f"actions, got {self!r} and {other!r}"
            )
        return other

    def __repr__(self) -> str:
        names = (*self.parameter_names, *self.constant_names)
        arguments = ", ".join(f"{n}={_short(getattr(self, n))}" for n in names)
        return f"{type(self).__name__}({arguments})"


def _attributes(obj: object, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([getattr(obj, name) for name in names])


def _short(value: Any) -> str:
    return f"[{tuple(value.shape)}]" if isinstance(value, Tensor) else repr(value)
