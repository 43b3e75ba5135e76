from __future__ import annotations

import dataclasses
import functools
from contextlib import nullcontext

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm, DqnState
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.return_heads import ExpectedReturnHead, QuantileHead
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, LossInfo, StepType, TimeStep
from alf_lite.distributions.exploration import EpsilonGreedy
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.diagnostics import diagnostics_if
from tests.fast.twins import watched, without_twins
from tests.replayed_steps import observations

SIZE, NUM_VALUES, BATCH_SIZE = 3, 4, 200
CONFIG = TrainerConfig(
    mini_batch_length=2, unroll_length=1, num_updates_per_train_iter=1
)


class OwnLoss(DqnAlgorithm):
    def calc_loss(self, info) -> LossInfo:
        return super().calc_loss(info)


class OwnTarget(DqnAlgorithm):
    def _reward_and_discount(self, info):
        return super()._reward_and_discount(info)


class OwnStep:
    def train_step(self, inputs, state, rollout_info):
        return super().train_step(inputs, state, rollout_info)


class Mixed(OwnStep, DqnAlgorithm):
    pass


class Lowest(ExpectedReturnHead):
    """The outputs are losses: the smallest one is the best."""

    def mean(self, outputs):
        return -super().mean(outputs)


class OwnValues(DqnAlgorithm):
    def _evaluate(self, observation, state):
        q, *more = super()._evaluate(observation, state)
        return -q, *more


class Scaling(EncodingNetwork):
    """Its layers are not all that it does."""

    def forward(self, inputs, state=()):
        features, state = super().forward(inputs, state)
        return 2 * features, state


PARTS = {"place": TensorSpec((2,)), "speed": TensorSpec((SIZE - 2,))}
MASKED = {**PARTS, "mask": BoundedTensorSpec((NUM_VALUES,), torch.bool, 0, 1)}
NORMALIZED = functools.partial(
    QNetwork,
    activation="elu",
    dueling=True,
    encoding_network_ctor=functools.partial(EncodingNetwork, layer_norm=True),
)
# Observation, network, and name of the mask
KINDS = {
    "plain": (TensorSpec((SIZE,)), QNetwork, None),
    "normalized": (TensorSpec((SIZE,)), NORMALIZED, None),
    "parts": (PARTS, functools.partial(QNetwork, dueling=True), None),
    "masked": (MASKED, QNetwork, "mask"),
}


def dqn(
    kind=DqnAlgorithm, config=CONFIG, spec=TensorSpec((SIZE,)), **kwargs
) -> DqnAlgorithm:
    torch.manual_seed(0)
    action_spec = BoundedTensorSpec((), torch.int64, 0, NUM_VALUES - 1)
    return kind(spec, action_spec, config=config, optimizer=Adam(), **kwargs)


def dqn_of(name: str, **kwargs) -> DqnAlgorithm:
    spec, network, key = KINDS[name]
    return dqn(spec=spec, q_network_ctor=network, action_mask_key=key, **kwargs)


def a_batch(spec=TensorSpec((SIZE,))) -> TrainingBatch:
    """Some of whose steps are the last ones of their episodes."""
    step_type = torch.where(torch.rand(1, BATCH_SIZE) < 0.2, StepType.LAST, 1).int()
    steps = TimeStep(
        step_type=step_type,
        reward=torch.randn(1, BATCH_SIZE),
        discount=torch.ones(1, BATCH_SIZE),
        observation=observations(spec, (1, BATCH_SIZE)),
        prev_action=torch.zeros(1, BATCH_SIZE, dtype=torch.int64),
    )
    transition = Transition(
        torch.randint(NUM_VALUES, (1, BATCH_SIZE)),
        3 * torch.randn(1, BATCH_SIZE),
        0.9 * (torch.rand(1, BATCH_SIZE) > 0.1),
        next_observation=observations(spec, (1, BATCH_SIZE)),
    )
    return TrainingBatch(steps, transition, (), step_type != StepType.LAST)


def loss_and_gradients(algorithm, batch: TrainingBatch, looks=True, in_parts=False):
    twins = without_twins("quick_loss") if in_parts else nullcontext()
    with twins, diagnostics_if(looks):
        loss_info, _ = LossFunction(algorithm)(batch)
    parameters = list(algorithm._q_network.parameters())
    return loss_info, [
        loss_info.loss,
        *torch.autograd.grad(loss_info.loss, parameters),
    ]


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("huber_delta", [None, 0.3, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_its_parts_whoever_looks(kind, double, huber_delta):
    algorithm = dqn_of(
        kind, double=double, return_model=ExpectedReturnHead(huber_delta)
    )
    for parameter in algorithm._target_q_network.parameters():
        parameter.data.add_(0.1)
    batch = a_batch(KINDS[kind][0])
    assert algorithm.quick_loss(batch) is not None
    quick, found = loss_and_gradients(algorithm, batch, looks=False)
    looked_at, same = loss_and_gradients(algorithm, batch, looks=True)
    by_parts, expected = loss_and_gradients(algorithm, batch, in_parts=True)
    assert quick.extra == ()
    assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, same, expected))
    for a, b in zip(looked_at.extra, by_parts.extra, strict=True):
        torch.testing.assert_close(a, b)
    with without_twins():
        _, by_torch = loss_and_gradients(algorithm, batch)
    for a, b in zip(found, by_torch, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_loss_of_others_is_not_short_cut():
    batch = a_batch()
    weights = torch.ones(BATCH_SIZE)
    weighted = batch._replace(batch_info=BatchInfo(importance_weights=weights))
    assert dqn(return_model=QuantileHead()).quick_loss(batch) is None
    prioritized = dataclasses.replace(CONFIG, priority_replay=True)
    assert dqn(config=prioritized).quick_loss(batch) is None
    for own in (OwnLoss, OwnTarget, Mixed):
        assert dqn(own).quick_loss(batch) is None
    assert dqn().quick_loss(weighted) is None
    with torch.no_grad():
        assert dqn().quick_loss(batch) is None
    algorithm = dqn()
    algorithm.calc_loss = lambda info: LossInfo(loss=torch.zeros(1, BATCH_SIZE))
    assert algorithm.quick_loss(batch) is None
    own_encoder = functools.partial(QNetwork, encoding_network_ctor=Scaling)
    assert dqn(q_network_ctor=own_encoder).quick_loss(batch) is None
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        algorithm = dqn()
        assert algorithm.quick_loss(batch) is not None
        getattr(algorithm._q_network, register)(lambda *args: None)
        assert algorithm.quick_loss(batch) is None


def with_own_values() -> DqnAlgorithm:
    algorithm = dqn()
    evaluate = algorithm._evaluate
    algorithm._evaluate = lambda *args: (-evaluate(*args)[0], None, ())
    return algorithm


def with_own_network() -> DqnAlgorithm:
    algorithm = dqn()
    forward = algorithm._q_network.forward
    algorithm._q_network.forward = lambda *args: (-forward(*args)[0], ())
    return algorithm


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(dqn, OwnValues),
        functools.partial(dqn, return_model=Lowest()),
        with_own_values,
        with_own_network,
    ],
)
def test_whoever_values_actions_otherwise_is_asked_for_the_best(make):
    algorithm = make()
    observation = torch.randn(BATCH_SIZE, SIZE)
    inputs = TimeStep(observation=observation)
    expected = dqn()._q_network(observation)[0][:, 0, :, 0].argmin(1)
    for step in (algorithm.predict_step, algorithm.rollout_step):
        algorithm.predict_epsilon = 0.0
        algorithm._explore = EpsilonGreedy(0.0)
        steps = TimeStep(
            step_type=torch.ones(BATCH_SIZE).int(), observation=observation
        )
        with torch.no_grad():
            assert torch.equal(step(steps, DqnState()).output, expected)
    transition = a_batch().rollout_info
    transition = nest.map_structure(lambda t: t[0], transition)
    with torch.no_grad():
        algorithm._double = False
        found, _ = algorithm._bootstrap(inputs.observation, transition, None, ())
    if isinstance(algorithm._return_model, Lowest):  # of the target network
        outputs, _ = algorithm._target_q_network(observation)
        assert torch.equal(found, outputs.amin(-2))


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("batch_size", [1, 3, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_acting_draws_and_chooses_as_with_torch(kind, epsilon, batch_size):
    algorithm = dqn_of(kind, rollout_epsilon_greedy=epsilon)
    algorithm.predict_epsilon = epsilon
    inputs = TimeStep(
        step_type=torch.ones(batch_size, dtype=torch.int32),
        reward=torch.zeros(batch_size),
        discount=torch.ones(batch_size),
        observation=nest.map_structure(
            lambda leaf: leaf[0], observations(KINDS[kind][0], (1, batch_size))
        ),
        prev_action=torch.zeros(batch_size, dtype=torch.int64),
    )
    state = algorithm.get_initial_rollout_state(batch_size)

    def act(in_torch: bool) -> list:
        torch.manual_seed(1)
        twins = without_twins() if in_torch else nullcontext()
        with twins, torch.inference_mode():
            steps = [algorithm.rollout_step(inputs, state) for _ in range(9)]
            state_ = algorithm.get_initial_predict_state(batch_size)
            steps += [algorithm.predict_step(inputs, state_) for _ in range(9)]
        return [*(step.output for step in steps), torch.rand(4)]

    with watched() as ran:
        found = act(in_torch=False)
    assert sum(ran.values()) == 18
    for a, b in zip(found, act(in_torch=True), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
