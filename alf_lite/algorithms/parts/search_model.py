"""A learned model to search in: latent states, rewards, values and a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from alf_lite.algorithms.parts.novelty import FeatureNetwork, check_no_memory
from alf_lite.algorithms.parts.return_heads import TwoHotHead
from alf_lite.algorithms.parts.tree_search import Root, Step
from alf_lite.config import configurable
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.layers import Activation
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_choice, check_positive

Nest = Any
LatentNorm = Literal["layer_norm", "min_max"]


class ExpectedStep(NamedTuple):
    """What the model expects of an action, as logits."""

    reward: Tensor  # [B, N], for the head
    continues: Tensor  # [B], of not terminating


class Prediction(NamedTuple):
    """What the model expects in a state, as logits."""

    policy: Tensor  # [B, A]
    value: Tensor  # [B, N], for the head


@configurable
class LearnedModel(nn.Module):
    """Encodes observations, and predicts from latent states what actions lead to.

        z_0 = norm(h(o)),   z' = norm(z + g(z, a)),   (r, continue) of g,   p, v of f(z)

    The last layers of reward, value and policy begin with zeros, and with them the
    search with an even policy; that of the continuation begins near 1.

    Args:
        observation_spec: of one observation.
        num_actions: A.
        latent_size: elements of z.
        fc_layer_params: hidden layers of each of the three networks.
        activation: of them.
        encoding_network_ctor: of h, called as ``ctor(observation_spec,
            fc_layer_params=..., activation=...)``; without memory.
        latent_norm: of z, of every sample: to mean 0 and deviation 1, or to [0, 1] as
            in the paper.
        reward_head: what the reward's outputs stand for; None: :class:`TwoHotHead`.
        value_head: those of the value; likewise.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        num_actions: int,
        *,
        latent_size: int = 64,
        fc_layer_params: Sequence[int] = (128,),
        activation: Activation = "relu",
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        latent_norm: LatentNorm = "layer_norm",
        reward_head: TwoHotHead | None = None,
        value_head: TwoHotHead | None = None,
    ) -> None:
        check_choice(LatentNorm, latent_norm=latent_norm)
        check_positive(latent_size=latent_size)
        super().__init__()
        self.num_actions = num_actions
        self._latent_norm = latent_norm
        self.reward_head = reward_head or TwoHotHead()
        self.value_head = value_head or TwoHotHead()
        layers: Any = {"fc_layer_params": fc_layer_params, "activation": activation}
        self._encoder = FeatureNetwork(
            observation_spec,
            latent_size,
            encoding_network_ctor=encoding_network_ctor,
            **layers,
        )
        joined = TensorSpec((latent_size + num_actions,))
        self._dynamics = EncodingNetwork(joined, **layers)
        self._predictor = EncodingNetwork(TensorSpec((latent_size,)), **layers)
        check_no_memory(self._dynamics)
        size = self._dynamics.output_size
        self._change = nn.Linear(size, latent_size)
        self._reward = _zero_linear(size, self.reward_head.num_outputs)
        self._continues = _zero_linear(size, 1)
        nn.init.constant_(self._continues.bias, 3.0)
        self._policy = _zero_linear(size, num_actions)
        self._value = _zero_linear(size, self.value_head.num_outputs)

    def encode(self, observation: Nest) -> Tensor:
        """z_0 [B, L] of observations [B, ...]."""
        return self._normalized(self._encoder(observation)[0])

    def step(self, latent: Tensor, action: Tensor) -> tuple[Tensor, ExpectedStep]:
        """The states z' [B, L] after actions [B] in [B, L], and what comes."""
        one_hot = functional.one_hot(action, self.num_actions).to(latent.dtype)
        features, _ = self._dynamics(torch.cat([latent, one_hot], -1))
        expected = ExpectedStep(
            self._reward(features), self._continues(features).squeeze(-1)
        )
        return self._normalized(latent + self._change(features)), expected

    def predict(self, latent: Tensor) -> Prediction:
        """Policy and value in states [B, L]."""
        features, _ = self._predictor(latent)
        return Prediction(self._policy(features), self._value(features))

    def value(self, observation: Nest) -> Tensor:
        """The value v [B] of observations [B, ...]."""
        return self.value_head.mean(self.predict(self.encode(observation)).value)

    def _normalized(self, latent: Tensor) -> Tensor:
        if self._latent_norm == "layer_norm":
            return functional.layer_norm(latent, latent.shape[-1:])
        low = latent.amin(-1, keepdim=True)
        return (latent - low) / (latent.amax(-1, keepdim=True) - low + 1e-5)


class ModelSearch:
    """Roots and steps of a :class:`LearnedModel` as a tree search takes them.

    Trees are numpy's on a CPU, where that is faster, else tensors beside the model.

    Args:
        model: to search in.
        gamma: γ; negative where two move in turn.
    """

    def __init__(self, model: LearnedModel, gamma: float) -> None:
        self._model = model
        self._gamma = gamma

    @torch.no_grad()
    def root(self, observation: Nest) -> Root:
        """Of observations [B, ...]."""
        latent = self._model.encode(observation)
        found = self._model.predict(latent)
        value = self._model.value_head.mean(found.value)
        return Root(_array(found.policy), _array(value), _array(latent))

    @torch.no_grad()
    def step(self, latent: Any, action: Any) -> tuple[Step, Any]:
        """Of actions [B] in states [B, L]."""
        model = self._model
        z, expected = model.step(torch.as_tensor(latent), torch.as_tensor(action))
        found = model.predict(z)
        step = Step(
            reward=_array(model.reward_head.mean(expected.reward)),
            discount=_array(self._gamma * expected.continues.sigmoid()),
            logits=_array(found.policy),
            value=_array(model.value_head.mean(found.value)),
        )
        return step, _array(z)


def _array(t: Tensor) -> np.ndarray | Tensor:
    return t.numpy() if t.device.type == "cpu" else t


def _zero_linear(num_inputs: int, num_outputs: int) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
