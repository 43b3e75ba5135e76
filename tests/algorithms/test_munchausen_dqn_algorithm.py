from __future__ import annotations

import functools

import pytest

from alf_lite.algorithms.munchausen_dqn_algorithm import MunchausenDqnAlgorithm
from alf_lite.algorithms.parts.return_heads import QuantileHead, RescaledReturnHead
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from tests.replayed_steps import (
    CHOICE,
    OBSERVATION,
    randomise,
)

GAMMA, ALPHA, TEMPERATURE, CLIPPING = 0.9, 0.8, 0.5, -0.5


def munchausen(action_spec=CHOICE, observation_spec=OBSERVATION, **kwargs):
    arguments = {
        "gamma": GAMMA,
        "munchausen_alpha": ALPHA,
        "munchausen_temperature": TEMPERATURE,
        "munchausen_clipping": CLIPPING,
        "optimizer": Adam(),
        **kwargs,
    }
    algorithm = MunchausenDqnAlgorithm(observation_spec, action_spec, **arguments)
    randomise(algorithm, 1.0)
    return algorithm


def test_what_it_cannot_learn_is_refused_by_name():
    gru = functools.partial(QNetwork, encoding_network_ctor=GRUEncodingNetwork)
    with pytest.raises(ConfigError, match=r"networks with memory .*QNetwork has one"):
        munchausen(q_network_ctor=gru)
    for head in (QuantileHead(), RescaledReturnHead()):
        name = type(head).__name__
        with pytest.raises(ConfigError, match=f"return_model must be .* got {name}"):
            munchausen(return_model=head)
    with pytest.raises(TypeError, match="no parameter 'double'"):
        munchausen(double=True)
    for name, value in (
        ("munchausen_alpha", 1.5),
        ("munchausen_temperature", 0.0),
        ("munchausen_clipping", 0.0),
    ):
        with pytest.raises(ValueError, match=name):
            munchausen(**{name: value})
