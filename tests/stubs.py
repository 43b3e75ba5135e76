"""What editors and type checkers are told of the public names: ``__init__.pyi`` files.

A constructor writes down its own parameters and passes the others on, which no type
checker follows. The stub of a package offers its names, with classes whose constructors
say all that they take: those that ``inspect.signature`` tells, with the annotations of
the constructors that have written them down.

    python -m tests.stubs    writes them; a test asks whether they are up to date
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import alf_lite
from alf_lite import exports
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import configurables, names
from tests.source_code import ROOT

PACKAGES = [
    f"alf_lite.{path.parent.name}"
    for path in sorted((ROOT / "alf_lite").glob("*/__init__.py"))
    if "load_public" in path.read_text(encoding="utf-8")
]
_HEADER = "# Written by `python -m tests.stubs`.\n"
_LINE_LENGTH = 88
_LITERALS = (int, float, str, bool, type(None))


def stubs() -> dict[Path, str]:
    """File → its text, for the library and each package that offers names."""
    texts = {_path(package): _package_stub(package) for package in PACKAGES}
    return {_path("alf_lite"): _front_door(), **texts}


def _path(package: str) -> Path:
    return ROOT / package.replace(".", "/") / "__init__.pyi"


def _front_door() -> str:
    """The names of the library itself, from the packages where these offer them."""
    offers = [(*o, p) for p in PACKAGES for o in exports.public_names(p).items()]
    packages = {(name, module): package for name, module, package in offers}
    algorithms = exports.public_names("alf_lite.algorithms")
    modules = algorithms | {n: f"alf_lite.{m}" for n, m in alf_lite._MODULES.items()}
    imports = _Imports()
    offered = sorted({*dir(alf_lite)} - {"__version__"})
    for name in offered:
        module = modules[name]
        imports.add(packages.get((name, module), module), name, name)
    return "\n".join([_HEADER, *imports.lines(offered), "", "__version__: str", ""])


def _package_stub(package: str) -> str:
    importlib.import_module(package)
    imports, classes = _Imports(), []
    offered = exports.public_names(package)
    complete = {n: c for n, m in offered.items() if (c := _complete_class(n, m))}
    for name, module in offered.items():
        imports.add(module, name, f"_{name}" if name in complete else name)
    for cls in sorted(complete.values(), key=lambda c: len(c.__mro__)):
        bases = [f"_{cls.__name__}"]
        bases += [b.__name__ for b in cls.__mro__[1:] if b in complete.values()][:1]
        classes += [
            "",
            f"class {cls.__name__}({', '.join(bases)}):",
            "    def __init__(",
            *(f"        {p}," for p in ["self", *_parameters(cls, imports)]),
            "    ) -> None: ...",
        ]
    return "\n".join([_HEADER, *imports.lines(offered), *classes, ""])


def _complete_class(name: str, module: str) -> type | None:
    """The class, if its constructor leaves parameters to that of a base class."""
    if names.shipped().get(name) != module:
        return None
    found = getattr(importlib.import_module(module), name)
    if not inspect.isclass(found):
        return None
    written = next(configurables._written_functions(found))
    kinds = {p.kind for p in inspect.signature(written).parameters.values()}
    return found if inspect.Parameter.VAR_KEYWORD in kinds else None


def _parameters(cls: type, imports: _Imports) -> Iterator[str]:
    is_keyword_only = False
    for parameter in configurables.parameters(cls) or []:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            yield "*"
        yield f"{parameter.name}: {_annotation(cls, parameter.name, imports)}" + (
            _default(cls, parameter)
        )


def _default(cls: type, parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        # A root takes its specs from its environment.
        is_spec = issubclass(cls, RLAlgorithm) and parameter.name.endswith("_spec")
        return " = ..." if is_spec else ""
    is_literal = type(parameter.default) in _LITERALS
    return f" = {parameter.default!r}" if is_literal else " = ..."


def _annotation(cls: type, parameter: str, imports: _Imports) -> str:
    """As in the source, its names imported."""
    for function in configurables._written_functions(cls):
        text = function.__annotations__.get(parameter)
        if text is not None:
            return imports.with_names(text, function.__module__)
    raise AssertionError(f"{cls.__name__}: {parameter} has no type")


class _Imports:
    """What a stub imports."""

    def __init__(self) -> None:
        self._origins: dict[str, tuple[str, str]] = {}  # name here → module, its name

    def add(self, module: str, name: str, here: str) -> str:
        """Imports ``name`` as ``here``, or as another name if that is taken."""
        while self._origins.setdefault(here, (module, name)) != (module, name):
            here = f"_{here}"
        return here

    def with_names(self, text: str, module: str) -> str:
        """An annotation of ``module``, with the names that its types have here."""
        tree = ast.parse(text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                node.id = self._name_of(node.id, module)
        return ast.unparse(tree).replace("'", '"')

    def _name_of(self, name: str, module: str) -> str:
        origin = _imported(module).get(name, (module, name))
        known = {value: here for here, value in self._origins.items()}
        return known.get(origin) or self.add(*origin, name)

    def lines(self, offered: Collection[str]) -> list[str]:
        """The statements; in a stub, only ``name as name`` offers it."""
        found: dict[str, list[str]] = {}
        for here, (module, name) in sorted(self._origins.items()):
            is_plain = here == name and here not in offered
            found.setdefault(module, []).append(
                name if is_plain else f"{name} as {here}"
            )
        lines = []
        for module, names_there in sorted(found.items()):
            line = f"from {module} import {', '.join(names_there)}"
            if len(line) > _LINE_LENGTH:
                inside = "".join(f"\n    {name}," for name in names_there)
                line = f"from {module} import ({inside}\n)"
            lines.append(line)
        return lines


@cache
def _imported(module: str) -> dict[str, tuple[str, str]]:
    """Name → (module, name there), for what a module imports, for types only too."""
    source = inspect.getsource(importlib.import_module(module))
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def main() -> None:
    """Writes all of them."""
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
