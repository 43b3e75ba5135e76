"""Sums over the episodes of batched environments, and means of the latest ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class FinishedEpisodes(NamedTuple):
    """The N episodes that ended in an unroll, in the order of their ends."""

    sums: np.ndarray  # [N, K]
    last_step: np.ndarray  # [N], the row t of the unroll with the LAST step
    column: np.ndarray  # [N], the column b of the unroll


class EpisodeSums:
    """Sums K values per step over every episode of every environment.

    The steps of an unroll are cut into segments where episodes begin or end, all
    segments are summed with one call, and what stays open is carried into the next
    unroll. Sums never cross a segment: a NaN ends with its episode.

    An episode counts if its FIRST and its LAST step were seen. One whose begin was
    missed, or which a FIRST interrupts, is dropped.

    Args:
        batch_size: number of environments.
        num_values: K.
    """

    def __init__(self, batch_size: int, num_values: int) -> None:
        self.open_sums = np.zeros((batch_size, num_values))  # float64
        self.is_open = np.zeros(batch_size, dtype=bool)  # its FIRST step was seen

    def add(
        self,
        is_first: np.ndarray,
        is_last: np.ndarray,
        values: np.ndarray,
        env_ids: np.ndarray,
    ) -> FinishedEpisodes:
        """Adds the steps of an unroll.

        Args:
            is_first: [T, B], T > 0.
            is_last: [T, B].
            values: [T, B, K], those of FIRST steps count too.
            env_ids: [B], different from each other.
        """
        num_steps = len(is_first)
        # One environment after the other: now a segment is a range of rows.
        is_first = is_first.T.ravel()  # [B * T]
        is_last = is_last.T.ravel()
        values = values.swapaxes(0, 1).reshape(is_first.size, -1)

        is_begin = is_first.copy()
        is_begin[1:] |= is_last[:-1]
        is_begin[::num_steps] = True
        begins = np.flatnonzero(is_begin)  # [S] segments
        ends = np.append(begins[1:], is_first.size) - 1
        sums = np.add.reduceat(values, begins)
        is_known = is_first[begins]
        is_ended = is_last[ends]

        # The head of a column continues what the unroll before has left open.
        heads = np.flatnonzero(begins % num_steps == 0)  # [B]
        continued = ~is_first[::num_steps]
        sums[heads[continued]] += self.open_sums[env_ids[continued]]
        is_known[heads] |= self.is_open[env_ids]

        tails = np.append(heads[1:], begins.size) - 1  # [B]
        stays_open = is_known[tails] & ~is_ended[tails]
        self.open_sums[env_ids] = np.where(stays_open[:, None], sums[tails], 0.0)
        self.is_open[env_ids] = stays_open

        finished = np.flatnonzero(is_known & is_ended)  # by column, then by time
        column, last_step = np.divmod(ends[finished], num_steps)
        order = np.argsort(last_step, kind="stable")
        return FinishedEpisodes(
            sums=sums[finished[order]],
            last_step=last_step[order],
            column=column[order],
        )

    def drop_open(self) -> None:
        """Forgets the open episodes."""
        self.open_sums[:] = 0.0
        self.is_open[:] = False


class RecentRows:
    """Keeps the last ``capacity`` rows that were appended.

    Args:
        capacity: number of rows.
        num_columns: C.
    """

    def __init__(self, capacity: int, num_columns: int) -> None:
        self.rows = np.zeros((capacity, num_columns))  # float64; a ring
        self.num_appended = 0

    def __len__(self) -> int:
        return min(self.num_appended, len(self.rows))

    def append(self, rows: np.ndarray) -> None:
        """Appends ``rows`` [N, C], the oldest first."""
        capacity = len(self.rows)
        positions = self.num_appended + np.arange(len(rows))
        # Of more than fit, only the newest: no position is written twice.
        self.rows[positions[-capacity:] % capacity] = rows[-capacity:]
        self.num_appended += len(rows)

    def sum(self) -> np.ndarray:
        """[C]."""
        return self.rows[: len(self)].sum(axis=0)

    def mean(self, more: float = 0, sum_of_more: Any = 0.0) -> np.ndarray:
        """[C], NaN without rows.

        Args:
            more: rows that are elsewhere.
            sum_of_more: [C], of these.
        """
        if more:
            return (self.sum() + sum_of_more) / (len(self) + more)
        if not len(self):
            return np.full(self.rows.shape[1], np.nan)
        return self.rows[: len(self)].mean(axis=0)

    def clear(self) -> None:
        self.rows[:] = 0.0
        self.num_appended = 0
