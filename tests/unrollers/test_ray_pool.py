"""Workers that are actors, with actors of our own: no Ray is needed."""

from __future__ import annotations

import logging
import queue
import random
import threading
from concurrent.futures import Future
from multiprocessing import reduction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from alf_lite.config import TrainerConfig
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.errors import ConfigError, EnvError, WorkerError
from alf_lite.processes.child_main import last_words
from alf_lite.processes.ray_cluster import ActorLostError
from alf_lite.unrollers import ray_pool, worker_pool
from alf_lite.unrollers.async_unroller import AsyncUnroller
from alf_lite.unrollers.ray_pool import RayPool
from alf_lite.unrollers.ray_worker import NEWS, Place, Signs
from alf_lite.unrollers.unroll_worker import (
    PoolOptions,
    UnrollReport,
    WorkerDescription,
)
from alf_lite.unrollers.worker_memory import UnrollSlots, row_specs
from alf_lite.unrollers.worker_pool import Finished, Lost, Ready

T, B = 2, 3
TENSORS = {"weight": torch.zeros(4), "steps": torch.zeros(2, dtype=torch.int64)}
ROWS = row_specs(
    Experience(time_step=(), action=torch.zeros(B)),
    TimeStep(step_type=torch.zeros(B, dtype=torch.int32), reward=torch.zeros(B)),
)


class FakeActor:
    """Answers when it is told to; keeps what it was told."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self._cluster = cluster
        self.number = number
        self.node = f"node {number}"
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []  # without an answer
        self.refreshed: list[int] = []  # versions that it was told
        self.is_killed = False
        self.is_stopped = False
        self.heartbeat = 0
        self._num_finished = 0

    def ask(self, method, *arguments, group, then):
        future: Future[Any] = Future()
        future.add_done_callback(then)
        self.calls.append((method, arguments, future))
        if method == "look":
            self.answer("look", Signs(self.heartbeat, "  in its step"))
        elif method == "close":
            self.answer("close", None)
        elif self._cluster.is_willing and method == "place":
            self.answer("place", Place("host", self.number, self.node))
        elif self._cluster.is_willing and method == "build":
            self.describe()

    def tell(self, method, *arguments, group):
        assert group == NEWS
        if method == "refresh":
            version, values = arguments
            self.refreshed.append(version)
            self.values = values
        else:
            assert method == "stop"
            self.is_stopped = True

    def kill(self):
        self.is_killed = True

    def answer(self, method, result):
        for call in self.calls:
            if call[0] == method:
                self.calls.remove(call)
                call[2].set_result(result)
                return call[1]
        raise AssertionError(f"{method} was not asked")

    def describe(self):
        description = WorkerDescription(ROWS, B, None)
        dumped = bytes(reduction.ForkingPickler.dumps(description))
        self.answer("build", (b"", dumped, 0, None))

    def finish(self, *, is_late: bool = False) -> UnrollReport:
        """Does the first unroll that it was asked for; all rewards are the version.

        Args:
            is_late: whether the answer does not come before ``late`` is called.
        """
        asked = next(call for call in self.calls if call[0] == "unroll")
        slot, version = asked[1]
        assert self.refreshed[-1] >= version
        memory = UnrollSlots(ROWS, 1, T, bootstrap=False)
        memory.create_here()
        _, time_steps = memory.read(0)
        time_steps.reward[:] = self.refreshed[-1]
        number = float(self._num_finished)
        self._num_finished += 1
        report = UnrollReport(slot, self.refreshed[-1], False, number, 1.0)
        values = memory.bytes_of_all.copy()
        answer = b"", report.pack(), self._num_finished, values
        if is_late:
            self.calls.remove(asked)
            self.late = lambda: asked[2].set_result(answer)
        else:
            self.answer("unroll", answer)
        return report

    def die(self, **options):
        calls, self.calls = self.calls, []
        for _, _, future in calls:
            future.set_exception(ActorLostError("its process has died", **options))


class FakeCluster:
    def __init__(self) -> None:
        self.actors: list[FakeActor] = []
        self.puts: list[np.ndarray] = []
        self.is_willing = True  # whether actors find a place and are built at once
        self.num_closed = 0
        self.head = SimpleNamespace(check=lambda: None)

    def start_actor(self, cls, *, num_cpus, groups):
        assert num_cpus == 0.5
        self.actors.append(FakeActor(self, len(self.actors)))
        return self.actors[-1]

    def put(self, array):
        self.puts.append(array.copy())
        return self.puts[-1]

    def resources_text(self):
        return "1 machines with 2 CPUs, of which 0 are free"

    def close(self):
        self.num_closed += 1


def options(num_workers: int = 2, **changes: Any) -> PoolOptions:
    return PoolOptions(num_workers, T, False, 3, 0.0, 60.0, 3)._replace(**changes)


@pytest.fixture
def cluster():
    return FakeCluster()


def start(cluster: FakeCluster, **changes: Any) -> RayPool:
    pool = RayPool(b"", lambda: cluster, 0.5, options(**changes), TENSORS)
    pool.publish(TENSORS)
    pool.start(seed=1)
    return pool


def events_of(pool: RayPool) -> list[Any]:
    """Everything that has happened, until there is nothing more."""
    found: list[Any] = []
    while events := pool.poll(0.01):
        found += events
    return found


def started(cluster: FakeCluster, **changes: Any) -> RayPool:
    pool = start(cluster, **changes)
    assert sorted(events_of(pool)) == [
        Ready(i) for i in range(pool._options.num_workers)
    ]
    return pool


def pass_time(monkeypatch, pool: RayPool, seconds: float, step: float = 5.0) -> None:
    """Has the pool look around every few seconds of a clock of its own."""
    now = ray_pool.time.monotonic()
    for i in range(int(seconds / step)):
        clock = type("Clock", (), {"monotonic": lambda i=i: now + (i + 1) * step})
        for module in (ray_pool, worker_pool):
            monkeypatch.setattr(module, "time", clock)
        pool.poll(0.0)


def test_an_unroll_arrives_as_it_was_written_with_the_newest_parameters(cluster):
    pool = started(cluster)
    pool.request(1, slot=2)
    pool.publish({**TENSORS, "weight": torch.arange(4.0)})
    report = cluster.actors[1].finish()
    assert report.version == 2
    assert events_of(pool) == [Finished(1, report)]
    unroll = pool.read(1, report)
    assert unroll.time_steps.reward.eq(2).all()
    assert unroll.time_steps.reward.shape == (T + 1, B)
    assert unroll.experience.action.shape == (T, B)
    assert unroll.env_ids.tolist() == [3, 4, 5]
    values = ray_pool.flat_parameters(pool._specs.values())
    values.bytes_of_all[:] = cluster.actors[1].values
    assert [t.tolist() for t in values.tensors()] == [[0, 1, 2, 3], [0, 0]]


@pytest.mark.parametrize("is_small", [True, False])
def test_a_version_is_stored_once_and_told_to_those_who_have_something_to_do(
    cluster, monkeypatch, is_small
):
    if not is_small:
        monkeypatch.setattr(ray_pool, "_MESSAGE_BYTES", 16)
    pool = started(cluster)
    idle, busy = cluster.actors
    pool.request(1, 0)
    for _ in range(3):
        pool.publish(TENSORS)
    pool.request(0, 0)
    pool.request(1, 1)
    assert len(cluster.puts) == (0 if is_small else 4)
    assert idle.refreshed == [4]
    assert busy.refreshed == [1, 2, 3, 4]


def test_unrolls_are_reported_in_the_order_in_which_they_were_done(cluster):
    pool = started(cluster)
    for slot in (1, 0, 2):
        pool.request(0, slot)
    actor = cluster.actors[0]
    first = actor.finish(is_late=True)
    others = [actor.finish(), actor.finish()]
    assert events_of(pool) == []
    actor.late()
    assert events_of(pool) == [Finished(0, report) for report in [first, *others]]


def test_a_dead_worker_is_replaced_and_late_answers_of_it_are_nothing(cluster, caplog):
    pool = started(cluster)
    for slot in range(2):
        pool.request(0, slot)
    first = cluster.actors[0]
    report = first.finish()
    late = [call for call in first.calls if call[0] == "unroll"]
    first.calls.remove(late[0])
    first.die()
    assert events_of(pool) == [Finished(0, report), Lost(0), Ready(0)]
    assert first.is_killed
    assert pool.num_restarts == 1
    assert "unroll worker 0, process 0 on host: its process has died" in caplog.text
    late[0][2].set_result((b"", report.pack(), 2, None))
    assert events_of(pool) == []
    pool.request(0, 0)
    second = cluster.actors[2]
    assert second.refreshed == [1]
    second.finish()
    assert len(events_of(pool)) == 1


def test_as_many_are_replaced_as_is_allowed(cluster):
    pool = started(cluster, max_restarts=2)
    for restart in range(2):
        cluster.actors[0 if restart == 0 else -1].die()
        assert events_of(pool) == [Lost(0), Ready(0)]
    cluster.actors[-1].die()
    with pytest.raises(WorkerError, match="has died") as caught:
        events_of(pool)
    assert "replaced 2 times" in str(caught.value.__notes__)
    assert all(actor.is_killed for actor in cluster.actors)
    assert cluster.num_closed == 1


def test_a_lost_machine_counts_once(cluster):
    pool = start(cluster, num_workers=4, max_restarts=1)
    for actor in cluster.actors[:3]:
        actor.node = "one"
    events_of(pool)
    for actor in cluster.actors[:3]:
        actor.node = "one"
    for worker in pool._workers[:3]:
        worker.place = worker.place._replace(node="one")
    for actor in cluster.actors[:3]:
        actor.die()
    events = events_of(pool)
    assert [event for event in events if isinstance(event, Lost)] == [
        Lost(0),
        Lost(1),
        Lost(2),
    ]
    assert pool.num_restarts == 3
    cluster.actors[3].die()  # of another machine
    with pytest.raises(WorkerError):
        events_of(pool)


def test_an_actor_that_is_lost_before_it_begins_is_started_elsewhere(cluster):
    pool = started(cluster, max_restarts=1)
    cluster.is_willing = False
    cluster.actors[0].die()
    assert events_of(pool) == [Lost(0)]
    for _ in range(5):  # as long as Ray takes to know that the machine is gone
        cluster.actors[-1].die()
        assert events_of(pool) == []
    assert pool.num_restarts == 1
    cluster.actors[-1].die()
    with pytest.raises(WorkerError, match="which had no place yet"):
        events_of(pool)


def test_an_error_before_the_first_unroll_ends_the_run_and_later_it_does_not(cluster):
    pool = started(cluster)
    for worker in range(2):
        pool.request(worker, 0)
    words = last_words(EnvError("the arm is stuck"))
    report = cluster.actors[0].finish()
    cluster.actors[1].answer("unroll", (words, b"", 0, None))
    assert events_of(pool) == [Finished(0, report), Lost(1), Ready(1)]

    pool = started(FakeCluster())
    pool.request(0, 0)
    pool._workers[0].actor.answer("unroll", (words, b"", 0, None))
    with pytest.raises(EnvError, match="worker 0, process 0 on host: the arm is stuck"):
        events_of(pool)


def test_a_machine_without_the_library_is_said(cluster):
    cluster.is_willing = False
    pool = start(cluster)
    cluster.actors[0].die(is_start=True)
    with pytest.raises(ConfigError, match="every machine needs alf_lite"):
        events_of(pool)


def test_a_worker_without_a_machine_waits_and_joins_later(cluster, monkeypatch, caplog):
    pool = started(cluster)
    pool.request(1, 0)
    report = cluster.actors[1].finish()
    cluster.is_willing = False
    cluster.actors[0].die()
    assert events_of(pool) == [Finished(1, report), Lost(0)]
    with caplog.at_level(logging.WARNING):
        pass_time(monkeypatch, pool, 600.0)
    assert "1 of 2 unroll workers have no process yet. Each takes 0.5" in caplog.text
    assert 5 <= caplog.text.count("have no process yet") <= 11  # one a minute
    cluster.is_willing = True
    cluster.actors[2].answer("place", Place("new host", 7, "new node"))
    assert pool.poll(0.01) == [Ready(0)]


def test_when_no_worker_has_a_machine_it_is_an_error_after_the_timeout(
    cluster, monkeypatch
):
    cluster.is_willing = False
    pool = start(cluster)
    pass_time(monkeypatch, pool, 55.0)
    with pytest.raises(
        WorkerError, match=r"2 of 2 unroll workers .*2 CPUs, of .* None came in 60 s"
    ):
        pass_time(monkeypatch, pool, 20.0)


def test_without_the_head_nothing_is_asked_of_ray_so_that_the_run_can_be_saved(
    cluster, monkeypatch
):
    pool = started(cluster)

    def check():
        raise WorkerError("the head of Ray has not answered")

    monkeypatch.setattr(cluster.head, "check", check)
    with pytest.raises(WorkerError, match="the head of Ray"):
        pass_time(monkeypatch, pool, 5.0)
    pool.close()
    assert not any(actor.is_killed or actor.is_stopped for actor in cluster.actors)
    assert cluster.num_closed == 0


def test_a_worker_that_hangs_is_killed_with_its_stack(cluster, monkeypatch):
    pool = started(cluster)
    pool.request(0, 0)
    actor = cluster.actors[0]
    for _ in range(4):  # it is slow, and goes on
        pass_time(monkeypatch, pool, 50.0)
        actor.heartbeat += 1
    with pytest.raises(WorkerError, match=r"(?s)no step .* 60 s.*in its step"):
        pass_time(monkeypatch, pool, 150.0)


def test_closing_stops_and_closes_everything_once(cluster):
    pool = started(cluster)
    pool.request(0, 0)
    pool.close()
    pool.close()
    assert all(actor.is_stopped and actor.is_killed for actor in cluster.actors)
    assert cluster.num_closed == 1


class BusyCluster(FakeCluster):
    """Its actors work on a thread, in an order that depends on the machine."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.num_deaths = 0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        while not self._stop.wait(0.0005):
            able = [
                actor
                for actor in list(self.actors)
                if not actor.is_killed and any(c[0] == "unroll" for c in actor.calls)
            ]
            if not able:
                continue
            actor = self._rng.choice(able)
            if self.num_deaths < 2 and self._rng.random() < 0.05:
                self.num_deaths += 1
                actor.die()
            else:
                actor.finish()

    def close(self):
        super().close()
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_the_policy_lag_is_bounded_and_nothing_is_lost_when_workers_die(max_lag):
    clusters = queue.SimpleQueue()

    def create_pool(options, tensors):
        cluster = BusyCluster(max_lag)
        clusters.put(cluster)
        return RayPool(b"", lambda: cluster, 0.5, options, tensors)

    env: Any = None
    unroller = AsyncUnroller(
        TrainerConfig(
            async_unroll=True,
            num_iterations=1,
            num_unroll_workers=3,
            max_policy_lag=max_lag,
            unroll_length=T,
        ),
        env,
        lambda: TENSORS,
        on_policy=False,
        create_pool=create_pool,
    )
    try:
        for iteration in range(1, 31):
            unrolls = unroller.unroll(T)
            assert len(unrolls) == 3
            for unroll in unrolls:
                version = int(unroll.time_steps.reward[0, 0])
                assert iteration - max_lag <= version <= iteration
    finally:
        unroller.close()
    assert unroller._pool.num_restarts == clusters.get().num_deaths
