"""The distributions of torch as nodes of nests, and what they do not know themselves.

Their parameters are the leaves, as those of the library's own distributions. A node
that is rebuilt with leaves that are not tensors is a placeholder: it has the class and
the structure, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch import distributions as td

from alf_lite import nest

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
    td.Gumbel: ("loc", "scale"),
    td.Laplace: ("loc", "scale"),
    td.MultivariateNormal: ("loc", "scale_tril"),
    td.Normal: ("loc", "scale"),
    td.OneHotCategorical: ("logits",),
    td.OneHotCategoricalStraightThrough: ("logits",),
    td.Poisson: ("rate",),
    td.StudentT: ("df", "loc", "scale"),
}
_PLACEHOLDER_LEAVES = "_placeholder_leaves"


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


def _flatten_mixture(d: td.MixtureSameFamily) -> tuple[tuple, None]:
    leaves = d.__dict__.get(_PLACEHOLDER_LEAVES)
    return leaves or (d.mixture_distribution, d.component_distribution), None


def _unflatten_mixture(_: None, children: Sequence[Any]) -> td.MixtureSameFamily:
    if not all(map(_is_real, children)):
        return _placeholder(td.MixtureSameFamily, children)
    weights, components = children
    return td.MixtureSameFamily(weights, components, validate_args=False)


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


nest.register_node(td.MixtureSameFamily, _flatten_mixture, _unflatten_mixture)


def mode(distribution: td.Distribution) -> Tensor:
    """The mode [*batch, *event].

    That of a transformed distribution is the image of the mode before it, that of a
    mixture the mode of the component where its density is highest.
    """
    if isinstance(distribution, td.MixtureSameFamily):
        modes = _components_first(
            distribution, mode(distribution.component_distribution)
        )
        best = distribution.log_prob(modes).argmax(0)  # [*batch]
        index = best.reshape(1, *best.shape, *(1 for _ in distribution.event_shape))
        return modes.take_along_dim(index, 0).squeeze(0)
    if _is_transformed(distribution):
        action = mode(distribution.base_dist)
        for transform in distribution.transforms:
            action = transform(action)
        return action
    if isinstance(distribution, td.Independent):
        return mode(distribution.base_dist)
    if isinstance(distribution, td.Bernoulli):
        # torch answers NaN where both values are equally likely.
        return (distribution.logits > 0).to(distribution.logits.dtype)
    return distribution.mode


def _is_transformed(
    distribution: td.Distribution,
) -> TypeGuard[td.TransformedDistribution]:
    """Whether it is made of another; torch makes Gumbel's so, which has all itself."""
    is_gumbel = isinstance(distribution, td.Gumbel)
    return isinstance(distribution, td.TransformedDistribution) and not is_gumbel


def mixture_entropy(p: td.MixtureSameFamily) -> Tensor:
    """[*batch], estimated with one sample of each component; as `NormalMixture`'s.

    Raises:
        ValueError: if the components have no reparametrised sample.
    """
    return -_expectation(p, p.log_prob)


def mixture_kl_divergence(p: td.MixtureSameFamily, q: td.Distribution) -> Tensor:
    """[*batch], KL(p ‖ q), estimated like :func:`mixture_entropy`."""
    return _expectation(p, lambda x: p.log_prob(x) - q.log_prob(x))


def _expectation(
    p: td.MixtureSameFamily, function: Callable[[Tensor], Tensor]
) -> Tensor:
    """E_p[function], with the gradients of weights and components."""
    components = p.component_distribution
    if not components.has_rsample:
        raise ValueError(
            f"the components of {p!r} have no reparametrised sample: there is no "
            "entropy and no divergence of this mixture"
        )
    values = function(_components_first(p, components.rsample()))  # [K, *batch]
    return (p.mixture_distribution.probs.movedim(-1, 0) * values).sum(0)


def _components_first(p: td.MixtureSameFamily, values: Tensor) -> Tensor:
    """[*batch, K, *event] → [K, *batch, *event], as samples of the mixture."""
    return values.movedim(len(p.batch_shape), 0)


def is_unbounded(distribution: td.Distribution) -> bool:
    """Whether samples are known to be any numbers.

    Transformed distributions do not tell: the support of what is squashed and then
    scaled is said to be the real line.
    """
    if isinstance(distribution, td.Independent):
        return is_unbounded(distribution.base_dist)
    if isinstance(distribution, td.MixtureSameFamily):
        return is_unbounded(distribution.component_distribution)
    if _is_transformed(distribution):
        return False
    try:
        support = distribution.support
    except NotImplementedError:
        return False
    return support in (td.constraints.real, td.constraints.real_vector)


def masked(distribution: td.Distribution, allowed: Tensor) -> Any:
    """As ``ActionDistribution.masked``.

    Raises:
        ValueError: if the distribution is not discrete.
    """
    base = distribution
    if isinstance(distribution, td.Independent):
        base = distribution.base_dist
    if isinstance(base, td.Categorical):
        return nest.map_structure(
            lambda t: mask_logits(t, allowed.reshape(t.shape)), distribution
        )
    if isinstance(base, td.Bernoulli):
        return nest.map_structure(
            lambda t: mask_log_odds(t, allowed.reshape(*t.shape, 2)), distribution
        )
    raise ValueError(f"{distribution!r} is not discrete: a mask can rule nothing out")


def mask_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """Of categories: [..., n] and bool [..., n] → [..., n].

    Where none is allowed, all are equally likely.
    """
    return logits.masked_fill(~allowed, -_large(logits.dtype))


def mask_log_odds(log_odds: Tensor, allowed: Tensor) -> Tensor:
    """Of binary choices: [...] and bool [..., 2], of 0 and of 1, → [...].

    Where none is allowed, 1 is chosen.
    """
    large = _large(log_odds.dtype)
    without_one = log_odds.masked_fill(~allowed[..., 1], -large)
    return without_one.masked_fill(~allowed[..., 0], large)


def _large(dtype: torch.dtype) -> float:
    """Leaves room for sums over many components and products with advantages.

    Also in half precision it is less than what pads components with fewer values.
    """
    return min(1e30, torch.finfo(dtype).max / 4)
