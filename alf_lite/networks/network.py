"""The base class of networks that may have a recurrent state."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.devices import moved_tensor

Nest = Any
_Method = TypeVar("_Method", bound=Callable[..., Any])


class whole_sequences:  # noqa: N801 - used like a function
    """Inside, networks with memory take all steps of sequences in one call.

    Inputs and outputs are those of T·B steps, time first; the state [B, ...] is the one
    before the first step and the one after the last. What does not depend on the state
    is so computed at once, and only the memory itself is a loop.

    Args:
        is_first: [T, B] bool, the steps before which the state is zero again.
    """

    __slots__ = ("_before", "_sequences")

    def __init__(self, is_first: Tensor) -> None:
        self._sequences = Sequences(is_first)

    def __enter__(self) -> None:
        thread = threading.get_ident()
        self._before = _sequences.get(thread)
        _sequences[thread] = self._sequences

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            del _sequences[threading.get_ident()]
        else:
            _sequences[threading.get_ident()] = self._before


# Runs are faster than pieces, step by step, if they have so many steps on average.
_MIN_RUN = 4


def takes_whole_sequences(method: _Method) -> _Method:
    """Says so of the ``forward`` of a network, or of a ``train_step``.

    It knows what to do inside of :class:`whole_sequences`, or hands inputs and states
    on to networks that do, and does nothing else with the states. Said of the method,
    not of its class: whoever writes another one has to say it anew.
    """
    method._takes_whole_sequences = True  # type: ignore[attr-defined]
    return method


def says_that_it_takes_them(method: Any) -> bool:
    """Whether a method is :func:`takes_whole_sequences`."""
    return getattr(method, "_takes_whole_sequences", False)


class Pieces(NamedTuple):
    """Sequences cut at their resets, packed as those of torch's ``PackedSequence``.

    Sorted by length, the longest first: the first steps of all, then all second ones.
    """

    # Of steps in T·B: which stand one after the other, and where each one stands
    order: Tensor
    place: Tensor
    batch_sizes: Tensor  # how many pieces have a first step, a second one, …
    # Of pieces: the row they belong to, and whether their state is zero [pieces, 1]
    rows: Tensor
    is_reset: Tensor
    last: Tensor  # [B], the last piece of every row


class Sequences:
    """B sequences of T steps, and how memory gets through them where it is reset.

    Where that is seldom, by ``runs`` of all rows from one reset to the next. Otherwise
    every row is cut into ``pieces`` at its own resets. To know that the host reads from
    the device where the resets are; a network that needs neither has nobody wait.

    Args:
        is_first: [T, B] bool.
    """

    def __init__(self, is_first: Tensor) -> None:
        self.is_first = is_first
        self.shape = tuple(is_first.shape)

    @functools.cached_property
    def _resets(self) -> np.ndarray:
        return self.is_first.cpu().numpy()

    @functools.cached_property
    def runs(self) -> list[tuple[int, int, Tensor]] | None:
        """Begin, end, and which states are reset before, [B, 1]; None: see pieces."""
        num_steps = self.shape[0]
        starts = np.flatnonzero(np.append(True, self._resets[1:].any(1))).tolist()
        if len(starts) * _MIN_RUN > num_steps > 1:
            return None
        return [
            (begin, end, self.is_first[begin].unsqueeze(1))
            for begin, end in zip(starts, [*starts[1:], num_steps], strict=True)
        ]

    @functools.cached_property
    def pieces(self) -> Pieces:
        num_steps, batch_size = self.shape
        begins = self._resets.copy()
        begins[0] = True
        rows, steps = np.nonzero(begins.T)  # row by row, in the order of time
        is_last = np.append(rows[1:] != rows[:-1], True)
        ends = np.where(is_last, num_steps, np.append(steps[1:], num_steps))
        lengths = ends - steps
        by_length = np.argsort(-lengths, kind="stable")
        rows, steps, lengths = rows[by_length], steps[by_length], lengths[by_length]
        step, piece = np.nonzero(np.arange(lengths[0])[:, None] < lengths)
        order = (steps[piece] + step) * batch_size + rows[piece]

        def on_device(array: np.ndarray) -> Tensor:
            return moved_tensor(torch.from_numpy(array), self.is_first.device)

        return Pieces(
            order=on_device(order),
            place=on_device(np.argsort(order)),
            batch_sizes=torch.from_numpy(np.bincount(step)),
            rows=on_device(rows),
            is_reset=on_device(self._resets[steps, rows]).unsqueeze(1),
            last=on_device(np.argsort(by_length)[is_last]),
        )


# By thread: while one is training, another may act
_sequences: dict[int, Sequences] = {}


def current_sequences() -> Sequences | None:
    """Those of the innermost :class:`whole_sequences`; None outside of it."""
    return _sequences.get(threading.get_ident()) if _sequences else None


class Network(nn.Module):
    """A module with ``forward(inputs, state=()) -> (output, new_state)``.

    The state is a nest of tensors [B, ...] that is zero at the start of every episode;
    whoever calls the network keeps it between steps and resets it. A network without
    memory has the state spec ``()`` and returns the state as it came.

    Args:
        input_spec: of one input, without the batch dimension.
        state_spec: of the recurrent state, without the batch dimension.
    """

    def __init__(
        self, input_spec: NestedTensorSpec, state_spec: NestedTensorSpec = ()
    ) -> None:
        super().__init__()
        self._input_spec = input_spec
        self._state_spec = state_spec

    @property
    def takes_sequences(self) -> bool:
        """Whether ``forward`` does, see :func:`takes_whole_sequences`."""
        return says_that_it_takes_them(self.forward)

    @property
    def input_spec(self) -> NestedTensorSpec:
        return self._input_spec

    @property
    def state_spec(self) -> NestedTensorSpec:
        return self._state_spec

    def initial_state(self, batch_size: int) -> Nest:
        """The state [B, ...] at the start of an episode, on the network's device."""
        device = next((p.device for p in self.parameters()), None)
        zeros = nest.zeros(self._state_spec, (batch_size,))
        return nest.map_structure(lambda t: t.to(device), zeros)

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        """Maps inputs [B, ...] and the state [B, ...] to an output and a new state."""
        raise NotImplementedError


class _PlainNetwork(Network):
    """A module without state, written for its input alone.

    Args:
        input_spec: of one input.
        module: called with inputs [B, ...].
        output_shape: of one output; None for a nest of distributions.
        what: built the module, for messages.
    """

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        module: nn.Module,
        output_shape: tuple[int, ...] | None,
        what: str,
    ) -> None:
        super().__init__(input_spec)
        self._module = module
        self._output_shape = output_shape
        self._what = what

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        output = self._module(inputs)
        if self._output_shape is None:
            if isinstance(output, Tensor):
                raise ConfigError(
                    f"{self._what} must give distributions of actions, such as "
                    "torch.distributions.Categorical(logits=...), got a tensor "
                    f"{tuple(output.shape)}"
                )
            return output, state
        spec = nest.flatten(self._input_spec)[0]
        leaf = nest.flatten(inputs)[0]
        shape = (*leaf.shape[: leaf.ndim - spec.ndim], *self._output_shape)
        if not isinstance(output, Tensor) or output.numel() != math.prod(shape):
            given = getattr(output, "shape", type(output).__name__)
            raise ConfigError(f"{self._what} must give a tensor {shape}, got {given}")
        return output.reshape(shape), state


def as_network(
    built: Any,
    input_spec: NestedTensorSpec,
    what: str,
    output_shape: tuple[int, ...] | None = None,
) -> Any:
    """What a constructor built, as a network.

    A plain ``nn.Module``, from observations to outputs, is a network without state.

    Args:
        built: by the constructor.
        input_spec: of one input.
        what: the parameter that named the constructor.
        output_shape: of one output of a plain module; None for distributions.

    Raises:
        ConfigError: if it is no module.
    """
    if hasattr(require_module(built, what), "state_spec"):
        return built
    return _PlainNetwork(input_spec, built, output_shape, what)


def require_module(built: Any, what: str) -> nn.Module:
    """``built``; ConfigError naming ``what`` built it if it is no module."""
    if not isinstance(built, nn.Module):
        raise ConfigError(
            f"{what} must build a network or a torch.nn.Module, got "
            f"{type(built).__name__}"
        )
    return built


def as_critic_network(built: Any, what: str) -> Any:
    """What a constructor built, if it can be used as a ``CriticNetwork``.

    Raises:
        ConfigError: naming what it lacks.
    """
    missing = [
        name
        for name in ("state_spec", "encode", "evaluate")
        if not hasattr(built, name)
    ]
    if missing:
        raise ConfigError(
            f"{what} must build a CriticNetwork, got a {type(built).__name__}, which "
            f"has no {', '.join(missing)}. Derive from CriticNetwork."
        )
    return built
