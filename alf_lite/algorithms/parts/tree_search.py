"""Monte Carlo tree search over B roots at once, in numpy or in torch.

A model says what an action leads to (:class:`Step`), a :class:`Selection` which action
a simulation tries, and :class:`TreeSearch` keeps the trees. What the arrays of the
root are, numpy's or torch's, the trees and states are too: one body serves both. States
are nests of them.

Values are those of who moves in a node, and the discount of an edge says whose value
comes next: γ, 0 where the episode terminates, -γ where the other player is to move.

    Q(s, a) = r(s, a) + γ(s, a) V(s'),      0 where a was not tried
    G ← r + γ G,  V ← (n V + G) / (n + 1),  n ← n + 1      from the leaf to the root
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts.tree_selections import (
    Array,
    GumbelSelection,
    Nodes,
    PuctSelection,
    Selection,
    like,
    module_of,
)
from alf_lite.config import configurable
from alf_lite.utils.checks import check_choice, check_count

Nest = Any


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


class SearchModel(Protocol):
    """What is searched in."""

    def root(self, observation: Nest) -> Root:
        """Where searches begin, of observations [B, ...]."""

    def step(self, state: Nest, action: Array) -> tuple[Step, Nest]:
        """What actions [B] lead to, and the next states."""


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
    value: Array  # [B], of the root: the mean of what all simulations have found
    policy_value: Array  # [B], Σ π' Q: what a value should be fitted to
    tree: Tree

    def choose(self, epsilon: float = 0.0) -> Tensor:
        """The best actions [B]; a share ε of them is drawn by the improved policy."""
        action = torch.as_tensor(self.action)
        if epsilon <= 0:
            return action
        weights = torch.as_tensor(self.action_weights)
        drawn = torch.multinomial(weights, 1).squeeze(-1)
        is_drawn = torch.rand(len(action), device=action.device) < epsilon
        return torch.where(is_drawn, drawn, action)


@configurable
class TreeSearch:
    """Searches from B roots side by side, each in a tree of its own.

    Args:
        num_simulations: each adds one node and costs one call of the model on [B].
        select: ``"gumbel"``, ``"puct"``, or a :class:`Selection`.
        max_depth: of a tree, in actions; what is there already is evaluated again. On a
            GPU a limit saves a synchronisation for every level.

    Raises:
        ValueError: if there is no such selection, or a number is not positive.
    """

    draws_on_host = True  # its noise, so that no graph can

    def __init__(
        self,
        num_simulations: int = 50,
        select: str | Selection = "gumbel",
        max_depth: int | None = None,
    ) -> None:
        check_count(num_simulations=num_simulations, max_depth=max_depth)
        if isinstance(select, str):
            check_choice(Literal["gumbel", "puct"], select=select)
            select = GumbelSelection() if select == "gumbel" else PuctSelection()
        self.num_simulations = num_simulations
        self._selection = select
        self._max_depth = max_depth

    def draw_noise(self, logits: Array) -> Array:
        """Noise [B, A] for :meth:`run` in training, from torch's CPU generator."""
        return self._selection.draw_noise(logits)

    def find(
        self,
        model: SearchModel,
        observation: Nest,
        mask: Tensor | None,
        *,
        with_noise: bool,
    ) -> Found:
        """Searches from observations [B, ...].

        Args:
            model: to search in.
            observation: for the model.
            mask: [B, A] bool, the legal actions; None allows all.
            with_noise: as it is drawn in training.
        """
        root = model.root(observation)
        noise = self.draw_noise(root.logits) if with_noise else None
        legal: Array | None = mask
        if mask is not None and not isinstance(root.logits, Tensor):
            legal = mask.numpy(force=True)
        return self.run(root, model.step, legal, noise)

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
        at_root = trees.nodes(trees.roots)
        score = self._selection.score(at_root)
        num_roots = len(score)
        with np.errstate(invalid="ignore"):  # what is not finite is said below
            for simulation in range(self.num_simulations):
                action = self._selection.at_root(at_root, score, plan, simulation)
                path = trees.descend(action, self._max_depth)
                changed = trees.expand(path, simulation, step)
                nodes = trees.nodes(changed)
                score = self._selection.score(nodes)
                trees.best[changed] = self._selection.below(nodes, score)
                # Those of the roots come first
                at_root = Nodes(*[array[:num_roots] for array in nodes])
                score = score[:num_roots]
        tree = trees.result()
        _check_model(tree)
        decision = self._selection.decide(at_root, score, plan)
        return Found(
            action=decision.action,
            action_weights=decision.policy,
            visits=_as_int(at_root.visits),
            q=at_root.q,
            value=at_root.value[:, 0],
            policy_value=decision.value,
            tree=tree,
        )


class _Edges(NamedTuple):
    """Those of a :class:`Tree`, by node · A + action."""

    child: Array
    visits: Array
    q: Array
    reward: Array
    discount: Array


class _Path(NamedTuple):
    """The edges of one simulation, and where it ends."""

    nodes: list[Array]  # by level, [B]; the spare node where the path is shorter
    edges: list[Array]  # the numbers of the actions there
    last_node: Array  # [B]
    last_action: Array  # [B]


class _Trees:
    """The nodes of B trees one after the other, and a spare one.

    The spare node is the child of itself and of all edges without a child. Its edges
    have reward 0 and discount 1, so that paths of different lengths are backed up
    together, without a mask and with shapes that do not depend on data.
    """

    def __init__(self, root: Root, logits: Array, num_simulations: int) -> None:
        self._xp = xp = module_of(logits)
        num_roots, num_actions = logits.shape
        self._num_nodes = num_nodes = num_simulations + 1
        self._spare = spare = num_roots * num_nodes
        self.roots = like(logits, np.arange(num_roots) * num_nodes)
        self._cpu = xp is np or logits.device.type == "cpu"

        def full(number: float, *shape: int) -> Array:
            return like(logits, np.full((spare + 1, *shape), number, np.float32))

        self.best = like(logits, np.zeros(spare + 1, np.int64))  # by node
        num_visits, value, raw = (full(0) for _ in range(3))
        visits, q, prior, reward, discount = (full(0, num_actions) for _ in range(5))
        discount[spare] = 1
        children = like(logits, np.full((spare + 1, num_actions), spare))
        state = nest.map_structure(lambda leaf: leaf[self.best], root.state)
        self._all = Tree(
            num_visits, value, raw, state, children, visits, q, prior, reward, discount
        )
        # The same numbers, by edge
        self._edges = _Edges(
            *[x.reshape(-1) for x in (children, visits, q, reward, discount)]
        )
        self._add(self.roots, logits, root.value, root.state)

    def nodes(self, at: Array) -> Nodes:
        """What is known of the nodes ``at`` [M]."""
        tree = self._all
        return Nodes(
            *[array[at] for array in (tree.logits, tree.visits, tree.q)],
            *[x[at][:, None] for x in (tree.raw_value, tree.value, tree.num_visits)],
        )

    def descend(self, action: Array, max_depth: int | None) -> _Path:
        """From the roots by ``action`` [B] and the best actions to where no node is."""
        xp, node = self._xp, self.roots
        path = _Path([], [], node, action)
        for _ in range(max_depth or self._num_nodes):
            edge = self._edge(node, action)
            path.nodes.append(node)
            path.edges.append(edge)
            arrived = node != self._spare
            path = path._replace(
                last_node=xp.where(arrived, node, path.last_node),
                last_action=xp.where(arrived, action, path.last_action),
            )
            node = self._edges.child[edge]
            if (self._cpu or not max_depth) and bool((node == self._spare).all()):
                break
            action = self.best[node]
        return path

    def expand(self, path: _Path, simulation: int, step: StepFn) -> Array:
        """Adds what ``step`` says at the end of the path, and backs it up.

        Returns:
            [M], the nodes that have changed, the roots before all others.
        """
        xp, tree, known = self._xp, self._all, self._edges
        state = nest.map_structure(lambda leaf: leaf[path.last_node], tree.state)
        result, state = step(state, path.last_action)
        edge = self._edge(path.last_node, path.last_action)
        leaf = known.child[edge]
        leaf = xp.where(leaf == self._spare, self.roots + simulation + 1, leaf)
        self._add(leaf, result.logits, result.value, state)
        known.child[edge] = leaf
        known.reward[edge] = result.reward
        known.discount[edge] = result.discount
        nodes, edges = xp.concatenate(path.nodes), xp.concatenate(path.edges)
        shape = (len(path.nodes), -1)
        reward, discount = known.reward[edges], known.discount[edges]
        rewards, discounts = reward.reshape(shape), discount.reshape(shape)
        returns = [result.value]
        for level in reversed(range(len(path.nodes))):
            returns.append(rewards[level] + discounts[level] * returns[-1])
        found = xp.concatenate(returns[:0:-1])
        n = tree.num_visits[nodes]
        tree.value[nodes] = (tree.value[nodes] * n + found) / (n + 1)
        tree.num_visits[nodes] = n + 1
        known.visits[edges] += 1
        known.q[edges] = reward + discount * tree.value[known.child[edges]]
        return xp.concatenate([nodes, leaf])

    def result(self) -> Tree:
        """Everything, without the spare node."""
        num_roots, first = len(self.roots), self.roots[:, None, None]
        tree = nest.map_structure(
            lambda x: x[:-1].reshape(num_roots, self._num_nodes, *x.shape[1:]),
            self._all,
        )
        is_none = tree.children == self._spare
        return tree._replace(
            num_visits=_as_int(tree.num_visits),
            children=self._xp.where(is_none, -1, tree.children - first),
            visits=_as_int(tree.visits),
        )

    def _edge(self, node: Array, action: Array) -> Array:
        return node * self._all.logits.shape[1] + action

    def _add(self, at: Array, logits: Array, value: Array, state: Nest) -> None:
        """Nodes as the model sees them, which were visited once more."""
        tree = self._all
        tree.logits[at] = logits
        tree.raw_value[at] = value
        tree.value[at] = value
        tree.num_visits[at] += 1
        nest.map_structure(lambda leaf, x: _put(leaf, at, x), tree.state, state)


def _check_model(tree: Tree) -> None:
    """Once for a search, so that a GPU is waited for only once."""
    xp = module_of(tree.value)
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


def _as_int(array: Array) -> Array:
    return array.long() if isinstance(array, Tensor) else array.astype(np.int64)


def _put(leaf: Array, at: Array, value: Array) -> None:
    leaf[at] = value
