"""SARSA: the target has the value of the action that was taken, not of the best one.

Rummery and Niranjan, "On-line Q-learning using connectionist systems", 1994; in its
expected form van Seijen et al., "A theoretical and empirical analysis of Expected
Sarsa", 2009.

    y_t = G_t + Γ_t Q(s_{t+m}, a_{t+m}; θ⁻)
    y_t = G_t + Γ_t Σ_a π(a|s_{t+m}) Q(s_{t+m}, a; θ⁻),   π ε-greedy in Q(·; θ⁻)

It learns what its own exploration is worth: near a cliff, it keeps away from the edge.

Differences from the papers:

1. Those of :mod:`~alf_lite.algorithms.dqn_algorithm`; there is no double Q-learning.
2. Steps come from a replay buffer. The first form learns the value of the policies that
   filled it; a short buffer keeps them near to the one of now. The second form has the
   policy of now, with the ε of now, whatever filled it.
3. After a time limit no action follows: the best one of θ⁻ stands for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite.algorithms.dqn_algorithm import QLearningAlgorithm
from alf_lite.algorithms.parts.return_heads import ExpectedReturnHead, outputs_of
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.config import configurable
from alf_lite.distributions.exploration import masked_argmax
from alf_lite.errors import ConfigError

Nest = Any


@configurable
class SarsaAlgorithm(QLearningAlgorithm):
    """SARSA for nests of discrete actions."""

    takes_negative_discounts = True

    # Those of DQN; windows have one step more, the buffer is short.
    default_settings = QLearningAlgorithm.default_settings._replace(
        mini_batch_length=3, replay_buffer_length=10_000
    )

    def __init__(self, *specs: Any, expected: bool = False, **kwargs: Any) -> None:
        """Builds the networks; see :class:`QLearningAlgorithm` for the others.

        Args:
            expected: the expectation over the policy in place of the action taken.
                Otherwise windows need a step more than n + 1.

        Raises:
            ValueError: if the action is not discrete or a coefficient is out of range.
            ConfigError: for a network with memory or windows that are too short;
                ``expected``, for a distribution of the return or one ε for each
                environment.
        """
        super().__init__(*specs, **kwargs)
        self._expected = expected
        self._require_no_memory("targets")
        if expected:
            self._check_expected()
        else:
            self._take_next_action("n_step, and the action after them")

    def _check_expected(self) -> None:
        head = type(self._return_model)
        if head is not ExpectedReturnHead:
            raise ConfigError(
                f"{self._name}.expected needs an ExpectedReturnHead as return_model, "
                f"got {head.__name__}: take it, or expected = False"
            )
        if self._explore.is_of_each_environment:
            raise ConfigError(
                f"{self._name}.expected needs one rollout_epsilon_greedy, that of the "
                "policy, got one for each environment: give one, or expected = False"
            )

    @torch.no_grad()
    def _bootstrap(
        self,
        observation: Nest,
        transition: Transition,
        online_outputs: Tensor | None,
        target_state: Nest,
    ) -> tuple[Tensor, Nest]:
        """Z(s, a; θ⁻) of the action that follows, or Σ_a π(a|s) Q(s, a; θ⁻)."""
        outputs, allowed, _ = self._outputs(self._target_q_network, observation)
        best = masked_argmax(self._return_model.mean(outputs), allowed)
        if not self._expected:
            taken, is_last = transition.next_action
            index = self._actions.to_index(taken)
            index = torch.where(is_last.unsqueeze(-1), best, index)
            return outputs_of(outputs, index), target_state
        epsilon = self._explore.epsilon
        assert epsilon is not None, "just one, as checked"
        greedy = outputs_of(outputs, best)
        if allowed is None:
            uniform = outputs.mean(-2)
        else:
            # The mask of a terminal state may allow nothing.
            num_allowed = allowed.sum(-1, keepdim=True).clamp(min=1)
            weights = (allowed / num_allowed).unsqueeze(-1)
            uniform = (weights * outputs).sum(-2)
        return torch.lerp(greedy, uniform, epsilon), target_state
