from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.predictive_representation import PredictiveRepresentation
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing.probe_environments import ObservationPolicyEnv

ACTION = BoundedTensorSpec((), torch.int64, 0, 1)


def walk(num_rows: int = 64, length: int = 9) -> TimeStep:
    """Two numbers in six, the first of which the action moves up or down."""
    action = torch.randint(2, (num_rows, length))
    hidden = torch.stack(
        [(2.0 * action - 1).cumsum(1), torch.randn(num_rows, 1).expand(-1, length)], -1
    )
    mixed = hidden @ torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    step_type = torch.ones(num_rows, length, dtype=torch.int32)
    step_type[:, 0] = 0
    return TimeStep(
        step_type=step_type,
        reward=torch.zeros(num_rows, length),
        discount=torch.ones(num_rows, length),
        observation={"numbers": mixed, "kind": torch.zeros_like(action)},
        prev_action=action,
    )


SPEC = {"numbers": TensorSpec((6,)), "kind": BoundedTensorSpec((), torch.int64, 0, 2)}


@pytest.mark.parametrize("predicts", ["observation", "next_observation"])
def test_learns_what_the_observations_are_made_of(predicts):
    torch.manual_seed(0)
    learner = PredictiveRepresentation(
        SPEC,
        ACTION,
        representation_size=3,
        predicts=predicts,
        fc_layer_params=(32,),
        decoder_fc_layer_params=(32,),
        optimizer=Adam(lr=0.01),
    )
    [(_, optimizer)] = learner.optimizers()
    errors = []
    for _ in range(120):
        steps = walk()
        inputs, info = learner.preprocess_experience(steps, (), BatchInfo())
        flat = nest.map_structure(lambda t: t.flatten(0, 1), info)
        loss = learner.calc_loss(learner.train_step(inputs, (), flat).info).loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.apply_gradients()
        errors.append(loss.item())
    assert inputs.observation.shape == (64, 9, 3)
    # Of numbers with deviation 1; without the action, 0.15 of it cannot be known.
    assert errors[0] > 0.5
    assert sum(errors[-5:]) / 5 < 0.06


def test_a_row_predicts_the_step_that_its_action_led_to():
    learner = PredictiveRepresentation(SPEC, ACTION)
    learner.eval()  # the statistics stay as they are: mean 0, deviation 1
    steps = walk(2, 4)
    info = learner.training_info(steps)
    assert torch.equal(info.observation["numbers"], steps.observation["numbers"][:, :3])
    assert torch.equal(info.target, steps.observation["numbers"][:, 1:].clamp(-5, 5))
    assert torch.equal(info.action.argmax(-1), steps.prev_action[:, 1:])
    learner = PredictiveRepresentation(SPEC, ACTION, predicts="observation").eval()
    info = learner.training_info(steps)
    assert info.action == ()
    assert torch.equal(info.target, steps.observation["numbers"].clamp(-5, 5))
    assert valid_steps(steps.step_type).shape == info.target.shape[:2]


@pytest.mark.ci
@pytest.mark.parametrize(
    "algorithm", [pytest.param(PPOAlgorithm, marks=pytest.mark.slow), SacAlgorithm]
)
def test_an_algorithm_learns_from_representations(algorithm):
    ctor = functools.partial(ObservationPolicyEnv, "discrete")
    env = create_environment(env_ctor=ctor, num_parallel_environments=8, seed=0)
    settings = {"unroll_length": 16}
    if algorithm is SacAlgorithm:
        settings |= {
            "unroll_length": 4,
            "num_updates_per_train_iter": 8,
            "mini_batch_size": 64,
            "initial_collect_steps": 128,
        }
    agent = Agent(
        env=env,
        config=TrainerConfig(num_iterations=40, random_seed=0, **settings),
        rl_algorithm_ctor=algorithm,
        representation_learner_ctor=functools.partial(
            PredictiveRepresentation, representation_size=4, predicts="observation"
        ),
        optimizer=Adam(lr=0.01),
    )
    for _ in range(4):
        for _ in range(10):
            agent.train_iter()
        if is_right(agent) > 0.95:
            return
    pytest.fail("it has not learnt what is asked for")


def is_right(agent) -> float:
    """How often it does what the observation asks for."""
    ctor = functools.partial(ObservationPolicyEnv, "discrete")
    env = create_environment(env_ctor=ctor, num_parallel_environments=8, seed=1)
    steps = env.reset(1)
    right = []
    for _ in range(16):
        state = agent.get_initial_predict_state(8)
        action = agent.predict_step(steps, state).output
        asks = steps.is_first()
        right.append((action == (steps.observation[:, 0] > 0))[asks])
        steps = env.step(action)
    return torch.cat(right).float().mean().item()


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        (SPEC["kind"], {}, "there are no numbers to predict"),
        (SPEC, {"predicts": "reward"}, "predicts must be one of .* got 'reward'"),
    ],
)
def test_what_it_cannot_predict_is_refused(spec, arguments, message):
    with pytest.raises(ValueError, match=message):
        PredictiveRepresentation(spec, ACTION, **arguments)
