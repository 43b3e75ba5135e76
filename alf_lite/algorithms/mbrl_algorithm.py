"""Model-based control: plans with an ensemble of models of the environment.

Chua et al., "Deep reinforcement learning in a handful of trials using probabilistic
dynamics models" (PETS), arXiv:1805.12114. The models are those of
:mod:`~alf_lite.algorithms.parts.dynamics_ensemble`. A sequence of H actions is worth
what it earns on the mean of P particles, which begin at the observation:

    V(a_0 … a_{H−1}) = 1/P Σ_p Σ_k γ^k (Π_{j≤k} c_j) r_{k+1},   s_{k+1} ~ model of p

r and c are those that the member of the particle expects; of a given ``reward_fn``, r
is that of the step. An optimizer looks for the best sequence, beginning near that of
the step before, and its mean acts.

Differences from the paper:

1. The reward is learnt, unless ``reward_fn`` is given, and so is where episodes end.
2. All numbers that the models tell are normalised, and there is no weight decay.
3. The models are trained at every step with mini-batches, in place of some epochs after
   every episode. w are Poisson(1) numbers for each transition and member.
4. Particles have the same noise for all sequences, and with ``"ts1"`` change members
   alike: so their values differ by the actions alone.
5. ``predict_step`` is deterministic: its noise is always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts.dynamics_ensemble import (
    DynamicsEnsemble,
    FitLoss,
    ObservationVectors,
    Transitions,
)
from alf_lite.algorithms.parts.trajectory_optimizers import ValueFn
from alf_lite.algorithms.parts.transitions import check_windows, to_transitions
from alf_lite.algorithms.planning_algorithm import PlanningAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, BatchInfo, LossInfo, StepType, TimeStep
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_choice
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any
TrajectorySampling = Literal["ts1", "ts_infinity"]
# Observations, actions and next observations [R, ...] → rewards [R]
RewardFn = Callable[[Nest, Nest, Nest], Tensor]


class ModelBatch(NamedTuple):
    """From ``preprocess_experience`` to ``train_step``."""

    transitions: Transitions  # [B, ...]
    weights: Tensor  # [B, n] w


class Chance(NamedTuple):
    """What of the values of a plan is drawn."""

    noise: Tensor  # [H, P, 1, O], standard normal
    order: Tensor  # [H, P] int64, the particles by their members


@configurable
class MbrlAlgorithm(PlanningAlgorithm):
    """PETS: plans with probabilistic models, for continuous actions with bounds.

    Args:
        observation_spec: of one observation: floats.
        action_spec: of one action: boxes.
        model_ctor: called as ``ctor(state_size, action_size)``.
        num_particles: P, a multiple of the members.
        trajectory_sampling: whether a particle has another member at every step,
            ``"ts1"``, or one for the whole plan, ``"ts_infinity"``.
        reward_fn: of observations, actions and next observations [R, ...], as specs and
            data transformers have them, rewards [R]; None: the model's. It takes the
            place of all rewards, also those that an :class:`Agent` adds.
        **kwargs: see :class:`PlanningAlgorithm`.

    Raises:
        ValueError: if actions are no boxes, an observation holds no floats or a number
            is out of range.
        ConfigError: if windows are too short, or the reward has several dimensions.
    """

    _noise: Tensor  # what predict_step plans with, as Chance has it
    _order: Tensor

    default_settings = DefaultSettings(
        updates_per_env_step=1.0,
        unroll_length=1,
        mini_batch_size=256,
        mini_batch_length=2,
        initial_collect_steps=200,
        initial_random_policy=True,
        lr=1e-3,
    )

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        model_ctor: Callable[..., DynamicsEnsemble] = DynamicsEnsemble,
        num_particles: int = 20,
        trajectory_sampling: TrajectorySampling = "ts_infinity",
        reward_fn: RewardFn | None = None,
        **kwargs: Any,
    ) -> None:
        check_choice(TrajectorySampling, trajectory_sampling=trajectory_sampling)
        vectors = ObservationVectors(observation_spec)
        super().__init__(observation_spec, action_spec, **kwargs)
        check_windows(self._config, 1, "to the next step")
        self._vectors = vectors
        self._sampling, self._reward_fn = trajectory_sampling, reward_fn
        self.uses_rewards = reward_fn is None
        self._model = model_ctor(vectors.size, self._actions.vector_size)
        self._num_particles = num_particles
        if num_particles < 1 or num_particles % self._model.num_members:
            raise ValueError(
                "num_particles must be a multiple of the "
                f"{self._model.num_members} members of the model, got {num_particles}"
            )
        chance = self._draw(torch.Generator().manual_seed(0))
        self.register_buffer("_noise", chance.noise, persistent=False)
        self.register_buffer("_order", chance.order, persistent=False)

    # Acting

    def _draw(self, generator: torch.Generator | None = None) -> Chance:
        size = self._horizon, self._num_particles
        device = self.device if generator is None else generator.device
        of: Any = {"generator": generator, "device": device}
        noise = torch.randn(*size, 1, self._vectors.size, **of)
        if self._sampling == "ts1":
            order = torch.rand(size, **of).argsort(-1)
        else:
            order = torch.arange(size[1], device=device).repeat(size[0], 1)
        return Chance(noise, order)

    def _outlook(self, observation: Nest, noise: Tensor | None) -> tuple[ValueFn, None]:
        chance = self._draw() if noise is None else Chance(self._noise, self._order)
        state = self._vectors.to_vector(observation)
        return lambda actions: self._value_of(state, actions, chance), None

    def _value_of(self, state: Tensor, actions: Tensor, chance: Chance) -> Tensor:
        """V [B, N] of sequences [B, N, H, A] from states [B, O]."""
        num_sequences, num_particles = actions.shape[1], self._num_particles
        rows = actions.flatten(0, 1)  # [R, H, A], R = B·N
        s = state.unsqueeze(1).expand(-1, num_sequences, -1).flatten(0, 1)
        s = s.expand(num_particles, -1, -1)
        value = torch.zeros_like(s[..., 0])  # [P, R]
        discount = torch.ones_like(value)
        for k in range(self._horizon):
            if self._sampling == "ts1":
                order = chance.order[k]
                s, value, discount = s[order], value[order], discount[order]
            action = rows[:, k].expand(num_particles, -1, -1)
            before = s
            s, reward, goes_on = self._model.step(s, action, chance.noise[k])
            if self._reward_fn is not None:
                reward = self._given_reward(before, action, s)
            value = value + discount * reward
            discount = self._gamma * discount * goes_on
        return value.mean(0).unflatten(0, (-1, num_sequences))

    def _given_reward(self, before: Tensor, action: Tensor, after: Tensor) -> Tensor:
        assert self._reward_fn is not None
        observations = (self._vectors.to_nest(x.flatten(0, 1)) for x in (before, after))
        first, following = observations
        taken = self._actions.to_action(action.flatten(0, 1))
        reward = self._reward_fn(first, taken, following)
        if reward.shape != (len(after) * after.shape[1],):
            raise ValueError(
                f"{self._name}.reward_fn: expected rewards "
                f"[{len(after) * after.shape[1]}], one for each row, got "
                f"{list(reward.shape)}"
            )
        return reward.view(after.shape[:2])

    # Learning

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, ModelBatch]:
        """The transitions of windows [B, T, ...], [B, T-1, ...]."""
        inputs, transition = to_transitions(root_inputs, 1, 1.0)
        shape = inputs.step_type.shape

        t = flatten_outer(transition)
        # Nobody asks the model for what reward_fn gives: there is nothing to learn.
        reward = t.reward if self.uses_rewards else torch.zeros_like(t.reward)
        data = Transitions(
            self._vectors.to_vector(flatten_outer(inputs.observation)),
            self._actions.to_vector(t.action),
            self._vectors.to_vector(t.next_observation),
            reward,
            t.discount,
        )
        if self.training:
            valid = inputs.step_type != int(StepType.LAST)
            self._model.update_statistics(data, valid.flatten())
        step = torch.arange(shape[1], device=data.reward.device)
        positions = batch_info.positions.to(step.device).unsqueeze(1) + step
        env_ids = batch_info.env_ids.to(step.device).unsqueeze(1).expand(shape)
        weights = self._model.bootstrap_weights(env_ids.flatten(), positions.flatten())
        if not self.training:  # held-out data are in those of no member
            weights = torch.ones_like(weights)
        batch = ModelBatch(data, weights.T)
        return inputs, nest.map_structure(lambda t: t.unflatten(0, shape), batch)

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: ModelBatch
    ) -> AlgStep:
        """The fit of transitions [B, ...]."""
        info = self._model.fit(rollout_info.transitions, rollout_info.weights.T)
        return AlgStep(info=info)

    def calc_loss(self, info: FitLoss) -> LossInfo:
        """Of every transition, [T, B], and of the bounds of variances, []."""
        loss = info.likelihood + info.continues
        return LossInfo(loss, self._model.bound_loss(), extra=info)
