"""What every test gets: one thread, and no setting left over from another test."""

from __future__ import annotations

import os

# Before torch is imported anywhere: two threads slow nets of this size down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
