"""Lists what comes with the library: ``alf_lite list confs pendulum``.

Nothing is kept for it: what a conf trains is read from the conf, its score from the
table in confs/README.md, what an algorithm is from the table of the README.
"""

from __future__ import annotations

from alf_lite.bin.program import Flag, Program
from alf_lite.tools.listing import LISTINGS, list_things

FLAGS = (
    Flag(
        "what",
        "First confs, algorithms or environments; then words that all must be in "
        "the line, such as a name, an environment or an extra.",
        default=[],
        required=f"what should be listed? One of: {', '.join(LISTINGS)}",
    ),
    Flag("json", "Print one JSON array, with more of each.", default=False),
)


PROGRAM = Program(
    name="list",
    summary="Lists the confs with their scores, the algorithms, or the environments.",
    examples=(
        "confs",
        "confs Pendulum SacAlgorithm",
        "confs ppo_cart_pole         # all that its header says",
        "algorithms discrete",
        "confs --json",
    ),
    flags=FLAGS,
    run=list_things,
    prints_result=True,
    operand="what",
    operands=tuple(LISTINGS),
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
