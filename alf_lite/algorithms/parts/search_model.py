"""A learned model to search in: latent states, rewards, values and a policy.

What a search chooses among in a state is :class:`EveryAction` of a discrete one, or
:class:`SampledActions` of boxes. To the model both are vectors.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from alf_lite import nest
from alf_lite.algorithms.parts.novelty import FeatureNetwork, check_no_memory
from alf_lite.algorithms.parts.return_heads import TwoHotHead, cross_entropy
from alf_lite.algorithms.parts.tree_search import Root, Step
from alf_lite.config import configurable
from alf_lite.distributions.action_vectors import BoxActions, DiscreteActions
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.initializers import Initializer
from alf_lite.networks.layers import Activation
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_choice, check_positive
from alf_lite.utils.tensor_utils import DeviceConstants

Nest = Any
LatentNorm = Literal["layer_norm", "min_max"]


class SearchedActions(abc.ABC):
    """What a search may do in a state, and what outputs of a policy say about it."""

    vector_size: int  # V, of an action as the model takes it
    num_outputs: int  # P, of the policy

    @abc.abstractmethod
    def candidates(self, policy: Tensor, at_random: bool) -> tuple[Tensor, Nest]:
        """Among what to choose: logits [B, A] and a nest of [B, A, ...].

        Args:
            policy: [B, P].
            at_random: whether to draw them; if not, they are always the same.
        """

    @abc.abstractmethod
    def vectors(self, candidates: Nest, index: Tensor) -> Tensor:
        """Those with the numbers [B], as the model takes them: [B, V]."""

    @abc.abstractmethod
    def to_action(self, candidates: Nest, index: Tensor) -> Nest:
        """Those with the numbers [B], as the environment takes them."""

    @abc.abstractmethod
    def to_vectors(self, action: Nest) -> Tensor:
        """Actions [B, ...] of the environment, as the model takes them: [B, V]."""

    @abc.abstractmethod
    def any_vectors(self, vectors: Tensor) -> Tensor:
        """As many random ones as there are in [..., V]."""

    @abc.abstractmethod
    def policy_loss(self, policy: Tensor, weights: Tensor, candidates: Nest) -> Tensor:
        """−Σ_a π'(a) log π(a): of outputs [..., P] and π' [..., A] → [...]."""


class EveryAction(SearchedActions):
    """All values of one discrete action; vectors are one-hot.

    Args:
        action_spec: of one integer.

    Raises:
        ValueError: if it has several components.
    """

    def __init__(self, action_spec: NestedTensorSpec) -> None:
        self._actions = DiscreteActions(action_spec)
        if self._actions.num_components != 1:
            raise ValueError(
                "expected one discrete action or boxes, got "
                f"{self._actions.num_components} discrete components"
            )
        self.vector_size = self.num_outputs = int(self._actions.sizes[0])

    def candidates(self, policy: Tensor, at_random: bool) -> tuple[Tensor, Nest]:
        return policy, ()

    def vectors(self, candidates: Nest, index: Tensor) -> Tensor:
        return functional.one_hot(index, self.vector_size).float()

    def to_action(self, candidates: Nest, index: Tensor) -> Nest:
        return self._actions.to_action(index.unsqueeze(-1))

    def to_vectors(self, action: Nest) -> Tensor:
        return self.vectors((), self._actions.to_index(action).squeeze(-1))

    def any_vectors(self, vectors: Tensor) -> Tensor:
        return self.vectors(
            (), torch.randint_like(vectors[..., 0], self.vector_size).long()
        )

    def policy_loss(self, policy: Tensor, weights: Tensor, candidates: Nest) -> Tensor:
        return cross_entropy(policy, weights)


@configurable
class SampledActions(SearchedActions):
    """Actions drawn from the policy in every state, among which a search chooses.

    Hubert et al. 2021, "Learning and planning in complex action spaces"
    (arXiv:2104.06303). The policy is a normal distribution of u, and tanh u the action
    between its bounds. Because the A actions are drawn from it, the prior of each is
    1 / A. The policy is fitted to what the search found about those of its root:

        −Σ_a π'(a) log N(u_a; μ, σ)

    Args:
        action_spec: nest of boxes.
        num_samples: A.
        min_std: the least σ, which goes on exploring.

    Raises:
        ValueError: if an action is no bounded box, or a number is not positive.
    """

    def __init__(
        self,
        action_spec: NestedTensorSpec,
        *,
        num_samples: int = 16,
        min_std: float = 0.1,
    ) -> None:
        check_positive(num_samples=num_samples, min_std=min_std)
        self._actions = BoxActions(action_spec)
        self.vector_size = size = self._actions.vector_size
        self.num_outputs = 2 * size
        self._num_samples = num_samples
        self._min_std = min_std
        same = np.random.default_rng(0).standard_normal((num_samples, size), np.float32)
        same[0] = 0.0  # the mean is always one of them
        self._same = DeviceConstants(same)

    def candidates(self, policy: Tensor, at_random: bool) -> tuple[Tensor, Nest]:
        mean, std = self._normal(policy.unsqueeze(-2))
        (noise,) = self._same.on(policy.device)
        if at_random:
            noise = torch.randn_like(noise.expand(len(policy), -1, -1))
        u = mean + std * noise
        return torch.zeros_like(u[..., 0]), u

    def vectors(self, candidates: Nest, index: Tensor) -> Tensor:
        at = index[:, None, None].expand(-1, 1, self.vector_size)
        return candidates.gather(1, at).squeeze(1).tanh()

    def to_action(self, candidates: Nest, index: Tensor) -> Nest:
        return self._actions.to_action(self.vectors(candidates, index))

    def to_vectors(self, action: Nest) -> Tensor:
        return self._actions.to_vector(action)

    def any_vectors(self, vectors: Tensor) -> Tensor:
        return torch.rand_like(vectors) * 2 - 1

    def policy_loss(self, policy: Tensor, weights: Tensor, candidates: Nest) -> Tensor:
        mean, std = self._normal(policy.unsqueeze(-2))
        distance = ((candidates - mean) / std).square() / 2 + std.log()
        log_prob = -(distance + math.log(2 * math.pi) / 2).sum(-1)
        return -(weights * log_prob).sum(-1)

    def _normal(self, policy: Tensor) -> tuple[Tensor, Tensor]:
        """μ within ±3, behind which tanh is flat, and σ; 0 and about 1 at first."""
        mean, std = policy.chunk(2, -1)
        return 3 * (mean / 3).tanh(), functional.softplus(std + 0.4) + self._min_std


class ExpectedStep(NamedTuple):
    """What the model expects of an action, as logits."""

    reward: Tensor  # [B, N], for the head
    continues: Tensor  # [B], of not terminating


class Prediction(NamedTuple):
    """What the model expects in a state, as logits."""

    policy: Tensor  # [B, P]
    value: Tensor  # [B, N], for the head


@configurable
class LearnedModel(nn.Module):
    """Encodes observations, and predicts from latent states what actions lead to.

        z_0 = norm(h(o)),   z' = norm(z + g(z, a)),   (r, continue) of g,   p, v of f(z)

    The last layers of reward, value and policy begin with zeros, and with them the
    search with an even policy; that of the continuation begins near 1. The action is
    scaled by √L: beside a normalised state of L elements, a one would hardly count. The
    biases of the other layers begin as random as torch draws them, because with zeros
    a normalised state would not tell an observation from its double.

    Args:
        observation_spec: of one observation.
        action_size: V, elements of an action.
        num_policy_outputs: P.
        latent_size: elements of z.
        fc_layer_params: hidden layers of each of the three networks.
        activation: of them.
        initializer: of their weights.
        encoding_network_ctor: of h, called as ``ctor(observation_spec,
            fc_layer_params=..., activation=...)``, without memory; None:
            :class:`EncodingNetwork` with this initializer.
        latent_norm: of z, of every sample: to mean 0 and deviation 1, or to [0, 1] as
            in the paper.
        reward_head: what the reward's outputs stand for; None: :class:`TwoHotHead`.
        value_head: those of the value; likewise.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_size: int,
        num_policy_outputs: int,
        *,
        latent_size: int = 64,
        fc_layer_params: Sequence[int] = (128,),
        activation: Activation = "relu",
        initializer: Initializer = "torch",
        encoding_network_ctor: Callable[..., EncoderNetwork] | None = None,
        latent_norm: LatentNorm = "layer_norm",
        reward_head: TwoHotHead | None = None,
        value_head: TwoHotHead | None = None,
    ) -> None:
        check_choice(LatentNorm, latent_norm=latent_norm)
        check_positive(latent_size=latent_size)
        super().__init__()
        self._action_scale = math.sqrt(latent_size)
        self._latent_norm = latent_norm
        self.reward_head = reward_head or TwoHotHead()
        self.value_head = value_head or TwoHotHead()
        layers: Any = {"fc_layer_params": fc_layer_params, "activation": activation}
        make_network = functools.partial(EncodingNetwork, initializer=initializer)
        self._encoder = FeatureNetwork(
            observation_spec,
            latent_size,
            encoding_network_ctor=encoding_network_ctor or make_network,
            **layers,
        )
        joined = TensorSpec((latent_size + action_size,))
        self._dynamics = make_network(joined, **layers)
        self._predictor = make_network(TensorSpec((latent_size,)), **layers)
        check_no_memory(self._dynamics)
        size = self._dynamics.output_size
        self._change = nn.Linear(size, latent_size)
        for layer in self.modules():
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                bound = layer.in_features**-0.5
                nn.init.uniform_(layer.bias, -bound, bound)
        self._reward = _zero_linear(size, self.reward_head.num_outputs)
        self._continues = _zero_linear(size, 1)
        nn.init.constant_(self._continues.bias, 3.0)
        self._policy = _zero_linear(size, num_policy_outputs)
        self._value = _zero_linear(size, self.value_head.num_outputs)

    def encode(self, observation: Nest) -> Tensor:
        """z_0 [B, L] of observations [B, ...]."""
        return self._normalized(self._encoder(observation)[0])

    def step(self, latent: Tensor, action: Tensor) -> tuple[Tensor, ExpectedStep]:
        """The states z' [B, L] after actions [B, V] in [B, L], and what comes."""
        joined = torch.cat([latent, self._action_scale * action], -1)
        features, _ = self._dynamics(joined)
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

    The state of a node is the latent one and the candidates there. Trees are numpy's on
    a CPU, where that is faster, else tensors beside the model.

    Args:
        model: to search in.
        actions: what the search chooses among.
        gamma: γ; negative where two move in turn.
        at_random: whether candidates are drawn, where not all actions are searched.
    """

    def __init__(
        self,
        model: LearnedModel,
        actions: SearchedActions,
        gamma: float,
        at_random: bool,
    ) -> None:
        self._model = model
        self._actions = actions
        self._gamma = gamma
        self._at_random = at_random

    @torch.no_grad()
    def root(self, observation: Nest) -> Root:
        """Of observations [B, ...]."""
        return Root(*self._predicted(self._model.encode(observation)))

    @torch.no_grad()
    def step(self, state: Nest, action: Any) -> tuple[Step, Nest]:
        """Of the candidates with numbers [B] in states [B, ...]."""
        model = self._model
        latent, candidates = nest.map_structure(torch.as_tensor, state)
        vector = self._actions.vectors(candidates, torch.as_tensor(action))
        z, expected = model.step(latent, vector)
        logits, value, state = self._predicted(z)
        step = Step(
            reward=_array(model.reward_head.mean(expected.reward)),
            discount=_array(self._gamma * expected.continues.sigmoid()),
            logits=logits,
            value=value,
        )
        return step, state

    def _predicted(self, latent: Tensor) -> tuple[Any, Any, Nest]:
        """Logits, value and state as the tree has them."""
        found = self._model.predict(latent)
        logits, candidates = self._actions.candidates(found.policy, self._at_random)
        value = self._model.value_head.mean(found.value)
        state = nest.map_structure(_array, (latent, candidates))
        return _array(logits), _array(value), state


def _array(t: Tensor) -> np.ndarray | Tensor:
    return t.numpy() if t.device.type == "cpu" else t


def _zero_linear(num_inputs: int, num_outputs: int) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
