"""What both learners have in common: unrolls, and the state of a run to resume."""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_statistics import with_batch_statistics
from alf_lite.algorithms.learning.captured_update import schedules_of
from alf_lite.algorithms.learning.training_batches import TrainingBatch, passes
from alf_lite.algorithms.learning.updates import Update, UpdateLoop
from alf_lite.checkpoints.files import Stream
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, Experience, TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.environments.torch_vector_env import TorchVectorEnv
from alf_lite.errors import AlfLiteError, CheckpointError, ConfigError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.unrollers.async_unroller import AsyncUnroller
from alf_lite.unrollers.compiled_unroller import CompiledUnroller
from alf_lite.unrollers.sync_unroller import SyncUnroller
from alf_lite.unrollers.unroll import Unroll, UnrollJoiner
from alf_lite.utils import random_state, summary
from alf_lite.utils.device_graphs import CapturedFunction
from alf_lite.utils.interruption import interruption
from alf_lite.utils.ranks import ranks
from alf_lite.utils.shared_statistics import (
    SharedStatistics,
    share_statistics,
    sharing_modules,
)

if TYPE_CHECKING:
    from alf_lite.algorithms.rl_algorithm import RLAlgorithm

Nest = Any

_logger = logging.getLogger(__name__)

# A compiled call costs 15 µs more than one that is not.
_MIN_BATCH_TO_COMPILE = 256


class Learner(ABC):
    """Runs the iterations of an algorithm in its environment.

    An iteration is :meth:`train_iter` of a subclass: collect, preprocess, update, and
    what comes after. The unroller is made when it is first needed: workers shall not
    start before there is something to do.

    Args:
        algorithm: the root of the run, with its data transformer.
        config: of the run.
        env: to act in; a ``RemoteEnvironment`` is stepped by unroll workers. Closed
            at the end.
    """

    def __init__(
        self, algorithm: RLAlgorithm, config: TrainerConfig, env: Environment
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        self._num_updates = config.num_updates  # or passes of an iteration
        self._env = env
        if algorithm.initial_gamma is not None:
            algorithm.data_transformer.set_gamma(algorithm.initial_gamma)
        self.updates = UpdateLoop(algorithm, config, compiles=self._compiles())
        self._rollout_step: Callable[[TimeStep, Nest], AlgStep] = algorithm.rollout_step
        self._unroller: SyncUnroller | AsyncUnroller | None = None
        self._joiner = UnrollJoiner()
        self._fills_replay = False
        self._saved_unroll: dict[str, Any] = {}  # until the environment is resumed

    @abstractmethod
    def train_iter(self) -> int:
        """One iteration; returns the number of steps trained on."""

    def train_from_unroll(self, experience: Experience, train_info: Nest) -> int:
        """See ``RLAlgorithm.train_from_unroll``."""
        raise ConfigError(
            f"{self._algorithm.name} is off-policy: it trains from replay"
        )

    def train_from_replay_buffer(self, *, with_own_steps: bool) -> int:
        """See ``RLAlgorithm.train_from_replay_buffer``."""
        raise self._has_no_replay()

    def load_offline_buffers(self) -> None:
        """See ``RLAlgorithm.load_offline_replay_buffer``."""
        raise self._has_no_replay()

    def add_offline_buffer(self, buffer: ReplayBuffer) -> None:
        """See ``RLAlgorithm.add_offline_replay_buffer``."""
        raise self._has_no_replay()

    @property
    @abstractmethod
    def num_recorded_sources(self) -> int:
        """How many offline buffers there are."""

    def _parts_with_recorded_steps(self) -> list[Algorithm]:
        """The algorithm and those below it that learn from recorded steps."""
        return [
            part
            for part in self._algorithm.modules()
            if isinstance(part, Algorithm) and part.needs_recorded_steps
        ]

    def _has_no_replay(self) -> ConfigError:
        return ConfigError(
            f"{self._algorithm.name} is on-policy: it has no replay buffer and cannot "
            "train on offline data. Use an off-policy algorithm."
        )

    def set_up(self) -> None:
        """Compiles acting, if the configuration says so.

        Raises:
            ConfigError: if recorded steps are needed, and there are not enough.
        """
        for part in self._parts_with_recorded_steps():
            if not self.num_recorded_sources:
                raise ConfigError(
                    f"{part.name} learns from recorded steps, and there are none. Name "
                    "them in TrainerConfig.offline_buffer_dir."
                )
        num_needed = self._algorithm.data_transformer.num_recorded_sources
        if self.num_recorded_sources < num_needed:
            raise ConfigError(
                "TrainerConfig.data_transformer_ctor: steps of source number "
                f"{num_needed} are to be demonstrations, but there are "
                f"{self.num_recorded_sources} sources. Name them in "
                "TrainerConfig.offline_buffer_dir."
            )
        if self._steps_in_compiled_code(self._env):
            return  # with or without acting, as is faster
        if self._config.compile and self._acts_in_large_batches():
            # With eager's random numbers, so that both act alike.
            self._rollout_step = torch.compile(
                self._algorithm.rollout_step, options={"fallback_random": True}
            )
        if self._config.cuda_graphs:
            self._rollout_step = captured_rollout_step(
                self._algorithm, self._rollout_step
            )

    def _compiles(self) -> bool:
        """Whether compiled updates are faster.

        On a CPU those on batches from replay are not: a few operations on large
        matrices (SAC) or so few that calling the graph costs what it saves (DQN).
        """
        algorithm = self._algorithm
        is_faster = algorithm.on_policy or algorithm.device.type != "cpu"
        if self._config.compile and not is_faster:
            _logger.warning(
                "TrainerConfig.compile: on a CPU compiled updates of %s take longer "
                "than the others; they are not compiled.",
                algorithm.name,
            )
        return self._config.compile and is_faster

    def _acts_in_large_batches(self) -> bool:
        if self._algorithm.unrolls_with_grad:
            return False
        is_large = self._env.batch_size >= _MIN_BATCH_TO_COMPILE
        return is_large or self._algorithm.device.type != "cpu"

    def _updates_of_passes(self, batch: TrainingBatch) -> Iterator[Update]:
        """Those of an iteration on the mini-batches of sequences [N, T, ...]."""
        mini_batches = passes(
            batch,
            self._num_updates,
            self._config.mini_batch_size,
            functools.partial(with_batch_statistics, self._algorithm)
            if ranks.size > 1
            else iter,
        )
        return map(Update, mini_batches)

    # Collecting

    @property
    def unroller(self) -> SyncUnroller | AsyncUnroller:
        """Steps the environment, in this process or in others."""
        if self._unroller is None:
            algorithm, env = self._algorithm, self._env
            if isinstance(env, RemoteEnvironment):
                self._unroller = AsyncUnroller(
                    self._config,
                    env,
                    algorithm.acting_state().capture,
                    on_policy=algorithm.on_policy,
                )
            elif self._steps_in_compiled_code(env):
                self._unroller = CompiledUnroller(
                    env,
                    algorithm,
                    rollout_step=self._act,
                    acts_in_graph=algorithm.device.type != "cpu",
                    acts_otherwise=lambda: self._fills_replay,
                    overwrite_policy_output=algorithm.overwrite_policy_output,
                )
            else:
                self._unroller = SyncUnroller(
                    env,
                    algorithm,
                    rollout_step=self._act,
                    with_grad=algorithm.unrolls_with_grad,
                    overwrite_policy_output=algorithm.overwrite_policy_output,
                )
        return self._unroller

    def _steps_in_compiled_code(self, env: Environment) -> TypeGuard[TorchVectorEnv]:
        if not self._config.compile or self._algorithm.unrolls_with_grad:
            return False
        device = self._algorithm.device
        return isinstance(env, TorchVectorEnv) and env.device == device

    def unroll(self, length: int) -> Experience:
        """See ``RLAlgorithm.unroll``."""
        unroller = self.unroller
        self._algorithm.set_training(False)
        self._fills_replay = self.acts_randomly  # as during the whole unroll
        before, interruption.is_harmless = interruption.is_harmless, True
        try:
            if isinstance(unroller, SyncUnroller):
                unrolls = [unroller.unroll(length, bootstrap=self._algorithm.on_policy)]
            else:
                unrolls = unroller.unroll(length)
        finally:
            interruption.is_harmless = before
        experience = self._take_in(unrolls)
        share_statistics(self._sharing_modules)
        return experience

    @functools.cached_property
    def _sharing_modules(self) -> list[SharedStatistics]:
        """What keeps statistics of the whole run, beside the metrics."""
        return sharing_modules(self._algorithm)

    def unroll_what_is_there(self, at_least: int, at_most: int) -> Experience | None:
        """See ``RLAlgorithm.unroll_what_is_there``."""
        unroller = self.unroller
        assert isinstance(unroller, AsyncUnroller), "checked by TrainerConfig"
        before, interruption.is_harmless = interruption.is_harmless, True
        try:
            unrolls = unroller.collect(at_least, at_most)
        finally:
            interruption.is_harmless = before
        return self._take_in(unrolls) if unrolls else None

    @property
    def replay_buffer(self) -> ReplayBuffer | None:
        """The run's own; None before its first step, and on-policy."""
        return None

    @property
    def acts_randomly(self) -> bool:
        """Whether the random policy fills the replay buffer."""
        return False

    def _act(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """``rollout_step``, or a random action while the replay buffer fills.

        The policy is asked all the same: its state goes on, and what it stores and the
        random numbers that it draws are those of any other step.
        """
        step = self._rollout_step(inputs, state)
        if self._fills_replay:
            step = step._replace(output=self._algorithm.random_action(inputs))
        return step

    def _take_in(self, unrolls: list[Unroll]) -> Experience:
        """Gives the unrolls, in their order, to all who want to see them."""
        for unroll in unrolls:
            # Row 0 was the last row of the previous unroll, except after a reset.
            first_row = 0 if unroll.is_first_unroll else 1
            if unroll.new_columns:
                self._observe(_first_steps(unroll, list(unroll.new_columns)))
            num_rows = unroll.time_steps.step_type.shape[0]
            new_steps = unroll.rows(first_row, num_rows)
            there = None
            if isinstance(unroll.taken_steps, TimeStep):
                there = nest.narrow(unroll.taken_steps, first_row, num_rows)
            self._observe(new_steps, there)
            if unroll.may_have_restarts:  # which the metrics do not count
                unroll.mark_cut_off()
            self.store(unroll)
        seconds = sum(unroll.env_step_seconds for unroll in unrolls)
        summary.scalar("time/unroll_env_step", seconds)
        return self._joiner.join(unrolls)

    def _observe(self, new_steps: TimeStep, there: TimeStep | None = None) -> None:
        """Shows [T, B, ...] to the metrics and to the statistics of transformers.

        Args:
            new_steps: as the environment returned them.
            there: the same on the device of the policy, if that is another one.
        """
        algorithm = self._algorithm
        if algorithm.unrolls_with_grad:
            new_steps = nest.map_structure(Tensor.detach, new_steps)
        algorithm.metrics.observe(new_steps)
        if algorithm.has_multidim_reward:
            algorithm.observe_rewards(new_steps)
        if not algorithm.data_transformer.is_identity:
            algorithm.data_transformer.observe(new_steps if there is None else there)

    def store(self, unroll: Unroll) -> None:  # noqa: B027 - on-policy, nobody does
        """Keeps the steps of an unroll, if they are trained on later."""

    # Episodes

    def reset_environment(self, seed: int | None) -> None:
        """See ``RLAlgorithm.reset_environment``."""
        unroller = self.unroller
        if isinstance(unroller, AsyncUnroller) and unroller.is_started:
            return
        unroller.reset(seed)
        self._algorithm.metrics.drop_open_episodes()
        self._cut_open_episodes()

    def _cut_open_episodes(self) -> None:  # noqa: B027 - on-policy, nothing is stored
        """Says that what comes next does not continue what is stored."""

    def resume_environment(self, seed: int) -> str:
        """Continues the open episodes that ``load_state_dict`` has brought.

        Called instead of ``reset_environment``. Where it cannot be done, new episodes
        begin, and what was stored of the old ones counts as cut off by a time limit.

        Args:
            seed: of new episodes.

        Returns:
            In which environments that is so, and why; empty if in none.
        """
        saved, self._saved_unroll = self._saved_unroll, {}
        # What the environments draw on the way is not the run's.
        with random_state.preserved():
            if not saved:
                self.reset_environment(seed)
                return f"all environments ({self._why_all_are_new()})"
            unroller = self.unroller
            assert isinstance(unroller, SyncUnroller), "workers have no state"
            try:
                reasons = unroller.load_state_dict(saved, seed)
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
        if isinstance(self.unroller, AsyncUnroller):
            return "unroll workers do not repeat what others did"
        if self._env.episode_state() is None:
            return "they cannot repeat what others did"
        return "the checkpoint has none: it is an old one or an iteration broke off"

    def close(self) -> None:
        """Ends the unroll workers and closes the environment."""
        if isinstance(self._unroller, AsyncUnroller):
            self._unroller.close()
        self._env.close()

    # State

    def state_dict(self) -> dict[str, Any]:
        """What training needs beside the algorithm's own state: optimizers, metrics."""
        algorithm = self._algorithm
        return {
            "optimizers": {name: o.state_dict() for name, o in algorithm.optimizers()},
            "metrics": algorithm.metrics.state_dict(),
            "data_transformer": algorithm.data_transformer.training_state_dict(),
            "path": {},  # of one kind of learner
            "num_updates": self.updates.num_updates,
            "unroll": self._unroll_state(),
        }

    def _unroll_state(self) -> dict[str, Any]:
        """Empty if new episodes begin where the run is resumed."""
        # Steps of an unroll that was broken off are nowhere: episodes have a gap there.
        if not isinstance(self._unroller, SyncUnroller) or interruption.in_iteration:
            return {}
        return self._unroller.state_dict()

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
        algorithm.metrics.load_state_dict(state["metrics"])
        algorithm.data_transformer.load_training_state_dict(state["data_transformer"])
        self.updates.num_updates = state["num_updates"]
        self._saved_unroll = state.get("unroll", {})

    def files(self) -> dict[str, Stream]:
        """The stored steps, as a file beside ``state_dict``, if configured."""
        return {}

    def load_files(  # noqa: B027 - on-policy, there are none
        self, files: Mapping[str, Path]
    ) -> None:
        """Restores what ``files`` returned: name -> where it is."""


def captured_rollout_step(
    algorithm: RLAlgorithm, rollout_step: Callable[[TimeStep, Nest], AlgStep]
) -> Callable[[TimeStep, Nest], AlgStep]:
    """``rollout_step`` by a CUDA graph; its result is overwritten by the next call."""
    captured = CapturedFunction(
        lambda inputs: rollout_step(*inputs),
        f"rollout_step of {algorithm.name}",
        schedules=lambda: schedules_of(algorithm),
    )
    return lambda inputs, state: captured((inputs, state))


def _first_steps(unroll: Unroll, columns: list[int]) -> TimeStep:
    """Row 0 of some columns, [1, len(columns), ...]."""
    return nest.map_structure(lambda t: t[:1, columns], unroll.time_steps)
