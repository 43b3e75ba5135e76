"""Finding confs, and splitting their text into statements."""

import os
from pathlib import Path

import pytest

from alf_lite.config import names as config_names
from alf_lite.config.names import find_conf, read_conf
from alf_lite.config.reader import Statement, split_statements
from alf_lite.errors import ConfigError


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A directory of packaged confs, and another one to be in."""
    confs = tmp_path / "packaged"
    (confs / "atari").mkdir(parents=True)
    for name in ("ppo_cart_pole", "sac_pendulum", "atari/ppo_pong"):
        (confs / f"{name}.gin").write_text("A = 1\n")
    monkeypatch.setattr(config_names, "conf_directories", lambda: [confs])
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return confs


def test_a_conf_is_found_by_path_with_or_without_suffix(packaged, tmp_path):
    path = tmp_path / "here" / "mine.gin"
    path.write_text("A = 1\n")
    for name in ("mine.gin", "mine", "./mine", str(path), str(tmp_path / "here/mine")):
        assert find_conf(name).resolve() == path


def test_a_conf_is_found_by_its_packaged_name(packaged):
    assert find_conf("sac_pendulum") == packaged / "sac_pendulum.gin"
    assert find_conf("atari/ppo_pong.gin") == packaged / "atari/ppo_pong.gin"
    assert config_names.packaged_confs() == [
        "atari/ppo_pong",
        "ppo_cart_pole",
        "sac_pendulum",
    ]


def test_a_file_here_comes_before_a_packaged_conf(packaged, tmp_path):
    (tmp_path / "here" / "sac_pendulum.gin").write_text("A = 2\n")
    assert find_conf("sac_pendulum").resolve() == tmp_path / "here/sac_pendulum.gin"


def test_a_run_directory_of_the_same_name_does_not_hide_a_packaged_conf(
    packaged, tmp_path
):
    (tmp_path / "here" / "sac_pendulum").mkdir()
    assert find_conf("sac_pendulum") == packaged / "sac_pendulum.gin"


def test_home_is_expanded(packaged, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(packaged))
    assert find_conf("~/sac_pendulum") == packaged / "sac_pendulum.gin"


def test_a_missing_conf_lists_candidates(packaged, tmp_path):
    with pytest.raises(ConfigError) as error:
        find_conf("ppo_cartpole")
    message = str(error.value)
    assert f"'ppo_cartpole' not found in {tmp_path / 'here'}" in message
    assert "Did you mean 'ppo_cart_pole'?" in message
    assert "Packaged: atari/ppo_pong, ppo_cart_pole, sac_pendulum" in message


def test_a_missing_conf_suggests_files_beside_it(packaged, tmp_path):
    (tmp_path / "here" / "experiment_7.gin").write_text("A = 1\n")
    with pytest.raises(ConfigError, match=r"Did you mean 'experiment_7'"):
        find_conf("experment_7.gin")


def test_a_directory_is_answered_with_the_confs_in_it(packaged):
    with pytest.raises(ConfigError, match=r"is a directory.*ppo_cart_pole.gin, sac"):
        find_conf(str(packaged))


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name(name):
    with pytest.raises(ConfigError, match="the conf is empty"):
        find_conf(name)


def test_a_name_that_is_too_long(packaged):
    with pytest.raises(ConfigError, match="File name too long"):
        find_conf("x" * 5000)


def test_the_confs_of_the_checkout_are_found():
    assert "ppo_cart_pole" in config_names.packaged_confs()


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.gin"
    path.write_bytes(b"A = 'caf\xe9'")
    with pytest.raises(ConfigError, match="byte 0xe9 in position 8"):
        read_conf(path)


def test_an_unreadable_file(tmp_path):
    with pytest.raises(ConfigError, match="found a directory"):
        read_conf(tmp_path)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.gin")
    for path in (tmp_path / "pipe.gin", Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"a regular file, found a (pipe|device)"):
            read_conf(path)


def test_a_file_that_cannot_be_a_conf_is_refused_at_once(tmp_path):
    with (tmp_path / "huge.gin").open("wb") as file:
        file.truncate(50_000_000_000)  # of nothing
    with pytest.raises(ConfigError, match="expected at most 500000"):
        read_conf(tmp_path / "huge.gin")


def test_windows_line_ends_and_byte_order_mark_are_accepted(tmp_path):
    path = tmp_path / "windows.gin"
    path.write_bytes(b"\xef\xbb\xbfA = 1\r\nB = 2\r\n")
    assert read_conf(path) == "A = 1\nB = 2\n"


def sources(text):
    return [
        (s.line, s.source) for s in split_statements(text, "x.gin") if not s.is_comment
    ]


def test_statements_have_their_first_line():
    text = "# Header\n\nimport a.b\nA = [1,\n     2]\nB.x = 3  # note\n"
    assert sources(text) == [
        (3, "import a.b"),
        (4, "A = [1,\n     2]"),
        (6, "B.x = 3  # note"),
    ]


def test_blocks_are_resolved():
    text = (
        "scope/Config:  # all of it\n"
        "  # the first\n"
        "  a = 1  # one\n"
        "\n"
        "  b = {'k': 2,\n"
        "       'l': 3}\n"
        "# between\n"
        "Other.c = 3\n"
    )
    assert sources(text) == [
        (3, "scope/Config.a = 1  # one"),
        (5, "scope/Config.b = {'k': 2,\n       'l': 3}"),
        (8, "Other.c = 3"),
    ]


def test_two_blocks_follow_each_other():
    assert sources("A:\n  x = 1\nB:\n  y = 2") == [(2, "A.x = 1"), (4, "B.y = 2")]


def test_comments_and_blank_lines_are_kept():
    text = "# One\n# Two\n\nA = 1\n"
    assert list(split_statements(text, "x.gin")) == [
        Statement(1, "# One", is_comment=True),
        Statement(2, "# Two", is_comment=True),
        Statement(3, "", is_comment=True),
        Statement(4, "A = 1"),
    ]


def test_a_continued_line_is_one_statement():
    assert sources("A = \\\n  1\nB = 2") == [(1, "A = \\\n  1"), (3, "B = 2")]


def test_nothing_but_comments():
    assert sources("") == sources("# only\n\n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A = 1\nB = [1, 2\nC = 3\n", "x.gin:2: a bracket or quote is never closed"),
        ("A = '''x\n", "x.gin:1: a bracket or quote is never closed"),
        ("B:\n  a = 1\n    b = 2\n", r"x.gin:3: .*block `B:` indented by the same"),
        ("B:\nA = 1\n", r"x.gin:2: expected the bindings of the block `B:`"),
        ("A = 1\nB:\n", r"x.gin:2: the block `B:` is empty"),
        ("B:\n    a = 1\n  b = 2\n", "x.gin:3: the indentation does not match"),
    ],
)
def test_structure_errors_name_the_line(text, message):
    with pytest.raises(ConfigError, match=message):
        sources(text)
