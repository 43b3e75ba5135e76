"""What environments with the interface of rsl_rl return, read and checked.

rsl_rl's ``VecEnv``, in its newest form and the one before, and Isaac Lab's wrapper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any

# Where environments put the observation in which an episode ended.
_FINAL = ("final_observation", "terminal_observation", "final_obs")
_NEEDED = ("num_envs", "num_actions", "device", "get_observations", "step")


class RslRlVecEnv(Protocol):
    """The interface. An environment may have ``reset``, ``seed`` and ``close``, too."""

    num_envs: int
    num_actions: int
    device: Any

    def get_observations(self) -> Any: ...

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, dict[str, Any]]: ...


class RslRlStep(NamedTuple):
    """What a step has brought. The tensors may be the environment's own."""

    observation: Nest  # [B, ...], of the next episode where one has ended
    reward: Tensor  # [B] float32
    done: Tensor  # [B] bool
    is_limit: Tensor | None  # [B] bool, ended by a time limit; None: not told
    final: Nest | None  # [B, ...], in which episodes have ended; None: not told
    extras: Mapping[str, Any]


class RslRlReader:
    """Steps an environment and checks what it returns.

    Args:
        env: with the interface above.
        groups: of a mapping of observations, those that are wanted; None: all.
        name: for messages.

    Raises:
        ConfigError: if ``env`` has another interface or observes what is not [B, ...].
    """

    def __init__(
        self, env: RslRlVecEnv, groups: Sequence[str] | None, name: str
    ) -> None:
        _check_interface(env, name)
        self._env = env
        self._groups = None if groups is None else list(groups)
        self._name = name
        self.batch_size = env.num_envs
        self.device = torch.empty(0, device=env.device).device
        self.observation_spec: NestedTensorSpec = None  # of what is observed at first
        try:
            observation = self.observe()
        except EnvError as error:
            raise ConfigError(str(error)) from error
        self.observation_spec = nest.map_structure(_spec_of, observation)

    def observe(self) -> Nest:
        """The current observations."""
        observation = self._select(self._env.get_observations(), {})
        self._check_observation("observation", observation)
        return observation

    def step(self, action: Tensor) -> RslRlStep:
        """Takes a step.

        Raises:
            EnvError: if something is not as it must be; nothing is waited for.
        """
        result = self._env.step(action)
        if not isinstance(result, tuple) or len(result) != 4:
            what = f"{len(result)} parts" if isinstance(result, tuple) else type(result)
            raise EnvError(
                f"{self._name}.step() must return (observations, rewards, dones, "
                f"extras), got {what}"
            )
        observed, reward, dones, extras = result
        if not isinstance(extras, Mapping):
            raise EnvError(f"{self._name}.step(): extras must be a dict: {extras!r}")
        observation = self._select(observed, extras)
        self._check_observation("observation", observation)
        time_outs = extras.get("time_outs")
        is_told = time_outs is not None
        return RslRlStep(
            observation,
            self._row("rewards", reward).float(),
            self._row("dones", dones).bool(),
            self._row("extras['time_outs']", time_outs).bool() if is_told else None,
            self._final(extras),
            extras,
        )

    def info(self, extras: Mapping[str, Any], key: str) -> Tensor:
        """[B] float32, zeros where it is not given.

        Args:
            extras: of a step.
            key: ``"log/speed"`` is the entry ``speed`` of ``log``, or ``/speed``, as
                rsl_rl writes it.
        """
        head, _, rest = key.partition("/")
        value: Any = extras.get(key, extras.get(head))
        if isinstance(value, Mapping):
            value = value.get(rest, value.get(f"/{rest}"))
        if value is None:
            return torch.zeros(self.batch_size, device=self.device)
        tensor = torch.as_tensor(value, dtype=torch.float32, device=self.device)
        if tensor.numel() not in (1, self.batch_size):
            raise EnvError(
                f"{self._name}: extras[{key!r}] has the shape {tuple(tensor.shape)}, "
                f"expected one number or {self.batch_size}"
            )
        return tensor.reshape(-1).expand(self.batch_size).clone()

    def _select(self, observed: Any, extras: Mapping[str, Any]) -> Nest:
        """What agents see, a tensor or a dict of tensors [B, ...]."""
        if isinstance(observed, tuple) and len(observed) == 2:  # of older versions
            observed, extras = observed
        if isinstance(observed, Tensor):
            if self._groups is None:
                return _as_nest(observed)
            observed = {"policy": observed, **extras.get("observations", {})}
        if not hasattr(observed, "keys"):
            raise EnvError(
                f"{self._name}: observations are {type(observed).__name__}, expected a "
                "tensor or a mapping of tensors"
            )
        known = list(map(str, observed.keys()))
        for group in self._groups or ():
            if group not in known:
                raise EnvError(
                    f"{self._name}: observation_groups: there is no {group!r}, the "
                    f"environment has {', '.join(known)}"
                )
        return {key: _as_nest(observed[key]) for key in sorted(self._groups or known)}

    def _final(self, extras: Mapping[str, Any]) -> Nest | None:
        for key in _FINAL:
            if extras.get(key) is not None:
                final = self._select(extras[key], {})
                self._check_observation(f"extras[{key!r}]", final)
                return final
        return None

    def _row(self, what: str, value: Any) -> Tensor:
        """``value`` as [B]."""
        if not isinstance(value, Tensor) or value.numel() != self.batch_size:
            came = tuple(value.shape) if isinstance(value, Tensor) else type(value)
            raise EnvError(
                f"{self._name}: {what} must be a tensor of num_envs = "
                f"{self.batch_size} numbers, got {came}"
            )
        self._check_device(what, value)
        return value.reshape(-1)

    def _check_observation(self, what: str, observation: Nest) -> None:
        specs: list[Any] = []
        if self.observation_spec is not None:
            try:
                nest.assert_same_structure(self.observation_spec, observation)
            except ValueError as error:
                raise EnvError(f"{self._name}: {what}: {error}") from error
            specs = nest.flatten(self.observation_spec)
        for i, (path, leaf) in enumerate(nest.flatten_with_path(observation)):
            where = f"{what}{path.removeprefix('<root>')}"
            if not isinstance(leaf, Tensor):
                raise EnvError(
                    f"{self._name}: {where} is a {type(leaf).__name__}, not a tensor"
                )
            if not leaf.ndim or len(leaf) != self.batch_size:
                raise EnvError(
                    f"{self._name}: {where} has the shape {tuple(leaf.shape)}, but "
                    f"num_envs is {self.batch_size}"
                )
            if specs and (leaf.shape[1:], leaf.dtype) != (
                specs[i].shape,
                specs[i].dtype,
            ):
                raise EnvError(
                    f"{self._name}: {where} was {specs[i]} at first, now it is "
                    f"{leaf.dtype} of shape {tuple(leaf.shape)}"
                )
            self._check_device(where, leaf)

    def _check_device(self, what: str, value: Tensor) -> None:
        if value.device != self.device:
            raise EnvError(
                f"{self._name}: {what} is on {value.device}, but the environment says "
                f"that its device is {self.device}"
            )


def _check_interface(env: Any, name: str) -> None:
    for attribute in _NEEDED:
        if not hasattr(env, attribute):
            raise ConfigError(
                f"RslRlEnvironment: {name} has no {attribute}. Expected num_envs, "
                "num_actions, device, get_observations() and step(actions), as of "
                "rsl_rl's VecEnv. An environment of gymnasium needs no adapter"
            )
    for attribute in ("num_envs", "num_actions"):
        value = getattr(env, attribute)
        if not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"RslRlEnvironment: {name}.{attribute} must be a positive integer, "
                f"got {value!r}"
            )


def _as_nest(values: Any) -> Nest:
    """Mappings within mappings as dicts, double precision as single."""
    if hasattr(values, "keys"):
        return {str(key): _as_nest(values[key]) for key in sorted(values.keys())}
    is_double = isinstance(values, Tensor) and values.dtype == torch.float64
    return values.float() if is_double else values


def _spec_of(leaf: Tensor) -> TensorSpec:
    return TensorSpec(tuple(leaf.shape[1:]), leaf.dtype)
