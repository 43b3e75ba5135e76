"""Fixtures of the fault suite: small confs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability import confs
from tests.reliability.trainer_process import Launcher


@pytest.fixture(scope="session")
def conf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The small confs, by name."""
    directory = tmp_path_factory.mktemp("confs")
    paths = {}
    for name, text in confs.CONFS.items():
        paths[name] = directory / f"{name}.gin"
        paths[name].write_text(text)
    return paths


@pytest.fixture(scope="session")
def straight(
    _launcher: Launcher, conf: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], Path]:
    """Conf -> the root_dir of its undisturbed run, to be read only."""
    made: dict[Path, Path] = {}

    def train(path: Path) -> Path:
        if path not in made:
            root_dir = tmp_path_factory.mktemp("straight") / "run"
            _launcher.start(root_dir, [f"--conf={path}"]).finish(seconds=600)
            made[path] = root_dir
        return made[path]

    return train
