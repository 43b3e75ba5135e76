"""Fixtures of the fault suite: small confs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability import confs


@pytest.fixture(scope="session")
def conf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The small confs, by name."""
    directory = tmp_path_factory.mktemp("confs")
    paths = {}
    for name, text in confs.CONFS.items():
        paths[name] = directory / f"{name}.gin"
        paths[name].write_text(text)
    return paths
