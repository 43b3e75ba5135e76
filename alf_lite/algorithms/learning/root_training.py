"""What only the root of a training run has: metrics, unroller, path and updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from alf_lite.algorithms.learning.off_policy_learner import OffPolicyPath
from alf_lite.algorithms.learning.on_policy_learner import OnPolicyPath
from alf_lite.algorithms.learning.root_algorithm import RootAlgorithm
from alf_lite.algorithms.learning.unrolling import UnrolledAlgorithm, Unrolling
from alf_lite.algorithms.learning.update_loop import UpdateLoop
from alf_lite.checkpoints.files import Stream
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, Experience, TimeStep
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments.environment import Environment
from alf_lite.errors import AlfLiteError, CheckpointError, ConfigError
from alf_lite.metrics.metrics import create_metrics
from alf_lite.optimizers.optimizer import Optimizer
from alf_lite.utils import random_state
from alf_lite.utils.interruption import interruption

Nest = Any

# A compiled call costs 15 µs more than one that is not.
_MIN_BATCH_TO_COMPILE = 256


class TrainedAlgorithm(RootAlgorithm, UnrolledAlgorithm, Protocol):
    """The part of ``RLAlgorithm`` that is used here; its docstrings are there."""

    @property
    def name(self) -> str: ...

    def optimizers(self) -> Iterable[tuple[str, Optimizer]]: ...

    def random_action(self, inputs: TimeStep) -> Nest: ...


class RootTraining:
    """Runs the iterations of an algorithm in its environment, and saves their state.

    The parts are made when they are first needed: the path depends on the data
    transformer, and unroll workers shall not start before there is something to do.

    Args:
        algorithm: the root of the run.
        updates: makes its updates.
        config: of the run.
        env: that it trains in; closed at the end.
    """

    def __init__(
        self,
        algorithm: TrainedAlgorithm,
        updates: UpdateLoop,
        config: TrainerConfig,
        env: Environment,
    ) -> None:
        self._algorithm = algorithm
        self.updates = updates
        self._config = config
        self._env = env
        self.metrics = create_metrics(
            reward_spec=env.reward_spec,
            env_info_spec=env.env_info_spec,
            batch_size=env.batch_size,
            buffer_size=max(config.metric_min_buffer_size, env.batch_size),
        )
        self._rollout_step: Callable[[TimeStep, Nest], AlgStep] = algorithm.rollout_step
        self._unrolling: Unrolling | None = None
        self._path: OnPolicyPath | OffPolicyPath | None = None
        self._fills_replay = False
        self._saved_unroll: dict[str, Any] = {}  # until the environment is resumed

    # The parts

    @property
    def path(self) -> OnPolicyPath | OffPolicyPath:
        if self._path is None:
            algorithm, config = self._algorithm, self._config
            if algorithm.on_policy:
                self._path = OnPolicyPath(algorithm, config, self.updates)
            else:
                self._path = OffPolicyPath(
                    algorithm, config, self.updates, self._env.batch_size
                )
        return self._path

    @property
    def on_policy_path(self) -> OnPolicyPath:
        """The path; ConfigError if it is the other one."""
        if not isinstance(self.path, OnPolicyPath):
            raise ConfigError(
                f"{self._algorithm.name} is off-policy: it trains from replay"
            )
        return self.path

    @property
    def off_policy_path(self) -> OffPolicyPath:
        """The path; ConfigError if it is the other one."""
        if not isinstance(self.path, OffPolicyPath):
            raise ConfigError(
                f"{self._algorithm.name} is on-policy: it has no replay buffer and "
                "cannot train on offline data. Use an off-policy algorithm."
            )
        return self.path

    @property
    def _off_policy(self) -> OffPolicyPath | None:
        return None if self._algorithm.on_policy else self.off_policy_path

    @property
    def unrolling(self) -> Unrolling:
        if self._unrolling is None:
            off_policy = self._off_policy
            self._unrolling = Unrolling(
                self._algorithm,
                self._config,
                self._env,
                act=self._act,
                metrics=self.metrics,
                store=None if off_policy is None else off_policy.store,
            )
        return self._unrolling

    # Set-up

    def set_up(self) -> None:
        """Loads the offline buffers, and compiles acting if the config says so."""
        # First, so that what the conf says about it is checked before anything runs.
        _ = self.path
        self.load_offline_buffers()
        if self._config.compile and self._acts_in_large_batches():
            # With eager's random numbers, so that both act alike.
            self._rollout_step = torch.compile(
                self._algorithm.rollout_step, options={"fallback_random": True}
            )

    def _acts_in_large_batches(self) -> bool:
        if self._algorithm.unrolls_with_grad:
            return False
        is_large = self._env.batch_size >= _MIN_BATCH_TO_COMPILE
        return is_large or self._algorithm.device.type != "cpu"

    def load_offline_buffers(self) -> None:
        """See ``RLAlgorithm.load_offline_replay_buffer``."""
        sources = self._config.offline_sources
        if not sources or self.off_policy_path.has_offline:
            return
        transformer = self._algorithm.data_transformer
        for source in sources:
            buffer = load_replay_buffer(
                source,
                self._env,
                self._config.offline_buffer_length,
                num_earliest_frames_ignored=transformer.num_history_steps,
            )
            self.off_policy_path.add_offline_buffer(buffer)

    # Unrolls

    def unroll(self, length: int) -> Experience:
        """See ``RLAlgorithm.unroll``."""
        self._algorithm.set_training(False)
        self._fills_replay = self.acts_randomly  # as during the whole unroll
        return self.unrolling.unroll(length)

    @property
    def acts_randomly(self) -> bool:
        """Whether the random policy fills the replay buffer."""
        if not self._config.initial_random_policy or self._algorithm.on_policy:
            return False
        return self.off_policy_path.replay.is_beginning

    def _act(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """``rollout_step``, or a random action while the replay buffer fills."""
        step = self._rollout_step(inputs, state)
        if self._fills_replay:
            step = step._replace(output=self._algorithm.random_action(inputs))
        return step

    def reset_environment(self, seed: int | None) -> None:
        """See ``RLAlgorithm.reset_environment``."""
        if not self.unrolling.reset(seed):
            return
        self.metrics.drop_open_episodes()
        if self._off_policy is not None:
            self._off_policy.replay.mark_truncated_end()

    def resume_environment(self, seed: int) -> str:
        """See ``RLAlgorithm.resume_environment``."""
        saved, self._saved_unroll = self._saved_unroll, {}
        # What the environments draw on the way is not the run's.
        with random_state.preserved():
            if not saved:
                self.reset_environment(seed)
                return f"all environments ({self._why_all_are_new()})"
            try:
                reasons = self.unrolling.resume(saved, seed)
            except AlfLiteError:
                raise
            except Exception as error:  # whatever is in it makes the readers raise
                raise CheckpointError(
                    f"the open episodes of the checkpoint are malformed: {error!r}"
                ) from error
        return "; ".join(
            f"environments {', '.join(str(i) for i in reasons if reasons[i] == reason)}"
            f" ({reason})"
            for reason in dict.fromkeys(reasons.values())
        )

    def _why_all_are_new(self) -> str:
        if self.unrolling.has_workers:
            return "unroll workers do not repeat what others did"
        if self._env.episode_state() is None:
            return "they cannot repeat what others did"
        return "the checkpoint has none: it is an old one or an iteration broke off"

    def close(self) -> None:
        """Ends the unroll workers and closes the environment."""
        if self._unrolling is not None:
            self._unrolling.close()
        self._env.close()

    # State

    def state_dict(self) -> dict[str, Any]:
        """See ``RLAlgorithm.training_state_dict``."""
        algorithm, off_policy = self._algorithm, self._off_policy
        return {
            "optimizers": {name: o.state_dict() for name, o in algorithm.optimizers()},
            "metrics": self.metrics.state_dict(),
            "data_transformer": algorithm.data_transformer.training_state_dict(),
            "path": {} if off_policy is None else off_policy.state_dict(),
            "num_updates": self.updates.num_updates,
            "unroll": self._unroll_state(),
        }

    def _unroll_state(self) -> dict[str, Any]:
        """Empty if new episodes begin where the run is resumed."""
        # Steps of an unroll that was broken off are nowhere: episodes have a gap there.
        if self._unrolling is None or interruption.in_iteration:
            return {}
        return self._unrolling.state_dict()

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
        self.metrics.load_state_dict(state["metrics"])
        algorithm.data_transformer.load_training_state_dict(state["data_transformer"])
        if self._off_policy is not None:
            self._off_policy.load_state_dict(state["path"])
        self.updates.num_updates = state["num_updates"]
        self._saved_unroll = state.get("unroll", {})

    def files(self) -> dict[str, Stream]:
        """The stored steps, as a file of a checkpoint, if that is to hold them."""
        return {} if self._off_policy is None else self._off_policy.replay.files()

    def load_files(self, files: Mapping[str, Path]) -> None:
        """Restores what ``files`` returned.

        Args:
            files: name -> where it is.
        """
        if self._off_policy is not None:
            self._off_policy.replay.load_files(files)
