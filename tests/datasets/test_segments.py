"""Where episodes end and begin in a sequence of steps."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.datasets.source import Segments, seams

F, M, L = 0, 1, 2


@pytest.mark.parametrize(
    ("step_type", "begins", "is_complete", "cut"),
    [
        ([], [], [], []),
        ([F], [0], [False], []),
        ([F, M, L], [0], [True], []),
        ([M, L, F, M, L, F, M], [0, 2, 5], [False, True, False], []),
        ([F, M, F, M, L], [0, 2], [False, True], [2]),
        ([F, L, M, L], [0, 2], [True, False], [2]),
        ([F, L, F, L], [0, 2], [True, True], []),
    ],
)
def test_every_step_belongs_to_one_segment(step_type, begins, is_complete, cut):
    array = np.array(step_type, np.int32)
    segments = Segments.of(array)
    assert segments.begins.tolist() == begins
    assert segments.ends.tolist() == [
        *begins[1:],
        *([len(step_type)] if begins else []),
    ]
    assert segments.is_complete.tolist() == is_complete
    assert seams(array).tolist() == cut
    assert array.tolist() == step_type  # unchanged
