"""Environments that are known by their specs, and not stepped by this process.

For training on recorded steps alone, in a conf::

    create_environment.env_ctor = @SpecsOnlyEnvironment
    SpecsOnlyEnvironment.observation_space = @observation/box_space()
    SpecsOnlyEnvironment.action_space = @action/box_space()
    observation/box_space.shape = (3,)
    action/box_space.shape = (1,)
    action/box_space.low = -2.0
    action/box_space.high = 2.0
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium import Space, spaces

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep, time_step_spec
from alf_lite.environments import space_specs
from alf_lite.environments.environment import Environment, EnvironmentWithSpecs
from alf_lite.environments.space_specs import RecordedValues
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec

Nest = Any
# What a conf may write in place of a Dict or Tuple.
NestedSpace = Any


@configurable
class SpecsOnlyEnvironment(EnvironmentWithSpecs):
    """Has specs and first steps of zeros, and refuses to step.

    Args:
        observation_space: a space of gymnasium, or dicts and tuples of spaces.
        action_space: likewise.
        num_rewards: D, for a reward with several parts; None for a single number.
        name: for messages.

    Raises:
        ConfigError: if a space is missing or has no fixed shape.
    """

    can_step = False

    def __init__(
        self,
        observation_space: NestedSpace = None,
        action_space: NestedSpace = None,
        *,
        num_rewards: int | None = None,
        name: str = "SpecsOnlyEnvironment",
    ) -> None:
        observation_space = _to_space("observation_space", observation_space)
        action_space = _to_space("action_space", action_space)
        super().__init__(
            1,
            space_specs.observation_spec(observation_space),
            space_specs.action_spec(action_space),
            reward_spec=TensorSpec(() if num_rewards is None else (num_rewards,)),
            recorded_values=RecordedValues(observation_space, action_space),
            name=name,
        )

    def reset(self, seed: int | None = None) -> TimeStep:
        """Zeros: training resets environments that it does not step, too."""
        spec = time_step_spec(self.observation_spec, self.action_spec, self.reward_spec)
        steps = nest.zeros(spec, (1,))
        self._current = steps._replace(discount=torch.ones(1))
        return self._current

    def step(self, action: Nest) -> NoReturn:
        raise EnvError(
            f"{self.name} has specs only and cannot step. For training on recorded "
            "steps alone set TrainerConfig.rl_train_after_update_steps at least to "
            "num_iterations, and evaluate = False; otherwise name an environment."
        )


class WithSpecsOf(EnvironmentWithSpecs):
    """Has the specs of another environment, also when that is gone.

    Args:
        env: the other one.
        num_copies: how many such environments this one stands for.
    """

    def __init__(self, env: Environment, num_copies: int = 1) -> None:
        super().__init__(
            num_copies * env.batch_size,
            env.observation_spec,
            env.action_spec,
            reward_spec=env.reward_spec,
            env_info_spec=env.env_info_spec,
            recorded_values=env.recorded_values,
            name=env.name,
        )
        self.has_negative_discounts = env.has_negative_discounts
        self.opposition = env.opposition
        self._metadata = dict(env.metadata)

    @property
    def metadata(self) -> dict[str, Any]:
        return self._metadata


class RemoteEnvironment(WithSpecsOf):
    """The environments of all workers: cannot be stepped by this process.

    Args:
        env: as each of the workers has one; is owned from now on.
        num_workers: how many there are.
        recipe: how a worker builds its environment and its policy, as bytes.
        recipe_module: is imported for that.
    """

    def __init__(
        self,
        env: Environment,
        num_workers: int,
        recipe: bytes = b"",
        recipe_module: str = "",
    ) -> None:
        super().__init__(env, num_workers)
        self._original: Environment | None = env
        self._is_lent = False
        self.recipe = recipe
        self.recipe_module = recipe_module

    def bind(self, algorithm: Any) -> None:
        if self._original is not None:
            self._original.bind(algorithm)

    @property
    def current_time_step(self) -> TimeStep:
        self._refuse()

    def reset(self, seed: int | None = None) -> NoReturn:
        self._refuse()

    def step(self, action: Nest) -> NoReturn:
        self._refuse()

    def borrow_original(self) -> Environment:
        """The environment that was described, for one who needs more than its specs."""
        if self._original is None:
            raise RuntimeError(f"{self.name} was closed")
        self._is_lent = True
        return self._original

    def release(self) -> None:
        """Closes the environment that was described, unless somebody borrowed it."""
        if not self._is_lent:
            self.close()

    def close(self) -> None:
        if self._original is not None:
            self._original.close()
            self._original = None

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            f"{self.name} is stepped by unroll workers, not by this process"
        )


@configurable
def box_space(
    shape: Sequence[int] = (),
    low: float | Sequence[Any] | None = None,
    high: float | Sequence[Any] | None = None,
    dtype: str = "float32",
) -> spaces.Box:
    """A Box, for confs.

    Args:
        shape: of an element.
        low: a number or nested lists of the shape; None is no bound.
        high: likewise.
        dtype: of numpy.
    """
    bounds = (-np.inf if low is None else low, np.inf if high is None else high)
    try:
        low_array, high_array = (
            np.broadcast_to(np.asarray(bound, np.float64), tuple(shape))
            for bound in bounds
        )
        kind = np.dtype(dtype)
        if kind.kind in "iu" and not (np.isfinite([low_array, high_array])).all():
            raise ValueError("integers need both bounds")
        return spaces.Box(
            low_array.astype(kind), high_array.astype(kind), dtype=kind.type
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"box_space: {error}") from error


@configurable
def discrete_space(n: int | None = None, start: int = 0) -> spaces.Discrete:
    """A Discrete of n values from ``start`` on, for confs."""
    if n is None or n < 1:
        raise ConfigError(f"discrete_space: n must be at least 1, got {n}")
    return spaces.Discrete(n, start=start)


def _to_space(name: str, value: NestedSpace) -> Space:
    """Dicts and tuples of spaces as one space.

    Raises:
        ConfigError: if there is anything else in it.
    """
    if isinstance(value, Space):
        return value
    if isinstance(value, Mapping) and value:
        return spaces.Dict(
            {k: _to_space(f"{name}[{k!r}]", v) for k, v in value.items()}
        )
    if isinstance(value, tuple | list) and value:
        return spaces.Tuple([_to_space(f"{name}[{i}]", v) for i, v in enumerate(value)])
    raise ConfigError(
        f"SpecsOnlyEnvironment: {name} must be a space of gymnasium, got {value!r}. In "
        "a conf write @box_space() or @discrete_space(), with a scope to have several."
    )


# The spaces of an environment, as plain data that JSON holds


def saved_spaces(env: Environment | None) -> dict[str, Any] | None:
    """What builds a :class:`SpecsOnlyEnvironment` like ``env`` again."""
    if env is None:
        return None
    recorded = env.recorded_values
    shape = env.reward_spec.shape
    if recorded is None:
        pair = _space_of(env.observation_spec), _space_of(env.action_spec)
    else:
        pair = recorded.observation_space, recorded.action_space
    return {
        "observation_space": _to_data(pair[0]),
        "action_space": _to_data(pair[1]),
        "num_rewards": shape[0] if shape else None,
        "name": env.name,
    }


def from_saved_spaces(saved: Mapping[str, Any]) -> SpecsOnlyEnvironment:
    """The reverse of :func:`saved_spaces`."""
    return SpecsOnlyEnvironment(
        _from_data(saved["observation_space"]),
        _from_data(saved["action_space"]),
        num_rewards=saved["num_rewards"],
        name=saved["name"],
    )


def _space_of(spec: NestedTensorSpec) -> Space:
    """A space with these specs, for an environment that has none."""
    if isinstance(spec, Mapping):
        return spaces.Dict({key: _space_of(item) for key, item in spec.items()})
    if isinstance(spec, tuple | list):
        return spaces.Tuple([_space_of(item) for item in spec])
    dtype = spec.zeros().numpy().dtype
    if not isinstance(spec, BoundedTensorSpec):
        return spaces.Box(-np.inf, np.inf, tuple(spec.shape), dtype.type)
    if spec.is_discrete and not spec.shape:
        return spaces.Discrete(int(spec.maximum) - int(spec.minimum) + 1)
    shape = tuple(spec.shape)
    low, high = (
        np.broadcast_to(np.asarray(bound, dtype), shape)
        for bound in (spec.minimum, spec.maximum)
    )
    return spaces.Box(low, high, shape, dtype.type)


def _to_data(space: Space) -> dict[str, Any]:
    kind = type(space).__name__
    if isinstance(space, spaces.Dict):
        return {"Dict": [[key, _to_data(item)] for key, item in space.items()]}
    if isinstance(space, spaces.Tuple):
        return {"Tuple": [_to_data(item) for item in space.spaces]}
    if isinstance(space, spaces.Box):
        dtype = str(space.dtype)
        bounds = [_bound(space.low), _bound(space.high)]
        return {"Box": [*bounds, list(space.shape), dtype]}
    if isinstance(space, spaces.Discrete):
        return {"Discrete": [int(space.n), _start(int(space.start))]}
    if isinstance(space, spaces.MultiDiscrete):
        return {"MultiDiscrete": [space.nvec.tolist(), _start(space.start.tolist())]}
    assert isinstance(space, spaces.MultiBinary), kind
    # One that was made with n is another one than that of the shape (n,).
    return {"MultiBinary": np.asarray(space.n).tolist()}


def _bound(bound: np.ndarray) -> Any:
    """One number if all are alike; as text, because JSON has no infinity."""
    is_one = bound.size > 0 and bool((bound == bound.flat[0]).all())
    return json.dumps(bound.flat[0].item() if is_one else bound.tolist())


def _start(start: Any) -> Any:
    """As text where it is negative: the integers of a checkpoint are counts."""
    return start if np.min(start) >= 0 else json.dumps(start)


def _from_start(start: Any) -> Any:
    return json.loads(start) if isinstance(start, str) else start


def _from_data(data: Mapping[str, Any]) -> Space:
    ((kind, value),) = data.items()
    if kind == "Dict":
        return spaces.Dict({key: _from_data(item) for key, item in value})
    if kind == "Tuple":
        return spaces.Tuple([_from_data(item) for item in value])
    if kind == "Box":
        low, high, shape, dtype = value
        low_array, high_array = (
            np.broadcast_to(np.asarray(json.loads(b), dtype), shape)
            for b in (low, high)
        )
        return spaces.Box(low_array, high_array, tuple(shape), np.dtype(dtype).type)
    if kind == "Discrete":
        return spaces.Discrete(value[0], start=_from_start(value[1]))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(value[0], start=_from_start(value[1]))
    return spaces.MultiBinary(value)
