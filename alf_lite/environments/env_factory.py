"""Builds single environments, in this process or in another one. Without torch."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from alf_lite.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class EnvFactory:
    """A recipe for one environment; calling it builds a new one.

    Exactly one of ``spec`` and ``ctor`` is given.
    """

    spec: EnvSpec | None = None
    ctor: Callable[..., Any] | None = None
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_episode_steps: int | None = None
    render_mode: str | None = None
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = ()

    def __call__(self) -> gymnasium.Env:
        """Builds the environment.

        Raises:
            ConfigError: if the user's factory does not return a gymnasium environment.
        """
        if self.spec is not None:
            return self.wrap(self._make(self.spec))
        return self.wrap(self.call_ctor())

    def call_ctor(self) -> Any:
        """What the user's own factory returns, drawn as asked for if it can be."""
        assert self.ctor is not None
        if self.render_mode is not None and _accepts(self.ctor, "render_mode"):
            return self.ctor(render_mode=self.render_mode)
        return self.ctor()

    def wrap(self, env: Any) -> gymnasium.Env:
        """``env`` with the time limit (of the user's own environment) and wrappers."""
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                "env_ctor must return a gymnasium.Env (one per call), got "
                f"{type(env).__module__}.{type(env).__qualname__}"
            )
        if self.spec is None and self.max_episode_steps is not None:
            env = gymnasium.wrappers.TimeLimit(env, self.max_episode_steps)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    def _make(self, spec: EnvSpec) -> gymnasium.Env:
        arguments = dict(self.kwargs)
        if self.render_mode is not None:
            arguments["render_mode"] = self.render_mode
        # Our own checks at the border replace gymnasium's, which cost at every step.
        return gymnasium.make(
            spec,
            max_episode_steps=self.max_episode_steps,
            disable_env_checker=True,
            **arguments,
        )


def _accepts(function: Callable[..., Any], parameter: str) -> bool:
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False


class _FromConfig(NamedTuple):
    """Stands for a value that the configuration binds."""

    key: str  # scope/create_environment.parameter


class _Shipped(NamedTuple):
    """What travels to the process that builds the environment."""

    factory: Any
    config_text: str | None
    config_scope: str
    from_config: dict[str, _FromConfig]  # fields of the factory left out


def dump_factory(factory: Callable[[], gymnasium.Env]) -> bytes:
    """``factory`` as bytes for another process of this program.

    Functions and classes travel by name, and a fresh process would run them with their
    defaults. So the configuration travels along wherever the user's own code takes part
    in building the environment. References of gin with a scope have no name that could
    travel: the other process takes them from the configuration.

    Raises:
        ConfigError: if something cannot be sent, saying what to do.
    """
    runs_user_code = not isinstance(factory, EnvFactory) or bool(
        factory.ctor or factory.wrappers
    )
    text, scope = _current_config() if runs_user_code else (None, "")
    try:
        return _dump(_Shipped(factory, text, scope, {}))
    except Exception as error:
        if not (text and isinstance(factory, EnvFactory)):
            raise _cannot_ship(factory, error) from error
        first_error = error
    references = _bound_fields(factory, scope)
    left_out: dict[str, Any] = dict.fromkeys(references)
    named = dataclasses.replace(factory, **left_out)
    try:
        return _dump(_Shipped(named, text, scope, references))
    except Exception:
        raise _cannot_ship(factory, first_error) from first_error


def load_factory(dumped: bytes) -> Callable[[], gymnasium.Env]:
    """The other side of :func:`dump_factory`; reads the configuration that came."""
    shipped: _Shipped = reduction.ForkingPickler.loads(dumped)
    factory, text = shipped.factory, shipped.config_text
    if text is None:
        return factory

    import gin

    from alf_lite import config_files

    if config_files.user_config_text() != text:
        config_files.reset()
        config_files.parse_config_text(text)
    if shipped.from_config:
        values = {
            name: _bound_value(field.key) for name, field in shipped.from_config.items()
        }
        factory = dataclasses.replace(factory, **values)

    def build() -> gymnasium.Env:
        with gin.config_scope(shipped.config_scope or None):
            return factory()

    return build


def export_config_use() -> Any:
    """What the configuration was used for in this process; None if it has none."""
    if "alf_lite.config_files" not in sys.modules:
        return None

    from alf_lite import config_registry

    return config_registry.export_use()


def import_config_use(exported: Any) -> None:
    """Counts what another process used as used, so that no binding seems forgotten."""
    if exported is None:
        return

    from alf_lite import config_registry

    config_registry.import_use(exported)


def needs_main_module(dumped: bytes) -> bool:
    """Whether loading needs a function or class of the program's main module."""
    return b"__main__" in dumped


def _current_config() -> tuple[str | None, str]:
    """The text and the scope of this process's configuration, None if it has none."""
    if "alf_lite.config_files" not in sys.modules:
        return None, ""
    import gin

    from alf_lite import config_files

    return config_files.user_config_text() or None, gin.current_scope_str()


def _bound_fields(factory: EnvFactory, scope: str) -> dict[str, _FromConfig]:
    """The fields of ``factory`` whose value is what the configuration binds."""
    found = {}
    for name, parameter in (("ctor", "env_ctor"), ("wrappers", "wrappers")):
        parts = scope.split("/") if scope else []
        for length in range(len(parts), -1, -1):
            prefix = "".join(f"{part}/" for part in parts[:length])
            field = _FromConfig(f"{prefix}create_environment.{parameter}")
            if _is_same(_bound_value(field.key), getattr(factory, name)):
                found[name] = field
                break
    return found


def _bound_value(key: str) -> Any:
    import gin

    try:
        # A copy replaces gin's references by what they refer to.
        return copy.deepcopy(gin.query_parameter(key))
    except ValueError:  # not bound
        return None


def _is_same(bound: Any, value: Any) -> bool:
    if isinstance(value, Sequence):
        return (
            isinstance(bound, Sequence)
            and len(bound) == len(value)
            and all(map(_is_same, bound, value))
        )
    return bound is value and value is not None


def _cannot_ship(factory: Any, error: Exception) -> ConfigError:
    what = factory.ctor or factory.wrappers if isinstance(factory, EnvFactory) else None
    return ConfigError(
        f"{what or factory} cannot be sent to the processes of asynchronous "
        f"environments: {type(error).__name__}: {error}. Use a function or class "
        "defined at the top level of a module instead of a lambda, a local function or "
        "an object with open resources, or vectorization_mode='sync'."
    )


def _dump(value: Any) -> bytes:
    return bytes(reduction.ForkingPickler.dumps(value))
