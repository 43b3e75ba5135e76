"""Encoding networks whose memory is a window of the past that they attend to.

Parisotto et al., "Stabilizing Transformers for Reinforcement Learning", ICML 2020
(arXiv:1910.06764), after Dai et al., "Transformer-XL" (arXiv:1901.02860).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.config import configurable
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.initializers import initialized
from alf_lite.networks.input_encoders import ConvLayerParams
from alf_lite.networks.layers import Activation, linear, mlp
from alf_lite.networks.lean_layers import apply_hidden
from alf_lite.networks.network import current_sequences, takes_whole_sequences
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_choice, check_count

Nest = Any
Gate = Literal["gru", "residual"]


class TransformerState(NamedTuple):
    """The last M steps, the oldest first. All is zero at the start of an episode."""

    memories: tuple[Tensor, ...]  # [B, M, size], what went into each layer
    is_valid: Tensor  # [B, M], 1.0 for steps of this episode, else 0.0


@configurable
class GTrXLEncodingNetwork(EncoderNetwork):
    """An encoder, transformer layers that look back, and an MLP behind them.

    A step sees itself and up to M steps before it, of its own episode, in every layer;
    through L layers it depends on the last L·M ones. Whole sequences are computed at
    once. Where replay stores the state, it stores (L·size + 1)·M numbers for each step.

    Differs from the papers: the embeddings of distances in time are learned instead of
    made of sines, and gradients reach as far back as the sequence that is trained.

    Args:
        input_spec: nest of TensorSpecs.
        size: of an embedding.
        memory_size: M.
        num_layers: L.
        num_heads: of the attention; they share ``size``.
        feed_forward_size: of the hidden layer behind the attention.
        gate: what joins a layer with its input: "gru", which starts close to passing
            the input on, or "residual", a sum as in other transformers.
        fc_layer_params: sizes of the MLP before the layers; () for none.
        post_fc_layer_params: sizes of the MLP behind the layers; () for none.
        activation: of both MLPs.
        conv_layer_params: see :class:`EncodingNetwork`, as for what follows.
    """

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        *,
        size: int = 64,
        memory_size: int = 16,
        num_layers: int = 1,
        num_heads: int = 4,
        feed_forward_size: int = 128,
        gate: Gate = "gru",
        fc_layer_params: Sequence[int] = (64,),
        post_fc_layer_params: Sequence[int] = (),
        activation: Activation = "tanh",
        conv_layer_params: ConvLayerParams | None = None,
        conv_activation: Activation = "relu",
        embedding_size: int | None = None,
    ) -> None:
        check_count(
            size=size,
            memory_size=memory_size,
            num_layers=num_layers,
            num_heads=num_heads,
            feed_forward_size=feed_forward_size,
        )
        if size % num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of size {size}, got {num_heads}"
            )
        check_choice(Gate, gate=gate)
        memory = TensorSpec((memory_size, size))
        of_layers: Any = (memory,) * num_layers
        valid: Any = TensorSpec((memory_size,))
        super().__init__(input_spec, TransformerState(of_layers, valid))
        self._encoder = EncodingNetwork(
            input_spec,
            fc_layer_params=fc_layer_params,
            activation=activation,
            conv_layer_params=conv_layer_params,
            conv_activation=conv_activation,
            embedding_size=embedding_size,
        )
        self._embed = linear(self._encoder.output_size, size, 1.0)
        self._layers = nn.ModuleList(
            _TransformerLayer(size, memory_size, num_heads, feed_forward_size, gate)
            for _ in range(num_layers)
        )
        self._mlp = mlp(size, post_fc_layer_params, activation)
        self.output_size = [size, *post_fc_layer_params][-1]

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Any = ()) -> tuple[Tensor, Nest]:
        """[B, *spec.shape] per leaf and the state → ([B, output_size], new state)."""
        if not isinstance(state, TransformerState):
            raise ValueError(
                f"state: expected a TransformerState, got {state!r}. Start with "
                "initial_state(batch_size)."
            )
        features, _ = self._encoder.forward(inputs)
        x = self._embed(features)
        sequences = current_sequences()
        # [T, B, size]
        x = x.unsqueeze(0) if sequences is None else x.unflatten(0, sequences.shape)
        is_first = None if sequences is None else sequences.is_first
        window = _Window(state.is_valid, len(x), is_first)
        memories = []
        for layer, memory in zip(self._layers, state.memories, strict=True):
            seen = torch.cat([memory.transpose(0, 1), x])  # [M + T, B, size]
            latest = seen[len(x) :] * window.is_valid.unsqueeze(-1)
            memories.append(latest.transpose(0, 1))
            x = layer(seen, x, window)
        new_state = TransformerState(tuple(memories), window.is_valid.T)
        return self._mlp(x.flatten(0, 1)), new_state


class _Window:
    """Which of M + T steps each of the last T ones attends to.

    Args:
        is_valid: [B, M], of the steps before the T ones.
        num_steps: T.
        is_first: [T, B] bool, where an episode begins; None: nowhere.
    """

    def __init__(
        self, is_valid: Tensor, num_steps: int, is_first: Tensor | None
    ) -> None:
        batch_size, memory_size = is_valid.shape
        device = is_valid.device
        ones = torch.ones(num_steps, batch_size, dtype=torch.bool, device=device)
        exists = torch.cat([is_valid.T > 0.5, ones])  # [M + T, B]
        query = torch.arange(num_steps, device=device).unsqueeze(1) + memory_size
        distance = query - torch.arange(memory_size + num_steps, device=device)
        is_near = (distance >= 0) & (distance <= memory_size)
        # [T, M + T] steps back, where that is near
        self.distance = distance.clamp(0, memory_size)
        is_visible = is_near.unsqueeze(1) & exists.T  # [T, B, M + T]
        if is_first is not None:
            episode = is_first.cumsum(0)
            all_episodes = F.pad(episode, (0, 0, memory_size, 0))  # 0 before
            is_same = episode.unsqueeze(2) == all_episodes.T
            is_visible = is_visible & is_same
            exists = exists & (all_episodes == episode[-1])
        self.is_visible = is_visible
        self.is_valid = exists[num_steps:].float()  # [M, B], after the T steps


class _TransformerLayer(nn.Module):
    """Attention and a feed-forward part, each normalized before and gated behind."""

    def __init__(
        self,
        size: int,
        memory_size: int,
        num_heads: int,
        feed_forward_size: int,
        gate: str,
    ) -> None:
        super().__init__()
        self._attention_norm = nn.LayerNorm(size)
        self._attention = _RelativeAttention(size, memory_size, num_heads)
        self._feed_forward_norm = nn.LayerNorm(size)
        self._feed_forward = nn.Sequential(
            linear(size, feed_forward_size), nn.ReLU(), linear(feed_forward_size, size)
        )
        make_gate = _GruGate if gate == "gru" else _ResidualGate
        self._attention_gate = make_gate(size)
        self._feed_forward_gate = make_gate(size)

    def forward(self, seen: Tensor, x: Tensor, window: _Window) -> Tensor:
        """[M + T, B, size] and the last [T, B, size] of it → [T, B, size]."""
        attended = self._attention(self._attention_norm(seen), window)
        x = self._attention_gate(x, attended.relu())
        more = apply_hidden(self._feed_forward, self._feed_forward_norm(x))
        return self._feed_forward_gate(x, more.relu())


class _RelativeAttention(nn.Module):
    """Several heads that weigh steps by content and distance in time.

    The weight of step j for step i is softmax_j of

        ((q_i + u) · k_j + (q_i + v) · r_{i−j}) / √d
    """

    def __init__(self, size: int, memory_size: int, num_heads: int) -> None:
        super().__init__()
        self._head_shape = num_heads, size // num_heads
        # A bias would do nothing that u, v and that of the output do not.
        self._query = _without_bias(size, size)
        self._key_and_value = _without_bias(size, 2 * size)
        self._output = linear(size, size, 1.0)
        self._distance = nn.Parameter(torch.empty(memory_size + 1, *self._head_shape))
        nn.init.normal_(self._distance, std=0.02)
        self._content_bias = nn.Parameter(torch.zeros(self._head_shape))
        self._distance_bias = nn.Parameter(torch.zeros(self._head_shape))

    def forward(self, seen: Tensor, window: _Window) -> Tensor:
        """[M + T, B, size] → [T, B, size], of the last T steps."""
        num_steps = len(window.distance)
        shape = self._head_shape  # H heads of d features
        query = self._query(seen[-num_steps:]).unflatten(-1, shape)
        key, value = self._key_and_value(seen).chunk(2, dim=-1)
        key, value = key.unflatten(-1, shape), value.unflatten(-1, shape)
        logits = torch.einsum("tbhd,kbhd->bhtk", query + self._content_bias, key)
        by_distance = torch.einsum(
            "tbhd,mhd->bhtm", query + self._distance_bias, self._distance
        )
        distance = window.distance.expand(*logits.shape)
        logits = (logits + by_distance.gather(-1, distance)) / math.sqrt(shape[1])
        is_visible = window.is_visible.transpose(0, 1).unsqueeze(1)  # [B, 1, T, M + T]
        lowest = torch.finfo(logits.dtype).min
        weights = logits.masked_fill(~is_visible, lowest).softmax(-1)
        attended = torch.einsum("bhtk,kbhd->tbhd", weights, value)
        return self._output(attended.flatten(-2))


class _GruGate(nn.Module):
    """(1 − z) ⊙ x + z ⊙ h, section 3.2 of the first paper; z starts small."""

    _BIAS = 2.0

    def __init__(self, size: int) -> None:
        super().__init__()
        self._of_output = _without_bias(size, 3 * size)
        self._of_input = _without_bias(size, 2 * size)
        self._of_reset = _without_bias(size, size)
        self._bias = nn.Parameter(torch.full((size,), self._BIAS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The input x and the output y of a part, [..., size]."""
        y_reset, y_update, y_new = self._of_output(y).chunk(3, dim=-1)
        x_reset, x_update = self._of_input(x).chunk(2, dim=-1)
        reset = torch.sigmoid(y_reset + x_reset)
        update = torch.sigmoid(y_update + x_update - self._bias)
        new = torch.tanh(y_new + self._of_reset(reset * x))
        return torch.lerp(x, new, update)


class _ResidualGate(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def _without_bias(input_size: int, output_size: int) -> nn.Linear:
    return initialized(nn.Linear(input_size, output_size, bias=False), 1.0)
