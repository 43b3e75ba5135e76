"""AlphaZero: a network learns from the searches that it guides, in games with itself.

Silver et al., "A general reinforcement learning algorithm that masters chess, shogi,
and Go through self-play", Science 362, 2018 (arXiv:1712.01815); with the search of
Danihelka et al., "Policy improvement by planning with Gumbel", ICLR 2022.

A search in the rules of the game, with p, v = f_θ(s) at its leaves, gives a policy π'
that is better than p. It is what the network learns, and how the game ends:

    ℓ = −Σ_a π'(a) log p(a) + c (z − v)²

z is n-step: what the next n moves win, and behind them Σ_a π'(a) Q(a) of the search
there. With n as long as a game it is the result, as in the paper. The discount of the
environment is -1, because a move later it is the value of the other seat.

Differences from the paper:

1. Gumbel's search with sequential halving by default, so that some 16 simulations
   suffice; ``select="puct"`` is the paper's. The policy learned is then
   softmax(l + σ(Q)) of all actions in place of the shares of visits.
2. Steps come from a replay buffer, evenly; the paper draws from the newest games.
3. No weight decay unless the optimizer has it.
4. The position is told from the observation of who moves, and has no history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.simulator_model import Rules, SimulatorModel
from alf_lite.algorithms.parts.tree_search import Found, TreeSearch
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import AlgStep, BatchInfo, LossInfo, TimeStep
from alf_lite.distributions.action_vectors import DiscreteActions
from alf_lite.errors import ConfigError
from alf_lite.networks.network import Network
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_left_out, check_positive
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any


class SearchResult(NamedTuple):
    """What is stored of a search, and what the network is fitted to."""

    policy: Tensor  # [B, A] π'
    value: Tensor  # [B] Σ π' Q; in training z


class AlphaZeroInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    logits: Tensor  # [T, B, A], masked
    value: Tensor  # [T, B]
    target: SearchResult
    step_type: Tensor  # [T, B]


class AlphaZeroLossInfo(NamedTuple):
    """Diagnostics, [T, B] each."""

    policy_loss: Tensor
    value_loss: Tensor
    target_entropy: Tensor  # of π': what is left of policy_loss at best


@configurable(defaults={"n_step": None, "gamma": 1.0, "action_mask_key": "action_mask"})
class AlphaZeroAlgorithm(OffPolicyAlgorithm):
    """AlphaZero for board games of two seats, one network for both of them."""

    takes_negative_discounts = True
    needs_rollout_info = True

    default_settings = DefaultSettings(
        num_parallel_environments=64,
        unroll_length=4,
        num_updates_per_train_iter=4,
        mini_batch_size=256,
        mini_batch_length=2,
        n_step=10,
        initial_collect_steps=1000,
        replay_buffer_length=1000,
        lr=2e-3,
        gradient_clipping=10.0,
    )

    _rollout_temperature = Coefficient()
    _cells: Tensor  # [S, cells], of the symmetries of the game
    _moves: Tensor  # [S, A]

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        game: Rules,
        search: TreeSearch | None = None,
        predict_search: TreeSearch | None = None,
        network_ctor: Callable[..., Network] = ValueNetwork,
        value_loss_weight: float = 1.0,
        rollout_temperature: Scheduled | None = None,
        target_update_tau: Scheduled | None = None,
        target_update_period: Scheduled | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the network and the search.

        Args:
            observation_spec: of one observation, as a ``GameEnvironment`` has it.
            action_spec: of one discrete action.
            game: in whose rules it searches, that of the environment: ``@TicTacToe()``.
            search: of every move; None: :class:`TreeSearch` as it is or is bound.
            predict_search: of every move of ``predict_step``, where more simulations
                may be had than in training; None: ``search``.
            network_ctor: called as ``ctor(observation_spec, TensorSpec((A + 1,)))``;
                the outputs are the logits of the actions, and v before a tanh.
            value_loss_weight: c.
            rollout_temperature: T of the actions of ``rollout_step``, which are drawn
                by π'^(1/T), or a schedule of it. None: the best one of a search with
                noise, which is Gumbel MuZero's way.
            target_update_tau: has no effect, there is no target network.
            target_update_period: likewise.
            **kwargs: see :class:`OffPolicyAlgorithm`.

        Raises:
            ConfigError: if the game is none of two that move in turn, or not that of
                the environment, or for a setting of a target network.
        """
        check_left_out(
            f"{type(self).__name__} has no target network",
            target_update_tau=target_update_tau,
            target_update_period=target_update_period,
        )
        # Given, so that what a conf binds to the base is not counted as used.
        kwargs |= {"target_update_tau": 1.0, "target_update_period": 1}
        super().__init__(observation_spec, action_spec, **kwargs)
        check_positive(
            value_loss_weight=value_loss_weight, rollout_temperature=rollout_temperature
        )
        self._model = SimulatorModel(game, self._evaluate)
        spec = self._mask.remaining_spec
        boards = nest.flatten(spec)
        same = [board.shape for board in boards] == [game.observation_space.shape]
        if not same or self._actions.sizes.tolist() != [game.num_actions]:
            raise ConfigError(
                f"{self._name}.game is {game.name}, but the environment has the "
                f"observation {spec} and the action {action_spec}: give both one game"
            )
        self._search = TreeSearch() if search is None else search
        self._predict_search = predict_search or self._search
        self._value_loss_weight = value_loss_weight
        self._has_temperature = rollout_temperature is not None
        set_coefficients(self, _rollout_temperature=rollout_temperature or 1.0)
        self._network = network_ctor(spec, TensorSpec((game.num_actions + 1,)))
        cells, actions = map(np.stack, zip(*game.symmetries(), strict=True))
        self.register_buffer("_cells", torch.from_numpy(cells), persistent=False)
        self.register_buffer("_moves", torch.from_numpy(actions), persistent=False)
        if not nest.is_empty(self._network.state_spec):
            raise ConfigError(f"{self._name}: its network must not have a memory")

    def _make_actions(self, action_spec: NestedTensorSpec) -> DiscreteActions:
        return DiscreteActions(action_spec)

    def setup_training(self, *, is_resumed: bool = False) -> None:
        """Raises ConfigError, if it would learn of other boards than it searches in."""
        super().setup_training(is_resumed=is_resumed)
        if not self.data_transformer.is_identity:
            raise ConfigError(
                f"{self._name}: searches see the boards and rewards of the game as "
                "they are. Leave TrainerConfig.data_transformer_ctor empty; what is to "
                "be scaled, its network_ctor may scale."
            )

    @property
    def training_only_modules(self) -> list[torch.nn.Module]:
        return []

    # Acting

    def predict_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """The best action of a search without noise; ε of them are drawn by π'.

        Its info is what the search has found.
        """
        found = self._find(self._predict_search, inputs, with_noise=False)
        action = found.choose(self.predict_epsilon)
        return AlgStep(self._as_action(inputs, action), state, info=found)

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """Searches with noise, and stores what the search found."""
        found = self._find(self._search, inputs, with_noise=True)
        policy = torch.from_numpy(found.action_weights)
        action = found.choose()
        if self._has_temperature:
            # Of the largest, which stays 1 however small T is
            shares = policy / policy.amax(-1, keepdim=True)
            weights = shares ** (1 / self._rollout_temperature)
            action = torch.multinomial(weights, 1).squeeze(-1)
        value = torch.from_numpy(found.policy_value)
        info = SearchResult(*(t.to(inputs.reward.device) for t in (policy, value)))
        return AlgStep(self._as_action(inputs, action), state, info=info)

    def _find(self, search: TreeSearch, inputs: TimeStep, *, with_noise: bool) -> Found:
        observation, mask = self._mask.split(inputs.observation)
        self._model.gamma = self._gamma
        return search.find(self._model, observation, mask, with_noise=with_noise)

    def _as_action(self, inputs: TimeStep, action: Tensor) -> Nest:
        return self._actions.to_action(action.to(inputs.reward.device).unsqueeze(-1))

    @torch.no_grad()
    def _evaluate(self, board: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logits of p, and v, of what seats see, [N, ...]."""
        device = next(self._network.parameters()).device
        leaves = [torch.from_numpy(board).to(device)]
        observation = nest.pack_sequence_as(self._mask.remaining_spec, leaves)
        outputs, _ = self._network(observation)
        outputs = outputs.numpy(force=True)
        return outputs[:, :-1], np.tanh(outputs[:, -1])

    # Learning

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: SearchResult, batch_info: BatchInfo
    ) -> tuple[TimeStep, Any]:
        """z_t = G_t + Γ_t V(s_{t+m}), with V of the search there, [B, T-n]."""
        valued = root_inputs._replace(observation=rollout_info.value)
        steps, found = transitions.to_transitions(valued, self._n_step, self._gamma)
        num_rows = steps.reward.shape[1]
        result = found.reward + found.discount * found.next_observation
        policy = rollout_info.policy[:, :num_rows]
        inputs = nest.narrow(root_inputs, 0, num_rows, dim=1)
        return inputs, SearchResult(policy, result)

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: SearchResult
    ) -> AlgStep:
        """What the network says of replayed positions."""
        observation, mask = self._mask.split(inputs.observation)
        observation, mask, target = self._turned(observation, mask, rollout_info)
        outputs, _ = self._network(observation)
        logits, value = outputs[..., :-1], outputs[..., -1].tanh()
        if mask is not None:
            logits = torch.where(mask, logits, -1e9)
        info = AlphaZeroInfo(logits, value, target, inputs.step_type)
        return AlgStep(state=state, info=info)

    def _turned(
        self, observation: Nest, mask: Tensor | None, target: SearchResult
    ) -> tuple[Nest, Tensor | None, SearchResult]:
        """Every row [B, ...] in one of the symmetries of the game, drawn evenly."""
        shape = target.value.shape
        which = torch.randint(len(self._cells), shape, device=self._cells.device)
        cells, actions = self._cells[which], self._moves[which]

        def turn(board: Tensor) -> Tensor:
            return board.reshape(cells.shape).gather(-1, cells).view(board.shape)

        mask = None if mask is None else mask.gather(-1, actions)
        target = target._replace(policy=target.policy.gather(-1, actions))
        return nest.map_structure(turn, observation), mask, target

    def calc_loss(self, info: AlphaZeroInfo) -> LossInfo:
        """−Σ_a π'(a) log p(a) + c (z − v)², [T-n, B]."""
        target = info.target
        policy_loss = -(target.policy * info.logits.log_softmax(-1)).sum(-1)
        error = target.value - info.value
        value_loss = error.square()

        def extra() -> AlphaZeroLossInfo:
            entropy = torch.special.entr(target.policy).sum(-1)
            return AlphaZeroLossInfo(policy_loss, value_loss, entropy)

        return LossInfo(
            loss=policy_loss + self._value_loss_weight * value_loss,
            extra=diagnostic(extra),
            priority=self.priority_of(error, info.step_type),
        )
