"""What to tell the user about a conf that cannot be read, instead of what gin says."""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterable

from alf_lite.config import registry as config_registry
from alf_lite.config.renamed import CONFIGURABLES, renamed_parameter

_LITERALS = {"true": "True", "false": "False", "none": "None", "null": "None"}
_NEEDS_QUOTES = "strings need quotes"
_IN_CALL = re.compile(r"\n  In call to configurable '([^']+)' \(")
_MISSING = re.compile(
    r"Required bindings for `(.+?)` not provided in config: \[(.+?)\]"
)
_NO_VALUES = re.compile(
    r"\n  No values supplied by Gin or caller for arguments: \[(.+?)\]"
)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`` Did you mean …?`` with the nearest names, or an empty string."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)
    if not near:
        return ""
    return f" Did you mean {' or '.join(repr(by_lower[n]) for n in near)}?"


def unknown_configurable(name: str, shipped: Iterable[str] = ()) -> str:
    """For a name that no configurable has, or that several have.

    Args:
        name: as written.
        shipped: names of the library that may not have been imported.
    """
    several = config_registry.matches(name)
    if several:
        return f"{name!r} may be {' or '.join(map(repr, several))}: write one in full."
    last = name.rpartition(".")[2]
    by_name = {shipped_name: shipped_name for shipped_name in shipped}
    for selector in config_registry.names():
        by_name[selector.rpartition(".")[2]] = config_registry.short_name(selector)
    if CONFIGURABLES.get(last) in by_name:
        suggestion = f" Here that is {CONFIGURABLES[last]!r}."
    elif last in by_name:
        suggestion = f" Did you mean {by_name[last]!r}?"
    else:
        suggestion = did_you_mean(last, by_name)
    return (
        f"there is no configurable {name!r}.{suggestion} What is not part of the "
        "library is given by its full name, `some.module.name`; or a conf has to "
        "import the module that defines it: `import some.module`."
    )


def unknown_parameter(selector: str, parameter: str) -> str:
    """For a parameter that the configurable does not take."""
    target = config_registry.target(selector)
    known = config_registry.parameter_names(target) or []
    name = config_registry.short_name(selector)
    message = f"{name!r} has no parameter {parameter!r}."
    if selector.startswith("alf_lite."):
        renamed = renamed_parameter(parameter, known)
        if renamed is not None:
            return f"{message} {renamed}"
    bases = config_registry.bases_with_parameter(target, parameter)
    if bases:
        return f"{message} {bases[0]!r} has it: bind `{bases[0]}.{parameter}`."
    suggestion = did_you_mean(parameter, known)
    if suggestion:
        return message + suggestion
    shown = ", ".join(known[:15]) + (", ..." if len(known) > 15 else "")
    return f"{message} It has: {shown or 'none'}."


def unknown_module(module: str) -> str:
    """For an import of a module that does not exist."""
    package = module.rpartition(".")[0]
    try:
        spec = importlib.util.find_spec(package) if package else None
    except (ImportError, ValueError):
        spec = None
    if package and spec is None:
        return unknown_module(package)
    places = spec.submodule_search_locations if spec is not None else None
    names = [found.name for found in pkgutil.iter_modules(places)]
    suggestion = did_you_mean(module.rpartition(".")[2], names)
    if package:
        suggestion = re.sub("'(.*?)'", rf"'{package}.\1'", suggestion)
    return f"there is no module {module!r}." + (
        suggestion
        or " A module of your own has to be in the current directory or on PYTHONPATH."
    )


def unreadable_statement(
    source: str, *, is_macro: Callable[[str], bool], in_shell: bool, said: str
) -> str:
    """For a statement that gin's parser refuses.

    Args:
        source: the statement as written.
        is_macro: whether a macro of this name is defined.
        in_shell: whether it was written on a command line.
        said: what gin's parser said; used where we know no better.
    """
    key, equals, value = (part.strip() for part in source.partition("="))
    if not equals:
        return (
            f"`{_cut(source)}` is no statement. Expected `Name.parameter = value`, "
            f"`MACRO = value`, `import module` or `include 'file'`."
        )
    value = value.partition(" #")[0].rstrip()
    hint = _value_hint(key, value, is_macro) or _generic_hint(said)
    if in_shell and hint.startswith(_NEEDS_QUOTES):
        hint += f" In a shell: --gin_param='{key}=\"{value}\"'"
    return f"`{_cut(f'{key} = {value}')}` cannot be read: {hint}"


def _value_hint(key: str, value: str, is_macro: Callable[[str], bool]) -> str | None:
    name = value.removesuffix("()")
    if not value:
        return "the value is missing."
    if value.lower() in _LITERALS:
        return f"write `{key} = {_LITERALS[value.lower()]}`."
    if is_macro(value):
        return f"a macro is referred to as `{key} = %{value}`."
    if config_registry.matches(name):
        return f"a configurable is referred to as `{key} = @{value}`."
    if re.fullmatch(r"(float\(.*\)|[+-]?(inf|nan|infinity))", value, re.IGNORECASE):
        return "gin has no infinity or NaN. Use None, or leave the parameter out."
    if re.fullmatch(r"[\w.]+\(.*\)", value):
        return (
            "gin calls no functions. Write the value itself, or @name() for a "
            "configurable."
        )
    if re.fullmatch(r"[\d.eE_+\-*/% ()]+", value):
        return "gin does no arithmetic. Write the result as one number."
    if re.fullmatch(r"[^\[({'\"]*,.*", value):
        return f"several values need brackets: `{key} = ({value})`."
    return _quotes_hint(key, value)


def _quotes_hint(key: str, value: str) -> str | None:
    outside = re.sub(r"\"[^\"]*\"|'[^']*'", "", value)
    if "'" in outside or '"' in outside:
        return "a quote is never closed."
    if value[0] not in "[({@%" and not set(value) & set("'\"="):
        return f'{_NEEDS_QUOTES}: `{key} = "{value}"`.'
    bare = re.search(r"(?<![@%\w./-])[A-Za-z_][\w./-]*", outside)
    if bare and bare[0] not in ("True", "False", "None"):
        return f'inside of brackets, too, strings need quotes: `"{bare[0]}"`.'
    return None


def _generic_hint(said: str) -> str:
    """The words of gin's parser, where they help."""
    if "Expected newline" in said:
        return "there is something after the value."
    if "recursion" in said:
        return "it is nested too deeply."
    first = said.partition("\n")[0].strip().rstrip(".")
    if not first or " object at 0x" in first:
        return "the value is malformed."
    return f"{first[0].lower()}{first[1:]}."


def _cut(source: str, length: int = 100) -> str:
    source = " ".join(source.split())
    return source if len(source) <= length else f"{source[: length - 3]}..."


# Errors of calls


def called_configurables(error: BaseException) -> list[str]:
    """Names of the configurables that ``error`` passed through, innermost first."""
    return _IN_CALL.findall("".join(config_registry.said_of_calls(error)))


def missing_value(error: BaseException) -> str | None:
    """What to say if the error is that nobody gave a parameter its value."""
    missing = _MISSING.search(str(error))
    if missing:
        name, parameters = missing[1], missing[2]
    else:
        called = config_registry.said_of_calls(error)
        missing = _NO_VALUES.search(called[0]) if called else None
        if missing is None:
            return None
        name, parameters = called_configurables(error)[0], missing[1]
    names = re.findall(r"'(\w+)'", parameters)
    shown = " and ".join(f"`{name}.{parameter}`" for parameter in names)
    return f"{shown} must be set, in the conf or by --gin_param."
