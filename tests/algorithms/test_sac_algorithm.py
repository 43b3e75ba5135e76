from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.learning.batch_loss import LossFunction, batch_loss
from alf_lite.algorithms.learning.training_batches import TrainingBatch, transpose
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.algorithms.parts.temperature import entropy_of_mostly_one_value
from alf_lite.algorithms.sac_algorithm import SacAlgorithm, SacInfo
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.distributions.action_vectors import Entropies
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
MIXED = {"gear": CHOICE, "move": BOX}
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
GAMMA = 0.9

Actor = functools.partial(SquashedActorNetwork, fc_layer_params=(16,))
Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(16,))


def sac(action_spec=BOX, *, spread: float = 0.3, **kwargs) -> SacAlgorithm:
    """With random parameters, so that no two networks agree."""
    arguments = {
        "gamma": GAMMA,
        "actor_network_ctor": Actor,
        "critic_network_ctor": Critic,
        "initial_alpha": 0.3,
        "optimizer": Adam(lr=3e-3),
        **kwargs,
    }
    torch.manual_seed(0)
    algorithm = SacAlgorithm(OBSERVATION, action_spec, **arguments)
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            if "temperature" not in name:
                parameter.add_(spread * torch.randn_like(parameter))
    return algorithm


def windows(
    action_spec, length: int = 2, batch_size: int = 5, reward_dims=()
) -> TimeStep:
    """[B, T] of random steps; the second row terminates, the third hits a limit."""
    torch.manual_seed(1)
    step_type = torch.full((batch_size, length), MID, dtype=torch.int32)
    step_type[1:3, 1] = LAST
    discount = torch.ones(batch_size, length)
    discount[1, 1] = 0.0
    if length > 2:
        step_type[1:3, 2] = FIRST
    return TimeStep(
        step_type=step_type,
        reward=torch.randn(batch_size, length, *reward_dims),
        discount=discount,
        observation=torch.randn(batch_size, length, 3),
        prev_action=nest.map_structure(
            lambda spec: spec.sample((batch_size, length)), action_spec
        ),
    )


def batch_of(algorithm: SacAlgorithm, steps: TimeStep) -> TrainingBatch:
    with torch.no_grad():
        inputs, info = algorithm.preprocess_experience(steps, (), BatchInfo())
    inputs, info, valid = transpose((inputs, info, steps.step_type != LAST))
    return TrainingBatch(inputs, info, (), valid)


def info_of(algorithm: SacAlgorithm, steps: TimeStep, seed: int = 2) -> SacInfo:
    batch = batch_of(algorithm, steps)
    state = algorithm.get_initial_train_state(batch.valid.shape[1])
    torch.manual_seed(seed)
    return LossFunction(algorithm).info(batch, state)[0]


def test_the_weights_of_the_reward_decide_what_the_actor_wants():
    algorithm = sac(BOX, reward_spec=TensorSpec((2,)), reward_weights=[1.0, 0.0])
    steps = windows(BOX, reward_dims=(2,))
    before = info_of(algorithm, steps).policy_value
    algorithm.set_reward_weights([0.0, 1.0])
    assert not torch.allclose(info_of(algorithm, steps).policy_value, before)


def test_default_target_entropies():
    targets = {
        part: temperature.target_entropy
        for part, temperature in sac(MIXED)._temperatures.items()
    }
    # −1 for each element in units of half of its range: 1 and 5.
    assert targets["continuous"] == pytest.approx(-2 + math.log(5))
    assert targets["discrete"] == pytest.approx(entropy_of_mostly_one_value(3))
    given = sac(MIXED, target_entropy=-3.0, discrete_target_entropy=0.5)._temperatures
    assert given["continuous"].target_entropy == -3.0
    assert given["discrete"].target_entropy == 0.5


def test_a_fixed_alpha_stays():
    algorithm = sac(BOX, learn_alpha=False, initial_alpha=0.2)
    loss_info, _ = batch_loss(algorithm, batch_of(algorithm, windows(BOX)))
    update_with_gradient(algorithm, loss_info)
    alpha = algorithm._temperatures["continuous"].alpha
    assert alpha.item() == pytest.approx(0.2)
    assert loss_info.extra.alpha.continuous == alpha


def bandit(action_spec, reward) -> TimeStep:
    """512 one-step episodes of random actions."""
    torch.manual_seed(3)
    action = nest.map_structure(lambda spec: spec.sample((512, 2)), action_spec)
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(512, 2)
    return TimeStep(
        step_type=step_type,
        reward=reward(action),
        discount=(step_type != LAST).float(),
        observation=torch.ones(512, 2, 3),
        prev_action=action,
    )


def train(algorithm: SacAlgorithm, steps: TimeStep, num_updates: int) -> None:
    batch = batch_of(algorithm, steps)
    for _ in range(num_updates):
        loss_info, info = batch_loss(algorithm, batch)
        update_with_gradient(algorithm, loss_info)
        algorithm.after_update(batch.inputs, info)


def test_the_temperature_holds_the_entropy_at_its_target():
    algorithm = sac(
        CHOICE, spread=0.0, optimizer=Adam(lr=1e-2), discrete_target_entropy=0.7
    )
    train(algorithm, bandit(CHOICE, lambda action: action.float()), 400)
    info = info_of(algorithm, bandit(CHOICE, lambda action: action.float()))
    assert info.entropies.discrete.mean().item() == pytest.approx(0.7, abs=0.05)
    # The soft optimum: π ∝ exp(Q / α).
    policy, _ = algorithm._policy(torch.ones(1, 3))
    alpha = algorithm._temperatures["discrete"].alpha
    soft = (torch.tensor([0.0, 1.0, 2.0]) / alpha).softmax(0)
    torch.testing.assert_close(policy.probs[0].detach(), soft, atol=0.05, rtol=0.0)


def test_entropies_of_parts_that_are_not_there_are_left_out():
    loss_info, _ = batch_loss(sac(BOX), batch_of(sac(BOX), windows(BOX)))
    assert loss_info.extra.entropy.discrete == ()
    assert isinstance(loss_info.extra.alpha, Entropies)
    assert len(nest.flatten(loss_info.extra.alpha)) == 1
