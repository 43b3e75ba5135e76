"""What every test gets: one thread, and no setting left over from another test."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

# Before torch is imported anywhere: two threads slow nets of this size down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from alf_lite.config import files as config_files
from alf_lite.testing import stand_in_device
from alf_lite.utils import summary
from tests.left_out_tests import (  # noqa: F401 - hooks
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_collectreport,
    pytest_ignore_collect,
    pytest_runtest_logreport,
    pytest_sessionfinish,
)

if TYPE_CHECKING:
    from tests.reliability.trainer_process import Launcher

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Each torch.manual_seed keeps the stack for devices that may come: a millisecond.
    for name in ("cuda", "xpu", "mtia"):
        if hasattr(torch, name):
            getattr(torch, name).manual_seed_all = lambda seed: None
# No test pulls the plug, and nothing less asks whether files have reached the disk.
os.fsync = lambda _: None
stand_in_device.register()
with contextlib.suppress(ImportError):  # the tests of a GPU do without it
    from hypothesis import settings

    # The same examples in every run, however busy the machine is.
    settings.register_profile("repeatable", deadline=None, derandomize=True)
    settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """With ``-n``, neighbours run in one process, which makes their fixtures once."""
    if config.getoption("dist", None) == "load":
        config.option.dist = "worksteal"


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spares the garbage collector the thousands of tests and all that is imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_state_left():
    """Bindings, generators and the axis of summaries belong to the process."""
    config_files.reset()
    summary.set_global_counter(0)
    # What is drawn does not depend on the tests that ran before.
    torch.manual_seed(0)
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
