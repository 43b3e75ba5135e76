from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.crossq_algorithm import (
    CrossqAlgorithm,
    NormalizedCriticNetwork,
)
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.sac_algorithm import Following
from alf_lite.config import files as config_files
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from tests.replayed_steps import batch_of, update, windows

OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, -1.0, 1.0)
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)

Critic = functools.partial(NormalizedCriticNetwork, joint_fc_layer_params=(16,))


def crossq(action_spec=BOX, **kwargs) -> CrossqAlgorithm:
    torch.manual_seed(0)
    arguments = {
        "actor_network_ctor": functools.partial(
            SquashedActorNetwork, fc_layer_params=(16,)
        ),
        "critic_network_ctor": Critic,
        "initial_alpha": 0.3,
        "optimizer": Adam(),
        **kwargs,
    }
    return CrossqAlgorithm(OBSERVATION, action_spec, **arguments)


@pytest.mark.parametrize("action_spec", [BOX, CHOICE], ids=["box", "choice"])
def test_one_pass_normalizes_both_steps_by_the_statistics_of_all_rows(action_spec):
    algorithm, other = crossq(action_spec), crossq(action_spec)
    observation, next_observation = torch.randn(6, 3), 5 + torch.randn(6, 3)
    vector = torch.rand(6, 2) if action_spec is BOX else None
    with torch.no_grad():
        policy, _ = algorithm._policy(next_observation)
    torch.manual_seed(1)
    values, next_value, _ = algorithm._evaluate(
        (observation, observation), vector, Following(next_observation, policy, ())
    )
    assert values.requires_grad
    assert not next_value.requires_grad
    # By hand: all rows at once through the same critics, which take statistics anew.
    torch.manual_seed(1)
    sample = other._actions.sample(policy)
    rows = torch.cat([observation, next_observation])
    vectors = None if vector is None else torch.cat([vector, sample.vector])
    joint = other._critics.online.evaluate(rows, vectors)
    torch.testing.assert_close(values, joint[:6])
    smallest = sample.expectation(joint[6:].amin(1))
    bonus = 0.3 * sum(e for e in sample.entropies if isinstance(e, torch.Tensor))
    torch.testing.assert_close(next_value, (smallest + bonus).detach())
    # The statistics are those of both.
    alone = crossq(action_spec)._critics.online.evaluate(observation, vector)
    assert not torch.allclose(alone, values, atol=0.05)


@pytest.mark.parametrize(
    ("kind", "compiles"),
    [
        (CrossqAlgorithm, False),
        (CqlAlgorithm, False),
        (DdpgAlgorithm, False),
        pytest.param(CrossqAlgorithm, True, marks=pytest.mark.slow),
    ],
)
def test_steps_that_start_no_transition_move_no_value_of_another(kind, compiles):
    valid = torch.rand(1, 64) < 0.9
    steps = TimeStep(
        step_type=torch.where(valid, StepType.MID, StepType.LAST).int(),
        reward=torch.randn(1, 64),
        discount=torch.ones(1, 64),
        observation=torch.randn(1, 64, 3),
        prev_action=torch.zeros(1, 64, 2),
    )
    transition = Transition(
        torch.rand(1, 64, 2),
        *torch.rand(2, 1, 64),
        next_observation=torch.randn(1, 64, 3),
    )
    found = []
    for content in (0.0, 50.0):
        torch.manual_seed(0)
        algorithm = kind(OBSERVATION, BOX, critic_network_ctor=Critic, optimizer=Adam())
        for x in (steps.observation, transition.action, transition.next_observation):
            x[~valid] = content
        function = LossFunction(algorithm)
        loss_of = function.compiled(backend="aot_eager") if compiles else function
        torch.manual_seed(1)
        loss_info, _ = loss_of(TrainingBatch(steps, transition, (), valid))
        parameters = list(algorithm._critics.online.parameters())
        found.append(
            [
                loss_info.loss,
                *torch.autograd.grad(loss_info.loss, parameters),
                *(b.float() for b in algorithm._critics.online.buffers()),
            ]
        )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_a_compiled_update_has_the_same_gradients():
    actor = functools.partial(SquashedActorNetwork, fc_layer_params=(16,), body="xqc")
    found = []
    for compiles in (False, True):
        algorithm = crossq(actor_network_ctor=actor, actor_update_period=1)
        function = LossFunction(algorithm)
        loss_of = function.compiled(backend="aot_eager") if compiles else function
        batch = batch_of(algorithm, windows(BOX, batch_size=16))
        torch.manual_seed(1)
        loss = loss_of(batch)[0].loss
        parameters = [p for p in algorithm.parameters() if p.requires_grad]
        found.append([*torch.autograd.grad(loss, parameters), *algorithm.buffers()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_there_are_no_targets():
    algorithm = crossq()
    assert algorithm._critics.target is None
    assert not any("critics.target." in name for name in algorithm.state_dict())
    before = [p.clone() for p in algorithm.parameters()]
    algorithm.after_update((), ())
    for a, b in zip(before, algorithm.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ConfigError, match="target_update_period has no effect"):
        crossq(target_update_period=2)
    with config_files.own_config():
        config_files.parse_config_text("OffPolicyAlgorithm.target_update_tau = 0.1")
        crossq()
        (line,) = config_files.unused_bindings()
        assert "every caller passed its own value" in line


def test_a_normalized_actor_follows_the_batches_that_it_is_trained_on():
    actor = functools.partial(SquashedActorNetwork, fc_layer_params=(16,), body="xqc")
    algorithm = crossq(actor_network_ctor=actor, actor_update_period=3)
    moved = []
    for _ in range(6):
        before = [buffer.clone() for buffer in algorithm._policy.buffers()]
        update(algorithm, windows(BOX))
        after = list(algorithm._policy.buffers())
        moved.append(not all(map(torch.equal, before, after)))
    assert moved == [False, False, True] * 2


@pytest.mark.parametrize("encoder_layers", [(), (5,)], ids=["plain", "encoded"])
@pytest.mark.parametrize("action_spec", [BOX, CHOICE], ids=["box", "choice"])
def test_targets_value_both_steps_by_the_statistics_of_the_batch(
    action_spec, encoder_layers
):
    critic = functools.partial(Critic, encoder_fc_layer_params=encoder_layers)
    algorithm, other = (
        crossq(action_spec, target_update_tau=0.5, critic_network_ctor=critic)
        for _ in range(2)
    )
    for one in (algorithm, other):  # targets that differ from what they follow
        torch.manual_seed(2)
        with torch.no_grad():
            for parameter in one._critics.target.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    observation, next_observation = torch.randn(6, 3), 5 + torch.randn(6, 3)
    vector = torch.rand(6, 2) if action_spec is BOX else None
    with torch.no_grad():
        policy, _ = algorithm._policy(next_observation)
    kept = [buffer.clone() for buffer in algorithm._critics.target.buffers()]
    torch.manual_seed(1)
    now = observation, algorithm._critics.online.encode(observation)[0]
    values, next_value, _ = algorithm._evaluate(
        now, vector, Following(next_observation, policy, ())
    )
    for before, buffer in zip(kept, algorithm._critics.target.buffers(), strict=True):
        assert torch.equal(before, buffer)
    # By hand: the target's parameters, in critics that are trained
    torch.manual_seed(1)
    sample = other._actions.sample(policy)
    rows = torch.cat([observation, next_observation])
    vectors = None if vector is None else torch.cat([vector, sample.vector])
    online = other._critics.online
    joint = online.evaluate(online.encode(rows)[0], vectors)
    torch.testing.assert_close(values, joint[:6])
    online.load_state_dict(other._critics.target.state_dict())
    joint = online.evaluate(online.encode(rows)[0], vectors)
    smallest = sample.expectation(joint[6:].amin(1))
    bonus = 0.3 * sum(e for e in sample.entropies if isinstance(e, torch.Tensor))
    torch.testing.assert_close(next_value, (smallest + bonus).detach())
    assert not next_value.requires_grad
    algorithm.after_update((), ())  # half of the way
    for source, target, before in zip(
        algorithm._critics.online.parameters(),
        algorithm._critics.target.parameters(),
        other._critics.target.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(target, (source + before) / 2)


def test_critics_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="needs critics with batch normalization"):
        crossq(critic_network_ctor=CriticNetwork)
    encoder = functools.partial(EncodingNetwork, batch_norm=True)
    encoded = functools.partial(Critic, encoding_network_ctor=encoder)
    crossq(critic_network_ctor=encoded)  # of a vector, which is encoded by itself
    encoded.keywords["encoder_fc_layer_params"] = (8,)
    with pytest.raises(ConfigError, match="the encoder of the critics has batch norm"):
        crossq(critic_network_ctor=encoded)
    memory = functools.partial(Critic, encoding_network_ctor=GRUEncodingNetwork)
    with pytest.raises(ConfigError, match="without memory"):
        crossq(critic_network_ctor=memory)
