"""Checks of a whole configuration, once everything is bound."""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gin.config import ConfigurableReference

from alf_lite.config import bindings as config_bindings
from alf_lite.config import configurables
from alf_lite.config import values as config_values
from alf_lite.config.bindings import CONSTANT, MACRO, SINGLETON, Binding, BindingKey
from alf_lite.errors import ConfigError, did_you_mean

_logger = logging.getLogger(__name__)
_MAX_PROBLEMS = 8

Bindings = Mapping[BindingKey, Binding]


def check_bindings(bindings: Bindings) -> None:
    """Checks what can only be judged when all bindings are known.

    Raises:
        ConfigError: naming every undefined macro, required value that is missing, value
            of the wrong type or infinite number.
    """
    for find in (_undefined_macros, _unset, _infinite, _wrong_types):
        problems = list(find(bindings))
        if problems:
            more = ["..."] * (len(problems) > _MAX_PROBLEMS)
            raise ConfigError("\n".join(problems[:_MAX_PROBLEMS] + more))
    _warn_of_repeated_calls(bindings)


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
        _is_constant(reference, "gin.REQUIRED")
        for reference in config_bindings.references(value)
    )


def _is_constant(reference: ConfigurableReference, name: str) -> bool:
    return reference.configurable.selector == CONSTANT and reference.scopes == [name]


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
        value, parameter = binding.value, binding.key.parameter
        annotation = _annotation(binding.key.selector, parameter)
        if parameter.endswith("_ctor") and _is_instance(value):
            reference = repr(value).removesuffix("()")
            yield (
                f"{binding}: {parameter} is called later. Write `{reference}` without "
                "the parentheses."
            )
        elif not (
            config_values.fits(_known(value), annotation) or _is_default(binding)
        ):
            expected = config_values.describe(annotation)
            is_class = isinstance(value, ConfigurableReference) and not value.evaluate
            hint = f" Write `{value!r}()` to call it." if is_class else ""
            yield f"{binding}: expected {expected}.{hint}"


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
    """``value`` with macros replaced by their values and calls by UNKNOWN."""
    if isinstance(value, ConfigurableReference):
        if not value.evaluate:
            return value.scoped_configurable_fn
        for name in config_bindings.macros_in(value):
            return _known(config_bindings.macro_value(name))
        return config_values.UNKNOWN
    if isinstance(value, (list, tuple)):
        return type(value)([_known(item) for item in value])
    return value


def _is_instance(value: Any) -> bool:
    """Whether ``value`` constructs an object of a class, as ``@Class()`` does."""
    return (
        isinstance(value, ConfigurableReference)
        and value.evaluate
        and isinstance(value.configurable.wrapped, type)
    )


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
                *(macro, uses[name], name, name, name.lower(), name.lower()),
            )


def _calls_something(value: Any) -> bool:
    return any(
        reference.evaluate
        and reference.configurable.selector not in (MACRO, CONSTANT, SINGLETON)
        for reference in config_bindings.references(value)
    )
