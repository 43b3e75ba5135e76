"""Configuration: the ``configurable`` decorator and the settings of a training run."""

# Has gin pass errors on as they are, whoever builds something.
import alf_lite.config.errors  # noqa: F401
from alf_lite.config.configurables import configurable
from alf_lite.config.trainer_config import (
    DefaultSettings,
    TrainerConfig,
    default_settings,
)

__all__ = [
    "DefaultSettings",
    "TrainerConfig",
    "configurable",
    "default_settings",
]
