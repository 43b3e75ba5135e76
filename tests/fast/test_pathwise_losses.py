"""The losses of SAC, TD3 and DDPG with their gradients are those of their parts."""

from __future__ import annotations

import copy
import dataclasses
import functools
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from alf_lite import fast
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.return_heads import QuantileHead
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    ActorNetwork,
    SquashedActorNetwork,
)
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.lean_layers import hidden_layers_in
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.diagnostics import diagnostics_if
from tests.fast.twins import watched, without_twins

SIZE = 3
BOX = BoundedTensorSpec((2,), torch.float32, (-1, 0), (3, 5))
TABLE = BoundedTensorSpec((2, 3), torch.float32, -1, 1)
CONFIG = TrainerConfig(
    mini_batch_length=2, unroll_length=1, num_updates_per_train_iter=1
)
PRIORITIZED = dataclasses.replace(CONFIG, priority_replay=True)
KINDS = [SacAlgorithm, Td3Algorithm, DdpgAlgorithm]


class OwnLoss(SacAlgorithm):
    def calc_loss(self, info):
        return super().calc_loss(info)


class OwnNoise(Td3Algorithm):
    def _target_action(self, action):
        return -super()._target_action(action)


def build(kind, action_spec=BOX, config=CONFIG, **options):
    """With networks that differ from their targets."""
    torch.manual_seed(0)
    algorithm = kind(
        TensorSpec((SIZE,)),
        action_spec,
        **{"config": config, "optimizer": Adam(), **networks(kind), **options},
    )
    for parameter in algorithm.parameters():
        parameter.data.add_(0.2 * torch.randn(parameter.shape))
    return algorithm


def networks(kind, sizes=(16, 12), activation="relu"):
    is_sac = issubclass(kind, SacAlgorithm)
    actor = SquashedActorNetwork if is_sac else ActorNetwork
    options = {"fc_layer_params": sizes, "activation": activation}
    return {
        "actor_network_ctor": functools.partial(actor, **options),
        "critic_network_ctor": functools.partial(
            CriticNetwork, joint_fc_layer_params=sizes, activation=activation
        ),
    }


def a_batch(algorithm, size=40, weighted=False) -> TrainingBatch:
    """Some of whose steps are the last ones of their episodes."""
    shape = 1, size
    step_type = torch.where(torch.rand(shape) < 0.2, StepType.LAST, 1).int()
    action = algorithm.action_spec.sample(shape)
    steps = TimeStep(
        step_type=step_type,
        reward=torch.randn(shape),
        discount=torch.ones(shape),
        observation=torch.randn(*shape, SIZE),
        prev_action=action,
    )
    transition = Transition(
        action,
        3 * torch.randn(shape),
        0.9 * (torch.rand(shape) > 0.1),
        next_observation=torch.randn(*shape, SIZE),
    )
    info = BatchInfo()
    if weighted:
        info = BatchInfo(importance_weights=torch.rand(size))
    return TrainingBatch(steps, transition, (), step_type != StepType.LAST, info)


def trained(algorithm):
    return [p for p in algorithm.parameters() if p.requires_grad]


def loss_and_gradients(algorithm, batch, *, looks=True, by_parts=False, factor=1.0):
    """The loss, the gradients, and a random number that is drawn next."""
    torch.manual_seed(5)
    twins = without_twins("quick_loss") if by_parts else nullcontext()
    with twins, diagnostics_if(looks), watched() as ran:
        loss_info, _ = LossFunction(algorithm)(batch)
    name = f"{type(algorithm).__name__}.quick_loss"
    assert ran[name] == (not by_parts)
    (factor * loss_info.loss).backward()
    gradients = [p.grad for p in trained(algorithm)]
    for parameter in algorithm.parameters():
        parameter.grad = None
    return loss_info, gradients, torch.rand(3)


def assert_alike(algorithm, batch, factor=1.0):
    quick, found, drawn = loss_and_gradients(algorithm, batch, factor=factor)
    unseen, same, _ = loss_and_gradients(algorithm, batch, looks=False, factor=factor)
    by_parts, expected, drawn_by_parts = loss_and_gradients(
        algorithm, batch, by_parts=True, factor=factor
    )
    assert torch.equal(drawn, drawn_by_parts)
    assert unseen.extra == ()
    assert torch.equal(unseen.loss, quick.loss)
    assert_close = functools.partial(torch.testing.assert_close, rtol=2e-5, atol=2e-5)
    assert_close(quick._asdict(), by_parts._asdict())
    for a, b, c in zip(found, same, expected, strict=True):
        assert (a is None) == (b is None) == (c is None)
        if a is not None:
            assert torch.equal(a, b)
            size = float(c.abs().max())
            torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-6 + 1e-5 * size)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sizes", "activation", "action_spec", "batch_size"),
    [
        ((16, 12), "relu", BOX, 40),
        ((8,), "tanh", TABLE, 1),
        ((5, 1, 7), "elu", BOX, 9),
        ((), "relu", TABLE, 300),
    ],
)
def test_loss_and_gradients_are_those_of_the_parts(
    kind, sizes, activation, action_spec, batch_size
):
    options = networks(kind, sizes, activation)
    algorithm = build(kind, action_spec, **options)
    found = assert_alike(algorithm, a_batch(algorithm, batch_size))
    # Td3 moves the actor at its second update
    assert sum(g is not None for g in found) >= len(trained(algorithm)) // 2
    algorithm.after_update((), ())
    assert_alike(algorithm, a_batch(algorithm, batch_size))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_critics", [1, 2, 5])
def test_with_priorities_and_weights_of_steps(kind, num_critics):
    algorithm = build(kind, config=PRIORITIZED, num_critics=num_critics)
    batch = a_batch(algorithm, weighted=True)
    assert_alike(algorithm, batch, factor=0.3)
    nothing = batch._replace(valid=torch.zeros_like(batch.valid))
    assert all(not g.any() for g in assert_alike(algorithm, nothing) if g is not None)


@pytest.mark.parametrize(
    "options",
    [
        {"use_entropy_reward": False},
        {"actor_update_period": 2},
        {"initial_alpha": 0.01, "target_entropy": -1.0},
    ],
)
def test_options_of_sac_are_honoured(options):
    algorithm = build(SacAlgorithm, **options)
    assert_alike(algorithm, a_batch(algorithm))


def test_equal_critics_share_what_the_actor_learns():
    algorithm = build(SacAlgorithm, num_critics=3)
    for parameter in algorithm._critics.online.parameters():
        parameter.data[1:] = parameter.data[:1]
    assert_alike(algorithm, a_batch(algorithm))


def test_parameters_are_looked_up_again_when_they_have_moved():
    algorithm = build(SacAlgorithm)
    batch = a_batch(algorithm)
    assert_alike(algorithm, batch)
    other = copy.deepcopy(algorithm)
    for parameter in (*other.parameters(), *algorithm._policy.parameters()):
        parameter.data = parameter.data + 0.1
    for each in (algorithm, other):
        assert_alike(each, batch)


@pytest.mark.parametrize("tells", [True, False])
def test_gradients_are_nobody_elses_and_given_again_if_the_graph_is_kept(
    tells, monkeypatch
):
    if not tells:  # as of a torch that does not say whether the graph is kept
        monkeypatch.setattr(fast, "_keeps_graph", lambda: True)
    algorithm = build(SacAlgorithm)
    parameters = trained(algorithm)
    loss = algorithm.quick_loss(a_batch(algorithm))[0].loss
    once, twice = (
        torch.autograd.grad(factor * loss, parameters, retain_graph=True)
        for factor in (2, 1)
    )
    for a, b in zip(once, twice, strict=True):
        assert torch.equal(a, 2 * b)
    loss.backward()
    for parameter, gradient in zip(parameters, twice, strict=True):
        assert torch.equal(parameter.grad, gradient)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()
    again = algorithm.quick_loss(a_batch(algorithm))[0].loss
    before = [p.grad.clone() for p in trained(algorithm)]
    assert all(
        torch.equal(p.grad, b) for p, b in zip(trained(algorithm), before, strict=True)
    )
    again.backward()  # adds
    with pytest.raises(RuntimeError, match="no gradient of its own"):
        loss = algorithm.quick_loss(a_batch(algorithm))[0].loss
        torch.autograd.grad(loss, trained(algorithm), create_graph=True)


def test_the_loss_of_others_is_not_short_cut():
    for own, base in ((OwnLoss, SacAlgorithm), (OwnNoise, Td3Algorithm)):
        algorithm = build(own)
        assert algorithm.quick_loss(a_batch(algorithm)) is None
        assert build(base).quick_loss(a_batch(algorithm)) is not None
    sac = functools.partial(build, SacAlgorithm)
    layer_norm = functools.partial(CriticNetwork, layer_norm=True)
    encoding = functools.partial(CriticNetwork, encoder_fc_layer_params=(4,))
    other_noise = functools.partial(
        ActorDistributionNetwork, continuous_projection="tanh_normal"
    )
    slow_elu = functools.partial(CriticNetwork, activation=nn.ELU(0.5))
    for algorithm in (
        sac(critic_network_ctor=layer_norm),
        sac(critic_network_ctor=encoding),
        sac(critic_network_ctor=slow_elu),
        sac(actor_network_ctor=other_noise),
        sac(return_model=QuantileHead(5)),
        sac(dqda_clipping=1.0),
        sac(learn_alpha=False),
        build(DdpgAlgorithm, dqda_clipping=1.0),
        build(DdpgAlgorithm, action_l2=0.1),
    ):
        assert algorithm.quick_loss(a_batch(algorithm)) is None
    algorithm = sac()
    batch = a_batch(algorithm)
    with torch.no_grad():
        assert algorithm.quick_loss(batch) is None
    with hidden_layers_in(torch.bfloat16):
        assert algorithm.quick_loss(batch) is None
    assert algorithm.double().quick_loss(batch) is None
    algorithm = sac()
    algorithm._policy.requires_grad_(False)
    assert algorithm.quick_loss(batch) is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_elu_whose_alpha_is_changed_later_is_the_bodys(kind):
    algorithm = build(kind, **networks(kind, activation="elu"))
    batch = a_batch(algorithm)
    assert algorithm.quick_loss(batch) is not None
    for module in algorithm.modules():
        if isinstance(module, nn.ELU):
            module.alpha = 0.5
    assert algorithm.quick_loss(batch) is None


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_to_observations_and_doubles_are_the_bodys(kind):
    algorithm = build(kind)
    batch = a_batch(algorithm)
    inputs, transition = batch.inputs, batch.rollout_info
    observation = inputs.observation.clone().requires_grad_()
    inputs = inputs._replace(observation=observation)
    assert algorithm.quick_loss(batch._replace(inputs=inputs)) is None
    for name in ("reward", "discount"):
        double = {name: getattr(transition, name).double()}
        other = batch._replace(rollout_info=transition._replace(**double))
        assert algorithm.quick_loss(other) is None
    assert algorithm.quick_loss(batch) is not None


class Same(nn.Module):
    def forward(self, weight):
        return weight


def changes():
    yield lambda a: a._policy.register_forward_hook(lambda *x: None)
    yield lambda a: a._policy._network.register_forward_pre_hook(lambda *x: None)
    yield lambda a: setattr(a, "calc_loss", lambda info: None)
    yield lambda a: setattr(a, "_critic_loss", lambda info: None)
    yield lambda a: setattr(a._policy, "forward", lambda *x: None)
    yield lambda a: setattr(a._critics, "smallest", lambda values: values[:, 0])
    yield lambda a: setattr(a._critics.online, "evaluate", lambda *x: None)
    yield lambda a: setattr(a._critics.target._critics, "values", lambda *x: None)
    yield lambda a: setattr(a._actions, "to_vector", lambda action: action)
    for part in ("online", "target"):
        for change in (
            lambda layers: layers[0].register_forward_hook(lambda *x: None),
            lambda layers: setattr(layers[0], "forward", lambda x: x),
            lambda layers: layers.__setitem__(1, nn.Tanh()),
            lambda layers: layers.append(nn.Tanh()),
            lambda layers: parametrize.register_parametrization(
                layers[0], "weight", Same()
            ),
        ):
            yield lambda a, c=change, p=part: c(
                getattr(a._critics, p)._critics._hidden_layers
            )
    yield lambda a: a._policy._network._encoder._mlp.__setitem__(1, nn.Tanh())


@pytest.mark.parametrize("kind", [SacAlgorithm, Td3Algorithm])
@pytest.mark.parametrize("change", [*changes()])
def test_what_was_changed_later_is_not_short_cut(kind, change):
    algorithm = build(kind)
    batch = a_batch(algorithm)
    assert algorithm.quick_loss(batch) is not None
    change(algorithm)
    assert algorithm.quick_loss(batch) is None


@pytest.mark.parametrize("kind", KINDS)
def test_another_parameter_on_the_same_memory_is_noticed(kind):
    algorithm = build(kind)
    batch = a_batch(algorithm)
    assert algorithm.quick_loss(batch) is not None
    linear = next(m for m in algorithm._policy.modules() if isinstance(m, nn.Linear))
    linear.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
    assert algorithm.quick_loss(batch) is None


def test_a_temperature_that_somebody_looks_at_is_torchs():
    algorithm = build(SacAlgorithm)
    batch = a_batch(algorithm)
    temperatures = algorithm._temperatures
    for module in (temperatures, temperatures._modules["continuous"]):
        handle = module.register_forward_hook(lambda *_: None)
        assert algorithm.quick_loss(batch) is None
        handle.remove()
    temperatures.__class__ = type("Own", (type(temperatures),), {})
    assert algorithm.quick_loss(batch) is None
