"""Searches equal those of mctx, and what must hold of any search does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from alf_lite.algorithms.parts.tree_search import Found, Root, Step, TreeSearch
from alf_lite.algorithms.parts.tree_selections import (
    GumbelSelection,
    PuctSelection,
    considered_visits,
)
from alf_lite.errors import ConfigError

# Computed with mctx 0.0.71 (Apache-2.0): models are tables by state
GOLDEN = json.loads((Path(__file__).parent / "searches_of_mctx.json").read_text())
LIBRARIES = ["numpy", "torch"]


def array(values, library: str):
    values = np.array(values)
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    return values if library == "numpy" else torch.from_numpy(values)


class Tables:
    """A model whose state is a number, and everything a table."""

    def __init__(self, tables: dict, library: str) -> None:
        self.library = library
        self.tables = {key: array(table, library) for key, table in tables.items()}

    def root(self, states) -> Root:
        states = array(states, self.library)
        tables = self.tables
        return Root(tables["prior_logits"][states], tables["value"][states], states)

    def step(self, state, action):
        tables = self.tables
        after = tables["next"][state, action]
        step = Step(
            reward=tables["reward"][state, action],
            discount=tables["discount"][state, action],
            logits=tables["prior_logits"][after],
            value=tables["value"][after],
        )
        return step, after


def random_tables(rng, num_states: int, num_actions: int, **fixed) -> dict:
    shape = (num_states, num_actions)
    return {
        "next": rng.integers(num_states, size=shape),
        "reward": rng.normal(size=shape),
        "discount": rng.choice([0.9, 0.0, -1.0], p=[0.6, 0.1, 0.3], size=shape),
        "prior_logits": rng.normal(size=shape),
        "value": rng.normal(size=num_states),
    } | fixed


def search_of(case: dict) -> TreeSearch:
    config = case["config"]
    selection: GumbelSelection | PuctSelection
    if case["algorithm"] == "gumbel_muzero":
        selection = GumbelSelection(
            config["max_num_considered_actions"], **config["qtransform_kwargs"]
        )
    else:
        between = config["qtransform_kwargs"]
        selection = PuctSelection(value_range=tuple(between.values()) or None)
    return TreeSearch(config["num_simulations"], selection, config["max_depth"])


def run_case(case: dict, library: str, rows=slice(None)) -> Found:
    model = Tables(case["model"], library)
    root = model.root(case["roots"][rows])
    illegal = case["config"]["invalid_actions"]
    legal = None if illegal is None else array(np.array(illegal)[rows] == 0, library)
    noise = None
    if case["algorithm"] == "gumbel_muzero":
        noise = array(case["injected"]["root_gumbel"][rows], library)
    else:
        prior = case["injected"]["root_prior_logits_after_noise_and_mask"]
        root = root._replace(logits=array(prior[rows], library))
    return search_of(case).run(root, model.step, legal, noise)


def parents_and_actions(children) -> tuple[np.ndarray, np.ndarray]:
    parents = np.full(children.shape[:2], -1)
    actions = parents.copy()
    tree, node, action = np.nonzero(children >= 0)
    parents[tree, children[tree, node, action]] = node
    actions[tree, children[tree, node, action]] = action
    return parents, actions


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_searches_equal_those_of_mctx(case, library):
    found = run_case(case, library)
    expected = case["expected"]
    tree = found.tree
    parents, actions = parents_and_actions(np.asarray(tree.children))
    for name, got in {
        "action": found.action,
        "visit_counts": found.visits,
        "node_visits": tree.num_visits,
        "parents": parents,
        "action_from_parent": actions,
    }.items():
        np.testing.assert_array_equal(np.asarray(got), expected[name], name)
    for name, got in {
        "action_weights": found.action_weights,
        "root_value": found.value,
        "root_qvalues": found.q,
        "node_values": tree.value,
    }.items():
        np.testing.assert_allclose(got, expected[name], atol=1e-5, err_msg=name)
    is_used = np.array(expected["node_visits"]) > 0
    states = np.where(is_used, expected["node_states"], 0)
    np.testing.assert_array_equal(np.where(is_used, tree.state, 0), states)


@pytest.mark.parametrize("sizes", GOLDEN["sequence_of_considered_visits"])
def test_sequential_halving(sizes):
    expected = GOLDEN["sequence_of_considered_visits"][sizes]
    assert considered_visits(*map(int, sizes.split(","))) == expected


def search(model, states, select="gumbel", legal=None, noise=None, simulations=20):
    return TreeSearch(simulations, select).run(
        model.root(states), model.step, legal, noise
    )


@pytest.mark.parametrize("select", ["gumbel", "puct"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_row_does_not_depend_on_the_others(library, select):
    rng = np.random.default_rng(0)
    model = Tables(random_tables(rng, 30, 5), library)
    states = rng.integers(30, size=8)
    legal = array(rng.random((8, 5)) < 0.7, library)
    noise = array(rng.gamma(1.0, size=(8, 5)), library)
    together = search(model, states, select, legal, noise)
    alone = [
        search(model, states[[i]], select, legal[[i]], noise[[i]]) for i in range(8)
    ]
    order = rng.permutation(8)
    permuted = search(model, states[order], select, legal[order], noise[order])
    for name in ("action", "visits", "action_weights", "q", "value"):
        got = np.asarray(getattr(together, name))
        rows = np.concatenate([getattr(found, name) for found in alone])
        np.testing.assert_allclose(got, rows, atol=1e-6, err_msg=name)
        moved = np.asarray(getattr(permuted, name))
        np.testing.assert_allclose(got[order], moved, atol=1e-6, err_msg=name)
    visits = np.asarray(together.visits)
    has_legal = np.asarray(legal).any(1)
    assert (visits.sum(1) == 20).all()
    assert (visits[~np.asarray(legal) & has_legal[:, None]] == 0).all()
    np.testing.assert_array_equal(np.asarray(together.tree.num_visits)[:, 0], 21)


@pytest.mark.parametrize("select", ["gumbel", "puct"])
def test_only_legal_actions_are_searched_and_taken(select):
    rng = np.random.default_rng(1)
    model = Tables(random_tables(rng, 30, 5), "numpy")
    legal = np.eye(5, dtype=bool)
    noise = rng.gamma(1.0, size=(5, 5)).astype(np.float32)
    found = search(model, np.arange(5), select, legal, noise)
    np.testing.assert_array_equal(found.action, np.arange(5))
    np.testing.assert_array_equal(found.visits, 20 * legal)
    np.testing.assert_array_equal(found.action_weights, legal)
    nothing = search(model, np.arange(5), select, legal & False, noise)
    for leaf in (nothing.action_weights, nothing.q, nothing.value):
        assert np.isfinite(leaf).all()


def test_dirichlet_noise_goes_to_legal_actions_only():
    logits = np.log(np.array([[0.2, 0.3, 0.5]], np.float32))
    legal = np.array([[True, True, False]])
    noise = np.array([[0.1, 0.3, 0.6]], np.float32)
    plan = PuctSelection(dirichlet_fraction=0.5).plan(logits, legal, noise, 1)
    prior = np.exp(plan.logits) * legal
    prior /= prior.sum()
    np.testing.assert_allclose(
        prior, [[(0.4 + 0.25) / 2, (0.6 + 0.75) / 2, 0]], atol=1e-6
    )


def test_the_improved_policy_is_one():
    # Σ π'Q >= Σ πQ for exact Q: a theorem for any σ that grows
    rng = np.random.default_rng(2)
    tables = random_tables(rng, 2001, 4, discount=np.zeros((2001, 4)))
    model = Tables(tables, "numpy")
    states = np.arange(2000)
    found = search(model, states, simulations=4)  # each action once: Q is exact
    assert (found.visits == 1).all()
    prior = np.exp(tables["prior_logits"][:2000])
    prior /= prior.sum(1, keepdims=True)
    q = tables["reward"][:2000]
    gain = ((found.action_weights - prior) * q).sum(1)
    assert (gain >= -1e-6).all()
    assert gain.mean() > 0.1
    np.testing.assert_array_equal(found.action, (found.action_weights).argmax(1))


def naive_policy_value(found: Found, select: str, row: int) -> float:
    """Σ π' Q, with the mixed value where nothing was tried."""
    visits, q = np.asarray(found.visits)[row], np.asarray(found.q)[row]
    if select == "puct":
        return sum(n * value for n, value in zip(visits, q, strict=True)) / 20
    tree = found.tree
    prior = np.exp(np.asarray(tree.logits)[row, 0].astype(float))
    prior /= prior.sum()
    tried = [a for a in range(len(q)) if visits[a]]
    mean_q = sum(prior[a] * q[a] for a in tried) / sum(prior[a] for a in tried)
    mixed = (np.asarray(tree.raw_value)[row, 0] + 20 * mean_q) / 21
    policy = np.asarray(found.action_weights)[row]
    return sum(p * (q[a] if visits[a] else mixed) for a, p in enumerate(policy))


@pytest.mark.parametrize("select", ["gumbel", "puct"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_value_of_the_improved_policy(library, select):
    model = Tables(random_tables(np.random.default_rng(6), 30, 25), library)
    found = search(model, np.arange(8), select)
    assert (np.asarray(found.visits) == 0).any(1).all()
    expected = [naive_policy_value(found, select, row) for row in range(8)]
    np.testing.assert_allclose(np.asarray(found.policy_value), expected, atol=1e-5)


@pytest.mark.parametrize("select", ["gumbel", "puct"])
def test_a_discount_of_0_ends_the_influence(select):
    rng = np.random.default_rng(3)
    tables = random_tables(rng, 20, 3)
    tables["discount"][:] = 0.9
    tables["next"] = rng.integers(1, 10, size=(20, 3))
    tables["next"][10:] = rng.integers(10, 20, size=(10, 3))
    tables["next"][1] = 10  # on from here all is behind the end
    tables["discount"][1] = 0
    before = search(Tables(tables, "numpy"), np.zeros(1, int), select)
    tables["value"][10:] += 100
    tables["reward"][10:] -= 50
    after = search(Tables(tables, "numpy"), np.zeros(1, int), select)
    assert (before.tree.state >= 10).any()
    np.testing.assert_array_equal(before.visits, after.visits)
    np.testing.assert_allclose(before.q, after.q, atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_states_are_nests(library):
    model = Tables(random_tables(np.random.default_rng(4), 30, 5), library)
    wanted = search(model, np.arange(6))

    def step(state, action):
        result, after = model.step(state["at"], action)
        return result, {"at": after, "empty": ()}

    root = model.root(np.arange(6))
    root = root._replace(state={"at": root.state, "empty": ()})
    found = TreeSearch(20).run(root, step)
    np.testing.assert_array_equal(found.visits, wanted.visits)
    np.testing.assert_array_equal(found.tree.state["at"], wanted.tree.state)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("value", np.nan, "a value that is NaN"),
        ("reward", np.inf, "a reward that is NaN or infinite"),
        ("prior_logits", np.nan, "logits that are NaN"),
        ("discount", -1.5, r"a discount outside of \[-1, 1\]"),
    ],
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_model_must_not_return(library, name, value, message):
    tables = random_tables(np.random.default_rng(5), 30, 5)
    tables[name][12:] = value
    with pytest.raises(ValueError, match=message):
        search(Tables(tables, library), np.arange(6))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_simulations": 0}, "num_simulations must be a positive integer, got 0"),
        ({"max_depth": 0}, "max_depth must be a positive integer, got 0"),
        ({"select": "ucb"}, r"select must be one of \('gumbel', 'puct'\), got 'ucb'"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        TreeSearch(**settings)


@pytest.mark.parametrize(
    ("cls", "settings", "error", "message"),
    [
        (PuctSelection, {"value_range": (1.0, -1.0)}, ValueError, "the smaller value"),
        (PuctSelection, {"c_init": -1.0}, ValueError, "c_init must not be negative"),
        (
            PuctSelection,
            {"dirichlet_fraction": 0.0, "dirichlet_alpha": 0.1},
            ConfigError,
            "dirichlet_alpha has no effect: dirichlet_fraction is 0",
        ),
        (GumbelSelection, {"value_scale": -0.1}, ValueError, "value_scale must not be"),
        (
            GumbelSelection,
            {"value_scale": 0.0, "rescale_values": False},
            ConfigError,
            "rescale_values has no effect: value_scale is 0",
        ),
    ],
)
def test_settings_of_selections_that_make_no_sense(cls, settings, error, message):
    with pytest.raises(error, match=message):
        cls(**settings)


@pytest.mark.parametrize("library", LIBRARIES)
def test_noise_is_repeatable(library):
    logits = array(np.zeros((1000, 4)), library)
    for select, mean in (("gumbel", 0.5772), ("puct", 0.25)):
        draws = []
        for _ in range(2):
            torch.manual_seed(0)
            draws.append(np.asarray(TreeSearch(1, select).draw_noise(logits)))
        np.testing.assert_array_equal(*draws)
        assert draws[0].mean() == pytest.approx(mean, abs=0.05)
