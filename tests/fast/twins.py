"""The table of twins, emptied or watched."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from alf_lite import fast


@contextlib.contextmanager
def without_twins(method: str = "") -> Iterator[None]:
    """Inside, everything, or what ends so, is computed by torch's own bodies."""
    table, found = fast.TWINS, fast._found
    rows = {row: twin for row, twin in table.items() if not row.endswith(method)}
    fast.TWINS, fast._found = rows, {}
    try:
        yield
    finally:
        fast.TWINS, fast._found = table, found


@contextlib.contextmanager
def watched() -> Iterator[Counter[str]]:
    """Counts the rows whose twins gave something, inside."""
    ran: Counter[str] = Counter()
    load, found = fast._load, fast._found

    def recording(row: str):
        twin = load(row)

        def recorded(*args, **kwargs):
            result = twin(*args, **kwargs)
            if result is not None and result is not NotImplemented:
                ran[row] += 1
            return result

        return None if twin is None else recorded

    fast._load, fast._found = recording, {}
    try:
        yield ran
    finally:
        fast._load, fast._found = load, found
