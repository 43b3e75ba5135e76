from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.batch_loss import (
    LossFunction,
    aggregate_loss,
    batch_loss,
)
from alf_lite.algorithms.learning.training_batches import TrainingBatch, transpose
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.algorithms.parts.return_heads import CategoricalHead, QuantileHead
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

NUM_STATES = 4
OBSERVATION = TensorSpec((NUM_STATES,))  # one-hot
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
NO_SOURCE = BatchInfo()

Linear = functools.partial(QNetwork, fc_layer_params=())

# Three windows: one goes on, one terminates at its second step, one runs into a limit.
STATES = [[0, 1, 2], [1, 2, 0], [2, 3, 0]]
STEP_TYPES = [[FIRST, MID, MID], [MID, LAST, FIRST], [MID, LAST, FIRST]]
REWARDS = [[0.0, 1.0, 2.0], [9.0, -1.0, 0.0], [9.0, 3.0, 0.0]]
DISCOUNTS = [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
ACTIONS = [[2, 0, 1], [1, 0, 0], [0, 2, 2]]
TABLE = [[0.0, 1, 2], [3, 5, 4], [1, 0, 0.5], [0, 0, 1]]
TARGET = [[1.0, 1, 1], [10, 20, 30], [7, 8, 9], [4, 5, 6]]


def make(cls=CqlDqnAlgorithm, action_spec=CHOICE, **kwargs):
    arguments = {
        "gamma": 0.9,
        "q_network_ctor": Linear,
        "optimizer": Adam(lr=0.05),
        "observation_spec": OBSERVATION,
        **kwargs,
    }
    torch.manual_seed(0)
    return cls(action_spec=action_spec, **arguments)


def set_tables(algorithm) -> None:
    for network, table in (
        (algorithm._q_network, TABLE),
        (algorithm._target_q_network, TARGET),
    ):
        linear = network._advantage[-1]
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(table).T)
            linear.bias.zero_()


def with_tables(cls=CqlDqnAlgorithm, **kwargs):
    algorithm = make(cls, **kwargs)
    set_tables(algorithm)
    return algorithm


def three_windows() -> TimeStep:
    return TimeStep(
        step_type=torch.tensor(STEP_TYPES, dtype=torch.int32),
        reward=torch.tensor(REWARDS),
        discount=torch.tensor(DISCOUNTS),
        observation=torch.eye(NUM_STATES)[torch.tensor(STATES)],
        prev_action=torch.tensor(ACTIONS).roll(1, dims=1),
    )


def batch_of(algorithm, steps: TimeStep, batch_info=NO_SOURCE) -> TrainingBatch:
    with torch.no_grad():
        inputs, info = algorithm.preprocess_experience(steps, (), batch_info)
    inputs, info, valid = transpose((inputs, info, steps.step_type != LAST))
    return TrainingBatch(inputs, info, (), valid)


def losses_of(algorithm, steps: TimeStep, batch_info=NO_SOURCE):
    """The LossInfo of ``calc_loss`` before it is averaged."""
    batch = batch_of(algorithm, steps, batch_info)
    state = algorithm.get_initial_train_state(batch.valid.shape[1])
    info, _ = LossFunction(algorithm).info(batch, state)
    return algorithm.calc_loss(info)


def gap_of(state: int, action: int, temperature: float = 1.0) -> float:
    total = sum(math.exp(q / temperature) for q in TABLE[state])
    return temperature * math.log(total) - TABLE[state][action]


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("n", [1, 2])
def test_the_loss_is_that_of_dqn_and_a_naive_gap(temperature, n):
    arguments = {"n_step": n}
    algorithm = with_tables(cql_alpha=3.0, cql_temperature=temperature, **arguments)
    loss = losses_of(algorithm, three_windows())
    dqn = losses_of(with_tables(DqnAlgorithm, **arguments), three_windows())
    assert loss.loss.shape == (3 - n, 3)
    for t in range(3 - n):
        for b in range(3):
            if STEP_TYPES[b][t] == LAST:
                continue
            gap = gap_of(STATES[b][t], ACTIONS[b][t], temperature)
            assert loss.extra.gap[t, b].item() == pytest.approx(gap, rel=1e-5)
            expected = dqn.loss[t, b].item() + 3.0 * gap
            assert loss.loss[t, b].item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(loss.priority, dqn.priority)
    torch.testing.assert_close(loss.extra.dqn, dqn.extra)


def test_by_hand_the_loss_of_one_step():
    algorithm = with_tables(cql_alpha=2.0)
    loss = losses_of(algorithm, three_windows())
    # The limit: y = 3 + 0.9 Q⁻(3, 2) = 8.4, δ = 7.4; gap of [1, 0, 0.5] and action 0.
    gap = math.log(1 + math.exp(-1) + math.exp(-0.5))
    assert loss.loss[0, 2].item() == pytest.approx(6.9 + 2 * gap, rel=1e-5)
    # The termination: y = -1, δ = -6; gap of [3, 5, 4] and action 1.
    gap = math.log(1 + math.exp(-1) + math.exp(-2))
    assert loss.loss[0, 1].item() == pytest.approx(5.5 + 2 * gap, rel=1e-5)


def test_last_steps_do_not_count():
    algorithm = with_tables()
    steps = three_windows()
    losses = []
    for state in (0, 1):
        steps.observation[1:, 1] = torch.eye(NUM_STATES)[state]  # both are LAST
        steps.observation[1:, 2] = torch.eye(NUM_STATES)[state]
        batch = batch_of(algorithm, steps)
        info = losses_of(algorithm, steps)
        losses.append(
            aggregate_loss(
                info._replace(loss=info.loss[1:]), batch.valid[1:]
            ).loss.item()
        )
    assert losses[0] == losses[1] > 0


def test_the_gap_pushes_the_taken_action_up_and_the_others_down():
    algorithm = with_tables(cql_alpha=1.0)
    loss = losses_of(algorithm, three_windows())
    loss.extra.gap[0, 0].backward()  # state 0, action 2
    gradient = algorithm._q_network._advantage[-1].weight.grad.T
    softmax = torch.tensor(TABLE[0]).softmax(0)
    torch.testing.assert_close(gradient[0], softmax - torch.tensor([0.0, 0.0, 1.0]))
    assert not gradient[1:].any()
    assert all(p.grad is None for p in algorithm._target_q_network.parameters())


def test_components_have_a_gap_each_and_their_mean_counts():
    spec = BoundedTensorSpec((2,), torch.int64, 0, [1, 2])  # 2 and 3 values
    algorithm = make(action_spec=spec)
    steps = three_windows()._replace(
        prev_action=torch.tensor([1, 2]).expand(3, 3, 2).contiguous()
    )
    loss = losses_of(algorithm, steps)
    outputs, _ = algorithm._q_network(steps.observation[:, 0])
    first, second = outputs[:, 0, :2, 0], outputs[:, 1, :, 0]
    gap = first.logsumexp(1) - first[:, 1] + second.logsumexp(1) - second[:, 2]
    torch.testing.assert_close(loss.extra.gap[0], gap / 2)


def test_values_that_the_mask_rules_out_are_left_out():
    mask = BoundedTensorSpec((3,), torch.int8, 0, 1)
    algorithm = with_tables(
        observation_spec={"x": OBSERVATION, "mask": mask}, action_mask_key="mask"
    )
    steps = three_windows()
    allowed = torch.ones(3, 3, 3, dtype=torch.int8)
    allowed[1, 0, 2] = 0
    steps = steps._replace(observation={"x": steps.observation, "mask": allowed})
    gap = losses_of(algorithm, steps).extra.gap
    expected = math.log(math.exp(3) + math.exp(5)) - 5
    assert gap[0, 1].item() == pytest.approx(expected, rel=1e-5)
    assert gap[0, 0].item() == pytest.approx(gap_of(0, 2), rel=1e-5)


@pytest.mark.parametrize(
    "model", [QuantileHead(5), CategoricalHead(-2.0, 2.0, 11)], ids=["q", "c"]
)
def test_distributions_of_returns_have_the_gap_of_their_means(model):
    algorithm = make(return_model=model)
    steps = three_windows()
    loss = losses_of(algorithm, steps)
    outputs, _ = algorithm._q_network(steps.observation[:, 0])
    q = model.mean(outputs)[:, 0]
    taken = torch.tensor([row[0] for row in ACTIONS])
    expected = q.logsumexp(1) - q[torch.arange(3), taken]
    torch.testing.assert_close(loss.extra.gap[0], expected)


def test_a_reward_of_several_dimensions_is_weighted():
    algorithm = with_tables(reward_spec=TensorSpec((2,)), reward_weights=[1.0, -0.5])
    steps = three_windows()
    several = steps._replace(reward=torch.stack([steps.reward] * 2, dim=-1))
    single = steps._replace(reward=0.5 * steps.reward)
    expected = losses_of(with_tables(), single)
    torch.testing.assert_close(losses_of(algorithm, several).loss, expected.loss)


def test_only_rows_of_offline_buffers_if_asked_for():
    algorithm = with_tables(cql_threshold=0.2, offline_rows_only=True)
    source = BatchInfo(source=torch.tensor([2, 0, 1]))
    loss = losses_of(algorithm, three_windows(), source).loss[0]
    everywhere = losses_of(with_tables(cql_threshold=0.2), three_windows()).loss[0]
    nowhere = losses_of(with_tables(DqnAlgorithm), three_windows()).loss[0]
    torch.testing.assert_close(
        loss, torch.stack([everywhere[0], nowhere[1], everywhere[2]])
    )
    assert (everywhere != nowhere).all()


class CountingEncoder(EncodingNetwork):
    """Has a state that does not matter: every path must give the same result."""

    def __init__(self, input_spec, **kwargs) -> None:
        super().__init__(input_spec, **kwargs)
        self._state_spec = TensorSpec(())

    def forward(self, inputs, state=()):
        return super().forward(inputs)[0], state + 1


@pytest.mark.parametrize("n", [1, 2])
def test_a_network_with_memory_has_the_same_loss(n):
    network = functools.partial(Linear, encoding_network_ctor=CountingEncoder)
    arguments = {"n_step": n, "offline_rows_only": True}
    plain, with_state = (
        with_tables(**arguments),
        with_tables(q_network_ctor=network, **arguments),
    )
    assert not with_state.is_temporally_independent
    source = BatchInfo(source=torch.tensor([1, 1, 0]))
    expected = losses_of(plain, three_windows(), source).loss
    loss = losses_of(with_state, three_windows(), source).loss
    valid = torch.tensor(STEP_TYPES)[:, : 3 - n].T != LAST
    torch.testing.assert_close(loss[valid], expected[valid])


def optimize(algorithm, steps: TimeStep, num_updates: int) -> Tensor:
    """Trains on the same windows; the values of all states, [S, A]."""
    batch = batch_of(algorithm, steps)
    for _ in range(num_updates):
        loss_info, info = batch_loss(algorithm, batch)
        update_with_gradient(algorithm, loss_info)
        algorithm.after_update(batch.inputs, info)
    outputs, _ = algorithm._q_network(torch.eye(NUM_STATES))
    return outputs[:, 0, :, 0].detach()


def test_actions_that_were_never_seen_are_worth_less():
    """In every state only action 1 was taken; its target of 2 is all that is known."""
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(4, 2)
    steps = TimeStep(
        step_type=step_type,
        reward=torch.full((4, 2), 2.0),
        discount=torch.tensor([1.0, 0.0]).expand(4, 2),
        observation=torch.eye(NUM_STATES).unsqueeze(1).expand(4, 2, NUM_STATES),
        prev_action=torch.ones(4, 2, dtype=torch.int64),
    )
    dqn, cql = make(DqnAlgorithm), make(cql_alpha=0.5)
    for algorithm in (dqn, cql):
        with torch.no_grad():
            algorithm._q_network._advantage[-1].weight[2] += 5.0  # a mistake
    plain, conservative = optimize(dqn, steps, 300), optimize(cql, steps, 300)
    assert (plain[:, 2] > plain[:, 1] + 1).all()
    others = conservative[:, [0, 2]]
    assert (others < conservative[:, 1:2] - 1).all()
    torch.testing.assert_close(
        conservative[:, 1], torch.full((4,), 2.0), atol=0.2, rtol=0.0
    )


def test_a_learnt_weight_holds_the_gap_at_its_threshold():
    """All actions were taken alike; their gap is 2.1 for the true values 0, 2 and 4."""
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(3, 2)
    steps = TimeStep(
        step_type=step_type,
        reward=torch.tensor([0.0, 2.0, 4.0]).unsqueeze(1).expand(3, 2),
        discount=torch.tensor([1.0, 0.0]).expand(3, 2),
        observation=torch.eye(NUM_STATES)[:1].expand(3, 2, NUM_STATES),
        prev_action=torch.arange(3).unsqueeze(1).expand(3, 2),
    )
    algorithm = make(cql_threshold=1.5, cql_alpha_optimizer=Adam(lr=0.02))
    assert [name for name, _ in algorithm.optimizers()] == [
        "root",
        "_conservative_weight",
    ]
    optimize(algorithm, steps, 500)
    gap = losses_of(algorithm, steps).extra.gap.mean().item()
    assert gap == pytest.approx(1.5, abs=0.03)


def test_evaluation_needs_no_weight():
    algorithm = make(is_eval=True, optimizer=None, cql_threshold=1.0)
    modules = {name.split(".")[0] for name, _ in algorithm.named_parameters()}
    assert modules == {"_q_network"}


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="cql_temperature must be positive"):
        make(cql_temperature=-1.0)
    with pytest.raises(ValueError, match="cql_alpha must be finite and not negative"):
        make(cql_alpha=-1.0)
    message = (
        "CqlDqnAlgorithm cannot handle.*discrete.*with recorded steps CqlAlgorithm"
    )
    with pytest.raises(ValueError, match=message):
        make(action_spec=BoundedTensorSpec((2,), torch.float32, -1, 1))
