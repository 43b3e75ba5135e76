"""Which action a simulation of a tree search tries: Gumbel MuZero's way, and PUCT.

There is one body for arrays of numpy and of torch. :class:`TreeSearch` has the trees.
"""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.utils.checks import (
    check_count,
    check_not_negative,
    check_positive,
    check_unit_interval,
    check_unused,
)

Array = Any  # np.ndarray or Tensor

_TINY = float(np.finfo(np.float32).tiny)
_LOWEST = float(np.finfo(np.float32).min)
_RULED_OUT = -1e8  # logits below belong to illegal actions


class Nodes(NamedTuple):
    """What a :class:`Selection` knows of M nodes."""

    logits: Array  # [M, A]
    visits: Array  # [M, A] float32
    q: Array  # [M, A]
    raw_value: Array  # [M, 1]
    value: Array  # [M, 1]
    num_visits: Array  # [M, 1] float32


class RootPlan(NamedTuple):
    """What a search keeps in mind at its roots."""

    logits: Array  # [B, A] of the prior, as the tree has it
    legal: Array | None  # [B, A] bool
    noise: Array | None  # [B, A]
    considered: Array | None  # [B, num_simulations], see GumbelSelection


class Decision(NamedTuple):
    """What comes of a search at its roots."""

    action: Array  # [B] the best one
    policy: Array  # [B, A] the improved policy π'
    value: Array  # [B] Σ_a π'(a) Q(a)


class Selection(abc.ABC):
    """Which action a simulation tries, and which one is the best in the end.

    What it does below the root may depend on the node alone: it is kept until the next
    simulation that comes through the node.
    """

    @abc.abstractmethod
    def plan(
        self,
        logits: Array,
        legal: Array | None,
        noise: Array | None,
        num_simulations: int,
    ) -> RootPlan:
        """Applies mask and noise to the prior of the roots."""

    @abc.abstractmethod
    def score(self, nodes: Nodes) -> Array:
        """[M, A], what is known of the actions of nodes; for those that follow."""

    def at_root(
        self, nodes: Nodes, score: Array, plan: RootPlan, simulation: int
    ) -> Array:
        """[B] actions of one simulation, from 0 on; as below the root."""
        return self.below(nodes, score)

    @abc.abstractmethod
    def below(self, nodes: Nodes, score: Array) -> Array:
        """[M] actions of the next simulation that comes by."""

    @abc.abstractmethod
    def decide(self, nodes: Nodes, score: Array, plan: RootPlan) -> Decision:
        """What is best, in the end."""

    @abc.abstractmethod
    def draw_noise(self, logits: Array) -> Array:
        """[B, A] like ``logits``, for training, from torch's generator."""


@configurable
class GumbelSelection(Selection):
    """Gumbel MuZero (Danihelka et al. 2022, "Policy improvement by planning").

    At the root, the actions that are best by g + l, with Gumbel noise g and logits l,
    are tried in turn; sequential halving keeps the better half of them by g + l + σ(Q).
    Below it, visits follow the improved policy

        π' = softmax(l + σ(Q)),    σ(q) = (maxvisit_init + max_b N(b)) value_scale q

    by the largest π'(a) - N(a) / (1 + ΣN). Q of an action that was not tried is the
    mixed value (v + ΣN Σ_tried π Q / Σ_tried π) / (ΣN + 1); all Q of a node are
    rescaled to [0, 1]. Without noise it is deterministic.

    Args:
        num_considered_actions: tried at the root, at most.
        value_scale: see above.
        maxvisit_init: see above.
        rescale_values: whether to rescale; if not, values should be in [0, 1] or so.
        use_mixed_value: False: what was not tried has the model's value of the node.
    """

    def __init__(
        self,
        num_considered_actions: int = 16,
        value_scale: float = 0.1,
        maxvisit_init: float = 50.0,
        rescale_values: bool = True,
        use_mixed_value: bool = True,
    ) -> None:
        check_count(num_considered_actions=num_considered_actions)
        check_not_negative(value_scale=value_scale, maxvisit_init=maxvisit_init)
        if not value_scale:
            check_unused(
                GumbelSelection,
                "value_scale is 0",
                maxvisit_init=maxvisit_init,
                rescale_values=rescale_values,
            )
        self._num_considered_actions = num_considered_actions
        self._value_scale = value_scale
        self._maxvisit_init = maxvisit_init
        self._rescale_values = rescale_values
        self._use_mixed_value = use_mixed_value

    def plan(
        self,
        logits: Array,
        legal: Array | None,
        noise: Array | None,
        num_simulations: int,
    ) -> RootPlan:
        xp, (num_roots, num_actions) = module_of(logits), logits.shape
        logits = _mask(logits, legal)
        limit = min(self._num_considered_actions, num_actions)
        table = np.array(
            [considered_visits(m, num_simulations) for m in range(limit + 1)]
        )
        number = like(logits, np.full(num_roots, limit))
        if legal is not None:
            number = legal.sum(-1).clip(max=limit)
        considered = like(logits, table)[number]
        noise = xp.zeros_like(logits) if noise is None else noise
        return RootPlan(logits, legal, noise, considered)

    def at_root(
        self, nodes: Nodes, score: Array, plan: RootPlan, simulation: int
    ) -> Array:
        assert plan.considered is not None
        considered = plan.considered[:, simulation, None]
        return self._best_considered(nodes, plan, considered, score)

    def below(self, nodes: Nodes, score: Array) -> Array:
        policy = _softmax(nodes.logits + score)
        share = nodes.visits / (1 + nodes.visits.sum(-1, keepdims=True))
        return (policy - share).argmax(-1)

    def decide(self, nodes: Nodes, score: Array, plan: RootPlan) -> Decision:
        most = module_of(score).amax(nodes.visits, axis=-1, keepdims=True)
        action = self._best_considered(nodes, plan, most, score)
        policy = _softmax(nodes.logits + score)
        return Decision(action, policy, (policy * self._completed_q(nodes)).sum(-1))

    def draw_noise(self, logits: Array) -> Array:
        noise = torch.empty(tuple(logits.shape)).exponential_().log().neg()
        return like(logits, noise.numpy())

    def _best_considered(
        self, nodes: Nodes, plan: RootPlan, considered: Array, sigma: Array
    ) -> Array:
        """Argmax of g + l + σ among legal actions with so many visits."""
        xp = module_of(sigma)
        logits = nodes.logits - xp.amax(nodes.logits, axis=-1, keepdims=True)
        score = (plan.noise + logits + sigma).clip(min=-1e9)
        score = xp.where(nodes.visits == considered, score, -math.inf)
        if plan.legal is not None:
            score = xp.where(plan.legal, score, -math.inf)
        return score.argmax(-1)

    def score(self, nodes: Nodes) -> Array:
        """σ of the completed Q."""
        q = self._completed_q(nodes)
        if self._rescale_values:
            q = _rescaled(q, q)
        most = module_of(q).amax(nodes.visits, axis=-1, keepdims=True)
        return (self._maxvisit_init + most) * self._value_scale * q

    def _completed_q(self, nodes: Nodes) -> Array:
        """[M, A]: Q, and what stands for it where there was no visit."""
        is_visited = nodes.visits > 0
        value = nodes.raw_value
        if self._use_mixed_value:
            prior = is_visited * _softmax(nodes.logits).clip(min=_TINY)
            total = prior.sum(-1, keepdims=True).clip(min=_TINY)
            num_visits = nodes.visits.sum(-1, keepdims=True)
            mean_q = (prior / total * nodes.q).sum(-1, keepdims=True)
            value = (value + num_visits * mean_q) / (num_visits + 1)
        return module_of(nodes.q).where(is_visited, nodes.q, value)


@configurable
class PuctSelection(Selection):
    """PUCT, of AlphaZero and MuZero (Schrittwieser et al. 2020, appendix B).

        argmax_a  Q̄(a) + √n (c_init + log((n + c_base + 1) / c_base)) π(a) / (N(a) + 1)

    n counts the visits of the node. Q̄ is Q rescaled to [0, 1] between the smallest and
    the largest value of node and tried actions, which is mctx's way; the paper takes
    those of the whole tree. What was not tried has 0. The best action is the most
    visited one, and the improved policy the shares of the visits.

    Args:
        c_init: see above.
        c_base: see above.
        value_range: Q is rescaled between these two instead.
        dirichlet_fraction: of the noise in the prior of the roots.
        dirichlet_alpha: of the noise; a rule of thumb is 10 / number of legal actions.
    """

    def __init__(
        self,
        c_init: float = 1.25,
        c_base: float = 19652.0,
        value_range: tuple[float, float] | None = None,
        dirichlet_fraction: float = 0.25,
        dirichlet_alpha: float = 0.3,
    ) -> None:
        check_positive(c_base=c_base, dirichlet_alpha=dirichlet_alpha)
        check_unit_interval(dirichlet_fraction=dirichlet_fraction)
        check_not_negative(c_init=c_init)
        if not dirichlet_fraction:
            reason = "dirichlet_fraction is 0"
            check_unused(type(self), reason, dirichlet_alpha=dirichlet_alpha)
        if value_range is not None and not value_range[0] < value_range[1]:
            raise ValueError(
                f"value_range: expected the smaller value first, got {value_range}"
            )
        self._c_init = c_init
        self._c_base = c_base
        self._value_range = value_range
        self._fraction = dirichlet_fraction
        self._alpha = dirichlet_alpha

    def plan(
        self,
        logits: Array,
        legal: Array | None,
        noise: Array | None,
        num_simulations: int,
    ) -> RootPlan:
        logits = _mask(logits, legal)
        if noise is not None:
            # Noise over legal actions only, so that none of it is lost
            noise = noise if legal is None else noise * legal
            noise = noise / noise.sum(-1, keepdims=True).clip(min=_TINY)
            prior = (1 - self._fraction) * _softmax(logits) + self._fraction * noise
            logits = _mask(module_of(logits).log(prior.clip(min=_TINY)), legal)
        return RootPlan(logits, legal, noise, None)

    def below(self, nodes: Nodes, score: Array) -> Array:
        is_legal = nodes.logits > _RULED_OUT
        return module_of(score).where(is_legal, score, -math.inf).argmax(-1)

    def decide(self, nodes: Nodes, score: Array, plan: RootPlan) -> Decision:
        policy = nodes.visits / nodes.visits.sum(-1, keepdims=True)
        action = nodes.visits.argmax(-1)
        return Decision(action, policy, (policy * nodes.q).sum(-1))

    def draw_noise(self, logits: Array) -> Array:
        alpha = torch.full(tuple(logits.shape), self._alpha)
        return like(logits, torch._sample_dirichlet(alpha).numpy())

    def score(self, nodes: Nodes) -> Array:
        xp = module_of(nodes.q)
        is_visited = nodes.visits > 0
        if self._value_range is None:
            known = xp.where(is_visited, nodes.q, nodes.value)
            # The value of the node is one of them, too, if all were tried
            known = xp.concatenate([known, nodes.value], -1)
            quality = _rescaled(nodes.q, known)
        else:
            low, high = self._value_range
            quality = (nodes.q - low) / (high - low)
        quality = xp.where(is_visited, quality, 0.0)
        n = nodes.num_visits
        weight = self._c_init + xp.log((n + self._c_base + 1) / self._c_base)
        prior = _softmax(nodes.logits)
        return quality + xp.sqrt(n) * weight * prior / (nodes.visits + 1)


def considered_visits(num_considered: int, num_simulations: int) -> list[int]:
    """How many visits the action has that a simulation takes, in sequential halving.

    All ``num_considered`` actions are visited equally often, then the better half of
    them, and so on to the last two.
    """
    if num_considered <= 1:
        return list(range(num_simulations))
    num_rounds = math.ceil(math.log2(num_considered))
    visits, number = [0] * num_considered, num_considered
    sequence: list[int] = []
    while len(sequence) < num_simulations:
        for _ in range(max(1, num_simulations // (num_rounds * number))):
            sequence += visits[:number]
            visits[:number] = [count + 1 for count in visits[:number]]
        number = max(2, number // 2)
    return sequence[:num_simulations]


def module_of(array: Array) -> Any:
    """The module whose functions take ``array``."""
    return torch if isinstance(array, Tensor) else np


def like(array: Array, values: np.ndarray) -> Array:
    """``values``, as numpy's or as a tensor on the device of ``array``."""
    if isinstance(array, Tensor):
        return torch.from_numpy(values).to(array.device)
    return values


def _softmax(logits: Array) -> Array:
    xp = module_of(logits)
    shares = xp.exp(logits - xp.amax(logits, axis=-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def _mask(logits: Array, legal: Array | None) -> Array:
    """Finite, so that a softmax is even where nothing is legal."""
    xp = module_of(logits)
    logits = logits - xp.amax(logits, axis=-1, keepdims=True)
    return logits if legal is None else xp.where(legal, logits, _LOWEST)


def _rescaled(values: Array, between: Array) -> Array:
    """``values`` [M, A], where the smallest of ``between`` is 0 and the largest 1."""
    xp = module_of(values)
    low = xp.amin(between, axis=-1, keepdims=True)
    high = xp.amax(between, axis=-1, keepdims=True)
    return (values - low) / (high - low).clip(min=1e-8)
