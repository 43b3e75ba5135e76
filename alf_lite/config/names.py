"""What a name stands for: a conf, a configurable, or anything that can be imported.

``@PPOAlgorithm`` is registered by its module, which is imported if the library has it.
``@my_module.MyEnv`` or ``@gymnasium.wrappers.FlattenObservation`` need no decorator:
they are registered with gin when a conf refers to them, under the name in the conf. The
class or function itself stays as it is; what the conf refers to is gin's stand-in,
which takes its parameters from the conf and makes objects of the class itself.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import gin

from alf_lite.border import CONFIG, read_text
from alf_lite.config import configurables
from alf_lite.config import errors as config_errors
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.exports import current_name

# How a module of the library registers what is defined in the next line.
_DECORATED = re.compile(
    r"^@configurable(?:\(\s*(?:\w+=(?:[^()]|\([^()]*\))*)?\))?\n"
    r"(?:@.*\n)*(?:class|def) (\w+)",
    re.MULTILINE,
)


def complete_name(name: str) -> str:
    """The complete name of the one configurable that ``name`` stands for.

    Raises:
        ConfigError: if there is none, several, or importing it fails.
    """
    name = current_name(name)
    if configurables.imported_by_name(name) is not None:
        return _imported_name(name)  # may have been defined anew
    found = configurables.matches(name)
    if not found and name in shipped():
        import_module(shipped()[name])
        found = configurables.matches(name)
    if len(found) == 1:
        return found[0]
    if found or "." not in name:
        raise ConfigError(config_errors.unknown_configurable(name, shipped()))
    return _imported_name(name)


_stranger: str | None = None  # whose conf is being read, if it is a stranger's


@contextlib.contextmanager
def of_the_library_only(whose: str) -> Iterator[None]:
    """In this block names stand for what the library defines, and for nothing else.

    A conf can name any function and say how it is called. That of a stranger must not.

    Args:
        whose: conf it is, for messages.
    """
    global _stranger
    before, _stranger = _stranger, whose
    try:
        yield
    finally:
        _stranger = before


def _check_is_of_the_library(name: str, *, is_module: bool) -> None:
    if _stranger is None or (is_module and name.partition(".")[0] == "alf_lite"):
        return
    raise ConfigError(
        f"{_stranger} names {name!r}, which alf_lite does not define, and which could "
        "do anything. If you trust whoever made it: load_policy(..., trust=True)."
    )


def import_module(module: str) -> types.ModuleType:
    """Imports a module; one of the current directory or beside a conf, too.

    Raises:
        ConfigError: if there is none of that name, or importing it fails.
    """
    _check_is_of_the_library(module, is_module=True)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not _is_missing(module, error):
            raise _import_failed(module, error) from error
        if not _look_around():
            raise ConfigError(config_errors.unknown_module(module)) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(module, error) from error
    return import_module(module)


def _is_missing(module: str, error: ModuleNotFoundError) -> bool:
    """Whether it is the module itself, or a package of it, that is not there."""
    return f"{module}.".startswith(f"{error.name}.")


# Of the confs that were read; modules of the user may lie beside them.
_conf_folders: list[str] = []


def note_conf_folder(folder: Path) -> None:
    """Lets modules that are found nowhere else be looked for beside a conf."""
    _conf_folders.append(str(folder.resolve()))


def module_folders() -> list[str]:
    """Where modules of the user may lie: the current directory, beside the confs."""
    here: list[str] = []
    with contextlib.suppress(OSError):  # it was deleted
        here.append(os.getcwd())
    shipped_confs = {str(folder.resolve()) for folder in conf_directories()}
    return [
        folder
        for folder in dict.fromkeys([*here, *_conf_folders])
        if folder not in shipped_confs
    ]


# What Python calls the program that is run, and what was defined there.
MAIN = "__main__"
# The program that made the run that was read last.
_script: str | None = None


def note_script(path: str | None) -> None:
    """Notes in which file lies what a conf calls ``__main__``; None if in no file."""
    global _script
    _script = path


def this_program() -> str | None:
    """The file of ``__main__``; None in a notebook and at a prompt."""
    path = getattr(sys.modules[MAIN], "__file__", None)
    return None if path is None else os.path.abspath(path)


def _main_with(name: str) -> types.ModuleType:
    """The program that defines ``name``: this one, or the one that made a run.

    The latter is imported if that does not start it again.
    """
    for module in [*_modules_of_script(), sys.modules[MAIN]]:
        if hasattr(module, name):
            return module
    if _script is not None and is_guarded(_script):
        note_conf_folder(Path(_script).parent)
        _look_around()
        import_module(Path(_script).stem)
        for module in _modules_of_script():
            if hasattr(module, name):
                return module
    where = "in a notebook or at a prompt" if _script is None else f"in {_script}"
    raise ConfigError(
        f"{name!r} was defined {where}, the program that made this run. Move it into a "
        "module of its own, which both programs import; or put what a script does "
        'besides its definitions below `if __name__ == "__main__":`.'
    )


def _modules_of_script() -> list[types.ModuleType]:
    # Not getattr: some modules import others when they are asked.
    return [
        module
        for module in list(sys.modules.values())
        if _script is not None
        and getattr(module, "__dict__", {}).get("__file__") == _script
    ]


def is_guarded(path: str | None) -> bool:
    """Whether a script says what only its start shall do, so that it is imported."""
    try:
        body = ast.parse(Path(path or "").read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return False
    tests = [ast.unparse(s.test) for s in body if isinstance(s, ast.If)]
    return any("__name__" in test and MAIN in test for test in tests)


def is_importable(module: str) -> bool:
    """Whether a module that is no part of a package can be found."""
    if module == MAIN:
        return True
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(module) is not None or (
            _look_around() and importlib.util.find_spec(module) is not None
        )
    return False


def _look_around() -> bool:
    """Adds what may hold modules of the user to their places; False if nothing is new.

    They come last, so that nothing there takes the place of an installed module.
    """
    places = {os.path.abspath(place) for place in sys.path}
    new = [place for place in module_folders() if place not in places]
    sys.path += new
    importlib.invalidate_caches()
    return bool(new)


def _import_failed(module: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"importing {module!r} failed: {type(error).__name__}: {error}".rstrip(": ")
    )


# Names of the library


@cache
def shipped() -> dict[str, str]:
    """Configurable → the module of the library that defines it; read, not imported."""
    package = Path(__file__).parents[1]
    return {
        name: ".".join(("alf_lite", *path.relative_to(package).with_suffix("").parts))
        for path in sorted(package.rglob("*.py"))
        for name in _DECORATED.findall(path.read_text(encoding="utf-8"))
    }


# Names of everything else


def _imported_name(name: str) -> str:
    """Imports what ``name`` says, registers it if nothing has, and names it."""
    _check_is_of_the_library(name, is_module=False)
    target = import_target(name)
    known = configurables.selector_of(target)
    if known is not None:
        return known
    if not callable(target):
        what = "a module" if inspect.ismodule(target) else _shown(target)
        raise ConfigError(
            f"{name!r} is {what}, and a conf can only refer to what can be called: "
            "functions and classes."
        )
    _register(name, target)
    return name


def _shown(value: Any) -> str:
    """``repr(value)`` without addresses, cut to what a message can hold."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def import_target(name: str) -> Any:
    """The object that ``name`` stands for in Python."""
    first, *rest = name.split(".")
    is_of_main = first == MAIN and bool(rest)
    target: Any = _main_with(rest[0]) if is_of_main else import_module(first)
    path = first
    for attribute in rest:
        try:
            inside = getattr(target, attribute, None)
            is_there = inside is not None or hasattr(target, attribute)
        except Exception as error:  # a module that imports its parts when asked
            raise _import_failed(f"{path}.{attribute}", error) from error
        if not is_there:
            inside = _submodule(name, target, path, attribute)
        target, path = inside, f"{path}.{attribute}"
    return target


def _submodule(name: str, package: Any, path: str, attribute: str) -> Any:
    """``package.attribute``, which is no attribute so far."""
    module = f"{path}.{attribute}"
    if not inspect.ismodule(package):
        raise ConfigError(
            f"{path!r} has no {attribute!r}."
            + did_you_mean(attribute, _public(package))
        )
    is_package = hasattr(package, "__path__")
    if is_package and importlib.util.find_spec(module) is not None:
        return import_module(module)
    if module != name and is_package:
        raise ConfigError(config_errors.unknown_module(module))
    if attribute in shipped():
        suggestion = f" Did you mean {attribute!r} alone?"
    else:
        suggestion = did_you_mean(attribute, _public(package))
    raise ConfigError(f"the module {path!r} has no {attribute!r}.{suggestion}")


def _public(target: Any) -> list[str]:
    return [name for name in dir(target) if not name.startswith("_")]


def _register(name: str, target: Callable[..., Any]) -> None:
    """Registers ``target`` with gin under ``name`` without changing it."""
    module, _, last = name.rpartition(".")
    if configurables.target(name) is not None:  # defined anew, as in a notebook
        configurables.forget(name)
    with gin.unlock_config():
        try:
            stand_in = gin.external_configurable(target, name=last, module=module)
        except Exception:  # a class that cannot be derived from, such as an enum
            stand_in = gin.external_configurable(
                _as_function(target), name=last, module=module
            )
    configurables.note_imported_by_name(name, target)
    copy_signature(stand_in, target)


def _as_function(target: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(target, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return call


def copy_signature(stand_in: Any, target: Callable[..., Any]) -> None:
    """Lets ``inspect.signature`` see the parameters behind gin's stand-in of a class.

    ``target`` itself is left alone.
    """
    if stand_in is target or not inspect.isclass(stand_in):
        return
    try:
        stand_in.__signature__ = inspect.signature(target)  # type: ignore[attr-defined]
    except (TypeError, ValueError):  # written in C, without a signature
        return


# Conf files

SUFFIX = ".gin"
MAX_SIZE = 500_000  # bytes of a conf with all that it includes


def conf_directories() -> list[Path]:
    """The directories with the confs that come with the library.

    Installed, they are part of the package; in a checkout they lie beside it.
    """
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    directories = [package / "confs"]
    if (checkout / "setup.py").is_file():
        directories.append(checkout / "confs")
    return [directory for directory in directories if directory.is_dir()]


def packaged_confs() -> list[str]:
    """Names of the confs that come with the library, as ``--conf`` takes them."""
    return sorted(
        {
            path.relative_to(directory).with_suffix("").as_posix()
            for directory in conf_directories()
            for path in directory.rglob(f"*{SUFFIX}")
        }
    )


def find_conf(name: str, folder: Path | None = None) -> Path:
    """The file that ``name`` stands for: a path, or the name of a packaged conf.

    ``.gin`` may be left out. A path is relative to ``folder``, which is the current
    directory for the command line and that of the including file for an include.

    Raises:
        ConfigError: if there is none, with the names that were meant perhaps.
    """
    if not name.strip():
        raise ConfigError("the name of the conf is empty. Give a path or a name.")
    if name.endswith(".py"):
        raise ConfigError(_is_program(name))
    folder = folder or Path()
    path = Path(name).expanduser()
    bases = [folder] if path.is_absolute() else [folder, *conf_directories()]
    candidates = [b / n for b in bases for n in (path, Path(f"{path}{SUFFIX}"))]
    try:
        for candidate in candidates:
            if candidate.exists() and not candidate.is_dir():
                return candidate
        raise ConfigError(_not_found(name, candidates[0], folder))
    except OSError as error:  # the name is too long, a directory is not readable
        raise ConfigError(f"conf {name[:80]!r}: {error.strerror}.") from error


def _is_program(name: str) -> str:
    near = Path(name).stem.removesuffix("_conf")
    shipped_conf = f" --conf={near} is shipped." if near in packaged_confs() else ""
    return (
        f"conf {name!r} is a Python program, as those of ALF are. Here a conf is a "
        f"{SUFFIX} file; docs/coming_from/alf.md says how to write one.{shipped_conf}"
    )


def _not_found(name: str, path: Path, folder: Path) -> str:
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob(f"*{SUFFIX}"))[:10])
        return (
            f"conf {name!r} is a directory. Give one of the files in it: "
            f"{inside or f'it has no {SUFFIX} file'}."
        )
    packaged = packaged_confs()
    beside = [p.stem for p in path.parent.glob(f"*{SUFFIX}")]
    near = [*packaged, *(str(Path(name).parent / stem) for stem in beside)]
    suggestion = did_you_mean(name.removesuffix(SUFFIX), near)
    return (
        f"conf {name!r} not found in {folder.resolve()} or among the packaged ones."
        f"{suggestion}\n  Packaged: {', '.join(packaged) or 'none'}"
    )


def read_conf(path: Path) -> str:
    """The text of a conf.

    Raises:
        ConfigError: if it cannot be read, is no regular file (which may have no end),
            is far larger than any conf, or is not UTF-8.
    """
    return read_text(path, CONFIG, MAX_SIZE).replace("\r\n", "\n")


def check_size(size: int, name: str) -> None:
    """Refuses confs that would be read for minutes.

    Args:
        size: bytes.
        name: of what has them, for the message.

    Raises:
        ConfigError: if it is too much.
    """
    if size > MAX_SIZE:
        raise ConfigError(
            f"conf {name!r} has more than {MAX_SIZE:,} bytes, which cannot be a conf. "
            "Is it the right file?"
        )
