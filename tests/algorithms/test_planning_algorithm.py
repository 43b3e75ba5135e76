"""What is common to algorithms that plan, with a value that is known."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.algorithms import planning_algorithm
from alf_lite.algorithms.parts.trajectory_optimizers import CrossEntropy, RandomShooting
from alf_lite.algorithms.planning_algorithm import PlanningAlgorithm
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

ACTION = BoundedTensorSpec((2,), torch.float32, -2.0, 2.0)


class Following(PlanningAlgorithm):
    """Action k of a plan should be observation / (k + 1), in [-1, 1]."""

    def _outlook(self, observation, noise):
        self.noise = noise
        wanted = wanted_plan(observation).unsqueeze(1)
        return lambda actions: -(actions - wanted).square().sum((2, 3)), None


def wanted_plan(observation):
    return observation.unsqueeze(1) / torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)


def following(**kwargs):
    planner = CrossEntropy(200, 20, 8)
    arguments = {"horizon": 3, "planner": planner, **kwargs}
    return Following(TensorSpec((2,)), ACTION, **arguments)


def steps(observation):
    shape = observation.shape[:1]
    return TimeStep(
        step_type=torch.full(shape, int(StepType.MID), dtype=torch.int32),
        reward=torch.zeros(shape),
        discount=torch.ones(shape),
        observation=observation,
        prev_action=torch.zeros(*shape, 2),
        env_id=torch.zeros(shape, dtype=torch.int32),
    )


def test_the_first_action_of_the_best_plan_is_taken():
    algorithm = following()
    observation = torch.tensor([[0.6, -0.9], [-0.3, 0.0]])
    state = algorithm.get_initial_predict_state(2)
    assert state.shape == (2, 3, 2)
    step = algorithm.predict_step(steps(observation), state)
    assert (step.output - 2 * observation).abs().max() < 0.1  # in the bounds
    assert (step.state - wanted_plan(observation)).abs().max() < 0.1
    assert not step.output.requires_grad


def test_sequences_are_valued_within_wide_products_of_all_rows(monkeypatch):
    asked = []

    def wide_products(num_rows, largest):
        asked.append((num_rows, largest))
        return contextlib.nullcontext()

    monkeypatch.setattr(planning_algorithm, "wide_products", wide_products)
    algorithm = following()
    algorithm.model = nn.Linear(30, 20)
    state = algorithm.get_initial_predict_state(2)
    algorithm.predict_step(steps(torch.zeros(2, 2)), state)
    assert asked == [(2 * 200, 30 * 20)]


def test_predict_has_the_same_noise_and_rollout_another():
    algorithm = following()
    inputs, state = steps(torch.rand(2, 2)), algorithm.get_initial_predict_state(2)
    before = torch.get_rng_state()
    once, again = (algorithm.predict_step(inputs, state) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    nest.map_structure(torch.testing.assert_close, once, again)
    assert algorithm.noise is algorithm._plan_noise
    rollouts = [algorithm.rollout_step(inputs, state).output for _ in range(2)]
    assert algorithm.noise is None
    assert not torch.equal(*rollouts)


def test_a_plan_begins_with_the_one_before_a_step_later(monkeypatch):
    algorithm, begun = following(), []
    optimize = CrossEntropy.optimize
    monkeypatch.setattr(
        CrossEntropy,
        "optimize",
        lambda self, value_fn, mean, *rest: (
            begun.append(mean) or optimize(self, value_fn, mean, *rest)
        ),
    )
    state = torch.arange(6.0).view(1, 3, 2)
    algorithm.rollout_step(steps(torch.zeros(1, 2)), state)
    assert begun[0].tolist() == [[[2, 3], [4, 5], [0, 0]]]


def test_what_it_is_built_with():
    assert isinstance(following(planner=None)._planner, CrossEntropy)
    assert isinstance(following(planner=RandomShooting())._planner, RandomShooting)
    assert "_plan_noise" not in following().state_dict()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"gamma": 1.5}, ValueError, r"gamma must lie in \[0, 1\], got 1.5"),
        ({"horizon": 0}, ValueError, "horizon must be a positive integer, got 0"),
        ({"horizon": 2.5}, ValueError, "horizon must be a positive integer, got 2"),
        ({"reward_spec": TensorSpec((2,))}, ConfigError, "Following takes one reward"),
    ],
)
def test_what_it_cannot_do_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        following(**change)


@pytest.mark.ci
def test_a_plan_is_exported_for_any_number_of_rows():
    algorithm = following()

    class Policy(nn.Module):
        def forward(self, observation, plan):
            return algorithm.predict_step(steps(observation), plan).output

    batch = torch.export.Dim("batch")
    program = torch.export.export(
        Policy(),
        (torch.zeros(3, 2), torch.zeros(3, 3, 2)),
        dynamic_shapes=({0: batch}, {0: batch}),
        strict=False,
    )
    assert program.module()(torch.zeros(5, 2), torch.zeros(5, 3, 2)).shape == (5, 2)
