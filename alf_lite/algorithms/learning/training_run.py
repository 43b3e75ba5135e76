"""What the root of a run trains with: made at once, and kept in checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alf_lite.algorithms.learning.collector import Collector
from alf_lite.algorithms.learning.recorded_steps import (
    RecordedSteps,
    parts_with_recorded_steps,
)
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.learning.training_replay import TrainingReplay
from alf_lite.algorithms.learning.updates import UpdateLoop
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.checkpoints.files import Stream
from alf_lite.config import TrainerConfig
from alf_lite.environments.environment import Environment
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.metrics.episode_metric import build_episode_metrics
from alf_lite.metrics.metrics import MetricSet, create_metrics
from alf_lite.utils import random_state

_logger = logging.getLogger(__name__)


class TrainingRun:
    """The parts of an iteration: collector, replay buffers, update loop.

    ``RLAlgorithm.train_iter`` calls one after the other; none of them knows it.

    Args:
        algorithm: the root of the run, with its data transformer.
        config: of the run.
        env: to act in.
        metrics: of the training environments.
    """

    def __init__(
        self,
        algorithm: RLContract,
        config: TrainerConfig,
        env: Environment,
        metrics: MetricSet,
    ) -> None:
        _check_discounts(algorithm, env)
        self._algorithm = algorithm
        self._env = env
        self._metrics = metrics
        if algorithm.initial_gamma is not None:
            algorithm.data_transformer.set_gamma(algorithm.initial_gamma)
        self.updates = UpdateLoop(
            algorithm, config, compiles=_compiles(algorithm, config)
        )
        # Off-policy; on-policy, parts of the algorithm may draw recorded steps.
        self.replay: TrainingReplay | None = None
        self.recorded: TrainingReplay | RecordedSteps
        if algorithm.on_policy:
            self.recorded = RecordedSteps(algorithm, config)
        else:
            self.recorded = self.replay = TrainingReplay(
                algorithm, config, env.batch_size
            )
        store = None if self.replay is None else self.replay.store
        self.collector = Collector(algorithm, config, env, metrics, store)
        # On-policy: what the newest unroll has become, [B, T+1, ...]; valid until the
        # next one. None if the loss takes the unroll as it is.
        self.preprocessed: TrainingBatch | None = None

    def set_up(self) -> None:
        """Compiles acting, if the configuration says so.

        Raises:
            ConfigError: if recorded steps are needed, and there are not enough.
        """
        num_sources = self.recorded.num_recorded_sources
        for part in parts_with_recorded_steps(self._algorithm):
            if not num_sources:
                raise ConfigError(
                    f"{part.name} learns from recorded steps, and there are none. Name "
                    "them in TrainerConfig.offline_buffer_dir."
                )
        num_needed = self._algorithm.data_transformer.num_recorded_sources
        if num_sources < num_needed:
            raise ConfigError(
                "TrainerConfig.data_transformer_ctor: steps of source number "
                f"{num_needed} are to be demonstrations, but there are {num_sources} "
                "sources. Name them in TrainerConfig.offline_buffer_dir."
            )
        self.collector.set_up()

    # Episodes

    def reset_environment(self, seed: int | None) -> None:
        """Begins new episodes, see ``RLAlgorithm.reset_environment``."""
        if self.collector.reset(seed) and self.replay is not None:
            self.replay.own.mark_truncated_end()

    def resume_environment(self, seed: int) -> str:
        """Continues the open episodes that ``load_state_dict`` has brought.

        Called instead of ``reset_environment``. Where it cannot be done, new episodes
        begin, and what was stored of the old ones counts as cut off by a time limit.

        Args:
            seed: of new episodes.

        Returns:
            In which environments that is so, and why; empty if in none.
        """
        # What the environments draw on the way is not the run's.
        with random_state.preserved():
            if self.replay is not None:
                self.replay.restore_steps(self._env)
            if self.collector.has_open_episodes_to_resume:
                return self.collector.resume(seed)
            self.reset_environment(seed)
            return f"all environments ({self.collector.why_all_are_new()})"

    def close(self) -> None:
        """Ends the unroll workers and closes the environment."""
        self.collector.close()

    # State

    def state_dict(self) -> dict[str, Any]:
        """What training needs beside the algorithm's own state: optimizers, metrics."""
        algorithm = self._algorithm
        return {
            "optimizers": {name: o.state_dict() for name, o in algorithm.optimizers()},
            "metrics": self._metrics.state_dict(),
            "data_transformer": algorithm.data_transformer.training_state_dict(),
            "path": self.recorded.state_dict(),
            "num_updates": self.updates.num_updates,
            "unroll": self.collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""
        algorithm = self._algorithm
        saved, optimizers = state["optimizers"], dict(algorithm.optimizers())
        if saved.keys() != optimizers.keys():
            raise CheckpointError(
                f"{algorithm.name}: the checkpoint has optimizers for {sorted(saved)}, "
                f"the algorithm for {sorted(optimizers)}"
            )
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(saved[name])
        self._metrics.load_state_dict(state["metrics"])
        algorithm.data_transformer.load_training_state_dict(state["data_transformer"])
        self.updates.num_updates = state["num_updates"]
        self.collector.load_state_dict(state.get("unroll", {}))
        self.recorded.load_state_dict(state["path"])

    def files(self) -> dict[str, Stream]:
        """The stored steps, as a file beside ``state_dict``, if configured."""
        return {} if self.replay is None else self.replay.own.files()

    def load_files(self, files: Mapping[str, Path]) -> None:
        """Restores what ``files`` returned: name -> where it is."""
        if self.replay is not None:
            self.replay.load_files(files)


def _compiles(algorithm: RLContract, config: TrainerConfig) -> bool:
    """Whether compiled updates are faster.

    On a CPU those on batches from replay are not: a few operations on large matrices
    (SAC) or so few that calling the graph costs what it saves (DQN).
    """
    is_faster = algorithm.on_policy or algorithm.device.type != "cpu"
    if config.compile and not is_faster:
        _logger.warning(
            "TrainerConfig.compile: on a CPU compiled updates of %s take longer than "
            "the others; they are not compiled.",
            algorithm.name,
        )
    return config.compile and is_faster


def metrics_of(
    env: Environment, config: TrainerConfig, gamma: float | None
) -> MetricSet:
    """The metrics of a run in its environments, with γ at its start."""
    return create_metrics(
        reward_spec=env.reward_spec,
        env_info_spec=env.env_info_spec,
        batch_size=env.batch_size,
        buffer_size=max(config.metric_min_buffer_size, env.batch_size),
        algorithm_gamma=gamma,
        own=build_episode_metrics(config.metric_ctors),
        opposition=env.opposition,
        has_two_sides=env.has_negative_discounts,
    )


def _check_discounts(algorithm: RLContract, env: Environment) -> None:
    """Raises ConfigError, if the algorithm cannot be trained for two sides in turn."""
    takes = algorithm.takes_negative_discounts and not algorithm.uses_episode_returns
    if env.has_negative_discounts and not takes:
        raise ConfigError(
            f"{algorithm.name} cannot be trained on {env.name}, in which the discount "
            "is -1 because two sides move in turn. Take PPOAlgorithm or DqnAlgorithm, "
            "or a BattleEnvironment."
        )
