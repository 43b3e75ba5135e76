"""Distributions as nodes of nests, the library's own and those of torch.

Their parameters are the leaves, so that storing, stacking, indexing and detaching needs
no special case. A node that is rebuilt with leaves that are not tensors is a
placeholder: it has the class and the structure, and nothing else.

The library's own follow the interface of ``torch.distributions`` and differ from its
classes in two points. The constructor only stores its arguments, which makes it fast,
differentiable by any route, and able to hold leaves that are not tensors (see
:class:`ActionDistribution`). And every distribution covers one whole action: event
dimensions are summed, never left to a wrapper such as ``Independent``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution, register_kl

from alf_lite import nest

# What torch.distributions takes as the shape of a sample.
SampleShape = torch.Size | list[int] | tuple[int, ...]
# A distribution that was made from probs is rebuilt from its logits.
_PARAMETER_NAMES = {
    td.Bernoulli: ("logits",),
    td.Beta: ("concentration1", "concentration0"),
    td.Categorical: ("logits",),
    td.Cauchy: ("loc", "scale"),
    td.Dirichlet: ("concentration",),
    td.Exponential: ("rate",),
    td.Gamma: ("concentration", "rate"),
    td.Geometric: ("logits",),
    td.Laplace: ("loc", "scale"),
    td.MultivariateNormal: ("loc", "scale_tril"),
    td.Normal: ("loc", "scale"),
    td.OneHotCategorical: ("logits",),
    td.OneHotCategoricalStraightThrough: ("logits",),
    td.Poisson: ("rate",),
    td.StudentT: ("df", "loc", "scale"),
}
_PLACEHOLDER_LEAVES = "_placeholder_leaves"


class ActionDistribution(Distribution):
    """A distribution of one action whose parameters are leaves of a nest.

    A subclass names its constructor's arguments in order: first ``parameter_names``,
    the tensors with batch dimensions, then ``constant_names``, hashable values that all
    rows share. Its constructor must not look at the parameters: a nest may be rebuilt
    with specs, None or anything else in their place, which gives a placeholder.
    """

    parameter_names: ClassVar[tuple[str, ...]] = ()
    constant_names: ClassVar[tuple[str, ...]] = ()
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

    def kl_divergence(self, other: Distribution) -> Tensor:
        """[*batch], KL(self ‖ other) for another distribution of the same kind."""
        raise NotImplementedError

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
        raise NotImplementedError

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


class DeviceConstants:
    """Read-only tensors made from arrays, copied once to every device that asks."""

    def __init__(self, *arrays: np.ndarray) -> None:
        # A tensor that is made in inference mode could never be used for training.
        with torch.inference_mode(False):
            tensors = tuple(torch.tensor(array) for array in arrays)
        self._tensors = {torch.device("cpu"): tensors}

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """The tensors on ``device``, in the order of the arrays."""
        tensors = self._tensors.get(device)
        if tensors is None:
            with torch.inference_mode(False):
                on_cpu = self._tensors[torch.device("cpu")]
                tensors = tuple(tensor.to(device) for tensor in on_cpu)
            self._tensors[device] = tensors
        return tensors


def sum_event(values: Tensor, num_event_dims: int) -> Tensor:
    """[*batch, *event] summed over its last ``num_event_dims`` dimensions."""
    if num_event_dims == 0:
        return values
    if num_event_dims == 1:
        return values.sum(-1)
    return values.flatten(-num_event_dims).sum(-1)


def _attributes(obj: object, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([getattr(obj, name) for name in names])


def _short(value: Any) -> str:
    return f"[{tuple(value.shape)}]" if isinstance(value, Tensor) else repr(value)


def _register(cls: type[td.Distribution], names: tuple[str, ...]) -> None:
    """Registers a class whose constructor takes the named tensors."""

    def flatten(distribution: td.Distribution) -> tuple[tuple, None]:
        leaves = distribution.__dict__.get(_PLACEHOLDER_LEAVES)
        return leaves or tuple(getattr(distribution, n) for n in names), None

    def unflatten(_: None, leaves: Sequence[Any]) -> td.Distribution:
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            return _placeholder(cls, leaves)
        return cls(**dict(zip(names, leaves, strict=True)), validate_args=False)

    nest.register_node(cls, flatten, unflatten)


def _flatten_independent(d: td.Independent) -> tuple[tuple, int]:
    return (d.base_dist,), d.reinterpreted_batch_ndims


def _unflatten_independent(num_dims: int, children: Sequence[Any]) -> td.Independent:
    if not _is_real(children[0]):
        placeholder = _placeholder(td.Independent, children)
        placeholder.base_dist = children[0]
        placeholder.reinterpreted_batch_ndims = num_dims
        return placeholder
    return td.Independent(children[0], num_dims, validate_args=False)


def _flatten_transformed(d: td.TransformedDistribution) -> tuple[tuple, tuple]:
    # A transform with tensors of its own holds constants, such as the bounds of the
    # actions: they have no batch dimension and are no leaves.
    return (d.base_dist,), tuple(d.transforms)


def _unflatten_transformed(
    transforms: tuple[td.Transform, ...], children: Sequence[Any]
) -> td.TransformedDistribution:
    if not _is_real(children[0]):
        placeholder = _placeholder(td.TransformedDistribution, children)
        placeholder.base_dist = children[0]
        placeholder.transforms = list(transforms)
        return placeholder
    return td.TransformedDistribution(
        children[0], list(transforms), validate_args=False
    )


def _placeholder(cls: type[td.Distribution], leaves: Sequence[Any]) -> Any:
    placeholder = object.__new__(cls)
    setattr(placeholder, _PLACEHOLDER_LEAVES, tuple(leaves))
    return placeholder


def _is_real(child: Any) -> bool:
    return isinstance(child, td.Distribution) and not hasattr(
        child, _PLACEHOLDER_LEAVES
    )


for _cls, _names in _PARAMETER_NAMES.items():
    _register(_cls, _names)


nest.register_node(td.Independent, _flatten_independent, _unflatten_independent)


nest.register_node(
    td.TransformedDistribution, _flatten_transformed, _unflatten_transformed
)
