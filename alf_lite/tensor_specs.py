"""Specs: the shape, dtype and bounds of one tensor without its batch dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

NestedTensorSpec = Any
ArrayLike = Any


class TensorSpec:
    """The shape and dtype of a tensor. Immutable and hashable.

    Args:
        shape: without batch dimensions.
        dtype: torch dtype.
    """

    __slots__ = ("_dtype", "_shape")

    def __init__(
        self, shape: Sequence[int] = (), dtype: torch.dtype = torch.float32
    ) -> None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
        self._shape = torch.Size(shape)
        self._dtype = dtype

    @classmethod
    def from_tensor(cls, tensor: Tensor, from_dim: int = 0) -> TensorSpec:
        """The spec of ``tensor`` without its first ``from_dim`` dimensions."""
        if tensor.ndim < from_dim:
            raise ValueError(
                f"from_tensor: expected at least {from_dim} batch dimensions, "
                f"got a tensor of shape {tuple(tensor.shape)}"
            )
        return TensorSpec(tensor.shape[from_dim:], tensor.dtype)

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self._shape.numel()

    @property
    def is_discrete(self) -> bool:
        """Whether the dtype is an integer or bool."""
        return not self.is_continuous

    @property
    def is_continuous(self) -> bool:
        return self._dtype.is_floating_point

    def zeros(
        self, outer_dims: Sequence[int] = (), device: torch.device | None = None
    ) -> Tensor:
        shape = (*outer_dims, *self._shape)
        return torch.zeros(shape, dtype=self._dtype, device=device)

    def ones(self, outer_dims: Sequence[int] = ()) -> Tensor:
        return torch.ones((*outer_dims, *self._shape), dtype=self._dtype)

    def sample(
        self, outer_dims: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """A random tensor: standard normal if continuous, else any value of the dtype.

        Small integers are drawn so that arithmetic on them does not overflow.
        """
        shape = (*outer_dims, *self._shape)
        if self.is_continuous:
            return torch.randn(shape, dtype=self._dtype, generator=generator)
        high = 2 if self._dtype == torch.bool else 128
        drawn = torch.randint(0, high, shape, generator=generator)
        return drawn.to(self._dtype)

    def _key(self) -> tuple:
        return (type(self), self._shape, self._dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"TensorSpec(shape={tuple(self._shape)}, dtype={_name(self._dtype)})"


class BoundedTensorSpec(TensorSpec):
    """A spec whose elements lie in [minimum, maximum], both inclusive.

    Args:
        shape: without batch dimensions.
        dtype: torch dtype.
        minimum: number or array that broadcasts to ``shape``; may be -inf.
        maximum: likewise; may be inf.

    Raises:
        ValueError: if a bound does not broadcast to ``shape`` or does not fit into an
            integer dtype, or if minimum > maximum.
    """

    __slots__ = ("_maximum", "_minimum")

    def __init__(
        self,
        shape: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        minimum: ArrayLike = 0,
        maximum: ArrayLike = 1,
    ) -> None:
        super().__init__(shape, dtype)
        self._minimum = self._bound("minimum", minimum)
        self._maximum = self._bound("maximum", maximum)
        if not np.all(self._minimum <= self._maximum):
            raise ValueError(
                f"minimum must not exceed maximum, got {minimum} and {maximum}"
            )

    def _bound(self, name: str, value: ArrayLike) -> np.ndarray:
        dtype = torch.empty(0, dtype=self._dtype).numpy().dtype
        try:
            bound = np.broadcast_to(np.asarray(value), tuple(self._shape))
        except ValueError as error:
            raise ValueError(
                f"{name}: shape {np.shape(value)} does not broadcast to "
                f"{tuple(self._shape)}"
            ) from error
        if np.isnan(bound.astype(np.float64)).any():
            raise ValueError(f"{name} must not be NaN, got {value}")
        if not self._dtype.is_floating_point:
            bound = _exact_integers(name, bound, dtype)
        bound = bound.astype(dtype)
        bound.setflags(write=False)
        return bound

    @property
    def minimum(self) -> np.ndarray:
        """[*shape], read-only."""
        return self._minimum

    @property
    def maximum(self) -> np.ndarray:
        """[*shape], read-only."""
        return self._maximum

    @property
    def is_bounded(self) -> bool:
        """Whether every bound is finite."""
        return bool(np.isfinite(self._minimum).all() & np.isfinite(self._maximum).all())

    def sample(
        self, outer_dims: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Uniform between the bounds; unbounded elements are standard normal."""
        shape = (*outer_dims, *self._shape)
        if self.is_discrete and not self._is_exact_in_float64():
            return self._sample_wide_integers(shape, generator)
        low = torch.tensor(self._minimum, dtype=torch.float64)
        high = torch.tensor(self._maximum, dtype=torch.float64)
        uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
        if self.is_discrete:
            drawn = low + torch.floor(uniform * (high - low + 1))
            return torch.minimum(drawn, high).to(self._dtype)
        drawn = low + uniform * (high - low)
        if not self.is_bounded:
            normal = torch.randn(shape, dtype=torch.float64, generator=generator)
            clipped = torch.minimum(torch.maximum(normal, low), high)
            drawn = torch.where(
                torch.isfinite(low) & torch.isfinite(high), drawn, clipped
            )
        return drawn.to(self._dtype)

    def _is_exact_in_float64(self) -> bool:
        """Whether the bounds and their distance are."""
        largest = 1 << 52
        return bool(
            (self._minimum >= -largest).all() & (self._maximum <= largest).all()
        )

    def _sample_wide_integers(
        self, shape: tuple[int, ...], generator: torch.Generator | None
    ) -> Tensor:
        """Uniform, by drawing again what lies beyond the bounds."""
        low = self._minimum.astype(np.uint64)  # modulo 2**64, as the sums below
        span = np.broadcast_to(self._maximum.astype(np.uint64) - low, shape)
        mask = span.copy()  # all ones below the highest bit of the span
        for shift in (1, 2, 4, 8, 16, 32):
            mask |= mask >> np.uint64(shift)
        drawn = np.zeros(shape, np.uint64)
        missing = np.ones(shape, np.bool_)
        while missing.any():  # each element is kept with a probability above one half
            halves = torch.randint(0, 1 << 32, (2, *shape), generator=generator)
            high, rest = halves.numpy().astype(np.uint64)
            bits = ((high << np.uint64(32)) | rest) & mask
            drawn = np.where(missing, bits, drawn)
            missing &= bits > span
        values = (drawn + low).astype(self._minimum.dtype)
        return torch.from_numpy(np.asarray(values))

    def _key(self) -> tuple:
        return (*super()._key(), self._minimum.tobytes(), self._maximum.tobytes())

    def __repr__(self) -> str:
        return (
            f"BoundedTensorSpec(shape={tuple(self._shape)}, "
            f"dtype={_name(self._dtype)}, minimum={_short(self._minimum)}, "
            f"maximum={_short(self._maximum)})"
        )


def _exact_integers(name: str, bound: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``bound`` as ``dtype``; no bound is the smallest or the largest number of it."""
    if dtype.kind in "iu" and bound.dtype.kind == "f":
        limits = np.iinfo(dtype)
        if np.isinf(bound).all():
            return np.where(bound < 0, limits.min, limits.max)
    with np.errstate(invalid="ignore"):
        try:
            converted = bound.astype(dtype)
        except OverflowError:
            converted = np.zeros_like(bound, dtype)
    if not np.array_equal(converted, bound):
        raise ValueError(f"{name}: {_short(bound)} is not of dtype {dtype}")
    return converted


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(bound: np.ndarray) -> str:
    values = np.unique(bound)
    return str(values[0]) if values.size == 1 else np.array2string(bound, threshold=8)


def is_binary(spec: TensorSpec) -> bool:
    """Whether every element is a bool or an integer that is 0 or 1."""
    if spec.dtype == torch.bool:
        return True
    return isinstance(spec, BoundedTensorSpec) and bool(
        spec.is_discrete and (spec.minimum == 0).all() and (spec.maximum == 1).all()
    )


def num_categories(spec: BoundedTensorSpec) -> np.ndarray:
    """[numel] int64, how many values each element of an integer spec can take.

    A range that does not fit into int64 counts as the largest that does.
    """
    low, high = (b.reshape(-1).astype(object) for b in (spec.minimum, spec.maximum))
    sizes = high - low + 1  # Python integers, which do not overflow
    return np.minimum(sizes, np.iinfo(np.int64).max).astype(np.int64)
