"""Set-up that every test shares."""

import pytest

from alf_lite import config_files


@pytest.fixture(autouse=True)
def _no_bindings_left():
    """gin's bindings belong to the process: none may reach the next test."""
    config_files.reset()
    yield
    config_files.reset()
