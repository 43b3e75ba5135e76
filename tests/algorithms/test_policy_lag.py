"""What is learnt from a policy that acted otherwise, with and without a correction.

Two states. In s0, action 0 leaves with a reward of 0.3 and action 1 leads to s1, where
action 1 is worth 1 and action 0 nothing. Without a discount. The behaviour policy μ and
the target policy π both toss a coin in s0; in s1, μ takes action 1 with probability 0.1
and π with 0.9. So to go to s1 is right for π, and wrong for μ. Of every 100 episodes
each kind occurs exactly as often as μ says: what follows are expectations, not samples.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
)
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.training_batches import TrainingBatch, time_major
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.data_structures import BatchInfo, Experience, TimeStep
from alf_lite.distributions.discrete import Categorical
from alf_lite.networks.network import Network
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

FIRST, MID, LAST = range(3)
MU = torch.tensor([[0.5, 0.5], [0.9, 0.1]])  # [state, action]
PI = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
# V(s1) is the probability of action 1, V(s0) = 0.5 · 0.3 + 0.5 · V(s1).
VALUE_OF_MU = [0.2, 0.1]
VALUE_OF_PI = [0.6, 0.9]
# The policy proportional to min(μ, π) takes both actions alike in s1.
VALUE_BETWEEN = [0.4, 0.5]
UNCLIPPED = {"rho_clip": math.inf, "c_clip": math.inf}
SLOW = pytest.mark.slow  # V-trace itself is in the table of losses
VTRACE = {"off_policy_correction": "vtrace"}


class Table(Network):
    """An entry of ``values`` [state, ...] for each state."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(TensorSpec((2,)))
        self.values = nn.Parameter(values)

    def forward(self, inputs, state=()):
        return inputs @ self.values, state


class TablePolicy(Table):
    def forward(self, inputs, state=()):
        logits, state = super().forward(inputs)
        return Categorical(logits), state


def build(cls, value=(0.0, 0.0), **kwargs):
    """An algorithm whose policy is π."""
    if issubclass(cls, PPOAlgorithm):
        kwargs = {"normalize_advantages": False, **kwargs}
    return cls(
        TensorSpec((2,)),
        BoundedTensorSpec((), torch.int64, 0, 1),
        actor_network_ctor=lambda *_: TablePolicy(PI.log()),
        value_network_ctor=lambda *_: Table(torch.tensor(value)),
        gamma=1.0,
        entropy_regularization=0.0,
        **{"td_lambda": 1.0, **kwargs},
    )


def experience(policy: Tensor = MU) -> Experience:
    """100 episodes of ``policy``, [100, 3]; the shorter ones begin another one."""
    leave = [(FIRST, 0, 0, 0.0, 1.0), (LAST, 1, 0, 0.3, 0.0), (FIRST, 0, 0, 0.0, 1.0)]
    episodes = [leave] * 50
    for action in (0, 1):
        stay = [
            (FIRST, 0, 1, 0.0, 1.0),
            (MID, 1, action, 0.0, 1.0),
            (LAST, 0, 0, float(action), 0.0),
        ]
        episodes += [stay] * round(50 * policy[1, action].item())
    columns = [torch.tensor(x) for x in zip(*itertools.chain(*episodes), strict=True)]
    step_type, state, action, reward, discount = (x.reshape(100, 3) for x in columns)
    return Experience(
        time_step=TimeStep(
            step_type=step_type.int(),
            reward=reward,
            discount=discount,
            observation=nn.functional.one_hot(state, 2).float(),
        ),
        rollout_info=ActorCriticInfo(
            action=action, action_distribution=Categorical(policy.log()[state])
        ),
    )


def batch_of(algorithm, steps: Experience) -> TrainingBatch:
    valid = steps.time_step.step_type != LAST
    valid[:, -1] = False
    return time_major(algorithm.preprocess(steps, valid, BatchInfo()))


def learnt_value(algorithm, steps: Experience) -> list[float]:
    """Where gradient descent on the value's part of the loss ends."""
    table = algorithm._value_network.values
    optimizer = torch.optim.SGD([table], lr=0.5)
    for _ in range(300):
        loss, _ = LossFunction(algorithm)(batch_of(algorithm, steps))
        optimizer.zero_grad()
        loss.loss.backward()
        if table.grad.abs().max() < 1e-6:
            break
        optimizer.step()
    return table.tolist()


def improvement(algorithm, steps: Experience) -> Tensor:
    """What one episode adds to the logits of action 1, [state]."""
    batch = batch_of(algorithm, steps)
    loss, _ = LossFunction(algorithm)(batch)
    loss.loss.backward()
    gradient = algorithm._policy._network.values.grad * batch.valid.sum() / 100
    torch.testing.assert_close(gradient[:, 0], -gradient[:, 1])
    return -gradient[:, 1]


# dJ/dlogit = (how often the state is visited) · π(1) π(0) (Q(s, 1) − Q(s, 0))
TRUE_IMPROVEMENT = torch.tensor([0.25 * (0.9 - 0.3), 0.5 * 0.09 * 1.0])


@pytest.mark.parametrize(
    "td_lambda",
    [
        pytest.param(0.0, marks=pytest.mark.slow),
        0.9,
        pytest.param(1.0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("cls", "options", "expected"),
    [
        (ActorCriticAlgorithm, {}, VALUE_OF_MU),
        (ImpalaAlgorithm, {}, VALUE_BETWEEN),
        pytest.param(ImpalaAlgorithm, UNCLIPPED, VALUE_OF_PI, marks=SLOW),
        pytest.param(PPOAlgorithm, {}, VALUE_OF_MU, marks=SLOW),
        pytest.param(PPOAlgorithm, VTRACE, VALUE_BETWEEN, marks=SLOW),
        (PPOAlgorithm, {**VTRACE, **UNCLIPPED}, VALUE_OF_PI),
    ],
)
def test_the_value_is_that_of_the_target_policy_if_it_is_corrected(
    cls, options, expected, td_lambda
):
    algorithm = build(cls, td_lambda=td_lambda, **options)
    value = learnt_value(algorithm, experience())
    assert value == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("td_lambda", [0.0, 0.9, 1.0])
@pytest.mark.parametrize(
    ("cls", "options"), [(ImpalaAlgorithm, {}), (PPOAlgorithm, VTRACE)]
)
def test_a_corrected_gradient_is_the_policy_gradient(cls, options, td_lambda):
    algorithm = build(cls, VALUE_OF_PI, td_lambda=td_lambda, **options, **UNCLIPPED)
    torch.testing.assert_close(improvement(algorithm, experience()), TRUE_IMPROVEMENT)
    # As without a lag.
    on_policy = build(ActorCriticAlgorithm, VALUE_OF_PI, td_lambda=td_lambda)
    torch.testing.assert_close(improvement(on_policy, experience(PI)), TRUE_IMPROVEMENT)


@pytest.mark.parametrize("value", [VALUE_OF_MU, VALUE_OF_PI])
def test_an_uncorrected_gradient_leads_the_wrong_way(value):
    # Σ_a μ(a) (Q^μ(s0, a) − V) ∇log π(a), with Q^μ = 0.1 of going and 0.3 of leaving
    wrong = 0.25 * (0.1 - 0.3)
    a2c, ppo = (build(cls, value) for cls in (ActorCriticAlgorithm, PPOAlgorithm))
    assert improvement(a2c, experience())[0].item() == pytest.approx(wrong, abs=1e-6)
    change = improvement(ppo, experience())
    assert change[0].item() == pytest.approx(wrong, abs=1e-6)
    # The ratio to μ is 9 and 1/9: clipped before anything was learnt.
    assert change[1].item() == 0.0


@pytest.mark.parametrize(
    ("cls", "options"), [(ImpalaAlgorithm, {}), (PPOAlgorithm, VTRACE)]
)
def test_truncated_weights_still_lead_the_right_way(cls, options):
    """The advantages are those of the policy in between, which also goes to s1."""
    algorithm = build(cls, VALUE_BETWEEN, **options)
    change = improvement(algorithm, experience())
    # In s1 the weights are 1 of action 1, which μ hardly takes, and 1/9 of action 0.
    expected = torch.tensor([0.25 * (0.5 - 0.3), 0.5 * 0.1 * (0.5 * 0.1 + 0.5 * 0.9)])
    torch.testing.assert_close(change, expected)


@pytest.mark.parametrize(
    ("cls", "options"), [(ImpalaAlgorithm, {}), (PPOAlgorithm, VTRACE)]
)
def test_normalising_advantages_keeps_the_direction(cls, options):
    """A constant in the advantage must not matter, also where μ is not π."""
    algorithm = build(
        cls, VALUE_OF_PI, normalize_advantages=True, **options, **UNCLIPPED
    )
    change = improvement(algorithm, experience())
    torch.testing.assert_close(
        change / change[0], TRUE_IMPROVEMENT / TRUE_IMPROVEMENT[0]
    )
