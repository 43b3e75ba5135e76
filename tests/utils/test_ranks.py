"""What a rank does to its own process; of collectives see the tests of updates."""

from __future__ import annotations

import datetime
import os
import queue
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from alf_lite.utils import ranks as ranks_module


@pytest.mark.parametrize("size", [2, 4, 8])
def test_sums_by_pairs_are_those_of_all_ranks_and_equal_to_the_bit(monkeypatch, size):
    """Ranks that are threads."""
    posts, here = defaultdict(queue.Queue), threading.local()

    def isend(tensor, partner):
        posts[here.index, partner].put(tensor.clone())
        return SimpleNamespace(wait=lambda: None)

    def irecv(tensor, partner):
        post = posts[partner, here.index]
        return SimpleNamespace(wait=lambda: tensor.copy_(post.get(timeout=10)))

    monkeypatch.setattr(torch.distributed, "isend", isend)
    monkeypatch.setattr(torch.distributed, "irecv", irecv)
    tensors = torch.randn(size, 5)

    def summed(index):
        here.index, rank = index, ranks_module.Ranks()
        rank.index, rank.size = index, size
        return rank.sum_(tensors[index].clone())

    with ThreadPoolExecutor(size) as pool:
        first, *others = pool.map(summed, range(size))
    torch.testing.assert_close(first, tensors.sum(0))
    assert all(torch.equal(other, first) for other in others)


def test_a_rank_that_does_not_answer_is_told_from_one_that_has_ended(monkeypatch):
    def all_gather(parts, tensor):
        raise RuntimeError("Timed out waiting for recv")

    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    rank = ranks_module.Ranks()
    rank.size = 2
    with pytest.raises(ranks_module.RankLostError, match="has ended, or cannot be"):
        rank.gather(torch.zeros(1))
    monkeypatch.setattr(ranks_module, "_TIMEOUT", datetime.timedelta(0))
    with pytest.raises(ranks_module.RankLostError, match="async_eval"):
        rank.gather(torch.zeros(1))


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has it")
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
