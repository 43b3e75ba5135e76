"""Who may unroll when: keeps workers busy, but no more ahead than is allowed."""

from __future__ import annotations

from typing import NamedTuple


class Permit(NamedTuple):
    """Allows a worker one unroll."""

    worker: int
    slot: int
    version: int  # of the newest parameters when it was given; it may act with newer


class Permits:
    """The slots of all workers, and which of them may be filled.

    Every unroll has a policy lag: how many versions newer the parameters are when it is
    taken for training than those that acted. With ``max_lag`` k and n unrolls taken per
    version, at most (k+1)·n unrolls may be begun and not yet taken; after those for
    the present version are taken, at most k·n. If moreover none is left behind that
    would be too old for the next version (:meth:`overdue`), the lag never exceeds k.

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
        self._free = [set(range(slots_per_worker)) for _ in range(num_workers)]
        self._begun: dict[tuple[int, int], Permit] = {}
        self._max_lag = max_lag
        self._per_version = per_version
        self._ready: set[int] = set()  # workers that can be asked

    def add_worker(self, worker: int) -> None:
        """From now on ``worker`` may be given permits."""
        self._ready.add(worker)

    def grant(self, version: int, *, has_taken: bool) -> list[Permit]:
        """As many new permits as possible, those with the fewest first.

        Args:
            version: of the newest parameters.
            has_taken: whether the unrolls for this version have been taken.
        """
        granted: list[Permit] = []
        room = self._room(has_taken)
        while room is None or len(granted) < room:
            candidates = [worker for worker in self._ready if self._free[worker]]
            if not candidates:
                break
            worker = max(candidates, key=lambda w: (len(self._free[w]), -w))
            slot = min(self._free[worker])
            self._free[worker].remove(slot)
            permit = Permit(worker, slot, version)
            self._begun[worker, slot] = permit
            granted.append(permit)
        return granted

    def _room(self, has_taken: bool) -> int | None:
        if self._max_lag is None:
            return None
        limit = (self._max_lag + (0 if has_taken else 1)) * self._per_version
        return limit - len(self._begun)

    def begun_with(self, worker: int, slot: int) -> Permit:
        """The permit for a slot that is being filled, or is filled and not taken."""
        return self._begun[worker, slot]

    def is_overdue(self, permit: Permit, version: int) -> bool:
        """Whether the unroll must be taken for ``version``, not for the next one."""
        return self._max_lag is not None and permit.version + self._max_lag <= version

    def overdue(self, version: int) -> set[Permit]:
        """All unrolls that must be taken for ``version``."""
        return {p for p in self._begun.values() if self.is_overdue(p, version)}

    def take(self, permit: Permit) -> None:
        """The unroll is used for training from now on."""
        del self._begun[permit.worker, permit.slot]

    def release(self, permit: Permit) -> None:
        """The slot of an unroll that was taken may be overwritten."""
        self._free[permit.worker].add(permit.slot)

    def lose_worker(self, worker: int, finished: set[Permit]) -> None:
        """``worker`` is gone: what it has not finished is not to come.

        Args:
            worker: which.
            finished: unrolls that are complete, of this worker and others.
        """
        self._ready.discard(worker)
        for permit in [p for p in self._begun.values() if p.worker == worker]:
            if permit not in finished:
                self.take(permit)
                self.release(permit)
