from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm, DdpgState
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.data_structures import TimeStep
from alf_lite.distributions.exploration import GaussianNoise, OrnsteinUhlenbeckNoise
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec
from tests.algorithms import actor_critics
from tests.replayed_steps import (
    BOX,
    MID,
    batch_of,
    info_of,
    update,
    windows,
)

NESTED = {"b": BOX, "a": BoundedTensorSpec((), torch.float32, -1, 1)}
make = functools.partial(actor_critics.make, DdpgAlgorithm)


def scaled(action: torch.Tensor) -> torch.Tensor:
    """BOX → [-1, 1], by hand."""
    return torch.stack([action[:, 0], action[:, 1] / 5 - 1], dim=1)


@pytest.mark.parametrize("period", [1, 2, 3])
def test_the_actor_is_updated_once_per_period(period):
    algorithm = make(actor_update_period=period)
    moved = []
    for _ in range(6):
        before = {n: p.clone() for n, p in algorithm.named_parameters()}
        update(algorithm, windows(BOX))
        changed = {
            name.split(".")[0]
            for name, p in algorithm.named_parameters()
            if not torch.equal(p, before[name])
        }
        assert "_critics" in changed
        moved.append("_policy" in changed)
    assert moved == [n % period == 0 for n in range(1, 7)]


def test_an_actor_with_its_own_optimizer_may_pause():
    algorithm = make(
        optimizer=None,
        actor_optimizer=Adam(lr=1e-4, gradient_clipping=1.0),
        critic_optimizer=Adam(lr=1e-3),
        actor_update_period=2,
    )
    batch = batch_of(algorithm, windows(BOX))
    actor = [p.clone() for p in algorithm._policy.parameters()]
    loss_info, info = LossFunction(algorithm)(batch)
    norms = update_with_gradient(algorithm, loss_info)
    algorithm.after_update(batch.inputs, info)
    assert norms[0] == 0
    assert all(map(torch.equal, actor, algorithm._policy.parameters()))
    assert loss_info.extra.actor_loss == ()
    update_with_gradient(algorithm, LossFunction(algorithm)(batch)[0])
    assert not all(map(torch.equal, actor, algorithm._policy.parameters()))


def test_a_resumed_run_continues_the_periods():
    algorithm = make(actor_update_period=3, target_update_period=2)
    algorithm.after_update(TimeStep(), ())
    resumed = make(actor_update_period=3, target_update_period=2)
    resumed.load_state_dict(algorithm.state_dict())
    assert resumed._critics.target_updater.is_due
    resumed.after_update(TimeStep(), ())
    assert resumed._actor_updates.is_due


def inputs(num_rows: int, action_spec=BOX) -> TimeStep:
    return TimeStep(
        step_type=torch.full((num_rows,), MID, dtype=torch.int32),
        observation=torch.ones(num_rows, 3),
    )


def test_prediction_has_no_noise_and_rollout_has():
    algorithm = make(
        exploration_noise_ctor=functools.partial(GaussianNoise, std=0.1), spread=0.05
    )
    steps = inputs(5000)
    greedy = algorithm.predict_step(steps, DdpgState()).output
    vector, _ = algorithm._policy(steps.observation)
    torch.testing.assert_close(scaled(greedy), vector)
    step = algorithm.rollout_step(steps, DdpgState())
    assert step.info == ()
    noise = scaled(step.output) - vector
    assert noise.std(0).tolist() == pytest.approx([0.1, 0.1], rel=0.1)
    assert noise.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=0.01)


def test_noisy_actions_stay_between_the_bounds():
    noise = functools.partial(GaussianNoise, std=2.0)
    action = make(exploration_noise_ctor=noise).rollout_step(inputs(500), DdpgState())
    low, high = torch.tensor(BOX.minimum), torch.tensor(BOX.maximum)
    assert ((low <= action.output) & (action.output <= high)).all()


def test_correlated_noise_has_a_row_for_every_environment_in_the_rollout_state():
    noise = functools.partial(OrnsteinUhlenbeckNoise, std=0.1)
    algorithm = make(exploration_noise_ctor=noise)
    assert nest.is_empty(algorithm.train_state_spec)
    assert algorithm.is_temporally_independent
    state = algorithm.get_initial_rollout_state(4)
    assert state.noise.shape == (4, 2)
    first = algorithm.rollout_step(inputs(4), state)
    nest.assert_same_structure(first.state, state)
    assert len(first.state.noise.unique(dim=0)) == 4
    second = algorithm.rollout_step(inputs(4), first.state)
    increment = second.state.noise - 0.85 * first.state.noise
    assert 0 < increment.abs().max() < 0.5
    assert nest.is_empty(algorithm.predict_state_spec)


def test_actions_in_a_nest_come_back_as_that_nest():
    algorithm = make(action_spec=NESTED)
    output = algorithm.rollout_step(
        inputs(3), algorithm.get_initial_rollout_state(3)
    ).output
    nest.assert_same_structure(output, NESTED)
    assert output["a"].shape == (3,)
    assert output["b"].shape == (3, 2)
    info = info_of(algorithm, windows(NESTED))
    algorithm.calc_loss(info).loss.sum().backward()
