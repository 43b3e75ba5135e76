"""Tells what is in recorded steps: ``python -m alf_lite.bin.inspect_buffer PATH``."""

from __future__ import annotations

import contextlib
import json

from absl.flags import FlagValues

from alf_lite.bin import recorded_steps_flags
from alf_lite.bin.program import Flag, Program
from alf_lite.tools import pictures

FLAGS = (
    Flag(
        "path",
        "What to inspect, with or without --path=: a run, a checkpoint or a replay "
        "file, a replay checkpoint of ALF, a Minari data set, .npz episodes.",
        default=[],
        required="what should be inspected?",
    ),
    *recorded_steps_flags.ENVIRONMENT,
    Flag(
        "picture",
        "Draw the returns into this file: returns.png. Needs pip install "
        "'alf_lite[plot]'.",
    ),
    Flag(
        "json",
        "Print one JSON object as the last line: total_steps, num_environments, "
        "trainable_transitions, complete_episodes, average_return, fields, ...",
        default=False,
    ),
)


def inspect_buffer(values: FlagValues) -> int:
    """Inspects what the flags say; returns the exit code."""
    if values.picture is not None:
        pictures.check_can_draw(values.picture)

    # Imported here: it takes a second or two, which a misspelt flag need not wait for.
    from alf_lite.config import files as config_files
    from alf_lite.datasets.formats import open_source
    from alf_lite.tools import report
    from alf_lite.tools.step_statistics import spec_bounds, summarize

    statistics = []
    with contextlib.ExitStack() as stack:
        env = None
        if recorded_steps_flags.names_environment(values):
            recorded_steps_flags.parse_config(values)
            env = recorded_steps_flags.create_environment(num_parallel_environments=1)
            stack.callback(env.close)
            config_files.warn_of_unused_parameters()
        for path in values.path:
            source = open_source(path)
            bounds = None if env is None else spec_bounds(source, env)
            statistics.append(summarize(source, bounds))
            print("\n".join(report.source_lines(path, statistics[-1])))
    if values.picture is not None:
        report.draw_returns(statistics, values.path, values.picture)
        print(f"Drawn:        {values.picture}")
    if values.json:
        print(json.dumps(report.steps_as_json(statistics, values.path)))
    return 0


PROGRAM = Program(
    name="inspect_buffer",
    summary="Tells what is in recorded steps, and what is wrong with them.",
    examples=(
        "runs/sac",
        "data/expert.npz --env=Pendulum-v1     # compares with the bounds, too",
        "minari:mujoco/halfcheetah/medium-v0 --picture=returns.png",
        "runs/sac --json | tail -n 1",
    ),
    flags=FLAGS,
    run=inspect_buffer,
    prints_result=True,
    operand="path",
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
