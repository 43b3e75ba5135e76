"""The flags of programs about recorded steps: the environment, and what is written."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from absl.flags import FlagValues

from alf_lite.bin.program import Flag
from alf_lite.tools.invocation import invocation

if TYPE_CHECKING:
    from alf_lite.environments.environment import Environment


# The environment: --conf, --env and --gin_param

PYTHON_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


ENVIRONMENT = (
    Flag(
        "conf",
        "The environment of this conf: the path of a .gin file, or the name of a "
        "conf that comes with the library.",
    ),
    Flag(
        "env",
        "The environment: an id registered with gymnasium, such as Pendulum-v1, or "
        "a class or function, such as my_module.MyEnv.",
    ),
    Flag(
        "gin_param",
        "A setting that overrides the conf: 'create_environment.env_info_keys = []'.",
        default=[],
    ),
)


def names_environment(values: FlagValues) -> bool:
    """Whether an environment is named."""
    return bool(values.conf or values.env or values.gin_param)


def parse_config(values: FlagValues, conf: str | None = None) -> None:
    """Makes the flags the configuration of the process.

    Args:
        values: of the flags.
        conf: instead of ``--conf``.
    """
    # Registers what --env binds.
    import alf_lite.environments.creation  # noqa: F401
    from alf_lite.config import files as config_files

    config_files.parse_config(conf or values.conf, parameters(values))


def parameters(values: FlagValues) -> list[str]:
    """The bindings that the flags are."""
    bindings = list(values.gin_param)
    if values.env and PYTHON_NAME.fullmatch(values.env):
        bindings.append(f"create_environment.env_ctor = @{values.env}")
    elif values.env:
        # Otherwise that of a conf would be built under this name.
        bindings.append("create_environment.env_ctor = None")
        bindings.append(f"create_environment.env_name = {values.env!r}")
    return bindings


def create_environment(**kwargs: Any) -> Environment:
    """The environment that the configuration describes.

    Args:
        **kwargs: of ``create_environment``, more important than the configuration.
    """
    from alf_lite.config import files as config_files
    from alf_lite.environments import creation

    with config_files.gin_errors():
        return creation.create_environment(**kwargs)


# The output: --output, --format and --json


OUTPUT = (
    Flag(
        "output",
        "What to write: a file or, for minari, a directory. It is never "
        "overwritten, and appears when it is complete.",
        required="what should be written?",
    ),
    Flag(
        "format",
        "alf_lite: steps as agents see them, which is loaded fastest. npz: "
        "episodes of numpy in the environment's own units. minari: a Minari data "
        "set; needs pip install 'alf_lite[minari]'.",
        default="alf_lite",
    ),
    Flag(
        "json",
        "Print one JSON object as the last line, as inspect_buffer does.",
        default=False,
    ),
)


def check_output(values: FlagValues) -> None:
    """Raises ConfigError if the output cannot be written like that."""
    from alf_lite.datasets import writing

    writing.check_output(values.output, values.format)


def tell_written(values: FlagValues) -> None:
    """Prints what is in the output, and what to do with it."""
    from alf_lite.datasets.formats import open_source
    from alf_lite.tools import report, step_statistics

    # Read from there: formats differ in what they say of ends and environments.
    statistics = step_statistics.summarize(open_source(values.output, verify=False))
    source = json.dumps(values.output, ensure_ascii=False)
    setting = shlex.quote(f"TrainerConfig.offline_buffer_dir = {source}")
    train = f"{invocation('train')} --conf=CONF --root_dir=RUN --gin_param={setting}"
    print(f"Wrote {values.output}: {report.summary_line(statistics)}.")
    print(f"Look at it:   {invocation('inspect_buffer')} {shlex.quote(values.output)}")
    print(f"Train on it:  {train}")
    if values.json:
        print(json.dumps(report.steps_as_json([statistics], [values.output])))
