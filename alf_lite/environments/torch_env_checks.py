"""What a batch of environments in torch must keep to, looked at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import EnvironmentWithSpecs
from alf_lite.errors import EnvError
from alf_lite.tensor_specs import TensorSpec

Nest = Any


def named(values: Nest, name: str) -> list[tuple[Tensor, str]]:
    """The leaves of a nest, with what they are called in messages."""
    return [
        (leaf, name + path.removeprefix("<root>"))
        for path, leaf in nest.flatten_with_path(values)
    ]


def check_declared(
    env: EnvironmentWithSpecs, device: torch.device, physics: Nest, time_step: TimeStep
) -> None:
    """Raises EnvError, if states or observations are not what they must be."""
    for leaf, path in named(physics, "the state"):
        _check_leaf(env, device, path, leaf, None)
    try:
        nest.assert_same_structure(env.observation_spec, time_step.observation)
    except ValueError as error:
        raise EnvError(f"{env.name}.observe(): {error}") from error
    specs = nest.flatten(env.observation_spec)
    for (leaf, path), spec in zip(
        named(time_step.observation, "observation"), specs, strict=True
    ):
        _check_leaf(env, device, path, leaf, spec)


def _check_leaf(
    env: EnvironmentWithSpecs,
    device: torch.device,
    path: str,
    leaf: Any,
    spec: TensorSpec | None,
) -> None:
    if not isinstance(leaf, Tensor):
        raise EnvError(f"{env.name}: {path} is a {type(leaf).__name__}, not a tensor")
    shape = (env.batch_size, *leaf.shape[1:])
    if spec is not None:
        shape = (env.batch_size, *spec.shape)
        if leaf.dtype != spec.dtype:
            raise EnvError(f"{env.name}: {path} is {leaf.dtype}, not {spec.dtype}")
    if leaf.shape != shape:
        raise EnvError(
            f"{env.name}: {path} has the shape {tuple(leaf.shape)}, expected {shape}"
        )
    if leaf.device != device:
        raise EnvError(
            f"{env.name}: {path} is on {leaf.device}, the environment on {device}"
        )


def check_transition(
    env: EnvironmentWithSpecs,
    before: Nest,
    physics: Nest,
    terminated: Tensor,
    time_step: TimeStep,
) -> None:
    """Of the first step, whose state must be like the one before, and its reward."""
    for what, leaf in (
        ("reward", time_step.reward),
        ("terminated", terminated),
    ):
        if leaf.shape != (env.batch_size,):
            raise EnvError(
                f"{env.name}.transition(): the {what} has the shape "
                f"{tuple(leaf.shape)}, expected {(env.batch_size,)}"
            )
    for (old, path), (new, _) in zip(
        named(before, "the state"),
        named(physics, "the state"),
        strict=True,
    ):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise EnvError(
                f"{env.name}.transition(): {path} was {tuple(old.shape)} {old.dtype} "
                f"and has become {tuple(new.shape)} {new.dtype}"
            )
