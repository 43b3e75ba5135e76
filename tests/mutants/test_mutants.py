"""Tests of the parts that everything rests on notice every small mistake in them."""

from __future__ import annotations

import pytest

from tests.mutants import mutants

TESTS = {
    "alf_lite.utils.value_ops": ["tests/utils/test_value_ops.py"],
    "alf_lite.utils.losses": [
        "tests/utils/test_losses.py",
        "tests/algorithms/learning/test_updates_on_ranks.py",
    ],
    "alf_lite.algorithms.parts.transitions": [
        "tests/algorithms/parts/test_transitions.py",
        "tests/algorithms/test_losses.py",
        "tests/algorithms/test_algorithm_contract.py",
    ],
    "alf_lite.replay_buffers.replay_buffer": ["tests/replay_buffers"],
    "alf_lite.replay_buffers.ring_storage": ["tests/replay_buffers"],
    "alf_lite.algorithms.learning.updates": [
        "tests/algorithms/learning",
        "tests/algorithms/test_rl_algorithm.py",
    ],
}
_TIME = "num_steps = _first_dim(batch) if time_major else {}"
_SHARES = "shares = ranks.size * counts / ranks.sum_(counts.clone()).clamp(min={})"
_STD = "std = (squares / count.clamp(min={}) - mean.square()).clamp(min=0).sqrt()"
# What no test needs to ask, and why
LEFT_OUT = {
    f"{_STD.format(1)}  ->  {_STD.format(2)}": "one step has no spread either way",
    f"{_TIME.format(1)}  ->  {_TIME.format(2)}": "read with time_major only",
    f"{_SHARES.format(1)}  ->  {_SHARES.format(2)}": "one valid step of all ranks",
}
CHOSEN = [
    mutant for module in TESTS for mutant in mutants.some_mutants(module, count=10)
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", CHOSEN, ids=lambda mutant: mutant.name)
def test_some_test_notices(mutant):
    if mutant.change in LEFT_OUT:
        pytest.skip(LEFT_OUT[mutant.change])
    assert not mutants.survives(mutant, TESTS[mutant.module]), mutant.change


def test_every_mutant_differs_in_one_place_and_the_same_ones_are_chosen():
    for module in TESTS:
        found = mutants.mutants_of(module)
        assert len(found) > 50
        for mutant in found:
            before, after = mutant.change.split("  ->  ")
            assert before != after
        assert mutants.some_mutants(module, 10) == mutants.some_mutants(module, 10)


@pytest.mark.ci
def test_a_mutant_is_loaded_in_place_of_the_module_and_noticed():
    module = "alf_lite.utils.checks"
    (first, *_) = mutants.mutants_of(module)
    assert not mutants.survives(first, ["tests/utils/test_checks.py"])
