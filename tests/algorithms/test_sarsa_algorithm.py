from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.parts.return_heads import QuantileHead
from alf_lite.algorithms.sarsa_algorithm import SarsaAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec
from tests.replayed_steps import (
    CHOICE,
    LAST,
    OBSERVATION,
    info_of,
    randomise,
    windows,
)

GAMMA, EPSILON = 0.9, 0.3
MASK = BoundedTensorSpec((3,), torch.int8, 0, 1)


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


@pytest.mark.parametrize("expected", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_the_target_is_that_of_a_naive_loop(n, expected):
    algorithm = sarsa(n_step=n, expected=expected)
    length = n + 3
    steps = windows(CHOICE, length=length)
    info = info_of(algorithm, steps)
    num_rows = algorithm.calc_loss(info).loss.shape[0]
    # The action after the last step that is looked at is in no window.
    assert num_rows == (3 if expected else 2)
    assert algorithm.num_bootstrap_steps == length - num_rows
    target_q, _ = algorithm._target_q_network(steps.observation.flatten(0, 1))
    target_q = target_q[:, 0, :, 0].unflatten(0, (5, length))  # [B, T, A]
    for b in range(5):
        for t in range(num_rows):
            if steps.step_type[b, t] == LAST:
                continue
            m = 0
            while m < n and steps.step_type[b, t + m] != LAST:
                m += 1
            values = target_q[b, t + m]
            if expected:
                value = (1 - EPSILON) * values.max() + EPSILON * values.mean()
            elif steps.step_type[b, t + m] == LAST:
                value = values.max()  # of the time limit; no matter where it ended
            else:
                value = values[steps.prev_action[b, t + m + 1]]
            got = info.next_outputs[t, b, 0, 0].item()
            assert got == pytest.approx(value.item(), rel=1e-5, abs=1e-5), (b, t)


def test_what_a_mask_rules_out_is_never_expected():
    algorithm = sarsa(
        observation_spec={"x": OBSERVATION, "mask": MASK},
        action_mask_key="mask",
        expected=True,
    )
    steps = windows(CHOICE)
    mask = torch.tensor([1, 0, 1], dtype=torch.int8).expand(5, 2, 3)
    x = steps.observation
    steps = steps._replace(observation={"x": x, "mask": mask})
    q, _ = algorithm._target_q_network({"x": x[:, 1]})
    allowed = q[:, :, [0, 2]]
    value = torch.lerp(allowed.amax(2), allowed.mean(2), EPSILON)
    torch.testing.assert_close(info_of(algorithm, steps).next_outputs[0], value)


def test_what_it_cannot_learn_is_refused_by_name():
    gru = functools.partial(QNetwork, encoding_network_ctor=GRUEncodingNetwork)
    with pytest.raises(ConfigError, match=r"networks with memory .*QNetwork has one"):
        sarsa(q_network_ctor=gru)
    with pytest.raises(ConfigError, match="expected needs an ExpectedReturnHead"):
        sarsa(expected=True, return_model=QuantileHead())
    with pytest.raises(ConfigError, match="one for each environment"):
        sarsa(expected=True, rollout_epsilon_greedy=[0.1, 0.2])
    with pytest.raises(TypeError, match="no parameter 'double'"):
        sarsa(double=True)
    config = TrainerConfig(num_iterations=1, mini_batch_length=2)
    with pytest.raises(ConfigError, match=r"the action after them\) take 3 or more"):
        sarsa(config=config)
    sarsa(config=config, expected=True)
    assert sarsa(return_model=QuantileHead()).num_bootstrap_steps == 2
