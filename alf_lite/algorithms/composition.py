"""Algorithms that are trained together: one that acts, and others beside it.

An iteration of a composition is that of its RL algorithm, with the other parts in every
place of it. The parts run in the order in which they are given:

    rollout_step           those that make observations, then the RL algorithm
    preprocess_experience  the same; the others say what they are trained on
    train_step, calc_loss  every part on its own info; the losses are added
    after_update, …        every part

and each gets the step as the earlier ones have left it. States and infos are dicts by
the names of the parts, as are summaries, optimizers (``parts.NAME``) and checkpoints.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.composed_parts import (
    Named,
    built_part,
    by_name,
    check_part,
    check_rl,
)
from alf_lite.algorithms.learning import construction
from alf_lite.algorithms.learning.joint_training import sum_of_losses, with_rows
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    with_executed_action,
)
from alf_lite.algorithms.parts.observation_parts import ObservationPart
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Experience, LossInfo, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.fast import quick
from alf_lite.replay_buffers.packed_windows import PackedWindows
from alf_lite.replay_buffers.row_layout import PackedSteps
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any
Infos = dict[str, Nest]  # by the names of the parts

# What the RL algorithm does itself if there is nothing beside it.
_LEFT_TO_IT = (
    *("predict_step", "rollout_step", "preprocess", "train_step"),
    *("calc_loss", "train_step_offline", "calc_loss_offline"),
    *("add_batch_statistics", "should_stop_updates", "after_update"),
    "after_train_iter",
    *("action_distribution", "priority_of_new_steps"),
)
# What it says of itself, once for all
_SAID_BY_IT = (
    *("num_bootstrap_steps", "trains_on_rollout_info", "stops_updates_early"),
    *("tells_action_distribution", "uses_episode_returns", "acts_on_prev_action"),
    "prioritizes_new_steps",
)


def _of_rl(name: str) -> Any:
    """A property that is that of the RL algorithm."""
    return property(lambda self: getattr(self._rl, name))


@configurable
class Composition(RLAlgorithm):
    """An RL algorithm and the parts that are trained with it.

    Parts are algorithms of any kind. An :class:`ObservationPart` acts before the RL
    algorithm; the others only train. What comes after the RL algorithm is trained on
    the info of its ``train_step``; what comes before it, on what its own
    ``preprocess_experience`` returned, cut to the steps that the RL algorithm trains.

    Without other parts, everything is left to the RL algorithm, at no cost.
    """

    # As the parts say, once they are known
    has_offline_loss = True
    stops_updates_early = True

    _rl: RLAlgorithm
    _named: dict[str, Any]  # all parts in their order

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        rl_algorithm: RLAlgorithm | None = None,
        before: Named = (),
        after: Named = (),
        **kwargs: Any,
    ) -> None:
        """Takes the parts.

        Args:
            observation_spec: of one observation.
            action_spec: of one action.
            rl_algorithm: acts, and says whether training is on-policy. Its name among
                the parts is "rl". None: a subclass builds the parts by what it is
                itself, and tells them by :meth:`_compose`.
            before: names and parts, in the order in which they come before it.
            after: likewise, after it.
            **kwargs: see :class:`RLAlgorithm`.

        Raises:
            ConfigError: if two parts have the same name, a part has parameters that no
                optimizer trains, or the parts do not fit each other.
        """
        super().__init__(observation_spec, action_spec, is_on_policy=None, **kwargs)
        if rl_algorithm is not None:
            self._compose(rl_algorithm, before, after)
        elif type(self) is Composition:
            raise ConfigError(f"{self._name}.rl_algorithm must be set: what acts")

    def _build_rl(
        self,
        ctor: Callable[..., RLAlgorithm],
        *specs: Any,
        reward_spec: TensorSpec,
        reward_weights: Any,
    ) -> RLAlgorithm:
        """What acts, for the run that this is built for.

        Args:
            ctor: the ``rl_algorithm_ctor``.
            *specs: of what it observes and of its actions.
            reward_spec: of what it is trained on.
            reward_weights: see :class:`RLAlgorithm`.
        """
        given = {} if reward_weights is None else {"reward_weights": reward_weights}
        return built_part(
            self._name,
            "rl",
            RLAlgorithm,
            "rl_algorithm_ctor",
            ctor,
            *specs,
            reward_spec=reward_spec,
            config=self._config,
            is_eval=self._is_eval,
            **given,
        )

    def _compose(
        self,
        rl_algorithm: RLAlgorithm,
        before: Named = (),
        after: Named = (),
        *,
        changes_steps: bool = False,
    ) -> None:
        """Takes the parts, which see the constructor.

        Args:
            rl_algorithm: acts.
            before: names and parts.
            after: likewise.
            changes_steps: whether ``_preprocess_before`` of a subclass does more than
                the parts do, so that nothing is left to the RL algorithm alone.
        """
        self.set_on_policy(rl_algorithm.on_policy)
        self._config = construction.counted_config(
            self._config, self._on_policy, self._env, self._name
        )
        named = [*before, ("rl", rl_algorithm), *after]
        self.parts = by_name(self._name, named)
        # Found faster here than in nn.Module, and not twice in checkpoints.
        vars(self).update(_rl=rl_algorithm, _named=dict(named))
        for _, part in named:
            part._part_of = self._name
        self._before = tuple(name for name, _ in before)
        self._after = tuple(name for name, _ in after)
        self._acting = tuple(
            name for name, part in before if isinstance(part, ObservationPart)
        )
        # A subclass that has written some of it anew expects infos by name.
        is_own = any(
            getattr(type(self), method) is not getattr(Composition, method)
            for method in _LEFT_TO_IT
        )
        self._is_alone = len(named) == 1 and not changes_steps and not is_own
        if self._config is not None:
            rl_algorithm._config = self._config  # with the updates of an iteration
        if not self._is_alone:
            check_rl(self._name, rl_algorithm)
        for name, part in (*before, *after):
            has_optimizer = bool(self._claims) or part._has_optimizer()
            is_trained = has_optimizer or self._is_eval
            check_part(self._name, name, part, is_trained=is_trained)
        self._take_what_the_parts_say()
        if self._is_alone:
            self._leave_it_alone()
        if self._env is not None:
            rl_algorithm.set_num_environments(self._env.batch_size)

    def _take_what_the_parts_say(self) -> None:
        rl, parts = self._rl, list(self._named.values())
        for name in _SAID_BY_IT:
            setattr(self, name, getattr(rl, name))
        self.has_offline_loss = any(part.has_offline_loss for part in parts)
        if not self._acting:  # which may look at anything
            self.unseen_entries = rl.unseen_entries
        if self._is_alone:
            self._train_state_spec = rl.train_state_spec
            self._rollout_state_spec = rl.rollout_state_spec
            self._predict_state_spec = rl.predict_state_spec
            return
        acting = {name: self._named[name] for name in (*self._acting, "rl")}
        self._train_state_spec = self._states(rl.train_state_spec)
        self._rollout_state_spec = {n: p.rollout_state_spec for n, p in acting.items()}
        self._predict_state_spec = {n: p.predict_state_spec for n, p in acting.items()}

    def _leave_it_alone(self) -> None:
        self._left = {
            name: functools.partial(_ask, self._rl, name) for name in _LEFT_TO_IT
        }
        vars(self).update(self._left)

    @property
    def _is_left_alone(self) -> bool:
        """Whether all is still the RL algorithm's."""
        # torch.compile does not get over a break of its graph that has seen vars(self).
        if not self._is_alone:
            return False
        own = vars(self)
        return all(own[n] is ask for n, ask in self._left.items())

    # What others may ask

    def trains_child(self, path: str) -> bool:
        """The parts; others only if a subclass says that it forwards to them."""
        return path.startswith("parts.") or super().trains_child(path)

    trains_on_sequences = _of_rl("trains_on_sequences")
    rl_algorithm = _of_rl("rl_algorithm")
    gamma = _of_rl("gamma")
    initial_gamma = _of_rl("initial_gamma")
    corrects_policy_lag = _of_rl("corrects_policy_lag")

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """Of the RL algorithm, and the parts that do not act."""
        modules = [*self._rl.training_only_modules]
        for name in (*self._before, *self._after):
            part = self._named[name]
            modules += part.training_only_modules if name in self._acting else [part]
        return modules

    def set_num_environments(self, num_environments: int) -> None:
        self._rl.set_num_environments(num_environments)

    @property
    def predict_epsilon(self) -> float:
        return self._rl.predict_epsilon

    @predict_epsilon.setter
    def predict_epsilon(self, epsilon: float) -> None:
        self._rl.predict_epsilon = epsilon

    @property
    def reward_weights(self) -> Tensor | None:
        """Of the environment's reward; what the RL algorithm sees may be another."""
        return self._rl.reward_weights if self.has_multidim_reward else None

    def set_reward_weights(self, reward_weights: Tensor | Sequence[float]) -> None:
        if self.has_multidim_reward:
            self._rl.set_reward_weights(reward_weights)
        else:
            super().set_reward_weights(reward_weights)  # says that there are none

    def observe_rewards(self, new_steps: TimeStep) -> None:
        self._rl.observe_rewards(new_steps)

    def scalar_reward(self, values: Tensor) -> Tensor:
        return self._rl.scalar_reward(values) if self.has_multidim_reward else values

    def step_pairing(self) -> Callable[[PackedWindows], PackedSteps] | None:
        return self._rl.step_pairing() if self._is_left_alone else None

    def random_action(self, inputs: TimeStep) -> Nest:
        return self._rl.random_action(inputs)

    def _claim_default_optimizer(self, is_alone: bool = True) -> None:
        """Of the RL algorithm alone: other parts say how they are trained."""
        if not self._claims:
            has_others = any(part._has_optimizer() for part in self._named.values())
            self._rl._claim_default_optimizer(is_alone and not has_others)

    def _states(self, state: Nest) -> dict[str, Nest]:
        """In training, only the RL algorithm has one."""
        return {**dict.fromkeys(self._acting, ()), "rl": state}

    # Acting

    def predict_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """The action of the RL algorithm [B, ...], after those that come before it."""
        return self._act("predict_step", inputs, state)

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """As above; the info is that of every part that acts, by name."""
        return self._act("rollout_step", inputs, state)

    def _act(self, method: str, inputs: TimeStep, state: Nest) -> AlgStep:
        states, infos = {}, {}
        for name in self._acting:
            part = self._named[name]
            step = getattr(part, method)(inputs, state[name])
            inputs = part.pass_on(inputs, step.output)
            states[name], infos[name] = step.state, step.info
        step = getattr(self._rl, method)(inputs, state["rl"])
        states["rl"], infos["rl"] = step.state, step.info
        return AlgStep(step.output, states, infos)

    def seen_by_policy(self, inputs: TimeStep) -> TimeStep:
        for name in self._acting:
            part = self._named[name]
            inputs = part.pass_on(inputs, part.predict_step(inputs, ()).output)
        return self._rl.seen_by_policy(inputs)

    # Learning

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """Stored experience [B, T, ...] as every part wants it, without gradient."""
        of_rl, infos = self._as_rl_sees(experience, batch_info)
        batch = self._rl.preprocess(of_rl, valid, batch_info)
        shape = batch.inputs.step_type.shape
        infos = {
            name: with_rows(info, shape, name, self._named[name])
            for name, info in infos.items()
        }
        return batch._replace(
            rollout_info={**infos, "rl": batch.rollout_info},
            state=self._states(batch.state) if experience.state else (),
        )

    def priority_of_new_steps(self, experience: Experience) -> Tensor:
        """That of the RL algorithm, with the rewards as they are now."""
        of_rl, _ = self._as_rl_sees(experience, BatchInfo())
        return self._rl.priority_of_new_steps(of_rl)

    @torch.no_grad()
    def _as_rl_sees(
        self, experience: Experience, batch_info: BatchInfo
    ) -> tuple[Experience, Infos]:
        """Stored steps [B, T, ...] as the RL algorithm sees them, and other infos."""
        stored = experience.rollout_info
        if not isinstance(stored, dict):  # of offline buffers, () in most cases
            stored = {"rl": stored}
        inputs, infos = self._preprocess_before(
            experience.time_step, stored, batch_info
        )
        of_rl = Experience(
            time_step=inputs,
            action=experience.action,
            rollout_info=with_executed_action(stored.get("rl", ()), experience.action),
            state=experience.state["rl"] if experience.state else (),
        )
        return of_rl, infos

    def _preprocess_before(
        self, inputs: TimeStep, stored: Infos, batch_info: BatchInfo
    ) -> tuple[TimeStep, Infos]:
        """What the RL algorithm sees of steps [B, T, ...], and infos of the others."""
        infos = {}
        for name in self._before:
            inputs, infos[name] = self._named[name].preprocess_experience(
                inputs, stored.get(name, ()), batch_info
            )
        return inputs, infos

    def train_step(self, inputs: TimeStep, state: Nest, rollout_info: Infos) -> AlgStep:
        """Those of all parts, each with its own info."""
        return self._train("train_step", inputs, state, rollout_info)

    def train_step_offline(
        self, inputs: TimeStep, state: Nest, rollout_info: Infos
    ) -> AlgStep:
        return self._train("train_step_offline", inputs, state, rollout_info)

    def _train(
        self, method: str, inputs: TimeStep, state: Nest, rollout_info: Infos
    ) -> AlgStep:
        infos = {
            name: getattr(self._named[name], method)(
                inputs, (), rollout_info[name]
            ).info
            for name in self._before
        }
        step = getattr(self._rl, method)(inputs, state["rl"], rollout_info["rl"])
        infos["rl"] = step.info
        for name in self._after:
            infos[name] = getattr(self._named[name], method)(inputs, (), step.info).info
        return AlgStep(step.output, self._states(step.state), infos)

    def add_batch_statistics(self, rollout_infos: Sequence[Infos]) -> Sequence[Infos]:
        infos = [info["rl"] for info in rollout_infos]
        completed = self._rl.add_batch_statistics(infos)
        return [
            {**info, "rl": of_rl}
            for info, of_rl in zip(rollout_infos, completed, strict=True)
        ]

    def calc_loss(self, info: Infos) -> LossInfo:
        """The sum of the losses of all parts, of the rows that the RL algorithm has."""
        losses = {n: part.calc_loss(info[n]) for n, part in self._named.items()}
        return sum_of_losses(self._named, losses)

    @quick
    def quick_loss(self, batch: TrainingBatch) -> tuple[LossInfo, Nest] | None:
        return self._rl.quick_loss(batch) if self._is_left_alone else None

    def calc_loss_offline(self, info: Infos) -> LossInfo:
        losses = {n: part.calc_loss_offline(info[n]) for n, part in self._named.items()}
        return sum_of_losses(self._named, losses)

    def action_distribution(self, info: Infos) -> Nest:
        return self._rl.action_distribution(info["rl"])

    def should_stop_updates(self, loss_info: LossInfo, valid: Tensor) -> bool | Tensor:
        """As the RL algorithm says of its own part of the loss."""
        own = loss_info._replace(extra=loss_info.extra["rl"])
        return self._rl.should_stop_updates(own, valid)

    def after_update(self, root_inputs: TimeStep, info: Infos) -> None:
        for name, part in self._named.items():
            part.after_update(root_inputs, info[name] if info else ())

    def after_train_iter(self, root_inputs: TimeStep, rollout_info: Infos) -> None:
        """That of every part, with the unroll [T, B, ...] as it has seen it."""
        for name, part in self._named.items():
            info = rollout_info.get(name, ())
            part.after_train_iter(root_inputs, info)
            if name in self._acting:
                output = part.replayed_output(root_inputs, info)
                root_inputs = part.pass_on(root_inputs, output)


def _ask(algorithm: RLAlgorithm, method: str, *args: Any, **kwargs: Any) -> Any:
    """Calls what the method is now."""
    return getattr(algorithm, method)(*args, **kwargs)


def _needs_info(part: Algorithm) -> bool:
    """Whether ``after_update`` looks at what its ``train_step`` returned."""
    method = getattr(part.after_update, "__func__", None)
    return part.uses_info_after_update and method is not Algorithm.after_update
