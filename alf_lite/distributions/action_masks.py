"""Which actions the observation allows now, and recorded actions under such a mask."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_vectors import DiscreteActions
from alf_lite.distributions.exploration import masked_argmax
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.nest import at_path, leaf_name
from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    NestedTensorSpec,
    TensorSpec,
    is_binary,
)
from alf_lite.utils.checks import check_left_out, check_unused
from alf_lite.utils.tensor_utils import DeviceConstants

Nest = Any


class ActionMaskError(ConfigError):
    """There is no mask that fits the actions where one was expected."""


@configurable
class ActionMask:
    """Takes the mask out of a dict of observations; the rest is for the networks.

    The mask has one entry for every value of every discrete component, one component
    after the other, and rules out a value by 0 or False. A component of a nest of
    actions is one element of one leaf, in the order of the flattened nest; continuous
    elements have no entries. The mask may be one vector, an array [C, A] if all C
    components have A values, or a nest that has such a mask for every discrete leaf of
    the nest of actions.

    At least one value of each component should be left; where none is, as may be in a
    terminal state, the choice does not matter: it is some value of the component, and
    all numbers stay finite.

    Args:
        observation_spec: a dict, if there is a key.
        action_spec: nest of specs, some of them discrete.
        key: of the mask; None: there is none.
        visible_to_networks: leave the mask in the observation, so that the networks
            see it.

    Raises:
        ActionMaskError: if there is no such entry, it has another size, or is not
            binary.
        ConfigError: for ``visible_to_networks`` without a mask.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        key: str | None,
        *,
        visible_to_networks: bool = False,
    ) -> None:
        self._key = key
        self.exists = key is not None  # whether there is a mask at all
        # Entries that the networks do not see
        self.hidden = frozenset([] if key is None or visible_to_networks else [key])
        self.observation_spec = self.remaining_spec = observation_spec
        if key is None:
            check_left_out(
                "there is no action_mask_key",
                visible_to_networks=visible_to_networks or None,
            )
            return
        leaves = nest.flatten_with_path(action_spec)
        self._action_spec = action_spec
        self._is_discrete = [_is_discrete(spec) for _, spec in leaves]
        parts = {
            path: at_path(path, DiscreteActions, spec)
            for path, spec in leaves
            if _is_discrete(spec)
        }
        if not parts:
            raise ActionMaskError(
                f"action mask: no action is discrete: {action_spec}. Leave "
                "action_mask_key out."
            )
        self._leaf_sizes = [part.total_values for part in parts.values()]
        self._actions = DiscreteActions(
            [spec for _, spec in leaves if _is_discrete(spec)]
        )
        mask_spec = _entry(observation_spec, key)
        _check(f"observation[{key!r}]", mask_spec, self._actions, parts)
        self._num_dims = [spec.ndim for spec in nest.flatten(mask_spec)]
        self.remaining_spec = self.remaining(observation_spec)
        if not self.remaining_spec:
            raise ActionMaskError(
                f"action mask: the observation has nothing but {key!r}. Set "
                "ActionMask.visible_to_networks = True, or observe a constant."
            )

    def showing(self, keys: Sequence[str] | None, setting: str) -> Self:
        """The same for networks that see only some entries of what remains.

        Args:
            keys: of the entries; None: all.
            setting: that named them, for messages.

        Raises:
            ConfigError: if there is no such entry.
        """
        if keys is None:
            return self
        spec = self.remaining_spec
        names = list(spec) if isinstance(spec, dict) else []
        wrong = [keys] if isinstance(keys, str) else [k for k in keys if k not in names]
        if wrong or not keys:
            raise ConfigError(
                f"{setting}: expected a list of entries of a dict of observations, "
                f"which has {names or f'none: {spec}'}, got {keys!r}."
                f"{did_you_mean(str(*wrong[:1]), names)} Elements of a vector "
                "are left out by SelectedElements."
            )
        view = copy.copy(self)
        view.hidden = self.hidden | {name for name in names if name not in keys}
        view.remaining_spec = view.remaining(self.observation_spec)
        return view

    @property
    def is_plain(self) -> bool:
        """Whether the networks see all there is, and all actions are allowed."""
        return not (self.exists or self.hidden)

    @property
    def unused(self) -> frozenset[str]:
        """The entries that neither the networks nor the mask are made of."""
        return self.hidden - {self._key}

    def remaining(self, entries: Nest) -> Nest:
        """The observation, or its spec, as the networks see it."""
        if not self.hidden:
            return entries
        return {key: value for key, value in entries.items() if key not in self.hidden}

    def split(self, observation: Nest) -> tuple[Nest, Tensor | None]:
        """Observations [B, ...] → (those for the networks, mask [B, num_values] bool).

        The mask is None if there is no key.
        """
        if self._key is None:
            return self.remaining(observation), None
        leaves = [
            _as_vector(leaf.bool(), num_dims)
            for leaf, num_dims in zip(
                nest.flatten(observation[self._key]), self._num_dims, strict=True
            )
        ]
        mask = leaves[0] if len(leaves) == 1 else torch.cat(leaves, dim=-1)
        return self.remaining(observation), mask

    def apply(self, policy: Nest, mask: Tensor | None) -> Nest:
        """The distributions of a nest of actions, without what is ruled out.

        Args:
            policy: distributions like the action spec, with batch shape [B].
            mask: [B, num_values]; None rules out nothing.
        """
        if mask is None:
            return policy
        sizes = self._leaf_sizes
        rows = iter([mask] if len(sizes) == 1 else mask.split(sizes, dim=-1))
        return distributions.mask(
            policy, [next(rows) if discrete else None for discrete in self._is_discrete]
        )

    def redraw(self, action: Nest, observation: Nest) -> Nest:
        """``action`` with random allowed values for its discrete parts, [B, ...]."""
        allowed = self._allowed(observation)
        if allowed is None:
            return action
        index = masked_argmax(torch.rand_like(allowed, dtype=torch.float32), allowed)
        drawn = iter(self._actions.to_action(index))
        leaves = [
            next(drawn) if discrete else leaf
            for leaf, discrete in zip(
                nest.flatten(action), self._is_discrete, strict=True
            )
        ]
        return nest.pack_sequence_as(self._action_spec, leaves)

    def allows(self, action: Nest, observation: Nest) -> Tensor | None:
        """[B] bool, whether all discrete parts of the action are allowed; None: yes.

        Args:
            action: [B, ...], between its bounds.
            observation: [B, ...], with the mask.
        """
        allowed = self._allowed(observation)
        if allowed is None:
            return None
        leaves = zip(nest.flatten(action), self._is_discrete, strict=True)
        index = self._actions.to_index([leaf for leaf, discrete in leaves if discrete])
        return allowed.gather(-1, index.unsqueeze(-1)).squeeze(-1).all(-1)

    def num_joint_values(self, observation: Nest) -> Tensor | None:
        """[B], how many joint values of all components are allowed; None for all."""
        allowed = self._allowed(observation)
        return None if allowed is None else allowed.sum(-1).prod(-1)

    def allowed_joint_values(self, observation: Nest) -> Tensor | None:
        """[B, product of the sizes] bool, the last component fastest; None for all."""
        allowed = self._allowed(observation)
        if allowed is None:
            return None
        first, *others = (
            allowed[:, component, :size]
            for component, size in enumerate(self._actions.sizes.tolist())
        )
        joint = first
        for own in others:
            joint = (joint.unsqueeze(-1) & own.unsqueeze(-2)).flatten(-2)
        return joint

    def _allowed(self, observation: Nest) -> Tensor | None:
        """[B, C, A] bool."""
        _, mask = self.split(observation)
        return None if mask is None else self._actions.allowed(mask, mask.device)


def _is_discrete(spec: Any) -> bool:
    return isinstance(spec, TensorSpec) and spec.is_discrete


def _entry(observation_spec: NestedTensorSpec, key: str) -> NestedTensorSpec:
    """The spec of the mask."""
    if isinstance(observation_spec, dict) and key in observation_spec:
        return observation_spec[key]
    hint = ""
    if isinstance(observation_spec, dict):
        hint = did_you_mean(key, map(str, observation_spec))
    raise ActionMaskError(
        f"action mask: expected a dict of observations with the key {key!r}, got "
        f"{observation_spec}.{hint}"
    )


def _check(
    name: str,
    spec: NestedTensorSpec,
    actions: DiscreteActions,
    parts: dict[str, DiscreteActions],
) -> None:
    """Checks a mask of all discrete ``actions``, or one that has their ``parts``."""
    if isinstance(spec, TensorSpec):
        _check_leaf(name, spec, actions)
        return
    leaves = nest.flatten_with_path(spec)
    paths = [path for path, _ in leaves]
    if paths != list(parts):
        raise ActionMaskError(
            f"action mask: {name} must be one array or have the entries of the "
            f"discrete actions, {list(parts)}, got {paths}"
        )
    for path, leaf_spec in leaves:
        _check_leaf(leaf_name(name, path), leaf_spec, parts[path])


def _check_leaf(name: str, spec: TensorSpec, actions: DiscreteActions) -> None:
    if not is_binary(spec):
        raise ActionMaskError(
            f"action mask: {name} must be bool, or integers that are 0 or 1 such as "
            f"those of spaces.MultiBinary, got {spec}"
        )
    fits = spec.numel == actions.total_values
    if spec.ndim > 1:
        fits &= actions.is_rectangular and spec.shape[-1] == actions.max_values
    if not fits:
        raise ActionMaskError(
            f"action mask: {name} must have one entry for each of the "
            f"{actions.total_values} values of the action ({actions.sizes.tolist()}), "
            f"got {spec}"
        )


def _as_vector(leaf: Tensor, num_dims: int) -> Tensor:
    """[B, *shape] with ``num_dims`` dimensions of shape → [B, numel]."""
    if num_dims == 1:
        return leaf
    return leaf.unsqueeze(-1) if num_dims == 0 else leaf.flatten(-num_dims)


class RecordedActions:
    """What the regression of a policy on stored actions needs.

    Stored actions may lie where the policy cannot go. Beyond the bounds, environments
    clip, so the bound itself was executed. And on a bound the density of a distribution
    that is squashed is no measure: tanh(u) = ±1 wants u = ±∞. Up to rounding that is
    |u| ≈ 8, so far from all others that a few such actions decide about mean and
    deviation. A small margin brings them close: 0.001 makes it |u| < 4.

    Args:
        action_spec: nest of specs.
        mask: of the actions.
        action_margin: how far from their bounds continuous actions are kept, as a part
            of half of their range; 0 for none.

    Raises:
        ConfigError: if there is a margin, but no continuous action.
        ValueError: if the margin does not lie in [0, 1).
    """

    def __init__(
        self,
        action_spec: NestedTensorSpec,
        mask: ActionMask,
        action_margin: float = 1e-3,
    ) -> None:
        if not 0 <= action_margin < 1:
            raise ValueError(f"action_margin must lie in [0, 1), got {action_margin}")
        specs = nest.flatten(action_spec)
        if not any(spec.is_continuous for spec in specs):
            reason = "no part of the action is continuous"
            check_unused(RecordedActions, reason, action_margin=action_margin)
        self._mask = mask
        self._bounds = [_bounds(spec, action_margin) for spec in specs]

    def clip(self, action: Nest) -> Nest:
        """The same actions [..., *shape] between their bounds, the margin kept.

        Also what stands at a step that ignored its action becomes a possible value.
        """
        leaves = [
            leaf if bounds is None else leaf.clamp(*bounds.on(leaf.device))
            for leaf, bounds in zip(nest.flatten(action), self._bounds, strict=True)
        ]
        return nest.pack_sequence_as(action, leaves)

    def log_prob(self, policy: Nest, action: Nest, observation: Nest) -> Tensor:
        """Log π(a|s) [B]; 0 and without gradient where the mask rules the action out.

        No policy that honours the mask can learn such an action.

        Args:
            policy: distributions like the action spec, π(·|s).
            action: [B, ...], clipped.
            observation: [B, ...], s, with the mask.
        """
        log_prob = distributions.log_prob(policy, action)
        allowed = self._mask.allows(action, observation)
        return log_prob if allowed is None else torch.where(allowed, log_prob, 0.0)


def _bounds(spec: Any, margin: float) -> DeviceConstants | None:
    """Lowest and highest value, of the dtype of the spec."""
    if not isinstance(spec, BoundedTensorSpec) or spec.dtype == torch.bool:
        return None
    low, high = spec.minimum, spec.maximum
    if spec.is_continuous:
        with np.errstate(over="ignore"):
            width = high - low
        inset = margin / 2 * np.where(np.isfinite(width), width, 0)
        low, high = (low + inset).astype(low.dtype), (high - inset).astype(high.dtype)
    return DeviceConstants(low, high)
