"""Checks of a whole configuration, once everything is bound."""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gin.config import ConfigurableReference

from alf_lite.config import bindings as config_bindings
from alf_lite.config import configurables
from alf_lite.config import errors as config_errors
from alf_lite.config import names as config_names
from alf_lite.config import values as config_values
from alf_lite.config.bindings import CONSTANT, MACRO, SINGLETON, Binding, BindingKey
from alf_lite.config.reader import COMMAND_LINE
from alf_lite.errors import ConfigError, did_you_mean

_logger = logging.getLogger(__name__)
_MAX_PROBLEMS = 8
_OF_GIN = (MACRO, CONSTANT, SINGLETON)

Bindings = Mapping[BindingKey, Binding]


def check_bindings(bindings: Bindings) -> None:
    """Checks what can only be judged when all bindings are known.

    Raises:
        ConfigError: naming every macro of the command line without use, undefined
            macro, required value that is missing, value of the wrong type or infinite
            number.
    """
    for find in (_unused_macros, _undefined_macros, _unset, _infinite, _wrong_types):
        problems = list(find(bindings))
        if problems:
            more = ["..."] * (len(problems) > _MAX_PROBLEMS)
            raise ConfigError("\n".join(problems[:_MAX_PROBLEMS] + more))
    _warn_of_repeated_calls(bindings)


def _unused_macros(bindings: Bindings) -> Iterator[str]:
    """Those of the command line; one of a conf may be there for others to use."""
    values = [binding.value for binding in bindings.values()]
    used = {name for value in values for name in config_bindings.macros_in(value)}
    for binding in bindings.values():
        name = binding.key.scope
        is_given = binding.key.selector == MACRO and binding.where == COMMAND_LINE
        if is_given and name not in used:
            meant = config_errors.unused_macro(
                name, sorted(used), _configured(bindings)
            )
            yield f"{binding}: {meant}"


def _configured(bindings: Bindings) -> list[str]:
    """Complete names of the configurables that a conf speaks of, and TrainerConfig."""
    spoken_of = [
        *(binding.key.selector for binding in bindings.values()),
        *(
            reference.configurable.selector
            for binding in bindings.values()
            for reference in config_bindings.references(binding.value)
        ),
    ]
    found = dict.fromkeys([*configurables.matches("TrainerConfig"), *spoken_of])
    return [selector for selector in found if selector not in _OF_GIN]


def _undefined_macros(bindings: Bindings) -> Iterator[str]:
    for binding in bindings.values():
        for name in config_bindings.macros_in(binding.value):
            if not config_bindings.is_macro(name):
                names = config_bindings.macro_names()
                suggestion = did_you_mean(name, names)
                yield (
                    f"{binding.where}: the macro %{name} is not defined.{suggestion} "
                    f"Define it: `{name} = value`."
                )
        if binding.key.selector == MACRO and _refers_to_itself(binding):
            yield f"{binding}: this macro refers to itself."


def _refers_to_itself(macro: Binding) -> bool:
    pending, seen = set(config_bindings.macros_in(macro.value)), set()
    while pending:
        name = pending.pop()
        seen.add(name)
        value = config_bindings.macro_value(name)
        pending |= set(config_bindings.macros_in(value)) - seen
    return macro.key.scope in seen


def _unset(bindings: Bindings) -> Iterator[str]:
    for binding in bindings.values():
        if is_required(binding.value):
            yield (
                f"{binding.where}: {str(binding.key)!r} has to be set: "
                f"--gin_param='{binding.key}=...'."
            )


def is_required(value: Any) -> bool:
    """Whether a value, or a part of it, is still to be given."""
    return any(
        reference.configurable.selector == CONSTANT
        and reference.scopes == ["gin.REQUIRED"]
        for reference in config_bindings.references(value)
    )


def _infinite(bindings: Bindings) -> Iterator[str]:
    """Numbers such as 1e999, which the saved configs would silently lose."""
    for binding in bindings.values():
        if any(
            isinstance(value, float) and not math.isfinite(value)
            for value in _leaves(binding.value)
        ):
            yield f"{binding}: this number is infinite. Use None, or leave it out."


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _wrong_types(bindings: Bindings) -> Iterator[str]:
    for binding in bindings.values():
        value, parameter = _known(binding.value), binding.key.parameter
        annotation = _annotation(binding.key.selector, parameter)
        made = [v for v in _leaves(value) if isinstance(v, config_values.InstanceOf)]
        fits = config_values.fits(value, annotation) or _is_default(binding)
        if made and (
            parameter.endswith(("_ctor", "_ctors"))
            or (not fits and config_values.fits(_uncalled(value), annotation))
        ):
            yield (
                f"{binding}: {parameter} is called later. Write "
                f"`{made[0].reference.removesuffix('()')}` without the parentheses."
            )
        elif not fits:
            expected = config_values.describe(annotation)
            yield f"{binding}: expected {expected}.{_hint(binding.value, annotation)}"


def _uncalled(value: Any) -> Any:
    """What is known of ``value``, with constructors where it calls them."""
    if isinstance(value, config_values.InstanceOf):
        return value.cls
    return _map(_uncalled, value)


def _hint(value: Any, annotation: Any) -> str:
    """How to write what was probably meant."""
    if isinstance(value, str) and config_values.fits(callable, annotation):
        return f" Write `@{value}`, without quotes." if _is_name(value) else ""
    if not isinstance(value, ConfigurableReference) or value.evaluate:
        return ""
    if config_values.fits([_known(value)], annotation):
        return f" Write `[{value!r}]`."
    return f" Write `{value!r}()` to call it."


def _is_name(text: str) -> bool:
    return bool(configurables.matches(text)) or text in config_names.shipped()


def _is_default(binding: Binding) -> bool:
    """Whether the value is the parameter's default, which is right by definition."""
    target = configurables.target(binding.key.selector)
    return any(
        parameter.name == binding.key.parameter
        and type(parameter.default) is type(binding.value)
        and parameter.default == binding.value
        for parameter in configurables.parameters(target) or []
    )


def _known(value: Any) -> Any:
    """``value`` with macros replaced by their values, and calls by what they make."""
    if not isinstance(value, ConfigurableReference):
        return _map(_known, value)
    if not value.evaluate:
        return value.scoped_configurable_fn
    for name in config_bindings.macros_in(value):
        return _known(config_bindings.macro_value(name))
    called = value.configurable.wrapped
    if isinstance(called, type):
        return config_values.InstanceOf(called, repr(value))
    return config_values.UNKNOWN


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """``function`` of each item of a list or dict; ``value`` if it is none."""
    if isinstance(value, (list, tuple)):
        return type(value)([function(item) for item in value])
    if isinstance(value, dict):
        return {key: function(item) for key, item in value.items()}
    return value


def _annotation(selector: str, parameter: str) -> Any:
    """The type of a parameter; Any where it is not known.

    A class with ``__post_init__`` checks its values itself, all at once. Annotations of
    what was not written for confs are not always meant to the letter.
    """
    target = configurables.target(selector)
    if target is None or hasattr(target, "__post_init__"):
        return Any
    if configurables.imported_by_name(selector) is not None:
        return Any
    annotation = configurables.annotation(target, parameter)
    return Any if annotation is inspect.Parameter.empty else annotation


def _warn_of_repeated_calls(bindings: Bindings) -> None:
    """Warns where two bindings seem to share an object and each gets its own."""
    uses = Counter(
        name
        for binding in bindings.values()
        for name in set(config_bindings.macros_in(binding.value))
    )
    for macro in bindings.values():
        name = macro.key.scope
        is_shared = macro.key.selector == MACRO and uses[name] > 1
        if is_shared and _calls_something(macro.value):
            _logger.warning(
                "%s: called anew at each of the %d uses of %%%s, so that each gets an "
                "object of its own. To share one: `%s = @%s/gin.singleton()` and "
                "`%s/gin.singleton.constructor = @…`.",
                macro,
                uses[name],
                name,
                name,
                name.lower(),
                name.lower(),
            )


def _calls_something(value: Any) -> bool:
    return any(
        reference.evaluate and reference.configurable.selector not in _OF_GIN
        for reference in config_bindings.references(value)
    )
