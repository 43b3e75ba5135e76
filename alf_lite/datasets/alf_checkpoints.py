"""Replay checkpoints of ALF (https://github.com/HorizonRobotics/alf).

A dict of tensors. The replay buffer's are named by its place in the algorithm, such as
``algorithm._replay_buffer.``, and the path of the field, such as
``time_step|observation|camera``. Each is a ring [E, L, ...] for E environments;
``_current_size`` [E] rows of it are written and ``_current_pos`` [E] is where the next
one goes, counted from the beginning or within the ring.

Agents of ALF act in [-1, 1] as those here do.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.border import DATA, RefusalError, border, check_regular
from alf_lite.checkpoints.archives import verify_archive
from alf_lite.datasets import source
from alf_lite.errors import DataError

_SIZE = "_current_size"
_POSITION = "_current_pos"
_CHECKPOINT = re.compile(r"ckpt-(\d+)-replay_buffer")
# Where ALF puts its checkpoints below the root of a run.
_DIRECTORIES = (".", "algorithm", "train/algorithm")
_PLAIN = DATA._replace(verdict="refused, it is damaged or not plain data")


class AlfCheckpoint(source.Source):
    """The replay buffer in a checkpoint file.

    Args:
        content: of the file.
        name: for messages.

    Raises:
        DataError: if there is not one replay buffer in it, or its parts do not fit.
    """

    is_in_environment_units = False

    def __init__(self, content: Any, name: str) -> None:
        self.name = name
        with border(name):
            buffer = self._find_buffer(dict(tensors(content)))
            self._sizes = self._counter(buffer, _SIZE)
            self._positions = self._counter(buffer, _POSITION)
            self._rings = self._find_rings(buffer)
        self.lengths = self._sizes.tolist()
        self.fields = {
            path: source.RecordedField(ring.shape[2:], ring.dtype)
            for path, ring in self._rings.items()
        }

    def sequences(self) -> Iterator[source.StepSequence]:
        for e, size in enumerate(self.lengths):
            if size:
                yield self._sequence(e, size)

    def _sequence(self, env_id: int, size: int) -> source.StepSequence:
        capacity = self._rings["step_type"].shape[1]
        first = int(self._positions[env_id] - size) % capacity

        def in_order(ring: np.ndarray) -> np.ndarray:
            ring = ring[env_id]
            if first + size <= capacity:
                return ring[first : first + size]
            return np.concatenate([ring[first:], ring[: first + size - capacity]])

        fields = {path: in_order(ring) for path, ring in self._rings.items()}
        # Between the steps, where ALF stores one for the last step too.
        for path in fields:
            if source.field_kind(path) == "action":
                fields[path] = fields[path][:-1]
        return source.StepSequence(env_id, fields)

    def _find_buffer(self, content: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the replay buffer, without what leads to it in their names."""
        prefixes = [
            name.removesuffix(_SIZE)
            for name in content
            if name.endswith(f"_replay_buffer.{_SIZE}") or name == _SIZE
        ]
        # The offline buffer of a run is a copy of its source.
        prefixes = [p for p in prefixes if not p.endswith("_offline_replay_buffer.")]
        if len(prefixes) != 1:
            raise DataError(
                f"{self.name}: expected the tensors of one replay buffer of ALF, found "
                f"{len(prefixes)} of them: {', '.join(prefixes) or 'nothing'}. ALF "
                "writes them to ckpt-N-replay_buffer."
            )
        [prefix] = prefixes
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in content.items()
            if name.startswith(prefix)
        }

    def _counter(self, buffer: dict[str, Tensor], name: str) -> np.ndarray:
        """[E] int64."""
        counter = buffer.get(name)
        array = None if counter is None else as_array(name, counter)
        if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
            found = "nothing" if array is None else f"{array.shape} {array.dtype}"
            raise DataError(f"{self.name}: {name} must be [E] integers, found {found}")
        return array.astype(np.int64)

    def _find_rings(self, buffer: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """[E, L, ...] by the paths of the fields."""
        rings = {}
        for name, tensor in buffer.items():
            parts = re.split(r"[|.]", name.removeprefix("time_step|"))
            if parts[0] in (*source.REQUIRED_FIELDS, "observation", "env_info") or (
                parts[0] in ("action", "prev_action")
            ):
                rings[source.join_path(*parts)] = as_array(name, tensor)
        if any(source.field_kind(path) == "prev_action" for path in rings):
            # What was executed; the policy's own choice may have been replaced.
            rings = {p: r for p, r in rings.items() if source.field_kind(p) != "action"}
        if "step_type" not in rings:
            raise DataError(
                f"{self.name}: the replay buffer has no step_type; it has "
                f"{', '.join(sorted(buffer))}"
            )
        expected = (len(self._sizes), *rings["step_type"].shape[1:2])
        for path, ring in rings.items():
            if ring.shape[:2] != expected or ring.ndim < 2:
                raise DataError(
                    f"{self.name}: {path} has the shape {ring.shape}, expected "
                    f"{expected} first, for environments and rows"
                )
        sizes = self._sizes
        if (
            self._positions.shape != sizes.shape
            or not ((sizes >= 0) & (sizes <= expected[1])).all()
        ):
            raise DataError(
                f"{self.name}: {_SIZE} is {sizes.tolist()} in rings of {expected[1]} "
                f"rows, {_POSITION} is {self._positions.tolist()}"
            )
        return rings


def newest_alf_checkpoint(directory: Path) -> Path | None:
    """The newest replay checkpoint of a run of ALF, or of its checkpoints."""
    found = [
        (int(match[1]), file)
        for name in _DIRECTORIES
        for file in (directory / name).glob("ckpt-*-replay_buffer")
        if (match := _CHECKPOINT.fullmatch(file.name))
    ]
    return max(found)[1] if found else None


def load_data(file: Path, *, verify: bool = True) -> Any:
    """The content of ``file``, its tensors on the CPU and mapped, not read yet.

    Args:
        file: of ``torch.save``.
        verify: read all of it once, and compare it with the checksums that are in it.
            Files of old versions of torch have none.

    Raises:
        DataError: if the file is damaged, or holds anything but data; names what it
            wanted to call.
    """
    check_regular(file)
    if verify and zipfile.is_zipfile(file):
        verify_archive(file)
    with border(file, _PLAIN):
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
        # Written by an old version of torch.
        return torch.load(file, map_location="cpu", weights_only=True)


def as_array(name: str, tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor, as they are in the file.

    Raises:
        RefusalError: if it is of a kind that numpy has not, or claims to have more than
            the file holds for it.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise RefusalError(f"{name} is no plain array of numbers")
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        raise RefusalError(
            f"{name} claims {tensor.nbytes} bytes, of which the file has "
            f"{tensor.untyped_storage().nbytes()}"
        )
    return tensor.detach().resolve_neg().numpy()


def tensors(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested dicts, with their keys joined by dots."""
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from tensors(child, f"{prefix}.{key}" if prefix else str(key))
