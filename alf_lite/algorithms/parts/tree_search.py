"""Monte Carlo tree search over B roots at once, in numpy or in torch.

A model says what an action leads to (:class:`Step`), a :class:`Selection` which action
a simulation tries, and :class:`TreeSearch` keeps the trees. What the arrays of the
root are, numpy's or torch's, the trees are too: there is one body for both. States are
nests of either kind.

Values are those of who moves in a node, and the discount of an edge says whose value
comes next: γ, 0 where the episode terminates, -γ where the other player is to move.

    Q(s, a) = r(s, a) + γ(s, a) V(s'),      0 where a was not tried
    G ← r + γ G,  V ← (n V + G) / (n + 1),  n ← n + 1      from the leaf to the root
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.utils.checks import check_positive

Array = Any  # np.ndarray or Tensor
Nest = Any

_TINY = float(np.finfo(np.float32).tiny)
_LOWEST = float(np.finfo(np.float32).min)
_RULED_OUT = -1e8  # logits below belong to illegal actions


class Root(NamedTuple):
    """Where B searches begin."""

    logits: Array  # [B, A] float32, of the prior policy
    value: Array  # [B]
    state: Nest  # [B, ...], of the model


class Step(NamedTuple):
    """What B actions lead to."""

    reward: Array  # [B]
    discount: Array  # [B] in [-1, 1], γ included
    logits: Array  # [B, A], of the prior policy in the next state
    value: Array  # [B], of the next state


# (state, action [B]) → what comes, and the next state
StepFn = Callable[[Nest, Array], tuple[Step, Nest]]


class Tree(NamedTuple):
    """B trees of N nodes, node 0 is the root; the i-th simulation adds node i."""

    num_visits: Array  # [B, N], 0 where a node was not needed
    value: Array  # [B, N], the mean of what simulations have found
    raw_value: Array  # [B, N], the model's
    state: Nest  # [B, N, ...]
    children: Array  # [B, N, A] int64, -1 where there is none
    visits: Array  # [B, N, A]
    q: Array  # [B, N, A]
    logits: Array  # [B, N, A]
    reward: Array  # [B, N, A]
    discount: Array  # [B, N, A]


class Found(NamedTuple):
    """What B searches have found."""

    action: Array  # [B] int64, the best one
    action_weights: Array  # [B, A], the improved policy: the target of a policy loss
    visits: Array  # [B, A] int64, of the actions of the root
    q: Array  # [B, A], 0 where there was no visit
    value: Array  # [B], of the root
    tree: Tree


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
    def at_root(self, nodes: Nodes, plan: RootPlan, simulation: int) -> Array:
        """[B] actions of one simulation, from 0 on."""

    @abc.abstractmethod
    def below(self, nodes: Nodes) -> Array:
        """[M] actions of the next simulation that comes by."""

    @abc.abstractmethod
    def decide(self, nodes: Nodes, plan: RootPlan) -> tuple[Array, Array]:
        """The best action [B], and the improved policy [B, A]."""

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
        check_positive(num_considered_actions=num_considered_actions)
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
        xp, (num_roots, num_actions) = _xp(logits), logits.shape
        logits = _mask(logits, legal)
        limit = min(self._num_considered_actions, num_actions)
        table = np.array(
            [considered_visits(m, num_simulations) for m in range(limit + 1)]
        )
        number = _like(logits, np.full(num_roots, limit))
        if legal is not None:
            number = legal.sum(-1).clip(max=limit)
        considered = _like(logits, table)[number]
        noise = xp.zeros_like(logits) if noise is None else noise
        return RootPlan(logits, legal, noise, considered)

    def at_root(self, nodes: Nodes, plan: RootPlan, simulation: int) -> Array:
        assert plan.considered is not None
        considered = plan.considered[:, simulation, None]
        return self._best_considered(nodes, plan, considered, self._sigma(nodes))

    def below(self, nodes: Nodes) -> Array:
        policy = _softmax(nodes.logits + self._sigma(nodes))
        share = nodes.visits / (1 + nodes.visits.sum(-1, keepdims=True))
        return (policy - share).argmax(-1)

    def decide(self, nodes: Nodes, plan: RootPlan) -> tuple[Array, Array]:
        xp = _xp(nodes.logits)
        sigma = self._sigma(nodes)
        most = xp.amax(nodes.visits, axis=-1, keepdims=True)
        action = self._best_considered(nodes, plan, most, sigma)
        return action, _softmax(nodes.logits + sigma)

    def draw_noise(self, logits: Array) -> Array:
        noise = torch.empty(tuple(logits.shape)).exponential_().log().neg()
        return _like(logits, noise.numpy())

    def _best_considered(
        self, nodes: Nodes, plan: RootPlan, considered: Array, sigma: Array
    ) -> Array:
        """Argmax of g + l + σ among legal actions with so many visits."""
        xp = _xp(sigma)
        logits = nodes.logits - xp.amax(nodes.logits, axis=-1, keepdims=True)
        score = (plan.noise + logits + sigma).clip(min=-1e9)
        score = xp.where(nodes.visits == considered, score, -math.inf)
        if plan.legal is not None:
            score = xp.where(plan.legal, score, -math.inf)
        return score.argmax(-1)

    def _sigma(self, nodes: Nodes) -> Array:
        """[M, A]: σ of the completed Q."""
        xp = _xp(nodes.q)
        is_visited = nodes.visits > 0
        value = nodes.raw_value
        if self._use_mixed_value:
            prior = is_visited * _softmax(nodes.logits).clip(min=_TINY)
            total = prior.sum(-1, keepdims=True).clip(min=_TINY)
            num_visits = nodes.visits.sum(-1, keepdims=True)
            mean_q = (prior / total * nodes.q).sum(-1, keepdims=True)
            value = (value + num_visits * mean_q) / (num_visits + 1)
        q = xp.where(is_visited, nodes.q, value)
        if self._rescale_values:
            q = _rescaled(q, q)
        most = xp.amax(nodes.visits, axis=-1, keepdims=True)
        return (self._maxvisit_init + most) * self._value_scale * q


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
        if not 0 <= dirichlet_fraction <= 1:
            raise ConfigError(
                "PuctSelection: dirichlet_fraction must be between 0 and 1, got "
                f"{dirichlet_fraction}"
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
            logits = _mask(_xp(logits).log(prior.clip(min=_TINY)), legal)
        return RootPlan(logits, legal, noise, None)

    def at_root(self, nodes: Nodes, plan: RootPlan, simulation: int) -> Array:
        return self.below(nodes)

    def below(self, nodes: Nodes) -> Array:
        score = self._score(nodes)
        is_legal = nodes.logits > _RULED_OUT
        return _xp(score).where(is_legal, score, -math.inf).argmax(-1)

    def decide(self, nodes: Nodes, plan: RootPlan) -> tuple[Array, Array]:
        total = nodes.visits.sum(-1, keepdims=True)
        return nodes.visits.argmax(-1), nodes.visits / total

    def draw_noise(self, logits: Array) -> Array:
        alpha = torch.full(tuple(logits.shape), self._alpha)
        return _like(logits, torch._sample_dirichlet(alpha).numpy())

    def _score(self, nodes: Nodes) -> Array:
        xp = _xp(nodes.q)
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


@configurable
class TreeSearch:
    """Searches from B roots side by side, each in a tree of its own.

    Args:
        num_simulations: each adds one node and costs one call of the model on [B].
        select: ``"gumbel"``, ``"puct"``, or a :class:`Selection`.
        max_depth: of a tree, in actions; what is there already is evaluated again. On a
            GPU a limit saves a synchronisation for every level.

    Raises:
        ConfigError: if there is no such selection, or a number is not positive.
    """

    def __init__(
        self,
        num_simulations: int = 50,
        select: str | Selection = "gumbel",
        max_depth: int | None = None,
    ) -> None:
        for name, number in (
            ("num_simulations", num_simulations),
            ("max_depth", 1 if max_depth is None else max_depth),
        ):
            if not isinstance(number, int) or number < 1:
                raise ConfigError(
                    f"TreeSearch: {name} must be at least 1, got {number!r}"
                )
        if isinstance(select, str):
            if select not in _SELECTIONS:
                raise ConfigError(
                    f"TreeSearch: select must be one of {', '.join(_SELECTIONS)}, or a "
                    f"Selection, got {select!r}"
                )
            select = _SELECTIONS[select]()
        self.num_simulations = num_simulations
        self._selection = select
        self._max_depth = max_depth

    def draw_noise(self, logits: Array) -> Array:
        """Noise [B, A] for :meth:`run` in training, from torch's CPU generator."""
        return self._selection.draw_noise(logits)

    def run(
        self,
        root: Root,
        step: StepFn,
        legal: Array | None = None,
        noise: Array | None = None,
    ) -> Found:
        """Searches.

        Args:
            root: of B searches.
            step: of the model.
            legal: [B, A] bool, at the roots; None allows all. Where none is allowed, as
                at the end of an episode, the action does not matter and all numbers are
                finite.
            noise: [B, A], see :meth:`draw_noise`; None for the best play.

        Raises:
            ValueError: if the model returns NaN or a discount outside of [-1, 1].
        """
        legal = None if legal is None else (legal > 0)
        plan = self._selection.plan(root.logits, legal, noise, self.num_simulations)
        trees = _Trees(root, plan.logits, self.num_simulations)
        with np.errstate(invalid="ignore"):  # what is not finite is said below
            for simulation in range(self.num_simulations):
                nodes = trees.nodes(trees.roots)
                action = self._selection.at_root(nodes, plan, simulation)
                path = trees.descend(action, self._max_depth)
                changed = trees.expand(path, simulation, step)
                trees.best[changed] = self._selection.below(trees.nodes(changed))
        tree = trees.result()
        _check_model(tree)
        at_root = trees.nodes(trees.roots)
        action, weights = self._selection.decide(at_root, plan)
        return Found(
            action=action,
            action_weights=weights,
            visits=_as_int(at_root.visits),
            q=at_root.q,
            value=at_root.value[:, 0],
            tree=tree,
        )


_SELECTIONS: dict[str, Callable[[], Selection]] = {
    "gumbel": GumbelSelection,
    "puct": PuctSelection,
}


class _Path(NamedTuple):
    """The edges of one simulation, and where it ends."""

    nodes: list[Array]  # by level, [B]; the spare node where the path is shorter
    edges: list[Array]  # the numbers of the actions there, node · A + action
    last_node: Array  # [B]
    last_action: Array  # [B]


class _Trees:
    """The nodes of B trees one after the other, and a spare one.

    The spare node is the child of itself and of all edges without a child. Its edges
    have reward 0 and discount 1, so that paths of different lengths are backed up
    together, without a mask and with shapes that do not depend on data.
    """

    def __init__(self, root: Root, logits: Array, num_simulations: int) -> None:
        self._xp = xp = _xp(logits)
        num_roots, self._num_actions = logits.shape
        self._num_nodes = num_nodes = num_simulations + 1
        self._spare = spare = num_roots * num_nodes
        self.roots = _like(logits, np.arange(num_roots) * num_nodes)
        self._cpu = xp is np or logits.device.type == "cpu"

        def full(number: float, *shape: int) -> Array:
            return _like(logits, np.full((spare + 1, *shape), number, np.float32))

        edges = (self._num_actions,)
        self._num_visits, self._value, self._raw_value = full(0), full(0), full(0)
        self._logits, self._q, self._visits = (full(0, *edges) for _ in range(3))
        self._reward, self._discount = full(0, *edges), full(0, *edges)
        self._discount[spare] = 1
        self._children = _like(logits, np.full((spare + 1, *edges), spare))
        self.best = _like(logits, np.zeros(spare + 1, np.int64))  # by node
        # The same numbers, by edge
        self._edge_q, self._edge_visits = self._q.reshape(-1), self._visits.reshape(-1)
        self._edge_reward = self._reward.reshape(-1)
        self._edge_discount = self._discount.reshape(-1)
        self._edge_child = self._children.reshape(-1)
        self._state = nest.map_structure(
            lambda leaf: _empty_like(leaf, spare + 1), root.state
        )
        self._write(self.roots, logits, root.value, root.state)
        self._value[self.roots] = root.value
        self._num_visits[self.roots] = 1

    def nodes(self, at: Array) -> Nodes:
        """What is known of the nodes ``at`` [M]."""
        return Nodes(
            self._logits[at],
            self._visits[at],
            self._q[at],
            self._raw_value[at][:, None],
            self._value[at][:, None],
            self._num_visits[at][:, None],
        )

    def descend(self, action: Array, max_depth: int | None) -> _Path:
        """From the roots by ``action`` [B] and the best actions to where no node is."""
        xp, node = self._xp, self.roots
        path = _Path([], [], node, action)
        for _ in range(max_depth or self._num_nodes):
            edge = node * self._num_actions + action
            path.nodes.append(node)
            path.edges.append(edge)
            arrived = node != self._spare
            path = path._replace(
                last_node=xp.where(arrived, node, path.last_node),
                last_action=xp.where(arrived, action, path.last_action),
            )
            node = self._edge_child[edge]
            if (self._cpu or not max_depth) and bool((node == self._spare).all()):
                break
            action = self.best[node]
        return path

    def expand(self, path: _Path, simulation: int, step: StepFn) -> Array:
        """Adds what ``step`` says at the end of the path, and backs it up.

        Returns:
            [M], the nodes below the root that have changed.
        """
        xp = self._xp
        state = nest.map_structure(lambda x: _take(x, path.last_node), self._state)
        result, state = step(state, path.last_action)
        edge = path.last_node * self._num_actions + path.last_action
        leaf = self._edge_child[edge]
        leaf = xp.where(leaf == self._spare, self.roots + simulation + 1, leaf)
        self._write(leaf, result.logits, result.value, state)
        self._edge_child[edge] = leaf
        self._edge_reward[edge] = result.reward
        self._edge_discount[edge] = result.discount
        self._value[leaf] = result.value
        self._num_visits[leaf] += 1
        nodes, edges = xp.concatenate(path.nodes), xp.concatenate(path.edges)
        shape = (len(path.nodes), -1)
        reward = self._edge_reward[edges].reshape(shape)
        discount = self._edge_discount[edges].reshape(shape)
        returns = [result.value]
        for level in reversed(range(len(path.nodes))):
            returns.append(reward[level] + discount[level] * returns[-1])
        found = xp.concatenate(returns[:0:-1])
        n = self._num_visits[nodes]
        self._value[nodes] = (self._value[nodes] * n + found) / (n + 1)
        self._num_visits[nodes] = n + 1
        self._edge_visits[edges] += 1
        next_value = self._value[self._edge_child[edges]]
        self._edge_q[edges] = (
            self._edge_reward[edges] + self._edge_discount[edges] * next_value
        )
        return xp.concatenate([nodes[len(self.roots) :], leaf])

    def result(self) -> Tree:
        """Everything, without the spare node."""
        xp, num_roots = self._xp, len(self.roots)
        first = self.roots[:, None, None]

        def by_tree(leaf: Array) -> Array:
            return leaf[:-1].reshape(num_roots, self._num_nodes, *leaf.shape[1:])

        child = by_tree(self._children)
        return Tree(
            num_visits=_as_int(by_tree(self._num_visits)),
            value=by_tree(self._value),
            raw_value=by_tree(self._raw_value),
            state=nest.map_structure(by_tree, self._state),
            children=xp.where(child == self._spare, -1, child - first),
            visits=_as_int(by_tree(self._visits)),
            q=by_tree(self._q),
            logits=by_tree(self._logits),
            reward=by_tree(self._reward),
            discount=by_tree(self._discount),
        )

    def _write(self, at: Array, logits: Array, value: Array, state: Nest) -> None:
        self._logits[at] = logits
        self._raw_value[at] = value
        nest.map_structure(lambda all_, x: _put(all_, at, x), self._state, state)


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


def _check_model(tree: Tree) -> None:
    """Once for a search, so that a GPU is waited for only once."""
    xp = _xp(tree.value)
    discount = tree.discount
    is_fine = {
        f"a {name} that is NaN or infinite": xp.isfinite(getattr(tree, name)).all()
        for name in ("reward", "raw_value", "discount")
    }
    is_fine["logits that are NaN"] = ~xp.isnan(tree.logits).any()
    is_fine["a discount outside of [-1, 1]"] = (abs(discount) <= 1).all()
    if bool(xp.stack(list(is_fine.values())).all()):
        return
    wrong = next(name for name, fine in is_fine.items() if not bool(fine))
    raise ValueError(
        f"TreeSearch: the model returned {wrong.replace('raw_', '')}. Discounts have γ "
        "in them, 0 where an episode terminates and -γ where the other player is next."
    )


def _xp(array: Array) -> Any:
    """The module whose functions take ``array``."""
    return torch if isinstance(array, Tensor) else np


def _like(array: Array, values: np.ndarray) -> Array:
    """``values``, as numpy's or as a tensor on the device of ``array``."""
    if isinstance(array, Tensor):
        return torch.from_numpy(values).to(array.device)
    return values


def _as_int(array: Array) -> Array:
    return array.long() if isinstance(array, Tensor) else array.astype(np.int64)


def _softmax(logits: Array) -> Array:
    xp = _xp(logits)
    shares = xp.exp(logits - xp.amax(logits, axis=-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def _mask(logits: Array, legal: Array | None) -> Array:
    """Finite, so that a softmax is even where nothing is legal."""
    xp = _xp(logits)
    logits = logits - xp.amax(logits, axis=-1, keepdims=True)
    return logits if legal is None else xp.where(legal, logits, _LOWEST)


def _rescaled(values: Array, between: Array) -> Array:
    """``values`` [M, A], where the smallest of ``between`` is 0 and the largest 1."""
    xp = _xp(values)
    low = xp.amin(between, axis=-1, keepdims=True)
    high = xp.amax(between, axis=-1, keepdims=True)
    return (values - low) / (high - low).clip(min=1e-8)


# A state may be numpy's in a tree of tensors, and the other way round


def _empty_like(leaf: Array, number: int) -> Array:
    shape = (number, *leaf.shape[1:])
    if isinstance(leaf, Tensor):
        return leaf.new_zeros(shape)
    return np.zeros(shape, leaf.dtype)


def _index(leaf: Array, at: Array) -> Array:
    if isinstance(leaf, Tensor):
        return torch.as_tensor(at, device=leaf.device)
    return at.numpy(force=True) if isinstance(at, Tensor) else at


def _take(leaf: Array, at: Array) -> Array:
    return leaf[_index(leaf, at)]


def _put(leaf: Array, at: Array, value: Array) -> None:
    leaf[_index(leaf, at)] = value
