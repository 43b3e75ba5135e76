"""An RL algorithm with what helps it: representations, goals and rewards of its own.

After the Agent of ALF. Every part is optional but the RL algorithm, which is any that
has a ``train_step``, on-policy or off-policy:

    representation learner → goal generator → intrinsic rewards → RL algorithm
    → entropy target

The reward that the RL algorithm is trained on is

    r_t = w_e r^e_t + Σ_k w_k r^k_t

of the environment's and the intrinsic ones, which are computed when steps are trained,
by the modules as they are then. With ``intrinsic_gamma`` the two terms are learned by
two values, V_E and V_I, and the advantage is the sum of both. What is stored, and what
metrics see, is the reward of the environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.composed_parts import built_part
from alf_lite.algorithms.composition import Composition, Infos
from alf_lite.algorithms.learning.recorded_steps import parts_with_recorded_steps
from alf_lite.algorithms.parts.intrinsic_reward import IntrinsicReward, RewardMixture
from alf_lite.algorithms.parts.observation_parts import (
    GoalGenerator,
    ObservationPart,
    RepresentationLearner,
)
from alf_lite.algorithms.parts.return_streams import ReturnStream
from alf_lite.algorithms.parts.reward_weights import RewardWeights
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import configurable
from alf_lite.data_structures import BatchInfo, TimeStep
from alf_lite.distributions.action_masks import ActionMaskError
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.schedulers import Scheduled

Nest = Any
RewardCtor = Callable[..., IntrinsicReward]
RewardCtors = RewardCtor | Sequence[RewardCtor] | Mapping[str, RewardCtor]


# Part that changes observations -> what gives it
_PARAMETERS = {
    "representation": "representation_learner_ctor",
    "goal": "goal_generator_ctor",
}


@configurable
class Agent(Composition):
    """An RL algorithm and its optional parts; see the module."""

    # Its default settings are those of the algorithm that this parameter names.
    settings_of: ClassVar[str] = "rl_algorithm_ctor"

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        rl_algorithm_ctor: Callable[..., RLAlgorithm],
        representation_learner_ctor: Callable[..., RepresentationLearner] | None = None,
        goal_generator_ctor: Callable[..., GoalGenerator] | None = None,
        intrinsic_rewards: RewardCtors = (),
        entropy_target_ctor: Callable[..., Algorithm] | None = None,
        extrinsic_reward_weight: Scheduled = 1.0,
        intrinsic_reward_weights: Scheduled | Mapping[str, Scheduled] | None = None,
        intrinsic_gamma: Scheduled | None = None,
        is_on_policy: bool | None = None,
        reward_weights: Sequence[float] | Callable[..., RewardWeights] | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the parts, each with the observations that the earlier ones make.

        Args:
            observation_spec: of one observation.
            action_spec: of one action.
            rl_algorithm_ctor: called as ``ctor(observation_spec, action_spec)``; its
                part is named "rl".
            representation_learner_ctor: likewise, of a :class:`RepresentationLearner`,
                named "representation"; None: there is none.
            goal_generator_ctor: likewise, of a :class:`GoalGenerator`, named "goal".
            intrinsic_rewards: constructors of :class:`IntrinsicReward` by name, called
                as the others. One or several without a name are named by themselves.
            entropy_target_ctor: called as ``ctor(action_spec)``; named
                "entropy_target". It gets the info of the RL algorithm's ``train_step``,
                where ``action_distribution`` is the policy.
            extrinsic_reward_weight: of the reward of the environment; a number or a
                schedule, as are the others.
            intrinsic_reward_weights: of all intrinsic rewards alike, or by name; None,
                and what is not named: 1.
            intrinsic_gamma: γ of a value of their own for the intrinsic rewards, whose
                return goes on when an episode has ended, as in Burda et al. 2018
                (arXiv:1810.12894): an end costs nothing of it. Only for on-policy
                actor-critics. None: one value for the sum of all rewards.
            is_on_policy: decides for an RL algorithm that can do both.
            reward_weights: see :class:`RLAlgorithm`.
            **kwargs: likewise. ``optimizer`` trains all that has none of its own.

        Raises:
            ConfigError: if the parts do not fit each other.
        """
        super().__init__(observation_spec, action_spec, **kwargs)
        if self._is_eval:  # what only trains is not built
            intrinsic_rewards, intrinsic_reward_weights = (), None
            entropy_target_ctor = None
        before = self._observation_parts(
            representation=(RepresentationLearner, representation_learner_ctor),
            goal=(GoalGenerator, goal_generator_ctor),
        )
        spec = before[-1][1].output_spec if before else observation_spec
        rewards = self._intrinsic_rewards(intrinsic_rewards, spec)
        has_two_values = intrinsic_gamma is not None
        if has_two_values and not self._is_eval:
            self._check_two_values(bool(rewards), reward_weights is not None)
        with self._told_who_hides_masks(before):
            rl = self._build_rl(
                rl_algorithm_ctor,
                spec,
                action_spec,
                reward_spec=TensorSpec((2,)) if has_two_values else self.reward_spec,
                reward_weights=reward_weights,
            )
        if intrinsic_gamma is not None:
            own = ReturnStream(intrinsic_gamma, is_continuing=True)
            rl.set_return_streams([ReturnStream(), own])
        if is_on_policy is not None:
            rl.set_on_policy(is_on_policy)
        after: list[tuple[str, Algorithm]] = []
        if entropy_target_ctor is not None:
            _check_tells_policy(self._name, rl)
            after.append(("entropy_target", entropy_target_ctor(action_spec)))
        self._rewards = RewardMixture(
            self._name,
            [name for name, _ in rewards],
            extrinsic_reward_weight,
            intrinsic_reward_weights,
            has_two_values=has_two_values,
        )
        changes_reward = self._rewards.changes_reward
        if (rewards or changes_reward) and not self._is_eval:
            _check_uses_rewards(self._name, rl)
        self._compose(rl, [*before, *rewards], after, changes_steps=changes_reward)
        if before and self.on_policy:
            _check_sees_recorded_steps(self._name, before[-1][0], self)

    def _observation_parts(
        self, **given: tuple[type, Callable[..., ObservationPart] | None]
    ) -> list[tuple[str, ObservationPart]]:
        """Those of which there is a constructor, each for what the last one makes."""
        parts: list[tuple[str, ObservationPart]] = []
        spec = self.observation_spec
        for name, (kind, ctor) in given.items():
            if ctor is not None:
                parameter = _PARAMETERS[name]
                specs = spec, self.action_spec
                part = built_part(self._name, name, kind, parameter, ctor, *specs)
                parts.append((name, part))
                spec = part.output_spec
        return parts

    def _intrinsic_rewards(
        self, ctors: RewardCtors, spec: NestedTensorSpec
    ) -> list[tuple[str, IntrinsicReward]]:
        """The intrinsic rewards with their names."""
        if callable(ctors):
            ctors = [ctors]
        given = (
            ctors.items() if isinstance(ctors, Mapping) else [("", c) for c in ctors]
        )
        if given and self.reward_spec.ndim:
            raise ConfigError(
                f"{self._name}: intrinsic_rewards are added to a reward of one "
                f"dimension, but that of the environment is {self.reward_spec}"
            )
        parameter, rewards = "intrinsic_rewards", []
        for name, ctor in given:
            shown, specs = name or parameter, (spec, self.action_spec)
            reward = built_part(
                self._name, shown, IntrinsicReward, parameter, ctor, *specs
            )
            rewards.append((name or reward.name, reward))
        for _, reward in rewards:
            reward.check_reward(self.reward_spec)
        return rewards

    def _check_two_values(self, has_rewards: bool, has_reward_weights: bool) -> None:
        if not has_rewards:
            raise ConfigError(
                f"{self._name}.intrinsic_gamma is given, but there are no "
                "intrinsic_rewards"
            )
        if has_reward_weights:
            raise ConfigError(
                f"{self._name}.reward_weights is given, but with intrinsic_gamma the "
                "reward of the environment has only one dimension. Leave it out; "
                "intrinsic rewards have intrinsic_reward_weights"
            )
        if self._config is not None and self._config.unroll_episodes is not None:
            raise ConfigError(
                f"{self._name}.intrinsic_gamma goes on when an episode has ended, of "
                "which TrainerConfig.unroll_episodes sees nothing: leave one out"
            )

    @contextlib.contextmanager
    def _told_who_hides_masks(
        self, before: Sequence[tuple[str, Algorithm]]
    ) -> Iterator[None]:
        """While the RL algorithm is built with what the parts make of observations."""
        try:
            yield
        except ActionMaskError as error:
            if not before:
                raise
            name, part = before[-1]
            raise ConfigError(
                f"{self._name}: the RL algorithm looks for its action mask in what the "
                f"part {name!r} ({type(part).__name__}) makes of the observation. "
                "Action masks cannot be used with a representation learner or a goal "
                f"generator: leave action_mask_key out, or the part. [{error}]"
            ) from error

    def _preprocess_before(
        self, inputs: TimeStep, stored: Infos, batch_info: BatchInfo
    ) -> tuple[TimeStep, Infos]:
        """Also makes the reward, [B, T] or [B, T, 2], of steps [B, T, ...]."""
        infos: Infos = {}
        rewards: dict[str, Tensor] = {}
        for name in self._before:
            part = self._named[name]
            if name in self._rewards.names:
                rewards[name] = part.reward_of(inputs, batch_info)
            inputs, infos[name] = part.preprocess_experience(
                inputs, stored.get(name, ()), batch_info
            )
        reward = self._rewards.sum_up(inputs, rewards)
        return inputs._replace(reward=reward), infos


def _check_sees_recorded_steps(owner: str, before: str, agent: Algorithm) -> None:
    if imitating := parts_with_recorded_steps(agent):
        raise ConfigError(
            f"{owner}: {imitating[0].name} compares own steps, as the part {before!r} "
            "has changed them, with recorded ones as the environment gave them. Leave "
            f"{_PARAMETERS[before]} out, or use an off-policy algorithm."
        )


def _check_uses_rewards(owner: str, rl: RLAlgorithm) -> None:
    if not rl.rl_algorithm.uses_rewards:
        raise ConfigError(
            f"{owner}: {rl.name} looks at no reward of a step, as imitation and plans "
            "by a reward_fn do not: intrinsic_rewards and extrinsic_reward_weight have "
            "no effect. Leave them out, or use another rl_algorithm_ctor."
        )


def _check_tells_policy(owner: str, rl: RLAlgorithm) -> None:
    if not rl.tells_action_distribution:
        raise ConfigError(
            f"{owner}.entropy_target_ctor: {type(rl).__name__} tells no "
            "action_distribution in training. Use one with a stochastic policy that is "
            "trained on-policy, such as PPOAlgorithm. One of yours says "
            "tells_action_distribution = True if the info of its train_step has it."
        )
