"""Whether a value fits a type annotation and a range."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import os
import types
import typing
from typing import Any, Literal, Union

# Stands for what is only known once a configurable is called; fits every annotation.
UNKNOWN = object()


@dataclasses.dataclass(frozen=True)
class InstanceOf:
    """Stands for an object that is made later, of which the class is known."""

    cls: type
    reference: str  # as in the conf: "@Name()"


class _Unset:
    def __repr__(self) -> str:
        return "as the algorithm declares"


# The default of a setting that the algorithm declares, see ``declared``.
UNSET: Any = _Unset()

_SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ABSTRACT = {int: numbers.Integral, float: numbers.Real}
_NAMES = {
    int: "an int",
    float: "a number",
    bool: "True or False",
    str: "a string in quotes",
    type(None): "None",
}


def as_number(value: Any) -> Any:
    """Numbers of numpy as Python's; all else as it is."""
    is_one = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_one else value


def as_in_a_conf(value: Any) -> Any:
    """Numbers of numpy as Python's, and paths as strings; all else as it is."""
    value = as_number(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value) in (list, tuple):
        found = [as_in_a_conf(item) for item in value]
        is_same = all(a is b for a, b in zip(found, value, strict=True))
        return value if is_same else type(value)(found)
    return value


def fits(value: Any, annotation: Any) -> bool:
    """Whether ``value`` is what ``annotation`` asks for.

    A bool is not a number, an int is a float, a list is a tuple. Annotations that
    cannot be judged at run time (type variables, protocols, strings) fit everything. An
    object is no constructor of its like, though it may be callable.
    """
    if value is UNKNOWN or annotation in (Any, object):
        return True
    if annotation is None:
        return value is None
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return any(type(a) is type(value) and a == value for a in arguments)
    if origin is typing.Annotated:
        return fits(value, arguments[0])
    if isinstance(value, InstanceOf):
        return _instance_fits(value.cls, origin or annotation, arguments)
    return _fits_class(value, origin or annotation, arguments)


def _instance_fits(cls: type, expected: Any, arguments: tuple[Any, ...]) -> bool:
    if expected is collections.abc.Callable:
        made = _made_by(arguments)
        makes_its_like = made is not None and _is_subclass(cls, made)
        return issubclass(cls, collections.abc.Callable) and not makes_its_like
    return _is_subclass(cls, _ABSTRACT.get(expected, expected))


def _made_by(arguments: tuple[Any, ...]) -> type | None:
    """The class of what a callable of this annotation returns, where it says so."""
    made = arguments[-1] if arguments else Any
    return made if inspect.isclass(made) and made not in (Any, object) else None


def _is_subclass(cls: type, expected: Any) -> bool:
    try:
        return issubclass(cls, expected)
    except TypeError:  # a protocol, or no class
        return True


def _fits_class(value: Any, cls: Any, arguments: tuple[Any, ...]) -> bool:
    if cls is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if cls is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    if cls is collections.abc.Callable:
        return callable(value)
    if cls in _SEQUENCES:
        return isinstance(value, (list, tuple)) and _items_fit(value, arguments)
    if cls in _MAPPINGS:
        return isinstance(value, collections.abc.Mapping) and all(
            fits(key, arguments[0]) and fits(item, arguments[1])
            for key, item in (value.items() if arguments else ())
        )
    if not inspect.isclass(cls):
        return True
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol
        return True


def _items_fit(values: list[Any] | tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    if not arguments:
        return True
    if len(arguments) == 1 or arguments[-1] is Ellipsis:
        return all(fits(value, arguments[0]) for value in values)
    return len(values) == len(arguments) and all(map(fits, values, arguments))


def describe(annotation: Any) -> str:
    """The annotation in words, for "expected …"."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        words = [describe(argument) for argument in arguments]
        commas = [", " in word for word in words[:-1]]  # ends what a list consists of
        ends = ["," * has_comma + " or " for has_comma in commas]
        return "".join(map("".join, zip(words, [*ends, ""], strict=True)))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is typing.Annotated:
        return str(annotation.__metadata__[0])
    cls = origin or annotation
    if cls is collections.abc.Callable:
        made = _made_by(arguments)
        if made is not None and arguments[0] is Ellipsis:
            return f"a constructor of {made.__name__}"
        return "a callable"
    if cls in _SEQUENCES and arguments:
        return f"a list, each item {describe(arguments[0])}"
    return _NAMES.get(cls, getattr(cls, "__name__", str(cls)))


@dataclasses.dataclass(frozen=True)
class Range:
    """The accepted range of a number; every bound is inclusive except ``above``."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def __contains__(self, value: float) -> bool:
        is_finite = isinstance(value, numbers.Integral) or math.isfinite(value)
        return (
            is_finite
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        bounds = ((">=", self.at_least), (">", self.above), ("<=", self.at_most))
        shown = [f"{sign} {bound}" for sign, bound in bounds if bound is not None]
        return " and ".join(shown) or "finite"


def ranged(default: Any, **bounds: float) -> Any:
    """A dataclass field with a :class:`Range`, for :func:`field_problems`."""
    return dataclasses.field(default=default, metadata={"range": Range(**bounds)})


def declared(**bounds: float) -> Any:
    """A dataclass field whose default the algorithm declares; perhaps a ranged one."""
    return ranged(UNSET, **bounds) if bounds else dataclasses.field(default=UNSET)


@functools.cache
def _annotations(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def field_problems(instance: Any) -> dict[str, str]:
    """Field name → what is wrong with its value, for all fields of a dataclass."""
    cls: Any = type(instance)
    annotations = _annotations(cls)
    problems = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        expected = _expected(value, annotations[field.name], field.metadata)
        if expected is not None:
            problems[field.name] = f"got {shorten(value)}, expected {expected}"
            if isinstance(value, float) and value.is_integer() and "an int" in expected:
                problems[field.name] += f": write {int(value):_}"
    return problems


def _expected(
    value: Any, annotation: Any, metadata: collections.abc.Mapping[Any, Any]
) -> str | None:
    """What was expected if ``value`` is not that, else None."""
    accepted = metadata.get("range", Range())
    if not fits(value, annotation):
        bounds = f", {accepted}" if "range" in metadata else ""
        return f"{describe(annotation)}{bounds}"
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and value not in accepted:
        return f"a value {accepted}"
    return None


def shorten(value: Any, length: int = 60) -> str:
    """``repr(value)``, cut if it is too long for a message."""
    text = repr(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."
