"""What an algorithm that acts in an environment says of itself, in a run or in a part.

Who collects, stores and updates knows an algorithm by this class, and no run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm, valid_steps
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.return_streams import ReturnStream
from alf_lite.algorithms.parts.reward_weights import RewardWeights
from alf_lite.algorithms.parts.transitions import sequence_priority
from alf_lite.config import DefaultSettings, TrainerConfig
from alf_lite.data_structures import AlgStep, BatchInfo, Experience, Field, TimeStep
from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    IdentityDataTransformer,
)
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.packed_windows import PackedWindows
from alf_lite.replay_buffers.row_layout import PackedSteps
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.unrollers.actor_copy import ActingState
from alf_lite.utils.progress import Progress, follow_progress
from alf_lite.utils.schedulers import initial_value

Nest = Any


class RLContract(Algorithm):
    """An algorithm that learns by reward: specs, γ, transitions, priorities, acting.

    Its arguments are described where it is trained, in :class:`RLAlgorithm`.
    """

    # γ: a float, which a subclass that discounts sets
    _gamma: Any = None

    # Off-policy: η of the priority of a sequence, see sequence_priority
    _max_priority_weight: float = 0.9

    # Off-policy: whether BatchInfo.episode_returns are wanted
    uses_episode_returns: bool = False

    # Whether the rewards of the steps make a difference to what it learns
    uses_rewards: bool = True

    # Whether its targets are right where the environment has_negative_discounts
    takes_negative_discounts: bool = False

    # ``predict_step`` looks at ``prev_action``: whoever acts has to remember it.
    acts_on_prev_action: bool = False

    # Whether actions are drawn from a distribution; else exploration is added to them.
    has_stochastic_policy: bool = True

    # Whether predict_epsilon makes a difference to ``predict_step``.
    explores_by_epsilon: bool = True

    # On-policy: ``calc_loss`` looks at the step after each one; the last may have none.
    needs_successors: bool = False

    # Off-policy: whether it trains on what rollout_step stores; recorded steps lack it
    needs_rollout_info: bool = False

    # Off-policy: whether its LossInfo has the priority that priority_replay draws by
    tells_priority: bool = True

    # Off-policy: whether new windows get the priority of priority_of_new_steps
    prioritizes_new_steps: bool = False

    # Random actions need no ``rollout_step``, which is dear, nor its state and info.
    skips_rollout_of_random_steps: bool = False

    # Entries of a dict of observations that ``predict_step`` does not look at
    unseen_entries: frozenset[str] = frozenset()

    # How it is published, for confs that leave that out
    default_settings: ClassVar[DefaultSettings] = DefaultSettings()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        is_on_policy: bool | None,
        *,
        reward_spec: TensorSpec,
        reward_weights: Sequence[float] | Callable[..., RewardWeights] | None,
        config: TrainerConfig | None,
        is_eval: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(config=config, **kwargs)
        self._observation_spec = observation_spec
        self._action_spec = action_spec
        self._reward_spec = reward_spec
        self.has_multidim_reward = reward_spec.ndim > 0
        self._on_policy = is_on_policy
        self._is_eval = is_eval
        self._predict_epsilon = 0.0 if config is None else config.epsilon_greedy
        self._reward_weights = (
            reward_weights(reward_spec)
            if callable(reward_weights)
            else RewardWeights(reward_spec, reward_weights)
        )
        # Replaced afterwards if the configuration names transformers.
        unchanged = IdentityDataTransformer(observation_spec)
        self.data_transformer: DataTransformer = unchanged
        self.progress = Progress()  # of the root, in all algorithms below it
        self._attributes_of_modules: list[dict[str, Any]] | None = None

    # What others may ask

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
    def rl_algorithm(self) -> RLContract:
        """The one that acts: itself, or the part of a composition that does."""
        return self

    def seen_by_policy(self, inputs: TimeStep) -> TimeStep:
        """Steps [B, ...] as ``rl_algorithm`` acts on them, if nothing remembers."""
        return inputs

    @property
    def corrects_policy_lag(self) -> bool:
        """Whether on-policy training stays right on what older parameters did.

        Asynchronous unrolls need it: what they deliver was collected while the policy
        was being trained. Off-policy algorithms learn from any policy and need not say.
        """
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherits = cls.training_only_modules is not RLContract.training_only_modules
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

    # Acting

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]:
        """What the environment returned [B, ...] → what the networks see."""
        # Not by attribute, which nn.Module looks up in Python: done at every step.
        transformer: Any = self._modules["data_transformer"]
        if transformer.is_identity:
            return time_step, state
        return transformer.transform_timestep(time_step, state)

    @property
    def optional_entries(self) -> frozenset[str]:
        """Entries of a dict of raw observations that acting does without."""
        apart = self.data_transformer.keeps_entries_apart
        return self.unseen_entries if apart else frozenset()

    def needed(self, entries: Nest) -> Nest:
        """An observation, or its spec, without the optional entries."""
        if not (optional := self.optional_entries) or not isinstance(entries, Mapping):
            return entries
        return {key: value for key, value in entries.items() if key not in optional}

    def completed(self, observation: Nest, num_rows: int) -> Nest:
        """A raw observation [B, ...] with zeros for optional entries that it lacks."""
        if not (optional := self.optional_entries):
            return observation
        spec = self.data_transformer.observation_spec
        lacking = {key: spec[key] for key in optional - observation.keys()}
        return {**observation, **self._zeros(lacking, num_rows)}

    def get_initial_transform_state(self, batch_size: int) -> Nest:
        return self._zeros(self.data_transformer.state_spec, batch_size)

    @property
    def predict_epsilon(self) -> float:
        """``TrainerConfig.epsilon_greedy``: 0 takes the mode of the policy, 1 draws."""
        return self._predict_epsilon

    @predict_epsilon.setter
    def predict_epsilon(self, epsilon: float) -> None:
        self._predict_epsilon = epsilon

    @property
    def overwrite_policy_output(self) -> bool:
        """Whether the action that the environment executed is stored."""
        return self._config is not None and self._config.overwrite_policy_output

    def random_action(self, inputs: TimeStep) -> Nest:
        """Any action [B, ...], for ``TrainerConfig.initial_random_policy``."""
        size, device = inputs.reward.shape[:1], inputs.reward.device
        return nest.map_structure(lambda s: s.sample(size).to(device), self.action_spec)

    def random_step(
        self, inputs: TimeStep, state: Nest, rollout_step: Callable[..., AlgStep]
    ) -> AlgStep:
        """A step by ``rollout_step``, perhaps a compiled one, with a random action.

        The policy is asked all the same: its state goes on, and what it stores and the
        random numbers that it draws are those of any other step. Not one that
        ``skips_rollout_of_random_steps``.
        """
        if self.skips_rollout_of_random_steps:
            return AlgStep(output=self.random_action(inputs), state=state)
        step = rollout_step(inputs, state)
        return step._replace(output=self.random_action(inputs))

    # Batches

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """Stored experience [B, T, ...] → what the updates need, without gradient."""
        with torch.no_grad():
            inputs, info = self.preprocess_experience(
                experience.time_step, experience.rollout_info, batch_info
            )
        return TrainingBatch(inputs, info, experience.state, valid, batch_info)

    def step_pairing(self) -> Callable[[PackedWindows], PackedSteps] | None:
        """Windows [B, n + 1] → pairs [B, 2], of a step t and what it bootstraps from.

        That is the step t + m of :mod:`~alf_lite.algorithms.parts.transitions`, with
        a_t as ``prev_action``, G_t as ``reward`` and Γ_t as ``discount``. Training
        takes it in place of ``preprocess_experience``, for windows that it has not
        taken apart yet and may change. None if that does more than make transitions.
        """
        return None

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
        valid = valid_steps(step_type)
        return sequence_priority(td_error, valid, self._max_priority_weight)

    def priority_of_new_steps(self, experience: Experience) -> Tensor:
        """What new windows are drawn by until they are trained, [B].

        Asked if it ``prioritizes_new_steps``; else they have the largest priority.

        Args:
            experience: [B, T, ...], from the replay buffer, transformed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no priority of new steps")

    # Training

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
            if isinstance(module, RLContract):
                module.progress = progress
            follow_progress(vars(module).values(), progress)
