"""What every algorithm with a value function must learn, as tests to inherit.

    class TestMyAlgorithm(OffPolicyLearningContract):
        features = Feature.DISCRETE_ACTIONS | Feature.RECURRENT_NETWORKS

        def make(self, env, config, *, recurrent):
            return MyAlgorithm(env.observation_spec, env.action_spec, env=env, ...)

        def value(self, algorithm, observation):
            return algorithm._q_network(observation)[0].amax(-1)

Each test isolates one thing that can be wrong; the docstring of its environment says
which. Values are compared with those known, returns with the best possible. They are
looked at several times while the algorithm trains, which ends early where it has learnt
twice in a row what it should. The tests of features that an algorithm does not have are
skipped.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.policies.evaluator import evaluate
from alf_lite.testing import probe_environments as probes
from alf_lite.testing import structured_environments as structures

GAMMA = 0.8  # what ``make`` must use as discount

EnvCtor = Callable[[], gymnasium.Env]


class Feature(enum.Flag):
    """What not every algorithm can do, and some tests ask for."""

    DISCRETE_ACTIONS = enum.auto()  # one of several values
    SEVERAL_DISCRETE_ACTIONS = enum.auto()  # one of several values for each element
    CONTINUOUS_ACTIONS = enum.auto()  # in nests, too
    MIXED_ACTIONS = enum.auto()  # nests with continuous and discrete parts
    VECTOR_REWARDS = enum.auto()  # of several dimensions, which are weighted
    RECURRENT_NETWORKS = enum.auto()


ALL_FEATURES = ~Feature(0)

_NUM_LOOKS = 10  # at what has been learnt, while an algorithm trains


class LearningContract:
    """What the two contracts below have in common.

    Attributes:
        features: what the algorithm can do; it must be able to handle discrete or
            continuous actions.
        num_iterations: enough for the probes with values.
        num_policy_iterations: enough for the probes that ask for a policy; for nests of
            actions twice as many are taken.
        num_recurrent_iterations: enough for the probe that asks for a memory.
        settings: of ``TrainerConfig``, where they differ from the contract's own.
        seed: of the parameters, of the environments and of what is drawn.
    """

    features: ClassVar[Feature] = ALL_FEATURES
    num_iterations = 60
    num_policy_iterations = 60
    num_recurrent_iterations = 180
    settings: ClassVar[Mapping[str, Any]] = {}
    seed = 0
    # Of the contract itself; with recurrent networks, the second ones beside the first.
    default_settings: ClassVar[Mapping[str, Any]] = {}
    recurrent_settings: ClassVar[Mapping[str, Any]] = {}

    def make(
        self, env: Environment, config: TrainerConfig, *, recurrent: bool
    ) -> RLAlgorithm:
        """A new algorithm with discount ``GAMMA``; recurrent networks if asked for."""
        raise NotImplementedError

    def value(self, algorithm: Any, observation: Tensor) -> Tensor:
        """V of observations [B, ...] of a feed-forward algorithm."""
        raise NotImplementedError

    # Values

    def test_learns_a_constant_value(self) -> None:
        self._check_values(probes.ValueEnv, {0.0: 1.0})

    def test_learns_a_value_that_depends_on_the_observation(self) -> None:
        self._check_values(probes.ObservationValueEnv, {1.0: 1.0, -1.0: -1.0})

    def test_learns_a_discounted_value(self) -> None:
        self._check_values(probes.DiscountEnv, {0.0: GAMMA, 1.0: 1.0})

    def test_a_time_limit_keeps_bootstrapping(self) -> None:
        self._check_values(probes.TimeLimitEnv, {0.0: 1 / (1 - GAMMA)})

    def test_learns_a_value_with_continuous_actions(self) -> None:
        self._needs(Feature.CONTINUOUS_ACTIONS)
        self._check_values(probes.DiscountEnv, {0.0: GAMMA, 1.0: 1.0}, "continuous")

    # Policies

    def test_learns_the_better_action(self) -> None:
        self._check_return(self._of_kind(probes.PolicyEnv), best=1.0, at_least=0.8)

    def test_learns_the_action_that_the_observation_asks_for(self) -> None:
        self._needs(Feature.DISCRETE_ACTIONS)
        self._check_return(probes.ObservationPolicyEnv, best=1.0, at_least=1.0)

    def test_learns_continuous_actions(self) -> None:
        self._needs(Feature.CONTINUOUS_ACTIONS)
        ctor = functools.partial(probes.ObservationPolicyEnv, "continuous")
        self._check_return(ctor, best=1.0, at_least=0.8)

    def test_learns_several_discrete_actions(self) -> None:
        self._needs(Feature.SEVERAL_DISCRETE_ACTIONS)
        # One answer whatever is asked for earns 0.4.
        self._check_identity(spaces.MultiDiscrete([2, 3]), at_least=0.95)

    def test_learns_binary_actions(self) -> None:
        self._needs(Feature.SEVERAL_DISCRETE_ACTIONS)
        self._check_identity(spaces.MultiBinary(3), at_least=0.95)

    def test_learns_a_nest_of_continuous_actions(self) -> None:
        self._needs(Feature.CONTINUOUS_ACTIONS)
        box = spaces.Box(-2.0, 4.0, (2,))
        space = spaces.Dict({"a": box, "b": spaces.Tuple((spaces.Box(-1.0, 1.0, ()),))})
        # The middle of the boxes earns 0.75, a random action 0.67.
        self._check_identity(space, at_least=0.9, effort=2)

    def test_learns_a_nest_of_mixed_actions(self) -> None:
        self._needs(Feature.MIXED_ACTIONS)
        # The best discrete part and the middle of the box earn 0.875.
        ctor = functools.partial(structures.NestedEnv, episode_length=1)
        self._check_return(ctor, best=1.0, at_least=0.93, effort=2)

    def test_learns_the_weighted_reward_of_several(self) -> None:
        self._needs(Feature.VECTOR_REWARDS)
        ctor = self._of_kind(structures.VectorRewardEnv)
        algorithm = self._build(self._create(ctor))
        algorithm.set_reward_weights([0.1, 1.0])
        # The first part alone earns 0.4.
        self._learn(
            algorithm, self.num_policy_iterations, self._earns(ctor, 3.6, best=4.0)
        )

    def test_remembers_with_a_recurrent_network(self) -> None:
        self._needs(Feature.RECURRENT_NETWORKS)
        ctor = self._of_kind(structures.MemoryEnv)
        algorithm = self._build(self._create(ctor), recurrent=True)
        assert not nest.is_empty(algorithm.rollout_state_spec)
        # Without memory at most 0, or 0.5 with continuous actions.
        self._learn(algorithm, self.num_recurrent_iterations, self._earns(ctor, 0.8))

    # What holds whatever is learnt

    def test_the_same_seed_gives_the_same_parameters(self) -> None:
        ctor = self._of_kind(probes.ObservationPolicyEnv)
        one, other = (self._train(self._create(ctor), 3) for _ in range(2))
        for name, parameter in one.named_parameters():
            assert torch.equal(parameter, other.get_parameter(name)), name

    # Helpers

    @property
    def _action_kind(self) -> probes.ActionKind:
        is_discrete = Feature.DISCRETE_ACTIONS in self.features
        return "discrete" if is_discrete else "continuous"

    def _of_kind(self, ctor: Callable[..., gymnasium.Env]) -> EnvCtor:
        """The environment with actions that the algorithm can handle."""
        return functools.partial(ctor, action_kind=self._action_kind)

    def _needs(self, feature: Feature) -> None:
        if feature not in self.features:
            import pytest  # whoever runs the tests has it

            pytest.skip(f"{type(self).__name__} does not have {feature.name}")

    def _check_values(
        self,
        ctor: Callable[..., gymnasium.Env],
        values: dict[float, float],
        action_kind: probes.ActionKind | None = None,
    ) -> None:
        kind = action_kind or self._action_kind
        env = self._create(functools.partial(ctor, action_kind=kind))

        def errors(algorithm: RLAlgorithm) -> str:
            for observation, expected in values.items():
                with torch.no_grad():
                    value = self.value(algorithm, torch.tensor([[observation]])).item()
                if not abs(value - expected) < 0.1:
                    return f"V({observation}) is {value}, expected {expected}"
            return ""

        self._learn(self._build(env), self.num_iterations, errors, first_look=1)

    def _check_identity(
        self, space: gymnasium.Space, at_least: float, effort: int = 1
    ) -> None:
        ctor = functools.partial(probes.IdentityEnv, space, episode_length=1)
        self._check_return(ctor, best=1.0, at_least=at_least, effort=effort)

    def _check_return(
        self, ctor: EnvCtor, best: float, at_least: float, effort: int = 1
    ) -> None:
        algorithm = self._build(self._create(ctor))
        num_iterations = effort * self.num_policy_iterations
        self._learn(algorithm, num_iterations, self._earns(ctor, at_least, best))

    def _earns(
        self, ctor: EnvCtor, at_least: float, best: float = math.inf
    ) -> Callable[[RLAlgorithm], str]:
        """Says what is wrong with the return of an algorithm, if something is."""

        def errors(algorithm: RLAlgorithm) -> str:
            mean = self._greedy_return(ctor, algorithm)
            assert mean <= best + 1e-6, (mean, best)
            return "" if mean >= at_least else f"a return of {mean}, not of {at_least}"

        return errors

    def _learn(
        self,
        algorithm: RLAlgorithm,
        num_iterations: int,
        errors: Callable[[RLAlgorithm], str],
        first_look: int = 3,  # before that, a good policy may be chance
    ) -> None:
        """Trains until ``errors`` finds nothing twice in a row, or to the end."""
        interval = max(1, num_iterations // _NUM_LOOKS)
        found = "not looked at"
        for iteration in range(1, num_iterations + 1):
            algorithm.train_iter()
            is_end = iteration == num_iterations
            if is_end or (
                iteration % interval == 0 and iteration >= first_look * interval
            ):
                before, found = found, errors(algorithm)
                if not (before or found):
                    return
        assert not found, found

    def _create(self, ctor: EnvCtor) -> Environment:
        return create_environment(
            env_ctor=ctor, num_parallel_environments=8, seed=self.seed
        )

    def _build(
        self, env: Environment, *, recurrent: bool = False, **settings: Any
    ) -> RLAlgorithm:
        torch.manual_seed(self.seed)
        settings = {
            "num_iterations": 1,
            **self.default_settings,
            **self.settings,
            **(self.recurrent_settings if recurrent else {}),
            **settings,
        }
        return self.make(env, TrainerConfig(**settings), recurrent=recurrent)

    def _train(self, env: Environment, num_iterations: int) -> RLAlgorithm:
        algorithm = self._build(env)
        for _ in range(num_iterations):
            algorithm.train_iter()
        return algorithm

    def _greedy_return(self, ctor: EnvCtor, algorithm: RLAlgorithm) -> float:
        with self._create(ctor) as env:
            return evaluate(algorithm, env, num_episodes=64, seed=1).mean


class OnPolicyLearningContract(LearningContract):
    """Inherit it, name the class ``Test...`` and implement ``make``.

    An iteration is an unroll of 16 steps of 8 environments.
    """

    default_settings: ClassVar[Mapping[str, Any]] = {"unroll_length": 16}
    recurrent_settings: ClassVar[Mapping[str, Any]] = {
        "mini_batch_length": None  # sequences instead of single steps
    }

    def value(self, algorithm: Any, observation: Tensor) -> Tensor:
        return algorithm._value(observation)[0]


class OffPolicyLearningContract(LearningContract):
    """Inherit it, name the class ``Test...``, implement ``make`` and ``value``.

    An iteration is 4 steps of 8 environments and 8 updates on 64 windows of 2 steps.
    """

    num_iterations = 30
    num_policy_iterations = 30
    num_recurrent_iterations = 120
    default_settings: ClassVar[Mapping[str, Any]] = {
        "unroll_length": 4,
        "num_updates_per_train_iter": 8,
        "mini_batch_size": 64,
        "mini_batch_length": 2,
        "initial_collect_steps": 128,
        "replay_buffer_length": 500,
    }
    recurrent_settings: ClassVar[Mapping[str, Any]] = {
        "num_updates_per_train_iter": 6,
        "mini_batch_size": 32,
        "mini_batch_length": 6,
    }

    def test_learns_from_what_another_policy_did(self) -> None:
        ctor = self._of_kind(probes.ObservationPolicyEnv)
        env = self._create(ctor)
        num_steps = 64
        algorithm = self._build(
            env,
            initial_collect_steps=num_steps * env.batch_size,
            initial_random_policy=True,
        )
        algorithm.setup_training()
        algorithm.unroll(num_steps)
        for _ in range(self.num_policy_iterations):
            algorithm.train_from_replay_buffer()
        assert self._greedy_return(ctor, algorithm) >= 0.8
