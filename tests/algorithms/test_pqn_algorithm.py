from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.pqn_algorithm import PqnAlgorithm, PqnInfo
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.value_networks import QNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
OBSERVATION = TensorSpec((3,))
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
GAMMA, LAMBDA = 0.9, 0.6


def make(action_spec=CHOICE, **kwargs) -> PqnAlgorithm:
    torch.manual_seed(0)
    arguments = {"gamma": GAMMA, "td_lambda": LAMBDA, **kwargs}
    return PqnAlgorithm(OBSERVATION, action_spec, **arguments)


def steps() -> TimeStep:
    """[2, 6]: one episode terminates, one ends by a time limit."""
    torch.manual_seed(1)
    step_type = torch.tensor([[FIRST, MID, LAST, FIRST, MID, MID]] * 2)
    discount = torch.ones(2, 6)
    discount[0, 2] = 0.0
    return TimeStep(
        step_type=step_type.int(),
        reward=torch.randn(2, 6),
        discount=discount,
        observation=torch.randn(2, 6, 3),
        prev_action=torch.zeros(2, 6, dtype=torch.int64),
    )


@pytest.mark.parametrize("num_components", [1, 2])
def test_targets_are_those_of_a_naive_q_lambda(num_components):
    root, value = steps(), torch.randn(2, 6, num_components)
    info = PqnInfo(action=torch.zeros(2, 6, dtype=torch.int64), value=value)
    _, info = make().preprocess_experience(root, info, BatchInfo())
    for b in range(2):
        following = value[b, 5]  # of the step after the last one that is trained
        for t in reversed(range(5)):
            if root.step_type[b, t] == LAST:
                following = value[b, t]
                continue
            mixed = LAMBDA * following + (1 - LAMBDA) * value[b, t + 1]
            discount = GAMMA * root.discount[b, t + 1]
            following = root.reward[b, t + 1] + discount * mixed
            torch.testing.assert_close(info.target[b, t], following)


def test_the_loss_is_half_the_squared_distance_of_what_was_taken():
    pair = BoundedTensorSpec((2,), torch.int64, 0, 2)
    algorithm = make(pair)
    observation, action = torch.randn(7, 3), torch.randint(3, (7, 2))
    target = torch.randn(7, 2)
    info = PqnInfo(action=action, value=torch.zeros(7, 2), target=target)
    step = algorithm.train_step(TimeStep(observation=observation), (), info)
    loss = algorithm.calc_loss(step.info).loss
    q, _ = algorithm._q_network(observation)
    for b in range(7):
        squares = [(q[b, c, action[b, c], 0] - target[b, c]) ** 2 for c in range(2)]
        torch.testing.assert_close(loss[b], sum(squares) / 4)


def test_the_rollout_keeps_the_value_of_the_best_action_whatever_it_takes():
    mask = {"x": OBSERVATION, "mask": BoundedTensorSpec((3,), torch.bool, 0, 1)}
    torch.manual_seed(0)
    algorithm = PqnAlgorithm(
        mask, CHOICE, action_mask_key="mask", rollout_epsilon_greedy=1.0
    )
    allowed = torch.tensor([[True, False, True]] * 200)
    observation = {"x": torch.randn(200, 3), "mask": allowed}
    step = algorithm.rollout_step(TimeStep(observation=observation), ())
    assert set(step.output.tolist()) == {0, 2}
    q, _ = algorithm._q_network({"x": observation["x"]})
    best = q[:, 0, [0, 2], 0].amax(1)
    torch.testing.assert_close(step.info.value.squeeze(1), best)


def test_layers_are_normalized_unless_the_network_is_ones_own():
    def has_norm(algorithm):
        return any("norm" in type(m).__name__.lower() for m in algorithm.modules())

    assert has_norm(make())
    plain = functools.partial(QNetwork, fc_layer_params=(8,))
    assert not has_norm(make(q_network_ctor=plain))


def test_actions_that_are_no_choices_are_refused():
    with pytest.raises(ValueError, match="discrete"):
        make(BoundedTensorSpec((2,), torch.float32, -1, 1))
    with pytest.raises(ValueError, match="td_lambda"):
        make(td_lambda=1.5)


def test_there_is_an_epsilon_for_every_environment():
    def build(epsilons):
        env = create_environment("CartPole-v1", 2)
        config = TrainerConfig(num_iterations=1)
        PqnAlgorithm(env=env, config=config, rollout_epsilon_greedy=epsilons)

    build([0.1, 0.2])
    message = r"PqnAlgorithm\.rollout_epsilon_greedy: 3 values .* of 2 environments"
    with pytest.raises(ConfigError, match=message):
        build([0.1, 0.2, 0.3])
