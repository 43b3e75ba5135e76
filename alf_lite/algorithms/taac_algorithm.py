"""Temporally abstract actor-critic: it learns when to do the same again.

Yu et al., "TAAC: Temporally Abstract Actor-Critic for Continuous Control",
arXiv:2104.06521. The policy has two stages. The first proposes an action, the second
either takes it (b = 1) or repeats the action before, a⁻ (b = 0):

    â ~ π(·|s, a⁻),   b ~ β(·|s, â, a⁻) ∝ exp(Q(s, a_b) / α_β),   a_0 = a⁻, a_1 = â

so that exploration goes on in one direction for as long as its value says. β is not a
network: it is the best one for the critics that there are. Put into the objective, it
leaves

    J(π) = E_π [Q(s, a⁻) + α_β log(1 + exp((Q(s, â) − Q(s, a⁻)) / α_β)) − α_π log π]

whose slope by â is β_1 ∂Q(s, â)/∂â: what is seldom taken is seldom improved.

Since actions are equal for some time with positive probability, targets may run through
several steps of the replayed trajectory without correction, as long as the policy of
now, asked again, would have done the same (compare-through, section 4.2):

    y_t = r_{t+1} + γ_{t+1} r_{t+2} + … + γ_{t+1} ⋯ γ_{t+m} Q(s_{t+m}, ã_{t+m}; θ⁻)

with ã_k the choice of the two stages at step k, and m the first number for which
ã_{t+m} is not the action a_{t+m} that was taken, or the window or the episode ends.

Differences from the paper:

1. Every step of a window is trained, by a target that ends with the window at the
   latest. ``TrainerConfig.mini_batch_length`` is one more than the longest.
2. The first step of an episode has nothing to repeat: it takes â.
3. What came before a step is its ``prev_action`` in the replay buffer, so that nothing
   else is stored. While the beginning is random, it repeats in half of the cases.
4. The temperatures are learnt by losses in log α, as in SAC.
5. Repetition is all: the linear and quadratic trajectories of the paper are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite import nest
from alf_lite.algorithms.off_policy_algorithm import PathwiseActorCriticAlgorithm
from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.critics import Critics, with_clipped_slope
from alf_lite.algorithms.parts.policy import Policy
from alf_lite.algorithms.parts.temperature import (
    BoxSamples,
    TargetEntropy,
    Temperatures,
)
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import (
    AlgStep,
    BatchInfo,
    Field,
    LossInfo,
    StepType,
    TimeStep,
)
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.action_vectors import BoxActions, Entropies
from alf_lite.distributions.mixed_actions import make_actions
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.network import Network
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_left_out
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Scheduled
from alf_lite.utils.tensor_utils import expand_dims_as, where_rows

Nest = Any

_SWITCH = BoundedTensorSpec((), torch.int64, 0, 1)  # b


class TaacInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    q: Tensor  # [T, B, n, ...] Q_k(s_t, a_t)
    policy_value: Tensor  # [T, B] J without the entropy of π; gradient to π only
    entropies: Entropies  # [T, B] of π(·|s_t, a⁻_t), with gradient, and of β
    value: Tensor  # [T, B, ...] Q(s_t, ã_t; θ⁻), no gradient
    goes_on: Tensor  # [T, B] whether ã_t = a_t, and s_t is not LAST
    reward: Tensor  # [T, B] or [T, B, D] r_{t+1}
    discount: Tensor  # [T, B] γ_{t+1}
    step_type: Tensor  # [T, B]


class TaacLossInfo(NamedTuple):
    """The parts of the loss and its diagnostics, [T, B] each; alpha []."""

    actor_loss: Field  # (), as alpha_loss, if the actor is not updated
    critic_loss: Tensor
    alpha_loss: Field
    q: Tensor
    entropy: Entropies  # discrete: of β
    alpha: Entropies
    goes_on: Tensor  # share of steps that targets run through


class Pair(NamedTuple):
    """The two actions that there are to choose from, and what is thought of them."""

    vectors: tuple[Tensor, Tensor]  # [B, vector_size] of a⁻, and of â with gradient
    values: tuple[Tensor, Tensor]  # [B] Q(s, a⁻), and Q(s, â) with gradient to â
    is_first: Tensor  # [B] there is nothing to repeat


@configurable(defaults={"actor_network_ctor": SquashedActorNetwork, "n_step": None})
class TaacAlgorithm(PathwiseActorCriticAlgorithm):
    """TAAC for nests of continuous actions."""

    # An update for every step, of 64 windows of which three steps each are trained.
    default_settings = DefaultSettings(
        updates_per_env_step=1.0,
        unroll_length=1,
        mini_batch_size=64,
        mini_batch_length=4,
        initial_collect_steps=1000,
        initial_random_policy=True,
        lr=1e-3,
    )

    acts_on_prev_action = True

    def __init__(
        self,
        *specs: Any,
        initial_alpha: float = 1.0,
        learn_alpha: bool = True,
        target_entropy: TargetEntropy | None = None,
        switch_target_entropy: Scheduled | None = None,
        alpha_optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; those that act are policy, critics and temperatures.

        Args:
            *specs: of one observation, and of one action: any nest of continuous specs
                with bounds.
            initial_alpha: α_π and α_β at the start.
            learn_alpha: False keeps them.
            target_entropy: of π; see :class:`SacAlgorithm`.
            switch_target_entropy: of β; None: that of one which decides for the same in
                90 percent of the cases.
            alpha_optimizer: of the temperatures; None: ``optimizer`` trains them, too.
            **kwargs: see :class:`PathwiseActorCriticAlgorithm`. ``actor_network_ctor``
                gets the spec of {"observation": s, "prev_action": a⁻ as a vector in
                [-1, 1]}. Networks have no memory. ``n_step`` is None: how many steps a
                target runs through is for the windows and the policy to say.

        Raises:
            ValueError: if the action is not supported or a coefficient is out of range.
            ConfigError: for a network with memory; for a policy that no gradient goes
                through, or that leaves the bounds; for a target that no policy reaches.
        """
        super().__init__(*specs, **kwargs)
        if not self._chooses_n_step:
            raise ConfigError(
                f"{self._name}.n_step: a target runs through as many steps as the "
                "policy would repeat. Leave it out, or set "
                "TrainerConfig.mini_batch_length, one more than the longest."
            )
        if self._is_recurrent:
            raise ConfigError(
                f"{self._name}: compare-through targets of networks with memory are "
                "not implemented. Take networks without, or SacAlgorithm."
            )
        if self._is_eval:  # β asks them
            self._critics = Critics(
                self._network_ctors[1](),
                self._weigh,
                return_model=self._return_model,
                has_targets=False,
                tau=1.0,
                period=1,
            )
        boxes = BoxSamples()
        if not self._is_eval:
            boxes = self._policy.differentiable_boxes()
        self._temperatures = Temperatures(
            make_actions((self.action_spec, _SWITCH)),
            target_entropy,
            switch_target_entropy,
            boxes=boxes,
            discrete_name="switch_target_entropy",
            initial_value=initial_alpha,
            is_learnt=learn_alpha,
        )
        if not learn_alpha:
            reason = "learn_alpha = False keeps the temperatures"
            check_left_out(reason, alpha_optimizer=alpha_optimizer)
        self._claim(alpha_optimizer, self._temperatures)
        # What is repeated comes with the steps; only whoever evaluates keeps it.
        self._set_state_specs(train=(), predict=self.action_spec)

    def _make_actions(self, action_spec: NestedTensorSpec) -> BoxActions:
        return BoxActions(action_spec)

    def _make_policy(self, actor_network_ctor: Callable[..., Network]) -> Policy:
        vector = TensorSpec((self._actions.vector_size,))
        spec = {"observation": self._actor_mask.remaining_spec, "prev_action": vector}
        mask = ActionMask(spec, self.action_spec, None)
        return Policy(actor_network_ctor, self.action_spec, mask)

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """The targets: critics and temperatures decide what is repeated."""
        return [self._critics.target]

    # Acting

    def predict_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """The likelier of the two; or, by ``TrainerConfig.epsilon_greedy``, a sample.

        The state is the action before.
        """
        policy = self._propose(inputs.observation, state)
        candidate = distributions.epsilon_greedy(policy, self.predict_epsilon)
        features, _ = self._critics.online.encode(inputs.observation)
        logit = self._logit(self._pair(inputs, features, state, candidate))
        takes_new = logit > 0
        if self.predict_epsilon > 0:
            is_random = torch.rand_like(logit) < self.predict_epsilon
            takes_new = torch.where(is_random, _draw(logit), takes_new)
        action = where_rows(takes_new, candidate, state)
        return AlgStep(output=action, state=action)

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """Samples both stages. The replayed steps tell what was done."""
        before = inputs.prev_action
        candidate = distributions.sample(self._propose(inputs.observation, before))
        features, _ = self._critics.online.encode(inputs.observation)
        takes_new = _draw(self._logit(self._pair(inputs, features, before, candidate)))
        return AlgStep(output=where_rows(takes_new, candidate, before))

    def random_action(self, inputs: TimeStep) -> Nest:
        """Any action, or with probability ½ the one before."""
        action = super().random_action(inputs)
        takes_new = (torch.rand_like(inputs.discount) < 0.5) | inputs.is_first()
        return where_rows(takes_new, action, inputs.prev_action)

    def _propose(self, observation: Nest, before: Nest) -> Nest:
        """π(·|s, a⁻)."""
        vector = self._actions.to_vector(before)
        seen = self._actor_mask.remaining(observation)
        policy, _ = self._policy({"observation": seen, "prev_action": vector})
        return policy

    def _pair(
        self, inputs: TimeStep, features: Tensor, before: Nest, candidate: Nest
    ) -> Pair:
        """Values a⁻ and â.

        Args:
            inputs: [B].
            features: [B, F], of the critics.
            before: [B, ...] a⁻.
            candidate: [B, ...] â.
        """
        vectors = self._actions.to_vector(before), self._actions.to_vector(candidate)
        evaluate = self._critics.online.evaluate
        with torch.no_grad():
            old = self._smallest(evaluate(features, vectors[0]))
        if torch.is_grad_enabled():
            evaluate = self._critics.evaluate_frozen
        new = self._smallest(evaluate(features, vectors[1]))
        return Pair(vectors, (old, new), inputs.is_first())

    def _smallest(self, values: Tensor) -> Tensor:
        """What is believed of an action: [B, n, 1, ...] → [B]."""
        return self._weigh(self._critics.smallest(values)).squeeze(1)

    def _logit(self, pair: Pair) -> Tensor:
        """The log odds of β, (Q(s, â) − Q(s, a⁻)) / α_β, [B]; ∞ at FIRST."""
        old, new = pair.values
        logit = (new - old).detach() / self._switch_alpha
        return torch.where(pair.is_first, torch.inf, logit)

    @property
    def _switch_alpha(self) -> Tensor:
        alpha = self._temperatures.alpha.discrete
        assert isinstance(alpha, Tensor)
        return alpha

    # Learning

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Transition]:
        """All steps, each with what was done there and what came of it, [B, T]."""
        return transitions.to_sequence(root_inputs, 1, self._gamma)

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: Transition
    ) -> AlgStep:
        """Asks both stages anew, and values what they choose and what was done."""
        action, before = rollout_info.action, inputs.prev_action
        vector = self._actions.to_vector(action)
        features, _ = self._critics.online.encode(inputs.observation)
        has_gradient = self._actor_updates.is_due and torch.is_grad_enabled()
        with torch.set_grad_enabled(has_gradient):
            policy = self._propose(inputs.observation, before)
            candidate, log_prob = distributions.rsample_and_log_prob(policy)
            pair = self._pair(inputs, features, before, candidate)
            policy_value, switch_entropy = self._objective(pair)
        with torch.no_grad():
            takes_new = _draw(self._logit(pair))
            old, new = pair.vectors
            chosen = torch.where(takes_new.unsqueeze(1), new, old)
            target_features, _ = self._critics.target.encode(inputs.observation)
            values = self._critics.target.evaluate(target_features, chosen)
            value = self._critics.smallest(values).squeeze(1)
        is_last = inputs.step_type == int(StepType.LAST)
        info = TaacInfo(
            q=self._actions.values_of(
                action, self._critics.online.evaluate(features, vector)
            ),
            policy_value=policy_value,
            entropies=Entropies(-log_prob, switch_entropy),
            value=value,
            goes_on=~takes_new & (old == vector).all(1) & ~is_last,
            reward=rollout_info.reward,
            discount=rollout_info.discount,
            step_type=inputs.step_type,
        )
        return AlgStep(output=action, info=info)

    def _objective(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """E_β[Q] + α_β H(β) for the best β, and H(β): [B] each.

        With x = (Q(s, â) − Q(s, a⁻)) / α_β it is Q(s, a⁻) + α_β log(1 + eˣ), and H(β) =
        log(1 + eˣ) − x σ(x). At FIRST, where nothing is decided, they are Q(s, â) and
        H̄, which leaves α_β as it is.
        """
        old, new = pair.values
        if new.requires_grad:
            new = with_clipped_slope(new, pair.vectors[1], self._dqda_clipping)
        alpha = self._switch_alpha
        logit = (new - old) / alpha
        both = old + alpha * F.softplus(logit)
        x = logit.detach()
        entropy = F.softplus(x) - x * x.sigmoid()
        switch: Any = self._temperatures["discrete"]
        return (
            torch.where(pair.is_first, new, both),
            torch.where(pair.is_first, switch.target_entropy, entropy),
        )

    def calc_loss(self, info: TaacInfo) -> LossInfo:
        """The sum of the losses of actor, critics and temperatures, [T-1, B]."""
        reward, discount, value = compare_through(
            info.reward, info.discount, info.value, info.goes_on
        )
        info = nest.map_structure(lambda t: t[:-1], info)
        critic_loss, td_error = self._critics.td_loss(
            info.q, reward, discount, value, halved=True
        )
        loss = critic_loss
        actor_loss: Field = ()
        alpha_loss: Field = ()
        if self._actor_updates.is_due:
            actor_loss = self._actor_loss(info)
            alpha_loss = self._temperatures(info.entropies)
            loss = critic_loss + actor_loss + alpha_loss
        extra = diagnostic(
            lambda: TaacLossInfo(
                actor_loss=actor_loss,
                critic_loss=critic_loss,
                alpha_loss=alpha_loss,
                q=self._weigh(info.q).mean(-1),
                entropy=info.entropies,
                alpha=self._temperatures.alpha,
                goes_on=info.goes_on.float(),
            )
        )
        return LossInfo(loss, (), extra, self.priority_of(td_error, info.step_type))

    def _actor_loss(self, info: TaacInfo) -> Tensor:
        """−J(π): the entropy of β is a part of its value."""
        alpha = self._temperatures.alpha.continuous
        return -info.policy_value - alpha * info.entropies.continuous

    def _reset_parameters(self) -> None:
        super()._reset_parameters()
        self._temperatures.reset()


def compare_through(
    reward: Tensor, discount: Tensor, value: Tensor, goes_on: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets y_t = G_t + Γ_t V_t that run on as long as actions agree.

        G_t = r_{t+1} + γ_{t+1} G_{t+1},  Γ_t = γ_{t+1} Γ_{t+1},  V_t = V_{t+1}

    where step t+1 goes on; G_t = r_{t+1}, Γ_t = γ_{t+1} and V_t = v_{t+1} where not, or
    where it is the last one.

    Args:
        reward: [T, B] or [T, B, D], r_{t+1} in row t; the last row plays no role.
        discount: [T, B], γ_{t+1}, likewise.
        value: [T, B, ...] v_t, of what the policy chooses at step t.
        goes_on: [T, B] bool, whether that is what was done at step t.

    Returns:
        G, Γ and V, [T-1, B, ...].

    Raises:
        ValueError: if T < 2.
    """
    if len(value) < 2:
        raise ValueError(
            f"a target needs windows of at least 2 steps, got {len(value)}. "
            "Set TrainerConfig.mini_batch_length."
        )
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    later: tuple[Tensor, Tensor, Tensor] | None = None
    for t in range(len(value) - 2, -1, -1):
        row = reward[t], discount[t], value[t + 1]
        if later is not None:
            stays = goes_on[t + 1]
            weight = torch.where(stays, row[1], 0.0)
            row = (
                row[0] + expand_dims_as(weight, row[0]) * later[0],
                row[1] * torch.where(stays, later[1], 1.0),
                torch.where(expand_dims_as(stays, row[2]), later[2], row[2]),
            )
        rows.append(row)
        later = row
    columns = zip(*reversed(rows), strict=True)
    g, product, bootstrap = (torch.stack(column) for column in columns)
    return g, product, bootstrap


def _draw(logit: Tensor) -> Tensor:
    """b, [B] bool."""
    return torch.rand_like(logit) < logit.sigmoid()
