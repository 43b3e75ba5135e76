"""A representation of observations that tells what comes next.

The latent forward model of Ha and Schmidhuber, "World Models", arXiv:1803.10122, and of
auxiliary tasks such as Jaderberg et al., arXiv:1611.05397, in its simplest form: an
encoder φ and a decoder are trained together to predict the next observation, or to
reconstruct this one,

    L_t = 1/D ‖decode(φ(s_t), a_t) − s_{t+1}‖²   or   1/D ‖decode(φ(s_t)) − s_t‖²

with observations of mean 0 and deviation 1 in each of their D numbers. The RL algorithm
sees φ(s_t) in place of s_t.

Differences from the papers:

1. No memory and no noise: φ is a function of one observation. Frames are stacked by a
   data transformer.
2. The loss of the RL algorithm does not reach the encoder.
3. Categories in an observation are encoded, but not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.parts.novelty import (
    ActionVectors,
    FeatureNetwork,
    NormalizedObservations,
)
from alf_lite.algorithms.parts.observation_parts import RepresentationLearner
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, Field, LossInfo, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.layers import Activation
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_choice

Nest = Any
Predicted = Literal["next_observation", "observation"]


class PredictionInfo(NamedTuple):
    """From ``preprocess_experience`` to ``train_step``."""

    observation: Nest  # [T, B, ...] s_t
    action: Field  # [T, B, A] a_t; () to reconstruct
    target: Tensor  # [T, B, D] the numbers of s_{t+1}, or of s_t


@configurable
class PredictiveRepresentation(RepresentationLearner):
    """φ(s), trained by what can be predicted from it."""

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        representation_size: int = 64,
        predicts: Predicted = "next_observation",
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        fc_layer_params: Sequence[int] = (128,),
        decoder_fc_layer_params: Sequence[int] = (128,),
        activation: Activation = "relu",
        observation_clip: float = 5.0,
        optimizer: Optimizer | None = None,
        checkpoint: str | None = None,
        name: str | None = None,
    ) -> None:
        """Builds the encoder and the decoder.

        Args:
            observation_spec: of one observation, with numbers in it.
            action_spec: of one action; any nest with bounds.
            representation_size: elements of φ.
            predicts: from φ(s_t) and a_t the next observation, or from φ(s_t) alone
                this one.
            encoding_network_ctor: of φ, called as ``ctor(observation_spec,
                fc_layer_params=..., activation=...)``; without memory.
            fc_layer_params: hidden layers of φ.
            decoder_fc_layer_params: hidden layers of the decoder.
            activation: of both.
            observation_clip: bounds of the normalised observations.
            optimizer: see :class:`Algorithm`, as for the others.
            checkpoint: see there.
            name: see there.

        Raises:
            ConfigError: if there is nothing to predict.
            ValueError: if an observation or action is not supported; the message names
                its path.
        """
        check_choice(Predicted, predicts=predicts)
        super().__init__(
            observation_spec,
            action_spec,
            optimizer=optimizer,
            checkpoint=checkpoint,
            name=name,
        )
        self._observations = NormalizedObservations(observation_spec, observation_clip)
        num_numbers = sum(spec.numel for spec in self._observations.numbers_in_spec)
        if not num_numbers:
            raise ConfigError(
                f"{self._name}: there are no numbers to predict in {observation_spec}"
            )
        self._actions = None
        if predicts == "next_observation":
            self._actions = ActionVectors(action_spec)
        self._spec = TensorSpec((representation_size,))
        self._encoder = FeatureNetwork(
            self._observations.spec,
            representation_size,
            encoding_network_ctor=encoding_network_ctor,
            fc_layer_params=fc_layer_params,
            activation=activation,
        )
        action_size = 0 if self._actions is None else self._actions.size
        self._decoder = FeatureNetwork(
            TensorSpec((representation_size + action_size,)),
            num_numbers,
            fc_layer_params=decoder_fc_layer_params,
            activation=activation,
        )

    @property
    def representation_spec(self) -> TensorSpec:
        return self._spec

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """The decoder."""
        return [self._decoder]

    def encode(self, observation: Nest) -> Tensor:
        """φ(s) [B, F] of observations [B, ...]."""
        return self._encoder(self._observations(observation))[0]

    def training_info(self, steps: TimeStep) -> PredictionInfo:
        """What is predicted of steps [B, T, ...], [B, T, ...] or [B, T-1, ...]."""
        observation = steps.observation
        if self.training:
            self._observations.update(observation)
        target = torch.cat(
            [t.flatten(2) for t in self._observations.numbers(observation)], dim=-1
        )
        if self._actions is None:
            return PredictionInfo(observation, (), target)
        shape = steps.step_type[:, 1:].shape
        arrived = nest.map_structure(
            lambda t: t[:, 1:].flatten(0, 1), steps.prev_action
        )
        return PredictionInfo(
            nest.narrow(observation, 0, shape[1], dim=1),
            self._actions(arrived).unflatten(0, shape),
            target[:, 1:],
        )

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: PredictionInfo
    ) -> AlgStep:
        """L_t [B]."""
        features = self.encode(rollout_info.observation)
        if self._actions is not None:
            features = torch.cat([features, rollout_info.action], dim=-1)
        error = self._decoder(features)[0] - rollout_info.target
        return AlgStep(info=error.square().mean(-1))

    def calc_loss(self, info: Tensor) -> LossInfo:
        """L_t, [T, B]."""
        return LossInfo(loss=info)
