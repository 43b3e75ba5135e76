"""The public names of a package, which are loaded when somebody asks for them.

They are found in the source of the package: the classes and functions at the top level
of its modules. So there is no list to keep, and importing one part does not import all.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

# What few programs need is imported inside the functions.

# Old → new: modules, classes, functions, and settings as ``Owner.parameter``. The old
# ones stand for the new ones until the minor version after the one that renamed them.
RENAMED = {"alf_lite.trainers.tracking_hooks": "alf_lite.tools.tracking_hooks"}


def current_name(name: str) -> str:
    """What ``name`` is called now; a FutureWarning if that is something else."""
    new = RENAMED.get(name, name)
    if new != name:
        import warnings

        text = f"{name!r} is called {new!r} now. The next minor version refuses it."
        warnings.warn(text, FutureWarning, stacklevel=3)
    return new


@cache
def public_names(package: str) -> dict[str, str]:
    """Name → the module that defines it; read, not imported."""
    import re

    definition = re.compile(r"^(?:class|def) ([A-Za-z]\w*)", re.MULTILINE)
    found: dict[str, str] = {}
    for path in sorted(_folder(package).glob("*.py")):
        for name in definition.findall(path.read_text(encoding="utf-8")):
            found.setdefault(name, f"{package}.{path.stem}")
    return found


def load_public(package: str, name: str) -> Any:
    """What the ``__getattr__`` of a package returns; ``__all__``, too.

    Raises:
        AttributeError: if nothing public has this name.
    """
    if name == "__all__":
        return list(public_names(package))
    if is_module(package, name):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    names = public_names(package)
    name = current_name(name)
    if name not in names:
        raise no_such_name(package, name, list(names))
    return getattr(importlib.import_module(names[name]), name)


def is_module(package: str, name: str) -> bool:
    """Whether the import system asks, which imports a module if it is told no."""
    path = _folder(package) / name
    is_file = path.with_suffix(".py").exists() or path.is_dir()
    return name.startswith("_") or is_file


def no_such_name(package: str, name: str, names: list[str]) -> AttributeError:
    """An error with the nearest of the names."""
    near = nearest(name, names)[:1]
    hint = f". Did you mean {near[0]!r}?" if near else ""
    return AttributeError(f"module {package!r} has no attribute {name!r}{hint}")


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Up to three of the names that were meant perhaps, the likeliest first.

    Of those that begin with it, as PPOAlgorithm with PPO, the shortest.
    """
    import difflib

    lower = name.lower()
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(lower, by_lower, n=3)
    if not near and len(name) > 2:
        near = [known for known in sorted(by_lower, key=len) if known.startswith(lower)]
    return [by_lower[known] for known in near[:3]]


def _folder(package: str) -> Path:
    from pathlib import Path

    return Path(sys.modules[package].__path__[0])
