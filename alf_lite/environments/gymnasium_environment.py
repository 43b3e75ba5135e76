"""Any vector environment of gymnasium as an Environment of this library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import TimeStep, time_step_spec
from alf_lite.environments import (
    env_ids,
    info_keys,
    single_env,
    space_specs,
)
from alf_lite.environments.environment import EnvironmentWithSpecs, StepRow
from alf_lite.environments.episode_memory import EpisodeMemory, GivenActions
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.numpy_time_steps import NumpyTimeSteps
from alf_lite.environments.single_env import BatchOfSingleEnvs, vector_seed
from alf_lite.environments.space_specs import RecordedValues
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.environments.time_steps import TimeSteps
from alf_lite.environments.torch_time_steps import TorchTimeSteps
from alf_lite.errors import AlfLiteError, ConfigError, EnvError, exception_text
from alf_lite.tensor_specs import TensorSpec

Nest = Any
_MAX_GIVEN = 1024  # steps that are remembered together


class GymnasiumEnvironment(EnvironmentWithSpecs):
    """Adapts a ``gymnasium.vector.VectorEnv`` in NEXT_STEP mode.

    Numpy environments give CPU tensors; the tensors of torch environments stay on their
    device. What the environment returns is checked against its spaces: structure, shape
    and dtype, NaN and infinite values, and integers out of range are errors; a Box that
    is left is a warning, once per environment.

    Continuous actions are chosen in [-1, 1], clipped, and mapped to the bounds of the
    Box; elements without finite bounds pass through as they are (see ``space_specs``).
    ``prev_action`` is the action as the agent chose it.

    Args:
        vector_env: owned from here on: ``close`` closes it.
        seed: of the first reset, if that gets none.
        env_info_keys: the keys of the infos that become ``env_info``, see ``InfoKeys``.
        name: for messages; by default the environment's id.
        copy: whether to copy the tensors that a torch environment returns, because it
            may change them later. Arrays always are.

    Raises:
        ConfigError: if ``vector_env`` is not in NEXT_STEP mode, or has a space of no
            fixed shape.
    """

    def __init__(
        self,
        vector_env: gymnasium.vector.VectorEnv,
        *,
        seed: int | None = None,
        env_info_keys: Sequence[str] | Mapping[str, Sequence[int]] = (),
        name: str | None = None,
        copy: bool = True,
    ) -> None:
        _check_vector_env(vector_env)
        # Not observation_space, which some (EnvPool) do not batch.
        observation_space = vector_env.single_observation_space
        action_space = vector_env.single_action_space
        self._info_keys = InfoKeys(env_info_keys)
        shapes = self._info_keys.shapes
        super().__init__(
            int(vector_env.num_envs),
            space_specs.observation_spec(observation_space),
            space_specs.action_spec(action_space),
            reward_spec=TensorSpec(_reward_shape(vector_env)),
            env_info_spec={key: TensorSpec(s) for key, s in shapes.items()} or (),
            recorded_values=RecordedValues(observation_space, action_space),
            name=name or _name_of(vector_env),
        )
        self.vector_env = vector_env
        self._seed = seed
        self._unseen_keys = self._info_keys.required  # of the infos so far
        # One of this library returns arrays of its own, freezes and replays.
        self._own = vector_env if isinstance(vector_env, BatchOfSingleEnvs) else None
        self._take_step: Callable[[Any], tuple] = vector_env.step
        if self._own is not None:
            self._take_step = self._own.take_step
        self._copy = copy
        # What makes a time step of what a step returns, once it is known.
        self._time_steps: TimeSteps | None = None
        self._own_steps: NumpyTimeSteps | None = None  # the same, of our own
        self._next: Callable[..., TimeStep]
        self._num_steps = 0
        self._memory: EpisodeMemory | None = None  # of those that can replay
        if self._own is not None:
            tree = SpaceTree(action_space, "action")
            self._memory = EpisodeMemory(self._own, tree.leaves)
            self._max_given = min(_MAX_GIVEN, self._memory.max_steps)
        self._given: list[GivenActions] = []  # that the memory does not know yet
        self._closed = False

    @property
    def num_restarts(self) -> int:
        return 0 if self._own is None else self._own.num_restarts

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.vector_env.metadata)

    def reset(self, seed: int | None = None) -> TimeStep:
        if seed is None and self._current is None:
            seed = self._seed
        self._num_steps = 0
        derived = None if seed is None else vector_seed(seed)
        try:
            observation, infos = self.vector_env.reset(seed=derived)
        except Exception as error:
            self._raise_from_vector_env(error, "reset()")
        try:
            time_steps = self._time_steps or self._make_time_steps(observation)
            self._current = time_steps.first(observation, infos)
            if self._unseen_keys:
                self._watch_infos(infos)
        except EnvError as error:
            single_env.raise_env_error(self._where("reset()"), error)
        if self._memory is not None:
            self._given.clear()
            self._memory.clear()
        return self._current

    def step(self, action: Nest) -> TimeStep:
        return self.step_into(action, None)

    def rows_of(self, memory: TimeStep) -> Sequence[StepRow] | None:
        time_steps, device = self._time_steps, memory.step_type.device
        if isinstance(time_steps, NumpyTimeSteps) and device.type == "cpu":
            return time_steps.rows_of(memory)
        return None

    def step_into(self, action: Nest, row: StepRow | None) -> TimeStep:
        time_steps = self._time_steps
        if time_steps is None:
            raise RuntimeError(f"{self.name}: call reset() before step()")
        if self._num_steps == 0:
            nest.assert_same_structure(self.action_spec, action)
        converted = time_steps.convert_action(action, row)
        own = self._own_steps
        if own is not None:
            # Before the step, because an environment may change what it is given.
            self._given.append((own.started, own.given()))
            if len(self._given) >= self._max_given:
                self._remember()
        self._num_steps += 1
        try:
            result = self._take_step(converted)
        except Exception as error:
            self._raise_from_vector_env(error, "step()")
        restarted = None if self._own is None else self._own.restarted
        if own is not None and restarted is not None:
            own.note_restarts(restarted)
        try:
            self._current = self._next(*result)
            if self._unseen_keys:
                self._watch_infos(result[-1])
        except (EnvError, ConfigError) as error:
            single_env.raise_env_error(self._where("step()"), error)
        return self._current

    def _remember(self) -> EpisodeMemory | None:
        """Has the memory take in what was given since the last call."""
        if self._memory is not None:
            self._memory.add(self._given)
            self._given.clear()
        return self._memory

    def freeze(self, rows: np.ndarray) -> None:
        if self._own is not None:  # others step as one
            self._own.freeze(rows)

    def set_attribute(self, name: str, value: Any) -> None:
        vector_env: Any = self.vector_env.unwrapped
        if self._own is not None:
            self._own.set_attribute(name, value)
        elif hasattr(vector_env, "set_attr"):  # one of several environments
            vector_env.set_attr(name, value)
        elif hasattr(vector_env, name):
            setattr(vector_env, name, value)
        else:
            raise EnvError(f"{self.name} has no attribute {name} that could be set")

    def episode_state(self) -> dict[str, Any] | None:
        memory, time_steps = self._remember(), self._own_steps
        # One that has failed is closed.
        if self._current is None or self.vector_env.closed:
            return None
        if memory is None or time_steps is None:
            return None
        return memory.state_dict(time_steps, self._current)

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        if self._memory is None:
            return super().restore_episodes(state, seed)
        time_steps = self._own_steps or self._numpy_time_steps()
        self._num_steps = 0
        self._given.clear()
        try:
            self._current, reasons = self._memory.restore(state, time_steps, seed)
        except EnvError as error:
            single_env.raise_env_error(self._where("restore_episodes()"), error)
        return reasons

    def render(self) -> np.ndarray | None:
        frames = self.render_all()
        return frames[0] if frames else None

    def render_all(self) -> Sequence[np.ndarray | None]:
        return self._drawn(self.vector_env.render)

    @property
    def num_rendered(self) -> int:
        if self._own is None:
            return super().num_rendered
        return self.batch_size if self.render_rows([0])[0] is not None else 0

    def render_rows(self, rows: Sequence[int]) -> list[np.ndarray | None]:
        if self._own is None:
            return super().render_rows(rows)
        return self._drawn(functools.partial(self._own.render_rows, rows))

    def _drawn(self, render: Callable[[], Any]) -> list[np.ndarray | None]:
        try:
            frames = render()
        except Exception as error:
            text = exception_text(error)
            hint = env_ids.display_hint()
            raise env_ids.missing_package(self.name, text) or EnvError(
                f"{self.name} cannot be drawn: {text}. {hint}".rstrip()
            ) from error
        return [_newest(frame) for frame in (() if frames is None else frames)]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.vector_env.close()

    def _make_time_steps(self, observation: Any) -> TimeSteps:
        tensors = [t for t in nest.flatten(observation) if isinstance(t, Tensor)]
        if not tensors or self._own is not None:
            return self._numpy_time_steps()
        time_steps = TorchTimeSteps(
            *self._parts, copy=self._copy, device=tensors[0].device
        )
        self._time_steps, self._next = time_steps, time_steps.next
        return time_steps

    def _numpy_time_steps(self) -> NumpyTimeSteps:
        time_steps = NumpyTimeSteps(*self._parts)
        self._time_steps, self._next = time_steps, time_steps.next
        if self._own is not None:
            self._own_steps, self._next = time_steps, time_steps.next_own
        return time_steps

    @property
    def _parts(self) -> tuple[gymnasium.vector.VectorEnv, TimeStep, InfoKeys]:
        """What any ``TimeSteps`` is made of."""
        spec = time_step_spec(
            self.observation_spec,
            self.action_spec,
            self.reward_spec,
            self.env_info_spec,
        )
        return self.vector_env, spec, self._info_keys

    def _watch_infos(self, infos: dict[str, Any]) -> None:
        """Looks for the declared keys until each has come once."""
        unseen = info_keys.still_unseen(self._unseen_keys, infos)
        self._unseen_keys = unseen
        if unseen and bool(self.current_time_step.is_last().any()):
            names = info_keys.info_names(infos)
            if self._own is not None:  # hands out what was declared
                names = self._own.info_names()
            info_keys.raise_unseen(unseen, names)

    def _raise_from_vector_env(self, error: Exception, call: str) -> NoReturn:
        if isinstance(error, AlfLiteError):  # names the environment already
            raise error
        single_env.raise_env_error(self._where(call), error)

    def _where(self, call: str) -> str:
        return f"{self.name}, {call} at step {self._num_steps}"


def _check_vector_env(vector_env: Any) -> None:
    for name in ("single_observation_space", "single_action_space", "num_envs"):
        try:
            value = getattr(vector_env, name)
        except AttributeError as error:
            raise ConfigError(
                f"expected a gymnasium.vector.VectorEnv, got {type(vector_env)} "
                f"without {name} ({error}). create_environment makes one from an id or "
                "from a factory of single environments."
            ) from error
        except single_env.ENV_FAILURES as error:
            single_env.raise_env_error(f"{_name_of(vector_env)}: {name}", error)
        if name != "num_envs":
            single_env.check_space(value, f"{_name_of(vector_env)}: {name}")
        elif not isinstance(value, int | np.integer) or value < 1:
            raise ConfigError(
                f"{_name_of(vector_env)}: num_envs must be a positive integer, got "
                f"{value!r}"
            )
    metadata = getattr(vector_env, "metadata", None) or {}
    mode = metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        raise ConfigError(
            f"{_name_of(vector_env)}: metadata['autoreset_mode'] is {mode!r}. Pass "
            "autoreset_mode=AutoresetMode.NEXT_STEP where it is made, or set the entry "
            "if that is what it does."
        )


def _newest(frame: Any) -> np.ndarray | None:
    """A frame, which is the last one where the environment collects them."""
    if frame is None:
        return None
    array = np.asarray(frame)
    return array[-1] if array.ndim == 4 else array


def _name_of(vector_env: Any) -> str:
    spec = getattr(vector_env, "spec", None)
    return str(getattr(spec, "id", None) or type(vector_env).__name__)


def _reward_shape(vector_env: Any) -> tuple[int, ...]:
    """``(D,)`` if the environment declares a reward of D parts, else ``()``."""
    space = getattr(vector_env, "single_reward_space", None)
    if space is None:
        space = getattr(vector_env, "reward_space", None)
    return () if space is None else tuple(int(size) for size in space.shape[-1:])
