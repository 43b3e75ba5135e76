"""Symmetries of a task: what is learnt on one side is known on the other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import Experience
from alf_lite.data_transformers.data_transformer import (
    ReplayTransformer,
    TransformStage,
    WindowOrigin,
)
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.nest import leaf_name, path_parts
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec
from alf_lite.utils.tensor_utils import expand_dims_as

Nest = Any
# (observation, action), with any leading dimensions → the same seen in a mirror. The
# environment goes from there, with the same reward, to the mirrored next observation.
Symmetry = Callable[[Nest, Nest], tuple[Nest, Nest]]
# For each element of a vector, or by the name of an entry of a dict
PerElement = Sequence[int] | Mapping[str, Any] | None


@configurable
class Reflection:
    """Swaps elements of vectors and turns their signs: x'[i] = signs[i] · x[order[i]].

    Every setting has a number for each element; of a dict of observations or actions,
    it has such a list for each entry that is mirrored, {"joints": [1, 0]}. What is left
    out stays as it is.

    Args:
        observation_order: a permutation. Of integers: the value that each one becomes.
        observation_signs: 1 or -1.
        action_order: as of observations; [1, 0] has two discrete actions change places.
        action_signs: likewise.
    """

    def __init__(
        self,
        observation_order: PerElement = None,
        observation_signs: PerElement = None,
        action_order: PerElement = None,
        action_signs: PerElement = None,
    ) -> None:
        for order in _leaves((observation_order, action_order)):
            if sorted(order) != list(range(len(order))):
                raise ConfigError(
                    f"Reflection: an order is a permutation of 0 to n-1, got {order}"
                )
        for signs in _leaves((observation_signs, action_signs)):
            if not {*signs} <= {1, -1}:
                raise ConfigError(f"Reflection: signs are 1 or -1, got {signs}")
        self._of_observation = observation_order, observation_signs
        self._of_action = action_order, action_signs

    def __call__(self, observation: Nest, action: Nest) -> tuple[Nest, Nest]:
        """Both in the mirror."""
        return (
            _reflected(observation, *self._of_observation),
            _reflected(action, *self._of_action),
        )


def _leaves(settings: Any) -> list[list[int]]:
    """The lists of numbers in nested settings."""
    if settings is None:
        return []
    if isinstance(settings, Mapping):
        settings = tuple(settings.values())
    if settings and isinstance(settings[0], int | float):
        return [list(settings)]
    return [leaf for part in settings for leaf in _leaves(part)]


def _reflected(value: Nest, order: PerElement, signs: PerElement) -> Nest:
    if isinstance(value, Mapping):
        settings = [_by_name(given, value) for given in (order, signs)]
        return {
            name: _reflected(part, *[given.get(name) for given in settings])
            for name, part in value.items()
        }
    if order is not None:
        index = torch.as_tensor(order, device=value.device)
        is_category = not (value.is_floating_point() or value.dtype == torch.bool)
        value = (
            index[value.long()].to(value.dtype) if is_category else value[..., index]
        )
    if signs is not None:
        factors = torch.as_tensor(signs, device=value.device)
        if value.is_floating_point():  # of others, another dtype is refused
            factors = factors.to(value.dtype)
        value = value * factors
    return value


def _by_name(given: PerElement, value: Mapping[str, Any]) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"Reflection: expected {{name: [...]}} for {sorted(value)}, got {given}"
        )
    for name in given.keys() - value.keys():
        raise ConfigError(
            f"Reflection: there is no {name!r}.{did_you_mean(name, value)} Known are "
            f"{sorted(value)}."
        )
    return given


def check_symmetries(
    symmetries: Sequence[Symmetry],
    observation_spec: NestedTensorSpec,
    action_spec: NestedTensorSpec,
) -> None:
    """Looks at what becomes of the smallest and the largest values.

    Raises:
        ConfigError: if that is of another structure, shape or dtype, or out of bounds;
            or if there is no list of functions.
    """
    if not isinstance(symmetries, Sequence) or not all(map(callable, symmetries)):
        raise ConfigError(
            "symmetries: expected a list of functions, such as [@Reflection()], got "
            f"{symmetries!r}"
        )
    for symmetry in symmetries:
        if isinstance(symmetry, type):
            raise ConfigError(
                f"symmetries: {symmetry.__name__} is a class. In a conf, write "
                f"@{symmetry.__name__}(), with parentheses."
            )
    specs = {"observation": observation_spec, "action": action_spec}
    for symmetry, bound in itertools.product(symmetries, ("minimum", "maximum")):
        _check_symmetry(symmetry, specs, bound)


def _check_symmetry(symmetry: Symmetry, specs: dict[str, Any], bound: str) -> None:
    name = getattr(symmetry, "__name__", type(symmetry).__name__)
    example = nest.map_structure(functools.partial(_bound_of, bound), specs)
    try:
        mirrored = dict(zip(specs, symmetry(*example.values()), strict=True))
        nest.assert_same_structure(specs, mirrored)
    except Exception as error:  # whatever a function of the user raises
        raise ConfigError(
            f"{name} cannot mirror an observation and an action of {specs}: {error}"
        ) from error
    leaves = zip(nest.flatten_with_path(specs), nest.flatten(mirrored), strict=True)
    for (path, spec), leaf in leaves:
        if not _is_of(spec, leaf):
            raise ConfigError(
                f"{name}: the {bound} of {leaf_name('', path)[1:]} is {leaf.tolist()} "
                f"in the mirror, which is not of {spec}"
            )


def _bound_of(bound: str, spec: TensorSpec) -> Tensor:
    if not isinstance(spec, BoundedTensorSpec):
        return spec.zeros((1,))
    return torch.tensor(getattr(spec, bound), dtype=spec.dtype).unsqueeze(0)


def _is_of(spec: TensorSpec, leaf: Tensor) -> bool:
    if (leaf.shape[1:], leaf.dtype) != (spec.shape, spec.dtype):
        return False
    if not isinstance(spec, BoundedTensorSpec):
        return True
    value = leaf[0].numpy()
    return bool(((spec.minimum <= value) & (value <= spec.maximum)).all())


@configurable
class SymmetryTransformer(ReplayTransformer):
    """Shows an off-policy algorithm replayed windows in a mirror, as often as not.

    Each window that is drawn is left as it is or seen in one of the symmetries, all
    with the same probability: observations and actions of all its steps change, rewards
    and discounts do not. An algorithm may store nothing else of its policy: neither the
    states of networks with memory nor, as MuZero does, what a search has found.

    On-policy there is ``PPOAlgorithm.symmetries``.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        symmetries: :class:`Reflection`, or functions ``(observation, action)`` → both
            in the mirror. They see raw observations [B, T, ...].

    Raises:
        ConfigError: if there is no symmetry.
    """

    stage = TransformStage.SYMMETRY

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        symmetries: Sequence[Symmetry],
    ) -> None:
        super().__init__(observation_spec, reward_spec)
        if not symmetries:
            raise ConfigError("SymmetryTransformer.symmetries: give at least one")
        self._symmetries = symmetries

    def set_environment(self, env: Environment) -> None:
        specs = self.observation_spec, env.action_spec
        check_symmetries(self._symmetries, *specs)

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        return rewards

    def transform_experience(
        self, experience: Experience, source: WindowOrigin | None = None
    ) -> Experience:
        _refuse_unseen(experience)
        steps = experience.time_step
        kind = torch.randint(len(self._symmetries) + 1, steps.step_type.shape[:1])
        kind = kind.to(steps.step_type.device)
        before = steps.observation, steps.prev_action, experience.action
        after = before
        for number, symmetry in enumerate(self._symmetries, 1):
            choose = functools.partial(_where, kind == number)
            after = nest.map_structure(choose, _mirrored(symmetry, *before), after)
        observation, prev_action, action = after
        steps = steps._replace(observation=observation, prev_action=prev_action)
        return experience._replace(time_step=steps, action=action)


def _refuse_unseen(experience: Experience) -> None:
    """Raises ConfigError for what is stored and would stay as it was."""
    stored = {"state": experience.state, "rollout_info": experience.rollout_info}
    for path, _ in nest.flatten_with_path(stored):
        if "action" not in path_parts(path):
            raise ConfigError(
                f"SymmetryTransformer: {leaf_name('', path)[1:]}, which is stored of "
                "each step, stays as it was in the mirror. Leave the transformer out; "
                "networks with memory can do without use_rollout_state."
            )


def _mirrored(
    symmetry: Symmetry, observation: Nest, prev_action: Nest, action: Nest
) -> tuple[Nest, Nest, Nest]:
    """All of it in the mirror; no action where none was stored."""
    seen, prev_action = symmetry(observation, prev_action)
    if not nest.is_empty(action):
        _, action = symmetry(observation, action)
    return seen, prev_action, action


def _where(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(expand_dims_as(rows, old), new, old)
