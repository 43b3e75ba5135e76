"""What every on-policy algorithm with a value function must learn, as tests to inherit.

    class TestMyAlgorithm(OnPolicyLearningContract):
        def make(self, env, config):
            return MyAlgorithm(env.observation_spec, env.action_spec, env=env, ...)

Each test isolates one thing that can be wrong; the docstring of its environment says
which. Values are compared with those known, returns with the best possible.
"""

from __future__ import annotations

from collections.abc import Callable
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
from alf_lite.testing import probe_environments as probes
from alf_lite.testing import structured_environments as structures
from alf_lite.trainers.evaluator import evaluate

GAMMA = 0.8  # what ``make`` must use as discount


class OnPolicyLearningContract:
    """Inherit it, name the class ``Test...`` and implement ``make``.

    Attributes:
        num_iterations: enough for the probes with values, in unrolls of 16 steps of 8
            environments.
        num_policy_iterations: enough for the probes that ask for a policy.
        settings: of ``TrainerConfig``, beside the lengths.
    """

    num_iterations = 60
    num_policy_iterations = 60
    settings: ClassVar[dict[str, Any]] = {}

    def make(
        self, env: Environment, config: TrainerConfig, *, recurrent: bool
    ) -> RLAlgorithm:
        """A new algorithm with discount ``GAMMA``; recurrent networks if asked for."""
        raise NotImplementedError

    def value(self, algorithm: Any, observation: Tensor) -> Tensor:
        """V of observations [B, ...] of a feed-forward algorithm."""
        with torch.no_grad():
            return algorithm._value_network(observation)[0]

    # Values

    def test_learns_a_constant_value(self) -> None:
        self._check_values(probes.ValueEnv, {0.0: 1.0})

    def test_learns_a_value_that_depends_on_the_observation(self) -> None:
        self._check_values(probes.ObservationValueEnv, {1.0: 1.0, -1.0: -1.0})

    def test_learns_a_discounted_value(self) -> None:
        self._check_values(probes.DiscountEnv, {0.0: GAMMA, 1.0: 1.0})

    def test_a_time_limit_keeps_bootstrapping(self) -> None:
        self._check_values(probes.TimeLimitEnv, {0.0: 1 / (1 - GAMMA)})

    # Policies

    def test_learns_the_better_action(self) -> None:
        self._check_return(probes.PolicyEnv, best=1.0, at_least=1.0)

    def test_learns_the_action_that_the_observation_asks_for(self) -> None:
        self._check_return(probes.ObservationPolicyEnv, best=1.0, at_least=1.0)

    def test_learns_continuous_actions(self) -> None:
        self._check_return(
            lambda: probes.ObservationPolicyEnv("continuous"), best=1.0, at_least=0.8
        )

    def test_learns_several_discrete_actions(self) -> None:
        space = spaces.MultiDiscrete([2, 3])
        self._check_return(lambda: probes.IdentityEnv(space), best=4.0, at_least=3.8)

    def test_learns_binary_actions(self) -> None:
        space = spaces.MultiBinary(3)
        self._check_return(lambda: probes.IdentityEnv(space), best=4.0, at_least=3.8)

    def test_learns_nested_observations_and_actions(self) -> None:
        self._check_return(structures.NestedEnv, best=4.0, at_least=3.4)

    def test_learns_the_weighted_reward_of_several(self) -> None:
        env = self._create(structures.VectorRewardEnv)
        algorithm = self._train(env, self.num_policy_iterations)
        algorithm.set_reward_weights([0.1, 1.0])
        self._iterate(algorithm, self.num_policy_iterations)
        assert self._greedy_return(structures.VectorRewardEnv, algorithm) == 4.0

    def test_remembers_with_a_recurrent_network(self) -> None:
        ctor = structures.MemoryEnv
        algorithm = self._train(
            self._create(ctor), 3 * self.num_policy_iterations, recurrent=True
        )
        assert not nest.is_empty(algorithm.rollout_state_spec)
        assert self._greedy_return(ctor, algorithm) >= 0.9

    # Helpers

    def _check_values(
        self, ctor: Callable[[], gymnasium.Env], values: dict[float, float]
    ) -> None:
        algorithm = self._train(self._create(ctor), self.num_iterations)
        for observation, expected in values.items():
            value = self.value(algorithm, torch.tensor([[observation]])).item()
            assert abs(value - expected) < 0.1, (observation, value, expected)

    def _check_return(
        self, ctor: Callable[[], gymnasium.Env], best: float, at_least: float
    ) -> None:
        algorithm = self._train(self._create(ctor), self.num_policy_iterations)
        mean = self._greedy_return(ctor, algorithm)
        assert at_least <= mean <= best + 1e-6, (at_least, mean, best)

    def _create(
        self, ctor: Callable[[], gymnasium.Env], num_environments: int = 8
    ) -> Environment:
        return create_environment(
            env_ctor=ctor, num_parallel_environments=num_environments, seed=0
        )

    def _train(
        self, env: Environment, num_iterations: int, *, recurrent: bool = False
    ) -> RLAlgorithm:
        torch.manual_seed(0)
        settings = {"num_iterations": 1, "unroll_length": 16, **self.settings}
        if recurrent:  # sequences instead of single steps
            settings["mini_batch_length"] = None
        algorithm = self.make(env, TrainerConfig(**settings), recurrent=recurrent)
        self._iterate(algorithm, num_iterations)
        return algorithm

    def _iterate(self, algorithm: RLAlgorithm, num_iterations: int) -> None:
        for _ in range(num_iterations):
            algorithm.train_iter()

    def _greedy_return(
        self, ctor: Callable[[], gymnasium.Env], algorithm: RLAlgorithm
    ) -> float:
        with self._create(ctor) as env:
            return evaluate(algorithm, env, num_episodes=64, seed=1).mean
