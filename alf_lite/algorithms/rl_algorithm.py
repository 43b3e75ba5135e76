"""The root of a training run: owns the environment, the metrics and the iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.acting import TrainedPolicy
from alf_lite.algorithms.algorithm import Algorithm, valid_steps
from alf_lite.algorithms.learning.construction import AlgorithmMeta, BuiltFrom
from alf_lite.algorithms.learning.learner import Learner
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.return_streams import ReturnStream
from alf_lite.algorithms.parts.reward_weights import (
    RewardWeights,
    make_reward_weights,
)
from alf_lite.algorithms.parts.transitions import sequence_priority
from alf_lite.config import DefaultSettings, TrainerConfig
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
from alf_lite.environments.specs_only_environment import (
    from_saved_spaces,
    saved_spaces,
)
from alf_lite.errors import ConfigError
from alf_lite.metrics.episode_metric import build_episode_metrics
from alf_lite.metrics.metrics import MetricSet, create_metrics
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.unrollers.actor_copy import ActingState
from alf_lite.utils import random_state, summary
from alf_lite.utils.progress import Limits, Progress, follow_progress
from alf_lite.utils.ranks import ranks
from alf_lite.utils.schedulers import initial_value

Nest = Any


class RLAlgorithm(Algorithm, metaclass=AlgorithmMeta):
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
        overwrite_policy_output: store the action that the environment reports as
            executed (``prev_action``) instead of the policy's, as for scripted experts;
            ``TrainerConfig.overwrite_policy_output`` says the same.
    """

    # γ: a float, which a subclass that discounts sets
    _gamma: Any = None

    # Off-policy: η of the priority of a sequence, see sequence_priority
    _max_priority_weight: float = 0.9

    # Off-policy: whether BatchInfo.episode_returns are wanted
    uses_episode_returns: bool = False

    # ``predict_step`` looks at ``prev_action``: whoever acts has to remember it.
    acts_on_prev_action: bool = False

    # Off-policy: whether new windows get the priority of priority_of_new_steps
    prioritizes_new_steps: bool = False

    # How it is published, for confs that leave that out
    default_settings: ClassVar[DefaultSettings] = DefaultSettings()

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
        overwrite_policy_output: bool = False,
        name: str | None = None,
    ) -> None:
        if not isinstance(is_on_policy, bool | None):
            raise ConfigError(
                f"{name or type(self).__name__}: is_on_policy must be True or False, "
                f"got {is_on_policy!r}. True trains on every unroll and drops it, "
                "False trains from a replay buffer, and None leaves it to the parent."
            )
        if config is not None and is_on_policy is not None:
            name_shown = name or type(self).__name__
            num_environments = None if env is None else env.batch_size * ranks.size
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
        self.has_multidim_reward = reward_spec.ndim > 0
        self._on_policy = is_on_policy
        self._is_eval = is_eval
        self._predict_epsilon = 0.0 if config is None else config.epsilon_greedy
        self.overwrite_policy_output = overwrite_policy_output or (
            config is not None and config.overwrite_policy_output
        )
        self._env = env
        self._reward_weights = make_reward_weights(reward_spec, reward_weights)
        # Replaced afterwards if the configuration names transformers.
        self.data_transformer: DataTransformer = IdentityDataTransformer(
            observation_spec
        )
        self.built_from: BuiltFrom | None = None  # of the root
        self._episodes_have_begun = False
        self._is_finished = False
        self.progress = Progress()  # of the root, in all algorithms below it
        self._metrics: MetricSet | None = None
        self.make_learner: Any = None  # of the root, () → Learner
        self._learner: Learner | None = None
        self._attributes_of_modules: list[dict[str, Any]] | None = None
        self._predictor: TrainedPolicy | None = None

    def __dir__(self) -> list[str]:
        """All names, of which ``dir`` of the class tells the algorithm's own."""
        return sorted({*super().__dir__(), *type.__dir__(type(self))})

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
        """Whether it trains on every unroll; else it does from a replay buffer.

        Raises:
            ConfigError: if that was left to a parent, and there is none.
        """
        if self._on_policy is None:
            raise ConfigError(
                f"{self._name} can train on-policy and off-policy (is_on_policy=None), "
                "and no parent has said which. Give it is_on_policy=True or False, or "
                "make it the rl_algorithm_ctor of an Agent with is_on_policy."
            )
        return self._on_policy

    def set_on_policy(self, is_on_policy: bool) -> None:
        """Decides for an algorithm that was built with ``is_on_policy=None``.

        Raises:
            ConfigError: if it is of the other kind.
        """
        if self._on_policy not in (None, is_on_policy):
            kinds = "off-policy", "on-policy"
            raise ConfigError(
                f"{self._name} is {kinds[not is_on_policy]}, but its parent wants to "
                f"train it {kinds[is_on_policy]} (is_on_policy={is_on_policy})"
            )
        self._on_policy = is_on_policy

    def set_num_environments(self, num_environments: int) -> None:
        """What a root tells the algorithm that acts in it, which has no ``env``.

        Raises:
            ValueError: if what it was given is for another number of them.
        """

    def set_return_streams(self, streams: Sequence[ReturnStream]) -> None:
        """Decides how each of the D dimensions of the reward is summed.

        A parent does so for a reward that it is itself a part of, before training.

        Raises:
            ConfigError: if the algorithm sums all of them alike.
        """
        raise ConfigError(
            f"{self._name} sums all rewards with one γ and up to the end of the "
            "episode; a γ of its own for some of them (Agent.intrinsic_gamma) needs an "
            "on-policy actor-critic such as PPOAlgorithm"
        )

    @property
    def rl_algorithm(self) -> RLAlgorithm:
        """The one that acts: itself, or the part of a composition that does."""
        return self

    @property
    def corrects_policy_lag(self) -> bool:
        """Whether on-policy training stays right on what older parameters did.

        Asynchronous unrolls need it: what they deliver was collected while the policy
        was being trained. Off-policy algorithms learn from any policy and need not say.
        """
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherits = cls.training_only_modules is not RLAlgorithm.training_only_modules
        says_it = "training_only_modules" in vars(cls)
        if "rollout_step" in vars(cls) and inherits and not says_it:
            raise ConfigError(
                f"{cls.__name__} has a rollout_step of its own: define beside it "
                "training_only_modules, the parts that this rollout_step does not use. "
                "[] is always right; unroll workers are told everything then."
            )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """Parts that ``rollout_step`` does not use: critics, target networks.

        Unroll workers are not told their parameters. A class with a ``rollout_step`` of
        its own says it anew.
        """
        return []

    def acting_state(self) -> ActingState:
        """What unroll workers are told of this algorithm."""
        return ActingState(self, self.training_only_modules)

    @property
    def gamma(self) -> float | None:
        """γ of the returns that it learns, now; None: no γ."""
        return self._gamma

    @property
    def initial_gamma(self) -> float | None:
        """γ at the start of the run: that of metrics and normalizers, which stays."""
        return initial_value(self, "_gamma")

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

    def observe_rewards(self, new_steps: TimeStep) -> None:
        """Shows raw steps [T, B, ...] to the weights, which may follow the rewards."""
        self._reward_weights.observe(new_steps)

    def scalar_reward(self, values: Tensor) -> Tensor:
        """Rewards, values or advantages [..., D] weighted to [...]; [...] as it is."""
        if not self.has_multidim_reward:
            return values
        return self._reward_weights.forward(values)

    @property
    def metrics(self) -> MetricSet:
        """They observe the untransformed steps of the training environments."""
        if self._metrics is None:
            env, config = self._require_env()
            self._metrics = create_metrics(
                reward_spec=env.reward_spec,
                env_info_spec=env.env_info_spec,
                batch_size=env.batch_size,
                buffer_size=max(config.metric_min_buffer_size, env.batch_size),
                algorithm_gamma=self.initial_gamma,
                own=build_episode_metrics(config.metric_ctors),
            )
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
    def limits(self) -> Limits:
        """How long the run is, as its configuration says."""
        config = self._config
        return Limits(config.num_iterations, config.num_env_steps)

    @property
    def num_updates(self) -> int:
        """Gradient updates since the run began."""
        return self.learner.updates.num_updates

    @property
    def replay_buffer(self) -> ReplayBuffer | None:
        """The run's own; None before its first step, and on-policy."""
        return self.learner.replay_buffer

    # The learner

    @property
    def learner(self) -> Learner:
        """Runs the iterations; made when it is first needed."""
        if self._learner is None:
            self._require_env()
            self._learner = self.make_learner()
        return self._learner

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
            self._predictor = self.policy()
        if self._predictor.remembers:
            raise ConfigError(
                f"{self._name} remembers what it has seen in an episode. Write policy "
                "= algorithm.policy(), then policy.predict(observation), and "
                "policy.reset() where an episode begins."
            )
        return self._predictor.predict(observation, deterministic)

    # Data transformers

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]:
        """What the environment returned [B, ...] → what the networks see."""
        # Not by attribute, which nn.Module looks up in Python: done at every step.
        transformer: Any = self._modules["data_transformer"]
        if transformer.is_identity:
            return time_step, state
        return transformer.transform_timestep(time_step, state)

    def get_initial_transform_state(self, batch_size: int) -> Nest:
        return self._zeros(self.data_transformer.state_spec, batch_size)

    # One iteration

    def train_iter(self) -> int:
        """Unrolls, then trains. Returns the number of steps trained on."""
        self.setup_training()
        self._begin_episodes()
        learner, progress = self.learner, self.progress
        progress.global_counter += 1
        summary.set_global_counter(progress.global_counter)
        steps = learner.train_iter()
        self.metrics.share()
        progress.move_to(progress.iterations + 1, self.num_env_steps, self.limits)
        if steps and summary.should_record():
            num_updates = learner.updates.num_updates
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
        return self.learner.unroll(unroll_length)

    def unroll_what_is_there(self, at_least: int, at_most: int) -> Experience | None:
        """Takes what unroll workers have finished, as ``unroll`` does.

        Args:
            at_least: wait for so many steps of a worker.
            at_most: leave the others for the next time.

        Returns:
            As ``unroll``, the steps side by side; None if there are none.
        """
        return self.learner.unroll_what_is_there(at_least, at_most)

    @property
    def acts_randomly(self) -> bool:
        """Whether the random policy fills the replay buffer."""
        return self.learner.acts_randomly

    @property
    def predict_epsilon(self) -> float:
        """How far ``predict_step`` explores; ``TrainerConfig.epsilon_greedy``, or 0.

        0 takes the mode of the policy, 1 draws from it.
        """
        return self._predict_epsilon

    @predict_epsilon.setter
    def predict_epsilon(self, epsilon: float) -> None:
        self._predict_epsilon = epsilon

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
        return self.learner.train_from_unroll(experience, train_info)

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
        return self.learner.train_from_replay_buffer(with_own_steps=with_own_steps)

    def load_offline_replay_buffer(self) -> None:
        """Loads what ``TrainerConfig.offline_buffer_dir`` names; nothing if done.

        Raises:
            ConfigError: if the algorithm is on-policy and no part of it learns from
                recorded steps.
            DataError: if a source cannot be read or does not fit the environment.
        """
        if self._config is not None and self._config.offline_sources:
            self.learner.load_offline_buffers()

    def add_offline_replay_buffer(self, buffer: ReplayBuffer) -> None:
        """Adds a source of steps that are trained on beside the run's own.

        The statistics of data transformers take its steps in.

        Args:
            buffer: of ``Experience`` with the specs of the environment.
        """
        self.learner.add_offline_buffer(buffer)

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """Stored experience [B, T, ...] → what the updates need, without gradient."""
        with torch.no_grad():
            inputs, info = self.preprocess_experience(
                experience.time_step, experience.rollout_info, batch_info
            )
        return TrainingBatch(inputs, info, experience.state, valid, batch_info)

    @property
    def only_pairs_steps(self) -> bool:
        """Whether ``preprocess_experience`` only makes transitions of one step.

        The learner makes them itself then, by :meth:`transitions_to`, from windows of
        two steps that it has not taken apart yet.
        """
        return False

    def transitions_to(self, next_step: TimeStep) -> Nest:
        """What ``train_step`` gets besides a step, if ``only_pairs_steps``.

        Args:
            next_step: [B, ...], the one that follows.
        """
        raise NotImplementedError(f"{type(self).__name__} does not only pair steps")

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
        return sequence_priority(
            td_error, valid_steps(step_type), self._max_priority_weight
        )

    def priority_of_new_steps(self, experience: Experience) -> Tensor:
        """What new windows are drawn by until they are trained, [B].

        Asked if it ``prioritizes_new_steps``; else they have the largest priority.

        Args:
            experience: [B, T, ...], from the replay buffer, transformed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no priority of new steps")

    # Set-up and state

    @property
    def unrolls_with_grad(self) -> bool:
        """Whether the loss is computed from what ``rollout_step`` returned."""
        return self.on_policy and (
            self.trains_on_rollout_info or self._config.unroll_with_grad
        )

    def set_training(self, mode: bool) -> None:
        """As ``train(mode)``, but fast enough for every step: modules stay the same.

        ``torch.nn.Module.train`` walks through the tree and takes about 10 µs for every
        module; an iteration of one step and one update switches twice.
        """
        if self._attributes_of_modules is None:
            modules = list(self.modules())
            is_plain = all(type(m).train is nn.Module.train for m in modules)
            # A module that has its own way to switch is left to it.
            self._attributes_of_modules = [vars(m) for m in modules] if is_plain else []
        if not self._attributes_of_modules:
            self.train(mode)
        for attributes in self._attributes_of_modules:
            # Not by attribute, where nn.Module looks for parameters first.
            attributes["training"] = mode

    def setup_training(self, *, is_resumed: bool = False) -> None:
        """Also loads the offline buffers, and compiles acting if the config says so."""
        if self._optimizers is not None:
            return
        super().setup_training(is_resumed=is_resumed)
        if self._env is not None:
            learner = self.learner  # checks what the conf says before anything runs
            self.load_offline_replay_buffer()
            learner.set_up()

    def _complete_claims(self) -> None:
        """What has no optimizer gets Adam by ``default_settings``."""
        self._claim_default_optimizer()
        # Those that were added since it was built follow it, too.
        self.follow_progress(self.progress)

    def _claim_default_optimizer(self, is_alone: bool = True) -> None:
        defaults = self.default_settings
        names = ("lr", "gradient_clipping", "eps")
        if defaults.lr is not None:
            own = {name: getattr(defaults, name) for name in names}
            self._claim_by_default(own, is_alone)

    def follow_progress(self, progress: Progress) -> None:
        """Has all schedules in the modules of this algorithm follow ``progress``."""
        for module in self.modules():
            if isinstance(module, RLAlgorithm):
                module.progress = progress
            follow_progress(vars(module).values(), progress)

    def reset_environment(self, seed: int | None = None) -> None:
        """Starts new episodes everywhere; open ones are dropped from the metrics.

        Unroll workers are started by it, and go on undisturbed later.
        """
        self._episodes_have_begun = True
        self.learner.reset_environment(seed)

    @property
    def episodes_have_begun(self) -> bool:
        """Whether a loop of one's own has stepped the environment."""
        return self._episodes_have_begun

    @property
    def is_finished(self) -> bool:
        """Whether ``finish_train`` was called."""
        return self._is_finished

    def _begin_episodes(self) -> None:
        """In a loop of one's own with a seed, as the trainer does it."""
        if self._episodes_have_begun:
            return
        config = self._config
        is_new = self.progress.iterations == 0
        if is_new and config is not None and config.random_seed is not None:
            own_seed = ranks.seed_of(config.random_seed)
            seed = random_state.derive_seed(own_seed, "environments", 0)
            self.reset_environment(seed)
        self._episodes_have_begun = True

    def finish_train(self) -> None:
        """Releases what training holds: the environment, or the unroll workers."""
        self._is_finished = True
        if self._learner is not None:
            self._learner.close()
        elif self._env is not None:
            self._env.close()
