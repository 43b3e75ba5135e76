"""Lists what comes with the library: ``alf_lite list confs pendulum``.

Nothing is kept for it: what a conf trains is read from the conf, its score from the
table in confs/README.md, what an algorithm is from the table of the README.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from alf_lite.bin import program
from alf_lite.tools.listing import LISTINGS, list_things


def define_flags() -> flags.FlagValues:
    """The flags and their defaults."""
    values = flags.FlagValues()
    flags.DEFINE_multi_string(
        "what",
        [],
        "First confs, algorithms or environments; then words that all must be in the "
        "line, such as a name, an environment or an extra.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "json", False, "Print one JSON array, with more of each.", flag_values=values
    )
    return values


PROGRAM = program.Program(
    name="list",
    summary="Lists the confs with their scores, the algorithms, or the environments.",
    examples=(
        "confs",
        "confs Pendulum SacAlgorithm",
        "confs ppo_cart_pole         # all that its header says",
        "algorithms discrete",
        "confs --json",
    ),
    define_flags=define_flags,
    run=list_things,
    prints_result=True,
    operand="what",
    operands=tuple(LISTINGS),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return program.main(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
