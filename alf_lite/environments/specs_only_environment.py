"""An environment that is known by its spaces alone, for training on recorded steps.

create_environment.env_ctor = @SpecsOnlyEnvironment
SpecsOnlyEnvironment.observation_space = @observation/box_space()
SpecsOnlyEnvironment.action_space = @action/box_space()
observation/box_space.shape = (3,)
action/box_space.shape = (1,)
action/box_space.low = -2.0
action/box_space.high = 2.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium import Space, spaces

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep, time_step_spec
from alf_lite.environments import space_specs
from alf_lite.environments.environment import EnvironmentWithSpecs
from alf_lite.environments.recorded_values import RecordedValues
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import TensorSpec

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
        spec = time_step_spec(
            self._observation_spec, self._action_spec, self._reward_spec
        )
        steps = nest.zeros(spec, (1,))
        self._current = steps._replace(discount=torch.ones(1))
        return self._current

    def step(self, action: Nest) -> NoReturn:
        raise EnvError(
            f"{self._name} has specs only and cannot step. For training on recorded "
            "steps alone set TrainerConfig.rl_train_after_update_steps at least to "
            "num_iterations, and evaluate = False; otherwise name an environment."
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
