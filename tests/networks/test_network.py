"""Modules of one's own in place of networks."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.network import (
    as_network,
    current_sequences,
    whole_sequences,
)
from alf_lite.tensor_specs import TensorSpec


class Policy(nn.Module):
    def __init__(self, observation_spec, action_spec):
        super().__init__()
        self.logits = nn.Linear(4, 2)

    def forward(self, observation):
        return torch.distributions.Categorical(logits=self.logits(observation))


def trained(ctor, **networks):
    env = create_environment("CartPole-v1", 2, seed=0)
    config = TrainerConfig(
        algorithm_ctor=functools.partial(ctor, **networks),
        num_iterations=1,
        unroll_length=64,
        **({"initial_collect_steps": 0} if ctor is DqnAlgorithm else {}),
    )
    algorithm = create_algorithm(config, env)
    before = [p.detach().clone() for p in algorithm.parameters()]
    assert algorithm.train_iter() > 0
    env.close()
    return [not p.equal(b) for p, b in zip(algorithm.parameters(), before, strict=True)]


def test_plain_modules_are_networks_without_state():
    assert all(
        trained(
            PPOAlgorithm,
            actor_network_ctor=Policy,
            value_network_ctor=lambda observation, reward: nn.Linear(4, 1),
        )
    )
    assert any(trained(DqnAlgorithm, q_network_ctor=lambda *_: nn.Linear(4, 2)))


def test_a_value_of_one_element_is_one_number():
    network = as_network(nn.Linear(3, 1), TensorSpec((3,)), "value_network_ctor", ())
    values, state = network(torch.zeros(5, 3))
    assert (values.shape, state) == ((5,), ())
    assert network(torch.zeros(2, 5, 3))[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("ctor", "networks", "message"),
    [
        (
            PPOAlgorithm,
            {"value_network_ctor": lambda *_: nn.Linear(4, 3)},
            r"value_network_ctor must give a tensor \(130,\), got torch.Size",
        ),
        (
            PPOAlgorithm,
            {"actor_network_ctor": lambda *_: nn.Linear(4, 2)},
            "actor_network_ctor must give distributions of actions",
        ),
        (
            PPOAlgorithm,
            {"value_network_ctor": lambda *_: 3},
            "value_network_ctor must build a network or a torch.nn.Module, got int",
        ),
        (
            SacAlgorithm,
            {"critic_network_ctor": lambda *_: nn.Linear(4, 2)},
            "a Linear, which has no state_spec, encode, evaluate",
        ),
    ],
)
def test_what_cannot_be_a_network_says_what_is_missing(ctor, networks, message):
    with pytest.raises(ConfigError, match=message):
        trained(ctor, **networks)


def test_whole_sequences_are_those_of_the_thread_and_of_the_innermost_block():
    is_first = torch.zeros(3, 2, dtype=torch.bool)
    assert current_sequences() is None
    with whole_sequences(is_first), ThreadPoolExecutor(1) as pool:
        outer = current_sequences()
        assert outer.shape == (3, 2)
        assert pool.submit(current_sequences).result() is None
        with whole_sequences(is_first[:1]):
            assert current_sequences().shape == (1, 2)
        assert current_sequences() is outer
    assert current_sequences() is None
