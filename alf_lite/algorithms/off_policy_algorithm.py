"""What off-policy algorithms have in common; each file of theirs is what is left.

:class:`OffPolicyAlgorithm` turns replayed steps into transitions. An
:class:`OffPolicyActorCriticAlgorithm` has a policy and critics, and acts. The policy of
a :class:`PathwiseActorCriticAlgorithm` climbs the slope of its critics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.critics import (
    Critics,
    UpdateCounter,
    make_critic_network,
)
from alf_lite.algorithms.parts.policy import DeterministicPolicy, Policy
from alf_lite.algorithms.parts.return_heads import ReturnHead
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.algorithms.parts.weight_projection import Projection, WeightProjection
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, BatchInfo, TimeStep
from alf_lite.distributions.action_masks import ActionMask, RecordedActions
from alf_lite.distributions.mixed_actions import make_actions
from alf_lite.errors import ConfigError
from alf_lite.fast import twin_of
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.network import Network
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.replay_buffers.packed_windows import PackedWindows
from alf_lite.replay_buffers.row_layout import PackedSteps
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_left_out, check_positive, check_unit_interval
from alf_lite.utils.ranks import ranks
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any
_Info = TypeVar("_Info", bound=Any)
# Who handles what others do not
_ACTIONS_OF = {
    "SacAlgorithm": "boxes with bounds, discrete actions or both",
    "Td3Algorithm": "boxes with bounds",
    "DqnAlgorithm": "discrete actions of any number",
    "PPOAlgorithm": "unbounded actions",
}


@configurable
class OffPolicyAlgorithm(RLAlgorithm):
    """Learns from replayed transitions, with n-step returns and target networks.

    A subclass builds its networks after ``super().__init__``, and tells the specs of
    their states with :meth:`_set_state_specs`.
    """

    # Whether transitions tell which of them come from offline buffers
    _offline_rows_only: bool = False

    # Whether they tell the action after them
    _takes_next_action: bool = False

    # Whether of a reward of several dimensions their weighted sum is learned
    _learns_weighted_sum: bool = False

    # What keeps the actions of transitions away from their bounds
    _recorded: RecordedActions | None = None

    _gamma = Coefficient()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        gamma: Scheduled = 0.99,
        n_step: int | None = 1,
        target_update_tau: Scheduled = 0.005,
        target_update_period: Scheduled | None = 1,
        action_mask_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Stores what transitions and targets are made with.

        Args:
            observation_spec: of one observation.
            action_spec: of one action.
            gamma: γ in [0, 1], or a schedule of it.
            n_step: rewards that are summed before the target bootstraps. The windows
                of ``TrainerConfig.mini_batch_length`` need one step more, and have it
                where that is left out. None: as many as ``default_settings`` says and
                the windows have room for; 1 for networks with memory.
            target_update_tau: τ in (0, 1], or a schedule of it.
            target_update_period: gradient updates between two target updates; likewise.
                None: 128 for copies (τ = 1), else 1.
            action_mask_key: of the mask in a dict of observations; see
                :class:`ActionMask`. The networks do not see it.
            **kwargs: see :class:`RLAlgorithm`.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        actions = self._read_actions(action_spec)
        super().__init__(observation_spec, action_spec, is_on_policy=False, **kwargs)
        self._chooses_n_step = n_step is None
        n_step = self._declared_n_step() if n_step is None else n_step
        transitions.check_coefficients(gamma, n_step, self._config)
        self._actions = actions
        set_coefficients(self, _gamma=gamma)
        self._n_step = self.num_bootstrap_steps = n_step
        if target_update_period is None:
            target_update_period = 128 if target_update_tau == 1 else 1
        self._target_update: dict[str, Any] = {
            "tau": target_update_tau,
            "period": target_update_period,
        }
        self._mask = ActionMask(observation_spec, action_spec, action_mask_key)
        self._is_recurrent = False

    def _declared_n_step(self) -> int:
        """The n that is declared, or less, where windows have no room for it."""
        config, declared = self._config, self.default_settings
        if config is None or config.mini_batch_length is None:
            return 1
        of_one_step = declared.mini_batch_length or 2
        room = config.mini_batch_length - config.burn_in_length - of_one_step + 1
        return max(1, min(declared.n_step, room))

    def _make_actions(self, action_spec: NestedTensorSpec) -> Any:
        """How the algorithm sees actions.

        Raises:
            ValueError: if it cannot handle them.
        """
        return make_actions(action_spec)

    def _read_actions(self, action_spec: NestedTensorSpec) -> Any:
        try:
            return self._make_actions(action_spec)
        except ValueError as error:
            own = {cls.__name__ for cls in type(self).__mro__}
            others = [f"{k} for {v}" for k, v in _ACTIONS_OF.items() if k not in own]
            raise ValueError(
                f"{type(self).__name__} cannot handle these actions. {error}. "
                f"Use {', '.join(others)}; with recorded steps BcAlgorithm, "
                "CqlAlgorithm, or CqlDqnAlgorithm where all of them are discrete."
            ) from error

    def _set_state_specs(
        self, train: Nest, predict: Nest, rollout: Nest | None = None
    ) -> None:
        """The specs of recurrent states; ``rollout`` is that of training by default."""
        self._train_state_spec = train
        self._rollout_state_spec = train if rollout is None else rollout
        self._predict_state_spec = predict
        self._is_recurrent = not nest.is_empty(train)
        if self._is_recurrent and self._chooses_n_step:
            self._n_step = self.num_bootstrap_steps = 1

    def _claim(self, optimizer: Optimizer | None, module: nn.Module) -> None:
        """Gives a part to an optimizer of its own, if there is one."""
        if optimizer is not None and not self._is_eval:
            self.add_optimizer(optimizer, [module])

    def _take_next_action(self, what: str) -> None:
        """Has transitions tell the action after them, a step more of each window.

        Args:
            what: needs the steps, for the message if windows are too short.
        """
        self._takes_next_action = True
        self.num_bootstrap_steps = self._n_step + 1
        transitions.check_windows(self._config, self._n_step + 1, what)

    def random_action(self, inputs: TimeStep) -> Nest:
        """Any action that the mask allows."""
        return self._mask.redraw(super().random_action(inputs), inputs.observation)

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Transition]:
        """Sums up the rewards of n steps."""
        n, gamma, following = self._n_step, self._gamma, None
        if self._takes_next_action:
            following = transitions.next_action(root_inputs, n, gamma)
            root_inputs = nest.narrow(root_inputs, 0, -1, dim=1)
        if self._learns_weighted_sum:
            reward = self.scalar_reward(root_inputs.reward)
            root_inputs = root_inputs._replace(reward=reward)
        make = (
            transitions.to_sequence
            if self._is_recurrent
            else transitions.to_transitions
        )
        inputs, transition = make(root_inputs, n, gamma)
        if following is not None:
            transition = transition._replace(next_action=following)
        if self._recorded is not None:
            action = self._recorded.clip(transition.action)
            transition = transition._replace(action=action)
        if self._offline_rows_only:
            transition = transitions.mark_offline(transition, batch_info)
        return inputs, transition

    def step_pairing(self) -> Callable[[PackedWindows], PackedSteps] | None:
        adds = self._offline_rows_only or self._takes_next_action
        if adds or self._is_recurrent:
            return None
        twin = twin_of(self, "preprocess_experience")
        return None if twin is None else functools.partial(twin, self)

    def _align(self, info: _Info, *next_fields: str) -> _Info:
        """The first T-n rows of [T, B, ...], each with what it bootstraps from.

        Networks with memory value every step; here, its value is moved to those that
        bootstrap from it. Without memory, ``train_step`` has done so already.
        """
        if not self._is_recurrent:
            return info
        return transitions.align(info, next_fields, self._n_step)


class OffPolicyState(NamedTuple):
    """Recurrent states; all empty for feed-forward networks."""

    actor: Nest = ()  # [B, ...]
    critic: Nest = ()  # [B, ...]
    target_critic: Nest = ()  # [B, ...]


@configurable
class OffPolicyActorCriticAlgorithm(OffPolicyAlgorithm):
    """A policy, critics and their targets; how they learn is a subclass's.

    That one has them built, with :meth:`_build_networks`, when it knows what for.
    """

    _policy: Any  # Policy or DeterministicPolicy
    _critics: Critics  # unless is_eval
    _has_target_critics: bool = True

    _td_lambda = Coefficient()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        actor_network_ctor: Callable[..., Network],
        critic_network_ctor: Callable[..., CriticNetwork] = CriticNetwork,
        num_critics: int = 2,
        td_lambda: Scheduled | None = None,
        actor_observation_keys: Sequence[str] | None = None,
        critic_observation_keys: Sequence[str] | None = None,
        actor_optimizer: Optimizer | None = None,
        critic_optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Stores what the networks are built by.

        Args:
            observation_spec: of one observation.
            action_spec: of one action.
            actor_network_ctor: called as ``ctor(observation_spec, action_spec)``.
            critic_network_ctor: called as ``ctor(observation_spec, vector_size,
                num_critics, output_shape)``; see :class:`CriticNetwork`.
            num_critics: n; the smallest of them is believed.
            td_lambda: λ of targets that go on along the steps of a window, see
                :func:`~alf_lite.algorithms.parts.transitions.with_lambda_returns`;
                None: they end after ``n_step`` steps.
            actor_observation_keys: of the entries of a dict of observations that the
                actor sees, and acting needs (Pinto et al. 2017, arXiv:1710.06542);
                None: all.
            critic_observation_keys: of those that the critics see.
            actor_optimizer: of the actor; None: ``optimizer`` trains it, too.
            critic_optimizer: of the critics; as above.
            **kwargs: see :class:`OffPolicyAlgorithm`.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
            ConfigError: if ``td_lambda`` would be ignored.
        """
        super().__init__(observation_spec, action_spec, **kwargs)
        set_coefficients(self, _td_lambda=td_lambda)
        if td_lambda is not None:
            check_unit_interval(td_lambda=td_lambda)
            transitions.check_windows(self._config, 2, "td_lambda")
            if self._chooses_n_step or self._n_step > 1:
                raise ConfigError(
                    f"{self._name}: td_lambda mixes targets of one step: n_step must "
                    "be 1, which some algorithms do not have"
                )
        showing = self._mask.showing
        self._actor_mask = showing(actor_observation_keys, "actor_observation_keys")
        self._critic_mask = showing(critic_observation_keys, "critic_observation_keys")
        self._network_ctors = (
            functools.partial(self._make_policy, actor_network_ctor),
            functools.partial(
                self._make_critic_network, critic_network_ctor, num_critics
            ),
        )
        self._own_optimizers = actor_optimizer, critic_optimizer
        # Of the critics; None: they tell expectations
        self._return_model: ReturnHead | None = None

    def _build_networks(self, actor_update_period: int = 1) -> None:
        """Builds the policy and then, for training, the critics."""
        if self._return_model is not None:
            check_left_out(
                "distributions of the return are not mixed",
                td_lambda=type(self)._td_lambda.given(self),
            )
        make_policy, make_critic_network = self._network_ctors
        of_actor, of_critics = self._own_optimizers
        self._policy = make_policy()
        self.unseen_entries = self._policy.mask.unused
        self._actor_updates = UpdateCounter(
            actor_update_period, name="actor_update_period"
        )
        self._claim(of_actor, self._policy)
        critic_state_spec: NestedTensorSpec = ()
        if not self._is_eval:
            network = make_critic_network()
            self._critics = Critics(
                network,
                self._weigh,
                return_model=self._return_model,
                has_targets=self._has_target_critics,
                **self._target_update,
            )
            self._claim(of_critics, network)
            critic_state_spec = network.state_spec
        state_spec = self._policy.state_spec
        self._set_state_specs(
            train=OffPolicyState(state_spec, critic_state_spec, critic_state_spec),
            predict=OffPolicyState(actor=state_spec),
        )

    def _make_policy(
        self, actor_network_ctor: Callable[..., Network]
    ) -> Policy | DeterministicPolicy:
        return Policy(actor_network_ctor, self.action_spec, self._actor_mask)

    def _make_critic_network(self, ctor: Callable[..., Any], num_critics: int) -> Any:
        shape = self._critic_output_shape()
        if self._return_model is not None:
            shape = (*shape, self._return_model.num_outputs)
        size = self._actions.vector_size
        return make_critic_network(ctor, self._critic_mask, size, num_critics, shape)

    def _critic_output_shape(self) -> tuple[int, ...]:
        """Of one critic: a value of every joint value of the discrete parts."""
        return (self._actions.num_joint_values, *self.reward_spec.shape)

    def _weigh(self, values: Tensor) -> Tensor:
        """What is maximised: [..., D] or [..., N] of a critic → [...]; [...] as it is.

        N outputs stand for the return of a model, and what counts is its expectation.
        """
        if self._return_model is not None:
            return self._return_model.mean(values)
        return self._weighted_sum(values) if self.has_multidim_reward else values

    def _weighted_sum(self, values: Tensor) -> Tensor:
        """Of a reward of several dimensions, [..., D] → [...]."""
        return self.scalar_reward(values)

    # Acting

    def predict_step(self, inputs: TimeStep, state: Any) -> AlgStep:
        """Acts greedily, or as ``TrainerConfig.epsilon_greedy`` says."""
        action, actor_state = self._policy.act(
            inputs.observation, state.actor, self.predict_epsilon
        )
        return AlgStep(output=action, state=state._replace(actor=actor_state))

    def rollout_step(self, inputs: TimeStep, state: Any) -> AlgStep:
        """Samples an action. The replayed steps tell it; there is no info."""
        action, actor_state = self._policy.sample(inputs.observation, state.actor)
        return AlgStep(
            output=action, state=self._next_state(inputs, state, actor_state)
        )

    def _next_state(self, inputs: TimeStep, state: Any, actor_state: Nest) -> Any:
        """That of the rollout: critics with memory see the observation, too."""
        critic_state = state.critic
        if not nest.is_empty(critic_state):
            _, critic_state = self._critics.online.encode(
                inputs.observation, critic_state
            )
        # Stored states start the target critics, too.
        return state._replace(
            actor=actor_state, critic=critic_state, target_critic=critic_state
        )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """All but the actor, and critics whose state is stored."""
        has_state = not nest.is_empty(self.rollout_state_spec.critic)
        return [self._critics.target if has_state else self._critics]

    # Learning

    def _align(self, info: _Info, *next_fields: str) -> _Info:
        """With what ``td_lambda`` makes of the values to bootstrap from."""
        info, td_lambda = super()._align(info, *next_fields), self._td_lambda
        if td_lambda is None:
            return info
        return transitions.with_lambda_returns(info, td_lambda)

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Moves the targets towards the networks."""
        self._actor_updates.advance()
        self._critics.target_updater.forward()


@configurable
class PathwiseActorCriticAlgorithm(OffPolicyActorCriticAlgorithm):
    """Its policy is improved by the slope of the critics at the actions it takes."""

    _dqda_clipping = Coefficient()

    def __init__(
        self,
        *specs: Any,
        return_model: ReturnHead | None = None,
        actor_update_period: int = 1,
        dqda_clipping: Scheduled | None = None,
        parameter_reset_period: int | None = None,
        weight_projection: Projection | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the actor and, for training, the critics.

        Args:
            *specs: of one observation and of one action.
            return_model: what each critic tells of the return, such as
                ``QuantileHead()``; None: its expectation.
            actor_update_period: gradient updates between two of the actor.
            dqda_clipping: limit of what the actor learns from: of every element of the
                derivative of Q by the action, scaled to [-1, 1]; None: no limit.
            parameter_reset_period: gradient updates after which the networks are
                initialised anew, and learn again from the whole replay buffer (Nikishin
                et al. 2022, arXiv:2205.07802); None: never.
            weight_projection: "hidden" keeps weights and bias of each unit of hidden
                layers at length 1, "all" the weights of outputs, too, "all_and_gains"
                also how long gains are, see :class:`WeightProjection`; convolutions and
                recurrent cells are free. None: all are.
            **kwargs: see :class:`OffPolicyActorCriticAlgorithm`.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
        """
        check_positive(
            dqda_clipping=dqda_clipping, parameter_reset_period=parameter_reset_period
        )
        super().__init__(*specs, **kwargs)
        if not self._actions.vector_size:
            check_left_out(
                "the action has no continuous part", dqda_clipping=dqda_clipping
            )
        set_coefficients(self, _dqda_clipping=dqda_clipping)
        self._parameter_reset_period = parameter_reset_period
        self._return_model = self._checked_return_model(return_model)
        self._build_networks(actor_update_period)
        self._projection: WeightProjection | None = None
        if weight_projection is not None and not self._is_eval:
            networks = (self._policy, self._critics.online)
            self._projection = WeightProjection(weight_projection, *networks)
            self._critics.target_updater.copy()

    @property
    def slope_in_loss(self) -> str:
        """The setting by which the loss has the slope of a network in it, if any."""
        return "" if self._dqda_clipping is None else "dqda_clipping"

    def _checked_return_model(self, model: ReturnHead | None) -> ReturnHead | None:
        """``model``, if this algorithm can do with it.

        Raises:
            ConfigError: if it cannot.
        """
        if model is None:
            return None
        problem = ""
        if not isinstance(model, ReturnHead):
            problem = f"expected a model such as QuantileHead(), got {model!r}"
        elif self.has_multidim_reward:
            problem = "a reward of several dimensions has no model of its return"
        elif self._actions.num_joint_values > 1:
            problem = "actions with discrete parts have none; use DqnAlgorithm"
        if problem:
            raise ConfigError(f"{self._name}: return_model: {problem}")
        return model

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Moves the targets towards the networks, or has all begin anew."""
        if self._projection is not None:
            self._projection.apply()
        super().after_update(root_inputs, info)
        period = self._parameter_reset_period
        if period is not None and self._actor_updates.count % period == 0:
            self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Initialises the networks anew, and has the optimizers forget."""
        for ctor, network in zip(
            self._network_ctors, (self._policy, self._critics.online), strict=True
        ):
            network.load_state_dict(ctor().to(self.device).state_dict())
            ranks.broadcast_(network.state_dict().values())  # each drew its own
        if self._projection is not None:
            self._projection.apply()
        self._critics.target_updater.copy()
        self.begin_optimizers_anew()
