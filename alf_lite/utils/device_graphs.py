"""Functions whose operations a GPU repeats by itself: CUDA graphs.

Small networks keep a GPU waiting for Python, which starts some hundred operations per
update. A graph of them is started as one. It does the same operations on the same
memory with the same Python numbers as when it was captured, so what changes from call
to call must be in tensors: inputs are copied to where they were at the capture, a
schedule is a tensor that is filled before each call, and where Python decides something
else there is another graph.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.errors import ConfigError
from alf_lite.utils.schedulers import Schedule, ScheduleTensors, schedules_as_tensors

Nest = Any

_logger = logging.getLogger(__name__)

_PACKAGE = str(Path(__file__).parents[1])

# Memory is allocated and libraries begin to work in calls before the capture; torch
# asks for some, on a stream of their own.
_NUM_WARM_UPS = 3
_MAX_GRAPHS = 16  # each keeps all that it computes

_captures: list[str] = []  # what is captured now


def is_traced() -> bool:
    """Whether a graph is being made of what runs: it must not look at numbers."""
    # In this order: what is compiled does not ask for captures, which would make it
    # compile anew while one is on its way.
    return torch.compiler.is_compiling() or bool(_captures)


@contextlib.contextmanager
def as_traced(name: str) -> Iterator[None]:
    """In which it is so: what is drawn, and when, does not depend on numbers."""
    _captures.append(name)
    try:
        yield
    finally:
        _captures.pop()


def check_captures(device: torch.device) -> None:
    """Raises ConfigError, if there are no graphs on ``device``."""
    if device.type == "cpu" or not hasattr(
        torch.get_device_module(device), "CUDAGraph"
    ):
        raise ConfigError(
            "TrainerConfig.cuda_graphs needs a GPU that torch has CUDA graphs for, "
            f"and device is {str(device)!r}. Set --device=cuda, or leave it out."
        )


class CapturedFunction:
    """Calls a function of tensors as a graph, once it was called a few times.

    Args:
        function: nest of tensors → nest of tensors, on one device, without reading one.
        name: what it is, for messages.
        variant: what else it depends on at the next call; another graph for each.
        schedules: that it may ask for.
    """

    def __init__(
        self,
        function: Callable[[Nest], Nest],
        name: str,
        variant: Callable[[], Hashable] = tuple,
        schedules: Callable[[], Iterable[Schedule]] = tuple,
    ) -> None:
        self._schedules = schedules
        self._function = function
        self._name = name
        self._variant = variant
        self._graphs: dict[Hashable, _Graph] = {}
        self._num_warm_ups: dict[Hashable, int] = {}
        self._stream: Any = None

    @property
    def num_graphs(self) -> int:
        """How many were captured."""
        return len(self._graphs)

    def forget(self) -> None:
        """Begins anew: memory that the graphs use is used no more."""
        self._graphs.clear()
        self._num_warm_ups.clear()

    def __call__(self, inputs: Nest) -> Nest:
        """The result; that of a graph is overwritten by the next call.

        Raises:
            ConfigError: if the function cannot be captured; says why.
        """
        leaves = nest.flatten(inputs)
        traits = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = (self._variant(), traits)
        graph = self._graphs.get(key)
        if graph is not None:
            return graph.replay(leaves)
        count = self._num_warm_ups.get(key, 0)
        if count < _NUM_WARM_UPS:
            self._num_warm_ups[key] = count + 1
            return self._warm_up(inputs, leaves[0].device)
        if len(self._graphs) >= _MAX_GRAPHS:
            if count == _NUM_WARM_UPS:  # once for each
                self._num_warm_ups[key] = count + 1
                _logger.warning(
                    "cuda_graphs: %s has %d graphs already; what differs from all of "
                    "them is computed without one.",
                    self._name,
                    _MAX_GRAPHS,
                )
            return self._function(inputs)
        graph = self._graphs[key] = self._capture(inputs, leaves)
        return graph.replay(leaves)

    def _warm_up(self, inputs: Nest, device: torch.device) -> Nest:
        """A call as any other, but on the stream that is used before a capture."""
        module = torch.get_device_module(device)
        if self._stream is None:
            self._stream = module.Stream()
        current = module.current_stream()
        self._stream.wait_stream(current)
        with module.stream(self._stream):
            outputs = self._function(inputs)
        current.wait_stream(self._stream)
        return outputs

    def _capture(self, inputs: Nest, leaves: list[Tensor]) -> _Graph:
        device = leaves[0].device
        module = torch.get_device_module(device)
        places = [leaf.detach().clone() for leaf in leaves]
        tensors = ScheduleTensors(self._schedules(), device)
        graph = module.CUDAGraph()
        try:
            with (
                as_traced(self._name),
                schedules_as_tensors(tensors),
                module.graph(graph),
            ):
                outputs = self._function(nest.pack_sequence_as(inputs, places))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"TrainerConfig.cuda_graphs: {self._name} cannot be captured: "
                f"{_why(error)}. It must not read numbers of tensors, nor copy any "
                "from the host. Leave cuda_graphs out."
            ) from error
        return _Graph(graph, places, tensors, outputs)


class _Graph:
    """A captured call, with the memory that it reads and writes."""

    def __init__(
        self, graph: Any, places: list[Tensor], tensors: ScheduleTensors, outputs: Nest
    ) -> None:
        self._graph = graph
        self._places = places
        self._tensors = tensors
        self._outputs = outputs

    def replay(self, leaves: list[Tensor]) -> Nest:
        self._tensors.refresh()
        if leaves:
            torch._foreach_copy_(self._places, [leaf.detach() for leaf in leaves])
        self._graph.replay()
        return self._outputs


def _why(error: BaseException) -> str:
    """What went wrong first, in one line, and where.

    The end of a capture fails, too, if something in it has.
    """
    if "previous error" in str(error) and error.__context__ is not None:
        error = error.__context__
    where = ""
    for place in traceback.extract_tb(error.__traceback__):
        if place.filename.startswith(_PACKAGE) and place.filename != __file__:
            where = f" ({Path(place.filename).relative_to(_PACKAGE)}:{place.lineno})"
    return str(error).partition("\n")[0].rstrip(".") + where
