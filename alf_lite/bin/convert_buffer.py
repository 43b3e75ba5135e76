"""Converts recorded steps: ``python -m alf_lite.bin.convert_buffer SOURCE ...``."""

from __future__ import annotations

from typing import Any

from absl.flags import FlagValues

from alf_lite.bin import recorded_steps_flags
from alf_lite.bin.program import Flag, Program
from alf_lite.errors import ConfigError

FLAGS = (
    Flag(
        "source",
        "What to convert, with or without --source=: a run, a checkpoint or a "
        "replay file, a replay checkpoint of ALF, a Minari data set, .npz episodes.",
        default=[],
    ),
    *recorded_steps_flags.ENVIRONMENT,
    *recorded_steps_flags.OUTPUT,
    Flag(
        "max_length",
        "Take the newest steps only, so many of all environments together. "
        "Default: all.",
        kind=int,
        low=1,
    ),
    Flag(
        "drop_bad_episodes",
        "Leave out the episodes with a NaN or infinite number instead of refusing "
        "the source.",
        default=False,
    ),
)


def convert_buffer(values: FlagValues) -> int:
    """Converts as the flags say; returns the exit code."""
    if len(values.source) != 1:
        raise ConfigError(f"expected one SOURCE to convert, got {len(values.source)}")
    if not recorded_steps_flags.names_environment(values):
        raise ConfigError(
            "no environment is named: give --conf or --env. The source is compared "
            "with its specs, which also say between which bounds actions are"
        )
    recorded_steps_flags.check_output(values)

    # Imported here: it takes a second or two, which a misspelt flag need not wait for.
    from alf_lite.config import files as config_files
    from alf_lite.datasets.loading import load_replay_buffer
    from alf_lite.datasets.writing import write_source

    recorded_steps_flags.parse_config(values)
    # What is not given leaves load_replay_buffer as it is configured.
    flags = ("max_length", "drop_bad_episodes")
    given: dict[str, Any] = {
        name: values[name].value for name in flags if values[name].value
    }
    with recorded_steps_flags.create_environment(num_parallel_environments=1) as env:
        buffer = load_replay_buffer(
            values.source[0],
            env,
            keep_open_ends=True,
            **given,
        )
        config_files.warn_of_unused_parameters()
        write_source(buffer, env, values.output, values.format)
    recorded_steps_flags.tell_written(values)
    return 0


PROGRAM = Program(
    name="convert_buffer",
    summary="Converts recorded steps of one format into another.",
    examples=(
        "minari:pendulum/expert-v0 --env=Pendulum-v1 --output=data/expert.replay",
        "runs/sac --conf=sac_pendulum --output=data/sac.npz --format=npz",
        "runs/sac --env=Pendulum-v1 --max_length=10000 "
        "--output=data/pendulum/late-v0 --format=minari",
    ),
    flags=FLAGS,
    run=convert_buffer,
    operand="source",
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
