from __future__ import annotations

import pytest
import torch

from alf_lite.networks.parallel_layers import ParallelLinear


def test_input_for_another_number_of_members_is_refused():
    layer = ParallelLinear(3, 4, 2)
    with pytest.raises(ValueError, match=r"\[3, B, features\], got \(2, 5, 4\)"):
        layer(torch.zeros(2, 5, 4))
    with pytest.raises(ValueError, match="num_members must be at least 1, got 0"):
        ParallelLinear(0, 4, 2)
