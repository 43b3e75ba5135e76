"""The functions and classes that gin knows, and the decorator that tells it of them.

``configurable`` is gin's own with its traps closed.
"""

from __future__ import annotations

import functools

# gin uses importlib.util without importing it and then fails on a missing file.
import importlib.util  # noqa: F401
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import gin
from gin import config as gin_config

from alf_lite.config import values
from alf_lite.errors import did_you_mean

_Target = TypeVar("_Target", bound=Callable[..., Any])

# What was registered because a conf refers to it by its complete name.
_imported: dict[str, Callable[..., Any]] = {}

# Attribute of a constructor that stands in for another: that one.
_WRITTEN = "_alf_lite_written"


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


def count() -> int:
    """How many are registered."""
    return len(gin_config._REGISTRY)


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


def bindable_names(selector: str) -> list[str]:
    """The parameters that a conf may bind, as far as Python knows them."""
    registered = gin_config._REGISTRY.get(selector)
    if registered is None:
        return []
    return parameter_names(registered.wrapped) or []


def annotation(function_or_class: Any, parameter: str) -> Any:
    """The type of a parameter; ``inspect.Parameter.empty`` where it is not known.

    It is that of the constructor which has written the parameter down, and means what
    it means in the module of that one.
    """
    for function in _written_functions(function_or_class):
        found = inspect.signature(function).parameters.get(parameter)
        if found is not None and found.kind not in (
            found.VAR_POSITIONAL,
            found.VAR_KEYWORD,
        ):
            return _resolved(function, parameter)
    return inspect.Parameter.empty


def _written_functions(function_or_class: Any) -> Iterator[Callable[..., Any]]:
    """The functions as in the source; of a class its constructors, from it upwards."""
    if not inspect.isclass(function_or_class):
        yield _as_written(function_or_class)
        return
    for base in function_or_class.__mro__[:-1]:
        for name in ("__init__", "__new__"):
            if name in base.__dict__:
                yield _as_written(getattr(base, name))


def _as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    function = inspect.unwrap(function)
    while hasattr(function, _WRITTEN):
        function = inspect.unwrap(getattr(function, _WRITTEN))
    return function


def _resolved(function: Any, parameter: str) -> Any:
    annotations = getattr(function, "__annotations__", {})
    if parameter not in annotations:
        return inspect.Parameter.empty

    def only_this() -> None: ...

    only_this.__annotations__ = {parameter: annotations[parameter]}
    try:
        known = function.__globals__
        return typing.get_type_hints(only_this, known, include_extras=True)[parameter]
    except Exception:  # a name that is imported for type checkers only
        return inspect.Parameter.empty


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


# Registering them


@overload
def configurable(name: _Target) -> _Target: ...


@overload
def configurable(
    name: str | None = None,
    module: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[_Target], _Target]: ...


def configurable(
    name: Any = None,
    module: str | None = None,
    defaults: Mapping[str, Any] | None = None,
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
        defaults: of inherited parameters, where those of the class differ; it needs no
            constructor of its own for that. What is bound for the base class does not
            change them.

    Raises:
        TypeError: if the signature takes ``**kwargs`` that no base class explains, or
            a default belongs to none of the inherited parameters.
        ValueError: if something else is registered under this name.
    """
    if callable(name):
        return _register(name, None, module, {})
    return lambda target: _register(target, name, module, defaults or {})


def _register(
    decorated: Any,
    name: str | None,
    module: str | None,
    defaults: Mapping[str, Any],
) -> Any:
    _inherit_parameters(decorated, defaults)
    _refuse_any_keyword(decorated)
    name = name or decorated.__name__
    if module is None and "." not in name:
        module = decorated.__module__
    selector = f"{module}.{name}" if module else name
    earlier = target(selector)
    if earlier is not None and earlier is not decorated:
        if _identity(earlier) != _identity(decorated):
            raise ValueError(
                f"{'.'.join(_identity(decorated))}: the configurable {selector!r} "
                f"exists already ({'.'.join(_identity(earlier))}). Give one of them "
                f"another name: @configurable('NAME')."
            )
        forget(selector)
    with gin.unlock_config():
        registered = gin.configurable(name, module=module)(decorated)
    if inspect.isclass(registered):
        _leave_defaults_to(construction_function(registered))
    return registered


def _inherit_parameters(target: Any, defaults: Mapping[str, Any]) -> None:
    """Replaces ``**kwargs`` of the constructor of ``target`` by what they stand for.

    Args:
        target: a class or a function.
        defaults: of parameters of the base class, where they are others here.
    """
    constructor = vars(target).get("__init__") if inspect.isclass(target) else None
    if constructor is None and defaults:
        constructor = _constructor_of_base(target)
    if constructor is None:
        return
    own = inspect.signature(constructor).parameters
    base = inspect.signature(super(target, target).__init__).parameters
    kinds = {parameter.kind for parameter in base.values()}
    if (
        inspect.Parameter.VAR_KEYWORD not in {p.kind for p in own.values()}
        or inspect.Parameter.VAR_KEYWORD in kinds
    ):
        return
    parameters = _in_place_of_args(own, base)
    inherited = [
        p.replace(default=defaults.get(p.name, p.default))
        for p in base.values()
        if p.kind is p.KEYWORD_ONLY and p.name not in own
    ]
    known = [p.name for p in base.values() if p.name not in own]
    _refuse_other_defaults(target, defaults, known)
    complete = inspect.Signature([*parameters, *inherited])
    construct = _constructor_with(target, constructor, complete, defaults)
    _leave_defaults_to(construct, [p.name for p in inherited if p.name not in defaults])
    target.__init__ = construct


def _in_place_of_args(
    own: Mapping[str, inspect.Parameter], base: Mapping[str, inspect.Parameter]
) -> list[inspect.Parameter]:
    """A constructor's own parameters, with those of its base in place of ``*args``."""
    found: list[inspect.Parameter] = []
    for parameter in own.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            found += [
                p
                for p in base.values()
                if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in own
            ]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            found.append(parameter)
    return found


def _constructor_with(
    target: Any,
    constructor: Callable[..., None],
    complete: inspect.Signature,
    defaults: Mapping[str, Any],
) -> Callable[..., None]:
    """``constructor``, which takes and describes the parameters of ``complete``."""
    names = list(complete.parameters)[1:]

    @functools.wraps(constructor)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in names:  # in Python's words, of which config.errors has more
                called = f"{target.__name__}.__init__()"
                raise TypeError(f"{called} got an unexpected keyword argument {name!r}")
        try:
            constructor(self, *args, **{**defaults, **kwargs})
        except TypeError as error:
            _explain_wrong_type(self, kwargs, error)
            raise

    # gin would look through it and find **kwargs.
    del construct.__wrapped__
    setattr(construct, _WRITTEN, constructor)
    construct.__signature__ = complete  # type: ignore[attr-defined]
    construct.__doc__ = _complete_docstring(target, constructor.__doc__, complete)
    return construct


_ARGUMENTS = re.compile(r"^Args:\n((?: .*\n?|\n)*)", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n     .+)*)", re.MULTILINE)


def _complete_docstring(
    target: type, own: str | None, signature: inspect.Signature
) -> str:
    """That of a constructor, with all parameters that it takes and their defaults."""
    described: dict[str, str] = {}
    for base in reversed(target.__mro__):
        constructor = _as_written(vars(base).get("__init__", base))
        for text in (base.__doc__, constructor.__doc__):
            for block in _ARGUMENTS.findall(inspect.cleandoc(text or "")):
                described |= _ARGUMENT.findall(block)
    lines = ["Args:"]
    for name, parameter in list(signature.parameters.items())[1:]:
        line, default = f"    {name}: {described.get(name, '')}", parameter.default
        if default is not parameter.empty and not (default is None and "None" in line):
            line += f" Default: {getattr(default, '__name__', repr(default))}."
        lines.append(line)
    arguments = "\n".join(lines)
    text = inspect.cleandoc(own or f"Builds a {target.__name__}.")
    if not _ARGUMENTS.search(text):
        return f"{text}\n\n{arguments}"
    return _ARGUMENTS.sub(lambda _: f"{arguments}\n\n", text)


def _constructor_of_base(target: Any) -> Callable[..., None]:
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        super(target, self).__init__(*args, **kwargs)

    construct.__name__, construct.__module__ = "__init__", target.__module__
    construct.__qualname__ = f"{target.__qualname__}.__init__"
    return construct


def _refuse_other_defaults(
    target: Any, defaults: Mapping[str, Any], known: Sequence[str]
) -> None:
    for name in defaults:
        if name not in known:
            raise TypeError(
                f"{target.__qualname__}: a default is given for {name!r}, which is no "
                f"parameter that it inherits.{did_you_mean(name, known)}"
            )


def _explain_wrong_type(built: Any, given: Mapping[str, Any], error: TypeError) -> None:
    """Says which argument it is, where one is of another type than it should be."""
    cls = type(built)
    for name, value in given.items():
        expected = annotation(cls, name)
        if expected is not inspect.Parameter.empty and not values.fits(value, expected):
            error.args = (
                f"{cls.__name__}.{name}: expected {values.describe(expected)}, got "
                f"{values.shorten(value)}",
            )
            return


def _identity(target: Any) -> tuple[str, str]:
    return target.__module__, target.__qualname__


def _refuse_any_keyword(target: Any) -> None:
    for parameter in parameters(target) or []:
        if parameter.kind is parameter.VAR_KEYWORD:
            raise TypeError(
                f"{target.__module__}.{target.__qualname__} takes "
                f"**{parameter.name}, so a misspelt parameter in a conf would be "
                "accepted silently. Name the parameters of a configurable one by one, "
                "or derive it from a class that does."
            )


class _OtherDefault:
    """Stands for a default that another constructor decides on.

    No literal, so that gin does not write it down as a value that was used.
    """


def _leave_defaults_to(
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
