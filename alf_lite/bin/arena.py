"""Games between policies: ``python -m alf_lite.bin.arena runs/a runs/b random``."""

from __future__ import annotations

from typing import Any

from alf_lite.bin.program import SEED, Flag, Program

FLAGS = (
    Flag(
        "player",
        "Who plays, with or without --player=: directories of runs (RUN, RUN@STEP "
        "of a checkpoint, checkpoints:RUN for all, average:RUN and snapshots:RUN of a "
        "league), or the bots "
        "random, one_ply, perfect and mcts:NUMBER (of simulations; the games extra).",
        default=[],
        required="who should play?",
    ),
    Flag(
        "game",
        "Such as tic_tac_toe, connect_four or open_spiel/NAME. Default: that of the "
        "first run, or tic_tac_toe if only bots play.",
    ),
    Flag("games", "Games of each pair, half of them in each seat.", 400, low=2),
    Flag(
        "random_moves",
        "With which each game begins. Policies that always take their best action play "
        "one game again and again without.",
        2,
        low=0,
    ),
    Flag("sampled", "Policies draw their actions in place of the best one.", False),
    SEED,
    Flag(
        "output",
        "Files to write: .json for the results, .png, .svg or .pdf for a picture of "
        "who wins against whom, and of the ratings.",
        default=[],
    ),
)


def _run(values: Any) -> int:
    from alf_lite.tools.arena import run_arena

    return run_arena(values)


PROGRAM = Program(
    name="arena",
    summary="Lets policies and bots play against each other, and rates them.",
    examples=(
        "runs/a runs/b random perfect --game=tic_tac_toe",
        "runs/league mcts:10 mcts:100 --games=200",
        "checkpoints:runs/a random --output=elo.png --output=elo.json",
    ),
    flags=FLAGS,
    run=_run,
    operand="player",
    prints_result=True,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
