"""Modules with one small mistake each, which some test has to notice.

A mutant is a module in which one operator, constant or condition is another. Its tests
run in processes of their own, where ``loader/sitecustomize.py`` loads the mutant in
place of the module. A mutant that all tests pass shows what no test asks.
"""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.source_code import ROOT

VARIABLE = "ALF_LITE_MUTANT"  # "module:index", for the loader
_LOADER = Path(__file__).parent / "loader"

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Mutant(NamedTuple):
    """One mistake in one module."""

    module: str  # such as "alf_lite.utils.losses"
    index: int  # among all that the module can have
    change: str  # "line before  ->  line after"

    @property
    def name(self) -> str:
        return f"{self.module}:{self.index}"


def source_path(module: str) -> Path:
    return ROOT / Path(*module.split(".")).with_suffix(".py")


def mutants_of(module: str) -> list[Mutant]:
    """All that there are, in the order of the lines."""
    source = source_path(module).read_text(encoding="utf-8")
    return [
        Mutant(module, index, change)
        for index, (change, _) in enumerate(_mutations(source))
    ]


def mutated(source: str, index: int) -> ast.Module:
    """The module with its ``index``-th mistake."""
    for i, (_, tree) in enumerate(_mutations(source)):
        if i == index:
            return ast.fix_missing_locations(tree)
    raise IndexError(f"there is no mutant {index}")


def some_mutants(module: str, count: int) -> list[Mutant]:
    """The same ones for the same text of the module."""
    found = mutants_of(module)
    chosen = random.Random(module).sample(found, min(count, len(found)))
    return sorted(chosen, key=lambda mutant: mutant.index)


def survives(mutant: Mutant, tests: list[str], timeout: float = 300.0) -> bool:
    """Whether ``tests`` pass with it. What hangs or crashes was noticed."""
    environment = {
        **os.environ,
        VARIABLE: mutant.name,
        "PYTHONPATH": os.pathsep.join([str(_LOADER), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-m", "not slow and not gpu", "-x", "-q"]
    try:
        result = subprocess.run(
            [*command, "-p", "no:cacheprovider", "-p", "no:xdist", *tests],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return False
    assert "no tests ran" not in result.stdout, result.stdout
    return result.returncode == 0


def _mutations(source: str) -> Iterator[tuple[str, ast.Module]]:
    tree = ast.parse(source)
    for statement in _statements(tree):
        for node in _own_nodes(statement):
            before = dict(vars(node))
            for change in _changes(node):
                text = ast.unparse(statement).splitlines()[0]
                change()
                after = ast.unparse(statement).splitlines()[0]
                yield f"{text}  ->  {after}", tree
                vars(node).clear()
                vars(node).update(before)


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those that compute; not imports, messages, assertions and first lines."""
    skipped = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.ClassDef)
    for node in ast.walk(tree):
        is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.stmt) and not (
            isinstance(node, skipped) or is_definition or _is_document(node)
        ):
            yield node


def _is_document(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Nodes of expressions, not those of the statements within and of annotations."""
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(
                child, ast.stmt | ast.excepthandler
            ):
                yield from ast.walk(child)
    if isinstance(statement, ast.If | ast.While | ast.AugAssign):
        yield statement


def _changes(node: ast.AST) -> Iterator:
    """What to do to ``node``, which is restored afterwards."""
    operator = getattr(node, "op", None)
    if type(operator) in _OTHER:
        yield lambda: setattr(node, "op", _OTHER[type(operator)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
        first, *others = node.ops
        yield lambda: setattr(node, "ops", [_OTHER[type(first)](), *others])
    if isinstance(node, ast.UnaryOp):
        once = node.operand
        yield lambda: setattr(node, "operand", ast.UnaryOp(node.op, once))
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda: setattr(node, "value", node.value + 1)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda: setattr(node, "value", not node.value)
    if isinstance(node, ast.If | ast.While):
        test = node.test
        yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))
