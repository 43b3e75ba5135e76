"""How many rows of a batch come from which source."""

from __future__ import annotations

import math
from collections.abc import Sequence


def shares(total: int, ratios: Sequence[float]) -> list[int]:
    """``total`` divided in proportion to ``ratios``, by the largest remainders.

    Every source gets the whole part of its share; what is left goes to the largest
    fractional parts, one each, earlier sources first among equals.

    Args:
        total: at least 0.
        ratios: at least 0 each, in any unit.

    Returns:
        One number for each ratio; their sum is ``total``.

    Raises:
        ValueError: if a ratio is negative or not finite, or all are zero.
    """
    whole = sum(ratios)
    if not all(math.isfinite(r) and r >= 0 for r in ratios) or whole <= 0:
        raise ValueError(
            "ratios must be finite numbers of at least 0 that are not all 0, got "
            f"{list(ratios)}"
        )
    # Rounded, so that 3 · (1/3) is no remainder.
    exact = [round(total * ratio / whole, 9) for ratio in ratios]
    counts = [math.floor(share) for share in exact]
    order = sorted(range(len(ratios)), key=lambda i: counts[i] - exact[i])
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts
