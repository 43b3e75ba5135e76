"""A replay buffer in memory, read like any other source of recorded steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from alf_lite import nest
from alf_lite.datasets.source import Field, Sequence, Source, field_kind, join_path
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.utils.nest_paths import path_parts

_FIELDS = ("step_type", "reward", "discount", "observation", "env_info", "action")


class BufferSource(Source):
    """The steps of a buffer of ``Experience``, one sequence per environment.

    Its actions are those that were stored for a step, not the ``prev_action`` of the
    next one.

    Args:
        buffer: must not change meanwhile.
        name: for messages.
    """

    is_in_environment_units = False

    def __init__(self, buffer: ReplayBuffer, name: str = "the replay buffer") -> None:
        self.name = name
        self._buffer = buffer
        self.fields = {}
        for path, spec in nest.flatten_with_path(buffer.data_spec):
            field_name = _field_name(path)
            if field_name is not None:
                dtype = spec.zeros().numpy().dtype
                self.fields[field_name] = Field(tuple(spec.shape), dtype)
        self.lengths = buffer.sizes.tolist()

    def sequences(self) -> Iterator[Sequence]:
        begins = self._buffer.begin_positions
        for env_id, length in enumerate(self.lengths):
            if length:
                begin = begins[env_id : env_id + 1]
                yield Sequence(env_id, self._read(env_id, begin, length))

    def _read(
        self, env_id: int, begin: torch.Tensor, length: int
    ) -> dict[str, np.ndarray]:
        window = self._buffer.get_windows(torch.tensor([env_id]), begin, length)
        arrays = {}
        for path, leaf in nest.flatten_with_path(window):
            name = _field_name(path)
            if name is not None:
                array = leaf[0].numpy(force=True)
                is_between = field_kind(name) == "action"
                arrays[name] = array[:-1] if is_between else array
        return arrays


def _field_name(path: str) -> str | None:
    """The name of a field of ``Experience``; None of what others do not record."""
    parts = path_parts(path)
    if parts[0] == "time_step":
        parts = parts[1:]
    return join_path(*parts) if parts[0] in _FIELDS else None
