"""The policy of a run, built from its configuration and a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from alf_lite.algorithms.learning.create_algorithm import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer, LoadedCheckpoint
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments.environment import Environment
from alf_lite.trainers import rebuilding, training_state
from alf_lite.trainers.run_directory import RunDirectory


def read_run_config(
    root_dir: str | Path, gin_params: Sequence[str] = ()
) -> TrainerConfig:
    """Makes the configuration of a run that of this process.

    It is executed: read only runs that you trust, as you would run only programs that
    you trust.

    Args:
        root_dir: of the run.
        gin_params: override the configuration of the run.

    Raises:
        ConfigError: if there is no run, or the configuration cannot be used or does not
            say what was given in Python.
    """
    conf = rebuilding.run_conf(root_dir, gin_params, rebuilding.TO_PLAY)
    config_files.parse_config(conf, gin_params)
    return acting_config()


def acting_config(
    device: str | None = None, epsilon_greedy: float | None = None
) -> TrainerConfig:
    """The ``TrainerConfig`` of this process, with what is given here instead.

    Raises:
        ConfigError: if it cannot be used.
    """
    with config_files.gin_errors():
        config = TrainerConfig()
    if device is not None:
        config = dataclasses.replace(config, device=device)
    if epsilon_greedy is not None:
        config = dataclasses.replace(config, epsilon_greedy=epsilon_greedy)
    torch.set_num_threads(config.num_threads)
    return config


def load_policy_checkpoint(root_dir: str | Path, which: str | int) -> LoadedCheckpoint:
    """The part of a checkpoint that acting needs.

    Args:
        root_dir: of the run, which may be training.
        which: "latest", "best" or a step.

    Raises:
        CheckpointError: if there is none that can be used.
    """
    checkpoints = RunDirectory(root_dir).checkpoints
    return Checkpointer(checkpoints, read_only=True).load(
        which, [training_state.ALGORITHM]
    )


def build_policy(
    config: TrainerConfig, env: Environment, loaded: LoadedCheckpoint
) -> RLAlgorithm:
    """The algorithm with the checkpointed parameters, built for acting only.

    Raises:
        ConfigError: if it cannot be built.
        CheckpointError: if the checkpoint is of another algorithm or other specs.
    """
    with config_files.gin_errors():
        algorithm = create_algorithm(config, env, is_eval=True)
    training_state.check_fingerprint(algorithm, loaded)
    training_state.load_policy(algorithm, loaded, for_training=False)
    return algorithm


def build_untrained(config: TrainerConfig, env: Environment) -> RLAlgorithm:
    """The algorithm as the configuration builds it, for acting only.

    It has been trained nevertheless if it names a ``checkpoint="prefix@path"``.

    Raises:
        ConfigError: if it cannot be built.
        CheckpointError: if a checkpoint that it names cannot be used.
    """
    with config_files.gin_errors():
        algorithm = create_algorithm(config, env, is_eval=True)
    algorithm.load_checkpoint_parts()
    return algorithm
