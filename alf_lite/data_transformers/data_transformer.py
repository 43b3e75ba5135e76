"""What data transformers have in common."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import BatchInfo, Experience, TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.nest import path_parts
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


class WindowOrigin(NamedTuple):
    """The buffer and the place of the windows [B, T] in it.

    In front of the windows, an experience may have steps that are not trained: the
    history from which transformers stack frames. It is then [B, H+T, ...], and the
    steps of the history may belong to earlier episodes.
    """

    buffer: ReplayBuffer
    # env_ids and positions [B] of the first of the T steps; where the buffer is, if it
    # draws by priorities there, and else on the CPU
    batch_info: BatchInfo
    num_history_steps: int = 0  # H

    def positions(self, num_steps: int) -> Tensor:
        """The positions [B, H+T] of the steps of an experience, on the CPU.

        Args:
            num_steps: H+T.
        """
        offsets = torch.arange(num_steps) - self.num_history_steps
        return self.batch_info.positions.cpu().unsqueeze(1) + offsets

    def with_history(
        self, experience: Experience, num_history_steps: int
    ) -> tuple[Experience, Self]:
        """Puts the steps before the windows in front of them.

        Args:
            experience: [B, T, ...], as the buffer returned it.
            num_history_steps: H. The buffer must hold so many steps before every
                window: ``num_earliest_frames_ignored``.

        Returns:
            The experience [B, H+T, ...] and its source.
        """
        if num_history_steps == 0:
            return experience, self
        history = self.buffer.get_windows(
            self.batch_info.env_ids,
            self.batch_info.positions - num_history_steps,
            num_history_steps,
        )
        source = self._replace(num_history_steps=num_history_steps)
        return nest.cat([history, experience], dim=1), source

    def drop_history(self, num_steps: int) -> Self:
        """The source after a transformer took ``num_steps`` of the history off."""
        return self._replace(num_history_steps=self.num_history_steps - num_steps)


class TransformStage(enum.IntEnum):
    """When a transformer takes its turn; those of an earlier stage come first."""

    KEEP_RAW = 1  # keeps a copy of the raw time step
    HINDSIGHT = 2  # replaces goals by what was achieved at later raw steps
    SYMMETRY = 3  # shows raw steps in a mirror
    HISTORY = 4  # joins the raw steps before a step
    SINGLE_STEP = 5  # changes every step for itself


class DataTransformer(nn.Module, ABC):
    """Changes time steps between the environment and the algorithm.

    Metrics and replay buffers get raw time steps. A transformer works on the steps that
    the algorithm acts on, :meth:`transform_timestep`, and again on those that it trains
    on from a replay buffer, :meth:`transform_experience`.

    Statistics change only in :meth:`observe`, which is called once per unroll of the
    training environments and never in evaluation, so all steps of an unroll are
    transformed alike. On-policy it is called when the unroll is prepared for training:
    what joins it there, such as steps of experts, is transformed as the unroll was.
    They are buffers of the module, so that checkpoints hold them.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward; transformers keep shape and dtype.

    Attributes:
        transformed_observation_spec: of one observation as the algorithm sees it. The
            constructor of a subclass sets it where it is not the raw one.
        state_spec: of what one environment carries from step to step, zeros at the
            start; likewise.
    """

    stage: ClassVar[TransformStage] = TransformStage.SINGLE_STEP

    # Whether an entry of a dict of observations stays under its key, and nothing else
    # is made of it: acting can do without those that its networks do not see.
    keeps_entries_apart: bool = False

    has_statistics: bool = False  # whether observe() changes anything
    num_history_steps: int = 0  # before a window, that transform_experience() reads
    needs_replay: bool = False  # whether it only changes what is drawn from replay
    num_recorded_sources: int = 0  # of recorded steps, that there must be at least

    # What it multiplies rewards with, if it does that and nothing else
    reward_factor: float | None = None

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
    ) -> None:
        super().__init__()
        self.observation_spec = observation_spec
        self.reward_spec = reward_spec
        self.transformed_observation_spec = observation_spec
        self.state_spec: NestedTensorSpec = ()

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing: nobody needs to call it then."""
        return self.reward_factor == 1.0

    def set_environment(self, env: Environment) -> None:
        """Says, before training, which environment the steps come from.

        Raises:
            ConfigError: if the transformer needs something that ``env`` does not have.
        """

    def set_gamma(self, gamma: float) -> None:
        """Says, before training, which γ the algorithm has."""

    def check_neighbours(
        self, earlier: Sequence[DataTransformer], later: Sequence[DataTransformer]
    ) -> None:
        """Says which transformers are applied before and after this one.

        Raises:
            ConfigError: if it does not go together with one of them.
        """

    @abstractmethod
    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]:
        """What the algorithm acts on.

        Args:
            time_step: [B, ...], raw; is left as it is.
            state: [B, ...], of ``state_spec``, from the step before. A FIRST step must
                not depend on it.

        Returns:
            The transformed time step and the state for the next step.
        """

    @abstractmethod
    def transform_experience(
        self, experience: Experience, source: WindowOrigin | None = None
    ) -> Experience:
        """What the algorithm trains on.

        Args:
            experience: [B, H+T, ...], as the replay buffer holds it: windows of T steps
                and the ``num_history_steps`` steps before each. With the history that
                later transformers need there may be more.
            source: where the windows are. Only transformers that look beyond a single
                step need it; see :meth:`WindowOrigin.with_history`.

        Returns:
            [B, T, ...], and in front of it the history that was not its own.
        """

    @abstractmethod
    def transform_unroll(self, time_steps: TimeStep) -> TimeStep:
        """What a following transformer observes.

        Args:
            time_steps: raw [T, B, ...], each step once and in its order: the next call
                continues where this one ends.
        """

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        """The rewards that the algorithm sees, for returns of whole episodes.

        Args:
            rewards: raw, [N].

        Raises:
            ConfigError: if they depend on more than themselves, or it was not said.
        """
        raise ConfigError(
            f"{type(self).__name__} may change rewards by more than themselves, so "
            "that returns of episodes (lower_bound_targets) cannot be told. Leave one "
            "of both out; one of your own says what it does in transform_rewards."
        )

    def change_unscaled(
        self, change: Callable[[Nest], Nest], observation: Nest
    ) -> Nest:
        """Changes a transformed observation [..., *spec.shape] in its raw units.

        Args:
            change: of an observation that is not scaled.
            observation: as the algorithm sees it.
        """
        return change(observation)

    def observe(self, time_steps: TimeStep) -> None:
        """Takes an unroll into the statistics.

        Args:
            time_steps: raw [T, B, ...], each step once and in its order.

        Raises:
            EnvError: if there is a NaN or an infinity; the statistics do not change.
        """

    def training_state_dict(self) -> dict[str, Any]:
        """What only training needs to continue, beside ``state_dict``."""
        return {}

    def load_training_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what ``training_state_dict`` returned."""


class SingleStepTransformer(DataTransformer):
    """A transformer that changes every step for itself: :meth:`transform` is all."""

    @abstractmethod
    def transform(self, time_step: TimeStep) -> TimeStep:
        """Transforms [..., *spec.shape] with any leading dimensions."""

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]:
        return self.transform(time_step), state

    def transform_experience(
        self, experience: Experience, source: WindowOrigin | None = None
    ) -> Experience:
        time_step = experience.time_step
        assert isinstance(time_step, TimeStep), "the experience has no time step"
        return experience._replace(time_step=self.transform(time_step))

    def transform_unroll(self, time_steps: TimeStep) -> TimeStep:
        return self.transform(time_steps)


class ReplayTransformer(DataTransformer):
    """A transformer that changes what is drawn from replay, and nothing else."""

    needs_replay = True

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]:
        return time_step, state

    def transform_unroll(self, time_steps: TimeStep) -> TimeStep:
        return time_steps


@configurable
class IdentityDataTransformer(SingleStepTransformer):
    """Changes nothing and copies nothing."""

    keeps_entries_apart = True
    reward_factor: float | None = 1.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Whoever derives from it changes something."""
        super().__init_subclass__(**kwargs)
        cls.keeps_entries_apart = False
        cls.reward_factor = None

    def transform(self, time_step: TimeStep) -> TimeStep:
        return time_step

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        return rewards


def build_data_transformer(
    ctor: Callable[..., DataTransformer],
    observation_spec: NestedTensorSpec,
    reward_spec: TensorSpec,
) -> DataTransformer:
    """Calls ``ctor(observation_spec, reward_spec)``.

    Raises:
        ConfigError: if it is not the class of a data transformer.
    """
    if not callable(ctor) or isinstance(ctor, DataTransformer):
        raise ConfigError(
            f"a data transformer is given by its class, got {ctor!r}. In a conf write "
            "@ObservationNormalizer, without quotes and parentheses."
        )
    transformer = ctor(observation_spec, reward_spec)
    if not isinstance(transformer, DataTransformer):
        raise ConfigError(
            f"{ctor!r} must build a DataTransformer, got a {type(transformer).__name__}"
        )
    return transformer


# The parts of an observation that a transformer changes


def select_leaves(
    observation_spec: NestedTensorSpec,
    fields: Sequence[str] | None,
    is_suitable: Callable[[TensorSpec], bool],
    needed: str,
) -> dict[str, int]:
    """The leaves to change, sorted by name, and their positions in the flattened spec.

    The name of a leaf is its path with dots, ``"arm.joints.0"``, or ``"observation"``
    if there is only that one leaf.

    Args:
        observation_spec: of one observation.
        fields: names of leaves or of nests of leaves, such as ``"arm"``; None for all
            leaves that are suitable.
        is_suitable: whether the transformer can change such a leaf.
        needed: what a suitable leaf is, for errors.

    Raises:
        ConfigError: if a field does not exist or is not suitable, or if there are none.
    """
    specs = {
        ".".join(path_parts(path)) or "observation": spec
        for path, spec in nest.flatten_with_path(observation_spec)
    }
    names = list(specs)
    if fields is None:
        selected = [name for name in names if is_suitable(specs[name])]
    else:
        _check_fields(fields, names)
        selected = [name for name in names if any(_is_in(name, f) for f in fields)]
        for name in selected:
            if not is_suitable(specs[name]):
                raise ConfigError(f"'{name}' must be {needed}, it is a {specs[name]}")
    if not selected:
        raise ConfigError(f"no part of the observation is {needed}: {specs}")
    return {name: names.index(name) for name in sorted(selected)}


def replace_specs(
    observation_spec: NestedTensorSpec,
    positions: Iterable[int],
    new_spec: Callable[[TensorSpec], TensorSpec],
) -> NestedTensorSpec:
    """``observation_spec`` with ``new_spec`` of the specs at ``positions``."""
    specs = nest.flatten(observation_spec)
    for i in positions:
        specs[i] = new_spec(specs[i])
    return nest.pack_sequence_as(observation_spec, specs)


def _check_fields(fields: Sequence[str], names: Sequence[str]) -> None:
    if isinstance(fields, str):
        raise ConfigError(f"fields must be a list of names, write ['{fields}']")
    for field in fields:
        if not any(_is_in(name, field) for name in names):
            raise ConfigError(
                f"the observation has no field '{field}', only {list(names)}."
                f"{did_you_mean(field, names)}"
            )


def _is_in(name: str, field: str) -> bool:
    return name == field or name.startswith(f"{field}.")
