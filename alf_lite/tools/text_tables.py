"""Tables as lines of text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], num_right: int = 0) -> list[str]:
    """A line of each row, with columns as wide as their longest cell.

    Args:
        rows: of equal length.
        num_right: so many columns, the first ones, end at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.rjust] * num_right + [str.ljust] * (len(widths) - num_right)
    return [
        "  ".join(
            put(cell, width)
            for put, cell, width in zip(sides, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
