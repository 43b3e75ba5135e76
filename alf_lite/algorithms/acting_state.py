"""Everything that acting depends on, as tensors that travel to unroll workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from alf_lite.utils.progress import progress

_NUMBERS = "numbers"  # those below, float64
_COUNTERS = ("percent", "iterations", "env_steps", "global_counter")
_NUM_COUNTERS = len(_COUNTERS)


class ActingAlgorithm(Protocol):
    """What is looked at; an ``RLAlgorithm`` has it."""

    @property
    def acts_randomly(self) -> bool: ...

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]: ...

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


class ActingState:
    """Parameters and buffers of an algorithm, and the progress that schedulers read.

    Args:
        algorithm: with its data transformer.
    """

    def __init__(self, algorithm: ActingAlgorithm) -> None:
        self._algorithm = algorithm
        self._numbers = torch.zeros(_NUM_COUNTERS + 1, dtype=torch.float64)
        self.tensors: dict[str, Tensor] = {
            _NUMBERS: self._numbers,
            **dict(algorithm.named_parameters()),
            **dict(algorithm.named_buffers()),
        }

    def capture(self) -> dict[str, Tensor]:
        """The tensors, with the numbers as they are now in this process."""
        counters = [float(getattr(progress, name)) for name in _COUNTERS]
        counters.append(float(self._algorithm.acts_randomly))
        self._numbers.copy_(torch.tensor(counters, dtype=torch.float64))
        return self.tensors

    def apply(self) -> bool:
        """Takes over the numbers; returns whether actions shall be random."""
        *counters, acts_randomly = self._numbers.tolist()
        for name, value in zip(_COUNTERS, counters, strict=True):
            setattr(progress, name, value if name == "percent" else int(value))
        return bool(acts_randomly)
