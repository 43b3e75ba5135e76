"""Shows a search of a trained policy: ``alf_lite search_tree --root_dir=runs/az``."""

from __future__ import annotations

from absl.flags import FlagValues

from alf_lite.bin.program import (
    CHECKPOINT,
    GIN_PARAM,
    SEED,
    Flag,
    Program,
    run_of_flags,
)
from alf_lite.errors import ConfigError

FLAGS = (
    Flag(
        "root_dir",
        "Directory of a run of AlphaZero or MuZero. Its configuration is executed: use "
        "only runs that you trust.",
        required="whose search should be shown?",
    ),
    CHECKPOINT,
    Flag(
        "action",
        "What is done first, one after the other, with or without --action=. Default: "
        "nothing, so that the first observation is searched from.",
        default=[],
    ),
    Flag("steps", "That the policy goes on by itself after these.", 0, low=0),
    Flag("levels", "How many actions deep the tree is shown.", 3, low=1),
    Flag("branches", "How many actions of a node, the most visited.", 3, low=1),
    Flag(
        "output",
        "Pictures to write: .png, .svg or .pdf. Needs pip install 'alf_lite[plot]'.",
        default=[],
    ),
    SEED._replace(help="Of the environment."),
    GIN_PARAM,
)


def show_tree(values: FlagValues) -> int:
    """Shows what the flags say; returns the exit code."""
    wrong = [action for action in values.action if not action.isdecimal()]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: an action is a number from 0 on")
    from alf_lite.tools import pictures, search_trees

    for file in values.output:
        pictures.check_can_draw(file)
    root_dir, checkpoint = run_of_flags(values)
    searched = search_trees.search_of_run(
        root_dir,
        checkpoint=checkpoint,
        actions=list(map(int, values.action)),
        num_steps=values.steps,
        seed=values.seed,
        gin_params=values.gin_param,
    )
    print(search_trees.text(searched, values.levels, values.branches))
    for file in values.output:
        search_trees.draw(searched, file, values.levels, values.branches)
        print(f"Written: {file}")
    return 0


PROGRAM = Program(
    name="search_tree",
    summary="Shows the tree of a search of AlphaZero or MuZero, as text or a picture.",
    examples=(
        "--root_dir=runs/az --output=tree.png",
        "--root_dir=runs/az 3 2 --levels=4",
        "--root_dir=runs/az --gin_param='predict/TreeSearch.num_simulations = 500'",
    ),
    flags=FLAGS,
    run=show_tree,
    operand="action",
    prints_result=True,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
