"""Nests of distributions, and the nests of actions that belong to them.

A policy's output is a nest of distributions, one per part of the action: the library's
own (``discrete``, ``continuous``, see ``action_distribution``) or those of
``torch.distributions``, of which a batch that should count as one action is wrapped in
``torch.distributions.Independent``. Their parameters are leaves of the nest, so that
storing, stacking, indexing and detaching are ``alf_lite.nest`` functions.

The parts of a nest are independent: log-probabilities, entropies and divergences are
summed over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeGuard

import optree
import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution

from alf_lite import nest

# Registers torch's distributions as nodes, too.
from alf_lite.distributions import torch_distributions
from alf_lite.distributions.action_distribution import ActionDistribution
from alf_lite.utils.tensor_utils import expand_dims_as

Nest = Any

_NAMESPACE = "alf_lite"  # that of alf_lite.nest


def sample(distributions: Nest) -> Nest:
    """Actions [B, ...], drawn with torch's global generator, without gradient."""
    if isinstance(distributions, Distribution):
        return distributions.sample()
    return _map(lambda d: d.sample(), distributions)


def noise_size(distributions: Nest) -> int:
    """How many numbers of a row :func:`sample_with_noise` takes.

    Raises:
        ValueError: if a continuous part is not normal, squashed or not, or there is
            none.
    """
    size = 0
    for part in parts(distributions):
        if _takes_noise(part):
            size += part.event_shape.numel()
        elif part.has_rsample:
            raise ValueError(f"{part!r} is not made of normal noise")
    if not size:
        raise ValueError("no part of the action is continuous")
    return size


def sample_with_noise(distributions: Nest, noise: Tensor) -> Nest:
    """As :func:`sample`, with this noise for the continuous parts.

    Args:
        distributions: nest of batch shape [B].
        noise: [B, :func:`noise_size`] of standard normal numbers.
    """
    parts, structure = _flatten(distributions)
    actions, begin = [], 0
    for part in parts:
        if _takes_noise(part):
            end = begin + part.event_shape.numel()
            own = noise[:, begin:end].reshape(noise.shape[:1] + part.event_shape)
            actions.append(part.from_noise(own))
            begin = end
        else:
            actions.append(part.sample())
    return optree.tree_unflatten(structure, actions)


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
        torch.where(expand_dims_as(explores, g), d, g)
        for d, g in zip(drawn, greedy, strict=True)
    ]
    return optree.tree_unflatten(structure, chosen)


def log_prob(distributions: Nest, actions: Nest) -> Tensor:
    """[B], of a nest of actions with one tensor per distribution."""
    if isinstance(distributions, Distribution):
        return distributions.log_prob(actions)
    parts, structure = _flatten(distributions)
    columns: list[Any] = structure.flatten_up_to(actions)
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
    others: list[Any] = structure.flatten_up_to(q)
    return _sum([_kl(a, b) for a, b in zip(parts, others, strict=True)])


def parts(distributions: Nest) -> list[Distribution]:
    """The distributions of the nest, in the order of its leaves."""
    if isinstance(distributions, Distribution):
        return [distributions]
    return _flatten(distributions)[0]


def is_unbounded(distribution: Distribution) -> bool:
    """Whether samples are known to lie anywhere, whatever the bounds of the action."""
    if isinstance(distribution, ActionDistribution):
        return distribution.is_unbounded
    return torch_distributions.is_unbounded(distribution)


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
        if key is None or len(own) < _MIN_STACKED:
            yield None, begin, end
        else:
            yield own[0].stack(own), begin, end
        begin = end


def _stack_key(distribution: Distribution) -> Hashable:
    if isinstance(distribution, ActionDistribution):
        return distribution.stack_key()
    return None


def _takes_noise(distribution: Distribution) -> TypeGuard[ActionDistribution]:
    return isinstance(distribution, ActionDistribution) and distribution.takes_noise


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
    if isinstance(distribution, td.MixtureSameFamily):
        return torch_distributions.mixture_entropy(distribution)
    try:
        return distribution.entropy()
    except NotImplementedError:
        # −log p of a reparametrised sample also has the right gradient.
        return -_rsample_and_log_prob(_require_rsample(distribution))[1]


def _kl(p: Distribution, q: Distribution) -> Tensor:
    if isinstance(p, ActionDistribution):
        return p.kl_divergence(q)
    if isinstance(p, td.MixtureSameFamily):
        return torch_distributions.mixture_kl_divergence(p, q)
    return td.kl_divergence(p, q)
