"""What is learnt on one side of a symmetric task is known on the other."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rnd_reward import RndReward
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.data_transformers.create_data_transformer import (
    create_data_transformer,
)
from alf_lite.data_transformers.hindsight import HindsightExperienceTransformer
from alf_lite.data_transformers.normalizing_transformers import (
    ObservationNormalizer,
    RewardNormalizer,
)
from alf_lite.data_transformers.symmetries import (
    Reflection,
    SymmetryTransformer,
    check_symmetries,
)
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

VECTOR, TORQUE = TensorSpec((3,)), BoundedTensorSpec((2,), minimum=-1, maximum=1)
CHOICE = BoundedTensorSpec((), torch.int64, minimum=0, maximum=1)
CART_POLE = Reflection(observation_signs=[-1, -1, -1, -1], action_order=[1, 0])


def test_a_reflection_swaps_elements_and_turns_signs():
    mirror = Reflection([0, 2, 1], [1, -1, -1], [1, 0], [-1, 1])
    observation, action = mirror(torch.tensor([[1.0, 2, 3]]), torch.tensor([[5.0, 6]]))
    assert observation.tolist() == [[1, -3, -2]]
    assert action.tolist() == [[-6, 5]]
    # Entries of a dict, of which one is left as it is; masks have an order
    mirror = Reflection({"mask": [1, 0]}, {"pose": [-1, 1]}, action_order=[1, 0])
    observation = {
        "pose": torch.tensor([1.0, 2]),
        "mask": torch.tensor([True, False]),
        "map": torch.tensor([7.0]),
    }
    seen, action = mirror(observation, torch.tensor([0, 1, 1], dtype=torch.int32))
    assert seen["pose"].tolist() == [-1, 2]
    assert seen["mask"].tolist() == [False, True]
    assert seen["map"].tolist() == [7]
    assert action.tolist() == [1, 0, 0]
    assert action.dtype == torch.int32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"action_order": [0, 0]}, r"a permutation of 0 to n-1, got \[0, 0\]"),
        ({"observation_signs": {"pose": [1, 0, 1]}}, "signs are 1 or -1, got"),
    ],
)
def test_a_reflection_must_be_one(settings, message):
    with pytest.raises(ConfigError, match=message):
        Reflection(**settings)


@pytest.mark.parametrize(
    ("settings", "specs", "message"),
    [
        (
            {"observation_order": [1, 0]},
            (VECTOR, TORQUE),
            r"observation is \[\[0.0, 0.0\]\] in",
        ),
        (
            {"observation_signs": [1, 1]},
            (VECTOR, TORQUE),
            "cannot mirror an observation",
        ),
        (
            {"action_order": [2, 0, 1]},
            (VECTOR, CHOICE),
            r"minimum of action is \[2\] in",
        ),
        (
            {"action_signs": [-1, 1]},
            (VECTOR, BoundedTensorSpec((2,), minimum=-1, maximum=3)),
            r"maximum of action is \[\[-3.0, 3.0\]\] in the mirror",
        ),
        (
            {"observation_signs": {"pos": [1, 1, 1]}},
            ({"pose": VECTOR}, TORQUE),
            r"no 'pos'. Did you mean 'pose'\?",
        ),
        (
            {"observation_signs": [1, 1, 1]},
            ({"pose": VECTOR}, TORQUE),
            "expected {name",
        ),
        (
            {"observation_signs": {"mask": [-1, 1]}},
            ({"mask": TensorSpec((2,), torch.bool)}, TORQUE),
            "minimum of observation.mask is",
        ),
    ],
)
def test_what_is_no_symmetry_of_the_specs_is_refused(settings, specs, message):
    with pytest.raises(ConfigError, match=message):
        check_symmetries([Reflection(**settings)], *specs)


def test_a_function_of_ones_own_is_looked_at_too():
    def flip(observation, action):
        return observation.flip(-1), action

    check_symmetries([flip], VECTOR, TORQUE)
    with pytest.raises(ConfigError, match=r"half cannot mirror .* not enough values"):

        def half(observation, action):
            raise ValueError("not enough values")

        check_symmetries([half], VECTOR, TORQUE)


def test_symmetries_are_a_list():
    with pytest.raises(ConfigError, match=r"such as \[@Reflection\(\)\], got <"):
        on_policy(symmetries=CART_POLE)
    with pytest.raises(ConfigError, match=r"Reflection\(\), with parentheses"):
        on_policy(symmetries=[Reflection])


def windows(num_windows: int = 600) -> Experience:
    """[B, 4, ...], with the number of the window in every leaf."""
    number = torch.arange(1.0, num_windows + 1)[:, None].expand(-1, 4)
    action = number[..., None].expand(-1, -1, 2)
    return Experience(
        time_step=TimeStep(
            step_type=torch.ones(num_windows, 4, dtype=torch.int32),
            reward=number,
            discount=torch.ones(num_windows, 4),
            observation=number[..., None].expand(-1, -1, 3),
            prev_action=action,
        ),
        action=action,
    )


def test_replayed_windows_are_shown_as_a_whole_in_each_symmetry_as_often():
    torch.manual_seed(0)
    mirrors = [
        Reflection(observation_signs=[-1, 1, 1], action_signs=[-1, 1]),
        Reflection(observation_signs=[1, -1, 1], action_signs=[1, -1]),
    ]
    experience = windows()
    transformer = SymmetryTransformer(VECTOR, symmetries=mirrors)
    seen = transformer.transform_experience(experience)
    assert seen.time_step.reward is experience.time_step.reward
    signs = (seen.time_step.observation / experience.time_step.observation).sign()
    assert (signs == signs[:, :1]).all()  # all steps of a window alike
    kinds = {(1, 1, 1): 0, (-1, 1, 1): 0, (1, -1, 1): 0}
    for kind in signs[:, 0].int().tolist():
        kinds[tuple(kind)] += 1
    assert all(150 < count < 250 for count in kinds.values())
    for actions in (seen.action, seen.time_step.prev_action):
        assert torch.equal((actions / experience.action).sign(), signs[..., :2])


@pytest.mark.parametrize("stored", ["state", "rollout_info"])
def test_what_is_stored_of_a_policy_cannot_be_seen_in_the_mirror(stored):
    transformer = SymmetryTransformer(VECTOR, symmetries=[Reflection()])
    experience = windows(4)
    known = {"rl": {"action": experience.action}}
    transformer.transform_experience(experience._replace(rollout_info=known))
    unknown = experience._replace(**{stored: {"policy": torch.zeros(4, 4, 2)}})
    with pytest.raises(ConfigError, match=f"{stored}.policy, which is stored"):
        transformer.transform_experience(unknown)


def test_it_comes_after_new_goals_and_before_frames_are_stacked():
    goals = {"achieved_goal": VECTOR, "desired_goal": VECTOR}
    symmetry = functools.partial(SymmetryTransformer, symmetries=[Reflection()])
    hindsight = functools.partial(
        HindsightExperienceTransformer, reward_function=lambda a, d: a[:, 0]
    )
    create_data_transformer([hindsight, symmetry], goals)
    with pytest.raises(ConfigError, match=r"\(HINDSIGHT\) must come before"):
        create_data_transformer([symmetry, hindsight], goals)
    with pytest.raises(ConfigError, match="give at least one"):
        SymmetryTransformer(VECTOR, symmetries=[])


def cart_pole(num: int = 4):
    return create_environment("CartPole-v1", num, vectorization_mode="sync")


def test_off_policy_training_asks_the_environment_whether_it_fits():
    def build(symmetry):
        config = TrainerConfig(
            num_iterations=3,
            unroll_length=8,
            mini_batch_size=16,
            mini_batch_length=2,
            initial_collect_steps=16,
            random_seed=0,
            data_transformer_ctor=[
                functools.partial(SymmetryTransformer, symmetries=[symmetry])
            ],
        )
        return DqnAlgorithm(env=cart_pole(), config=config, optimizer=Adam(lr=1e-3))

    algorithm = build(CART_POLE)
    for _ in range(3):
        algorithm.train_iter()
    with pytest.raises(ConfigError, match="cannot mirror an observation"):
        build(Reflection(observation_signs=[1, -1]))


def on_policy(
    cls=PPOAlgorithm, num_environments=4, transformers=(), settings=(), **options
):
    settings = dict(settings)
    if cls is PPOAlgorithm:
        settings |= {"epochs": 2, "mini_batch_length": 1, "mini_batch_size": 32}
    config = TrainerConfig(
        num_iterations=4,
        random_seed=0,
        unroll_length=16,
        data_transformer_ctor=list(transformers) or None,
        **settings,
    )
    return cls(
        env=cart_pole(num_environments),
        config=config,
        optimizer=Adam(lr=1e-3),
        **options,
    )


@pytest.mark.parametrize(
    "transformers", [(), (ObservationNormalizer, RewardNormalizer)]
)
def test_an_unroll_has_a_copy_in_the_mirror(transformers):
    algorithm = on_policy(
        transformers=transformers, symmetries=[CART_POLE], desired_kl=0.01
    )
    algorithm.train_iter()
    algorithm.train_iter()
    batch = algorithm.training_run.preprocessed
    own, mirrored = nest.narrow(batch, 0, 4), nest.narrow(batch, 4, None)
    assert len(mirrored.valid) == 4
    assert torch.equal(mirrored.rollout_info.action, 1 - own.rollout_info.action)
    assert torch.equal(mirrored.inputs.prev_action, 1 - own.inputs.prev_action)
    for name in ("log_prob", "advantage", "value_target", "old_value", "valid"):
        expected = getattr(own.rollout_info, name)
        assert torch.equal(getattr(mirrored.rollout_info, name), expected)
    if not transformers:
        assert torch.equal(mirrored.inputs.observation, -own.inputs.observation)


@pytest.mark.parametrize("settings", [{}, {"unroll_episodes": 6}])
def test_the_mirror_is_scaled_as_the_unroll_was(settings):
    algorithm = on_policy(
        transformers=[ObservationNormalizer], symmetries=[CART_POLE], settings=settings
    )
    for _ in range(3):
        raw = []
        algorithm.training_run.collector.listeners[:] = [
            lambda steps, raw=raw: raw.append(steps.observation.clone())
        ]
        transformer = copy.deepcopy(algorithm.data_transformer)  # that acts
        algorithm.train_iter()
        observation = torch.cat(raw).transpose(0, 1)  # [B, T, 4], from the environment
        for sign, begin in ((1, 0), (-1, 4)):
            batch = algorithm.training_run.preprocessed.inputs.observation
            seen = batch[begin : begin + 4, -observation.shape[1] :]
            expected = transformer.transform_unroll(
                TimeStep(observation=sign * observation)
            )
            torch.testing.assert_close(seen, expected.observation, rtol=1e-4, atol=1e-5)
    moved = algorithm.data_transformer.transformers[0].normalizer
    assert moved.mean.abs().min() > 1e-4  # so that signs alone would not do


def test_the_mirror_has_a_policy_of_its_own_that_the_kl_starts_from():
    algorithm = on_policy(symmetries=[CART_POLE], desired_kl=0.01)
    first = []
    preprocess = algorithm.preprocess

    def look(*args):
        batch = preprocess(*args)
        with torch.no_grad():
            policy, _ = algorithm._policy(batch.inputs.observation.flatten(0, 1))
        for old, new in zip(
            nest.flatten(batch.rollout_info.old_distribution),
            nest.flatten(policy),
            strict=True,
        ):
            torch.testing.assert_close(old.flatten(0, 1), new)
        first.append(batch)
        return batch

    algorithm.preprocess = look
    algorithm.train_iter()
    assert first


def asymmetry(algorithm) -> float:
    """How far π(a|s) is from π(ā|s̄), on the whole."""
    states = torch.from_numpy(np.random.default_rng(0).normal(0, 0.1, (256, 4))).float()
    with torch.no_grad():
        here, _ = algorithm._policy(states)
        there, _ = algorithm._policy(-states)
    probs = [next(iter(nest.flatten(d))).softmax(-1) for d in (here, there)]
    return float((probs[0] - probs[1].flip(-1)).abs().mean())


@pytest.mark.ci
def test_it_trains_twice_as_many_steps_and_the_policy_becomes_symmetric():
    plain, mirrored = on_policy(), on_policy(symmetries=[CART_POLE])
    for _ in range(12):
        num_steps = plain.train_iter()
        assert mirrored.train_iter() == 2 * num_steps
    assert asymmetry(mirrored) < 0.5 * asymmetry(plain)


def test_networks_with_memory_and_other_parts_are_refused():
    memory = functools.partial(
        ActorDistributionNetwork, encoding_network_ctor=GRUEncodingNetwork
    )
    with pytest.raises(ConfigError, match="symmetries needs networks without memory"):
        on_policy(
            ActorCriticAlgorithm, symmetries=[CART_POLE], actor_network_ctor=memory
        )
    with pytest.raises(ConfigError, match="cannot mirror an observation"):
        on_policy(symmetries=[Reflection(observation_signs=[1, 1])])
    agent = on_policy(
        Agent,
        rl_algorithm_ctor=functools.partial(PPOAlgorithm, symmetries=[CART_POLE]),
        intrinsic_rewards={"rnd": RndReward},
    )
    with pytest.raises(ConfigError, match="do not see the mirror"):
        agent.train_iter()
