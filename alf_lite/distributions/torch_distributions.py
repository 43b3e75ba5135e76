"""The distributions of torch as nodes of nests, and what they do not know themselves.

Their parameters are the leaves, as those of the library's own distributions. A node
that is rebuilt with leaves that are not tensors is a placeholder: it has the class and
the structure, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def mode(distribution: td.Distribution) -> Tensor:
    """The mode [*batch, *event].

    That of a transformed distribution is the image of the mode before it.
    """
    if isinstance(distribution, td.TransformedDistribution):
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


def is_unbounded(distribution: td.Distribution) -> bool:
    """Whether samples are known to be any numbers.

    Transformed distributions do not tell: the support of what is squashed and then
    scaled is said to be the real line.
    """
    if isinstance(distribution, td.Independent):
        return is_unbounded(distribution.base_dist)
    if isinstance(distribution, td.TransformedDistribution):
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
