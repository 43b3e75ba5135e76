"""Every algorithm of the table of losses against its equations in plain loops."""

from __future__ import annotations

import pytest

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from tests.algorithms.loss_contract import Case, check_loss, check_memory
from tests.algorithms.loss_table import ALL, ROWS


def check(name: str, masked: bool, everything: bool = False) -> None:
    row = ALL[name]
    for case in row.cases(masked):
        # All pairs of what may be added are seen of the richest kind of action.
        few = 2 if case.action == row.actions[-1] else 1
        if (case.num_extras > few) == everything:
            check_loss(row, case)


by_name = pytest.mark.parametrize("name", ALL)


@pytest.mark.ci
@by_name
def test_the_loss_is_that_of_the_equations(name):
    check(name, masked=False)


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name, row in ALL.items() if row.masked])
def test_the_loss_is_that_of_the_equations_under_a_mask(name):
    check(name, masked=True)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, row in ALL.items()
        if True in row.memory and not issubclass(row.algorithm, ActorCriticAlgorithm)
    ],
)
def test_an_update_remembers_from_stored_memories_after_a_burn_in(name):
    row = ALL[name]
    for n in row.n:
        check_memory(row, Case(row.actions[-1], False, 1, True, n))


@pytest.mark.slow
@by_name
def test_the_loss_is_that_of_the_equations_in_all_other_combinations(name):
    check(name, masked=False, everything=True)
    if ALL[name].masked:
        check(name, masked=True, everything=True)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_not_supported_is_refused(name):
    for case in ROWS[name].refused():
        with pytest.raises((ValueError, TypeError)):
            ROWS[name].build(case)
