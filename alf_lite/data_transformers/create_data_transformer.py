"""Builds the data transformers that a configuration names, one after the other."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    IdentityDataTransformer,
    WindowOrigin,
    build_data_transformer,
)
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


@configurable
class SequentialDataTransformer(DataTransformer):
    """Applies transformers in the given order; each sees what the one before returned.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        data_transformer_ctors: each called as ``ctor(observation_spec, reward_spec)``.

    Raises:
        ConfigError: if a transformer comes after one of a later stage, or does not go
            together with another.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        data_transformer_ctors: Sequence[Callable[..., DataTransformer]],
    ) -> None:
        in_order: list[DataTransformer] = []
        spec = observation_spec
        for ctor in data_transformer_ctors:
            in_order.append(build_data_transformer(ctor, spec, reward_spec))
            spec = in_order[-1].transformed_observation_spec
        _check_order(in_order)
        super().__init__(observation_spec, reward_spec)
        self.transformed_observation_spec = spec
        self.state_spec = tuple(t.state_spec for t in in_order)
        self.keeps_entries_apart = all(t.keeps_entries_apart for t in in_order)
        self.has_statistics = any(t.has_statistics for t in in_order)
        self.num_history_steps = sum(t.num_history_steps for t in in_order)
        self.needs_replay = any(t.needs_replay for t in in_order)
        self.num_recorded_sources = max(
            (t.num_recorded_sources for t in in_order), default=0
        )
        factors = [t.reward_factor for t in in_order]
        known = [factor for factor in factors if factor is not None]
        self.reward_factor = math.prod(known) if known == factors else None
        self._in_order = in_order
        self.transformers = nn.ModuleList(in_order)
        self.check_neighbours((), ())

    def set_environment(self, env: Environment) -> None:
        for transformer in self._in_order:
            transformer.set_environment(env)

    def set_gamma(self, gamma: float) -> None:
        for transformer in self._in_order:
            transformer.set_gamma(gamma)

    def check_neighbours(
        self, earlier: Sequence[DataTransformer], later: Sequence[DataTransformer]
    ) -> None:
        for i, transformer in enumerate(self._in_order):
            transformer.check_neighbours(
                (*earlier, *self._in_order[:i]), (*self._in_order[i + 1 :], *later)
            )

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]:
        new_state = []
        for transformer, its_state in zip(self._in_order, state, strict=True):
            time_step, its_state = transformer.transform_timestep(time_step, its_state)
            new_state.append(its_state)
        return time_step, tuple(new_state)

    def transform_experience(
        self, experience: Experience, source: WindowOrigin | None = None
    ) -> Experience:
        for transformer in self._in_order:
            experience = transformer.transform_experience(experience, source)
            if source is not None:
                source = source.drop_history(transformer.num_history_steps)
        return experience

    def transform_unroll(self, time_steps: TimeStep) -> TimeStep:
        for transformer in self._in_order:
            time_steps = transformer.transform_unroll(time_steps)
        return time_steps

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        for transformer in self._in_order:
            rewards = transformer.transform_rewards(rewards)
        return rewards

    def change_unscaled(
        self, change: Callable[[Nest], Nest], observation: Nest
    ) -> Nest:
        for transformer in self._in_order:
            change = functools.partial(transformer.change_unscaled, change)
        return change(observation)

    def observe(self, time_steps: TimeStep) -> None:
        """Every transformer observes the steps as those before it returned them.

        What is passed on was made with the statistics of the unroll, like its inputs.
        """
        num_observing = max(
            (i + 1 for i, t in enumerate(self._in_order) if t.has_statistics), default=0
        )
        for transformer in self._in_order[:num_observing]:
            inputs = time_steps
            time_steps = transformer.transform_unroll(inputs)
            transformer.observe(inputs)

    def training_state_dict(self) -> dict[str, Any]:
        return {str(i): t.training_state_dict() for i, t in enumerate(self._in_order)}

    def load_training_state_dict(self, state_dict: dict[str, Any]) -> None:
        for i, transformer in enumerate(self._in_order):
            transformer.load_training_state_dict(state_dict[str(i)])


def _check_order(transformers: Sequence[DataTransformer]) -> None:
    for earlier, later in itertools.pairwise(transformers):
        if later.stage < earlier.stage:
            raise ConfigError(
                f"{type(later).__name__} ({later.stage.name}) must come before "
                f"{type(earlier).__name__} ({earlier.stage.name}). The order is "
                f"{', '.join(stage.name for stage in type(later.stage))}."
            )


def create_data_transformer(
    data_transformer_ctor: (
        Callable[..., DataTransformer] | Sequence[Callable[..., DataTransformer]] | None
    ),
    observation_spec: NestedTensorSpec,
    reward_spec: TensorSpec = TensorSpec(()),
    *,
    training_env: Environment | None = None,
) -> DataTransformer:
    """The transformer for the observations and rewards of an environment.

    Args:
        data_transformer_ctor: one class, several that are applied in their order, or
            None to change nothing.
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        training_env: where the steps to train on come from; None to act only.

    Raises:
        ConfigError: if a transformer cannot handle the specs or the environment, or
            their order is wrong.
    """
    ctor = data_transformer_ctor
    transformer: DataTransformer
    if ctor is None:
        transformer = IdentityDataTransformer(observation_spec, reward_spec)
    elif isinstance(ctor, Sequence) and not isinstance(ctor, str):
        transformer = SequentialDataTransformer(
            observation_spec, reward_spec, data_transformer_ctors=ctor
        )
    else:
        transformer = build_data_transformer(ctor, observation_spec, reward_spec)
    if training_env is not None:
        transformer.set_environment(training_env)
    return transformer
