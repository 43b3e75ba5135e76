from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.edac_algorithm import EdacAlgorithm
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.optimizers.optimizers import Adam
from tests.replayed_steps import BOX, CHOICE, OBSERVATION, info_of, update, windows


def make(action_spec=BOX, **kwargs):
    torch.manual_seed(0)
    sizes = {"joint_fc_layer_params": (32, 32), "activation": "tanh"}
    return EdacAlgorithm(
        OBSERVATION,
        action_spec,
        actor_network_ctor=functools.partial(SquashedActorNetwork, fc_layer_params=()),
        critic_network_ctor=functools.partial(CriticNetwork, **sizes),
        optimizer=Adam(lr=3e-3),
        **{"num_critics": 4, "gamma": 0.9, **kwargs},
    )


@pytest.mark.ci
def test_critics_lean_different_ways_and_disagree_where_nothing_was_tried():
    steps = windows(BOX, batch_size=32)
    steps.prev_action.mul_(0.2)  # a part of what could be tried
    similarity, spread = [], []
    for weight in (0.0, 2.0):
        algorithm = make(diversity_weight=weight)
        update(algorithm, steps, 100)
        info = info_of(algorithm, steps)
        similarity.append(info.similarity.mean().item())
        features, _ = algorithm._critics.online.encode(steps.observation[:, 0])
        far = torch.tensor([1.0, -1.0]).expand(32, 2)
        values = algorithm._critics.online.evaluate(features, far)
        spread.append(values.std(1).mean().item())
    assert similarity[1] < similarity[0] - 1.0
    assert spread[1] > 1.5 * spread[0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_critics": 1}, ValueError, "num_critics must be at least 2"),
        ({"diversity_weight": -1.0}, ValueError, "diversity_weight must not be neg"),
        ({"action_spec": CHOICE}, ConfigError, "needs an action with a continuous"),
    ],
)
def test_what_cannot_be_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)
