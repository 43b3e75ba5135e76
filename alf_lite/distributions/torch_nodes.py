"""Makes the classes of ``torch.distributions`` nodes of nests. Import for effect.

Their parameters become the leaves, so that storing, stacking, indexing and detaching
needs no special case. A node that is rebuilt with leaves that are not tensors is a
placeholder: it has the class and the structure, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
