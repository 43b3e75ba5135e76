"""Builds the data transformers that a configuration names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    IdentityDataTransformer,
    build_data_transformer,
)
from alf_lite.data_transformers.sequential_data_transformer import (
    SequentialDataTransformer,
)
from alf_lite.environments.environment import Environment
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec


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
    transformer = _create(data_transformer_ctor, observation_spec, reward_spec)
    if training_env is not None:
        transformer.set_environment(training_env)
    return transformer


def _create(
    data_transformer_ctor: Any,
    observation_spec: NestedTensorSpec,
    reward_spec: TensorSpec,
) -> DataTransformer:
    if data_transformer_ctor is None:
        return IdentityDataTransformer(observation_spec, reward_spec)
    if isinstance(data_transformer_ctor, Sequence) and not isinstance(
        data_transformer_ctor, str
    ):
        return SequentialDataTransformer(
            observation_spec, reward_spec, data_transformer_ctors=data_transformer_ctor
        )
    return build_data_transformer(data_transformer_ctor, observation_spec, reward_spec)
