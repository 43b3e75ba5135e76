"""Hand-made sequences, and the unroller itself with simulated workers of any speed."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.config import TrainerConfig
from alf_lite.unrollers.async_unroller import AsyncUnroller
from alf_lite.unrollers.in_flight import InFlight, InFlightUnrolls
from alf_lite.unrollers.unroll_worker import PoolOptions, UnrollReport
from alf_lite.unrollers.worker_pool import Event, Finished, Lost, Ready

# Simulated workers


class _Begun(NamedTuple):
    slot: int
    version: int  # of the parameters that act


class _Worker:
    def __init__(self) -> None:
        self.is_ready = False
        self.is_dead = False
        self.requests: list[int] = []  # slots, the oldest first
        self.begun: _Begun | None = None

    def can_step(self) -> bool:
        has_work = self.begun is not None or bool(self.requests)
        return not self.is_dead and (has_work or not self.is_ready)


class SimulatedPool:
    """A ``WorkerPool`` whose workers have random speeds and may die.

    Asserts on the way that no slot is asked for that is in use, and that the trainer
    does not wait when no worker has anything to do.
    """

    def __init__(self, options: PoolOptions, rng: random.Random) -> None:
        self.options = options
        self.version = 0
        self.num_restarts = 0
        self.num_begun = 0
        self.num_polls = 0
        self._rng = rng
        self._workers = [_Worker() for _ in range(options.num_workers)]
        self._speeds = [10 ** rng.uniform(-3, 0) for _ in self._workers]
        self._is_in_use: set[tuple[int, int]] = set()  # from the request to the release
        self._num_finished = [0] * options.num_workers
        self._pending: list[Event] = []  # what the trainer has not heard of

    def publish(self, tensors: dict[str, Any]) -> int:
        self.version += 1
        return self.version

    def start(self, seed: int) -> None:
        pass

    def request(self, worker: int, slot: int) -> None:
        assert 0 <= slot < self.options.slots_per_worker
        assert (worker, slot) not in self._is_in_use
        self._is_in_use.add((worker, slot))
        self._workers[worker].requests.append(slot)

    def read(self, worker: int, report: UnrollReport) -> tuple[int, UnrollReport]:
        assert (worker, report.slot) in self._is_in_use
        return worker, report

    def release(self, worker: int, slot: int) -> None:
        self._is_in_use.remove((worker, slot))

    def poll(self, timeout: float) -> list[Event]:
        self.num_polls += 1
        self.run(self._rng.randrange(4))
        while timeout and not self._pending:
            assert any(w.can_step() for w in self._workers), (
                "the trainer waits for workers that have nothing to do"
            )
            self.run(1)
        events, self._pending = self._pending, []
        for event in events:
            if isinstance(event, Lost):
                self._replace(event.worker)
        return events

    def run(self, num_steps: int) -> None:
        """Lets the workers take so many steps, and the fast ones the most."""
        for _ in range(num_steps):
            able = [i for i, w in enumerate(self._workers) if w.can_step()]
            if not able:
                return
            speeds = [self._speeds[i] for i in able]
            self._step(self._rng.choices(able, speeds)[0])
            if self._rng.random() < 0.03:
                self._speeds = [10 ** self._rng.uniform(-3, 0) for _ in self._speeds]

    def _step(self, index: int) -> None:
        worker = self._workers[index]
        if not worker.is_ready:
            worker.is_ready = True
            self._pending.append(Ready(index))
        elif self.num_restarts < 4 and self._rng.random() < 0.03:
            self.num_restarts += 1
            worker.is_dead = True
            self._pending.append(Lost(index))
        elif worker.begun is None:
            self.num_begun += 1
            worker.begun = _Begun(worker.requests.pop(0), self.version)
        else:
            begun, worker.begun = worker.begun, None
            number = float(self._num_finished[index])
            self._num_finished[index] += 1
            report = UnrollReport(begun.slot, begun.version, False, number, 1.0)
            self._pending.append(Finished(index, report))

    def _replace(self, index: int) -> None:
        lost, self._workers[index] = self._workers[index], _Worker()
        slots = lost.requests + ([] if lost.begun is None else [lost.begun.slot])
        for slot in slots:
            self.release(index, slot)


class _Trainer:
    """Takes unrolls as training does, and checks what it gets."""

    def __init__(self, seed: int, *, on_policy: bool, **config: Any) -> None:
        pools = []

        def create_pool(options: PoolOptions, tensors: Any) -> SimulatedPool:
            pools.append(SimulatedPool(options, random.Random(seed)))
            return pools[0]

        env: Any = None
        self.unroller = AsyncUnroller(
            TrainerConfig(async_unroll=True, num_iterations=1, **config),
            env,
            dict,
            on_policy=on_policy,
            create_pool=create_pool,
        )
        self.pool = pools[0]
        self.rng = random.Random(seed + 1)
        self.lags: list[int] = []
        self._in_use: list[Any] = []
        self._next_number = [0] * self.pool.options.num_workers

    def unroll(self, length: int) -> list[Any]:
        self._release()
        return self._check(self.unroller.unroll(length))

    def collect(self, at_least: int, at_most: int) -> list[Any]:
        self._release()
        taken = self._check(self.unroller.collect(at_least, at_most))
        options = self.pool.options
        num_slots = options.num_workers * options.slots_per_worker
        assert min(at_least, num_slots) <= len(taken) <= at_most
        return taken

    def train(self) -> None:
        self.pool.run(self.rng.randrange(12))

    def _release(self) -> None:
        for worker, report in self._in_use:
            self.pool.release(worker, report.slot)
        self._in_use = []

    def _check(self, unrolls: list[Any]) -> list[Any]:
        self._in_use = unrolls
        for worker, report in unrolls:
            self.lags.append(self.pool.version - report.version)
            # In the order in which the worker finished them, none left out.
            assert report.env_step_seconds == self._next_number[worker]
            self._next_number[worker] += 1
        return unrolls


seeds = st.integers(0, 2**31)


@pytest.mark.ci
@settings(max_examples=100)
@given(
    seed=seeds,
    num_workers=st.integers(1, 5),
    max_lag=st.integers(0, 4),
    queue_size=st.integers(1, 6),
    unroll_length=st.sampled_from([1, 4, 2.5, 7.3, 0.4]),
    on_policy=st.booleans(),
)
def test_no_unroll_is_older_than_the_policy_lag_allows(
    seed, num_workers, max_lag, queue_size, unroll_length, on_policy
):
    trainer = _Trainer(
        seed,
        on_policy=on_policy,
        num_unroll_workers=num_workers,
        unroll_queue_size=queue_size,
        max_policy_lag=max_lag,
        unroll_length=unroll_length,
    )
    remainder = 0.0
    for _ in range(30):
        remainder += unroll_length
        length = int(remainder)
        if length:
            remainder -= length
            num_steps = len(trainer.unroll(length)) * max(1, int(unroll_length))
            if unroll_length == int(unroll_length):
                assert num_steps == num_workers * length
        trainer.train()
    assert min(trainer.lags) >= 0
    assert max(trainer.lags) <= max_lag


@settings(max_examples=50)
@given(
    seed=seeds,
    num_workers=st.integers(1, 5),
    queue_size=st.integers(1, 4),
    at_most=st.integers(1, 20),
)
def test_what_is_there_is_taken_in_order_and_without_waiting_for_more_than_asked(
    seed, num_workers, queue_size, at_most
):
    trainer = _Trainer(
        seed,
        on_policy=False,
        num_unroll_workers=num_workers,
        unroll_queue_size=queue_size,
        unroll_length=0,
        max_unroll_length=8,
    )
    for i in range(30):
        num_polls = trainer.pool.num_polls
        at_least = trainer.rng.randrange(at_most + 1) if i % 2 else 0
        trainer.collect(at_least, at_most)
        if i and at_least == 0:
            assert trainer.pool.num_polls == num_polls + 1
        trainer.train()


def test_waiting_for_more_than_there_are_slots_ends_when_they_are_full():
    trainer = _Trainer(
        0,
        on_policy=False,
        num_unroll_workers=2,
        unroll_queue_size=3,
        unroll_length=0,
        max_unroll_length=100,
    )
    for _ in range(3):
        unrolls = trainer.collect(200, 200)
        assert len(unrolls) == 2 * trainer.pool.options.slots_per_worker


@settings(max_examples=50)
@given(seed=seeds, num_workers=st.integers(1, 5), on_policy=st.booleans())
def test_without_lag_nothing_is_begun_while_the_trainer_trains(
    seed, num_workers, on_policy
):
    trainer = _Trainer(
        seed,
        on_policy=on_policy,
        num_unroll_workers=num_workers,
        max_policy_lag=0,
        unroll_length=3,
    )
    for _ in range(20):
        trainer.unroll(3)
        num_begun = trainer.pool.num_begun
        trainer.train()
        assert trainer.pool.num_begun == num_begun
    assert set(trainer.lags) == {0}


def test_workers_go_on_while_the_trainer_trains():
    trainer = _Trainer(0, on_policy=True, num_unroll_workers=2, unroll_length=3)
    num_begun = 0
    for _ in range(20):
        trainer.unroll(3)
        before = trainer.pool.num_begun
        trainer.train()
        num_begun += trainer.pool.num_begun - before
    assert num_begun > 10
    assert max(trainer.lags) == 1  # on-policy, unless something else is asked for


# By hand


def ready(num_workers: int, slots: int, max_lag: int | None, n: int) -> InFlightUnrolls:
    unrolls = InFlightUnrolls(num_workers, slots, max_lag, n)
    for worker in range(num_workers):
        unrolls.add_worker(worker)
    return unrolls


def test_without_a_limit_all_slots_are_used_and_those_with_fewest_come_first():
    unrolls = ready(2, 2, None, 2)
    assert unrolls.begin(1, 2) == [
        InFlight(0, 0, 1),
        InFlight(1, 0, 1),
        InFlight(0, 1, 1),
        InFlight(1, 1, 1),
    ]
    assert unrolls.begin(2, 2) == []


def test_a_worker_that_is_not_ready_gets_nothing():
    unrolls = InFlightUnrolls(2, 3, 0, 2)
    assert unrolls.begin(1, 2) == []
    unrolls.add_worker(1)
    assert unrolls.begin(1, 2) == [InFlight(1, 0, 1), InFlight(1, 1, 1)]
    unrolls.add_worker(0)
    assert unrolls.begin(1, 2) == []


def test_a_slot_is_used_again_only_when_it_is_released():
    unrolls = ready(1, 1, None, 1)
    (first,) = unrolls.begin(1, 1)
    assert unrolls.in_slot(0, 0) == first
    unrolls.take(first)
    assert unrolls.begin(2, 1) == []
    unrolls.release(first)
    assert unrolls.begin(2, 1) == [InFlight(0, 0, 2)]


def test_a_lag_of_one_allows_as_many_ahead_as_one_version_takes():
    unrolls = ready(2, 4, 1, 2)
    begun = unrolls.begin(1, num_to_take=2)
    assert len(begun) == 4
    for unroll in begun[:2]:
        unrolls.take(unroll)
    assert unrolls.begin(1, num_to_take=0) == []
    for unroll in begun[:2]:
        unrolls.release(unroll)
    assert len(unrolls.begin(2, num_to_take=2)) == 2


def test_places_are_kept_for_those_with_an_earlier_deadline():
    unrolls = ready(2, 4, 1, 2)
    old = unrolls.begin(1, num_to_take=0)  # two, due for version 2
    new = unrolls.begin(2, num_to_take=2)
    assert unrolls.deadline(old[0]) == 2
    assert unrolls.deadline(new[0]) == 3
    assert not unrolls.can_take(new[0], 2, num_to_take=2)
    assert unrolls.can_take(old[0], 2, num_to_take=2)
    unrolls.take(old[0])
    assert not unrolls.can_take(new[0], 2, num_to_take=1)
    unrolls.take(old[1])
    assert not unrolls.can_take(new[0], 2, num_to_take=0)
    assert unrolls.can_take(new[0], 3, num_to_take=2)


def test_a_lost_worker_keeps_what_it_had_finished_and_gives_back_the_rest():
    unrolls = ready(2, 2, None, 2)
    begun = unrolls.begin(1, 2)
    done = InFlight(0, 0, 1)
    assert done in begun
    unrolls.lose_worker(0, finished={done, InFlight(1, 0, 1)})
    assert unrolls.in_slot(0, 0) == done
    assert unrolls.in_slot(1, 1) == InFlight(1, 1, 1)
    assert unrolls.begin(2, 2) == []  # it is not there
    unrolls.add_worker(0)
    assert unrolls.begin(2, 2) == [InFlight(0, 1, 2)]


def naive_can_take(begun, unroll, version, num_to_take, max_lag, per_version) -> bool:
    """Counts, for every version before the unroll is due, those that are due then."""
    places = num_to_take - 1
    for due in range(version, unroll.version + max_lag):
        if sum(u.version + max_lag <= due for u in begun) > places:
            return False
        places += per_version
    return num_to_take > 0


@settings(max_examples=60)
@given(seed=seeds, num_workers=st.integers(1, 4), max_lag=st.integers(0, 3))
def test_the_scheduler_decides_as_one_that_counts_everything(
    seed, num_workers, max_lag
):
    rng = random.Random(seed)
    slots, n = rng.randint(1, 4), rng.randint(1, 4)
    unrolls = ready(num_workers, slots, max_lag, n)
    free = [set(range(slots)) for _ in range(num_workers)]
    begun: list[InFlight] = []
    used: list[InFlight] = []
    for version in range(1, 15):
        places = rng.randint(0, n)
        expected = []
        for _ in range(max_lag * n + places - len(begun)):
            if not any(free):
                break
            # The worker with the fewest under way, and its lowest slot.
            worker = max(range(num_workers), key=lambda w: (len(free[w]), -w))
            slot = min(free[worker])
            free[worker].remove(slot)
            expected.append(InFlight(worker, slot, version))
        assert unrolls.begin(version, places) == expected
        begun += expected
        for unroll in rng.sample(begun, len(begun)):
            allowed = naive_can_take(begun, unroll, version, places, max_lag, n)
            assert unrolls.can_take(unroll, version, places) == allowed
            if allowed:
                unrolls.take(unroll)
                begun.remove(unroll)
                used.append(unroll)
                places -= 1
        for unroll in rng.sample(used, rng.randint(0, len(used))):
            unrolls.release(unroll)
            free[unroll.worker].add(unroll.slot)
            used.remove(unroll)
