"""The root of a training run: owns the environment, the metrics and the iteration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm, valid_steps
from alf_lite.algorithms.experience_batches import (
    cut_sequences,
    shuffled_mini_batches,
    transpose,
)
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, LossInfo, TimeStep
from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    IdentityDataTransformer,
)
from alf_lite.environments.environment import Environment
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.metrics.metrics import MetricSet, create_metrics
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.unrollers.sync_unroller import SyncUnroller, Unroll
from alf_lite.utils import summary

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

    _reward_weights: Tensor | None

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
        self.register_buffer("_reward_weights", self._make_weights(reward_weights))
        # Replaced by ``create_algorithm`` if the configuration names transformers.
        self.data_transformer: DataTransformer = IdentityDataTransformer(
            observation_spec
        )
        self._metrics: MetricSet | None = None
        self._unroller: SyncUnroller | None = None
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

    def _make_weights(self, reward_weights: Sequence[float] | None) -> Tensor | None:
        spec = self._reward_spec
        if spec.ndim > 1:
            raise ConfigError(f"reward_spec must have rank 0 or 1, got {spec}")
        if spec.ndim == 0:
            if reward_weights is not None:
                raise ConfigError(
                    f"{self._name}: reward_weights={list(reward_weights)} given, but "
                    "the reward of this environment has only one dimension"
                )
            return None
        if reward_weights is None:
            return torch.ones(spec.shape)
        if len(reward_weights) != spec.numel:
            raise ConfigError(
                f"{self._name}: {len(reward_weights)} reward_weights for a reward of "
                f"{spec.numel} dimensions"
            )
        return torch.tensor(reward_weights, dtype=torch.float32)

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
        return self._reward_weights is not None

    @property
    def reward_weights(self) -> Tensor | None:
        """[D], or None for a reward of one dimension."""
        return self._reward_weights

    def set_reward_weights(self, reward_weights: Tensor | Sequence[float]) -> None:
        """Changes the weights [D] from the next loss on; they are checkpointed.

        Raises:
            ValueError: for a reward of one dimension or a wrong number of weights.
        """
        if self._reward_weights is None:
            raise ValueError("set_reward_weights: the reward has only one dimension")
        weights = torch.as_tensor(reward_weights, dtype=torch.float32)
        if weights.shape != self._reward_weights.shape:
            raise ValueError(
                f"set_reward_weights: expected {tuple(self._reward_weights.shape)}, "
                f"got {tuple(weights.shape)}"
            )
        self._reward_weights.copy_(weights)

    def scalar_reward(self, values: Tensor) -> Tensor:
        """Rewards, values or advantages [..., D] weighted to [...]; [...] as it is."""
        if self._reward_weights is None:
            return values
        return values @ self._reward_weights

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
        begin = time.perf_counter()
        experience = self.unroll(int(self._config.unroll_length))
        unrolled = time.perf_counter()
        self.train()
        steps = self.train_from_unroll(experience, experience.rollout_info)
        trained = time.perf_counter()
        if self._overrides("after_train_iter"):
            rows = nest.map_structure(lambda t: t[:-1], experience)
            self.after_train_iter(rows.time_step, rows.rollout_info)
        summary.scalar("time/unroll", unrolled - begin)
        summary.scalar("time/train", trained - unrolled)
        summary.scalar("time/after_train_iter", time.perf_counter() - trained)
        return steps

    def _train_iter_off_policy(self) -> int:
        raise NotImplementedError(
            f"{self._name} is off-policy, and off-policy training needs a replay "
            "buffer, which this version does not have yet. Use an on-policy algorithm, "
            "such as PPOAlgorithm or ActorCriticAlgorithm."
        )

    def unroll(self, unroll_length: int) -> Experience:
        """Collects ``unroll_length`` steps of every environment.

        The metrics observe the untransformed steps; normalizers update their statistics
        after the unroll.

        Returns:
            [T, B, ...], or [T+1, B, ...] on-policy: the last row is the bootstrap row.
            Valid until the next unroll, which reuses the memory.
        """
        unroller = self._require_unroller()
        self.eval()
        unroll = unroller.unroll(unroll_length, bootstrap=self._on_policy)
        self._observe(unroll)
        summary.scalar("time/unroll_env_step", unroll.env_step_seconds)
        return unroll.experience

    def _observe(self, unroll: Unroll) -> None:
        # Row 0 was the last row of the previous unroll, except after a reset.
        first_row = 0 if unroll.is_first_unroll else 1
        time_steps = nest.map_structure(
            lambda t: t[first_row:].detach(), unroll.time_steps
        )
        self._require_metrics().observe(time_steps)
        self.data_transformer.observe(time_steps)

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
            return valid[:-1].numel()
        batch = self._preprocess(experience, train_info, valid)
        return self._train_on_batch(batch, valid.shape[0] - 1)

    def _preprocess(
        self, experience: Experience, rollout_info: Nest, valid: Tensor
    ) -> tuple[Experience, Tensor]:
        """[T+1, B] → what the updates need, batch-major [B, T+1]."""
        time_step, info, state, valid = transpose(
            (experience.time_step, rollout_info, experience.state, valid)
        )
        with torch.no_grad():
            time_step, info = self.preprocess_experience(time_step, info, BatchInfo())
        return Experience(time_step=time_step, rollout_info=info, state=state), valid

    def _train_on_batch(self, batch: tuple[Experience, Tensor], num_steps: int) -> int:
        """Makes all passes over ``batch`` [B, T+1, ...], of which T steps train."""
        config = self._config
        if config.mini_batch_length is not None:
            batch = cut_sequences(batch, num_steps, config.mini_batch_length)
        num_rows, length = batch[1].shape
        trained = 0
        loss_info, norms = LossInfo(), list[Tensor]()
        for _ in range(config.num_updates_per_train_iter):
            if config.mini_batch_size is None or config.mini_batch_size >= num_rows:
                mini_batches = iter([transpose(batch)])
            else:
                mini_batches = shuffled_mini_batches(batch, config.mini_batch_size)
            for experience, valid in mini_batches:
                loss_info, norms = self._update(experience, valid)
                trained += valid.shape[1] * min(length, num_steps)
                if self.should_stop_updates(loss_info, valid):
                    self.summarize_train(loss_info, valid, norms)
                    return trained
        self.summarize_train(loss_info, valid, norms)
        return trained

    def _update(
        self, experience: Experience, valid: Tensor
    ) -> tuple[LossInfo, list[Tensor]]:
        """One gradient step on a time-major mini-batch [T, b, ...]."""
        state = nest.map_structure(lambda t: t[0], experience.state)
        loss_info, info = self._compiled_batch_loss(
            experience.time_step, state, experience.rollout_info, valid
        )
        norms = self.update_with_gradient(loss_info)
        self.after_update(experience.time_step, info)
        return loss_info, norms

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

    def _require_unroller(self) -> SyncUnroller:
        if self._env is None:
            raise ConfigError(f"{self._name} was built without env: it cannot unroll")
        if self._unroller is None:
            self._unroller = SyncUnroller(
                self._env,
                self,
                rollout_step=self._compiled_rollout_step,
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

    def training_state_dict(self) -> dict[str, Any]:
        """What training needs beside ``state_dict``: optimizers and metrics."""
        return {
            "optimizers": {name: o.state_dict() for name, o in self.optimizers()},
            "metrics": self._require_metrics().state_dict(),
            "data_transformer": self.data_transformer.training_state_dict(),
        }

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

    def finish_train(self) -> None:
        """Releases what training holds: the environment."""
        if self._env is not None:
            self._env.close()
