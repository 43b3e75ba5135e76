"""Fixtures of the fault suite: trainers in processes of their own, and small confs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability import confs
from tests.reliability.trainer_process import Launcher


@pytest.fixture(scope="session")
def _launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("trainers"))
    yield launcher
    launcher.close()


@pytest.fixture
def launcher(_launcher: Launcher) -> Iterator[Launcher]:
    """Starts trainers; those that are left are ended with the test."""
    yield _launcher
    _launcher.end_all()


@pytest.fixture(scope="session")
def conf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The small confs, by name."""
    directory = tmp_path_factory.mktemp("confs")
    paths = {}
    for name, text in confs.CONFS.items():
        paths[name] = directory / f"{name}.gin"
        paths[name].write_text(text)
    return paths
