"""Values of states, one or one per dimension of the reward, and of discrete actions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.fast import quick
from alf_lite.networks.encoding_networks import (
    EncodedNetwork,
    EncoderNetwork,
    EncodingNetwork,
)
from alf_lite.networks.initializers import Initializer
from alf_lite.networks.layers import Activation, check_sizes, linear, mlp
from alf_lite.networks.lean_layers import LeanSequential
from alf_lite.networks.network import takes_whole_sequences
from alf_lite.networks.noisy_layers import NoisyLinear
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_unused

Nest = Any


@configurable
class ValueNetwork(EncodedNetwork):
    """An encoder with a linear output.

    Args:
        observation_spec: nest of TensorSpecs.
        reward_spec: rank 0, or rank 1 for a reward with D dimensions.
        last_initializer: of the weights of the output; None: orthogonal ones.
        **encoder: options of :class:`EncodedNetwork`.

    Raises:
        ValueError: if a spec is not supported; the message names its path.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        last_initializer: Initializer | None = None,
        **encoder: Any,
    ) -> None:
        if reward_spec.ndim > 1:
            raise ValueError(
                f"reward_spec: expected rank 0 or 1, got {reward_spec}. Flatten it in "
                "the environment."
            )
        super().__init__(observation_spec, **encoder)
        self._linear = linear(
            self._encoder.output_size, reward_spec.numel, 1.0, last_initializer
        )
        self._is_scalar = reward_spec.ndim == 0

    def from_outputs(self, outputs: Tensor) -> Tensor:
        """Values [B] or [B, D]."""
        return outputs.squeeze(-1) if self._is_scalar else outputs


@configurable
class QNetwork(EncodedNetwork):
    """An encoder with N outputs for every value of every component of an action.

    What the N outputs mean is a ``ReturnHead``'s business; with N = 1 it is Q(s, a).

    Args:
        observation_spec: nest of TensorSpecs.
        num_values: how many values each of the C components takes, at most A. A
            component with fewer has outputs that mean nothing.
        num_outputs: N.
        activation: of the encoder; None: its own, but ReLU of an EncodingNetwork, since
            large values saturate tanh.
        encoding_network_ctor: see :class:`EncodedNetwork`, as the other options.
        dueling: value and advantage apart, Q = V + A − mean_a A, Wang et al. 2016
            (arXiv:1511.06581), eq. 9. All components share V.
        head_fc_layer_params: hidden layers between the encoder and the outputs; of a
            dueling network, in each of the two streams.
        head_activation: of these layers.
        noise_std: σ₀ of noise in the weights of these layers and of the outputs, which
            explores in place of random actions, see :class:`NoisyLinear`; 0: none. The
            encoder has an option of its own.
        last_initializer: of the weights of the outputs; None: orthogonal ones.
    """

    _mean_weights: Tensor  # [C, A, 1], of a mean over the values that exist

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        num_values: Sequence[int],
        num_outputs: int = 1,
        *,
        activation: Activation | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        dueling: bool = False,
        head_fc_layer_params: Sequence[int] = (),
        head_activation: Activation = "relu",
        noise_std: float = 0.0,
        last_initializer: Initializer | None = None,
        **encoder: Any,
    ) -> None:
        is_plain = inspect.isclass(encoding_network_ctor) and issubclass(
            encoding_network_ctor, EncodingNetwork
        )
        has_relu = is_plain and activation is None and encoder.get("body") is None
        super().__init__(
            observation_spec,
            activation="relu" if has_relu else activation,
            encoding_network_ctor=encoding_network_ctor,
            **encoder,
        )
        if noise_std and last_initializer is not None:
            raise ValueError(
                "last_initializer: noisy layers start as their paper says, leave one "
                "of last_initializer and noise_std out"
            )
        if not head_fc_layer_params:
            reason = "head_fc_layer_params is ()"
            check_unused(type(self), reason, head_activation=head_activation)
        sizes = torch.tensor(check_sizes("num_values", num_values))
        self._shape = (len(sizes), int(sizes.max()), num_outputs)  # C, A, N
        exists = torch.arange(self._shape[1]) < sizes[:, None]  # [C, A]
        weights = (exists / sizes[:, None]).unsqueeze(-1)
        self.register_buffer("_mean_weights", weights, persistent=False)

        def stream(output_size: int) -> LeanSequential:
            hidden = mlp(
                self._encoder.output_size,
                head_fc_layer_params,
                head_activation,
                noise_std=noise_std,
            )
            size = [self._encoder.output_size, *head_fc_layer_params][-1]
            if noise_std:
                return LeanSequential(
                    *hidden, NoisyLinear(size, output_size, noise_std)
                )
            last = linear(size, output_size, 1.0, last_initializer)
            return LeanSequential(*hidden, last)

        self._advantage = stream(math.prod(self._shape))
        self._value = stream(num_outputs) if dueling else None

    @takes_whole_sequences
    @quick
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """Observations [B, ...] → (outputs [B, C, A, N], new state)."""
        # As LeanSequential does: one step of acting consists of small calls.
        features, state = self._encoder.forward(inputs, state)
        outputs = self._advantage.forward(features)
        if self._value is None:
            return self.from_outputs(outputs), state
        return self.combined(outputs, self._value.forward(features)), state

    def combined(self, advantage: Tensor, value: Tensor) -> Tensor:
        """Of the two streams [B, C·A·N] and [B, N] → [B, C, A, N]."""
        advantage = self.from_outputs(advantage)
        mean = (self._mean_weights * advantage).sum(dim=-2, keepdim=True)
        return value[:, None, None] + (advantage - mean)

    def from_outputs(self, outputs: Tensor) -> Tensor:
        return outputs.view(outputs.shape[:-1] + self._shape)
