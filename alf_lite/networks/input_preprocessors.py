"""What encodes leaves of an observation, by their path, and what joins the features."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.networks.input_encoders import InputEncoder
from alf_lite.networks.network import Network, require_module
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec

Nest = Any
# A name, or a function of the features [..., size] of all parts.
Combiner = Literal["concat", "sum", "multiply"] | Callable[[Sequence[Tensor]], Tensor]
# Called with the spec of a leaf; or a module itself.
Preprocessor = Callable[[TensorSpec], nn.Module] | nn.Module


def _sum(features: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.add, features)


def _multiply(features: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.mul, features)


def concat(features: Sequence[Tensor]) -> Tensor:
    """All features of all parts, one after the other."""
    return features[0] if len(features) == 1 else torch.cat(list(features), dim=-1)


COMBINERS = {"concat": concat, "sum": _sum, "multiply": _multiply}


def make_combiner(
    combiner: Combiner, sizes: Mapping[str, int]
) -> tuple[Callable[[Sequence[Tensor]], Tensor], int]:
    """What joins features [..., size] of several parts, and the size of the result.

    Args:
        combiner: "concat", "sum", "multiply", or a function.
        sizes: of the features of each part, by its name.

    Raises:
        ValueError: if the sizes cannot be joined in this way.
    """
    if callable(combiner):
        with torch.no_grad():
            joined = combiner([torch.zeros(2, size) for size in sizes.values()])
        if joined.ndim != 2 or len(joined) != 2:
            raise ValueError(
                "combiner: expected features [B, size] from features of that shape, "
                f"got {tuple(joined.shape)} for B = 2"
            )
        return combiner, joined.shape[1]
    if combiner not in COMBINERS:
        raise ValueError(
            f"combiner: expected one of {sorted(COMBINERS)} or a function of a list "
            f"of tensors, got {combiner!r}.{did_you_mean(str(combiner), COMBINERS)}"
        )
    if combiner == "concat":
        return concat, sum(sizes.values())
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"combiner {combiner!r}: expected the same number of features from every "
            f"part, got {dict(sizes)}. Give each a preprocessor of one output size."
        )
    return COMBINERS[combiner], next(iter(sizes.values()))


class _ModuleEncoder(InputEncoder):
    """A network or module for one leaf, as an encoder."""

    def __init__(self, module: nn.Module, output_size: int) -> None:
        super().__init__()
        self._module = module
        self._is_network = hasattr(module, "state_spec")
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        output = self._module(x)
        return output[0] if self._is_network else output


@configurable
class SelectedElements(nn.Module):
    """Passes on some elements of a leaf: the network does not see the others.

    An actor that sees less than its critic (Pinto et al. 2017, arXiv:1710.06542) has it
    as a preprocessor of what only the simulation knows. Acting still needs the leaf; it
    does without entries that ``actor_observation_keys`` of an algorithm leaves out.

    Args:
        input_spec: of the leaf, one vector or number.
        indices: of the elements; (): the leaf is left out.

    Raises:
        ConfigError: if the leaf is no vector, or has no such elements.
    """

    _indices: Tensor

    def __init__(self, input_spec: TensorSpec, indices: Sequence[int] = ()) -> None:
        super().__init__()
        size, self._ndim = input_spec.numel, input_spec.ndim
        if self._ndim > 1 or not all(0 <= index < size for index in indices):
            raise ConfigError(
                "SelectedElements: indices must be elements of a vector, from 0 to "
                f"{size - 1}, got {indices!r} for {input_spec}"
            )
        self.output_size = len(indices)
        self.register_buffer("_indices", torch.tensor(indices, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """[..., *spec.shape] → [..., number of indices], as floats."""
        if not self._ndim:
            x = x.unsqueeze(-1)
        return x.index_select(-1, self._indices).float()


def preprocessors_of(
    preprocessors: Mapping[str, Preprocessor] | None,
    specs: Sequence[tuple[str, TensorSpec]],
) -> list[InputEncoder | None]:
    """For each leaf the encoder that somebody chose, or None.

    Args:
        preprocessors: by the path of the leaf, such as ``"arm.position"``; of an
            observation that is one leaf, ``"observation"``.
        specs: the leaves, with the paths of :func:`nest.flatten_with_path`.

    Raises:
        ConfigError: if there is no such leaf, or what is there is no preprocessor.
    """
    left = dict(preprocessors or {})
    names = [".".join(nest.path_parts(path)) or "observation" for path, _ in specs]
    for name in left:
        if name not in names:
            raise ConfigError(
                f"input_preprocessors: there is no leaf {name!r} in the observation."
                f"{did_you_mean(name, names)} It has: {', '.join(names)}."
            )
    return [
        _module_encoder(name, left[name], spec) if name in left else None
        for name, (_, spec) in zip(names, specs, strict=True)
    ]


def _module_encoder(name: str, given: Preprocessor, spec: TensorSpec) -> InputEncoder:
    what = f"input_preprocessors[{name!r}]"
    module = given if isinstance(given, nn.Module) else given(spec)
    module = require_module(module, what)
    if not nest.is_empty(getattr(module, "state_spec", ())):
        raise ConfigError(
            f"{what} has a state, which is lost here. Use a Parallel network."
        )
    output = output_spec_of(module, spec)
    if not isinstance(output, TensorSpec) or output.ndim != 1:
        raise ConfigError(f"{what} must give features [B, size], got {output}")
    return _ModuleEncoder(module, output.shape[0])


def output_spec_of(module: nn.Module, input_spec: NestedTensorSpec) -> Nest:
    """Specs of what a network or module makes of such inputs, without batch dimension.

    It is asked, unless it says itself how many features there are.
    """
    size = getattr(module, "output_size", None)
    if isinstance(size, int):
        return TensorSpec((size,))
    training = {m: m.training for m in module.modules()}
    module.eval()
    inputs = nest.map_structure(_least, input_spec)
    try:
        with torch.no_grad():
            if isinstance(module, Network) or hasattr(module, "state_spec"):
                state_spec: Any = module.state_spec
                output, _ = module(inputs, nest.zeros(state_spec, (2,)))
            else:
                output = module(inputs)
    finally:
        for part, mode in training.items():
            part.training = mode
    return nest.extract_spec(output)


def _least(spec: TensorSpec) -> Tensor:
    """Two values that a spec allows: zeros, or what is nearest to them."""
    zeros = spec.zeros((2,))
    if not isinstance(spec, BoundedTensorSpec):
        return zeros
    low, high = (torch.tensor(bound) for bound in (spec.minimum, spec.maximum))
    return torch.where(zeros < low, low, torch.where(zeros > high, high, zeros)).to(
        spec.dtype
    )
