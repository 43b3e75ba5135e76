"""Everything that acting depends on, as tensors that travel to unroll workers."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from alf_lite.utils.progress import Progress

_NUMBERS = "numbers"  # those below, float64
_COUNTERS = ("percent", "iterations", "env_steps", "global_counter")
_NUM_COUNTERS = len(_COUNTERS)


class ActingAlgorithm(Protocol):
    """What is looked at; an ``RLAlgorithm`` has it."""

    progress: Progress

    @property
    def acts_randomly(self) -> bool: ...

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]: ...

    def named_buffers(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Tensor]]: ...

    def named_children(self) -> Iterator[tuple[str, nn.Module]]: ...


class ActingState:
    """Parameters and buffers of an algorithm, and the progress that schedulers read.

    Args:
        algorithm: with its data transformer.
        left_out: parts of it that acting does not use.
    """

    def __init__(
        self, algorithm: ActingAlgorithm, left_out: Collection[nn.Module] = ()
    ) -> None:
        self._algorithm = algorithm
        self._numbers = torch.zeros(_NUM_COUNTERS + 1, dtype=torch.float64)
        self.tensors: dict[str, Tensor] = {
            _NUMBERS: self._numbers,
            **_without_duplicates(_named_tensors(algorithm, set(left_out))),
        }

    def capture(self) -> dict[str, Tensor]:
        """The tensors, with the numbers as they are now in this process."""
        counters = [
            float(getattr(self._algorithm.progress, name)) for name in _COUNTERS
        ]
        counters.append(float(self._algorithm.acts_randomly))
        self._numbers.copy_(torch.tensor(counters, dtype=torch.float64))
        return self.tensors

    def apply(self) -> bool:
        """Takes over the numbers; returns whether actions shall be random."""
        *counters, acts_randomly = self._numbers.tolist()
        for name, value in zip(_COUNTERS, counters, strict=True):
            counter = value if name == "percent" else int(value)
            setattr(self._algorithm.progress, name, counter)
        return bool(acts_randomly)


def _named_tensors(
    module: ActingAlgorithm | nn.Module, left_out: set[nn.Module], prefix: str = ""
) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of what is reached without entering ``left_out``."""
    yield from itertools.chain(
        module.named_parameters(prefix, recurse=False),
        module.named_buffers(prefix, recurse=False),
    )
    for name, child in module.named_children():
        if child not in left_out:
            path = f"{prefix}.{name}" if prefix else name
            yield from _named_tensors(child, left_out, path)


def _without_duplicates(named: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Each tensor under the first of its names."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in named:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors
