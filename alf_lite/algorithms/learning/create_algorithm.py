"""Builds the algorithm that a configuration describes."""

from __future__ import annotations

import inspect

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_transformers.create_data_transformer import create_data_transformer
from alf_lite.data_transformers.data_transformer import DataTransformer
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_settings import check_replay_settings


def create_algorithm(
    config: TrainerConfig, env: Environment, *, is_eval: bool = False
) -> RLAlgorithm:
    """The algorithm of ``config.algorithm_ctor`` with its data transformers.

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
    transformer = create_data_transformer(
        config.data_transformer_ctor,
        env.observation_spec,
        env.reward_spec,
        training_env=None if is_eval else env,
    )
    arguments = {
        "observation_spec": transformer.transformed_observation_spec,
        "action_spec": env.action_spec,
        "reward_spec": env.reward_spec,
        "env": None if is_eval else env,
        "config": config,
    }
    # Own algorithms need not know of is_eval; then they build everything.
    if "is_eval" in inspect.signature(config.algorithm_ctor).parameters:
        arguments["is_eval"] = is_eval
    algorithm = config.algorithm_ctor(**arguments)
    if not isinstance(algorithm, RLAlgorithm):
        raise ConfigError(
            "TrainerConfig.algorithm_ctor must build an RLAlgorithm, got a "
            f"{type(algorithm).__name__}"
        )
    if algorithm.on_policy:
        _check_on_policy(type(algorithm).__name__, config, transformer)
        if config.async_unroll and not is_eval:
            _check_policy_lag(algorithm, config)
    elif not is_eval:
        counted = config.counted(False, env.batch_size, type(algorithm).__name__)
        check_replay_settings(counted, env.batch_size, transformer.num_history_steps)
    algorithm.data_transformer = transformer
    return algorithm.to(config.device)


def _check_on_policy(
    name: str, config: TrainerConfig, transformer: DataTransformer
) -> None:
    """Refuses what only a replay buffer gives a meaning, and fractions of a step."""
    if transformer.needs_replay:
        raise ConfigError(
            "TrainerConfig.data_transformer_ctor has a transformer of replayed steps, "
            f"but {name} is on-policy and replays none. Use an off-policy algorithm."
        )
    for field in ("priority_replay", "initial_collect_steps", "initial_random_policy"):
        if getattr(config, field):
            raise ConfigError(
                f"TrainerConfig.{field} is {getattr(config, field)!r}, but {name} is "
                "on-policy and has no replay buffer. Leave it out, or use an "
                "off-policy algorithm."
            )
    if config.unroll_length != int(config.unroll_length):
        raise ConfigError(
            f"TrainerConfig.unroll_length={config.unroll_length}, but {name} is "
            "on-policy and trains on every unroll: expected a whole number of steps"
        )


def _check_policy_lag(algorithm: RLAlgorithm, config: TrainerConfig) -> None:
    """Refuses what cannot be trained on the unrolls of workers."""
    name = type(algorithm).__name__
    if algorithm.unrolls_with_grad:
        raise ConfigError(
            f"TrainerConfig.async_unroll: the loss of {name} needs the graph of "
            "rollout_step, which stays in the worker. Use ImpalaAlgorithm, or "
            "async_unroll = False."
        )
    if config.unroll_length == 0:
        raise ConfigError(
            f"TrainerConfig.unroll_length is 0, but {name} is on-policy and trains on "
            "every unroll: expected a whole number of steps"
        )
    if config.max_policy_lag != 0 and not algorithm.corrects_policy_lag:
        raise ConfigError(
            f"TrainerConfig.async_unroll: {name} is on-policy and does not correct for "
            "actions of older parameters. Set TrainerConfig.max_policy_lag = 0, with "
            "which the workers wait while it trains, or use ImpalaAlgorithm, or "
            "PPOAlgorithm with its off_policy_correction."
        )
