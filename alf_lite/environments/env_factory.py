"""Recipes of environments, to build them here or in another process.

Without torch, see space_tree.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from alf_lite.config import shipping as config_shipping
from alf_lite.environments import single_env
from alf_lite.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class EnvFactory:
    """A recipe for one environment; calling it builds a new one.

    Exactly one of ``spec`` and ``ctor`` is given.
    """

    spec: EnvSpec | None = None
    ctor: Callable[..., Any] | None = None
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_episode_steps: int | None = None  # 0: no limit; None: that of the spec
    render_mode: str | None = None
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = ()
    env_index: int | None = None  # for a ctor that takes one

    def of_index(self, env_index: int) -> EnvFactory:
        """The recipe for the environment of that number; the same one for most."""
        if self.ctor is None or not _accepts(self.ctor, "env_index"):
            return self
        return dataclasses.replace(self, env_index=env_index)

    @property
    def options(self) -> dict[str, Any]:
        """For what makes a whole batch itself."""
        given = {
            "max_episode_steps": self.max_episode_steps,
            "render_mode": self.render_mode,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return {**self.kwargs, **given}

    def __call__(self) -> gymnasium.Env:
        """Builds the environment.

        Raises:
            ConfigError: if the user's factory does not return a gymnasium environment.
        """
        if self.spec is not None:
            return self.wrap(self._make(self.spec))
        return self.wrap(self.call_ctor())

    def call_ctor(self) -> Any:
        """What the user's own factory returns, given what it has a parameter for."""
        assert self.ctor is not None
        arguments: dict[str, Any] = {}
        if self.render_mode is not None and _accepts(self.ctor, "render_mode"):
            arguments["render_mode"] = self.render_mode
        if self.env_index is not None:
            arguments["env_index"] = self.env_index
        return self.ctor(**arguments)

    def wrap(self, env: Any) -> gymnasium.Env:
        """``env`` with the time limit (of the user's own environment) and wrappers."""
        if not isinstance(env, gymnasium.Env) or single_env.is_batch(env):
            raise ConfigError(
                "env_ctor must return a gymnasium.Env (one per call), got "
                f"{single_env.class_name(env)}"
            )
        if self.spec is None and self.max_episode_steps is not None:
            env = _limited(env, self.max_episode_steps)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    def _make(self, spec: EnvSpec) -> gymnasium.Env:
        arguments = dict(self.kwargs)
        if self.render_mode is not None:
            arguments["render_mode"] = self.render_mode
        # Our own checks at the border replace gymnasium's, which cost at every step.
        return gymnasium.make(
            dataclasses.replace(spec, order_enforce=False),
            # gymnasium writes "no limit" as -1.
            max_episode_steps=-1
            if self.max_episode_steps == 0
            else self.max_episode_steps,
            disable_env_checker=True,
            **arguments,
        )


def _limited(env: gymnasium.Env, limit: int) -> gymnasium.Env:
    """``env`` with this time limit, 0 for none, in place of an outermost one."""
    TimeLimit = gymnasium.wrappers.TimeLimit
    if type(env) is TimeLimit:
        env = env.env
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, TimeLimit) and not 0 < limit <= layer._max_episode_steps:
            raise ConfigError(
                f"create_environment.max_episode_steps = {limit}: the environment of "
                f"env_ctor has a TimeLimit of {layer._max_episode_steps} steps inside "
                "of other wrappers. Take it off there, as by gymnasium.make(..., "
                "max_episode_steps=-1)."
            )
        layer = layer.env
    return TimeLimit(env, limit) if limit else env


def _accepts(function: Callable[..., Any], parameter: str) -> bool:
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False


# Fields of a factory, and the parameters that a conf binds for them.
_BOUND_FIELDS = {
    "ctor": "create_environment.env_ctor",
    "wrappers": "create_environment.wrappers",
}


def dump_factory(factory: Callable[[], gymnasium.Env]) -> bytes:
    """``factory`` as bytes for another process of this program.

    The configuration travels along wherever the user's own code takes part in building
    the environment, see ``config_shipping``.

    Raises:
        ConfigError: if something cannot be sent, saying what to do.
    """
    bound_fields, runs_user_code = None, True
    if isinstance(factory, EnvFactory):
        bound_fields = _BOUND_FIELDS
        runs_user_code = bool(factory.ctor or factory.wrappers)
    try:
        return config_shipping.dump(factory, bound_fields, with_config=runs_user_code)
    except Exception as error:
        raise _cannot_ship(factory, error) from error


def load_factory(dumped: bytes) -> Callable[[], gymnasium.Env]:
    """The other side of :func:`dump_factory`; reads the configuration that came."""
    arrived = config_shipping.load(dumped)
    factory = arrived.value
    if not arrived.has_config:
        return factory

    import gin

    def build() -> gymnasium.Env:
        with gin.config_scope(arrived.config_scope or None):
            return factory()

    return build


def _cannot_ship(factory: Any, error: Exception) -> ConfigError:
    what = factory.ctor or factory.wrappers if isinstance(factory, EnvFactory) else None
    return ConfigError(
        f"{what or factory} cannot be sent to the processes of asynchronous "
        f"environments: {type(error).__name__}: {error}. Use a function or class "
        "defined at the top level of a module instead of a lambda, a local function or "
        "an object with open resources, or vectorization_mode='sync'."
    )
