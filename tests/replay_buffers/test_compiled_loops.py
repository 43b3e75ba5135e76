"""Loops that numba compiles do what numpy does, to the bit, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite import nest
from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.fast import statistics
from alf_lite.replay_buffers import compiled_sum_tree, sampling_weights
from alf_lite.replay_buffers.compiled_sum_tree import CompiledSumTree, make_sum_tree
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.sum_tree import SumTree
from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils import compiled_loops

USERS = (compiled_sum_tree, sampling_weights, statistics)
NUM_ENVIRONMENTS, LENGTH = 3, 20


@pytest.fixture(scope="module", params=["interpreted", "compiled"])
def loops(request):
    """Has the loops run, as Python or as numba compiles them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "interpreted":
            patch.setattr(compiled_sum_tree, "has_compiler", lambda: True)
            for module in USERS:
                patch.setattr(module, "compiled", lambda function, _: function)
        else:
            pytest.importorskip("numba", reason="loops are compiled by numba")
        yield request.param


@pytest.fixture
def numpy_alone(monkeypatch):
    """A function after which nothing is a loop."""

    def switch() -> None:
        monkeypatch.setattr(compiled_sum_tree, "has_compiler", lambda: False)
        for module in USERS:
            monkeypatch.setattr(module, "compiled", lambda *_: None)

    return switch


weights = st.floats(0, 1e6, allow_subnormal=False).map(lambda w: w if w > 1e-9 else 0.0)
changes = st.lists(st.tuples(st.integers(0, 2999), weights), min_size=1, max_size=20)


@pytest.mark.ci
@settings(max_examples=60)
@given(st.integers(1, 3000), st.lists(changes), st.booleans())
def test_trees_hold_and_find_the_same(loops, num_rows, updates, asks_minimum):
    trees = SumTree(num_rows), CompiledSumTree(num_rows)
    for update in updates:
        rows = np.array([row % num_rows for row, _ in update])
        values = np.array([weight for _, weight in update])
        for tree in trees:
            tree.set(rows, values)
            tree.remove(np.unique(rows[: len(rows) // 3]))
        if asks_minimum:
            assert trees[0].minimum == trees[1].minimum
        for name in ("total", "maximum", "unit"):
            assert getattr(trees[0], name) == getattr(trees[1], name), name
    every = np.arange(num_rows)
    assert np.array_equal(trees[0].get(every), trees[1].get(every))
    trees[1].check_valid()
    if trees[0].total > 0:
        masses = np.linspace(0, 1.1 * trees[0].total, 50)
        assert np.array_equal(*(tree.find(masses) for tree in trees))
        drawn = []
        for tree in trees:
            torch.manual_seed(0)
            drawn.append(np.stack(tree.draw(30, np.array([num_rows]), num_rows)))
        assert np.array_equal(*drawn)


def test_too_large_a_weight_is_refused_and_changes_nothing(loops):
    tree = CompiledSumTree(5)
    tree.set(np.array([1]), np.array([2.0]))
    with pytest.raises(ValueError, match="too large"):
        tree.set(np.array([0, 1]), np.array([1.0, np.inf]))
    assert (tree.total, tree.maximum) == (2.0, 2.0)
    tree.clear()
    with pytest.raises(ValueError, match="nothing to find"):
        tree.draw(3, np.array([5]), 5)


def filled_buffer() -> ReplayBuffer:
    """Written around its seam, with episodes of random lengths."""
    torch.manual_seed(0)
    steps = TimeStep(
        step_type=torch.randint(0, 3, (LENGTH + 7, NUM_ENVIRONMENTS)).int(),
        reward=torch.randn(LENGTH + 7, NUM_ENVIRONMENTS),
        discount=torch.rand(LENGTH + 7, NUM_ENVIRONMENTS),
        observation=torch.randn(LENGTH + 7, NUM_ENVIRONMENTS, 2),
        prev_action=torch.randn(LENGTH + 7, NUM_ENVIRONMENTS),
    )
    scalar = TensorSpec(())
    spec = TimeStep(
        TensorSpec((), torch.int32), scalar, scalar, TensorSpec((2,)), scalar
    )
    buffer = ReplayBuffer(Experience(spec), NUM_ENVIRONMENTS, LENGTH, True)
    buffer.add_batch(Experience(steps), time_major=True)
    return buffer


@pytest.mark.parametrize("n", [2, 5])
def test_buffers_draw_the_same_and_sum_up_the_same(loops, numpy_alone, n):
    found = []
    for is_loop in (True, False):
        if not is_loop:
            numpy_alone()
        buffer = filled_buffer()
        tree = buffer._sampler._weights.tree
        assert type(tree) is (CompiledSumTree if is_loop else SumTree)
        drawn = []
        for i in range(6):
            windows, info = buffer.get_packed_batch(8, n + 1)
            algorithm = SimpleAlgorithm(n)
            by_loop = statistics._pairs_of_loop(windows, n, algorithm._gamma)
            assert (by_loop is None) != is_loop
            pairs = statistics.pair(algorithm, windows)
            drawn += [*info[:3], torch.tensor(windows.step_types)]
            drawn += nest.flatten(pairs.part(np.s_[:], ("time_step",)))
            # Of two priorities for one step the last one stays; some are gone.
            positions = info.positions - (i == 4) * 10
            buffer.update_priority(info.env_ids, positions, torch.rand(8))
            buffer.check_valid()
        found.append(drawn)
    for loop, numpy in zip(*found, strict=True):
        assert torch.equal(loop, numpy)


class SimpleAlgorithm:
    """What pairing asks for."""

    _gamma = 0.9

    def __init__(self, n: int) -> None:
        self._n_step = n


def test_a_step_of_type_last_is_its_own_end(loops):
    buffer = filled_buffer()
    windows, _ = buffer.get_packed_batch(30, 3)
    first = windows.storage.steps.array("time_step.step_type")[windows.first_rows]
    pairs = statistics._pairs_of_loop(windows, 2, 0.9)
    (observation,) = pairs.part(np.s_[:], ("time_step.observation",))
    is_last = torch.from_numpy(first == StepType.LAST)
    assert is_last.any()
    assert torch.equal((observation[:, 0] == observation[:, 1]).all(1), is_last)


def test_loops_are_off_with_all_that_is_fast(monkeypatch):
    monkeypatch.setenv("ALF_LITE_FAST", "0")
    assert not compiled_loops.has_compiler()
    assert type(make_sum_tree(3)) is SumTree


def test_without_numba_there_are_no_loops(monkeypatch):
    monkeypatch.setattr(compiled_loops.importlib.util, "find_spec", lambda _: None)
    assert compiled_loops.compiled.__wrapped__(lambda: None, "void()") is None
    assert type(make_sum_tree(3)) is SumTree
