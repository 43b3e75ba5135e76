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
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.composition import Composition, Infos
from alf_lite.algorithms.parts.intrinsic_reward import IntrinsicReward
from alf_lite.algorithms.parts.observation_parts import (
    GoalGenerator,
    RepresentationLearner,
)
from alf_lite.algorithms.parts.return_streams import ReturnStream
from alf_lite.algorithms.parts.reward_weights import RewardWeights
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig, configurable
from alf_lite.data_structures import BatchInfo, TimeStep
from alf_lite.distributions.action_masks import ActionMaskError
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils import summary
from alf_lite.utils.losses import masked_mean
from alf_lite.utils.schedulers import ConstantScheduler, Scheduled, as_scheduler

Nest = Any
RewardCtor = Callable[..., IntrinsicReward]

# Part -> what gives it; all others are intrinsic rewards.
_PARAMETERS = {
    "rl": "rl_algorithm_ctor",
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
        intrinsic_rewards: RewardCtor
        | Sequence[RewardCtor]
        | Mapping[str, RewardCtor] = (),
        entropy_target_ctor: Callable[..., Algorithm] | None = None,
        extrinsic_reward_weight: Scheduled = 1.0,
        intrinsic_reward_weights: Scheduled | Mapping[str, Scheduled] | None = None,
        intrinsic_gamma: Scheduled | None = None,
        is_on_policy: bool | None = None,
        reward_spec: TensorSpec = TensorSpec(()),
        reward_weights: Sequence[float] | Callable[..., RewardWeights] | None = None,
        config: TrainerConfig | None = None,
        is_eval: bool = False,
        name: str | None = None,
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
            reward_spec: of the environment's.
            reward_weights: see :class:`RLAlgorithm`, as for those that follow.
            config: see there.
            is_eval: see there; only what acts is built.
            name: see there.
            **kwargs: likewise. ``optimizer`` trains all that has none of its own.

        Raises:
            ConfigError: if the parts do not fit each other.
        """
        name = name or type(self).__name__
        before: list[tuple[str, Algorithm]] = []
        spec = observation_spec  # of what the next part sees
        for part, kind, ctor in (
            ("representation", RepresentationLearner, representation_learner_ctor),
            ("goal", GoalGenerator, goal_generator_ctor),
        ):
            if ctor is not None:
                _check_class(name, part, kind, ctor)
                made: Any = ctor(spec, action_spec)
                before.append((part, _checked(name, part, kind, made)))
                spec = made.output_spec
        rewards = (
            []
            if is_eval
            else _built_rewards(name, intrinsic_rewards, spec, action_spec)
        )
        if rewards and reward_spec.ndim:
            raise ConfigError(
                f"{name}: intrinsic_rewards are added to a reward of one dimension, "
                f"but that of the environment is {reward_spec}"
            )
        for part, reward in rewards:
            _checked(name, part, IntrinsicReward, reward).check_reward(reward_spec)
        has_two_values = intrinsic_gamma is not None
        if has_two_values and not is_eval:
            _check_two_values(name, bool(rewards), reward_weights is not None)
        given = {} if reward_weights is None else {"reward_weights": reward_weights}
        _check_class(name, "rl", RLAlgorithm, rl_algorithm_ctor)
        with _told_who_hides_masks(name, before):
            rl = rl_algorithm_ctor(
                *(spec, action_spec),
                reward_spec=TensorSpec((2,)) if has_two_values else reward_spec,
                config=config,
                is_eval=is_eval,
                **given,
            )
        _checked(name, "rl", RLAlgorithm, rl)
        if intrinsic_gamma is not None:
            own = ReturnStream(intrinsic_gamma, is_continuing=True)
            rl.set_return_streams([ReturnStream(), own])
        if is_on_policy is not None:
            rl.set_on_policy(is_on_policy)
        after: list[tuple[str, Algorithm]] = []
        if entropy_target_ctor is not None and not is_eval:
            _check_tells_policy(name, rl)
            after.append(("entropy_target", entropy_target_ctor(action_spec)))
        weight = as_scheduler(extrinsic_reward_weight)
        super().__init__(
            observation_spec,
            action_spec,
            rl_algorithm=rl,
            before=[*before, *rewards],
            after=after,
            changes_steps=weight != ConstantScheduler(1.0),
            reward_spec=reward_spec,
            config=config,
            is_eval=is_eval,
            name=name,
            **kwargs,
        )
        self._has_two_values = has_two_values
        self._rewards = [part for part, _ in rewards]
        self._extrinsic_weight = weight
        self._intrinsic_weights = {}
        if not is_eval:
            self._intrinsic_weights = _weights(
                name, self._rewards, intrinsic_reward_weights
            )

    def _preprocess_before(
        self, inputs: TimeStep, stored: Infos, batch_info: BatchInfo
    ) -> tuple[TimeStep, Infos]:
        """Also makes the reward, [B, T] or [B, T, 2], of steps [B, T, ...]."""
        infos: Infos = {}
        rewards: dict[str, Tensor] = {}
        for name in self._before:
            part = self._named[name]
            if name in self._intrinsic_weights:
                rewards[name] = part.reward_of(inputs, batch_info)
            inputs, infos[name] = part.preprocess_experience(
                inputs, stored.get(name, ()), batch_info
            )
        reward = self._extrinsic_weight() * inputs.reward
        intrinsic = torch.zeros_like(reward) if self._has_two_values else reward
        for name, values in rewards.items():
            intrinsic = intrinsic.add(values, alpha=self._intrinsic_weights[name]())
            if summary.should_record():
                arrived = ~inputs.is_first()[:, 1:]
                mean = masked_mean(values[:, 1:], arrived)
                summary.scalar(f"intrinsic/{name}/reward", mean)
        if self._has_two_values:
            intrinsic = torch.stack([reward, intrinsic], dim=-1)
        return inputs._replace(reward=intrinsic), infos


def _check_class(owner: str, name: str, kind: type, ctor: Callable[..., Any]) -> None:
    """As ``_checked``, before a constructor is called with what it does not take."""
    if inspect.isclass(ctor) and not issubclass(ctor, kind):
        raise ConfigError(_other_kind(owner, name, kind, ctor))


def _checked(owner: str, name: str, kind: type, part: Any) -> Any:
    if not isinstance(part, kind):
        raise ConfigError(_other_kind(owner, name, kind, type(part)))
    return part


@contextlib.contextmanager
def _told_who_hides_masks(
    owner: str, before: Sequence[tuple[str, Algorithm]]
) -> Iterator[None]:
    """While the RL algorithm is built with what the parts make of observations."""
    try:
        yield
    except ActionMaskError as error:
        if not before:
            raise
        name, part = before[-1]
        raise ConfigError(
            f"{owner}: the RL algorithm looks for its action mask in what the part "
            f"{name!r} ({type(part).__name__}) makes of the observation. Action masks "
            "cannot be used with a representation learner or a goal generator: leave "
            f"action_mask_key out, or the part. [{error}]"
        ) from error


def _other_kind(owner: str, name: str, kind: type, got: type) -> str:
    example = ", such as @PPOAlgorithm" if kind is RLAlgorithm else ""
    return (
        f"{owner}.{_PARAMETERS.get(name, 'intrinsic_rewards')}: expected the part "
        f"{name!r} to be a {kind.__name__}{example}, got a {got.__name__}"
    )


def _check_two_values(owner: str, has_rewards: bool, has_reward_weights: bool) -> None:
    if not has_rewards:
        raise ConfigError(
            f"{owner}.intrinsic_gamma is given, but there are no intrinsic_rewards"
        )
    if has_reward_weights:
        raise ConfigError(
            f"{owner}.reward_weights is given, but with intrinsic_gamma the reward of "
            "the environment has only one dimension. Leave it out; intrinsic rewards "
            "have intrinsic_reward_weights"
        )


def _check_tells_policy(owner: str, rl: RLAlgorithm) -> None:
    if not rl.tells_action_distribution:
        raise ConfigError(
            f"{owner}.entropy_target_ctor: {type(rl).__name__} tells no "
            "action_distribution in training. Use an algorithm with a stochastic "
            "policy that is trained on-policy, such as PPOAlgorithm; SacAlgorithm has "
            "a temperature of its own. An algorithm of yours says "
            "tells_action_distribution = True if the info of its train_step has it."
        )


def _built_rewards(
    owner: str,
    ctors: RewardCtor | Sequence[RewardCtor] | Mapping[str, RewardCtor],
    *specs: NestedTensorSpec,
) -> list[tuple[str, Algorithm]]:
    """The intrinsic rewards with their names."""
    if callable(ctors):
        ctors = [ctors]
    given = ctors.items() if isinstance(ctors, Mapping) else [("", c) for c in ctors]
    rewards = []
    for name, ctor in given:
        shown = name or "intrinsic_rewards"
        _check_class(owner, shown, IntrinsicReward, ctor)
        reward = _checked(owner, shown, IntrinsicReward, ctor(*specs))
        rewards.append((name or reward.name, reward))
    return rewards


def _weights(
    owner: str, names: Sequence[str], given: Scheduled | Mapping[str, Scheduled] | None
) -> dict[str, Callable[[], float]]:
    """The schedule of every intrinsic reward."""
    if given is None:
        given = {}
    elif not names and given != {}:
        raise ConfigError(
            f"{owner}.intrinsic_reward_weights is {given!r}, but there are no "
            "intrinsic_rewards"
        )
    if not isinstance(given, Mapping):
        given = dict.fromkeys(names, given)
    for name in given:
        if name not in names:
            raise ConfigError(
                f"{owner}.intrinsic_reward_weights: there is no intrinsic reward "
                f"{name!r}.{did_you_mean(name, names) or f' There are: {names}'}"
            )
    return {name: as_scheduler(given.get(name, 1.0)) for name in names}
