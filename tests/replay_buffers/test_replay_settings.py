import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf_lite.replay_buffers.replay_settings import shares


@pytest.mark.parametrize(
    ("total", "ratios", "expected"),
    [
        (10, [1 / 3, 2 / 3], [3, 7]),
        (10, [0.29, 0.71], [3, 7]),
        (32, [0.25, 0.75], [8, 24]),
        (7, [0.5, 0.5], [4, 3]),
        (5, [1, 1, 1], [2, 2, 1]),
        (256, [0.5, 0.5], [128, 128]),
        (9, [1 / 3, 1 / 3, 1 / 3], [3, 3, 3]),
        (4, [1, 0], [4, 0]),
        (0, [1, 2], [0, 0]),
    ],
)
def test_shares_by_hand(total, ratios, expected):
    assert shares(total, ratios) == expected


@given(
    st.integers(0, 1000),
    st.lists(st.floats(0, 100), min_size=1).filter(lambda r: sum(r) > 1e-3),
)
def test_nothing_is_lost_and_no_share_is_off_by_one(total, ratios):
    counts = shares(total, ratios)
    assert sum(counts) == total
    for count, ratio in zip(counts, ratios, strict=True):
        assert abs(count - total * ratio / sum(ratios)) < 1 + 1e-6
        assert ratio > 0 or count == 0


@pytest.mark.parametrize("ratios", [[], [0, 0], [-1, 2], [math.nan, 1], [math.inf]])
def test_ratios_that_mean_nothing_are_refused(ratios):
    with pytest.raises(ValueError, match="ratios must be finite"):
        shares(3, ratios)
