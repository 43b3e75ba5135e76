"""Nests of distributions, and the nests of actions that belong to them.

A policy's output is a nest of distributions, one per part of the action: the library's
own (``discrete``, ``continuous``) or those of ``torch.distributions``. Their parameters
are leaves of the nest, so that storing, stacking, indexing and detaching are
``alf_lite.nest`` functions.

The library's own follow the interface of ``torch.distributions`` and differ from its
classes in two points. The constructor only stores its arguments, which makes it fast,
differentiable by any route, and able to hold leaves that are not tensors. And every
distribution covers one whole action: event dimensions are summed, never left to a
wrapper. A batch of torch's that should count as one action is wrapped in
``torch.distributions.Independent``.

The parts of a nest are independent: log-probabilities, entropies and divergences are
summed over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, Self

import optree
import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution, register_kl

from alf_lite import nest

# Registers torch's distributions as nodes, too.
from alf_lite.distributions import torch_distributions

Nest = Any
# What torch.distributions takes as the shape of a sample.
SampleShape = torch.Size | list[int] | tuple[int, ...]

_NAMESPACE = "alf_lite"  # that of alf_lite.nest


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

    def log_prob_and_entropy(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Both [*batch], of an action [*batch, *event]; cheaper than two calls."""
        return self.log_prob(value), self.entropy()

    def kl_divergence(self, other: Distribution) -> Tensor:
        """[*batch], KL(self ‖ other) for another distribution of the same kind."""
        raise NotImplementedError

    def stack_key(self) -> Hashable:
        """Equal for distributions that may be stacked; None if never."""
        return None

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


def sample(distributions: Nest) -> Nest:
    """Actions [B, ...], drawn with torch's global generator, without gradient."""
    return _map(_sample, distributions)


def rsample(distributions: Nest) -> Nest:
    """Actions [B, ...] that are differentiable in the parameters.

    Raises:
        ValueError: if a distribution has no reparametrised sample.
    """
    return _map(lambda d: _require_rsample(d).rsample(), distributions)


def rsample_and_log_prob(distributions: Nest) -> tuple[Nest, Tensor]:
    """:func:`rsample` and the log-probability [B] of what was drawn.

    Cheaper, and for squashed distributions more exact, than two calls.
    """
    if isinstance(distributions, ActionDistribution):
        return _require_rsample(distributions).rsample_and_log_prob()
    parts, structure = _flatten(distributions)
    pairs = [_rsample_and_log_prob(_require_rsample(d)) for d in parts]
    actions = optree.tree_unflatten(structure, [action for action, _ in pairs])
    return actions, _sum([log_prob for _, log_prob in pairs])


def mode(distributions: Nest) -> Nest:
    """The greedy actions [B, ...].

    The mode of a transformed distribution is the image of the mode before it.
    """
    return _map(_mode, distributions)


def epsilon_greedy(distributions: Nest, epsilon: float) -> Nest:
    """Per row, a sample with probability ``epsilon`` and else the mode.

    All parts of the action of one row are drawn alike. 0 always takes the mode, 1
    always samples.
    """
    if not 0.0 <= epsilon <= 1.0:
        raise ValueError(f"epsilon must be in [0, 1], got {epsilon}")
    if epsilon == 0.0:
        return mode(distributions)
    if epsilon == 1.0:
        return sample(distributions)
    parts, structure = _flatten(distributions)
    greedy = [_mode(d) for d in parts]
    drawn = [d.sample() for d in parts]
    explores = torch.rand(parts[0].batch_shape, device=greedy[0].device) < epsilon
    chosen = [
        torch.where(explores.reshape(_pad(explores.shape, g.ndim)), d, g)
        for d, g in zip(drawn, greedy, strict=True)
    ]
    return optree.tree_unflatten(structure, chosen)


def log_prob(distributions: Nest, actions: Nest) -> Tensor:
    """[B], of a nest of actions with one tensor per distribution."""
    if isinstance(distributions, Distribution):
        return distributions.log_prob(actions)
    parts, structure = _flatten(distributions)
    columns = _flatten_up_to(structure, actions, "log_prob")
    terms = []
    for stack, begin, end in _stacks(parts):
        own, column = parts[begin:end], columns[begin:end]
        if stack is not None and all(a.shape == own[0].batch_shape for a in column):
            terms.append(stack.log_prob(torch.stack(column)).sum(0))
        else:
            terms += [d.log_prob(a) for d, a in zip(own, column, strict=True)]
    return _sum(terms)


def entropy(distributions: Nest) -> Tensor:
    """[B], differentiable; estimated from one sample where there is no closed form."""
    if isinstance(distributions, ActionDistribution):
        return distributions.entropy()
    parts = _flatten(distributions)[0]
    terms = []
    for stack, begin, end in _stacks(parts):
        if stack is None:
            terms += [_entropy(d) for d in parts[begin:end]]
        else:
            terms.append(stack.entropy().sum(0))
    return _sum(terms)


def log_prob_and_entropy(distributions: Nest, actions: Nest) -> tuple[Tensor, Tensor]:
    """:func:`log_prob` [B] and :func:`entropy` [B]; cheaper than two calls."""
    if isinstance(distributions, ActionDistribution):
        return distributions.log_prob_and_entropy(actions)
    return log_prob(distributions, actions), entropy(distributions)


def kl_divergence(p: Nest, q: Nest) -> Tensor:
    """[B], KL(p ‖ q) of two nests of the same kinds of distributions."""
    parts, structure = _flatten(p)
    others = _flatten_up_to(structure, q, "kl_divergence")
    return _sum([_kl(a, b) for a, b in zip(parts, others, strict=True)])


def parts(distributions: Nest) -> list[Distribution]:
    """The distributions of the nest, in the order of its leaves."""
    if isinstance(distributions, Distribution):
        return [distributions]
    return _flatten(distributions)[0]


def mask(distributions: Nest, allowed: Sequence[Tensor | None]) -> Nest:
    """The same distributions without the values that are not allowed.

    Args:
        distributions: nest of N distributions.
        allowed: for each of them, in the order of :func:`parts`, [B, n] bool of the n
            values that it may take, see :meth:`ActionDistribution.masked`; None to
            leave it as it is.

    Raises:
        ValueError: if a distribution is not discrete.
    """
    if isinstance(distributions, Distribution):
        (only,) = allowed
        return distributions if only is None else _masked(distributions, only)
    parts, structure = _flatten(distributions)
    masked = [
        part if values is None else _masked(part, values)
        for part, values in zip(parts, allowed, strict=True)
    ]
    return optree.tree_unflatten(structure, masked)


def detach(distributions: Nest) -> Nest:
    """The same distributions with detached parameters."""
    return nest.map_structure(lambda t: t.detach(), distributions)


def _is_distribution(node: Any) -> bool:
    return isinstance(node, Distribution)


def _flatten(distributions: Nest) -> tuple[list[Distribution], optree.PyTreeSpec]:
    """The distributions of the nest, taken as leaves."""
    parts, structure = optree.tree_flatten(
        distributions, is_leaf=_is_distribution, namespace=_NAMESPACE
    )
    for part in parts:
        if not isinstance(part, Distribution):
            raise TypeError(
                "expected a nest of distributions, found a leaf of type "
                f"{type(part).__name__} in {structure}"
            )
    if not parts:
        raise ValueError("expected at least one distribution, got an empty nest")
    return parts, structure


def _flatten_up_to(structure: optree.PyTreeSpec, other: Nest, what: str) -> list[Any]:
    try:
        return structure.flatten_up_to(other)
    except ValueError as error:
        raise ValueError(
            f"{what}: the second argument does not match the nest of distributions: "
            f"{error}"
        ) from error


def _map(fn: Callable[[Distribution], Tensor], distributions: Nest) -> Nest:
    if isinstance(distributions, Distribution):
        return fn(distributions)
    parts, structure = _flatten(distributions)
    results: list[Tensor] = []
    for stack, begin, end in _stacks(parts):
        if stack is None:
            results += [fn(d) for d in parts[begin:end]]
        else:
            results += fn(stack).unbind(0)
    return optree.tree_unflatten(structure, results)


# From so many on, stacking takes less time than it saves.
_MIN_STACKED = 4


def _stacks(
    parts: list[Distribution],
) -> Iterator[tuple[ActionDistribution | None, int, int]]:
    """The parts in runs: many equal ones [*batch] as one of batch shape [N, *batch].

    Yields:
        The stack and which parts are in it, from the first to the one after the last;
        None for parts that are used one by one.
    """
    if len(parts) < _MIN_STACKED:
        yield None, 0, len(parts)
        return
    begin = 0
    for key, run in itertools.groupby(parts, _stack_key):
        own: list[Any] = list(run)
        end = begin + len(own)
        first = own[0]
        if key is None or len(own) < _MIN_STACKED:
            yield None, begin, end
        else:
            parameters = [
                torch.stack([getattr(part, name) for part in own])
                for name in first.parameter_names
            ]
            constants = _attributes(first, first.constant_names)
            yield type(first)(*parameters, *constants), begin, end
        begin = end


def _stack_key(distribution: Distribution) -> Hashable:
    if isinstance(distribution, ActionDistribution):
        return distribution.stack_key()
    return None


def _sample(distribution: Distribution) -> Tensor:
    return distribution.sample()


def _sum(terms: list[Tensor]) -> Tensor:
    shapes = {term.shape for term in terms}
    if len(shapes) > 1:
        raise ValueError(
            f"the distributions of one nest have different batch shapes: {shapes}. "
            "Event dimensions of torch's distributions are declared with Independent."
        )
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _require_rsample(distribution: Distribution) -> Any:
    if not distribution.has_rsample:
        raise ValueError(
            f"{distribution!r} has no reparametrised sample; use sample() and the "
            "score function, or a continuous distribution"
        )
    return distribution


def _rsample_and_log_prob(distribution: Distribution) -> tuple[Tensor, Tensor]:
    if isinstance(distribution, ActionDistribution):
        return distribution.rsample_and_log_prob()
    action = distribution.rsample()
    return action, distribution.log_prob(action)


def _mode(distribution: Distribution) -> Tensor:
    if isinstance(distribution, ActionDistribution):
        return distribution.mode
    return torch_distributions.mode(distribution)


def _masked(distribution: Distribution, allowed: Tensor) -> Distribution:
    if isinstance(distribution, ActionDistribution):
        return distribution.masked(allowed)
    return torch_distributions.masked(distribution, allowed)


def _entropy(distribution: Distribution) -> Tensor:
    try:
        return distribution.entropy()
    except NotImplementedError:
        # −log p of a reparametrised sample also has the right gradient.
        return -_rsample_and_log_prob(_require_rsample(distribution))[1]


def _kl(p: Distribution, q: Distribution) -> Tensor:
    if isinstance(p, ActionDistribution):
        return p.kl_divergence(q)
    return td.kl_divergence(p, q)


def _pad(shape: torch.Size, ndim: int) -> tuple[int, ...]:
    """``shape`` with trailing ones."""
    return (*shape, *(1 for _ in range(ndim - len(shape))))
