"""The flags that name an environment: ``--conf``, ``--env`` and ``--gin_param``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags

if TYPE_CHECKING:
    from alf_lite.environments.environment import Environment


def define(values: flags.FlagValues) -> None:
    """Adds the flags."""
    flags.DEFINE_string(
        "conf",
        None,
        "The environment of this conf: the path of a .gin file, or the name of a conf "
        "that comes with the library.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "env",
        None,
        "The environment: an id registered with gymnasium, such as Pendulum-v1.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "gin_param",
        [],
        "A setting that overrides the conf: 'create_environment.env_info_keys = []'.",
        flag_values=values,
    )


def are_given(values: flags.FlagValues) -> bool:
    """Whether an environment is named."""
    return bool(values.conf or values.env or values.gin_param)


def parse(values: flags.FlagValues, conf: str | None = None) -> None:
    """Makes the flags the configuration of the process.

    Args:
        values: of the flags.
        conf: instead of ``--conf``.
    """
    # Registers what --env binds.
    import alf_lite.environments.creation  # noqa: F401
    from alf_lite.config import files as config_files

    config_files.parse_config(conf or values.conf, parameters(values))


def parameters(values: flags.FlagValues) -> list[str]:
    """The bindings that the flags are."""
    bindings = list(values.gin_param)
    if values.env:
        bindings.append(f"create_environment.env_name = {values.env!r}")
    return bindings


def create(**kwargs: Any) -> Environment:
    """The environment that the configuration describes.

    Args:
        **kwargs: of ``create_environment``, more important than the configuration.
    """
    from alf_lite.config import files as config_files
    from alf_lite.environments.creation import create_environment

    with config_files.gin_errors():
        return create_environment(**kwargs)
