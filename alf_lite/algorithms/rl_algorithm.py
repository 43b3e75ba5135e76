"""The root of a training run: owns the environment, the metrics and the iteration."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm, valid_steps
from alf_lite.algorithms.batch_summaries import summarize_batch
from alf_lite.algorithms.replay_training import ReplayTraining
from alf_lite.algorithms.reward_weights import RewardWeights
from alf_lite.algorithms.training_batches import (
    TrainingBatch,
    consecutive_mini_batches,
    passes_over_unroll,
    transpose,
    with_executed_action,
)
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, BatchInfo, Experience, TimeStep
from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    IdentityDataTransformer,
)
from alf_lite.environments.environment import Environment
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.metrics.metrics import MetricSet, create_metrics
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.unrollers.sync_unroller import SyncUnroller
from alf_lite.utils import summary
from alf_lite.utils.training_mode import TrainingMode

Nest = Any


class RLAlgorithm(Algorithm):
    """An algorithm that learns from its own interaction with an environment.

    A subclass implements ``rollout_step`` and ``calc_loss``, and ``train_step`` unless
    it is on-policy and wants the gradient to flow through ``rollout_step`` itself.
    :meth:`train_iter` is one iteration: unroll, then train on what was collected.

    On-policy, an unroll of T steps has one more row, the bootstrap row: the step that
    the last action led to. It is part of what ``calc_loss`` sees, so that every
    transition has its successor, and is trained as the first row of the next unroll.

    Args:
        observation_spec: of one observation after the data transformers.
        action_spec: of one action.
        reward_spec: rank 0, or rank 1 for a reward of several dimensions.
        train_state_spec: see :class:`Algorithm`, as for the other states.
        is_on_policy: which of the two paths ``train_iter`` takes.
        reward_weights: for a reward of several dimensions, the weight of each in what
            is maximised; ones by default.
        env: the batched environment to train in; only the root needs it.
        config: of the training run; only the root needs it.
        is_eval: build only what ``predict_step`` needs.
        overwrite_policy_output: store the action that the environment reports as
            executed (``prev_action``) instead of the policy's, as for scripted experts.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        reward_spec: TensorSpec = TensorSpec(()),
        train_state_spec: NestedTensorSpec = (),
        rollout_state_spec: NestedTensorSpec | None = None,
        predict_state_spec: NestedTensorSpec | None = None,
        is_on_policy: bool,
        reward_weights: Sequence[float] | None = None,
        env: Environment | None = None,
        config: TrainerConfig | None = None,
        optimizer: Optimizer | None = None,
        checkpoint: str | None = None,
        is_eval: bool = False,
        overwrite_policy_output: bool = False,
        debug_summaries: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            train_state_spec=train_state_spec,
            rollout_state_spec=rollout_state_spec,
            predict_state_spec=predict_state_spec,
            optimizer=optimizer,
            checkpoint=checkpoint,
            config=config,
            debug_summaries=debug_summaries,
            name=name,
        )
        self._observation_spec = observation_spec
        self._action_spec = action_spec
        self._reward_spec = reward_spec
        self._on_policy = is_on_policy
        self._is_eval = is_eval
        self._env = env
        self._reward_weights = RewardWeights(reward_spec, reward_weights)
        # Replaced by ``create_algorithm`` if the configuration names transformers.
        self.data_transformer: DataTransformer = IdentityDataTransformer(
            observation_spec
        )
        self._metrics: MetricSet | None = None
        self._unroller: SyncUnroller | None = None
        self._replay: ReplayTraining | None = None
        self._unroll_remainder = 0.0  # of a fractional unroll_length
        self._num_updates = 0
        self._training_mode = TrainingMode(self)
        self._compiled_batch_loss = self.batch_loss
        self._compiled_rollout_step = self.rollout_step
        if env is not None:
            if config is None:
                raise ConfigError(f"{self._name}: env is given but no config")
            self._overwrite_policy_output = overwrite_policy_output
            self._metrics = create_metrics(
                reward_spec=reward_spec,
                env_info_spec=env.env_info_spec,
                batch_size=env.batch_size,
                buffer_size=max(config.metric_min_buffer_size, env.batch_size),
            )

    # What others may ask

    @property
    def env(self) -> Environment | None:
        return self._env

    @property
    def observation_spec(self) -> NestedTensorSpec:
        return self._observation_spec

    @property
    def action_spec(self) -> NestedTensorSpec:
        return self._action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        return self._reward_spec

    @property
    def on_policy(self) -> bool:
        return self._on_policy

    @property
    def has_multidim_reward(self) -> bool:
        return self._reward_weights.weights is not None

    @property
    def reward_weights(self) -> Tensor | None:
        """[D], or None for a reward of one dimension."""
        return self._reward_weights.weights

    def set_reward_weights(self, reward_weights: Tensor | Sequence[float]) -> None:
        """Changes the weights [D] from the next loss on; they are checkpointed.

        Raises:
            ValueError: for a reward of one dimension or a wrong number of weights.
        """
        self._reward_weights.set(reward_weights)

    def scalar_reward(self, values: Tensor) -> Tensor:
        """Rewards, values or advantages [..., D] weighted to [...]; [...] as it is."""
        return self._reward_weights(values)

    def get_metrics(self) -> list:
        """The metrics of the training environments."""
        return list(self._require_metrics())

    def get_step_metrics(self) -> list:
        """NumberOfEpisodes and EnvironmentSteps, the axes of summaries."""
        return self.get_metrics()[:2]

    @property
    def num_env_steps(self) -> int:
        """Steps taken in the training environments, FIRST steps not counted."""
        return int(self.get_step_metrics()[1].result())

    # Data transformers

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]:
        """What the environment returned [B, ...] → what the networks see."""
        return self.data_transformer.transform_timestep(time_step, state)

    def get_initial_transform_state(self, batch_size: int) -> Nest:
        return self._zeros(self.data_transformer.state_spec, batch_size)

    # One iteration

    def train_iter(self) -> int:
        """Unrolls, then trains. Returns the number of steps trained on."""
        self.setup_training()
        summary.increment_global_counter()
        if self._on_policy:
            return self._train_iter_on_policy()
        return self._train_iter_off_policy()

    def _train_iter_on_policy(self) -> int:
        with _timed("time/unroll"):
            experience = self.unroll(int(self._config.unroll_length))
        self._training_mode.set(True)
        with _timed("time/train"):
            steps = self.train_from_unroll(experience, experience.rollout_info)
        with _timed("time/after_train_iter"):
            rows = nest.map_structure(lambda t: t[:-1], experience)
            self.after_train_iter(rows.time_step, rows.rollout_info)
        return steps

    def _train_iter_off_policy(self) -> int:
        unroll_length = self._unroll_remainder + self._config.unroll_length
        self._unroll_remainder = unroll_length % 1
        experience = None
        if unroll_length >= 1:
            with _timed("time/unroll"):
                experience = self.unroll(int(unroll_length))
        if not self._require_replay().can_train:
            return 0
        self._training_mode.set(True)
        with _timed("time/train"):
            steps = self.train_from_replay_buffer()
        if experience is not None:
            with _timed("time/after_train_iter"):
                self.after_train_iter(experience.time_step, experience.rollout_info)
        return steps

    def unroll(self, unroll_length: int) -> Experience:
        """Collects ``unroll_length`` steps of every environment.

        The metrics observe the untransformed steps; normalizers update their statistics
        after the unroll. Off-policy, the steps go into the replay buffer.

        Returns:
            [T, B, ...], or [T+1, B, ...] on-policy: the last row is the bootstrap row.
            Valid until the next unroll, which reuses the memory.
        """
        unroller = self._require_unroller()
        self._training_mode.set(False)
        unroll = unroller.unroll(unroll_length, bootstrap=self._on_policy)
        # Row 0 was the last row of the previous unroll, except after a reset.
        first_row = 0 if unroll.is_first_unroll else 1
        new_steps = nest.map_structure(
            lambda t: t[first_row:].detach(), unroll.time_steps
        )
        self._require_metrics().observe(new_steps)
        self.data_transformer.observe(new_steps)
        if not self._on_policy:
            self._require_replay().store(unroll)
        summary.scalar("time/unroll_env_step", unroll.env_step_seconds)
        return unroll.experience

    def _act(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """``rollout_step``, or a random action while the replay buffer fills."""
        step = self._compiled_rollout_step(inputs, state)
        if self._config.initial_random_policy and self._is_collecting():
            step = step._replace(output=self.random_action(inputs))
        return step

    def random_action(self, inputs: TimeStep) -> Nest:
        """Any action [B, ...], for ``TrainerConfig.initial_random_policy``."""
        batch_size, device = inputs.reward.shape[:1], inputs.reward.device
        return nest.map_structure(
            lambda spec: spec.sample(batch_size).to(device), self._action_spec
        )

    def _is_collecting(self) -> bool:
        return not self._on_policy and self._require_replay().is_collecting

    def train_from_unroll(self, experience: Experience, train_info: Nest) -> int:
        """Trains on an unroll [T+1, B, ...] whose last row is the bootstrap row.

        If the algorithm has no ``train_step``, ``train_info`` carries the gradient of
        ``rollout_step`` and there is one update. Otherwise there are
        ``num_updates_per_train_iter`` passes over the unroll, each in shuffled
        mini-batches of ``mini_batch_size`` sequences of ``mini_batch_length`` steps.
        Without a ``mini_batch_length`` a sequence is the whole unroll with its
        bootstrap row.

        Returns:
            The number of steps trained on, counting repetitions.
        """
        valid = valid_steps(experience.time_step.step_type)
        valid[-1] = False
        if self.unrolls_with_grad:
            loss_info = self.aggregate_loss(self.calc_loss(train_info), valid)
            norms = self.update_with_gradient(loss_info)
            self.after_update(experience.time_step, train_info)
            self.summarize_train(loss_info, valid, norms)
            summarize_batch(self._config, experience.time_step, train_info)
            return valid[:-1].numel()
        train_info = with_executed_action(train_info, experience.action)
        experience = experience._replace(rollout_info=train_info)
        experience, valid = transpose((experience, valid))
        batch = self._preprocess(experience, valid, BatchInfo())
        has_bootstrap_row = self._config.mini_batch_length is None
        return self._train_on(
            passes_over_unroll(batch, self._config), int(has_bootstrap_row)
        )

    def train_from_replay_buffer(self) -> int:
        """Makes ``num_updates_per_train_iter`` updates on windows from the buffer.

        The windows [mini_batch_size, mini_batch_length] of all updates are drawn and
        preprocessed at once. With ``whole_replay_buffer_training`` there are as many
        passes over the whole buffer instead, in shuffled mini-batches.

        Returns:
            The number of steps trained on, counting repetitions.
        """
        config, replay = self._config, self._require_replay()
        experience, batch_info = replay.sample(self.data_transformer, self.device)
        valid = valid_steps(experience.time_step.step_type)
        batch = self._preprocess(experience, valid, batch_info)
        if not config.whole_replay_buffer_training:
            return self._train_on(
                consecutive_mini_batches(batch, replay.mini_batch_size)
            )
        batch = batch._replace(batch_info=BatchInfo())  # of whole rows, not of windows
        steps = self._train_on(passes_over_unroll(batch, config))
        if config.clear_replay_buffer:
            replay.clear()
        return steps

    def _preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """[B, T, ...] → what the updates need."""
        with torch.no_grad():
            inputs, info = self.preprocess_experience(
                experience.time_step, experience.rollout_info, batch_info
            )
        return TrainingBatch(inputs, info, experience.state, valid, batch_info)

    def _train_on(
        self, mini_batches: Iterable[TrainingBatch], num_bootstrap_rows: int = 0
    ) -> int:
        """One update on each mini-batch [T, b, ...].

        Returns:
            The number of steps trained on, without the bootstrap rows.
        """
        burn_in = self._config.burn_in_length
        num_updates = num_steps = 0
        for batch in mini_batches:
            loss_info, info = self._compiled_batch_loss(batch)
            norms = self.update_with_gradient(loss_info)
            self.after_update(batch.rows(burn_in, None).inputs, info)
            if self._config.priority_replay:
                self._require_replay().update_priority(
                    batch.batch_info, loss_info.priority
                )
            num_updates += 1
            num_rows, batch_size = batch.valid.shape
            num_steps += (num_rows - num_bootstrap_rows) * batch_size
            if self.should_stop_updates(loss_info, batch.valid):
                break
        self.summarize_train(loss_info, batch.valid, norms)
        summarize_batch(self._config, batch.inputs, info)
        self._num_updates += num_updates
        summary.scalar("train/updates", self._num_updates)
        summary.scalar(
            "train/updates_per_env_step",
            self._num_updates / max(self.num_env_steps, 1),
        )
        return num_steps

    # Set-up and state

    @property
    def unrolls_with_grad(self) -> bool:
        """Whether the loss is computed from what ``rollout_step`` returned."""
        return self._on_policy and (
            self._config.unroll_with_grad or not self._overrides("train_step")
        )

    def _overrides(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(Algorithm, method)

    def setup_training(self) -> None:
        """Also compiles the acting and the update function if the config says so."""
        if self._optimizers is not None:
            return
        super().setup_training()
        if self._config is not None and self._config.compile:
            self._compiled_batch_loss = torch.compile(self.batch_loss)
            if self._acts_in_large_batches():
                # With eager's random numbers, so that both act alike.
                self._compiled_rollout_step = torch.compile(
                    self.rollout_step, options={"fallback_random": True}
                )

    def _acts_in_large_batches(self) -> bool:
        """Whether compiled acting is faster: a compiled call costs 15 µs more."""
        if self._env is None or self.unrolls_with_grad:
            return False
        return self.device.type != "cpu" or self._env.batch_size >= 256

    def _require_metrics(self) -> MetricSet:
        if self._metrics is None:
            raise ConfigError(f"{self._name} was built without env: it has no metrics")
        return self._metrics

    def _require_replay(self) -> ReplayTraining:
        if self._replay is None:
            if self._env is None:
                raise ConfigError(
                    f"{self._name} was built without env: it has no replay buffer"
                )
            self._replay = ReplayTraining(
                self._config,
                self._env.batch_size,
                self.data_transformer.num_history_steps,
            )
        return self._replay

    def _require_unroller(self) -> SyncUnroller:
        if self._env is None:
            raise ConfigError(f"{self._name} was built without env: it cannot unroll")
        if self._unroller is None:
            self._unroller = SyncUnroller(
                self._env,
                self,
                rollout_step=self._act,
                with_grad=self.unrolls_with_grad,
                overwrite_policy_output=self._overwrite_policy_output,
            )
        return self._unroller

    def reset_environment(self, seed: int | None = None) -> None:
        """Starts new episodes everywhere; open ones are dropped from the metrics.

        Done at every scheduled checkpoint, with a seed derived from the run's, so that
        a resumed run continues exactly as the uninterrupted one.
        """
        self._require_unroller().reset(seed)
        self._require_metrics().drop_open_episodes()
        if self._replay is not None:
            self._replay.mark_truncated_end()

    def training_state_dict(self) -> dict[str, Any]:
        """What training needs beside ``state_dict``: optimizers and metrics."""
        return {
            "optimizers": {name: o.state_dict() for name, o in self.optimizers()},
            "metrics": self._require_metrics().state_dict(),
            "data_transformer": self.data_transformer.training_state_dict(),
            "replay": self._replay_state(),
            "unroll_remainder": self._unroll_remainder,
            "num_updates": self._num_updates,
        }

    def _replay_state(self) -> dict[str, Any]:
        if self._replay is None or not self._config.checkpoint_replay_buffer:
            return {}
        return self._replay.state_dict()

    def load_training_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``training_state_dict`` returned."""
        saved = state["optimizers"]
        names = [name for name, _ in self.optimizers()]
        if sorted(saved) != sorted(names):
            raise CheckpointError(
                f"{self._name}: the checkpoint has optimizers for {sorted(saved)}, the "
                f"algorithm for {sorted(names)}"
            )
        for name, optimizer in self.optimizers():
            optimizer.load_state_dict(saved[name])
        self._require_metrics().load_state_dict(state["metrics"])
        self.data_transformer.load_training_state_dict(state["data_transformer"])
        if state["replay"]:
            self._require_replay().load_state_dict(state["replay"])
        self._unroll_remainder = state["unroll_remainder"]
        self._num_updates = state["num_updates"]

    def finish_train(self) -> None:
        """Releases what training holds: the environment."""
        if self._env is not None:
            self._env.close()


@contextlib.contextmanager
def _timed(name: str) -> Iterator[None]:
    """Summarises the seconds that the block takes."""
    begin = time.perf_counter()
    yield
    summary.scalar(name, time.perf_counter() - begin)
