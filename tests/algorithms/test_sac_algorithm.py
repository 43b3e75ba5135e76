from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.data_structures import TimeStep
from alf_lite.distributions.action_vectors import Entropies
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import TensorSpec
from tests.algorithms import actor_critics
from tests.replayed_steps import (
    BOX,
    CHOICE,
    FIRST,
    LAST,
    batch_of,
    info_of,
    update,
    windows,
)

sac = functools.partial(actor_critics.make, SacAlgorithm, initial_alpha=0.3)


def test_the_weights_of_the_reward_decide_what_the_actor_wants():
    algorithm = sac(BOX, reward_spec=TensorSpec((2,)), reward_weights=[1.0, 0.0])
    steps = windows(BOX, reward_dims=(2,))
    before = info_of(algorithm, steps).policy_value
    algorithm.set_reward_weights([0.0, 1.0])
    assert not torch.allclose(info_of(algorithm, steps).policy_value, before)


def test_a_fixed_alpha_stays():
    algorithm = sac(BOX, learn_alpha=False, initial_alpha=0.2)
    loss_info = update(algorithm, windows(BOX))
    alpha = algorithm._temperatures["continuous"].alpha
    assert alpha.item() == pytest.approx(0.2)
    assert loss_info.extra.alpha.continuous == alpha


def bandit() -> TimeStep:
    """64 one-step episodes of random actions, whose reward is their number."""
    torch.manual_seed(3)
    action = CHOICE.sample((64, 2))
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(64, 2)
    return TimeStep(
        step_type=step_type,
        reward=action.float(),
        discount=(step_type != LAST).float(),
        observation=torch.ones(64, 2, 3),
        prev_action=action,
    )


@pytest.mark.ci
def test_the_temperature_holds_the_entropy_at_its_target():
    algorithm = sac(
        CHOICE, spread=0.0, optimizer=Adam(lr=1e-2), discrete_target_entropy=0.7
    )
    steps = bandit()
    update(algorithm, steps, 400)
    info = info_of(algorithm, steps)
    assert info.entropies.discrete.mean().item() == pytest.approx(0.7, abs=0.05)
    # The soft optimum: π ∝ exp(Q / α).
    policy, _ = algorithm._policy(torch.ones(1, 3))
    alpha = algorithm._temperatures["discrete"].alpha
    soft = (torch.tensor([0.0, 1.0, 2.0]) / alpha).softmax(0)
    torch.testing.assert_close(policy.probs[0].detach(), soft, atol=0.05, rtol=0.0)


def test_entropies_of_parts_that_are_not_there_are_left_out():
    loss_info, _ = LossFunction(sac(BOX))(batch_of(sac(BOX), windows(BOX)))
    assert loss_info.extra.entropy.discrete == ()
    assert isinstance(loss_info.extra.alpha, Entropies)
    assert len(nest.flatten(loss_info.extra.alpha)) == 1
