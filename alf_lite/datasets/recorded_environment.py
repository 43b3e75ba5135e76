"""The specs of a data set in place of an environment, for training on it alone.

create_environment.env_ctor = @recorded_environment
recorded_environment.source = "minari:pendulum/random-v0"
"""

from __future__ import annotations

from alf_lite.config import configurable
from alf_lite.datasets.formats import open_source
from alf_lite.datasets.minari_datasets import MinariDataset
from alf_lite.environments.specs_only_environment import SpecsOnlyEnvironment
from alf_lite.errors import ConfigError


@configurable
def recorded_environment(source: str = "") -> SpecsOnlyEnvironment:
    """An environment with the spaces that a source was recorded in, which cannot step.

    Args:
        source: of a format that says its spaces: a Minari data set.

    Raises:
        ConfigError: if the source does not say its spaces.
        DataError: if it cannot be read.
    """
    if not source:
        raise ConfigError("recorded_environment.source is not set")
    opened = open_source(source)
    if not isinstance(opened, MinariDataset):
        raise ConfigError(
            f"{source} does not say the spaces it was recorded in. Name them with "
            "create_environment.env_ctor = @SpecsOnlyEnvironment"
        )
    observation_space, action_space = opened.spaces
    return SpecsOnlyEnvironment(observation_space, action_space, name=source)
