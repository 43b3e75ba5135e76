"""What Q-learning may keep beside its steps: values that acted, returns that followed.

The values of the network that acted give new steps the priority |δ| they had then, as
in Horgan et al. ("Ape-X"), arXiv:1803.00933. The return of the rest of the episode is a
lower bound of the best return, as in Tang, "Self-Imitation Learning via Generalized
Lower Bound Q-learning", arXiv:2006.07442, here of whole episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.return_heads import ReturnHead, mean_of_components
from alf_lite.data_structures import TimeStep
from alf_lite.distributions.action_vectors import DiscreteActions
from alf_lite.distributions.exploration import masked_argmax
from alf_lite.errors import ConfigError
from alf_lite.utils.tensor_utils import flatten_outer, select

if TYPE_CHECKING:
    from alf_lite.algorithms.rl_algorithm import RLAlgorithm


class ActingValues(NamedTuple):
    """What the replay buffer keeps if new steps get priorities of their own."""

    q: Tensor  # [B, C, A] Q(s_t, ·) of the network that acted
    value: Tensor  # [B, C] the largest that is allowed

    @classmethod
    def of(cls, q: Tensor, allowed: Tensor | None) -> ActingValues:
        """From Q(s_t, ·) [B, C, A] and which of it is allowed."""
        return cls(q, select(q, masked_argmax(q, allowed)))


def error_of_acting(
    steps: TimeStep,
    values: ActingValues,
    actions: DiscreteActions,
    head: ReturnHead,
    *,
    n_step: int,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """|δ_t| of n steps with max_a Q(s_{t+n}, a), both of the network that acted.

    Args:
        steps: [B, T, ...], whose rewards are numbers.
        values: [B, T, ...], stored with them.
        actions: what the values are of.
        head: what the values stand for.
        n_step: n.
        gamma: γ.

    Returns:
        [T-n, B], the mean of the components, and the step types [T-n, B].
    """
    # Values in place of the observations that they are of.
    steps = steps._replace(observation=values.value)
    steps, later = transitions.to_transitions(steps, n_step, gamma)
    shape = later.discount.shape  # [B, T-n]
    index = actions.to_index(flatten_outer(later.action)).unflatten(0, shape)
    q = select(values.q[:, : shape[1]], index)  # [B, T-n, C]
    target = later.reward.unsqueeze(-1)
    target = target + later.discount.unsqueeze(-1) * later.next_observation
    td_error = mean_of_components(head.td_error(q, target).abs())
    return td_error.T, steps.step_type.T


def bounded(
    reward: Tensor, discount: Tensor, next_value: Tensor, episode_return: Tensor
) -> tuple[Tensor, Tensor]:
    """G and Γ of targets that are not below the return that followed.

    Args:
        reward: [T, B, C or 1] G.
        discount: [T, B, 1] Γ.
        next_value: [T, B, C] what is bootstrapped from.
        episode_return: [T, B] of the rest of the episode.

    Returns:
        [T, B, C] each; a bound that holds leaves nothing to bootstrap from.
    """
    target = reward + discount * next_value
    bound = episode_return.unsqueeze(-1).expand_as(target)
    is_bound = bound > target
    return torch.where(is_bound, bound, reward), torch.where(is_bound, 0.0, discount)


def check(algorithm: RLAlgorithm, head: ReturnHead) -> None:
    """Refuses options that do nothing, or contradict each other.

    Raises:
        ConfigError: says which.
    """
    config, name = algorithm.config, algorithm.name
    if algorithm.uses_episode_returns and head.num_outputs != 1:
        raise ConfigError(
            f"{name}.lower_bound_targets bounds expected returns, but return_model "
            f"is {type(head).__name__}, a distribution of them: take "
            "ExpectedReturnHead or RescaledReturnHead, or leave one of both out"
        )
    if algorithm.uses_episode_returns and algorithm.has_multidim_reward:
        raise ConfigError(
            f"{name}.lower_bound_targets needs a reward of one dimension, got "
            f"{algorithm.reward_spec}"
        )
    if algorithm.prioritizes_new_steps and config and not config.priority_replay:
        raise ConfigError(
            f"{name}.prioritize_new_steps has no effect without "
            "TrainerConfig.priority_replay: set it, or leave this out"
        )
    if algorithm.prioritizes_new_steps and config and config.offline_sources:
        raise ConfigError(
            f"{name}.prioritize_new_steps keeps the values that acted, which the steps "
            "of TrainerConfig.offline_buffer_dir have not: leave one of both out"
        )
