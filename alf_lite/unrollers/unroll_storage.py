"""Preallocated storage for the rows of an unroll."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.errors import ConfigError
from alf_lite.utils.free_memory import check_ram

Nest = Any

# Unrolls differ in their length by one at most, as a rule.
_MAX_VIEWS = 16

_traits = operator.attrgetter("shape", "dtype")


class UnrollStorage:
    """Rows of one nest, written one by one and read as a nest of [T, B, ...] views.

    The memory is reused by every unroll: what :meth:`read` returns is valid until the
    rows are written again.

    Args:
        memory: nest of [T, B, ...] tensors, such as others can read, too. None means to
            allocate it for the first nest written.
    """

    def __init__(self, memory: Nest | None = None) -> None:
        self._rows: list[list[Tensor]] = []
        self._traits: list[tuple[torch.Size, torch.dtype]] = []  # of every leaf [B, …]
        self._views: dict[tuple[int, int], Nest] = {}  # that were read before
        self._use(() if memory is None else memory)

    def write(self, row: int, values: Nest, num_rows: int) -> None:
        """Copies ``values``, a nest of [B, ...] tensors, into ``row`` of ``num_rows``.

        Raises:
            ValueError: if the structure, a shape or a dtype differs from the first
                nest written. Checked for row 0 of every unroll.
        """
        if len(self._rows) < num_rows:
            self._allocate(values, num_rows)
        if row == 0:
            self._check(values)
        leaves = nest.flatten(values)
        if leaves:
            torch._foreach_copy_(self._rows[row], leaves)

    def copy_row(self, source: int, target: int) -> None:
        """Copies a row that there is to another one."""
        torch._foreach_copy_(self._rows[target], self._rows[source])

    @property
    def memory(self) -> Nest:
        """The nest of [N, B, ...] tensors that holds all rows; N changes with them."""
        return self._nest

    def read(self, begin: int, end: int) -> Nest:
        """Rows ``begin`` to ``end`` (exclusive) as views [end - begin, B, ...]."""
        views = self._views.get((begin, end))
        if views is None:
            views = nest.map_structure(lambda buffer: buffer[begin:end], self._nest)
            if len(self._views) < _MAX_VIEWS:
                self._views[begin, end] = views
        return views

    def _allocate(self, values: Nest, num_rows: int) -> None:
        for path, leaf in nest.flatten_with_path(values):
            if not isinstance(leaf, Tensor):
                raise ConfigError(
                    f"unroll: {path} is a {type(leaf).__name__}, expected tensors. Of "
                    "distributions, rollout_step may return those that "
                    "alf_lite.distributions.torch_nodes knows."
                )
        row = sum(t.numel() * t.element_size() for t in nest.flatten(values))
        check_ram(
            num_rows * row,
            f"an unroll of {num_rows} steps",
            "Make TrainerConfig.unroll_length smaller, or use fewer environments.",
        )
        # Ordinary tensors even when acting runs in inference mode: training reads them.
        with torch.inference_mode(False):
            memory = nest.map_structure(
                lambda t: torch.empty(
                    (num_rows, *t.shape), dtype=t.dtype, device=t.device
                ),
                values,
            )
        self._use(memory)
        self._rows = self._rows or [[] for _ in range(num_rows)]

    def _use(self, memory: Nest) -> None:
        """Writes the next rows to ``memory``, a nest of [T, B, ...] tensors."""
        self._views.clear()
        self._nest = memory
        with torch.inference_mode(False):
            columns = [buffer.unbind(0) for buffer in nest.flatten(memory)]
        self._rows = [list(row) for row in zip(*columns, strict=True)]
        first_row = self._rows[0] if self._rows else []
        self._traits = list(map(_traits, first_row))

    def _check(self, values: Nest) -> None:
        nest.assert_same_structure(self._nest, values)
        if list(map(_traits, nest.flatten(values))) == self._traits:
            return
        for (path, leaf), (shape, dtype) in zip(
            nest.flatten_with_path(values), self._traits, strict=True
        ):
            if leaf.shape != shape or leaf.dtype != dtype:
                raise ValueError(
                    f"unroll: {path} was {tuple(shape)} {dtype} in earlier steps, got "
                    f"{tuple(leaf.shape)} {leaf.dtype}. rollout_step must return the "
                    "same shapes at every step."
                )
