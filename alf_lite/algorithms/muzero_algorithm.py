"""MuZero: plans with a model that it learns, of what rewards, values and policies need.

Schrittwieser et al., "Mastering Atari, Go, chess and shogi by planning with a learned
model", Nature 2020 (arXiv:1911.08265), with the search of Danihelka et al., "Policy
improvement by planning with Gumbel", ICLR 2022.

From z_0 = h(o_t) the model is unrolled with the K actions that followed, and fitted at
every step k to what a search said and what came:

    L = Σ_k w_k [ CE(π'_{t+k}, p_k) + c_v CE(G_{t+k}, v_k) + CE(r_{t+k}, r_k)
                  + BCE(continue) − c_c cos(z_k, h(o_{t+k})) ],   w_0 = 1, w_k = 1 / K

with the numbers as two hot atoms, and G the n-step return. The gradient that goes on
from one step of the model to the one before is halved.

Differences from the paper:

1. Gumbel's search by default; ``TreeSearch.select = "puct"`` is the paper's.
2. G bootstraps from the target network's value now, not from that of the search then.
3. The model learns where episodes terminate: γ of a step in the tree is γ · continue.
   What follows a time limit is masked.
4. The consistency of latents is EfficientZero's (Ye et al. 2021), without projections.
5. Searches that are done again (``reanalyze_ratio``) have no noise, and are not stored.
6. With PUCT, too, the action is the best one of a search with noise, the most visited;
   the paper draws by N^(1/T).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from alf_lite import nest
from alf_lite.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.critics import TargetUpdater, target_copy
from alf_lite.algorithms.parts.search_model import (
    EveryAction,
    LearnedModel,
    ModelSearch,
    SampledActions,
    SearchedActions,
)
from alf_lite.algorithms.parts.tree_search import Found, TreeSearch
from alf_lite.algorithms.parts.window_targets import (
    WindowTargets,
    steps_from,
    window_targets,
)
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import (
    AlgStep,
    BatchInfo,
    Field,
    LossInfo,
    StepType,
    TimeStep,
)
from alf_lite.data_transformers.data_transformer import TransformStage
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_count, check_not_negative, check_unit_interval
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.tensor_utils import expand_dims_as, flatten_outer

Nest = Any
_LAST = int(StepType.LAST)


class MuzeroRolloutInfo(NamedTuple):
    """What is stored of a search."""

    policy: Tensor  # [B, A] π'
    candidates: Nest = ()  # [B, A, ...] what it is of, unless these are all actions


class MuzeroWindow(NamedTuple):
    """From ``preprocess_experience`` to ``train_step``."""

    action: Tensor  # [B, R, K, V] that led from state k to k + 1
    found: MuzeroRolloutInfo  # [B, R, K+1, ...]
    targets: WindowTargets  # [B, R, K+1]
    next_observation: Nest  # [B, R, K, ...] o_{t+1} …, if consistency counts


class MuzeroInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    policy: Tensor  # [T, B, K+1, P]
    value: Tensor  # [T, B, K+1, N]
    reward: Tensor  # [T, B, K, N]
    continues: Tensor  # [T, B, K] logits
    similarity: Field  # [T, B, K] cos of z_k and h(o_{t+k})
    window: MuzeroWindow  # [T, B, ...]
    step_type: Tensor  # [T, B]


class MuzeroLossInfo(NamedTuple):
    """Diagnostics, [T, B] each."""

    policy_loss: Tensor
    value_loss: Tensor
    reward_loss: Tensor
    continue_loss: Tensor
    target_value: Tensor  # G_t
    clipped_values: Tensor  # share of the targets beyond the atoms of the head
    clipped_rewards: Tensor  # likewise


@configurable(defaults={"n_step": None, "target_update_tau": 0.05})
class MuzeroAlgorithm(OffPolicyAlgorithm):
    """Gumbel MuZero for one discrete action, or sampled ones of boxes."""

    takes_negative_discounts = True
    needs_rollout_info = True

    default_settings = DefaultSettings(
        num_parallel_environments=8,
        unroll_length=1,
        num_updates_per_train_iter=2,
        mini_batch_size=128,
        mini_batch_length=7,
        n_step=10,
        initial_collect_steps=1000,
        lr=1e-3,
        gradient_clipping=10.0,
    )

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        model_ctor: Callable[..., LearnedModel] = LearnedModel,
        search: TreeSearch | None = None,
        num_unroll_steps: int = 5,
        value_loss_weight: float = 0.25,
        consistency_loss_weight: float = 2.0,
        reanalyze_ratio: float = 0.0,
        two_players: bool = False,
        **kwargs: Any,
    ) -> None:
        """Builds the model and, for training, its target.

        Args:
            observation_spec: of one observation.
            action_spec: of one discrete action.
            model_ctor: called as ``ctor(observation_spec, action_size,
                num_policy_outputs)``.
            search: of every step; None: :class:`TreeSearch` as it is or is bound.
            num_unroll_steps: K; windows need K + n + 1 steps.
            value_loss_weight: c_v.
            consistency_loss_weight: c_c.
            reanalyze_ratio: share of the windows whose steps are searched again, with
                the target network. It costs a search of K + 1 roots for each.
            two_players: the environment gives discounts below 0: two move in turn, and
                neither of them twice.
            **kwargs: see :class:`OffPolicyAlgorithm`.

        Raises:
            ValueError: if the action is neither one discrete one nor boxes, or a
                coefficient is out of range.
            ConfigError: if windows are too short for K + n.
        """
        super().__init__(observation_spec, action_spec, **kwargs)
        check_not_negative(
            value_loss_weight=value_loss_weight,
            consistency_loss_weight=consistency_loss_weight,
        )
        check_unit_interval(reanalyze_ratio=reanalyze_ratio)
        check_count(num_unroll_steps=num_unroll_steps)
        self._num_unroll_steps = num_unroll_steps
        self.num_bootstrap_steps = num_unroll_steps + self._n_step
        transitions.check_windows(
            self._config, self.num_bootstrap_steps, "num_unroll_steps + n_step"
        )
        self._has_turns(two_players)
        self._sign = -1 if two_players else 1
        self._value_loss_weight = value_loss_weight
        self._consistency_loss_weight = consistency_loss_weight
        self._reanalyze_ratio = reanalyze_ratio
        self._search = TreeSearch() if search is None else search
        self._model = model_ctor(
            self._mask.remaining_spec,
            self._actions.vector_size,
            self._actions.num_outputs,
        )
        if not self._is_eval:
            self._target_model = target_copy(self._model)
            self._update_target = TargetUpdater(
                [self._model], [self._target_model], **self._target_update
            )

    def setup_training(self, *, is_resumed: bool = False) -> None:
        """Raises ConfigError, if it would learn what was found for another goal."""
        super().setup_training(is_resumed=is_resumed)
        stages = {getattr(m, "stage", None) for m in self.data_transformer.modules()}
        if TransformStage.HINDSIGHT in stages and self._reanalyze_ratio < 1:
            raise ConfigError(
                f"{self._name}: what searches have found is stored, and was for other "
                f"goals. With hindsight, set {self._name}.reanalyze_ratio = 1, so that "
                "all of it is searched again."
            )

    def _make_actions(self, action_spec: NestedTensorSpec) -> SearchedActions:
        specs = nest.flatten(action_spec)
        is_box = bool(specs) and not any(spec.is_discrete for spec in specs)
        return SampledActions(action_spec) if is_box else EveryAction(action_spec)

    def _has_turns(self, two_players: bool) -> None:
        has_turns = getattr(self._env, "has_negative_discounts", two_players)
        if has_turns != two_players:
            raise ConfigError(
                f"{self._name}.two_players={two_players}, but the discounts of the "
                f"environment are {'' if has_turns else 'not '}negative. Set "
                f"two_players = {has_turns}."
            )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        return [self._target_model]

    # Acting

    def predict_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """The best action of a search without noise; ε of them are drawn by π'.

        Its info is what the search has found.
        """
        found, info = self._find(self._model, inputs.observation, explore=False)
        action = found.choose(self.predict_epsilon)
        return AlgStep(self._actions.to_action(info.candidates, action), state, found)

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """The best action of a search with noise. Stores what the search found.

        Raises:
            EnvError: if a player moves again, where ``two_players`` move in turn.
        """
        if self._sign < 0 and ((inputs.discount > 0) & ~inputs.is_first()).any():
            raise EnvError(
                f"{self._name}: a player moves twice in this game, and two_players "
                "searches as if they moved in turn. Take PPOAlgorithm or DqnAlgorithm."
            )
        found, info = self._find(self._model, inputs.observation, explore=True)
        action = found.choose()
        return AlgStep(self._actions.to_action(info.candidates, action), state, info)

    def _find(
        self,
        model: LearnedModel,
        observation: Nest,
        *,
        explore: bool,
        at_random: bool = False,
    ) -> tuple[Found, MuzeroRolloutInfo]:
        """What searches find, and what of it is to be stored."""
        remaining, mask = self._mask.split(observation)
        gamma = self._sign * self._gamma
        search = ModelSearch(model, self._actions, gamma, explore or at_random)
        found = self._search.find(search, remaining, mask, with_noise=explore)
        candidates = nest.map_structure(lambda x: x[:, 0], found.tree.state[1])
        info = MuzeroRolloutInfo(found.action_weights, candidates)
        return found, nest.map_structure(torch.as_tensor, info)

    # Learning

    def preprocess_experience(
        self,
        root_inputs: TimeStep,
        rollout_info: MuzeroRolloutInfo,
        batch_info: BatchInfo,
    ) -> tuple[TimeStep, Any]:
        """Makes the targets of R = T - n - K roots of windows [B, T, ...]."""
        steps, length = root_inputs, root_inputs.step_type.shape[1]
        num_steps = self._num_unroll_steps
        num_rows = length - self.num_bootstrap_steps
        observation, _ = self._mask.split(steps.observation)
        targets = window_targets(
            self.scalar_reward(steps.reward),
            self._bootstrap_values(observation, steps.step_type),
            steps.step_type,
            self._gamma * steps.discount,
            self._n_step,
            num_steps,
        )

        found = self._reanalyzed(steps.observation, rollout_info)
        flat = flatten_outer(steps.prev_action)
        vectors = self._actions.to_vectors(flat).unflatten(0, steps.step_type.shape)
        action = steps_from(vectors, 1, num_steps, num_rows)
        # Behind a terminal state, any action leads to it.
        anything = self._actions.any_vectors(action)
        is_absorbed = targets.is_absorbed[..., 1:, None]
        following: Nest = ()
        if self._consistency_loss_weight:
            following = steps_from(observation, 1, num_steps, num_rows)
        window = MuzeroWindow(
            action=torch.where(is_absorbed, anything, action),
            found=steps_from(found, 0, num_steps + 1, num_rows),
            targets=targets,
            next_observation=following,
        )
        return nest.narrow(steps, 0, num_rows, dim=1), window

    def _bootstrap_values(self, observation: Nest, step_type: Tensor) -> Tensor:
        """V [B, T] of the target network: n steps on or at a LAST, elsewhere 0."""
        is_asked = step_type == _LAST
        is_asked[:, self._n_step :] = True
        asked = nest.map_structure(lambda t: t[is_asked], observation)
        values = torch.zeros(step_type.shape, device=step_type.device)
        values[is_asked] = self._target_model.value(asked)
        return values

    def _reanalyzed(
        self, observation: Nest, info: MuzeroRolloutInfo
    ) -> MuzeroRolloutInfo:
        """What was found [B, T, ...], anew for a share of the windows."""
        batch_size, length = info.policy.shape[:2]
        share, length = self._reanalyze_ratio * batch_size, length - self._n_step
        number = int(share)
        if share % 1:  # of small batches, so many on average
            number += int(torch.rand(()) < share % 1)
        if not number:
            return info
        rows = torch.randperm(batch_size)[:number].to(info.policy.device)
        again = nest.map_structure(lambda t: t[rows, :length], observation)
        again = flatten_outer(again)
        _, found = self._find(self._target_model, again, explore=False, at_random=True)

        def replaced(old: Tensor, new: Tensor) -> Tensor:
            old = old.clone()
            old[rows, :length] = new.unflatten(0, (number, length))
            return old

        return nest.map_structure(replaced, info, found)

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: MuzeroWindow
    ) -> AlgStep:
        """Unrolls the model from each root, [B, ...]."""
        model, window = self._model, rollout_info
        observation, mask = self._mask.split(inputs.observation)
        latent = model.encode(observation)
        latents, steps = [latent], []
        for k in range(self._num_unroll_steps):
            if k:
                latent = (latent + latent.detach()) / 2
            latent, step = model.step(latent, window.action[:, k])
            latents.append(latent)
            steps.append(step)
        predicted = model.predict(torch.stack(latents, 1))
        policy = predicted.policy
        if mask is not None:
            first = torch.where(mask, policy[:, 0], -1e9)
            policy = torch.cat([first[:, None], policy[:, 1:]], 1)
        info = MuzeroInfo(
            policy=policy,
            value=predicted.value,
            reward=torch.stack([step.reward for step in steps], 1),
            continues=torch.stack([step.continues for step in steps], 1),
            similarity=self._similarity(torch.stack(latents[1:], 1), window),
            window=window._replace(next_observation=()),
            step_type=inputs.step_type,
        )
        return AlgStep(state=state, info=info)

    def _similarity(self, latents: Tensor, window: MuzeroWindow) -> Field:
        """cos(z_k, h(o_{t+k})) [B, K]; 0 where the episode has ended before."""
        if not self._consistency_loss_weight:
            return ()
        shape = latents.shape[:2]
        with torch.no_grad():
            flat = flatten_outer(window.next_observation)
            seen = self._model.encode(flat).unflatten(0, shape)
        targets = window.targets
        is_here = (targets.has_reward & ~targets.is_absorbed)[:, 1:]
        # What is masked may be NaN, and would be one in the gradient.
        seen = torch.where(is_here.unsqueeze(-1), seen, 0.0)
        return functional.cosine_similarity(latents, seen, dim=-1)

    def calc_loss(self, info: MuzeroInfo) -> LossInfo:
        """L of every root, [R, B]."""
        model, targets = self._model, info.window.targets
        # Masked: no policy in the sum, not even NaN
        has_policy = targets.has_policy
        found = nest.map_structure(
            lambda t: torch.where(expand_dims_as(has_policy, t), t, 0.0),
            info.window.found,
        )
        policy_loss = self._sum(
            self._actions.policy_loss(info.policy, *found), has_policy
        )
        value_loss = self._sum(
            model.value_head.fit(info.value, targets.value), targets.has_value
        )
        has_reward, reward = targets.has_reward[..., 1:], targets.reward[..., 1:]
        reward_loss = self._sum(model.reward_head.fit(info.reward, reward), has_reward)
        continue_loss = self._sum(
            functional.binary_cross_entropy_with_logits(
                info.continues, targets.continues[..., 1:], reduction="none"
            ),
            has_reward,
        )
        loss = policy_loss + self._value_loss_weight * value_loss
        loss = loss + reward_loss + continue_loss
        if isinstance(info.similarity, Tensor):
            similarity = info.similarity.mean(-1)
            loss = loss - self._consistency_loss_weight * similarity

        def error() -> Tensor:
            value = model.value_head.mean(info.value[..., 0, :].detach())
            return targets.value[..., 0] - value

        def extra() -> MuzeroLossInfo:
            parts = policy_loss, value_loss, reward_loss, continue_loss
            clipped = (
                model.value_head.is_clipped(targets.value).mean(-1),
                model.reward_head.is_clipped(reward).mean(-1),
            )
            return MuzeroLossInfo(*parts, targets.value[..., 0], *clipped)

        return LossInfo(
            loss=loss,
            extra=diagnostic(extra),
            priority=self.priority_of(error, info.step_type),
        )

    def _sum(self, loss: Tensor, mask: Tensor) -> Tensor:
        """Σ_k w_k loss_k [T, B] of [T, B, K+1], or of [T, B, K] without the root."""
        loss = torch.where(mask, loss, 0.0)
        if loss.shape[-1] == self._num_unroll_steps:
            return loss.mean(-1)
        return loss[..., 0] + loss[..., 1:].mean(-1)

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Copies the model to its target, when that is due."""
        self._update_target.forward()
