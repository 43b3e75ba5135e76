from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm, DqnState
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from tests.replayed_steps import CHOICE, MID, info_of, windows

NUM_STATES = 4
OBSERVATION = TensorSpec((NUM_STATES,))  # one-hot
GAMMA = 0.9

Linear = functools.partial(QNetwork, fc_layer_params=())


def dqn(action_spec=CHOICE, observation_spec=OBSERVATION, **kwargs) -> DqnAlgorithm:
    arguments = {
        "gamma": GAMMA,
        "q_network_ctor": Linear,
        "optimizer": Adam(lr=0.05),
        **kwargs,
    }
    return DqnAlgorithm(observation_spec, action_spec, **arguments)


def set_table(network: QNetwork, table: Tensor) -> None:
    """``table`` [S, outputs]: the outputs in every state."""
    linear = network._advantage[-1]
    with torch.no_grad():
        linear.weight.copy_(table.T)
        linear.bias.zero_()


ONLINE = torch.tensor([[0.0, 1, 2], [3, 5, 4], [1, 0, 0.5], [0, 0, 1]])
TARGET = torch.tensor([[1.0, 1, 1], [10, 20, 30], [7, 8, 9], [4, 5, 6]])


def with_tables(**kwargs) -> DqnAlgorithm:
    algorithm = dqn(**kwargs)
    set_table(algorithm._q_network, ONLINE)
    set_table(algorithm._target_q_network, TARGET)
    return algorithm


@pytest.mark.parametrize(("tau", "period"), [(1.0, 128), (0.5, 1)])
def test_the_target_is_copied_from_time_to_time_or_follows_always(tau, period):
    algorithm = with_tables(target_update_tau=tau)
    table = algorithm._target_q_network._advantage[-1].weight
    before = table.clone()
    for _ in range(period):
        assert torch.equal(table, before)
        algorithm.after_update(TimeStep(), ())
    assert not torch.equal(table, before)


def time_step(states: list[int], **observation) -> TimeStep:
    batch_size = len(states)
    x = torch.eye(NUM_STATES)[states]
    return TimeStep(
        step_type=torch.full((batch_size,), MID, dtype=torch.int32),
        reward=torch.zeros(batch_size),
        discount=torch.ones(batch_size),
        observation={"x": x, **observation} if observation else x,
    )


def test_prediction_is_greedy_and_rollout_explores():
    torch.manual_seed(0)
    algorithm = with_tables(rollout_epsilon_greedy=0.5)
    steps = time_step([1] * 3000)
    assert (algorithm.predict_step(steps, DqnState()).output == 1).all()
    step = algorithm.rollout_step(steps, DqnState())
    explored = (step.output != 1).float().mean().item()
    assert explored == pytest.approx(1 / 3, abs=0.03)
    assert step.info == ()
    assert step.output.dtype == torch.int64


def test_prediction_uses_the_epsilon_of_the_trainer_and_not_that_of_the_rollout():
    torch.manual_seed(0)
    config = TrainerConfig(num_iterations=1, epsilon_greedy=1.0)
    algorithm = with_tables(rollout_epsilon_greedy=0.0, config=config)
    steps = time_step([1] * 3000)
    uniform = algorithm.predict_step(steps, DqnState()).output
    assert (uniform == 1).float().mean().item() == pytest.approx(1 / 3, abs=0.03)
    assert (algorithm.rollout_step(steps, DqnState()).output == 1).all()


MANY = BoundedTensorSpec((18,), torch.int64, 0, [10, 10, *[1] * 16])


def test_many_components_act_and_learn_each_on_its_own():
    torch.manual_seed(0)
    algorithm = dqn(MANY, rollout_epsilon_greedy=1.0)
    steps = time_step([0] * 400)
    action = algorithm.rollout_step(steps, DqnState()).output
    assert action.shape == (400, 18)
    assert action.amax(0).tolist() == [10, 10, *[1] * 16]
    assert action.amin(0).tolist() == [0] * 18
    window = nest.map_structure(
        lambda t: torch.stack([t, t], dim=1), steps._replace(prev_action=action)
    )
    loss = algorithm.calc_loss(info_of(algorithm, window))
    assert loss.loss.shape == (1, 400)
    loss.loss.sum().backward()
    gradient = algorithm._q_network._advantage[-1].weight.grad
    per_output = gradient.abs().sum(1).unflatten(0, (18, 11)) > 0
    exists = torch.ones(18, 11, dtype=torch.bool)
    exists[2:, 2:] = False
    assert not per_output[~exists].any()
    assert per_output.any(1).all()


def test_actions_in_a_nest_come_back_as_that_nest():
    spec = {"gear": BoundedTensorSpec((), torch.int32, -1, 1), "brake": CHOICE}
    algorithm = dqn(spec)
    output = algorithm.rollout_step(time_step([0, 1]), DqnState()).output
    assert output["gear"].dtype == torch.int32
    assert output["gear"].shape == output["brake"].shape == (2,)
    nest.assert_same_structure(output, spec)


def test_windows_that_are_too_short_name_the_setting():
    with pytest.raises(ValueError, match="mini_batch_length = 4"):
        info_of(dqn(observation_spec=TensorSpec((3,)), n_step=3), windows(CHOICE, 3))


def test_the_loss_is_finite_at_extreme_values():
    algorithm = dqn(observation_spec=TensorSpec((3,)))
    with torch.no_grad():
        for parameter in algorithm._target_q_network.parameters():
            parameter.mul_(1e6)
    loss = algorithm.calc_loss(info_of(algorithm, windows(CHOICE)))
    assert all(math.isfinite(x) for x in loss.loss.flatten().tolist())
