"""The ``configurable`` decorator: gin's, with its traps closed."""

from __future__ import annotations

import enum
import functools

# gin uses importlib.util without importing it and then fails on a missing file.
import importlib.util  # noqa: F401
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import gin

from alf_lite import config_registry

_Target = TypeVar("_Target", bound=Callable[..., Any])
_Enum = TypeVar("_Enum", bound=type[enum.Enum])


@overload
def configurable(name: _Target) -> _Target: ...


@overload
def configurable(
    name: str | None = None,
    module: str | None = None,
    allowlist: Sequence[str] | None = None,
    denylist: Sequence[str] | None = None,
) -> Callable[[_Target], _Target]: ...


def configurable(
    name: Any = None,
    module: str | None = None,
    allowlist: Sequence[str] | None = None,
    denylist: Sequence[str] | None = None,
) -> Any:
    """Lets confs bind the parameters of a function or of a class's constructor.

    Used as ``@configurable`` or ``@configurable("name", ...)``. As ``gin.configurable``
    except that:

    1. A signature with ``**kwargs`` is refused: gin would accept every misspelt name.
    2. A class or function that is defined again (a notebook cell, a reloaded module)
       replaces the earlier one; another one of the same name is still an error.
    3. It may be used after the config was locked, so that modules can be imported late.

    A class keeps its identity: only its ``__init__`` is replaced. A call costs 5 µs, so
    never decorate what runs once per environment step.

    Args:
        name: in confs; the name of the function or class by default.
        module: put before the name where two configurables share it.
        allowlist: the only parameters that may be bound.
        denylist: the parameters that may not be bound.

    Raises:
        TypeError: if the signature takes ``**kwargs``.
        ValueError: if something else is registered under this name.
    """
    if callable(name):
        return _register(name, None, module, allowlist, denylist)
    return lambda target: _register(target, name, module, allowlist, denylist)


def _register(
    target: Any,
    name: str | None,
    module: str | None,
    allowlist: Sequence[str] | None,
    denylist: Sequence[str] | None,
) -> Any:
    _refuse_any_keyword(target)
    name = name or target.__name__
    if module is None and "." not in name:
        module = target.__module__
    selector = f"{module}.{name}" if module else name
    earlier = config_registry.target(selector)
    if earlier is not None and earlier is not target:
        if _identity(earlier) != _identity(target):
            raise ValueError(
                f"{'.'.join(_identity(target))}: the configurable {selector!r} exists "
                f"already ({'.'.join(_identity(earlier))}). Give one of them another "
                f"name: @configurable('NAME')."
            )
        config_registry.forget(selector)
    with gin.unlock_config():
        return gin.configurable(
            name, module=module, allowlist=allowlist, denylist=denylist
        )(target)


def _identity(target: Any) -> tuple[str, str]:
    return target.__module__, target.__qualname__


def _refuse_any_keyword(target: Any) -> None:
    for parameter in config_registry.parameters(target) or []:
        if parameter.kind is parameter.VAR_KEYWORD:
            raise TypeError(
                f"{target.__module__}.{target.__qualname__} takes "
                f"**{parameter.name}, so a misspelt parameter in a conf would be "
                "accepted silently. Name the parameters of a configurable one by one."
            )


def configurable_enum(cls: _Enum) -> _Enum:
    """Makes the members of an enum available to confs as ``%ClassName.MEMBER``.

    gin's own decorator does it by ``str(member)``, which is a number for an IntEnum.
    """
    for member in cls:
        gin.constant(f"{cls.__module__}.{cls.__qualname__}.{member.name}", member)
    return cls


def keep_scope(function: _Target) -> _Target:
    """Makes ``function`` run in the gin scope of now, whichever thread calls it.

    gin's scopes belong to a thread: without this, a thread that is started inside a
    scope builds its objects from the bindings outside of the scope.
    """
    scope = gin.current_scope()

    @functools.wraps(function)
    def in_scope(*args: Any, **kwargs: Any) -> Any:
        with gin.config_scope(scope):
            return function(*args, **kwargs)

    return in_scope  # type: ignore[return-value]
