from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.parts.return_heads import CategoricalHead, QuantileHead
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import TensorSpec
from tests.replayed_steps import CHOICE, FIRST, LAST, MID, info_of, update

NUM_STATES = 4
OBSERVATION = TensorSpec((NUM_STATES,))  # one-hot

Linear = functools.partial(QNetwork, fc_layer_params=())

# Three windows: one goes on, one terminates at its second step, one runs into a limit.
STATES = [[0, 1, 2], [1, 2, 0], [2, 3, 0]]
STEP_TYPES = [[FIRST, MID, MID], [MID, LAST, FIRST], [MID, LAST, FIRST]]
REWARDS = [[0.0, 1.0, 2.0], [9.0, -1.0, 0.0], [9.0, 3.0, 0.0]]
DISCOUNTS = [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
ACTIONS = [[2, 0, 1], [1, 0, 0], [0, 2, 2]]


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


def three_windows() -> TimeStep:
    return TimeStep(
        step_type=torch.tensor(STEP_TYPES, dtype=torch.int32),
        reward=torch.tensor(REWARDS),
        discount=torch.tensor(DISCOUNTS),
        observation=torch.eye(NUM_STATES)[torch.tensor(STATES)],
        prev_action=torch.tensor(ACTIONS).roll(1, dims=1),
    )


@pytest.mark.parametrize(
    "model", [QuantileHead(5), CategoricalHead(-2.0, 2.0, 11)], ids=["q", "c"]
)
def test_distributions_of_returns_have_the_gap_of_their_means(model):
    algorithm = make(return_model=model)
    steps = three_windows()
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    outputs, _ = algorithm._q_network(steps.observation[:, 0])
    q = model.mean(outputs)[:, 0]
    taken = torch.tensor([row[0] for row in ACTIONS])
    expected = q.logsumexp(1) - q[torch.arange(3), taken]
    torch.testing.assert_close(loss.extra.gap[0], expected)


def test_an_optimizer_of_what_is_kept_is_refused():
    with pytest.raises(ConfigError, match="cql_alpha_optimizer has no effect"):
        CqlDqnAlgorithm(TensorSpec((3,)), CHOICE, cql_alpha_optimizer=Adam())


@pytest.mark.ci
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
        update(algorithm, steps, 300)
    plain, conservative = (
        a._q_network(torch.eye(NUM_STATES))[0][:, 0, :, 0].detach() for a in (dqn, cql)
    )
    assert (plain[:, 2] > plain[:, 1] + 1).all()
    others = conservative[:, [0, 2]]
    assert (others < conservative[:, 1:2] - 1).all()
    torch.testing.assert_close(
        conservative[:, 1], torch.full((4,), 2.0), atol=0.2, rtol=0.0
    )
