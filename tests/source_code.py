"""Reads the library's sources for the tests that check rules about them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "alf_lite"


def module_name(path: Path, package: Path) -> str:
    """``.../alf_lite/utils/losses.py`` -> ``alf_lite.utils.losses``."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parse_package(package: Path = PACKAGE) -> dict[str, ast.Module]:
    """The syntax tree of every module by its dotted name; to be read only."""
    return {
        module_name(path, package): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }


def imported_modules(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted name) of everything imported below ``tree``.

    ``from a import b`` counts as ``a.b``, because b may be a module.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found
