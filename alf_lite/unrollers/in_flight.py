"""Which unrolls workers may begin and which may be trained on, by their age."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import NamedTuple


class InFlight(NamedTuple):
    """An unroll that a worker was asked for."""

    worker: int
    slot: int
    version: int  # of the newest parameters when it was asked; it may act with newer


class InFlightUnrolls:
    """The slots of all workers, and the unrolls that are begun and not yet taken.

    Every unroll has a policy lag: how many versions newer the parameters are when it is
    taken for training than those that acted. With ``max_lag`` k and at least n unrolls
    taken per version, k·n unrolls may be in flight, beside those still to be taken for
    the present version. Each has a deadline, k versions after it was asked for.
    If none is taken whose place others need to meet theirs (:meth:`can_take`), the lag
    never exceeds k.

    Args:
        num_workers: how many.
        slots_per_worker: unrolls of one worker that are under way, finished or in use.
        max_lag: k; None for no limit but the slots.
        per_version: n.
    """

    def __init__(
        self,
        num_workers: int,
        slots_per_worker: int,
        max_lag: int | None,
        per_version: int,
    ) -> None:
        # Of every worker, as heaps: the lowest slot first.
        self._free = [list(range(slots_per_worker)) for _ in range(num_workers)]
        self._num_slots = slots_per_worker
        self._begun: dict[tuple[int, int], InFlight] = {}
        self._num_due: Counter[int] = Counter()  # of those begun, by deadline
        self._max_lag = max_lag
        self._per_version = per_version
        self._ready: set[int] = set()  # workers that can be asked

    def add_worker(self, worker: int) -> None:
        """From now on ``worker`` may be asked for unrolls."""
        self._ready.add(worker)

    @property
    def has_all_workers(self) -> bool:
        """Whether every worker can be asked."""
        return len(self._ready) == len(self._free)

    def begin(self, version: int, num_to_take: int) -> list[InFlight]:
        """As many new unrolls as are allowed, of the workers with the fewest first.

        Args:
            version: of the newest parameters.
            num_to_take: how many more unrolls will be taken for this version.
        """
        begun: list[InFlight] = []
        room = self._room(num_to_take)
        if room is not None and room <= 0:
            return begun
        waiting = [(-len(self._free[w]), w) for w in self._ready if self._free[w]]
        heapq.heapify(waiting)
        while waiting and (room is None or len(begun) < room):
            num_free, worker = waiting[0]
            slot = heapq.heappop(self._free[worker])
            if self._free[worker]:
                heapq.heapreplace(waiting, (num_free + 1, worker))
            else:
                heapq.heappop(waiting)
            unroll = InFlight(worker, slot, version)
            self._begun[worker, slot] = unroll
            self._num_due[self.deadline(unroll)] += 1
            begun.append(unroll)
        return begun

    def _room(self, num_to_take: int) -> int | None:
        if self._max_lag is None:
            return None
        limit = self._max_lag * self._per_version + num_to_take
        return limit - len(self._begun)

    def in_slot(self, worker: int, slot: int) -> InFlight:
        """The unroll in a slot that is being filled, or is filled and not taken."""
        return self._begun[worker, slot]

    def can_take(self, unroll: InFlight, version: int, num_to_take: int) -> bool:
        """Whether all others still meet their deadlines if this unroll is taken now.

        Args:
            unroll: that would be taken.
            version: for which it would be taken.
            num_to_take: how many may be taken for it, with this one.
        """
        if num_to_take <= 0 or self._max_lag is None:
            return num_to_take > 0
        places = num_to_take - 1
        num_due = sum(n for due, n in self._num_due.items() if due < version)
        for due in range(version, self.deadline(unroll)):
            num_due += self._num_due.get(due, 0)
            if num_due > places:
                return False
            places += self._per_version
        return True

    def deadline(self, unroll: InFlight) -> int:
        """The last version for which the unroll may be taken; 0 if there is none."""
        return 0 if self._max_lag is None else unroll.version + self._max_lag

    def take(self, unroll: InFlight) -> None:
        """The unroll is used for training from now on."""
        del self._begun[unroll.worker, unroll.slot]
        deadline = self.deadline(unroll)
        self._num_due[deadline] -= 1
        if not self._num_due[deadline]:
            del self._num_due[deadline]

    def release(self, unroll: InFlight) -> None:
        """The slot of an unroll that was taken may be overwritten."""
        heapq.heappush(self._free[unroll.worker], unroll.slot)

    def lose_worker(self, worker: int, finished: set[InFlight]) -> None:
        """``worker`` is gone: what it has not finished is not to come.

        Args:
            worker: which.
            finished: unrolls that are complete, of this worker and others.
        """
        self._ready.discard(worker)
        for slot in range(self._num_slots):
            unroll = self._begun.get((worker, slot))
            if unroll is not None and unroll not in finished:
                self.take(unroll)
                self.release(unroll)
