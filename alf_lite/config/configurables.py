"""The functions and classes that gin knows: their names and their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

import gin
from gin import config as gin_config

# What was registered because a conf refers to it by its complete name.
_imported: dict[str, Callable[..., Any]] = {}


def names() -> list[str]:
    """Complete names of all configurables, without gin's own."""
    selectors = (selector for selector, _ in gin_config._REGISTRY.items())
    return [selector for selector in selectors if not selector.startswith("gin.")]


def matches(name: str) -> list[str]:
    """Complete names of the configurables that ``name`` may stand for.

    What was imported by its name has no shorter one: another conf, which does not
    import it, may mean something else by that.
    """
    found = gin_config._REGISTRY.matching_selectors(name)
    return sorted(s for s in found if s == name or s not in _imported)


def short_name(selector: str) -> str:
    """The shortest name that stands for this configurable alone."""
    if selector in _imported:
        return selector
    parts = selector.split(".")
    names = (".".join(parts[i:]) for i in reversed(range(len(parts))))
    return next((n for n in names if matches(n) == [selector]), selector)


def imported_by_name(name: str) -> Callable[..., Any] | None:
    """What was registered because a conf refers to it by this name."""
    return _imported.get(name)


def note_imported_by_name(name: str, target: Callable[..., Any]) -> None:
    """Notes that ``target`` was registered because a conf refers to it."""
    _imported[name] = target


def selector_of(function_or_class: Any) -> str | None:
    """The complete name of a configurable, as defined or as gin wrapped it."""
    for name, imported in _imported.items():
        if imported is function_or_class:
            return name
    for selector, registered in gin_config._REGISTRY.items():
        if (
            registered.wrapped is function_or_class
            or registered.wrapper is function_or_class
        ):
            return str(selector)
    return None


def is_understood(name: str, selector: str) -> bool:
    """Whether gin itself takes ``name`` for this configurable."""
    return list(gin_config._REGISTRY.matching_selectors(name)) == [selector]


def target(selector: str) -> Callable[..., Any] | None:
    """The function or class as it was before gin wrapped it; None if unknown."""
    registered = gin_config._REGISTRY.get(selector)
    return None if registered is None else registered.wrapped


def forget(selector: str) -> None:
    """Removes a configurable, so that its name can be registered again."""
    gin_config._REGISTRY.pop(selector)


def construction_function(function_or_class: Any) -> Callable[..., Any]:
    """The function whose parameters are configured: the ``__init__`` of a class."""
    if not inspect.isclass(function_or_class):
        return function_or_class
    for base in function_or_class.__mro__:
        for name in ("__init__", "__new__"):
            if name in base.__dict__:
                return getattr(base, name)
    raise AssertionError(f"{function_or_class} does not derive from object")


class _OtherDefault:
    """Stands for a default that another constructor decides on.

    No literal, so that gin does not write it down as a value that was used.
    """


def leave_defaults_to(
    constructor: Callable[..., Any], names: Collection[str] | None = None
) -> None:
    """Lets gin note no defaults of a constructor when it is that of a subclass.

    The constructor of the base class takes part in every call and notes them itself.
    Noted for the subclass, they would replace what is bound for the base class when
    the operative config is read.

    Args:
        constructor: calls that of a base class, or is inherited from one.
        names: of the parameters that are left to others; None: all.
    """

    def other(name: str, default: Any) -> Any:
        if default is gin.REQUIRED or not (names is None or name in names):
            return default
        return _OtherDefault()

    spec = inspect.getfullargspec(constructor)
    defaults = spec.defaults or ()
    with_default = spec.args[len(spec.args) - len(defaults) :]
    gin_config._ARG_SPEC_CACHE[constructor] = spec._replace(
        defaults=tuple(map(other, with_default, defaults)),
        kwonlydefaults={
            name: other(name, default)
            for name, default in (spec.kwonlydefaults or {}).items()
        },
    )


def parameters(function_or_class: Any) -> list[inspect.Parameter] | None:
    """The parameters that a caller can give, None where Python does not know them.

    ``self`` is left out. A class without constructor has none.
    """
    function = construction_function(function_or_class)
    if inspect.unwrap(function) in (object.__init__, object.__new__):
        return []
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return None
    return found[1:] if inspect.isclass(function_or_class) else found


def parameter_names(function_or_class: Any) -> list[str] | None:
    """Names that may be bound; None if every name is accepted."""
    found = parameters(function_or_class)
    if found is None or any(p.kind is p.VAR_KEYWORD for p in found):
        return None
    return [
        p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


def bases_with_parameter(function_or_class: Any, parameter: str) -> list[str]:
    """Short names of the configurable base classes that take ``parameter``."""
    if not inspect.isclass(function_or_class):
        return []
    registered = {target(name): name for name in names()}
    return [
        short_name(registered[base])
        for base in function_or_class.__mro__[1:]
        if base in registered and parameter in (parameter_names(base) or [])
    ]
