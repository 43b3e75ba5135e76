"""Builds the algorithm that a configuration names."""

from __future__ import annotations

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError


def create_algorithm(
    config: TrainerConfig, env: Environment, *, is_eval: bool = False
) -> RLAlgorithm:
    """What ``config.algorithm_ctor`` builds, see :mod:`.construction`.

    Args:
        config: names the algorithm, the data transformers and the device.
        env: gives the specs; the algorithm trains in it unless ``is_eval``.
        is_eval: build only what acting needs.

    Raises:
        ConfigError: if ``algorithm_ctor`` is not set or builds something else, or the
            data transformers or the settings do not fit the environment or the
            algorithm.
    """
    if config.algorithm_ctor is None:
        raise ConfigError(
            "TrainerConfig.algorithm_ctor is not set. Name an algorithm in the conf, "
            "such as: TrainerConfig.algorithm_ctor = @PPOAlgorithm"
        )
    algorithm = config.algorithm_ctor(env=env, config=config, is_eval=is_eval)
    if not isinstance(algorithm, RLAlgorithm):
        raise ConfigError(
            "TrainerConfig.algorithm_ctor must build an RLAlgorithm, got a "
            f"{type(algorithm).__name__}"
        )
    return algorithm
