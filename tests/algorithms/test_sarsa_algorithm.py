from __future__ import annotations

import functools

import pytest

from alf_lite.algorithms.parts.return_heads import QuantileHead
from alf_lite.algorithms.sarsa_algorithm import SarsaAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from tests.replayed_steps import (
    CHOICE,
    OBSERVATION,
    randomise,
)

GAMMA, EPSILON = 0.9, 0.3


def sarsa(observation_spec=OBSERVATION, **kwargs) -> SarsaAlgorithm:
    arguments = {
        "gamma": GAMMA,
        "rollout_epsilon_greedy": EPSILON,
        "optimizer": Adam(),
        **kwargs,
    }
    algorithm = SarsaAlgorithm(observation_spec, CHOICE, **arguments)
    randomise(algorithm, 0.5)
    return algorithm


def test_what_it_cannot_learn_is_refused_by_name():
    gru = functools.partial(QNetwork, encoding_network_ctor=GRUEncodingNetwork)
    with pytest.raises(ConfigError, match=r"networks with memory .*QNetwork has one"):
        sarsa(q_network_ctor=gru)
    with pytest.raises(ConfigError, match="expected needs an ExpectedReturnHead"):
        sarsa(expected=True, return_model=QuantileHead())
    sarsa(expected=True, rollout_epsilon_greedy=((0.0, 1.0), (0.5, 0.1)))
    with pytest.raises(ConfigError, match="one for each environment"):
        sarsa(expected=True, rollout_epsilon_greedy=[0.1, 0.2])
    with pytest.raises(TypeError, match="no parameter 'double'"):
        sarsa(double=True)
    config = TrainerConfig(num_iterations=1, mini_batch_length=2)
    with pytest.raises(ConfigError, match=r"the action after them\) take 3 or more"):
        sarsa(config=config)
    sarsa(config=config, expected=True)
    assert sarsa(return_model=QuantileHead()).num_bootstrap_steps == 2
