"""A policy that says what to do and for how many steps.

After the DynamicActionRepeatAgent of ALF; the idea is that of Lakshminarayanan et al.
2016, "Dynamic Frame skip Deep Q Network", arXiv:1605.05365, and Sharma et al. 2017,
"Learning to Repeat: Fine Grained Action Repetition for Deep Reinforcement Learning",
arXiv:1702.06054. Any off-policy algorithm that can
handle the action

    {"action": that of the environment, "repeat": how many steps it is repeated, < K}

decides, acts on nothing while its action is held, and learns from decisions. If a_t was
held for m steps, the transition is

    s_t, (a_t, m − 1) → s_{t+m},   G = Σ_{k=1..m} (Π_{j=1..k-1} γ_{t+j}) r_{t+k},
    Γ = Π_{j=1..m} γ_{t+j}

so that longer holds are neither better nor worse for being fewer decisions. Metrics and
γ are those of single steps.

Differences from ALF, which stores the steps of decisions only:

1. Every step is stored and trained. That a_t was done for ``run`` steps tells what each
   hold of up to so many steps would have led to, whoever decided it, so that m is drawn
   from 1 to ``run`` (to K, if the episode terminates before: a longer hold would have
   ended there, too). What the holds were is read from the actions, not stored.
2. Nothing is normalised here; that is what data transformers are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.composition import Composition
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.reward_weights import RewardWeights
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Experience, StepType, TimeStep
from alf_lite.distributions.action_masks import ActionMaskError
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec
from alf_lite.utils.tensor_utils import expand_dims_as, where_rows

Nest = Any


@configurable
class DynamicActionRepeatAgent(Composition):
    """An off-policy algorithm that chooses how long each of its actions is held."""

    # Its default settings are those of the algorithm that this parameter names.
    settings_of: ClassVar[str] = "rl_algorithm_ctor"

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        rl_algorithm_ctor: Callable[..., RLAlgorithm],
        max_repeats: int = 5,
        reward_weights: Sequence[float] | Callable[..., RewardWeights] | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the algorithm that decides.

        Args:
            observation_spec: of one observation.
            action_spec: of one action.
            rl_algorithm_ctor: called as ``ctor(observation_spec, action_spec)`` with
                the spec of the two parts; such as SacAlgorithm or, where actions are
                discrete, DqnAlgorithm. Off-policy, without memory, ``n_step = 1``.
            max_repeats: K, the longest hold in steps; windows have one more,
                ``TrainerConfig.mini_batch_length``.
            reward_weights: see :class:`RLAlgorithm`.
            **kwargs: likewise. ``optimizer`` trains all that has none of its own.

        Raises:
            ConfigError: if the algorithm or the windows are others.
        """
        super().__init__(observation_spec, action_spec, **kwargs)
        name = self._name
        if not isinstance(max_repeats, int) or max_repeats < 1:
            raise ConfigError(
                f"{name}.max_repeats must be a positive integer, got {max_repeats!r}"
            )
        repeat = BoundedTensorSpec((), torch.int64, 0, max_repeats - 1)
        decision_spec = {"action": action_spec, "repeat": repeat}
        try:
            rl = self._build_rl(
                rl_algorithm_ctor,
                observation_spec,
                decision_spec,
                reward_spec=self.reward_spec,
                reward_weights=reward_weights,
            )
        except ActionMaskError as error:
            raise ConfigError(
                f"{name}: an action that is held may be ruled out meanwhile, and a "
                "mask says nothing of its repeats, so action masks cannot be used "
                f"here. Leave action_mask_key out. [{error}]"
            ) from error
        _check(name, rl)
        self._compose(rl, changes_steps=True)
        length = None if self._config is None else self._config.mini_batch_length
        if length is not None and length != max_repeats + 1 and not self._is_eval:
            raise ConfigError(
                f"{name}: holds of up to max_repeats={max_repeats} steps are seen in "
                f"windows of {max_repeats + 1}, got TrainerConfig.mini_batch_length="
                f"{length}. Set TrainerConfig.mini_batch_length = {max_repeats + 1}"
            )
        self._max_repeats = max_repeats
        # Only the first step of a window is trained, and the others show where it led.
        self.num_bootstrap_steps = max_repeats
        held = {"held": action_spec, "left": TensorSpec((), torch.int64)}
        self._rollout_state_spec = {"rl": rl.rollout_state_spec, **held}
        self._predict_state_spec = {"rl": rl.predict_state_spec, **held}

    # Acting

    def _act(self, method: str, inputs: TimeStep, state: Nest) -> AlgStep:
        """Decides where no action is held any more, as at FIRST."""
        step = getattr(self._rl, method)(_after_one_step(inputs), state["rl"])
        decides = (state["left"] == 0) | inputs.is_first()
        action = where_rows(decides, step.output["action"], state["held"])
        left = torch.where(decides, step.output["repeat"], state["left"] - 1)
        state = {"rl": step.state, "held": action, "left": left}
        return AlgStep(action, state, {"rl": ()})  # nothing to be stored

    def random_action(self, inputs: TimeStep) -> Nest:
        """Any action, or the one before: held for (K + 1) / 2 steps on average."""
        drawn = self._rl.random_action(_after_one_step(inputs))["action"]
        changes = torch.rand_like(inputs.discount) < 2 / (self._max_repeats + 1)
        return where_rows(changes | inputs.is_first(), drawn, inputs.prev_action)

    # Learning

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """The first step of each window [B, K+1, ...], and what a hold led to."""
        gamma = self._rl.gamma
        assert gamma is not None, "checked"
        with torch.no_grad():
            decisions = as_decisions(experience.time_step, gamma)
        counts = valid_steps(decisions.step_type) & valid[:, :2]
        batch = self._rl.preprocess(Experience(decisions), counts, batch_info)
        return batch._replace(
            rollout_info={"rl": batch.rollout_info}, state=self._states(batch.state)
        )


def as_decisions(steps: TimeStep, gamma: float) -> TimeStep:
    """Windows of two steps, a decision and its end.

    Args:
        steps: [B, K+1, ...], of the environment.
        gamma: γ.

    Returns:
        [B, 2, ...]: the first step; and s_m with the reward G, the discount Γ / γ, so
        that multiplied with γ it is Γ, and the action {"action": a, "repeat": m − 1},
        where m is drawn as said above.
    """
    num_windows, length = steps.step_type.shape
    action = nest.map_structure(lambda t: t[:, 1], steps.prev_action)
    run = _run_length(steps)
    row = torch.arange(num_windows, device=run.device)
    is_over = steps.discount[row, run] == 0
    limit = torch.where(is_over, length - 1, run)
    wanted = 1 + (torch.rand(num_windows, device=run.device) * limit).long()
    wanted = torch.minimum(wanted, limit)  # of a product that was rounded up
    m = torch.minimum(wanted, run)
    reward, discount = steps.reward[:, 1], steps.discount[:, 1]
    for k in range(2, length):
        goes_on = k <= m
        weight = torch.where(goes_on, gamma * discount, 0.0)
        reward = reward + expand_dims_as(weight, reward) * steps.reward[:, k]
        later = gamma * discount * steps.discount[:, k]
        discount = torch.where(goes_on, later, discount)
    ends = nest.map_structure(lambda t: t[row, m], steps)
    ends = ends._replace(
        reward=reward,
        discount=discount,
        prev_action={"action": action, "repeat": wanted - 1},
    )
    begins = _after_one_step(nest.map_structure(lambda t: t[:, 0], steps))
    return nest.map_structure(lambda a, b: torch.stack([a, b], 1), begins, ends)


def _after_one_step(steps: TimeStep) -> TimeStep:
    """Steps [B, ...] whose ``prev_action`` was decided for one step."""
    repeat = torch.zeros_like(steps.step_type, dtype=torch.int64)
    return steps._replace(prev_action={"action": steps.prev_action, "repeat": repeat})


def _run_length(steps: TimeStep) -> Tensor:
    """For how many steps the first action of each window was done, [B], at least 1."""
    length = steps.step_type.shape[1]
    run = torch.ones_like(steps.step_type[:, 0], dtype=torch.int64)
    goes_on = torch.ones_like(run, dtype=torch.bool)
    leaves = [t.flatten(2) if t.ndim > 2 else t.unsqueeze(2) for t in
              nest.flatten(steps.prev_action)]  # fmt: skip
    for k in range(2, length):
        goes_on = goes_on & (steps.step_type[:, k - 1] != int(StepType.LAST))
        for leaf in leaves:
            goes_on = goes_on & (leaf[:, k] == leaf[:, 1]).all(1)
        run = run + goes_on
    return run


def _check(name: str, rl: RLAlgorithm) -> None:
    """Raises ConfigError for an algorithm that cannot learn from decisions."""
    problem = ""
    if isinstance(rl, Composition):
        problem = (
            "is a composition, whose parts see single steps. Make a "
            "DynamicActionRepeatAgent the RL algorithm of the composition"
        )
    elif rl.on_policy:
        problem = "is on-policy, but decisions are read from a replay buffer"
    elif rl.num_bootstrap_steps != 1 or getattr(rl, "_td_lambda", None) is not None:
        problem = "looks more than one decision ahead; set n_step = 1 and no td_lambda"
    elif not nest.is_empty(rl.rollout_state_spec):
        problem = "has a memory, which would have to skip the steps of a hold"
    elif rl.config is not None and rl.config.burn_in_length:
        problem = "has no memory; leave TrainerConfig.burn_in_length out"
    elif rl.uses_episode_returns or rl.prioritizes_new_steps:
        problem = "asks for returns or priorities of single steps"
    elif rl.gamma is None:
        problem = "has no gamma"
    if problem:
        raise ConfigError(f"{name}: {rl.name} {problem}")
