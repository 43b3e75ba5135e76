"""Encoding networks with memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.input_encoders import ConvLayerParams
from alf_lite.networks.layers import Activation, check_sizes, mlp
from alf_lite.networks.lean_layers import has_hooks
from alf_lite.networks.network import (
    Sequences,
    current_sequences,
    takes_whole_sequences,
)
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


class RecurrentEncodingNetwork(EncoderNetwork):
    """An encoder, recurrent cells one after the other, and an MLP behind them.

    One call makes one step. The state is a tuple with the state of every cell; the
    caller resets it at the first step of an episode.

    Args:
        input_spec: nest of TensorSpecs.
        hidden_size: of every cell, one or more.
        fc_layer_params: sizes of the MLP before the cells; () for none.
        post_fc_layer_params: sizes of the MLP behind the cells; () for none.
        activation: of both MLPs.
        conv_layer_params: see :class:`EncodingNetwork`, as for what follows.
    """

    _cell_type: type[nn.LSTMCell] | type[nn.GRUCell]
    _steps_of_torch: Callable[..., Any]  # of many such cells, one after the other
    _num_tensors: int  # of the state of a cell

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        *,
        hidden_size: Sequence[int] = (64,),
        fc_layer_params: Sequence[int] = (64,),
        post_fc_layer_params: Sequence[int] = (),
        activation: Activation = "tanh",
        conv_layer_params: ConvLayerParams | None = None,
        conv_activation: Activation = "relu",
        embedding_size: int | None = None,
    ) -> None:
        sizes = check_sizes("hidden_size", hidden_size)
        if not sizes:
            raise ValueError("hidden_size: expected at least one cell, got none")
        specs = [TensorSpec((size,)) for size in sizes]
        super().__init__(input_spec, tuple((s,) * self._num_tensors for s in specs))
        self._encoder = EncodingNetwork(
            input_spec,
            fc_layer_params=fc_layer_params,
            activation=activation,
            conv_layer_params=conv_layer_params,
            conv_activation=conv_activation,
            embedding_size=embedding_size,
        )
        input_sizes = (self._encoder.output_size, *sizes[:-1])
        self._cells = nn.ModuleList(
            _initialized(self._cell_type(i, o))
            for i, o in zip(input_sizes, sizes, strict=True)
        )
        self._mlp = mlp(sizes[-1], post_fc_layer_params, activation)
        self.output_size = [sizes[-1], *post_fc_layer_params][-1]

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """[B, *spec.shape] per leaf and the state → ([B, output_size], new state)."""
        if len(state) != len(self._cells):
            raise ValueError(
                f"state: expected a tuple with the state of {len(self._cells)} cells, "
                f"got {state!r}. Start with initial_state(batch_size)."
            )
        x, _ = self._encoder(inputs)
        sequences = current_sequences()
        new_state = []
        if sequences is None:
            for cell, cell_state in zip(self._cells, state, strict=True):
                cell_state = self._step(cell, x, cell_state)
                x = cell_state[0]
                new_state.append(cell_state)
        else:
            are_plain = all(map(_is_plain, self._cells))
            takes_pieces = are_plain and sequences.runs is None
            pieces = sequences.pieces if takes_pieces else None
            run = self._steps if are_plain else self._steps_of_own_cell
            if pieces is not None:
                x = x.index_select(0, pieces.order)
            else:
                x = x.unflatten(0, sequences.shape)
            for cell, cell_state in zip(self._cells, state, strict=True):
                with _without_cudnn(x):
                    x, cell_state = run(cell, x, cell_state, sequences)
                new_state.append(cell_state)
            if pieces is not None:
                x = x.index_select(0, pieces.place)
            else:
                x = x.flatten(0, 1)
        return self._mlp(x), tuple(new_state)

    def _steps(
        self,
        cell: Any,
        x: Tensor,
        cell_state: tuple[Tensor, ...],
        sequences: Sequences,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All steps of one cell, in order: their outputs, and the new state [B]."""
        weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
        if sequences.runs is None:
            pieces = sequences.pieces
            before = [
                torch.where(pieces.is_reset, 0.0, s[pieces.rows])[None]
                for s in cell_state
            ]
            output, after = self._run(weights, x, before, pieces.batch_sizes)
            return output, tuple(s[0, pieces.last] for s in after)
        outputs = []
        for begin, end, is_reset in sequences.runs:
            before = [torch.where(is_reset, 0.0, s)[None] for s in cell_state]
            output, after = self._run(weights, x[begin:end], before)
            cell_state = tuple(s[0] for s in after)
            outputs.append(output)
        return torch.cat(outputs), cell_state

    def _steps_of_own_cell(
        self,
        cell: Any,
        x: Tensor,
        cell_state: tuple[Tensor, ...],
        sequences: Sequences,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As ``_steps`` of runs, by the cell itself, whatever it is."""
        outputs = []
        for t, is_reset in enumerate(sequences.is_first.unsqueeze(-1)):
            before = tuple(torch.where(is_reset, 0.0, s) for s in cell_state)
            cell_state = self._step(cell, x[t], before)
            outputs.append(cell_state[0])
        return torch.stack(outputs), cell_state

    def _step(
        self, cell: nn.Module, x: Tensor, cell_state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The new state of one cell; its first tensor is the output."""
        if self._num_tensors > 1:
            return cell(x, cell_state)
        return (cell(x, *cell_state),)

    def _run(
        self,
        weights: list[Tensor],
        x: Tensor,
        before: list[Tensor],
        sizes: Tensor | None = None,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Several steps of one cell, as torch's own networks make them.

        Args:
            weights: of the cell.
            x: [T, B, size]; or [N, size], the steps of several pieces, packed.
            before: [1, B, hidden] each, the states before; or [1, pieces, hidden].
            sizes: of packed steps, how many have a first, a second one, ….

        Returns:
            [T, B, hidden] or [N, hidden], and the states after as those before.
        """
        states: Any = before if self._num_tensors > 1 else before[0]
        if sizes is None:
            output, *after = self._steps_of_torch(
                x, states, weights, *_ONE_LAYER, False
            )
        else:
            output, *after = self._steps_of_torch(
                x, sizes, states, weights, *_ONE_LAYER
            )
        return output, after


def _is_plain(cell: nn.Module) -> bool:
    """Whether torch's own networks compute what it does, and nobody watches it."""
    is_torchs = type(cell) is nn.LSTMCell or type(cell) is nn.GRUCell
    return is_torchs and bool(cell.bias) and not has_hooks(cell)


def _without_cudnn(x: Tensor) -> AbstractContextManager[Any]:
    """CuDNN would warn that the weights of cells are not in one piece of memory."""
    if not x.is_cuda:
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=False)


# Biases, one layer, no dropout, not in training (of dropout), one direction; time
# first follows, where steps are not packed
_ONE_LAYER = (True, 1, 0.0, False, False)


@configurable
class LSTMEncodingNetwork(RecurrentEncodingNetwork):
    """Encodes with LSTM cells; see :class:`RecurrentEncodingNetwork`."""

    _cell_type = nn.LSTMCell
    _steps_of_torch = staticmethod(torch.lstm)
    _num_tensors = 2


@configurable
class GRUEncodingNetwork(RecurrentEncodingNetwork):
    """Encodes with GRU cells; see :class:`RecurrentEncodingNetwork`."""

    _cell_type = nn.GRUCell
    _steps_of_torch = staticmethod(torch.gru)
    _num_tensors = 1


def _initialized(cell: Any) -> Any:
    """Orthogonal weights gate by gate, zero biases, and an LSTM that remembers."""
    for weight in (cell.weight_ih, cell.weight_hh):
        for gate in weight.split(cell.hidden_size):
            nn.init.orthogonal_(gate)
    nn.init.zeros_(cell.bias_ih)
    nn.init.zeros_(cell.bias_hh)
    if isinstance(cell, nn.LSTMCell):
        # torch orders the gates input, forget, cell, output.
        nn.init.ones_(cell.bias_ih.split(cell.hidden_size)[1])
    return cell
