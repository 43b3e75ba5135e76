"""What is known of environments that are stepped elsewhere."""

from __future__ import annotations

from typing import Any, NoReturn

from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.environments.recorded_values import RecordedValues
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


class DescribedEnvironment(Environment):
    """The environments of several workers: has their specs, and cannot be stepped.

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
        self._original: Environment | None = env
        self._is_lent = False
        self.recipe = recipe
        self.recipe_module = recipe_module
        self._batch_size = num_workers * env.batch_size
        self._observation_spec = env.observation_spec
        self._action_spec = env.action_spec
        self._reward_spec = env.reward_spec
        self._env_info_spec = env.env_info_spec
        self._recorded_values = env.recorded_values
        self._metadata = dict(env.metadata)
        self._name = env.name

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def observation_spec(self) -> NestedTensorSpec:
        return self._observation_spec

    @property
    def action_spec(self) -> NestedTensorSpec:
        return self._action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        return self._reward_spec

    @property
    def env_info_spec(self) -> NestedTensorSpec:
        return self._env_info_spec

    @property
    def recorded_values(self) -> RecordedValues | None:
        return self._recorded_values

    @property
    def metadata(self) -> dict[str, Any]:
        return self._metadata

    @property
    def name(self) -> str:
        return self._name

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
            raise RuntimeError(f"{self._name} was closed")
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
            f"{self._name} is stepped by unroll workers, not by this process"
        )
