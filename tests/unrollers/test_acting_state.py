from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.unrollers.actor_copy import ActingState
from alf_lite.utils.progress import Progress
from tests.algorithms.agent_toys import full_agent


def build() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    module.progress = Progress()
    return module


def copy(source: ActingState, target: ActingState) -> None:
    assert list(source.tensors) == list(target.tensors)
    with torch.no_grad():
        for name, tensor in source.tensors.items():
            target.tensors[name].copy_(tensor)


def test_parameters_buffers_and_numbers_travel():
    torch.manual_seed(0)
    trained, acting = build(), build()
    trained(torch.rand(5, 2))  # moves the statistics
    source, target = ActingState(trained), ActingState(acting)
    progress = trained.progress
    progress.percent = 0.3
    progress.iterations = 12
    progress.env_steps = 2**40 + 1  # more than float32 and int32 can hold
    progress.global_counter = 7
    trained.acts_randomly = True
    source.capture()
    copy(source, target)
    assert target.apply() is True
    progress = acting.progress
    assert progress.state_dict() == {
        "percent": 0.3,
        "iterations": 12,
        "env_steps": 2**40 + 1,
        "global_counter": 7,
    }
    assert isinstance(progress.env_steps, int)
    for name, value in trained.state_dict().items():
        assert torch.equal(acting.state_dict()[name], value), name


def test_all_counters_of_the_progress_travel():
    module = nn.Module()
    module.acts_randomly = False
    module.progress = progress = Progress()
    state = ActingState(module)
    expected = {}
    for i, name in enumerate(progress.state_dict()):
        expected[name] = i + 1
        setattr(progress, name, i + 1)
    state.capture()
    module.progress = Progress()
    assert state.apply() is False
    assert module.progress.state_dict() == expected


def test_the_tensors_are_those_of_the_module_itself():
    module = build()
    state = ActingState(module)
    module.acts_randomly = False
    captured = state.capture()
    with torch.no_grad():
        module[0].weight.fill_(5)
    assert captured["0.weight"].data_ptr() == module[0].weight.data_ptr()
    assert (captured["0.weight"] == 5).all()
    assert captured["1.num_batches_tracked"].dtype == torch.int64


def test_before_anything_was_captured_training_has_not_begun():
    module = build()
    module.progress.iterations = 5
    assert ActingState(module).apply() is False
    assert module.progress.iterations == 0


def test_parts_that_are_left_out_travel_only_as_parts_of_others():
    shared, own = nn.Linear(2, 2), nn.Linear(2, 2)
    critic = nn.Sequential(shared, own)
    module = nn.ModuleDict(
        {"critic": critic, "actor": nn.Sequential(shared, nn.Linear(2, 1))}
    )
    sent = {id(tensor) for tensor in ActingState(module, [critic]).tensors.values()}
    for part, is_sent in ((shared, True), (own, False), (module["actor"], True)):
        assert all((id(tensor) in sent) == is_sent for tensor in part.parameters())


def test_what_has_two_names_travels_once():
    layer = nn.Linear(2, 2)
    module = nn.ModuleDict({"a": nn.Sequential(layer), "b": nn.Sequential(layer)})
    names = set(ActingState(module).tensors)
    assert names == {"numbers", "a.0.weight", "a.0.bias"}


class OwnRollout(SacAlgorithm):
    """Might act by its critics."""

    training_only_modules = ()

    def rollout_step(self, inputs, state):
        return super().rollout_step(inputs, state)


GRU = functools.partial(GRUEncodingNetwork, hidden_size=(4,))
CASES = [
    (ActorCriticAlgorithm, 2, {}),
    (PPOAlgorithm, 2, {"off_policy_correction": "vtrace"}),
    (
        PPOAlgorithm,
        2,
        {
            "value_network_ctor": functools.partial(
                ValueNetwork, encoding_network_ctor=GRU
            )
        },
    ),
    (DqnAlgorithm, 2, {}),
    (SacAlgorithm, None, {}),
    (SacAlgorithm, 2, {}),
    (CqlAlgorithm, None, {}),
    (DdpgAlgorithm, None, {}),
    (Td3Algorithm, None, {}),
    (full_agent(SacAlgorithm), 2, {}),
]


@pytest.mark.parametrize(("algorithm_ctor", "num_actions", "arguments"), CASES)
def test_acting_does_not_depend_on_what_is_left_out(
    algorithm_ctor, num_actions, arguments
):
    torch.manual_seed(0)
    if num_actions is None:
        action_spec = BoundedTensorSpec((2,), torch.float32, -1, 1)
    else:
        action_spec = BoundedTensorSpec((), torch.int64, 0, num_actions - 1)
    algorithm = algorithm_ctor(TensorSpec((3,)), action_spec, **arguments)
    algorithm.set_training(False)
    time_step = TimeStep(
        step_type=torch.ones(5, dtype=torch.int32),
        reward=torch.rand(5),
        discount=torch.ones(5),
        observation=torch.randn(5, 3),
    )

    def act():
        torch.manual_seed(1)
        state = algorithm.get_initial_rollout_state(5)
        return nest.flatten(algorithm.rollout_step(time_step, state))

    before = act()
    sent = {id(tensor) for tensor in algorithm.acting_state().tensors.values()}
    left_out = [t for t in algorithm.parameters() if id(t) not in sent]
    assert bool(left_out) != ("value_network_ctor" in arguments)
    with torch.no_grad():
        for tensor in left_out:
            tensor.fill_(torch.nan)
    for a, b in zip(before, act(), strict=True):
        assert torch.equal(a, b)


def test_a_subclass_with_its_own_way_to_act_must_say_what_it_leaves_out():
    with pytest.raises(ConfigError, match="define beside it training_only_modules"):

        class Silent(SacAlgorithm):
            def rollout_step(self, inputs, state):
                return super().rollout_step(inputs, state)


def test_a_subclass_with_its_own_way_to_act_may_leave_nothing_out():
    algorithm = OwnRollout(
        TensorSpec((3,)), BoundedTensorSpec((2,), torch.float32, -1, 1)
    )
    sent = {id(tensor) for tensor in algorithm.acting_state().tensors.values()}
    assert all(id(tensor) in sent for tensor in algorithm.parameters())
