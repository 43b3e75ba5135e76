"""Running statistics of nests of tensors, and scaling by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.errors import ConfigError
from alf_lite.nest import path_parts
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_choice, check_unused
from alf_lite.utils.device_graphs import is_traced
from alf_lite.utils.devices import DeviceFlag, moved_tensor
from alf_lite.utils.ranks import SharedStatistics, ranks

Nest = Any
NormalizerMode = Literal["running", "adaptive", "moving"]

# A feature that varies less than float32 resolves is constant.
_RELATIVE_RESOLUTION = 1e-7
_SMALLEST_STD = 1e-30


class NotFiniteError(ValueError):
    """A batch for statistics holds a NaN or an infinity; the message says where."""


class Normalizer(SharedStatistics):
    """Brings every element of a nest to mean 0 and standard deviation 1.

    :meth:`update` merges a batch of n vectors, with mean m and variance v, into the
    statistics of the N vectors before them (Chan et al. 1979). With δ = m - mean,

        variance ← (1 - α) variance + α v + α (1 - α) δ²,   mean ← mean + α δ

    The mode gives the weight α of the batch:

    * ``"running"``: all data count the same, α = n / (N + n).
    * ``"adaptive"``: α = 1 - (N / (N + n))^speed. The last 1/speed of the data matter
      most, so the statistics follow a changing policy, ever more slowly. With speed 1
      it is ``"running"``.
    * ``"moving"``: α = 1 - (1 - update_rate)^n, an exponential moving average.

    Between updates nothing changes. Before the first one the mean is 0 and the standard
    deviation 1; an element that has been constant so far has the standard deviation 1.

    Args:
        spec: nest of the specs of one vector.
        zero_mean: whether to subtract the mean; if not, only the scale changes.
        mode: see above.
        speed: of the mode ``"adaptive"``, at least 1.
        update_rate: of the mode ``"moving"``, in (0, 1), per vector.

    Raises:
        ConfigError: if an argument is out of range or of another mode, or ``spec`` is
            empty.
    """

    mean: Tensor  # [elements of all leaves] float64
    variance: Tensor  # [elements of all leaves] float64
    count: Tensor  # [] int64, number of vectors seen

    def __init__(
        self,
        spec: NestedTensorSpec,
        *,
        zero_mean: bool = True,
        mode: NormalizerMode = "running",
        speed: float = 8.0,
        update_rate: float = 1e-4,
    ) -> None:
        super().__init__()
        check_choice(NormalizerMode, mode=mode)
        if not 1 <= speed < math.inf:
            raise ConfigError(f"speed must be at least 1, got {speed}")
        if not 0 < update_rate < 1:
            raise ConfigError(f"update_rate must be in (0, 1), got {update_rate}")
        if mode != "adaptive":
            check_unused(Normalizer, f"mode is {mode!r}", speed=speed)
        if mode != "moving":
            check_unused(Normalizer, f"mode is {mode!r}", update_rate=update_rate)
        if nest.is_empty(spec):
            raise ConfigError("there is nothing to normalize: the spec is empty")
        self._spec = spec
        self._named_specs = [
            (".".join(path_parts(path)) or "inputs", leaf)
            for path, leaf in nest.flatten_with_path(spec)
        ]
        self._zero_mean = zero_mean
        self._mode = mode
        self._speed = speed
        self._update_rate = update_rate
        num_elements = sum(leaf.numel for _, leaf in self._named_specs)
        # What this rank has seen since all took in what was new: number, mean, variance
        self._pending: list[tuple[int, Tensor, Tensor]] = []
        self.register_buffer("mean", torch.zeros(num_elements, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(num_elements, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self._not_finite: DeviceFlag | None = None  # of batches on a GPU
        self._seen_mean: Tensor | None = None
        self._seen_version = -1
        self._leaf_scalings: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def update(self, batch: Nest, counted: Tensor | None = None) -> None:
        """Merges a batch into the statistics.

        Args:
            batch: [..., *spec.shape] in every leaf, with the same leading dimensions.
            counted: bool with the leading dimensions; the others are left out.

        Raises:
            NotFiniteError: if there is a NaN or an infinity. On a GPU, if there was one
                in an earlier batch.
            ValueError: if shapes differ from the specs.
            Then the statistics have not changed.
        """
        nest.assert_same_structure(self._spec, batch)
        leaves = nest.flatten(batch)
        rows = torch.cat(
            [
                moved_tensor(
                    _to_rows(name, leaf, tuple(spec.shape)), self.mean.device
                ).to(self.mean.dtype)
                for (name, spec), leaf in zip(self._named_specs, leaves, strict=True)
            ],
            dim=1,
        )  # [n, elements], float64
        if len(rows) == 0:
            return
        if not rows.is_cpu and ranks.size == 1:
            self._update_on_device(rows, None if counted is None else counted.flatten())
            return
        if counted is not None:
            rows = rows[counted.flatten()]
            if len(rows) == 0:
                return
        batch_mean = rows.mean(dim=0)
        batch_variance = (rows - batch_mean).square().mean(dim=0)
        if not torch.isfinite(batch_mean + batch_variance).all():
            raise NotFiniteError(_where_not_finite(self._named_specs, leaves))
        if ranks.size > 1:
            self._pending.append((len(rows), batch_mean, batch_variance))
        else:
            self._merge(len(rows), batch_mean, batch_variance)

    def _merge(self, count: int, mean: Tensor, variance: Tensor) -> None:
        """Takes in so many vectors, of this mean and variance."""
        weight = self._weight(count)
        delta = mean - self.mean
        self.variance.lerp_(variance, weight)
        self.variance.add_(delta.square(), alpha=weight * (1.0 - weight))
        self.mean.add_(delta, alpha=weight)
        self.count.add_(count)

    def take_pending(self) -> Tensor:
        pending, self._pending = self._pending, []
        count, mean, variance = _together(pending, self.mean)
        return torch.cat([count[None], mean, variance])

    def take_in(self, pending: Tensor) -> None:
        """As one batch, so that the weight of it is that of one rank with all."""
        size = len(self.mean)
        parts = [
            (int(part[0]), part[1 : 1 + size], part[1 + size :])
            for part in pending.to(self.mean.device)
        ]
        count, mean, variance = _together(parts, self.mean)
        if count:
            self._merge(int(count), mean, variance)

    def _update_on_device(self, rows: Tensor, counted: Tensor | None) -> None:
        """As :meth:`update`, without waiting for the device of [n, elements].

        What is not finite changes nothing, and is told by a later update.
        """
        num_new: Tensor = torch.full_like(self.count, len(rows))
        mask = torch.ones_like(rows[:, :1])
        if counted is not None:
            num_new, mask = counted.sum(), counted.to(rows.dtype).unsqueeze(1)
            rows = torch.where(counted.unsqueeze(1), rows, 0.0)
        size = num_new.clamp(min=1)
        batch_mean = rows.sum(dim=0) / size
        batch_variance = ((rows - batch_mean).square() * mask).sum(dim=0) / size
        is_finite = torch.isfinite(batch_mean + batch_variance).all()
        if self._mode == "moving":
            weight = 1.0 - (1.0 - self._update_rate) ** num_new.double()
            weight = torch.where(self.count == 0, 1.0, weight)
        else:
            speed = self._speed if self._mode == "adaptive" else 1.0
            total = (self.count + num_new).clamp(min=1)
            weight = 1.0 - (self.count / total).double() ** speed
        counts = is_finite & (num_new > 0)
        weight = torch.where(counts, weight, 0.0)
        delta = torch.where(counts, batch_mean - self.mean, 0.0)
        self.variance.lerp_(torch.where(counts, batch_variance, self.variance), weight)
        self.variance.add_(delta.square() * (weight * (1.0 - weight)))
        self.mean.add_(delta * weight)
        self.count.add_(torch.where(counts, num_new, 0))
        flag = self._not_finite
        if flag is None or flag.state.device != rows.device:
            flag = self._not_finite = DeviceFlag(rows.device)
        flag.add(~is_finite)
        if flag.glance():
            self._raise_late()

    def raise_late_errors(self) -> None:
        """Waits for a GPU; raises NotFiniteError if a batch there was not finite."""
        if self._not_finite is not None and self._not_finite.look():
            self._raise_late()

    def _raise_late(self) -> NoReturn:
        assert self._not_finite is not None
        self._not_finite.clear()
        raise NotFiniteError(
            "a NaN, an infinity or numbers so large that their variance overflows, in "
            f"{' or '.join(name for name, _ in self._named_specs)}, in an earlier batch"
        )

    def _weight(self, num_new: int) -> float:
        """α, the weight of ``num_new`` vectors against all before them."""
        num_seen = int(self.count)
        if num_seen == 0:
            return 1.0
        if self._mode == "moving":
            return 1.0 - (1.0 - self._update_rate) ** num_new
        speed = self._speed if self._mode == "adaptive" else 1.0
        return 1.0 - (num_seen / (num_seen + num_new)) ** speed

    def normalize(self, inputs: Nest, clip: float | None = None) -> Nest:
        """Subtracts the mean and divides by the standard deviation.

        Args:
            inputs: [..., *spec.shape] in every leaf, with any leading dimensions.
            clip: bounds the results to [-clip, clip].

        Returns:
            A new nest; the leaves keep their floating dtype, others become float32.
        """
        leaves = self.normalize_leaves(nest.flatten(inputs), clip)
        return nest.pack_sequence_as(self._spec, leaves)

    def normalize_leaves(
        self, leaves: Sequence[Tensor], clip: float | None = None
    ) -> list[Tensor]:
        """As :meth:`normalize` for the leaves of the nest, in their order."""
        outputs = []
        for leaf, (mean, scale) in zip(leaves, self._scalings(), strict=True):
            # Subtract first: x · scale - mean · scale would lose digits.
            scaled = (leaf - mean).mul_(scale) if self._zero_mean else leaf * scale
            outputs.append(scaled if clip is None else scaled.clamp_(-clip, clip))
        return outputs

    def denormalize(self, outputs: Nest) -> Nest:
        """What :meth:`normalize` makes these of: [..., *spec.shape] in every leaf."""
        leaves = [
            leaf / scale + mean if self._zero_mean else leaf / scale
            for leaf, (mean, scale) in zip(
                nest.flatten(outputs), self._scalings(), strict=True
            )
        ]
        return nest.pack_sequence_as(self._spec, leaves)

    def _scalings(self) -> list[tuple[Tensor, Tensor]]:
        """Mean and 1 / standard deviation of every leaf, in the leaf's dtype.

        Computed anew only when the statistics have changed, in whatever way: by an
        update, by loading a state, by a copy into the buffers, by a move to a device.
        """
        if is_traced():
            # A graph would keep the scalings of its first call for ever.
            return self._compute_scalings()
        mean, variance = self.mean, self.variance
        version = mean._version + variance._version
        if mean is not self._seen_mean or version != self._seen_version:
            self._leaf_scalings = self._compute_scalings()
            self._seen_mean, self._seen_version = mean, version
        return self._leaf_scalings

    @torch.no_grad()
    def _compute_scalings(self) -> list[tuple[Tensor, Tensor]]:
        std = self.variance.sqrt()
        is_constant = std <= _RELATIVE_RESOLUTION * self.mean.abs() + _SMALLEST_STD
        scale = torch.where(is_constant, 1.0, std.reciprocal())
        scalings, begin = [], 0
        for _, spec in self._named_specs:
            part = slice(begin, begin + spec.numel)
            dtype = spec.dtype if spec.is_continuous else torch.float32
            scalings.append(
                (
                    self.mean[part].reshape(spec.shape).to(dtype),
                    scale[part].reshape(spec.shape).to(dtype),
                )
            )
            begin += spec.numel
        return scalings


def _together(
    parts: list[tuple[int, Tensor, Tensor]], like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Number [], mean and variance, as ``like``, of all vectors of the parts."""
    count, mean, variance = like.new_zeros(()), like.new_zeros(like.shape), like * 0
    for number, its_mean, its_variance in parts:
        if number:
            count = count + number
            weight = number / count
            delta = its_mean - mean
            variance = variance + weight * (its_variance - variance)
            variance = variance + weight * (1 - weight) * delta.square()
            mean = mean + weight * delta
    return count, mean, variance


def _to_rows(name: str, leaf: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[..., *shape] → [n, elements of shape]."""
    num_outer = leaf.ndim - len(shape)
    if num_outer < 0 or tuple(leaf.shape[num_outer:]) != shape:
        raise ValueError(
            f"{name}: expected the shape [..., {', '.join(map(str, shape))}], "
            f"got {tuple(leaf.shape)}"
        )
    return leaf.reshape(math.prod(leaf.shape[:num_outer]), math.prod(shape))


def _where_not_finite(
    named_specs: list[tuple[str, TensorSpec]], leaves: list[Tensor]
) -> str:
    for (name, _), leaf in zip(named_specs, leaves, strict=True):
        bad = torch.nonzero(~torch.isfinite(leaf))
        if len(bad):
            index = tuple(bad[0].tolist())
            return f"{name}: {leaf[index].item()} at index {index}"
    return "numbers so large that their variance overflows"
