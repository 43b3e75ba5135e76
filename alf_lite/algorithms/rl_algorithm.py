"""The root of a training run: owns the environment, the metrics and the iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm, valid_steps
from alf_lite.algorithms.learning.acting_state import ActingState
from alf_lite.algorithms.learning.root_training import RootTraining
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.learning.update_loop import UpdateLoop
from alf_lite.algorithms.parts.reward_weights import RewardWeights
from alf_lite.algorithms.parts.transitions import sequence_priority
from alf_lite.checkpoints.files import Stream
from alf_lite.config import DefaultSettings, TrainerConfig
from alf_lite.config.registry import call_with_defaults
from alf_lite.data_structures import (
    BatchInfo,
    Experience,
    Field,
    TimeStep,
)
from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    IdentityDataTransformer,
)
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam, Optimizer
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
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

    What is left to the user is keyword-only here, and inherited by constructors with
    ``**kwargs`` (see :func:`~alf_lite.config.configurable`); the rest a subclass says.

    Args:
        observation_spec: of one observation after the data transformers.
        action_spec: of one action.
        is_on_policy: which of the two paths ``train_iter`` takes.
        train_state_spec: see :class:`Algorithm`, as for the other states.
        reward_spec: rank 0, or rank 1 for a reward of several dimensions.
        reward_weights: for a reward of several dimensions, the weight of each in what
            is maximised; ones by default.
        env: the batched environment to train in; only the root needs it.
        config: of the training run; only the root needs it.
        is_eval: build only what ``predict_step`` needs.
        overwrite_policy_output: store the action that the environment reports as
            executed (``prev_action``) instead of the policy's, as for scripted experts;
            ``TrainerConfig.overwrite_policy_output`` says the same.
    """

    # How it is published, for confs that leave that out
    default_settings: ClassVar[DefaultSettings] = DefaultSettings()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        is_on_policy: bool,
        train_state_spec: NestedTensorSpec = (),
        rollout_state_spec: NestedTensorSpec | None = None,
        predict_state_spec: NestedTensorSpec | None = None,
        *,
        reward_spec: TensorSpec = TensorSpec(()),
        reward_weights: Sequence[float] | None = None,
        env: Environment | None = None,
        config: TrainerConfig | None = None,
        optimizer: Optimizer | None = None,
        checkpoint: str | None = None,
        is_eval: bool = False,
        overwrite_policy_output: bool = False,
        name: str | None = None,
    ) -> None:
        if not isinstance(is_on_policy, bool):
            raise ConfigError(
                f"{name or type(self).__name__}: is_on_policy must be True or False, "
                f"got {is_on_policy!r}. True trains on every unroll and drops it, "
                "False trains from a replay buffer."
            )
        if config is not None:
            name_shown = name or type(self).__name__
            num_environments = None if env is None else env.batch_size
            config = config.counted(is_on_policy, num_environments, name_shown)
        super().__init__(
            train_state_spec=train_state_spec,
            rollout_state_spec=rollout_state_spec,
            predict_state_spec=predict_state_spec,
            optimizer=optimizer,
            checkpoint=checkpoint,
            config=config,
            name=name,
        )
        self._observation_spec = observation_spec
        self._action_spec = action_spec
        self._reward_spec = reward_spec
        self._on_policy = is_on_policy
        self._is_eval = is_eval
        self.overwrite_policy_output = overwrite_policy_output or (
            config is not None and config.overwrite_policy_output
        )
        self._env = env
        self._reward_weights = RewardWeights(reward_spec, reward_weights)
        # Replaced by ``create_algorithm`` if the configuration names transformers.
        self.data_transformer: DataTransformer = IdentityDataTransformer(
            observation_spec
        )
        self._training_mode = TrainingMode(self)
        self._training: RootTraining | None = None
        if env is not None:
            if config is None:
                raise ConfigError(f"{self._name}: env is given but no config")
            self._training = RootTraining(self, UpdateLoop(self, config), config, env)

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
    def corrects_policy_lag(self) -> bool:
        """Whether on-policy training stays right on what older parameters did.

        Asynchronous unrolls need it: what they deliver was collected while the policy
        was being trained. Off-policy algorithms learn from any policy and need not say.
        """
        return False

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """Parts that ``rollout_step`` does not use: critics, target networks.

        Unroll workers are not told their parameters. It is about the ``rollout_step``
        of the same class, and ignored if a subclass overrides that alone.
        """
        return []

    def acting_state(self) -> ActingState:
        """What unroll workers are told of this algorithm."""
        left_out: list[nn.Module] = []
        for owner in type(self).__mro__:
            if "training_only_modules" in vars(owner):
                left_out = self.training_only_modules
            if "training_only_modules" in vars(owner) or "rollout_step" in vars(owner):
                break
        return ActingState(self, left_out)

    @property
    def has_multidim_reward(self) -> bool:
        return self._reward_spec.ndim > 0

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
        return self._reward_weights.forward(values)

    def get_metrics(self) -> list:
        """The metrics of the training environments."""
        return list(self._require_training().metrics)

    def get_step_metrics(self) -> list:
        """NumberOfEpisodes and EnvironmentSteps, the axes of summaries."""
        return self.get_metrics()[:2]

    @property
    def num_env_steps(self) -> int:
        """Steps taken in the training environments, FIRST steps not counted."""
        return int(self.get_step_metrics()[1].result())

    @property
    def num_updates(self) -> int:
        """Gradient updates since the run began."""
        return self._require_training().updates.num_updates

    @property
    def replay_buffer(self) -> ReplayBuffer | None:
        """The run's own; None before its first step, and on-policy."""
        if self._on_policy:
            return None
        return self._require_training().off_policy_path.replay.buffer

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
        training = self._require_training()
        steps = training.path.train_iter()
        if steps:
            num_updates = training.updates.num_updates
            summary.scalar("train/updates", num_updates)
            summary.scalar(
                "train/updates_per_env_step", num_updates / max(self.num_env_steps, 1)
            )
        return steps

    def unroll(self, unroll_length: int) -> Experience:
        """Collects ``unroll_length`` steps of every environment.

        The metrics observe the untransformed steps; normalizers update their statistics
        after the unroll. Off-policy, the steps go into the replay buffer.

        Returns:
            [T, B, ...], or [T+1, B, ...] on-policy: the last row is the bootstrap row.
            Valid until the next unroll, which reuses the memory.
        """
        return self._require_training().unroll(unroll_length)

    def unroll_what_is_there(self, at_least: int, at_most: int) -> Experience | None:
        """Takes what unroll workers have finished, as ``unroll`` does.

        Args:
            at_least: wait for so many steps of a worker.
            at_most: leave the others for the next time.

        Returns:
            As ``unroll``, the steps side by side; None if there are none.
        """
        unrolling = self._require_training().unrolling
        return unrolling.unroll_what_is_there(at_least, at_most)

    @property
    def acts_randomly(self) -> bool:
        """Whether the random policy fills the replay buffer."""
        return self._require_training().acts_randomly

    def random_action(self, inputs: TimeStep) -> Nest:
        """Any action [B, ...], for ``TrainerConfig.initial_random_policy``."""
        batch_size, device = inputs.reward.shape[:1], inputs.reward.device
        return nest.map_structure(
            lambda spec: spec.sample(batch_size).to(device), self._action_spec
        )

    def train_from_unroll(self, experience: Experience, train_info: Nest) -> int:
        """Trains on an unroll [T+1, B, ...] whose last row is the bootstrap row.

        If the algorithm has no ``train_step``, ``train_info`` carries the gradient of
        ``rollout_step`` and there is one update. Otherwise there are
        ``epochs`` passes over the unroll, each in shuffled
        mini-batches of ``mini_batch_size`` sequences of ``mini_batch_length`` steps.
        Without a ``mini_batch_length`` a sequence is the whole unroll with its
        bootstrap row.

        Returns:
            The number of steps trained on, counting repetitions.
        """
        path = self._require_training().on_policy_path
        return path.train_from_unroll(experience, train_info)

    def train_from_replay_buffer(self, *, with_own_steps: bool = True) -> int:
        """Makes ``num_updates_per_train_iter`` updates on windows from the sources.

        The windows [mini_batch_size, mini_batch_length] of all updates are drawn and
        preprocessed at once. With ``whole_replay_buffer_training`` there are as many
        passes over the whole buffer instead, in shuffled mini-batches.

        Args:
            with_own_steps: False leaves the run's own replay buffer out, so that only
                the offline buffers are trained on.

        Returns:
            The number of steps trained on, counting repetitions.
        """
        path = self._require_training().off_policy_path
        return path.train_from_replay_buffer(with_own_steps=with_own_steps)

    def load_offline_replay_buffer(self) -> None:
        """Loads what ``TrainerConfig.offline_buffer_dir`` names; nothing if done.

        Raises:
            ConfigError: if the algorithm is on-policy.
            DataError: if a source cannot be read or does not fit the environment.
        """
        if self._training is not None:
            self._training.load_offline_buffers()

    def add_offline_replay_buffer(self, buffer: ReplayBuffer) -> None:
        """Adds a source of steps that are trained on beside the run's own.

        The statistics of data transformers take its steps in.

        Args:
            buffer: of ``Experience`` with the specs of the environment.
        """
        self._require_training().off_policy_path.add_offline_buffer(buffer)

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """Stored experience [B, T, ...] → what the updates need, without gradient."""
        with torch.no_grad():
            inputs, info = self.preprocess_experience(
                experience.time_step, experience.rollout_info, batch_info
            )
        return TrainingBatch(inputs, info, experience.state, valid, batch_info)

    def priority_of(
        self, td_error: Tensor | Callable[[], Tensor], step_type: Tensor
    ) -> Field:
        """The priority [B] of windows with these errors; () if nobody asks.

        Args:
            td_error: [T, B], δ or |δ|, or a function that computes it if it is needed.
            step_type: [T, B].
        """
        if self._config is not None and not self._config.priority_replay:
            return ()
        if not isinstance(td_error, Tensor):
            td_error = td_error()
        return sequence_priority(td_error, valid_steps(step_type))

    # Set-up and state

    @property
    def unrolls_with_grad(self) -> bool:
        """Whether the loss is computed from what ``rollout_step`` returned."""
        return self._on_policy and (
            self._config.unroll_with_grad or not self._overrides("train_step")
        )

    @property
    def trains_offline_differently(self) -> bool:
        """Whether offline rows have a train step or a loss of their own."""
        return self._overrides("train_step_offline", "calc_loss_offline")

    def set_training(self, mode: bool) -> None:
        """As ``train(mode)``, but fast enough for every step."""
        self._training_mode.set(mode)

    def _overrides(self, *methods: str) -> bool:
        """Whether the algorithm has a method of its own in place of one of these."""
        return any(
            getattr(type(self), method) is not getattr(Algorithm, method)
            for method in methods
        )

    def setup_training(self) -> None:
        """Also loads the offline buffers, and compiles acting if the config says so."""
        if self._optimizers is not None:
            return
        super().setup_training()
        if self._training is not None:
            self._training.set_up()

    def optimizers(self) -> list[tuple[str, Optimizer]]:
        """As of :class:`Algorithm`; if there is none, Adam by ``default_settings``."""
        defaults = self.default_settings
        if defaults.lr is not None and not self._has_optimizer():
            adam = call_with_defaults(
                Adam,
                {"lr": defaults.lr, "gradient_clipping": defaults.gradient_clipping},
            )
            self._claims.append((adam, None))
        return super().optimizers()

    def _require_training(self) -> RootTraining:
        if self._training is None:
            raise ConfigError(
                f"{self._name} was built without env: it has no metrics and no replay "
                "buffer, and cannot unroll or be trained on its own"
            )
        return self._training

    def reset_environment(self, seed: int | None = None) -> None:
        """Starts new episodes everywhere; open ones are dropped from the metrics.

        Unroll workers are started by it, and go on undisturbed later.
        """
        self._require_training().reset_environment(seed)

    def resume_environment(self, seed: int) -> str:
        """Continues the open episodes that ``load_training_state_dict`` has brought.

        Called instead of ``reset_environment``. Where it cannot be done, new episodes
        begin, and what was stored of the old ones counts as cut off by a time limit.

        Args:
            seed: of new episodes.

        Returns:
            In which environments that is so, and why; empty if in none.
        """
        return self._require_training().resume_environment(seed)

    def training_state_dict(self) -> dict[str, Any]:
        """What training needs beside ``state_dict``: optimizers, metrics, episodes."""
        return self._require_training().state_dict()

    def load_training_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``training_state_dict`` returned."""
        self._require_training().load_state_dict(state)

    def training_files(self) -> dict[str, Stream]:
        """The stored steps, as a file beside ``training_state_dict``, if configured."""
        return self._require_training().files()

    def load_training_files(self, files: Mapping[str, Path]) -> None:
        """Restores what ``training_files`` returned.

        Args:
            files: name -> where it is.
        """
        self._require_training().load_files(files)

    def finish_train(self) -> None:
        """Releases what training holds: the environment, or the unroll workers."""
        if self._training is not None:
            self._training.close()
