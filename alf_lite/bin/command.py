"""The console script: every program as a subcommand, ``alf_lite train --conf=…``.

A program is a module of this folder with a ``PROGRAM`` and its ``main``; there is no
list to keep. To add ``alf_lite NAME``, write ``NAME.py`` after the pattern of
``play.py``:

* ``FLAGS`` are its flags,
* imports that take time are inside of the function that runs, so that ``--help`` and
  completion stay fast,
* ``PROGRAM`` has the summary (one line of ``alf_lite --help``) and examples.

It is then ``python -m alf_lite.bin.NAME``, too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from alf_lite.tools.invocation import SCRIPT

if TYPE_CHECKING:
    from alf_lite.bin.program import Program

_PROGRAM = re.compile(r"^PROGRAM = (.*?^\))", re.MULTILINE | re.DOTALL)
# In the order of a project; what else there is comes after them by name.
_ORDER = (
    "train",
    "play",
    "collect",
    "plot",
    "compare",
    "sweep",
    "export",
    "push",
    "list",
)


@cache
def summaries() -> dict[str, str]:
    """Command → what it does; read in the source, not imported."""
    found: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        definition = _PROGRAM.search(path.read_text(encoding="utf-8"))
        if definition is not None:
            found[path.stem] = _summary(definition[1])
    return {name: found[name] for name in [*_ORDER, *found] if name in found}


def command_names() -> list[str]:
    """The commands that there are."""
    return list(summaries())


def _summary(call: str) -> str:
    """The argument of this name in a call of ``Program``."""
    (statement,) = ast.parse(call).body
    assert isinstance(statement, ast.Expr), call
    assert isinstance(statement.value, ast.Call), call
    arguments = {keyword.arg: keyword.value for keyword in statement.value.keywords}
    return str(ast.literal_eval(arguments["summary"]))


def load(name: str) -> Program:
    """The program that is one of ``command_names``."""
    program: Program = import_module(f"alf_lite.bin.{name}").PROGRAM
    return program


def help_text() -> str:
    """One line for every command."""
    width = max(map(len, summaries()))
    return "\n".join(
        [
            "Compact, fast, algorithm-centric reinforcement learning.",
            "",
            f"usage: {SCRIPT} COMMAND [flags]",
            "",
            "commands:",
            *(f"  {name:<{width}}  {text}" for name, text in summaries().items()),
            "",
            f"{SCRIPT} COMMAND --help shows the flags of a command, {SCRIPT} --version "
            "the version.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name, *rest = arguments or ["--help"]
    if name in command_names():
        return load(name).main(rest)
    if name in ("--help", "-help", "-h", "help"):
        print(help_text())
        # Who gave no command has not got what was wanted.
        return 0 if arguments else 2
    if name in ("--version", "-V"):
        import alf_lite

        print(f"{SCRIPT} {alf_lite.__version__}")
        return 0
    print(f"error: {_unknown(name)}", file=sys.stderr)
    return 2


def _unknown(name: str) -> str:
    from alf_lite.errors import did_you_mean

    if name.startswith("-"):
        return f"the command comes before its flags. See {SCRIPT} --help"
    names = command_names()
    suggestion = did_you_mean(name, names) or f" There are {', '.join(names)}."
    return f"there is no command {name!r}.{suggestion} See {SCRIPT} --help"


if __name__ == "__main__":
    sys.exit(main())
