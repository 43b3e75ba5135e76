"""Tests of alf_lite.checkpoints.files."""

from __future__ import annotations

import pytest

from alf_lite.checkpoints.files import new_output
from alf_lite.errors import ConfigError


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.rglob("*"))


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path):
    target = tmp_path / "below" / "data.bin"
    with new_output(target) as temporary:
        temporary.write_bytes(b"half")
        assert not target.exists()
        temporary.write_bytes(b"whole")
    assert target.read_bytes() == b"whole"
    assert names(tmp_path) == ["below", "data.bin"]


def test_a_directory_too(tmp_path):
    with new_output(tmp_path / "data") as temporary:
        temporary.mkdir()
        (temporary / "a").write_text("a")
    assert names(tmp_path) == ["a", "data"]


@pytest.mark.parametrize("is_directory", [True, False])
def test_nothing_is_left_of_what_was_interrupted(tmp_path, is_directory):
    with pytest.raises(KeyboardInterrupt), new_output(tmp_path / "data") as temporary:
        if is_directory:
            temporary.mkdir()
            (temporary / "a").write_text("a")
        else:
            temporary.write_text("a")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_what_is_there_stays(tmp_path):
    target = tmp_path / "data"
    target.write_text("old")
    with pytest.raises(ConfigError, match="exists already"), new_output(target):
        raise AssertionError("the block must not run")
    assert target.read_text() == "old"


def test_what_appeared_meanwhile_stays(tmp_path):
    target = tmp_path / "data"
    refused = pytest.raises(ConfigError, match="exists already")
    with refused, new_output(target) as temporary:
        temporary.write_text("new")
        target.write_text("of somebody else")
    assert target.read_text() == "of somebody else"
    assert names(tmp_path) == ["data"]


def test_a_file_is_replaced_on_demand_once_the_new_one_is_complete(tmp_path):
    target = tmp_path / "data"
    target.write_text("old")
    with new_output(target, replace_file=True) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["data"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    refused = pytest.raises(ConfigError, match="cannot be written: ")
    with refused, new_output(tmp_path / "file" / "data") as temporary:
        temporary.write_text("a")
