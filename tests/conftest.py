"""What every test gets: one thread, and no setting left over from another test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

# Before torch is imported anywhere: two threads slow nets of this size down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from alf_lite.config import files as config_files
from alf_lite.utils import summary

if TYPE_CHECKING:
    from tests.reliability.trainer_process import Launcher

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_state_left():
    """Bindings and the axis of summaries belong to the process, not to a test."""
    config_files.reset()
    summary.set_global_counter(0)
    yield
    config_files.reset()


@pytest.fixture(scope="session")
def _launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    from tests.reliability.trainer_process import Launcher

    launcher = Launcher(tmp_path_factory.mktemp("trainers"))
    yield launcher
    launcher.close()


@pytest.fixture
def launcher(_launcher: Launcher) -> Iterator[Launcher]:
    """Starts trainers; those that are left are ended with the test."""
    yield _launcher
    _launcher.end_all()
