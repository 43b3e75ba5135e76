"""Who may act while steps are collected: an algorithm, a function, or chance."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.unrollers.sync_unroller import to_device
from alf_lite.utils.recurrent_state import reset_state

Nest = Any


class CollectionPolicy(abc.ABC):
    """Chooses the actions of a batch of environments, step after step."""

    @abc.abstractmethod
    def act(self, time_step: TimeStep) -> Nest:
        """The actions [B, ...] at the newest time steps [B, ...]."""


class RandomPolicy(CollectionPolicy):
    """Every action that the spec allows is as likely as any other."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    def act(self, time_step: TimeStep) -> Nest:
        outer_dims = (self._env.batch_size,)
        return nest.map_structure(
            lambda spec: spec.sample(outer_dims), self._env.action_spec
        )


class ScriptedPolicy(CollectionPolicy):
    """A function from a time step [B, ...] to actions [B, ...].

    Args:
        function: gets what the environment returned, and returns tensors or arrays as
            the environment's action spec describes them.
        name: of the function, for messages.
        env: that it acts in.
    """

    def __init__(
        self, function: Callable[[TimeStep], Nest], name: str, env: Environment
    ) -> None:
        self._function = function
        self._name = name
        self._env = env

    def act(self, time_step: TimeStep) -> Nest:
        action = self._function(time_step)
        try:
            action = nest.map_structure(torch.as_tensor, action)
            nest.assert_same_structure(self._env.action_spec, action)
            return nest.map_structure(self._checked, self._env.action_spec, action)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._name} returned no action of {self._env.name}: {error}"
            ) from error

    def _checked(self, spec: Any, leaf: Tensor) -> Tensor:
        shape = (self._env.batch_size, *spec.shape)
        if leaf.shape != shape:
            raise ValueError(
                f"expected shape {shape}, the batch of environments first, got "
                f"{tuple(leaf.shape)}"
            )
        if leaf.is_floating_point() and not spec.is_continuous:
            raise ValueError(f"expected integers ({spec.dtype}), got {leaf.dtype}")
        return leaf.to(spec.dtype)


class AlgorithmPolicy(CollectionPolicy):
    """The ``predict_step`` of an algorithm, whose recurrent state it keeps.

    Args:
        algorithm: in evaluation mode from here on.
        batch_size: B.
    """

    def __init__(self, algorithm: RLAlgorithm, batch_size: int) -> None:
        algorithm.eval()
        self._algorithm = algorithm
        self._initial_state = algorithm.get_initial_predict_state(batch_size)
        self._state = self._initial_state
        self._transform_state = algorithm.get_initial_transform_state(batch_size)

    def act(self, time_step: TimeStep) -> Nest:
        time_step = to_device(time_step, self._algorithm.device)
        state = reset_state(self._state, self._initial_state, time_step.is_first())
        inputs, self._transform_state = self._algorithm.transform_timestep(
            time_step, self._transform_state
        )
        step = self._algorithm.predict_step(inputs, state)
        self._state = step.state
        return step.output


class EpsilonGreedy(CollectionPolicy):
    """Another policy, with a random action now and then.

    Args:
        policy: acts otherwise.
        epsilon: the probability of a random action, for each environment and step.
        env: that they act in.
    """

    def __init__(
        self, policy: CollectionPolicy, epsilon: float, env: Environment
    ) -> None:
        self._policy = policy
        self._epsilon = epsilon
        self._random = RandomPolicy(env)

    def act(self, time_step: TimeStep) -> Nest:
        action = self._policy.act(time_step)
        is_random = torch.rand(time_step.step_type.shape) < self._epsilon  # [B]

        def choose(chosen: Tensor, other: Tensor) -> Tensor:
            mask = is_random.view(-1, *(1,) * (chosen.ndim - 1)).to(chosen.device)
            return torch.where(mask, other.to(chosen.device), chosen)

        return nest.map_structure(choose, action, self._random.act(time_step))


def import_function(name: str) -> Callable[[TimeStep], Nest]:
    """What ``module:function`` names; classes are called once, without arguments.

    Raises:
        ConfigError: if there is no such module or function.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ConfigError(f"expected random or module:function as policy, got {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
        for part in function_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the policy {name} cannot be imported: {error}") from error
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise ConfigError(f"the policy {name} is a {type(found).__name__}, no function")
    return found
