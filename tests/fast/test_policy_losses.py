"""The loss of an update in one go is that of its parts, to the bit."""

from __future__ import annotations

import functools
from contextlib import nullcontext

import pytest
import torch

from alf_lite import fast, nest
from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
)
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.policy_gradient import ClippedLoss, PolicyGradientLoss
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm, PPOInfo
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import LossInfo, StepType, TimeStep
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.discrete import Categorical
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.projections import CategoricalProjection
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.diagnostics import diagnostics_if
from tests.fast.twins import without_twins
from tests.replayed_steps import observations

SIZE, NUM_STEPS, BATCH_SIZE = 3, 6, 16
OBSERVATION = TensorSpec((SIZE,))
CHOICE = BoundedTensorSpec((), torch.int64, 1, 4)
VECTOR = BoundedTensorSpec((2,), torch.float32, -1, 1)
NUMBER = BoundedTensorSpec((), torch.float32, -1, 1)
PARTS = {"place": TensorSpec((2,)), "speed": TensorSpec((SIZE - 2,))}
MASK = BoundedTensorSpec((4,), torch.bool, 0, 1)
CONFIG = TrainerConfig(unroll_length=NUM_STEPS - 1)


class OwnLoss(ActorCriticAlgorithm):
    def calc_loss(self, info) -> LossInfo:
        return super().calc_loss(info)


class OwnTrainStep(PPOAlgorithm):
    def train_step(self, inputs, state, rollout_info):
        return super().train_step(inputs, state, rollout_info)


class Tempered(CategoricalProjection):
    def from_outputs(self, outputs):
        return super().from_outputs(outputs / 5)


class NoLoss(ClippedLoss):
    def __call__(self, *args):
        loss, parts = super().__call__(*args)
        return 0 * loss, parts


class OwnParts(ClippedLoss):
    def _parts(self, *args):
        parts = super()._parts(*args)
        return parts._replace(policy_loss=3 * parts.policy_loss)


class OwnGradientLoss(PolicyGradientLoss):
    def __call__(self, *args):
        loss, *parts = super().__call__(*args)
        return 3 * loss, *parts


class Flat(Categorical):
    def entropy(self):
        return 0 * super().entropy()


class OfFlat(CategoricalProjection):
    def from_outputs(self, outputs):
        return Flat(outputs, self._minimum, self._dtype)


class OwnAdvantage(PPOAlgorithm):
    def _advantage_of(self, info):
        return 3 * super()._advantage_of(info)


class Logging(PPOAlgorithm):
    """Changes no equation."""


def build(kind, action_spec=CHOICE, spec=OBSERVATION, **kwargs):
    torch.manual_seed(0)
    arguments = {"config": CONFIG, "optimizer": Adam(), **kwargs}
    return kind(spec, action_spec, **arguments)


def a_batch(algorithm: ActorCriticAlgorithm, num_steps: int) -> TrainingBatch:
    """Random steps, some of which are the last ones of their episodes."""
    shape = num_steps, BATCH_SIZE
    step_type = torch.where(torch.rand(shape) < 0.2, StepType.LAST, 1).int()
    action = algorithm.action_spec.sample(shape)
    steps = TimeStep(
        step_type=step_type,
        reward=torch.randn(shape),
        discount=(torch.rand(shape) > 0.1).float(),
        observation=observations(algorithm.observation_spec, shape),
        prev_action=action,
    )
    valid = step_type != StepType.LAST
    if isinstance(algorithm, PPOAlgorithm):
        numbers = torch.randn(4, *shape)
        info = PPOInfo(action, -numbers[0].abs(), *numbers[1:], valid=valid)
    else:
        valid[-1] = False
        info = ActorCriticInfo(action)
        if isinstance(algorithm, ImpalaAlgorithm):
            info = info._replace(rollout_log_prob=-torch.rand(shape))
    return TrainingBatch(steps, info, (), valid)


def loss_and_gradients(algorithm, batch: TrainingBatch, looks=True, in_parts=False):
    twins = without_twins("quick_loss") if in_parts else nullcontext()
    with twins, diagnostics_if(looks):
        loss_info, _ = LossFunction(algorithm)(batch)
    parameters = [p for p in algorithm.parameters() if p.requires_grad]
    return loss_info, [
        loss_info.loss,
        *torch.autograd.grad(loss_info.loss, parameters),
    ]


@pytest.mark.parametrize("action_spec", [CHOICE, VECTOR, NUMBER])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ActorCriticAlgorithm, {}),
        (ActorCriticAlgorithm, {"normalize_advantages": True}),
        (ActorCriticAlgorithm, {"entropy_regularization": 0.0}),
        (ImpalaAlgorithm, {}),
        (PPOAlgorithm, {"entropy_regularization": 0.02}),
        (PPOAlgorithm, {"advantage_clip": 0.5}),
        (PPOAlgorithm, {"value_clip": 0.1, "normalize_advantages": False}),
    ],
)
def test_the_loss_is_that_of_its_parts_whoever_looks(kind, options, action_spec):
    algorithm = build(kind, action_spec, **options)
    batch = a_batch(algorithm, 1 if kind is PPOAlgorithm else NUM_STEPS)
    assert algorithm.quick_loss(batch) is not None
    quick, found = loss_and_gradients(algorithm, batch, looks=False)
    looked_at, same = loss_and_gradients(algorithm, batch, looks=True)
    by_parts, expected = loss_and_gradients(algorithm, batch, in_parts=True)
    assert quick.extra == ()
    assert all(map(torch.equal, found, same))
    parts = nest.flatten(by_parts.extra)
    for a, b in zip(nest.flatten(looked_at.extra), parts, strict=True):
        torch.testing.assert_close(a, b)
        assert not a.requires_grad
    for a, b in zip(found, expected, strict=True):
        if action_spec is NUMBER:  # sums of one column are rounded otherwise
            torch.testing.assert_close(a, b)
        else:
            assert torch.equal(a, b)


normalized = functools.partial(EncodingNetwork, layer_norm=True, activation="elu")


@pytest.mark.parametrize("kind", [ActorCriticAlgorithm, PPOAlgorithm])
@pytest.mark.parametrize(
    ("spec", "action_spec", "encoder", "key"),
    [
        (PARTS, VECTOR, EncodingNetwork, None),
        (OBSERVATION, CHOICE, normalized, None),
        ({**PARTS, "mask": MASK}, CHOICE, normalized, "mask"),
    ],
    ids=["parts", "normalized", "masked"],
)
def test_other_networks_and_masks_are_short_cut_too(
    kind, spec, action_spec, encoder, key
):
    actor, value = (
        functools.partial(network, encoding_network_ctor=encoder)
        for network in (ActorDistributionNetwork, ValueNetwork)
    )
    algorithm = build(
        kind,
        action_spec,
        spec,
        actor_network_ctor=actor,
        value_network_ctor=value,
        entropy_regularization=0.02,
        action_mask_key=key,
    )
    for parameter in algorithm._policy.parameters():
        parameter.data.add_(0.2 * torch.randn(parameter.shape))
    batch = a_batch(algorithm, 1 if kind is PPOAlgorithm else NUM_STEPS)
    if key is not None:  # one of the allowed ones was taken
        allowed = batch.inputs.observation[key] | (torch.arange(4) == 0)
        batch.inputs.observation[key].copy_(allowed)
        batch.inputs.observation[key][0, 1] = False
        weights = allowed.float().flatten(0, -2)
        action = weights.multinomial(1).view(batch.valid.shape)
        batch.rollout_info.action.copy_(action + CHOICE.minimum.item())
    assert algorithm.quick_loss(batch) is not None
    _, found = loss_and_gradients(algorithm, batch, looks=False)
    _, by_parts = loss_and_gradients(algorithm, batch, in_parts=True)
    with without_twins():
        _, by_torch = loss_and_gradients(algorithm, batch)
    for a, b, c in zip(found, by_parts, by_torch, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)


class OwnMask(ActionMask):
    def apply(self, policy, mask):
        return policy


def test_a_mask_of_ones_own_is_asked():
    algorithm = build(
        PPOAlgorithm, spec={**PARTS, "mask": MASK}, action_mask_key="mask"
    )
    batch = a_batch(algorithm, 1)
    assert algorithm.quick_loss(batch) is not None
    algorithm._policy.mask.__class__ = OwnMask
    assert algorithm.quick_loss(batch) is None


def replaced(owner: object, method: str, change) -> None:
    """Has a method of this object alone change what it returned."""
    original = getattr(owner, method)
    setattr(owner, method, lambda *args: change(original(*args)))


def tripled(result):
    return nest.map_structure(lambda t: 3 * t, result)


# What somebody may have changed of an algorithm
CHANGES = {
    "loss part": lambda a: vars(a).update(_clipped_loss=NoLoss(0.2, None, 0.5, 0.02)),
    "its equation": lambda a: vars(a).update(
        _clipped_loss=OwnParts(0.2, None, 0.5, 0.02)
    ),
    "its method": lambda a: replaced(
        a._clipped_loss, "_parts", lambda p: p._replace(policy_loss=3 * p.policy_loss)
    ),
    "other loss part": lambda a: vars(a).update(
        _policy_gradient_loss=OwnGradientLoss(0.5, 0.02)
    ),
    "algorithm": lambda a: setattr(a, "__class__", OwnAdvantage),
    "its helper": lambda a: replaced(a, "_value", tripled),
    "policy": lambda a: replaced(a._policy, "forward", tripled),
    "actor network": lambda a: replaced(a._policy.network, "forward", tripled),
    "value network": lambda a: replaced(a._value_network, "forward", tripled),
    "encoder": lambda a: replaced(a._value_network._encoder, "forward", tripled),
    "layer": lambda a: replaced(a._value_network._linear, "forward", tripled),
    "hidden layer": lambda a: replaced(
        a._value_network._encoder._mlp[0], "forward", tripled
    ),
    "head": lambda a: setattr(a._policy.network._head, "__class__", Tempered),
    "head's method": lambda a: replaced(
        a._policy.network._head, "from_outputs", tripled
    ),
    "distribution": lambda a: setattr(a._policy.network._head, "__class__", OfFlat),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_rewritten_is_what_every_update_trains(change):
    kind = PPOAlgorithm if change != "other loss part" else ActorCriticAlgorithm
    algorithm = build(kind, entropy_regularization=0.02)
    batch = a_batch(algorithm, 1 if kind is PPOAlgorithm else NUM_STEPS)
    _, shipped = loss_and_gradients(algorithm, batch, looks=False)
    CHANGES[change](algorithm)
    _, found = loss_and_gradients(algorithm, batch, looks=False)
    _, expected = loss_and_gradients(algorithm, batch, in_parts=True)
    algorithm.double()
    in_double = nest.map_structure(
        lambda t: t.double() if t.is_floating_point() else t, batch
    )
    _, exact = loss_and_gradients(algorithm, in_double)
    for a, b, c in zip(found, expected, exact, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a.double(), c, rtol=1e-4, atol=1e-5)
    assert not all(map(torch.equal, found, shipped))


def test_a_subclass_may_have_rows_of_its_own(monkeypatch):
    algorithm = build(Logging)
    batch = a_batch(algorithm, 1)
    assert algorithm.quick_loss(batch) is None
    twin = fast.TWINS["PPOAlgorithm.quick_loss"]
    monkeypatch.setitem(fast.TWINS, f"{__name__}.Logging.quick_loss", twin)
    fast.forget()
    assert algorithm.quick_loss(batch) is not None


def test_what_is_frozen_gets_no_gradient():
    algorithm = build(ActorCriticAlgorithm)
    batch = a_batch(algorithm, NUM_STEPS)
    for network in (algorithm._policy, algorithm._value_network):
        network.requires_grad_(False)
        _, found = loss_and_gradients(algorithm, batch, looks=False)
        _, expected = loss_and_gradients(algorithm, batch, in_parts=True)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)
        network.requires_grad_(True)


def test_the_loss_of_others_is_not_short_cut():
    def is_quick(algorithm, num_steps=NUM_STEPS, batch=None) -> bool:
        if batch is None:
            batch = a_batch(algorithm, num_steps)
        return algorithm.quick_loss(batch) is not None

    assert is_quick(build(ActorCriticAlgorithm))
    assert not is_quick(build(OwnLoss))
    assert not is_quick(build(OwnTrainStep), 1)
    assert not is_quick(build(PPOAlgorithm), 2)
    assert not is_quick(build(PPOAlgorithm, log_prob_clip=3.0), 1)
    assert not is_quick(build(PPOAlgorithm, desired_kl=0.01), 1)
    assert not is_quick(build(ActorCriticAlgorithm, max_policy_kl=0.1))
    reward = TensorSpec((2,))
    assert not is_quick(build(ActorCriticAlgorithm, reward_spec=reward))

    class OwnPolicy(torch.nn.Linear):
        def forward(self, x):
            return torch.distributions.Categorical(logits=super().forward(x))

    def own_policy(*specs) -> OwnPolicy:
        return OwnPolicy(SIZE, 4)

    assert not is_quick(build(ActorCriticAlgorithm, actor_network_ctor=own_policy))
    algorithm = build(ActorCriticAlgorithm)
    algorithm._policy.network._head.__class__ = Tempered
    assert not is_quick(algorithm)
    algorithm = build(ActorCriticAlgorithm)
    with torch.no_grad():
        assert not is_quick(algorithm)
    algorithm.calc_loss = lambda info: LossInfo(loss=torch.zeros(1, BATCH_SIZE))
    assert not is_quick(algorithm)
    algorithm = build(ActorCriticAlgorithm)
    batch = a_batch(algorithm, NUM_STEPS)
    steps = nest.map_structure(
        lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), batch.inputs
    )
    assert not is_quick(algorithm, batch=batch._replace(inputs=steps))
