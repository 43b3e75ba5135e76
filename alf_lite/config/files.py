"""The configuration of a process: read confs, save them, say what was not used.

A conf is a gin file. It is a program: it imports modules and calls what they define,
whatever it names (see ``config_names``), so treat a conf of somebody else as you would
treat their script.

    parse_config("ppo_cart_pole", ["TrainerConfig.random_seed = 1"])
    with gin_errors():
        trainer = Trainer(TrainerConfig())
    check_unused_bindings()

gin's bindings belong to the process. A process that is started by ``spawn`` or
``forkserver`` imports configurables afresh and would run with their defaults. It gets
:func:`user_config_text` and begins with :func:`parse_config_text`. Send it objects,
not classes that a conf refers to: those do not pickle.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import gin

# Registers TrainerConfig, which a conf may bind without importing anything.
import alf_lite.config  # noqa: F401
from alf_lite.config import bindings as config_bindings
from alf_lite.config import errors as config_errors
from alf_lite.config.bindings import Binding, BindingKey
from alf_lite.config.checks import check_bindings, is_required
from alf_lite.config.names import find_conf
from alf_lite.config.reader import COMMAND_LINE, ConfigReader
from alf_lite.errors import AlfLiteError, ConfigError, MissingExtraError

_logger = logging.getLogger(__name__)

# A binding as gin writes it, which breaks long values after a backslash, and within
# brackets.
BINDING = re.compile(r"^([\w./]+)[ \t]*=[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)

# What was read in this process; gin's own tables are as global.
_reader = ConfigReader()
_strict = False


def parse_config(
    conf: str | None, gin_params: Sequence[str] = (), strict: bool = False
) -> None:
    """Reads a conf, then the bindings of the command line, which override it.

    After that the bindings are locked. If anything is wrong nothing stays bound.

    Args:
        conf: path or name of a packaged conf, see :func:`find_conf`; None for none.
        gin_params: statements such as ``"TrainerConfig.random_seed = 1"``.
        strict: whether :func:`check_unused_bindings` raises.

    Raises:
        ConfigError: saying what is wrong, in which file and line, and what to do.
    """
    with _reading(strict) as reader:
        if conf is not None:
            path = find_conf(conf)
            reader.read_file(path)
            reader.conf_name = path.stem
        if gin_params:
            reader.add_comment("From the command line:")
        for parameter in gin_params:
            if not reader.read_text(parameter, COMMAND_LINE, Path()):
                raise ConfigError(f"{COMMAND_LINE}={parameter!r} binds nothing.")


def parse_config_text(text: str) -> None:
    """Makes ``text`` the configuration of this process, whatever it was before.

    For child processes, with the :func:`user_config_text` of their parent; one that was
    forked has it already and keeps it.

    Raises:
        ConfigError: as :func:`parse_config`.
    """
    if gin.config_is_locked() and user_config_text() == text:
        return
    reset()
    with _reading(strict=False) as reader:
        reader.read_text(text, "config text", Path())


@contextmanager
def _reading(strict: bool) -> Iterator[ConfigReader]:
    global _reader, _strict
    if gin.config_is_locked():
        raise ConfigError(
            "this process has its configuration already. Call reset() before another "
            "one is read."
        )
    reader = ConfigReader()
    try:
        yield reader
        check_bindings(_without_unneeded(reader.bindings))
        _finalize()
    except BaseException:
        reset()
        raise
    _reader, _strict = reader, strict


def _without_unneeded(
    bindings: Mapping[BindingKey, Binding],
) -> dict[BindingKey, Binding]:
    """Unbinds required macros that nothing refers to: what did was overridden."""
    values = [binding.value for binding in bindings.values()]
    used = {name for value in values for name in config_bindings.macros_in(value)}
    needed = dict(bindings)
    for key, binding in bindings.items():
        is_macro = key.selector == config_bindings.MACRO
        if is_macro and key.scope not in used and is_required(binding.value):
            config_bindings.unbind(key)
            del needed[key]
    return needed


def _finalize() -> None:
    """Locks the bindings, after hooks that the user has registered with gin."""
    try:
        gin.finalize()
    except ValueError as error:
        raise ConfigError(str(error).partition(" in config string")[0]) from error


def reset() -> None:
    """Removes every binding and unlocks, as in a process that has just started."""
    global _reader, _strict
    config_bindings.clear()
    _reader, _strict = ConfigReader(), False


# What is saved with a run


def conf_name() -> str | None:
    """The name of the conf of this process, without folder and ending, if any."""
    return _reader.conf_name


def user_config_text(given: Mapping[str, str] | None = None) -> str:
    """What the user gave, files inlined, then the command line: a conf of its own.

    It needs no file, so that any process can read it in any directory.

    Args:
        given: in Python, instead of bindings: parameter → value as a conf writes it.
    """
    return _reader.text(given or {})


@contextmanager
def own_config() -> Iterator[None]:
    """In the block, nothing is bound; afterwards, what was bound before.

    For what reads a configuration in a program that may have one of its own.
    """
    global _reader, _strict
    outer, saved = (_reader, _strict), config_bindings.save_state()
    reset()
    try:
        yield
    finally:
        config_bindings.restore_state(saved)
        _reader, _strict = outer


def operative_config_text(given: Mapping[str, str] | None = None) -> str:
    """What was used so far, defaults included, as a conf that gives the same run.

    Args:
        given: in Python, see :func:`user_config_text`; gin knows nothing of it.
    """
    text = config_bindings.operative_text()
    if not given:
        return text
    text = BINDING.sub(lambda found: "" if found[1] in given else found[0], text)
    lines = [f"{key} = {value}\n" for key, value in given.items()]
    return f"{text}\n# Given in Python:\n{''.join(lines)}"


def inoperative_config_text() -> str:
    """What was bound and not used so far, with the reason."""
    lines = [f"# {reason}\n{b.source}" for b, reason in _unused()]
    return "# Bound but never used\n\n" + ("\n".join(lines) or "# None.") + "\n"


def unused_bindings(where: str | None = None) -> list[str]:
    """The bindings that nothing has read so far: file, line and reason.

    Meaningful once everything is built.

    Args:
        where: they are; None: anywhere.
    """
    return [
        f"{binding}  ({reason})"
        for binding, reason in _unused()
        if where in (None, binding.where)
    ]


def _unused() -> list[tuple[Binding, str]]:
    found = []
    bound = config_bindings.bound()
    for key, binding in _reader.bindings.items():
        if key not in bound:  # a macro that nothing needs
            continue
        reason = config_bindings.why_unused(key)
        if reason is not None:
            found.append((binding, reason))
    return found


def check_unused_bindings() -> None:
    """Reports the bindings that nothing has read. Call it when everything is built.

    Raises:
        ConfigError: if there are any and the config was parsed as strict.
    """
    unused = unused_bindings()
    if not unused:
        return
    message = "these bindings have no effect:\n  " + "\n  ".join(unused)
    if _strict:
        raise ConfigError(f"{message}\nRemove them, or leave --strict_config out.")
    _logger.warning("%s", message)


def warn_of_unused_parameters() -> None:
    """Names the bindings of the command line that nothing has read.

    For programs that build a part of what a conf describes, once that is done.
    """
    if unused := unused_bindings(COMMAND_LINE):
        _logger.warning(
            "these settings have no effect here:\n  %s", "\n  ".join(unused)
        )


# Errors while objects are built


@contextmanager
def gin_errors() -> Iterator[None]:
    """Turns what configurables raise while they are built into errors for the user.

    A missing value, and a TypeError or ValueError of a constructor, become a
    ConfigError with the lines of the confs that bind the parameters it speaks of.
    Everything else passes.

    To be used around the building of objects, not around training: there a ValueError
    is not the fault of the conf.

    Raises:
        ConfigError: as described.
    """
    try:
        yield
    except Exception as error:
        _raise_translated(error)


def _raise_translated(error: Exception) -> NoReturn:
    if isinstance(error, MissingExtraError):  # no line of a conf is wrong
        raise error
    called = config_errors.called_configurables(error)
    missing = config_errors.missing_value(error)
    if missing is not None:
        raise ConfigError(missing) from error
    if called and isinstance(error, RecursionError):
        circles = [
            f"\n  {binding}"
            for key, binding in _reader.bindings.items()
            for reference in config_bindings.references(binding.value)
            if reference.configurable.selector == key.selector
        ]
        raise ConfigError(
            f"something is built by a parameter of its own, and so on without end. "
            f"Name another one there.{''.join(circles)}"
        ) from error
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        raise ConfigError(
            f"what the conf asks for does not fit into memory: {_first_line(error)}"
        ) from error
    if isinstance(error, ConfigError) or (
        called
        and isinstance(error, (TypeError, ValueError))
        and not isinstance(error, AlfLiteError)
    ):
        is_named = isinstance(error, ConfigError) or _names_itself(error, called[0])
        name = "" if is_named else f"{called[0]}: "
        lines = [f"{name}{error}", *_bindings_spoken_of(str(error), called)]
        raise ConfigError("\n  ".join(lines)) from error
    raise error


def _names_itself(error: Exception, called: str) -> bool:
    """Whether a message begins with the name of what was called."""
    return re.split(r"\W", str(error))[0] == called.rpartition(".")[2]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")


def _bindings_spoken_of(message: str, called: Sequence[str]) -> list[str]:
    """The bindings of the called configurables whose parameter the message names."""
    words = set(re.findall(r"\w+", message))
    return [
        str(binding)
        for key, binding in _reader.bindings.items()
        if key.parameter in words and key.selector.rpartition(".")[2] in called
    ][:5]
