"""The ``configurable`` decorator: gin's, with its traps closed."""

from __future__ import annotations

import enum
import functools

# gin uses importlib.util without importing it and then fails on a missing file.
import importlib.util  # noqa: F401
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import gin

from alf_lite.config import configurables
from alf_lite.config.errors import did_you_mean

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

    1. ``**kwargs`` of a constructor stands for the keyword-only parameters of the base
       class, and ``*args`` for the others, to which it must pass them on: they can be
       bound, are listed by ``inspect``, and a misspelt one is an error. What is bound
       for the base class serves the subclass, too, unless that passes a value of its
       own. Anything else with ``**kwargs`` is refused: gin would accept every misspelt
       name.
    2. A class or function that is defined again (a notebook cell, a reloaded module)
       replaces the earlier one; another one of the same name is still an error.
    3. It may be used after the config was locked, so that modules can be imported late.

    A class keeps its identity: only its ``__init__`` is replaced. A call costs 5 µs, so
    never decorate what runs once per environment step.

    Args:
        name: in confs; the name of the function or class by default.
        module: put before the name where two configurables share it.
        allowlist: the only parameters that may be bound.
        denylist: the parameters that may not be bound; an inherited one is no parameter
            of the class at all.

    Raises:
        TypeError: if the signature takes ``**kwargs`` that no base class explains.
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
    signature = _inherit_parameters(target, denylist or ())
    if signature is not None and denylist is not None:
        denylist = [n for n in denylist if n in signature.parameters]
    _refuse_any_keyword(target)
    name = name or target.__name__
    if module is None and "." not in name:
        module = target.__module__
    selector = f"{module}.{name}" if module else name
    earlier = configurables.target(selector)
    if earlier is not None and earlier is not target:
        if _identity(earlier) != _identity(target):
            raise ValueError(
                f"{'.'.join(_identity(target))}: the configurable {selector!r} exists "
                f"already ({'.'.join(_identity(earlier))}). Give one of them another "
                f"name: @configurable('NAME')."
            )
        configurables.forget(selector)
    with gin.unlock_config():
        registered = gin.configurable(
            name, module=module, allowlist=allowlist, denylist=denylist
        )(target)
    if inspect.isclass(registered):
        configurables.leave_defaults_to(configurables.construction_function(registered))
    return registered


def _inherit_parameters(
    target: Any, withheld: Sequence[str]
) -> inspect.Signature | None:
    """Replaces ``**kwargs`` of the constructor of ``target`` by what they stand for.

    Args:
        target: a class or a function.
        withheld: parameters of the base class that this class does not honour.

    Returns:
        The complete signature, ``self`` included; None if there is nothing to inherit.
    """
    constructor = vars(target).get("__init__") if inspect.isclass(target) else None
    if constructor is None:
        return None
    own = inspect.signature(constructor).parameters
    base = inspect.signature(super(target, target).__init__).parameters
    kinds = {parameter.kind for parameter in base.values()}
    if (
        inspect.Parameter.VAR_KEYWORD not in {p.kind for p in own.values()}
        or inspect.Parameter.VAR_KEYWORD in kinds
    ):
        return None
    parameters: list[inspect.Parameter] = []
    for parameter in own.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            parameters += [
                p
                for p in base.values()
                if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in own
            ]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            parameters.append(parameter)
    inherited = [
        p
        for p in base.values()
        if p.kind is p.KEYWORD_ONLY and p.name not in {*own, *withheld}
    ]
    complete = inspect.Signature([*parameters, *inherited])
    names = [name for name in complete.parameters if name != "self"]

    @functools.wraps(constructor)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in names:
                raise TypeError(_unknown_parameter(type(self).__name__, name, names))
        constructor(self, *args, **kwargs)

    # gin would look through it and find **kwargs.
    del construct.__wrapped__
    construct.__signature__ = complete  # type: ignore[attr-defined]
    configurables.leave_defaults_to(construct, [p.name for p in inherited])
    target.__init__ = construct
    return complete


def _unknown_parameter(cls: str, name: str, known: Sequence[str]) -> str:
    suggestion = did_you_mean(name, known) or f" It has: {', '.join(known)}."
    return f"{cls} has no parameter {name!r}.{suggestion}"


def _identity(target: Any) -> tuple[str, str]:
    return target.__module__, target.__qualname__


def _refuse_any_keyword(target: Any) -> None:
    for parameter in configurables.parameters(target) or []:
        if parameter.kind is parameter.VAR_KEYWORD:
            raise TypeError(
                f"{target.__module__}.{target.__qualname__} takes "
                f"**{parameter.name}, so a misspelt parameter in a conf would be "
                "accepted silently. Name the parameters of a configurable one by one, "
                "or derive it from a class that does."
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
