"""The flags of programs that write recorded steps, and what they tell of these."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from absl import flags

from alf_lite.errors import ConfigError

if TYPE_CHECKING:
    from alf_lite.replay_buffers.replay_buffer import ReplayBuffer


def define(values: flags.FlagValues) -> None:
    """Adds the flags."""
    flags.DEFINE_string(
        "output",
        None,
        "What to write: a file or, for minari, a directory. It is never overwritten, "
        "and appears when it is complete.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "format",
        "alf_lite",
        "alf_lite: steps as agents see them, which is loaded fastest. npz: episodes of "
        "numpy in the environment's own units. minari: a Minari data set; needs pip "
        "install 'alf_lite[minari]'. Default: alf_lite.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "json",
        False,
        "Print one JSON object as the last line, as inspect_buffer does.",
        flag_values=values,
    )


def check(values: flags.FlagValues) -> None:
    """Raises ConfigError if the output cannot be written like that."""
    from alf_lite.datasets.writing import check_output

    if not values.output:
        raise ConfigError("--output is missing: what should be written?")
    check_output(values.output, values.format)


def written_lines(values: flags.FlagValues, buffer: ReplayBuffer) -> list[str]:
    """What was written, and what to do with it."""
    from alf_lite.bin import dataset_report

    inspect = f"python -m alf_lite.bin.inspect_buffer {shlex.quote(values.output)}"
    source = json.dumps(values.output, ensure_ascii=False)
    setting = shlex.quote(f"TrainerConfig.offline_buffer_dir = {source}")
    train = (
        f"python -m alf_lite.bin.train --conf=CONF --root_dir=RUN --gin_param={setting}"
    )
    return [
        f"Wrote {values.output}: {dataset_report.summary_line(_statistics(buffer))}.",
        f"Look at it:   {inspect}",
        f"Train on it:  {train}",
    ]


def as_json(values: flags.FlagValues, buffer: ReplayBuffer) -> dict[str, Any]:
    """The statistics of what was written."""
    from alf_lite.bin import dataset_report

    return dataset_report.as_json([_statistics(buffer)], [values.output])


def _statistics(buffer: ReplayBuffer) -> Any:
    from alf_lite.datasets.replay_sources import BufferSource
    from alf_lite.datasets.statistics import summarize

    return summarize(BufferSource(buffer))
