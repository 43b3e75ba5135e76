"""What every test gets: one thread, and no setting left over from another test."""

from __future__ import annotations

import os

# Before torch is imported anywhere: two threads slow nets of this size down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from alf_lite.config import files as config_files

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_state_left():
    """gin's bindings belong to the process, not to the next test."""
    config_files.reset()
    yield
    config_files.reset()
