from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.off_policy_algorithm import OffPolicyState
from alf_lite.algorithms.parts.return_heads import CategoricalHead, QuantileHead
from alf_lite.algorithms.sac_algorithm import SacAlgorithm, SacEvaluation
from alf_lite.data_structures import TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec
from tests.algorithms import actor_critics
from tests.replayed_steps import (
    BOX,
    CHOICE,
    FIRST,
    LAST,
    info_of,
    update,
    windows,
)

LINE = BoundedTensorSpec((1,), torch.float32, -1, 1)


def make(action_spec=BOX, cls=CqlAlgorithm, **kwargs):
    return actor_critics.make(cls, action_spec, initial_alpha=0.3, **kwargs)


def evaluation(algorithm, observation: Tensor, values: Tensor | None = None):
    policy, _ = algorithm._policy(observation)
    features, _ = algorithm._critics.online.encode(observation)
    return SacEvaluation(observation, policy, policy, features, values)


# The conservative term


def test_the_estimate_for_one_continuous_action_is_its_integral():
    # A policy that goes everywhere, and critics that tell actions apart.
    algorithm = make(LINE, num_sampled_actions=10_000, spread=0.0)
    observation = torch.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, 0.0]])
    with torch.no_grad():
        for parameter in algorithm._critics.online.parameters():
            parameter.add_(torch.randn_like(parameter))
        soft = algorithm._logsumexp(evaluation(algorithm, observation))
        grid = torch.linspace(-1, 1, 2001)
        for b in range(2):
            q = algorithm._critics.online(
                (observation[b].expand(2001, 3), grid.unsqueeze(1))
            )[0].squeeze(2)
            assert q.amax(0).sub(q.amin(0)).min() > 1
            integral = torch.trapezoid(q.exp(), grid, dim=0)
            torch.testing.assert_close(soft[b], integral.log(), atol=0.03, rtol=0.0)


def test_without_weights_it_is_the_soft_maximum_of_what_was_sampled():
    algorithm = make(LINE, importance_weighted=False, num_sampled_actions=3)
    observation = torch.ones(1, 3)
    point = evaluation(algorithm, observation)
    torch.manual_seed(3)
    soft = algorithm._logsumexp(point)
    torch.manual_seed(3)
    vectors, log_densities = algorithm._sample_vectors(point)
    assert not log_densities.any()
    q = torch.stack(
        [algorithm._critics.online((observation, v))[0][0, :, 0] for v in vectors]
    )
    torch.testing.assert_close(soft[0], q.exp().mean(0).log())


def test_samples_are_of_the_policy_at_both_steps_and_uniform():
    algorithm = make(LINE, num_sampled_actions=5000)
    observation = torch.tensor([[1.0, 0.0, 0.0], [0.0, -2.0, 1.0]])
    here, _ = algorithm._policy(observation)
    there, _ = algorithm._policy(3 * observation)
    vectors, log_densities = algorithm._sample_vectors(
        SacEvaluation(observation, here, there, observation, ())
    )
    assert vectors.shape == (15_000, 2, 1)
    assert log_densities.shape == (15_000, 2)
    of_here, of_there, uniform = vectors.split(5000)
    for drawn, policy in ((of_here, here), (of_there, there)):
        expected = distributions.sample(
            nest.map_structure(lambda t: t.expand(5000, *t.shape), policy)
        )
        torch.testing.assert_close(drawn.mean(0), expected.mean(0), atol=0.05, rtol=0.0)
        torch.testing.assert_close(drawn.std(0), expected.std(0), atol=0.05, rtol=0.0)
    assert uniform.std().item() == pytest.approx(1 / math.sqrt(3), abs=0.02)
    assert log_densities[10_000:].eq(-math.log(2)).all()


# The loss


# Learning


def bandit(action_spec, low: float, high: float) -> TimeStep:
    """90 one-step episodes; actions of [low, high] only, whose value is themselves."""
    torch.manual_seed(3)
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(90, 2)
    action = low + (high - low) * torch.rand(90, 2, 1)
    if action_spec is CHOICE:
        action = action.squeeze(-1).long()
    return TimeStep(
        step_type=step_type,
        reward=action.float().reshape(90, 2),
        discount=(step_type != LAST).float(),
        observation=torch.ones(90, 2, 3),
        prev_action=action,
    )


def learnt_values(algorithm, actions: list[float]) -> list[float]:
    inputs = torch.ones(len(actions), 3), torch.tensor(actions).unsqueeze(1)
    with torch.no_grad():
        return algorithm._critics.online(inputs)[0].mean((1, 2)).tolist()


@pytest.mark.ci
def test_actions_that_were_never_seen_are_worth_less():
    learner = functools.partial(
        make,
        LINE,
        spread=0.0,
        critic_network_ctor=functools.partial(
            actor_critics.Critic, joint_fc_layer_params=(64,)
        ),
    )
    algorithms = {
        "sac": learner(cls=SacAlgorithm, optimizer=Adam(lr=1e-2)),
        "cql": learner(cql_alpha=0.5, num_sampled_actions=5, optimizer=Adam(lr=1e-2)),
    }
    for algorithm in algorithms.values():
        update(algorithm, bandit(LINE, -1.0, 0.0), 200)
    values = {name: learnt_values(a, [-0.1, 0.9]) for name, a in algorithms.items()}
    assert values["sac"][1] > values["sac"][0] + 0.3  # beyond what it knows
    assert values["cql"][1] < values["cql"][0] - 0.3
    inputs = TimeStep(observation=torch.ones(1, 3))
    greedy = {
        name: a.predict_step(inputs, OffPolicyState()).output.item()
        for name, a in algorithms.items()
    }
    assert greedy["sac"] > 0.5
    assert greedy["cql"] < 0.2


@pytest.mark.slow  # the gradient of its loss is in the table of losses
def test_a_learnt_weight_holds_the_gap_at_its_threshold():
    algorithm = make(
        CHOICE,
        spread=0.0,
        cql_threshold=1.5,
        cql_alpha=0.1,
        optimizer=Adam(lr=1e-2),
        cql_alpha_optimizer=Adam(lr=3e-2),
    )
    steps = bandit(CHOICE, 0.0, 3.0)
    steps.reward.mul_(2)
    update(algorithm, steps, 400)
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    assert loss.extra.gap.mean().item() == pytest.approx(1.5, abs=0.05)


@pytest.mark.parametrize("head", [QuantileHead(5), CategoricalHead(-5.0, 5.0, 11)])
@pytest.mark.parametrize("backup", ["expected", "max", "soft"])
def test_targets_of_a_model_of_the_return_have_what_the_backup_says(backup, head):
    algorithm = make(LINE, return_model=head, backup=backup)
    steps = windows(LINE)
    info = info_of(algorithm, steps).sac
    num_outputs = info.q.shape[-1]
    value, bonus = info.next_value[..., :num_outputs], 0.0
    if backup == "soft":
        bonus = info.next_value[..., num_outputs]
    assert info.next_value.shape[-1] == num_outputs + (backup == "soft")
    _, td_error = algorithm._critic_loss(algorithm._align(info, "next_value"))
    # What the means are off by, of rows that start a transition. The atoms of the
    # categorical head end at 5, so it is moved less where they are cut off.
    target = info.reward + info.discount * (head.mean(value) + bonus)
    wanted = (head.mean(info.q) - target.unsqueeze(-1)).abs().mean(-1)
    torch.testing.assert_close(td_error()[:, :3], wanted[:, :3], atol=0.1, rtol=0.1)


def test_that_the_backup_says_what_targets_hold_is_told():
    with pytest.raises(
        ConfigError, match=r"use_entropy_reward has no effect: .*backup"
    ):
        make(use_entropy_reward=False)
