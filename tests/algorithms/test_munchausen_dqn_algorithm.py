from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite.algorithms.munchausen_dqn_algorithm import MunchausenDqnAlgorithm
from alf_lite.algorithms.parts.return_heads import QuantileHead, RescaledReturnHead
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

GAMMA, ALPHA, TEMPERATURE, CLIPPING = 0.9, 0.8, 0.5, -0.5
PAIR = BoundedTensorSpec((2,), torch.int64, [0, 0], [2, 1])
MASK = BoundedTensorSpec((3,), torch.int8, 0, 1)


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


def log_policy(values: list[float]) -> list[float]:
    """log softmax(v / τ) of a list, by a loop."""
    total = sum(math.exp(v / TEMPERATURE) for v in values)
    return [v / TEMPERATURE - math.log(total) for v in values]


@pytest.mark.parametrize("action_spec", [CHOICE, PAIR], ids=["one", "two"])
@pytest.mark.parametrize("n", [1, 2])
def test_the_target_is_that_of_a_naive_loop(action_spec, n):
    algorithm = munchausen(action_spec, n_step=n)
    steps = windows(action_spec, length=n + 2, batch_size=12)
    info = info_of(algorithm, steps)
    loss = algorithm.calc_loss(info)
    assert loss.loss.shape == (2, 12)
    sizes = algorithm._actions.sizes.tolist()
    target_q, _ = algorithm._target_q_network(steps.observation.flatten(0, 1))
    target_q = target_q.squeeze(-1).unflatten(0, (12, n + 2))  # [B, T, C, A]
    actions = steps.prev_action.reshape(12, n + 2, -1)
    clipped = 0
    for b in range(12):
        if steps.step_type[b, 0] == LAST:
            continue
        reward, discount, m = 0.0, 1.0, 0
        while m < n and steps.step_type[b, m] != LAST:
            m += 1
            reward += discount * steps.reward[b, m].item()
            discount *= GAMMA * steps.discount[b, m].item()
        expected = 0.0
        for c, size in enumerate(sizes):
            here = target_q[b, 0, c, :size].tolist()
            there = target_q[b, m, c, :size].tolist()
            taken = actions[b, 1, c].item()
            addend = TEMPERATURE * log_policy(here)[taken]
            clipped += addend < CLIPPING
            value = sum(
                math.exp(log) * (v - TEMPERATURE * log)
                for v, log in zip(there, log_policy(there), strict=True)
            )
            target = reward + ALPHA * max(addend, CLIPPING) + discount * value
            error = abs(target - info.outputs[0, b, c, 0].item())
            expected += 0.5 * error**2 if error <= 1 else error - 0.5
        loss_here = loss.loss[0, b].item()
        assert loss_here == pytest.approx(expected / len(sizes), rel=1e-4), b
    assert clipped


def test_what_a_mask_rules_out_has_no_part_in_the_policy():
    algorithm = munchausen(
        observation_spec={"x": OBSERVATION, "mask": MASK}, action_mask_key="mask"
    )
    steps = windows(CHOICE)
    action = torch.zeros_like(steps.prev_action)
    mask = torch.tensor([1, 0, 0], dtype=torch.int8).expand(5, 2, 3)
    steps = steps._replace(
        prev_action=action, observation={"x": steps.observation, "mask": mask}
    )
    info = info_of(algorithm, steps)
    assert info.bonus.tolist() == [[[0.0]] * 5]  # log 1
    x = steps.observation["x"][:, 1]
    only, _ = algorithm._target_q_network({"x": x})
    torch.testing.assert_close(info.next_outputs[0], only[:, :, 0])


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
