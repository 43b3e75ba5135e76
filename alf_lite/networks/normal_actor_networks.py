"""Stochastic policies that are fitted to stored actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from alf_lite.config import configurable
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.input_encoders import ConvLayerParams
from alf_lite.networks.layers import Activation
from alf_lite.tensor_specs import NestedTensorSpec


@configurable
class NormalActorNetwork(ActorDistributionNetwork):
    """The policy of implicit Q-learning (Kostrikov et al. 2021, section 5).

    A normal distribution with one deviation for each element, whatever is observed: a
    deviation that depends on the observation could vanish where the data do not vary.
    Its mean is not squashed, since actions on the bounds have a density there; the
    environment clips. Discrete parts of the action are categorical, as in
    :class:`ActorDistributionNetwork`, which also tells what the arguments mean.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        fc_layer_params: Sequence[int] | None = (256, 256),
        activation: Activation | None = "relu",
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            fc_layer_params=fc_layer_params,
            activation=activation,
            conv_layer_params=conv_layer_params,
            encoding_network_ctor=encoding_network_ctor,
            continuous_projection="normal",
            state_dependent_std=False,
            initial_log_std=initial_log_std,
        )
