"""What an action mask changes in each algorithm; test_masked_learning trains them."""

from __future__ import annotations

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
PAIR = BoundedTensorSpec((2,), torch.int64, 0, [1, 2])
NESTED = {"pair": PAIR, "choice": CHOICE}  # 3 + (2 + 3) values, "choice" first
MIXED = {**NESTED, "force": BoundedTensorSpec((1,), torch.float32, -1, 1)}
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
ON_POLICY = [ActorCriticAlgorithm, PPOAlgorithm, ImpalaAlgorithm]
ALGORITHMS = [*ON_POLICY, SacAlgorithm, DqnAlgorithm]


def num_values(action_spec) -> int:
    return 3 if action_spec is CHOICE else 8


def observation_spec(action_spec) -> dict:
    mask = BoundedTensorSpec((num_values(action_spec),), torch.int8, 0, 1)
    return {"mask": mask, "state": TensorSpec((3,))}


def build(algorithm_class, action_spec=CHOICE, **kwargs):
    torch.manual_seed(0)
    arguments = {"action_mask_key": "mask", "optimizer": Adam(lr=1e-3), **kwargs}
    algorithm = algorithm_class(observation_spec(action_spec), action_spec, **arguments)
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            if "temperature" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm


def random_mask(action_spec, *shape: int) -> torch.Tensor:
    """With the first value of each component."""
    mask = torch.randint(0, 2, (*shape, num_values(action_spec)), dtype=torch.int8)
    mask[..., [i for i in (0, 3, 5) if i < mask.shape[-1]]] = 1
    return mask


def time_step(action_spec, *shape: int) -> TimeStep:
    torch.manual_seed(1)
    return TimeStep(
        step_type=torch.full(shape, MID, dtype=torch.int32),
        reward=torch.randn(shape),
        discount=torch.ones(shape),
        observation={
            "mask": random_mask(action_spec, *shape),
            "state": torch.randn(*shape, 3),
        },
        prev_action=nest.map_structure(lambda spec: spec.sample(shape), action_spec),
    )


def assert_allowed(action, mask: torch.Tensor) -> None:
    rows = torch.arange(len(mask))
    if not isinstance(action, dict):
        assert mask[rows, action].all()
        return
    assert mask[rows, action["choice"]].all()
    assert mask[rows, 3 + action["pair"][:, 0]].all()
    assert mask[rows, 5 + action["pair"][:, 1]].all()


# Acting


@pytest.mark.parametrize("action_spec", [CHOICE, NESTED, MIXED], ids=["1", "2", "3"])
@pytest.mark.parametrize("algorithm_class", ALGORITHMS)
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_no_step_takes_an_action_that_is_ruled_out(
    algorithm_class, action_spec, epsilon
):
    if algorithm_class is DqnAlgorithm and action_spec is MIXED:
        pytest.skip("DQN has discrete actions only")
    config = TrainerConfig(num_iterations=1, epsilon_greedy=epsilon)
    algorithm = build(algorithm_class, action_spec, config=config)
    steps = time_step(action_spec, 500)
    mask = steps.observation["mask"]
    state = algorithm.get_initial_predict_state(500)
    assert_allowed(algorithm.predict_step(steps, state).output, mask)
    state = algorithm.get_initial_rollout_state(500)
    assert_allowed(algorithm.rollout_step(steps, state).output, mask)
    if not algorithm.on_policy:
        assert_allowed(algorithm.random_action(steps), mask)


@pytest.mark.parametrize("algorithm_class", ALGORITHMS)
def test_without_a_key_a_mask_is_an_observation_as_any_other(algorithm_class):
    algorithm = build(algorithm_class, action_mask_key=None)
    policy = getattr(algorithm, "_policy", None)
    assert not (policy.mask if policy else algorithm._mask).exists
    inputs = [m.weight for m in algorithm.modules() if isinstance(m, torch.nn.Linear)]
    num_features = sum(spec.numel for spec in nest.flatten(algorithm.observation_spec))
    assert inputs[0].shape[1] == num_features
    steps = time_step(CHOICE, 500)
    action = algorithm.rollout_step(
        steps, algorithm.get_initial_rollout_state(500)
    ).output
    assert not steps.observation["mask"][torch.arange(500), action].all()


# Learning


# Bad input


@pytest.mark.parametrize("algorithm_class", ALGORITHMS)
def test_a_mask_that_does_not_fit_is_an_error_at_construction(algorithm_class):
    spec = observation_spec(CHOICE)
    with pytest.raises(ValueError, match="with the key 'masks'"):
        algorithm_class(spec, CHOICE, action_mask_key="masks")
    with pytest.raises(ValueError, match="one entry for each of the 8 values"):
        algorithm_class(spec, NESTED, action_mask_key="mask")
    with pytest.raises(ValueError, match="must be bool, or integers"):
        algorithm_class(
            {**spec, "mask": TensorSpec((3,))}, CHOICE, action_mask_key="mask"
        )


def test_an_actor_whose_policy_is_not_discrete_is_an_error():
    def continuous(observation_spec, action_spec):
        return ActorDistributionNetwork(observation_spec, TensorSpec((3,)))

    algorithm = build(PPOAlgorithm, actor_network_ctor=continuous)
    with pytest.raises(ValueError, match=r"DiagonalNormal.* is not discrete"):
        algorithm.predict_step(
            time_step(CHOICE, 2), algorithm.get_initial_predict_state(2)
        )
