"""What every test gets: one thread, and no setting left over from another test."""

from __future__ import annotations

import os

# Before torch is imported anywhere: two threads slow nets of this size down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from alf_lite.config import files as config_files
from alf_lite.utils import summary

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_state_left():
    """Bindings and the axis of summaries belong to the process, not to a test."""
    config_files.reset()
    summary.set_global_counter(0)
    yield
    config_files.reset()
