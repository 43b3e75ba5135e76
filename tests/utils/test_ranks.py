"""What a rank does to its own process; of collectives see the tests of updates."""

from __future__ import annotations

import os

import pytest

from alf_lite.utils import ranks as ranks_module

pytestmark = pytest.mark.skipif(
    not hasattr(os, "SCHED_BATCH"), reason="only Linux has it"
)


@pytest.mark.parametrize(
    ("index", "size", "cores", "expected"),
    [
        (0, 2, {0, 1}, [0]),
        (1, 2, {4, 5, 6, 7, 9}, [6, 7, 9]),
        (0, 3, {0, 1}, None),  # not one for every rank
        (0, 1, {0, 1}, None),  # the others are on other machines
    ],
)
def test_ranks_on_one_machine_share_its_cores(
    monkeypatch, index, size, cores, expected
):
    monkeypatch.setenv("LOCAL_RANK", str(index))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
    taken, policies = [], []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, own: taken.append(own))
    monkeypatch.setattr(os, "sched_getscheduler", lambda pid: os.SCHED_OTHER)
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda pid, policy, param: policies.append(policy)
    )
    ranks_module._settle_on_cores()
    assert taken == ([] if expected is None else [expected])
    assert policies == [os.SCHED_BATCH]
