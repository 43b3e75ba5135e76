"""What to tell the user about a conf that cannot be read, instead of what gin says."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from gin import utils as gin_utils

from alf_lite.config import configurables
from alf_lite.errors import AlfLiteError, did_you_mean, missing_extra
from alf_lite.exports import RENAMED

_LITERALS = {"true": "True", "false": "False", "none": "None", "null": "None"}
_NEEDS_QUOTES = "strings need quotes"
_IN_CALL = re.compile(r"\n  In call to configurable '([^']+)' \(")
_MISSING = re.compile(
    r"Required bindings for `(.+?)` not provided in config: \[(.+?)\]"
)
_NOT_GIVEN = re.compile(
    r"(\w+)(?:\.__init__)?\(\) missing \d+ required .*arguments?: (.+)"
)
_UNEXPECTED = re.compile(
    r"(?:(?P<function>\w+)(?:\.__init__)?\(\) got an )?"
    r"unexpected keyword argument '(?P<parameter>\w+)'$"
)
_NO_VALUES = re.compile(
    r"\n  No values supplied by Gin or caller for arguments: \[(.+?)\]"
)


def unknown_configurable(name: str, shipped: Iterable[str] = ()) -> str:
    """For a name that no configurable has, or that several have.

    Args:
        name: as written.
        shipped: names of the library that may not have been imported.
    """
    several = configurables.matches(name)
    if several:
        return f"{name!r} may be {' or '.join(map(repr, several))}: write one in full."
    last = name.rpartition(".")[2]
    by_name = {shipped_name: shipped_name for shipped_name in shipped}
    for selector in configurables.names():
        by_name[selector.rpartition(".")[2]] = configurables.short_name(selector)
    elsewhere = names_elsewhere()["configurables"].get(last, "")
    if elsewhere.startswith(" "):
        return f"there is no configurable {name!r}.{elsewhere}"
    if elsewhere in by_name:
        suggestion = f" Here that is {elsewhere!r}."
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
    target = configurables.target(selector)
    known = configurables.bindable_names(selector)
    name = configurables.short_name(selector)
    message = f"{name!r} has no parameter {parameter!r}."
    renamed = _renamed_parameter(selector, parameter)
    if renamed is not None:
        return f"{message} {renamed}"
    bases = configurables.bases_with_parameter(target, parameter)
    if bases:
        return f"{message} {bases[0]!r} has it: bind `{bases[0]}.{parameter}`."
    return message + _nearest(parameter, known)


def unknown_argument(target: Any, parameter: str) -> str:
    """For what a caller in Python gives to a class or function that does not take it.

    Args:
        target: may be no configurable; one that it derives from may know the name.
        parameter: as given.
    """
    message = f"{target.__name__!r} has no parameter {parameter!r}."
    for base in getattr(target, "__mro__", [target]):
        selector = configurables.selector_of(base)
        renamed = selector and _renamed_parameter(selector, parameter)
        if renamed:
            return f"{message} {renamed}"
    return message + _nearest(parameter, list(inspect.signature(target).parameters))


def _nearest(parameter: str, known: Sequence[str]) -> str:
    shown = ", ".join(known[:15]) + (", ..." if len(known) > 15 else "")
    return did_you_mean(parameter, known) or f" It has: {shown or 'none'}."


def unused_macro(name: str, macros: Sequence[str], selectors: Iterable[str]) -> str:
    """For a macro of the command line that nothing refers to.

    Args:
        name: as written.
        macros: those that something refers to.
        selectors: complete names of the configurables that may have been meant, the
            likeliest first.
    """
    message = f"nothing refers to the macro {name!r}."
    known = {macro: macro for macro in macros}
    for selector in selectors:
        owner = configurables.short_name(selector)
        for parameter in configurables.bindable_names(selector):
            known.setdefault(parameter, f"{owner}.{parameter}")
        if name in known:
            return f"{message} Did you mean {known[name]!r}?"
        renamed = _renamed_parameter(selector, name)
        if renamed is not None:
            return f"{message} {renamed}"
    hint = did_you_mean(name, [*known, *macros])  # of the same letters, the macro
    hint = re.sub(r"'(.*?)'", lambda near: repr(known[near[1]]), hint)
    return message + (hint or " A setting is written `Name.parameter = value`.")


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
    if extra := _extra_of(module):
        return str(missing_extra(f"the module {module!r}", extra))
    return f"there is no module {module!r}." + (
        suggestion
        or " A module of your own has to be beside the conf, in the current directory "
        "or on PYTHONPATH."
    )


def _extra_of(module: str) -> str:
    """Which of the library's installs a package of this name; "" if none does."""
    try:
        requirements = importlib.metadata.requires("alf_lite") or []
    except importlib.metadata.PackageNotFoundError:  # not installed
        return ""
    for requirement in requirements:
        found = re.match(r"""([\w-]+).*extra == ["'](\w+)""", requirement)
        if found and found[1].replace("-", "_").lower() == module:
            return found[2]
    return ""


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
    if configurables.matches(name):
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


def _cut(source: str) -> str:
    source = " ".join(source.split())
    return source if len(source) <= 100 else f"{source[:97]}..."


# Errors of calls

_SAID = "_said_by_gin"
_raise_longer_copy = gin_utils.augment_exception_message_and_reraise


def _raise_as_it_is(error: Exception, text: str) -> NoReturn:
    """In place of what gin does with an error that passes through a configurable.

    gin raises a copy with a longer text: cause and notes are lost, and the address of
    a function tells nobody anything. What it would have said is kept with the error.
    """
    is_of_call = "In call to configurable" in text
    if not is_of_call and not isinstance(error, AlfLiteError):
        _raise_longer_copy(error, text)  # says which statement of a conf it is
    _suggest_parameter(error, text)
    vars(error).setdefault(_SAID, []).append(text)
    raise error


def _suggest_parameter(error: Exception, text: str) -> None:
    """Adds the parameter that was meant where a caller in Python has misspelt one."""
    misspelt = _UNEXPECTED.search(str(error))
    called = re.search(r"In call to configurable '([\w.]+)'", text)
    if not (isinstance(error, TypeError) and misspelt and called):
        return
    selectors = configurables.matches(called[1])
    is_its_own = misspelt["function"] == called[1].rpartition(".")[2]
    if is_its_own and len(selectors) == 1:
        target = configurables.target(selectors[0])
        error.args = (unknown_argument(target, misspelt["parameter"]),)
        return
    known = [
        parameter
        for selector in selectors
        for parameter in configurables.bindable_names(selector)
    ]
    hint = did_you_mean(misspelt["parameter"], known)
    if hint and misspelt["parameter"] not in known:  # else it handed it on
        error.args = (f"{error}.{hint}",)


gin_utils.augment_exception_message_and_reraise = _raise_as_it_is


def said_of_calls(error: BaseException) -> list[str]:
    """What gin says of the configurables that ``error`` passed, innermost first."""
    return list(vars(error).get(_SAID, ()))


def called_configurables(error: BaseException) -> list[str]:
    """Names of the configurables that ``error`` passed through, innermost first."""
    return _IN_CALL.findall("".join(said_of_calls(error)))


def missing_value(error: BaseException) -> str | None:
    """What to say if the error is that nobody gave a parameter its value."""
    missing = _MISSING.search(str(error))
    if missing:
        name, parameters = missing[1], missing[2]
    elif called_configurables(error):
        name = called_configurables(error)[0]
        # gin does not know what a root takes from its environment; Python does.
        parameters = _not_given(error, name)
        if not parameters:
            missing = _NO_VALUES.search(said_of_calls(error)[0])
            if missing is None:
                return None
            parameters = missing[1]
    else:
        return None
    names = re.findall(r"'(\w+)'", parameters)
    shown = " and ".join(f"`{name}.{parameter}`" for parameter in names)
    return f"{shown} must be set, in the conf or by --gin_param."


def _not_given(error: BaseException, name: str) -> str:
    """Parameters without value, in Python's words; "" if it is another error."""
    said = _NOT_GIVEN.fullmatch(str(error)) if isinstance(error, TypeError) else None
    return said[2] if said and said[1] == name.rpartition(".")[2] else ""


# What the settings of ALF and DI-engine are called here


@cache
def names_elsewhere() -> dict[str, dict[str, str]]:
    """``configurables`` and ``parameters``: the name there → the one here."""
    with Path(__file__).with_name("names_elsewhere.toml").open("rb") as file:
        return tomllib.load(file)


def _renamed_parameter(selector: str, parameter: str) -> str | None:
    """What to say instead of ``parameter``; None if nobody has called it so.

    Args:
        selector: complete name of what it was written for.
        parameter: as written.
    """
    if not selector.startswith("alf_lite."):
        return None
    owner = configurables.short_name(selector)
    known = configurables.parameter_names(configurables.target(selector)) or []
    answers = {**names_elsewhere()["parameters"], **RENAMED}
    here = answers.get(f"{owner}.{parameter}", answers.get(parameter))
    if here is None:
        return None
    if here.startswith(" "):
        return here.strip()
    name, _, remark = here.partition(": ")
    if "." not in name and name not in known:
        return None  # it is of other algorithms
    return f"Here that is `{name}`{f' ({remark})' if remark else ''}."
