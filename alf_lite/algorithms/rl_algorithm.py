"""The root of a training run: owns the environment, the metrics and the iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from alf_lite import nest
from alf_lite.algorithms.acting import TrainedPolicy, without_memory
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning import construction, training_batches
from alf_lite.algorithms.learning.recorded_steps import has_no_replay
from alf_lite.algorithms.learning.training_replay import TrainingReplay
from alf_lite.algorithms.learning.training_run import TrainingRun, metrics_of
from alf_lite.algorithms.learning.whole_episodes import (
    EpisodeCollection,
    trained_sequences,
)
from alf_lite.algorithms.parts.reward_weights import RewardWeights
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import from_saved_spaces, saved_spaces
from alf_lite.errors import ConfigError
from alf_lite.metrics.metrics import MetricSet
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils import random_state, summary
from alf_lite.utils.progress import Limits
from alf_lite.utils.ranks import ranks
from alf_lite.utils.summary import timed

Nest = Any


class RLAlgorithm(RLContract):
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
        is_on_policy: which of the two paths ``train_iter`` takes; None if it can take
            either, and the algorithm that it is a part of says which.
        train_state_spec: see :class:`Algorithm`, as for the other states.
        reward_spec: rank 0, or rank 1 for a reward of several dimensions.
        reward_weights: for a reward of several dimensions, the weight of each in what
            is maximised, or :class:`LagrangianRewardWeights`; ones by default.
        env: the batched environment to train in; only the root needs it.
        config: of the training run; only the root needs it.
        is_eval: build only what ``predict_step`` needs.
    """

    __signature__ = construction.ConstructorSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        algorithm = super().__new__(cls)
        construction.look_at_arguments(algorithm, args, kwargs)
        return algorithm

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = construction.through_front_door(vars(cls)["__init__"])  # type: ignore

    @construction.through_front_door
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        is_on_policy: bool | None,
        train_state_spec: NestedTensorSpec = (),
        rollout_state_spec: NestedTensorSpec | None = None,
        predict_state_spec: NestedTensorSpec | None = None,
        *,
        reward_spec: TensorSpec = TensorSpec(()),
        reward_weights: Sequence[float] | Callable[..., RewardWeights] | None = None,
        env: Environment | None = None,
        config: TrainerConfig | None = None,
        optimizer: Optimizer | None = None,
        checkpoint: str | None = None,
        is_eval: bool = False,
        name: str | None = None,
    ) -> None:
        name = name or type(self).__name__
        config = construction.counted_config(config, is_on_policy, env, name)
        super().__init__(
            observation_spec,
            action_spec,
            is_on_policy,
            train_state_spec=train_state_spec,
            rollout_state_spec=rollout_state_spec,
            predict_state_spec=predict_state_spec,
            reward_spec=reward_spec,
            reward_weights=reward_weights,
            config=config,
            optimizer=optimizer,
            checkpoint=checkpoint,
            is_eval=is_eval,
            name=name,
        )
        self._env = env
        self.built_from: construction.BuiltFrom | None = None  # of the root
        self.episodes_have_begun = False  # of a loop of one's own, too
        self.is_finished = False  # ``finish_train`` was called
        self._metrics: MetricSet | None = None
        self._training_run: TrainingRun | None = None
        self._predictor: TrainedPolicy | None = None

    # One iteration

    def train_iter(self) -> int:
        """Unrolls, then trains. Returns the number of steps trained on."""
        if self._optimizers is None:
            self.setup_training()
        if not self.episodes_have_begun:
            self._begin_episodes()
        run, progress = self.training_run, self.progress
        progress.global_counter += 1
        summary.set_global_counter(progress.global_counter)
        if run.replay is None:
            steps = self._train_iter_on_policy()
        else:
            steps = self._train_iter_off_policy(run.replay)
            run.replay.end_iteration()
        if ranks.size > 1:
            self.metrics.share()
        limits = Limits(self._config.num_iterations, self._config.num_env_steps)
        progress.move_to(progress.iterations + 1, self.num_env_steps, limits)
        if steps and summary.should_record():
            num_updates = run.updates.num_updates
            summary.scalar("train/updates", num_updates)
            summary.scalar(
                "train/updates_per_env_step", num_updates / max(self.num_env_steps, 1)
            )
        return steps

    def _train_iter_on_policy(self) -> int:
        """Collects an unroll and trains on it."""
        with timed("time/unroll"):
            if self._config.unroll_episodes is None:
                experience = self.unroll(int(self._config.unroll_length))
            else:
                experience = self._unroll_episodes(self._config.unroll_episodes)
        self.set_training(True)
        with timed("time/train"):
            steps = self.train_from_unroll(experience, experience.rollout_info)
        with timed("time/after_train_iter"):
            rows = nest.narrow((experience.time_step, experience.rollout_info), 0, -1)
            self.after_train_iter(*rows)
        return steps

    def _unroll_episodes(self, number: int) -> Experience:
        """Whole episodes [T+1, B, ...]; the steps of others count as LAST."""
        if self.num_env_steps:  # episodes that are open belong to older policies
            self.training_run.reset_environment(None)
        episodes = EpisodeCollection(number)
        while episodes.add(self.unroll(int(self._config.unroll_length))):
            pass
        return episodes.joined()

    def _train_iter_off_policy(self, replay: TrainingReplay) -> int:
        """Collects some steps, stores them and trains on what is stored."""
        config, iteration = self._config, replay.begin_iteration()
        experience, with_own_steps = None, False
        if iteration >= config.rl_train_after_update_steps:
            with timed("time/unroll"):
                experience = self._collect(replay)
            if not replay.can_train():
                return 0
            with_own_steps = iteration % config.rl_train_every_update_steps == 0
        if with_own_steps and replay.pace and not replay.pace.begin_training():
            return 0
        self.set_training(True)
        with timed("time/train"):
            steps = self.train_from_replay_buffer(with_own_steps=with_own_steps)
        if experience is not None:
            with timed("time/after_train_iter"):
                self.after_train_iter(experience.time_step, experience.rollout_info)
        return steps

    def _collect(self, replay: TrainingReplay) -> Experience | None:
        """Unrolls as ``unroll_length`` says; None if there is nothing to unroll."""
        if self._config.unroll_length:
            length = replay.next_unroll_length()
            return self.unroll(length) if length else None
        pace = replay.pace
        assert pace is not None, "made for this"
        limits = pace.num_steps_to_take(can_train=replay.own.can_train)
        experience = self.training_run.collector.take_what_is_there(*limits)
        if experience is not None:
            pace.take(experience.time_step.step_type.numel())
        return experience

    def unroll(self, unroll_length: int) -> Experience:
        """Collects ``unroll_length`` steps of every environment.

        The metrics observe the untransformed steps; normalizers update their statistics
        after the unroll, on-policy when it is prepared for training. Off-policy, the
        steps go into the replay buffer.

        Returns:
            [T, B, ...], or [T+1, B, ...] on-policy: the last row is the bootstrap row.
            Valid until the next unroll, which reuses the memory.
        """
        return self.training_run.collector.collect(
            unroll_length, acts_randomly=self.acts_randomly
        )

    @property
    def acts_randomly(self) -> bool:
        """Whether the random policy fills the replay buffer."""
        replay = self.training_run.replay
        if replay is None or not self._config.initial_random_policy:
            return False
        return replay.own.is_beginning

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
        run, length = self.training_run, self._config.mini_batch_length
        if run.replay is not None:
            raise ConfigError(f"{self._name} is off-policy: it trains from replay")
        valid = valid_steps(experience.time_step.step_type)
        valid[-1] = False
        if self.unrolls_with_grad:
            batch = training_batches.TrainingBatch(
                experience.time_step, train_info, (), valid
            )
            run.collector.update_statistics()
            return run.updates.run_on_rollout(batch)

        # Preprocess the whole unroll once, [B, T+1, ...].
        info = training_batches.with_executed_action(train_info, experience.action)
        experience, valid = training_batches.transpose(
            (experience._replace(rollout_info=info), valid)
        )
        batch = run.preprocessed = self.preprocess(experience, valid, BatchInfo())
        run.collector.update_statistics()

        # Update on its mini-batches.
        if length is not None:  # else a sequence is the unroll with its bootstrap row
            batch = training_batches.cut_sequences(batch, len(valid[0]) - 1, length)
        if self._config.unroll_episodes is not None:
            batch = trained_sequences(batch)
        return run.updates.run_passes(batch, num_bootstrap_rows=int(length is None))

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
        run, config = self.training_run, self._config
        if run.replay is None:
            raise has_no_replay(self._name)
        batches = run.replay.batches
        if not config.whole_replay_buffer_training:
            return run.updates.run(
                batches.updates(with_own_steps=with_own_steps),
                config.num_updates,
                update_priority=(
                    batches.update_priority if config.priority_replay else None
                ),
            )
        batch = batches.all_steps()
        num_rows = min(self.num_bootstrap_steps, batch.valid.shape[1] - 1)
        steps = run.updates.run_passes(batch, num_bootstrap_rows=num_rows)
        if config.clear_replay_buffer:
            run.replay.own.forget_trained(self.num_bootstrap_steps)
        return steps

    def load_offline_replay_buffer(self) -> None:
        """Loads what ``TrainerConfig.offline_buffer_dir`` names; nothing if done.

        Raises:
            ConfigError: if the algorithm is on-policy and no part of it learns from
                recorded steps.
            DataError: if a source cannot be read or does not fit the environment.
        """
        if self._config is not None and self._config.offline_sources:
            env, _ = self._require_env()
            self.training_run.recorded.load_recorded(env)

    def add_offline_replay_buffer(self, buffer: ReplayBuffer) -> None:
        """Adds a source of steps that are trained on beside the run's own.

        The statistics of data transformers take its steps in.

        Args:
            buffer: of ``Experience`` with the specs of the environment, and in them.
        """
        self.training_run.recorded.add_recorded(buffer)

    # A run of its own

    def setup_training(self, *, is_resumed: bool = False) -> None:
        """Also loads the offline buffers, and compiles acting if the config says so."""
        if self._optimizers is not None:
            return
        super().setup_training(is_resumed=is_resumed)
        if self._env is not None:
            run = self.training_run  # checks what the conf says before anything runs
            self.load_offline_replay_buffer()
            run.set_up()

    def reset_environment(self, seed: int | None = None) -> None:
        """Starts new episodes everywhere; open ones are dropped from the metrics.

        Unroll workers are started by it, and go on undisturbed later.
        """
        self.episodes_have_begun = True
        self.training_run.reset_environment(seed)

    def _begin_episodes(self) -> None:
        """In a loop of one's own with a seed, as the trainer does it."""
        config = self._config
        is_new = self.progress.iterations == 0
        if is_new and config is not None and config.random_seed is not None:
            own_seed = ranks.seed_of(config.random_seed)
            seed = random_state.derive_seed(own_seed, "environments", 0)
            self.reset_environment(seed)
        self.episodes_have_begun = True

    def finish_train(self) -> None:
        """Releases what training holds: the environment, or the unroll workers."""
        self.is_finished = True
        if self._training_run is not None:
            self._training_run.close()
        elif self._env is not None:
            self._env.close()

    # What it owns

    @property
    def env(self) -> Environment | None:
        return self._env

    @property
    def metrics(self) -> MetricSet:
        """They observe the untransformed steps of the training environments."""
        if self._metrics is None:
            self._metrics = metrics_of(*self._require_env(), self.initial_gamma)
        return self._metrics

    def get_metrics(self) -> list:
        """The metrics of the training environments."""
        return list(self.metrics)

    def get_step_metrics(self) -> list:
        """NumberOfEpisodes and EnvironmentSteps, the axes of summaries."""
        return self.get_metrics()[:2]

    @property
    def num_env_steps(self) -> int:
        """Steps taken in the training environments, FIRST steps not counted.

        Those of all ranks, as far as the others were heard after the last iteration.
        """
        return self.metrics.tracker.num_env_steps

    @property
    def num_updates(self) -> int:
        """Gradient updates since the run began."""
        return self.training_run.updates.num_updates

    @property
    def replay_buffer(self) -> ReplayBuffer | None:
        """The run's own; None before its first step, and on-policy."""
        replay = self.training_run.replay
        return None if replay is None else replay.own.buffer

    @property
    def training_run(self) -> TrainingRun:
        """What iterations are made of and checkpoints keep; made when it is needed."""
        if self._training_run is None:
            env, config = self._require_env()
            self._training_run = TrainingRun(self, config, env, self.metrics)
        return self._training_run

    def _require_env(self) -> tuple[Environment, TrainerConfig]:
        if self._env is None:
            raise ConfigError(
                f"{self._name} was built without env: it has no metrics and no replay "
                "buffer, and cannot unroll or be trained on its own"
            )
        return self._env, self._config

    # Acting by hand

    def policy(self) -> TrainedPolicy:
        """A policy that acts with the parameters of the moment, also while it trains.

        It is what :func:`~alf_lite.load_policy` gives of a run, and has memories of its
        own: for several episodes side by side, take several.

        Raises:
            ConfigError: if the algorithm was built without ``env``.
        """
        env, _ = self._require_env()
        spaces = from_saved_spaces(saved_spaces(env) or {})
        return TrainedPolicy(self, spaces, is_live=True)

    def predict(self, observation: Nest, deterministic: bool = True) -> Nest:
        """``policy().predict``, for algorithms that act on the observation alone.

        Args:
            observation: as the environment gives it, with or without [B, ...] in front.
            deterministic: the best action; False draws it from the policy.

        Raises:
            ConfigError: if it remembers, so that it must be told of new episodes.
        """
        if self._predictor is None:
            self._predictor = without_memory(self.policy())
        return self._predictor.predict(observation, deterministic)
