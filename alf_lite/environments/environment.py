"""What every environment is to the rest of the library."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.environments.space_specs import RecordedValues
from alf_lite.errors import EnvError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.game_results import Opposition

Nest = Any


class Environment(abc.ABC):
    """A batch of B independent environments that step together.

    ``reset`` and ``step`` return a TimeStep of [B, ...] tensors, which belongs to the
    caller: no later call changes it (``env_id``, which never changes, is shared). The
    time convention is that of ``data_structures``: the step after a LAST ignores its
    action and is the FIRST of the next episode.

    Subclasses implement the abstract members and pass
    ``alf_lite.testing.environment_contract.EnvironmentContract``.
    """

    created_with: dict[str, Any] | None = None  # the arguments of create_environment
    can_step = True  # False: known by its specs alone, for training on recorded steps
    # Whether the class is made for any number of environments: the constructor is
    # called as ctor(num_environments, max_episode_steps=, device=, seed=).
    takes_num_environments: ClassVar[bool] = False
    # Whether a row belongs to two sides in turn, so that what follows is the other's:
    # discounts are then -1 while an episode goes on, and 1 where a side moves again.
    has_negative_discounts: bool = False
    rows_per_frame = 1  # of one game, whose agents are rows and are drawn together
    # Against whom it is played, if an episode is a game against opponents.
    opposition: Opposition | None = None

    @property
    @abc.abstractmethod
    def batch_size(self) -> int:
        """B, the number of environments."""

    @property
    @abc.abstractmethod
    def observation_spec(self) -> NestedTensorSpec:
        """Of one observation, without the batch dimension."""

    @property
    @abc.abstractmethod
    def action_spec(self) -> NestedTensorSpec:
        """Of one action as the agent chooses it, without the batch dimension."""

    @property
    def reward_spec(self) -> TensorSpec:
        """``()`` or, for a reward with several parts, ``(D,)``."""
        return TensorSpec(())

    @property
    def env_info_spec(self) -> NestedTensorSpec:
        """Of ``TimeStep.env_info``; empty if none was asked for."""
        return ()

    @property
    def recorded_values(self) -> RecordedValues | None:
        """What converts data recorded in the environment's own units.

        None if agents see and choose what the environment itself returns and is given.
        """
        return None

    @property
    def metadata(self) -> dict[str, Any]:
        """What the environment says about itself, such as ``render_fps``."""
        return {}

    @property
    def name(self) -> str:
        """For messages and logs."""
        return type(self).__name__

    @property
    @abc.abstractmethod
    def current_time_step(self) -> TimeStep:
        """What the last ``reset`` or ``step`` returned, the same object.

        By it an algorithm knows that nobody else has stepped its environment.

        Raises:
            RuntimeError: if there was none.
        """

    @property
    def num_restarts(self) -> int:
        """How often an environment has failed and was begun anew."""
        return 0

    @abc.abstractmethod
    def reset(self, seed: int | None = None) -> TimeStep:
        """Starts a new episode in every environment.

        Args:
            seed: fixes everything that the environments will do from here on. None
                continues their random streams.

        Returns:
            The FIRST steps, [B, ...].
        """

    @abc.abstractmethod
    def step(self, action: Nest) -> TimeStep:
        """Takes one step in every environment.

        Args:
            action: a nest like ``action_spec`` of [B, ...] tensors.

        Returns:
            [B, ...]; rows that were LAST before are now FIRST. So are those whose
            environment has failed, see :attr:`num_restarts`.

        Raises:
            EnvError: if an environment fails or contradicts its own spaces.
        """

    def bind(self, algorithm: Any) -> None:  # noqa: B027 - few need it
        """Says which algorithm acts here, once it is built; in each of its processes.

        Args:
            algorithm: the root of a run.
        """

    def freeze(self, rows: np.ndarray) -> None:  # noqa: B027 - most do nothing
        """Says which environments need not be stepped any more, until a reset.

        An evaluation that has all episodes of an environment does not wait for more of
        them. What comes from a frozen environment is to be ignored; it need not be
        different from that of another one, as by default.

        Args:
            rows: [B] bool; those that are frozen already stay so.
        """

    def set_attribute(self, name: str, value: Any) -> None:
        """Changes a setting of every environment, such as its difficulty.

        Args:
            name: an attribute of the environment, or a method that takes the value.
            value: what to set it to.

        Raises:
            EnvError: if the environment has no such attribute.
        """
        raise EnvError(f"{self.name}: {name} cannot be set: it has no settings")

    def rows_of(self, memory: TimeStep) -> Sequence[StepRow] | None:
        """Rows that :meth:`step_into` can write to, so that nobody has to copy them.

        Args:
            memory: tensors [N, B, ...] with the structure of a time step.

        Returns:
            N rows; None if the environment does not write to this memory, as by
            default.
        """
        return None

    def step_into(self, action: Nest, row: StepRow) -> TimeStep:
        """:meth:`step`, whose result is written to ``row`` and lives there.

        Args:
            action: a nest like ``action_spec`` of [B, ...] tensors.
            row: from :meth:`rows_of`.
        """
        raise NotImplementedError(f"{self.name} writes to no rows")

    def episode_state(self) -> dict[str, Any] | None:
        """What a resumed run needs to continue the open episodes, as plain data.

        Dicts, lists, numbers, strings and tensors. Asking for it changes nothing.

        Returns:
            None if the episodes cannot be continued in another process, as by default.
        """
        return None

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        """Continues the open episodes of a run; called instead of the first reset.

        ``current_time_step`` is then what it was when the state was taken, to the bit,
        and what the environments do from here on is what they would have done then.
        Where that is not possible, a new episode begins.

        Args:
            state: what :meth:`episode_state` returned.
            seed: of new episodes.

        Returns:
            Where new episodes have begun: environment → reason.

        Raises:
            CheckpointError: if the state is of other environments.
        """
        raise NotImplementedError(f"{self.name} has no episode_state()")

    def render(self) -> np.ndarray | None:
        """A frame [height, width, 3] uint8 of environment 0, None if it has none."""
        return None

    def render_all(self) -> Sequence[np.ndarray | None]:
        """A frame of each environment, as far as they can be drawn: at most B."""
        return [self.render()]

    @property
    def num_rendered(self) -> int:
        """How many environments can be drawn: at most B. May draw them to find out."""
        return sum(frame is not None for frame in self.render_all())

    def render_rows(self, rows: Sequence[int]) -> list[np.ndarray | None]:
        """Frames of some environments, which are among those that can be drawn."""
        frames = self.render_all()
        return [frames[row] for row in rows]

    def close(self) -> None:  # noqa: B027 - many environments hold nothing
        """Releases what the environment holds; may be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class EnvironmentWithSpecs(Environment):
    """An environment that knows its specs from the beginning.

    Args:
        batch_size: B.
        observation_spec: of one observation.
        action_spec: of one action.
        reward_spec: of one reward.
        env_info_spec: of ``TimeStep.env_info``.
        recorded_values: what converts recorded data, see ``Environment``.
        name: for messages and logs.
    """

    batch_size = 0
    observation_spec: NestedTensorSpec = ()
    action_spec: NestedTensorSpec = ()
    reward_spec = TensorSpec(())
    env_info_spec: NestedTensorSpec = ()
    recorded_values: RecordedValues | None = None
    name = ""

    def __init__(
        self,
        batch_size: int,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        reward_spec: TensorSpec,
        env_info_spec: NestedTensorSpec = (),
        recorded_values: RecordedValues | None = None,
        name: str,
    ) -> None:
        self.batch_size = batch_size
        self.observation_spec = observation_spec
        self.action_spec = action_spec
        self.reward_spec = reward_spec
        self.env_info_spec = env_info_spec
        self.recorded_values = recorded_values
        self.name = name
        self._current: TimeStep | None = None

    @property
    def current_time_step(self) -> TimeStep:
        if self._current is None:
            raise RuntimeError(f"{self.name}: call reset() first")
        return self._current


class StepRow:
    """One time step [B, ...]: arrays to write, and the tensors that share their memory.

    Args:
        time_step: tensors on the CPU.
        arrays: the same as arrays.
    """

    def __init__(self, time_step: TimeStep, arrays: Any) -> None:
        self.time_step = time_step
        self.step_type: np.ndarray = arrays.step_type
        self.reward: np.ndarray = arrays.reward
        self.discount: np.ndarray = arrays.discount
        self.observation: list[np.ndarray] = nest.flatten(arrays.observation)
        self.prev_action: list[np.ndarray] = nest.flatten(arrays.prev_action)
        # By name; () if nothing was declared.
        self.env_info: dict[str, np.ndarray] = arrays.env_info
        self._arrays: list[np.ndarray] = nest.flatten(arrays)

    def copy(self, other: StepRow) -> None:
        """Takes over the step of another row of the same environments."""
        for mine, its in zip(self._arrays, other._arrays, strict=True):
            mine[...] = its


def step_rows(memory: TimeStep) -> Sequence[StepRow]:
    """The N rows of ``memory``, tensors [N, B, ...] on the CPU."""
    # Whoever writes may be in inference mode and whoever reads not.
    with torch.inference_mode(False):
        arrays = nest.map_structure(torch.Tensor.numpy, memory)
        return list(map(StepRow, nest.unstack(memory), nest.unstack(arrays)))
