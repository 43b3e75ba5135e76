"""Tests of the verify_checkpoint program."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from alf_lite.bin import verify_checkpoint
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.tools import checkpoint_report


@pytest.fixture
def root_dir(trained, tmp_path):
    """A copy of the run."""
    return shutil.copytree(trained, tmp_path / "run")


def result_of(capsys, *arguments: str, exit_code: int = 0) -> dict:
    assert verify_checkpoint.main([*arguments, "--json"]) == exit_code
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("place", ["", "checkpoints"])
def test_all_checkpoints_of_a_run_are_described(trained, capsys, place):
    result = result_of(capsys, f"--root_dir={trained / place}")
    assert (result["num_valid"], result["num_invalid"]) == (2, 0)
    first, last = result["checkpoints"]
    assert (first["step"], last["step"]) == (2, 4)
    assert last["is_valid"]
    assert last["problem"] is None
    assert last["algorithm"] == "PPOAlgorithm"
    assert last["specs"]["observation"].startswith("(4,) float32")
    # Two encoders 4 -> 16, one head 16 -> 2 and one 16 -> 1.
    assert last["num_parameters"] == 2 * (4 * 16 + 16) + 16 * 2 + 2 + 16 + 1
    assert last["resumable"]
    assert last["best_score"] is None or last["best_score"] > 0
    assert set(last["files"]) >= {"algorithm.pt", "trainer.pt", "user.gin"}
    assert last["num_bytes"] == sum(last["files"].values())
    assert last["written"].startswith("20")
    assert 0 < first["env_steps"] < last["env_steps"]


def test_one_checkpoint_is_told_line_by_line(trained, capsys):
    assert verify_checkpoint.main([str(trained / "checkpoints" / "ckpt-4")]) == 0
    text = capsys.readouterr().out
    for line in ("algorithm          PPOAlgorithm", "resumable          yes", "good:"):
        assert line in text


def test_a_table_has_one_line_for_each(root_dir, capsys):
    (root_dir / "checkpoints" / "ckpt-2" / "random.pt").write_bytes(b"")
    assert verify_checkpoint.main([str(root_dir)]) == 3
    header, first, second, problem = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["checkpoint", "algorithm"]
    assert first.startswith("ckpt-2")
    assert first.endswith("REFUSED")
    assert second.startswith("ckpt-4")
    assert second.endswith("good")
    assert problem.startswith("REFUSED: ")
    assert "random.pt: 0 bytes" in problem


@pytest.mark.parametrize(
    "file_name", ["manifest.json", "algorithm.pt", "training.pt", "user.gin"]
)
@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "pipe"])
def test_every_damage_is_found_and_nothing_is_changed(
    root_dir, capsys, file_name, damage
):
    checkpoints = root_dir / "checkpoints"
    file = checkpoints / "ckpt-4" / file_name
    content = bytearray(file.read_bytes())
    if damage == "cut":
        os.truncate(file, len(content) // 2)
    elif damage == "flipped":
        content[len(content) // 2] ^= 0x80  # no text after that
        file.write_bytes(content)
    else:
        file.unlink()
        if damage == "pipe":
            os.mkfifo(file)
    result = result_of(capsys, str(root_dir), exit_code=3)
    assert [one["is_valid"] for one in result["checkpoints"]] == [True, False]
    assert file_name in result["checkpoints"][1]["problem"]
    names = {path.name for path in checkpoints.iterdir()}
    assert names == {"ckpt-2", "ckpt-4"}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("algorithm", "any"), float("nan"), "1 entries are NaN or infinite"),
        (("trainer", "run"), {}, r"trainer['run']"),
        (("random", "torch"), None, r"random['torch']"),
        (("training",), 5, "training: expected a dict"),
    ],
)
def test_wrong_content_with_right_hashes_is_found(
    root_dir, capsys, path, value, message
):
    checkpointer = Checkpointer(root_dir / "checkpoints")
    state = checkpointer.load(4).state
    if path[-1] == "any":
        next(iter(state["algorithm"].values())).fill_(value)
    elif len(path) == 1:
        state[path[0]] = value
    else:
        state[path[0]][path[1]] = value
    checkpointer.save(4, state)
    path = root_dir / "checkpoints" / "ckpt-4"
    result = result_of(capsys, str(path), exit_code=3)
    assert message in result["checkpoints"][0]["problem"]


def test_buffers_may_be_infinite(tmp_path, capsys):
    state = {"algorithm": {"weight": torch.ones(3), "low": torch.tensor(-torch.inf)}}
    metadata = {"buffers": ["low"]}
    Checkpointer(tmp_path).save(
        1, state, metadata=metadata, best_score=-2.5, resumable=False
    )
    result = result_of(capsys, str(tmp_path))
    assert result["checkpoints"][0]["num_parameters"] == 3
    assert result["checkpoints"][0]["best_score"] == -2.5
    assert not result["checkpoints"][0]["resumable"]


@pytest.mark.parametrize("name", ["nowhere", "", "file", "ckpt-7"])
def test_where_there_is_no_checkpoint_it_says_so(tmp_path, capsys, name):
    (tmp_path / "file").touch()
    assert verify_checkpoint.main([str(tmp_path / name)]) == 3
    assert "no checkpoint at" in capsys.readouterr().err


def test_bad_flags_are_exit_code_2(capsys):
    assert verify_checkpoint.main([]) == 2
    assert "no PATH is given" in capsys.readouterr().err
    assert verify_checkpoint.main(["--rootdir=x"]) == 2


def test_checkpoints_that_their_run_deletes_or_replaces_meanwhile(
    root_dir, capsys, monkeypatch
):
    checkpoints = root_dir / "checkpoints"
    original = checkpoint_report._examine
    seen = []

    def rotate(path):
        seen.append(path.name)
        if seen == ["ckpt-2"]:
            shutil.rmtree(path)
        if seen == ["ckpt-2", "ckpt-4"]:
            path.rename(checkpoints / "aside")
            report = original(path)
            shutil.copytree(checkpoints / "aside", path)
            return report
        return original(path)

    monkeypatch.setattr(checkpoint_report, "_examine", rotate)
    result = result_of(capsys, str(root_dir))
    assert [one["step"] for one in result["checkpoints"]] == [4]
    assert seen == ["ckpt-2", "ckpt-4", "ckpt-4"]
