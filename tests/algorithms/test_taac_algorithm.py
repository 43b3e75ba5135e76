from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch

import alf_lite
from alf_lite.algorithms.parts.return_heads import QuantileHead
from alf_lite.algorithms.taac_algorithm import TaacAlgorithm, compare_through
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from tests.algorithms import actor_critics
from tests.replayed_steps import (
    BOX,
    CHOICE,
    FIRST,
    MID,
    info_of,
    windows,
)

ALPHA = 0.3
T, B = 5, 5

taac = functools.partial(actor_critics.make, TaacAlgorithm, initial_alpha=ALPHA)


# Compare-through


@pytest.mark.parametrize("dims", [(), (2,)])
def test_targets_run_through_what_the_policy_would_have_done(dims):
    torch.manual_seed(3)
    reward, value = torch.randn(T, B, *dims), torch.randn(T, B, *dims)
    discount, goes_on = torch.rand(T, B), torch.rand(T, B) < 0.6
    g, product, bootstrap = compare_through(reward, discount, value, goes_on)
    lengths = set()
    for b in range(B):
        for t in range(T - 1):
            total, weight, k = torch.zeros(dims), 1.0, t
            while True:
                total = total + weight * reward[k, b]
                weight *= discount[k, b].item()
                k += 1
                if k == T - 1 or not goes_on[k, b]:
                    break
            torch.testing.assert_close(g[t, b], total)
            assert product[t, b].item() == pytest.approx(weight, abs=1e-6)
            assert torch.equal(bootstrap[t, b], value[k, b])
            lengths.add(k - t)
    assert lengths == {1, 2, 3, 4}


def test_two_steps_are_the_least():
    row = torch.zeros(2, 1)
    g, product, value = compare_through(row + 1, row + 0.5, row + 3, row > 0)
    assert (g.item(), product.item(), value.item()) == (1.0, 0.5, 3.0)
    with pytest.raises(ValueError, match="at least 2 steps, got 1"):
        compare_through(row[:1], row[:1], row[:1], row[:1] > 0)


# The losses


def test_beta_is_the_best_one_for_its_objective():
    algorithm = taac()
    pair = algorithm._pair(
        TimeStep(step_type=torch.full((4,), int(MID), dtype=torch.int32)),
        torch.randn(4, 3), BOX.sample((4,)), BOX.sample((4,)),
    )  # fmt: skip
    best, entropy = algorithm._objective(pair)
    old, new = pair.values
    p = torch.linspace(1e-4, 1 - 1e-4, 9999)[:, None]
    h = -(p * p.log() + (1 - p) * (1 - p).log())
    objective = (1 - p) * old + p * new + ALPHA * h  # of every β there is
    highest, index = objective.max(0)
    torch.testing.assert_close(best, highest, atol=1e-4, rtol=1e-4)
    beta = algorithm._logit(pair).sigmoid()
    torch.testing.assert_close(beta, p[index, 0], atol=2e-3, rtol=0.0)
    torch.testing.assert_close(entropy, h[index, 0], atol=5e-3, rtol=0.0)


def test_the_slope_of_the_objective_is_that_of_q_times_how_often_it_is_taken():
    algorithm = taac(dqda_clipping=0.05)
    inputs = TimeStep(step_type=torch.tensor([FIRST, MID, MID, MID], dtype=torch.int32))
    features, before = torch.randn(4, 3), BOX.sample((4,))
    candidate = BOX.sample((4,)).requires_grad_()
    pair = algorithm._pair(inputs, features, before, candidate)
    (slope,) = torch.autograd.grad(
        pair.values[1].sum(), pair.vectors[1], retain_graph=True
    )
    (got,) = torch.autograd.grad(algorithm._objective(pair)[0].sum(), pair.vectors[1])
    beta = algorithm._logit(pair).sigmoid()[:, None]
    assert beta[0] == 1.0  # at FIRST
    assert slope.abs().max() > 0.05
    torch.testing.assert_close(got, beta * slope.clamp(-0.05, 0.05))


def test_quantiles_have_targets_of_their_own():
    algorithm = taac(return_model=QuantileHead(num_quantiles=4))
    info = info_of(algorithm, windows(BOX, T))
    assert info.value.shape == (T, B, 4)
    assert algorithm.calc_loss(info).loss.shape == (T - 1, B)


def test_between_updates_of_the_actor_only_the_critics_learn():
    algorithm = taac(actor_update_period=2)
    loss = algorithm.calc_loss(info_of(algorithm, windows(BOX, T)))
    loss.loss.sum().backward()
    assert all(p.grad is None for p in algorithm._policy.parameters())
    algorithm.after_update((), ())
    loss = algorithm.calc_loss(info_of(algorithm, windows(BOX, T)))
    loss.loss.sum().backward()
    assert all(p.grad is not None for p in algorithm._policy.parameters())


# Acting


def acting_step(step_type: int, num_rows: int = 256) -> TimeStep:
    torch.manual_seed(4)
    return TimeStep(
        step_type=torch.full((num_rows,), step_type, dtype=torch.int32),
        reward=torch.zeros(num_rows),
        discount=torch.ones(num_rows),
        observation=torch.randn(num_rows, 3),
        prev_action=BOX.sample((num_rows,)),
    )


def repeated(action, step: TimeStep) -> torch.Tensor:
    return (action == step.prev_action).all(1)


@torch.no_grad()
def test_the_rollout_repeats_as_often_as_beta_says_but_not_at_first():
    algorithm = taac()
    step = acting_step(int(MID), 4096)
    again = repeated(algorithm.rollout_step(step, ()).output, step)
    policy = algorithm._propose(step.observation, step.prev_action)
    pair = algorithm._pair(step, step.observation, step.prev_action, policy.sample())
    expected = 1 - algorithm._logit(pair).sigmoid().mean()
    assert again.float().mean().item() == pytest.approx(expected.item(), abs=0.04)
    first = acting_step(int(FIRST))
    assert not repeated(algorithm.rollout_step(first, ()).output, first).any()
    step = acting_step(int(MID), 1024)
    random = repeated(algorithm.random_action(step), step).float().mean().item()
    assert random == pytest.approx(0.5, abs=0.08)
    assert not repeated(algorithm.random_action(first), first).any()


@torch.no_grad()
def test_evaluation_takes_the_better_of_the_two_and_keeps_it():
    algorithm = taac()
    step = acting_step(int(MID))
    before = step.prev_action
    action = algorithm.predict_step(step._replace(prev_action=()), before)
    candidate = algorithm._propose(step.observation, before).mode
    old, new = algorithm._pair(step, step.observation, before, candidate).values
    expected = torch.where((new > old)[:, None], candidate, before)
    assert torch.equal(action.output, expected)
    assert torch.equal(action.state, expected)
    assert 0 < repeated(action.output, step).sum() < len(expected)
    first = acting_step(int(FIRST))
    assert not repeated(algorithm.predict_step(first, before).output, first).any()
    algorithm.predict_epsilon = 1.0
    drawn = algorithm.predict_step(step, before).output
    assert 0 < repeated(drawn, step).sum() < len(expected)


@pytest.mark.ci
def test_what_acts_is_built_for_evaluation_and_loaded(tmp_path):
    path = tmp_path / "short.gin"
    path.write_text(
        "create_environment.env_name = 'Pendulum-v1'\n"
        "TrainerConfig.algorithm_ctor = @TaacAlgorithm\n"
        "TrainerConfig.num_iterations = 12\n"
        "TrainerConfig.initial_collect_steps = 8\n"
        "TrainerConfig.mini_batch_size = 4\n"
    )
    run = str(tmp_path / "run")
    alf_lite.train(str(path), run, seed=0)
    policy = alf_lite.load_policy(run)
    names = {name.split(".")[0] for name, _ in policy._algorithm.named_parameters()}
    assert names == {"_policy", "_critics", "_temperatures"}
    assert policy._algorithm._critics.target is None
    observation = np.array([1.0, 0.0, 0.0], np.float32)
    assert policy.predict(observation).shape == (1,)
    torch.manual_seed(0)
    drawn = [policy.predict(observation, deterministic=False) for _ in range(40)]
    assert any((a == b).all() for a, b in itertools.pairwise(drawn))
    with pytest.raises(ValueError, match=r"a batch of 3 follows .*Call reset\(\)"):
        policy.predict(np.tile(observation, (3, 1)))
    policy.reset()
    assert policy.predict(np.tile(observation, (3, 1))).shape == (3, 1)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="Use SacAlgorithm for boxes with bounds"):
        taac(CHOICE)
    memory = functools.partial(
        actor_critics.Actor, encoding_network_ctor=GRUEncodingNetwork
    )
    with pytest.raises(ConfigError, match="networks with memory are not implemented"):
        taac(actor_network_ctor=memory)
    with pytest.raises(ConfigError, match=r"TaacAlgorithm\.n_step"):
        taac(n_step=2)
    with pytest.raises(ValueError, match="initial_alpha must be positive"):
        taac(initial_alpha=0.0)
