"""Plays a trained policy: ``python -m alf_lite.bin.play --root_dir=runs/ppo``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from absl.flags import FlagValues

from alf_lite.bin.program import (
    CHECKPOINT,
    DEVICE,
    GIN_PARAM,
    SEED,
    Flag,
    Program,
    run_of_flags,
)
from alf_lite.errors import ConfigError

if TYPE_CHECKING:
    from alf_lite.tools.player import PlayResult


FLAGS = (
    Flag(
        "root_dir",
        "Directory of the run to play, or a checkpoint of it. Its configuration is "
        "executed: play only runs that you trust.",
        required="which run should be played?",
    ),
    CHECKPOINT,
    Flag("num_episodes", "Episodes to play.", default=10, low=1),
    Flag(
        "num_environments",
        "Environments that are stepped side by side.",
        default=1,
        low=1,
    ),
    Flag(
        "sample",
        "Draw actions from the policy instead of taking the most likely ones.",
        default=False,
    ),
    Flag(
        "human",
        "Play a game against the policy yourself, here in the terminal: it shows the "
        "board and the legal moves, and you type one. q or the end of input quits.",
        default=False,
        excludes="against",
    ),
    Flag(
        "against",
        "Show games against this player in the terminal: random, one_ply, perfect, "
        "mcts:NUMBER or the directory of a run.",
    ),
    Flag(
        "seat",
        "Yours, or that of the other player, from 0 on. Default: one after the other.",
        kind=int,
        low=0,
    ),
    Flag("render", "Show environment 0 in a window.", default=False),
    Flag(
        "record_file",
        "Record the episodes: play.mp4, play.gif; several environments are side by "
        "side. Needs pip install 'alf_lite[video]'; works without a display.",
    ),
    Flag(
        "record",
        "Which episodes are in the video: all, or the worst, the median ones and "
        "the best side by side, which are played once more for it.",
        default="all",
        choices=["all", "worst_median_best"],
        needs="record_file",
    ),
    Flag(
        "show_policy",
        "Write into the video what the policy thinks: the distribution of its actions, "
        "or their values.",
        default=False,
        needs="record_file",
    ),
    Flag(
        "json",
        "Print one JSON object as the last line: returns, lengths, average_return, ...",
        default=False,
    ),
    SEED._replace(help="Seed of the environments and the sampling."),
    DEVICE,
    GIN_PARAM,
)


def play(values: FlagValues) -> int:
    """Plays as the flags say; returns the exit code."""
    # Imported here: it takes a second or two, which a misspelt flag need not wait for.
    from alf_lite.tools import game_player, player, report

    root_dir, checkpoint = run_of_flags(values)
    if _shows_games(values):
        game_player.show_games(
            root_dir,
            values.num_episodes,
            against=values.against,
            checkpoint=checkpoint,
            seat=values.seat,
            sample=values.sample,
            device=values.device,
            seed=values.seed,
            gin_params=values.gin_param,
        )
        return 0
    result = player.play(
        root_dir,
        values.num_episodes,
        checkpoint=checkpoint,
        num_environments=values.num_environments,
        sample=values.sample,
        render=values.render,
        record_file=values.record_file,
        record=values.record,
        show_policy=values.show_policy,
        device=values.device,
        seed=values.seed,
        gin_params=values.gin_param,
    )
    print(f"Checkpoint:   {result.checkpoint}")
    for number, episode in enumerate(result.evaluation.episodes, start=1):
        text = f"return {episode.episode_return:.2f}, {episode.length} steps"
        if episode.game is not None:
            text += f", seat {episode.game.seat} against {episode.game.opponent}"
        print(f"Episode {number:<4}  {text}")
    print("\n".join(report.evaluation_lines(result.evaluation)))
    if values.record_file is not None:
        print(f"Recorded:     {values.record_file}")
    if values.json:
        print(json.dumps(_as_json(result)))
    return 0


def _shows_games(values: FlagValues) -> bool:
    """Whether games are shown in the terminal, with one player named.

    Raises:
        ConfigError: naming a flag that has no effect then, or no effect otherwise.
    """
    shows = values.human or values.against is not None
    if not shows and values.seat is not None:
        raise ConfigError("--seat needs --human or --against")
    for name in ("render", "record_file", "json", "num_environments"):
        if shows and values[name].value != values[name].default:
            kind = "human" if values.human else "against"
            raise ConfigError(
                f"--{kind} and --{name} exclude each other: give one of them"
            )
    return shows


def _as_json(result: PlayResult) -> dict[str, Any]:
    evaluation = result.evaluation
    return {
        "average_return": evaluation.mean,
        "std_return": evaluation.std,
        "min_return": evaluation.min,
        "max_return": evaluation.max,
        "ci95": evaluation.ci95,
        "average_length": evaluation.mean_length,
        "num_episodes": len(evaluation.returns),
        "returns": evaluation.returns,
        "lengths": evaluation.lengths,
        "info": evaluation.info,
        "score": evaluation.score,
        "games": [record._asdict() for record in evaluation.games],
        "checkpoint": str(result.checkpoint),
        "step": result.step,
    }


PROGRAM = Program(
    name="play",
    summary="Plays a trained policy and tells its returns.",
    examples=(
        "--root_dir=runs/ppo --num_episodes=10",
        "--root_dir=runs/ppo --checkpoint=best --render",
        "--root_dir=runs/ppo --num_episodes=1 --record_file=play.mp4",
        "--root_dir=runs/ttt --human --seat=1",
        "--root_dir=runs/ttt --against=perfect --num_episodes=2",
        "--root_dir=runs/ppo --record=worst_median_best --record_file=play.mp4",
        "--root_dir=runs/ppo --json | tail -n 1",
    ),
    flags=FLAGS,
    run=play,
    prints_result=True,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
