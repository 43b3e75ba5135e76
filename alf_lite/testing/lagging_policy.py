"""Algorithms that act with old parameters, as asynchronous unrolls make them do."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.data_structures import Experience


def lagging(cls: type, num_iterations: int) -> Any:
    """A subclass of ``cls`` that unrolls with the parameters of earlier iterations.

    Args:
        cls: an ``RLAlgorithm``.
        num_iterations: how many iterations earlier; the first ones of a run have the
            initial parameters.
    """

    class Lagging(cls):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._history: collections.deque = collections.deque(
                maxlen=num_iterations + 1
            )

        def unroll(self, unroll_length: int) -> Experience:
            self._history.append([p.detach().clone() for p in self.parameters()])
            with parameters_replaced(self, self._history[0]):
                return super().unroll(unroll_length)

    Lagging.__name__ = f"Lagging{cls.__name__}"
    return Lagging


@contextmanager
def parameters_replaced(
    algorithm: RLAlgorithm, values: list[torch.Tensor]
) -> Iterator[None]:
    """Gives the parameters of ``algorithm`` other values for a while."""
    parameters: list[torch.Tensor] = list(algorithm.parameters())
    own = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        torch._foreach_copy_(parameters, values)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(parameters, own)
