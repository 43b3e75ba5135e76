"""What is bound in gin, and what of it calls have used.

gin has no public way to list these, yet every helpful message needs them. All use of
gin's private tables is here and in ``configurables``; gin-config has not changed them
since 2021.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gin
from gin import config as gin_config

from alf_lite.config import configurables

MACRO = "gin.macro"
CONSTANT = "gin.constant"
SINGLETON = "gin.singleton"
_EVALUATION = "evaluation"

# (active scope, selector, parameter) → whether it has made a difference in any call
_has_effect: dict[tuple[str, str, str], bool] = {}


class BindingKey(NamedTuple):
    """What a line of a conf binds."""

    scope: str  # "" outside of any scope, "a/b" for nested ones
    selector: str  # complete name of the configurable, "module.Name"
    parameter: str

    def __str__(self) -> str:
        if self.selector == MACRO:
            return self.scope
        scope = f"{self.scope}/" if self.scope else ""
        return f"{scope}{configurables.short_name(self.selector)}.{self.parameter}"


@dataclass(frozen=True)
class Binding:
    """One binding of a conf or of the command line."""

    key: BindingKey
    value: Any  # may hold gin's references
    where: str  # "file:line" or "--gin_param"
    source: str  # as written

    @property
    def short_source(self) -> str:
        """In one line."""
        return " ".join(self.source.split())[:100]

    def __str__(self) -> str:
        return f"{self.where}: {self.short_source}"


def operative_text() -> str:
    """What calls used so far, as gin writes it, in names that can be read anywhere."""
    with gin_config._OPERATIVE_CONFIG_LOCK:
        used = repr(gin_config._OPERATIVE_CONFIG)
    return _operative_text(used, len(gin_config._IMPORTS), configurables.count())


@functools.lru_cache(maxsize=1)
def _operative_text(used: str, num_imports: int, num_known: int) -> str:
    """The same while nothing else is used or known: gin needs milliseconds for it."""
    registry = gin_config._REGISTRY
    registry.minimal_selector = configurables.short_name
    try:
        return gin.operative_config_str()
    finally:
        del registry.minimal_selector


def bound() -> dict[BindingKey, Any]:
    """Everything that is bound now, from confs and from Python."""
    return {
        BindingKey(scope, selector, parameter): value
        for (scope, selector), values in gin_config._CONFIG.items()
        for parameter, value in values.items()
    }


def statement(key: BindingKey, value: Any) -> str:
    """The line of a conf that binds ``value``; a comment if no conf can hold it."""
    if is_literal(value):
        return f"{key} = {value!r}"
    return f"# {key} = {value!r} cannot be written in a conf"


def is_literal(value: Any) -> bool:
    """Whether a conf can hold the value as it is."""
    return bool(gin_config._is_literally_representable(value))


def references(value: Any) -> list[gin_config.ConfigurableReference]:
    """All references in a value, however deep: @name, @name(), %MACRO, %CONSTANT."""
    return list(gin_config.iterate_references(value))


def macros_in(value: Any) -> list[str]:
    """Names of the macros that ``value`` refers to."""
    return [
        "/".join(reference.scopes)
        for reference in references(value)
        if reference.configurable.selector == MACRO
    ]


def unbind(key: BindingKey) -> None:
    """Forgets what is bound under a key."""
    del gin_config._CONFIG[key.scope, key.selector][key.parameter]


def macro_names() -> list[str]:
    """The macros that are defined now."""
    macros = [scope for scope, selector in gin_config._CONFIG if selector == MACRO]
    return [name for name in macros if is_macro(name)]


def is_macro(name: str) -> bool:
    """Whether a macro of this name is defined now."""
    return bool(gin_config._CONFIG.get((name, MACRO)))


def macro_value(name: str) -> Any:
    """What a macro stands for; None if it is not defined."""
    return gin_config._CONFIG.get((name, MACRO), {}).get("value")


def modules_of(bindings: Mapping[BindingKey, Any]) -> set[str]:
    """The modules that define the configurables which ``bindings`` speak of."""
    selectors = {key.selector for key in bindings}
    for value in bindings.values():
        selectors |= {r.configurable.selector for r in references(value)}
    modules = {
        getattr(configurables.target(selector), "__module__", "")
        for selector in selectors
    }
    return {m for m in modules if m in sys.modules} - {"__main__", gin_config.__name__}


def note_used(configurable: Any, values: Mapping[str, Any]) -> None:
    """Has the operative config say what became of parameters that were not given.

    To be called by the configurable itself, or in the scope in which it was called.
    """
    selector = configurables.selector_of(configurable)
    with gin_config._OPERATIVE_CONFIG_LOCK:
        used = gin_config._OPERATIVE_CONFIG.get((gin.current_scope_str(), selector), {})
        used.update(values)


def note_effect(configurable: Any, **has_effect: bool) -> None:
    """Has a call say whether parameters make a difference in what it builds.

    One binding may serve several calls, and is unused where it makes none in any. To be
    called as :func:`note_used`.
    """
    selector, scope = configurables.selector_of(configurable), gin.current_scope_str()
    assert selector is not None, configurable
    for name, has in has_effect.items():
        key = scope, selector, name
        _has_effect[key] = has or _has_effect.get(key, False)


def call_with_defaults(
    configurable: Any, defaults: Mapping[str, Any], scope: str = ""
) -> Any:
    """Calls a configurable with defaults that are not its own; bindings beat them.

    Args:
        configurable: a function or class.
        defaults: by parameter.
        scope: for a call beside others with other defaults, which the operative config
            could not tell from it.
    """
    if scope:
        with gin.config_scope(scope):
            return call_with_defaults(configurable, defaults)
    selector, scope = configurables.selector_of(configurable), gin.current_scope_str()
    assert selector is not None, configurable
    given = {
        name: value
        for name, value in defaults.items()
        if _key_in_force(scope, selector, name) is None
    }
    result = configurable(**given)
    with gin_config._OPERATIVE_CONFIG_LOCK:
        gin_config._OPERATIVE_CONFIG[scope, selector].update(given)
    return result


def bound_value(configurable: Any, parameter: str, default: Any = None) -> Any:
    """What a call would take from the bindings now; ``default`` if from nowhere."""
    selector = configurables.selector_of(configurable)
    if selector is None:
        return default
    key = _key_in_force(gin.current_scope_str(), selector, parameter)
    # By which gin resolves references.
    return default if key is None else copy.deepcopy(bound()[key])


def value_in_force(cls: Any, parameter: str) -> Any:
    """What a class would be built with: bound for it or for a base, or its default.

    None if it has no such parameter. A base is not asked that has another default.
    """
    default: Any = inspect.Parameter.empty
    for one in getattr(cls, "__mro__", ()):
        known = {p.name: p.default for p in configurables.parameters(one) or ()}
        is_same = default in (inspect.Parameter.empty, known.get(parameter))
        if parameter not in known or not is_same:
            break
        default = known[parameter]
        value = bound_value(one, parameter)
        if value is not None:
            return value
    return None if default is inspect.Parameter.empty else default


def why_unused(key: BindingKey) -> str | None:
    """Why no call has read this binding so far; None if one has.

    An argument that the caller passes beats the binding, so does the same parameter
    bound in a deeper scope.
    """
    calls = [
        (scope, values)
        for (scope, selector), values in gin_config._OPERATIVE_CONFIG.items()
        if selector == key.selector and _is_prefix(key.scope, scope)
    ]
    if not calls:
        if key.selector == MACRO:
            return "the macro is never referred to"
        where = f" in scope {key.scope!r}" if key.scope else ""
        return f"{configurables.short_name(key.selector)} was not called{where}"
    calls = [(scope, values) for scope, values in calls if key.parameter in values]
    if not calls:
        return "every caller passed its own value"
    if all(_is_shadowed(key, scope) for scope, _ in calls):
        return "bindings of deeper scopes replaced it"
    if not any(_has_effect.get((scope, *key[1:]), True) for scope, _ in calls):
        return "nothing that was built has a use for it"
    return None


def _is_prefix(scope: str, active: str) -> bool:
    parts = scope.split("/") if scope else []
    return active.split("/")[: len(parts)] == parts


def _is_shadowed(key: BindingKey, active: str) -> bool:
    return any(
        len(other.scope) > len(key.scope)
        and other[1:] == key[1:]
        and _is_prefix(other.scope, active)
        for other in bound()
    )


def export_use() -> dict[tuple[str, str], dict[str, Any]]:
    """What calls of this process used, to be imported by the process that started it.

    In place of a value that only a conf can express there are three dots, which no conf
    can: every process looks up its own.
    """
    return {
        call: {n: v if _is_plain(v) else ... for n, v in values.items()}
        for call, values in gin_config._OPERATIVE_CONFIG.items()
    }


def import_use(exported: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Counts what another process with the same bindings used as used by this one."""
    for (scope, selector), values in exported.items():
        if configurables.target(selector) is None:  # known in the other process only
            continue
        found = {
            name: _binding_in_force(scope, selector, name) if value is ... else value
            for name, value in values.items()
        }
        with gin_config._OPERATIVE_CONFIG_LOCK:
            gin_config._OPERATIVE_CONFIG.setdefault((scope, selector), {}).update(found)


def evaluation_scope() -> contextlib.AbstractContextManager[Any]:
    """In which environments of evaluations are built, if a conf binds anything there.

    ``evaluation/create_environment.wrappers = []``
    """
    is_used = any(
        key.scope.split("/")[0] == _EVALUATION and key.selector != MACRO
        for key in bound()
    )
    return gin.config_scope(_EVALUATION) if is_used else contextlib.nullcontext()


def _is_plain(value: Any) -> bool:
    return is_literal(value) and not references(value)


def _binding_in_force(scope: str, selector: str, parameter: str) -> Any:
    """What a call in ``scope`` takes from the bindings; None if from nowhere."""
    key = _key_in_force(scope, selector, parameter)
    return None if key is None else bound()[key]


def _key_in_force(scope: str, selector: str, parameter: str) -> BindingKey | None:
    keys = [
        key
        for key in bound()
        if key[1:] == (selector, parameter) and _is_prefix(key.scope, scope)
    ]
    return max(keys, key=lambda key: len(key.scope)) if keys else None


def save_state() -> tuple[Any, ...]:
    """Bindings and recorded use, for :func:`restore_state`."""
    with gin_config._OPERATIVE_CONFIG_LOCK:
        return (
            gin.config_is_locked(),
            *(copy.copy(table) for table in _tables()),
        )


def restore_state(state: tuple[Any, ...]) -> None:
    """Puts back what :func:`save_state` returned."""
    is_locked, *tables = state
    gin.clear_config()
    with gin_config._OPERATIVE_CONFIG_LOCK:
        for table, saved in zip(_tables(), tables, strict=True):
            table.clear()
            table.update(saved)
    gin_config._set_config_is_locked(is_locked)


def _tables() -> list[Any]:
    return [
        gin_config._CONFIG,
        gin_config._OPERATIVE_CONFIG,
        gin_config._SINGLETONS,
        gin_config._IMPORTS,
        _has_effect,
    ]


def clear() -> None:
    """Forgets every binding, singleton and recorded use; configurables stay."""
    gin.clear_config()
    _has_effect.clear()
