"""A student that acts, and a teacher that says what it should have done."""

from __future__ import annotations

import dataclasses
import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.algorithms.acting import TrainedPolicy
from alf_lite.algorithms.distillation_algorithm import DistillationAlgorithm
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_transformers import ObservationNormalizer, UntransformedTimeStep
from alf_lite.data_transformers.symmetries import Reflection, SymmetryTransformer
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorNetwork, SquashedActorNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers import Adam
from alf_lite.testing import probe_environments as probes
from tests.replayed_steps import randomise, trained_until

Mean = functools.partial(ActorNetwork, fc_layer_params=(16,))


class Arm(gymnasium.Env):
    """Sensors are noisy; the state is what they measure."""

    entries = ("sensors", "state")

    def __init__(self):
        box = spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(self.entries, box))
        self.action_space = spaces.Box(-1.0, 3.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return self._seen(), {}

    def step(self, action):
        self._time += 1
        return self._seen(), 0.0, self._time == 3, False, {}

    def _seen(self):
        drawn = self.np_random.normal(size=(2, 2)).astype(np.float32)
        return dict(zip(self.entries, drawn, strict=True))


class OnlySensors(Arm):
    entries = ("sensors",)


class Stronger(Arm):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1.0, 4.0, (2,), np.float32)


def environment(env_ctor=Arm):
    return create_environment(env_ctor=env_ctor, num_parallel_environments=4, seed=0)


def teacher_of(env, kind=SacAlgorithm, **options) -> TrainedPolicy:
    """One that acts as its parameters happen to be."""
    torch.manual_seed(5)
    algorithm = kind(env.observation_spec, env.action_spec, is_eval=True, **options)
    randomise(algorithm)
    return TrainedPolicy(algorithm.eval(), env, is_live=False)


class Recorder(DistillationAlgorithm):
    """Keeps what it has learned from."""

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        found = super().preprocess_experience(root_inputs, rollout_info, batch_info)
        self.learned = found
        return found


def student(env, teacher, transformers=None, **options) -> Recorder:
    torch.manual_seed(0)
    config = TrainerConfig(
        algorithm_ctor=Recorder,
        num_iterations=100,
        unroll_length=4,
        initial_collect_steps=64,
        replay_buffer_length=500,
        num_updates_per_train_iter=8,
        mini_batch_size=64,
        mini_batch_length=2,
        data_transformer_ctor=transformers,
    )
    make = functools.partial(
        Recorder,
        optimizer=Adam(lr=3e-3),
        **{
            "actor_network_ctor": Mean,
            "deterministic": True,
            "teacher_ctor": lambda: teacher,
            **options,
        },
    )
    algorithm = create_algorithm(dataclasses.replace(config, algorithm_ctor=make), env)
    algorithm.setup_training()
    return algorithm


@pytest.mark.parametrize("normalizes", [False, True])
def test_labels_are_what_the_teacher_does_in_the_states_of_the_student(normalizes):
    env = environment()
    teacher = teacher_of(environment(), actor_observation_keys=["state"])
    transformers = (
        [UntransformedTimeStep, ObservationNormalizer] if normalizes else None
    )
    algorithm = student(env, teacher, transformers, actor_observation_keys=["sensors"])
    for _ in range(6):
        algorithm.train_iter()
    steps, labels = algorithm.learned
    raw = steps.untransformed if normalizes else steps
    is_normalized = not torch.equal(
        raw.observation["state"], steps.observation["state"]
    )
    assert is_normalized == normalizes
    assert labels.shape == (8 * 64, 1, 2)  # of all updates
    for row in range(0, 8 * 64, 37):
        seen = {k: v[row, 0].numpy() for k, v in raw.observation.items()}
        wanted = teacher.predict({"state": seen["state"]})
        label = 1 + 2 * labels[row, 0]  # from [-1, 1] to the bounds of the environment
        np.testing.assert_allclose(label, wanted, atol=4e-3)  # the margin
    assert not labels.requires_grad
    assert not any("teacher" in name for name in algorithm.state_dict())


class Right(TrainedPolicy):
    """Does what the probe asks for."""

    def choose(self, observation):
        return 0.5 * observation


@pytest.mark.ci
def test_the_student_learns_what_random_actions_do_not_tell():
    env_ctor = functools.partial(probes.ObservationPolicyEnv, "continuous")
    env = environment(env_ctor)
    teacher = Right(teacher_of(env).algorithm, environment(env_ctor), is_live=False)
    algorithm = student(env, teacher)
    trained_until(algorithm, env_ctor, 0.95, num_iterations=300)


def test_what_does_not_fit_is_an_error():
    env = environment()
    actor = functools.partial(
        SquashedActorNetwork, encoding_network_ctor=GRUEncodingNetwork
    )
    with pytest.raises(ConfigError, match="remembers what it has seen"):
        student(env, teacher_of(env, actor_network_ctor=actor))
    with pytest.raises(ConfigError, match="the teacher chooses"):
        student(env, teacher_of(environment(Stronger)))  # in equal units
    blind = environment(OnlySensors)
    with pytest.raises(ConfigError, match="teacher needs the observation"):
        student(blind, teacher_of(environment()))
    sensors = teacher_of(env, actor_observation_keys=["sensors"])
    student(blind, sensors)  # sees all that it needs
    with pytest.raises(ConfigError, match="begin with @UntransformedTimeStep"):
        student(env, sensors, ObservationNormalizer)
    mirror = functools.partial(SymmetryTransformer, symmetries=[Reflection()])
    with pytest.raises(ConfigError, match="hindsight and symmetries replace that"):
        student(env, sensors, [UntransformedTimeStep, mirror])
