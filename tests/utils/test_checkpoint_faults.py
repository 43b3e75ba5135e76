"""Checkpoints and a machine that fails, and files that are not what they should be."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from alf_lite.checkpoints import data as checkpoint_data
from alf_lite.checkpoints import files as checkpoint_files
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.errors import CheckpointError, DamagedCheckpointError


def save(directory: Path, *steps: int) -> Checkpointer:
    checkpointer = Checkpointer(directory, keep_latest=10)
    for step in steps:
        checkpointer.save(step, {"algorithm": {"weight": torch.full((3,), step * 1.0)}})
    return checkpointer


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def put(path: Path, name: str, content: bytes) -> None:
    """Replaces a file, with a manifest that fits."""
    (path / name).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change_manifest(path, lambda manifest: manifest["files"].update({name: entry}))


def change_manifest(path: Path, change) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


# Trouble of the machine is no damage


@pytest.mark.parametrize(
    "code", [errno.EACCES, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO]
)
@pytest.mark.parametrize("file_name", ["manifest.json", "algorithm.pt"])
def test_what_cannot_be_opened_is_reported_and_kept(
    tmp_path, monkeypatch, code, file_name
):
    checkpointer = save(tmp_path, 1, 2)
    original = os.open

    def fail(path, *args, **kwargs):
        if Path(path).name == file_name:
            raise OSError(code, os.strerror(code), str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(checkpoint_files.os, "open", fail)
    with pytest.raises(CheckpointError, match=os.strerror(code)) as caught:
        checkpointer.load()
    monkeypatch.undo()
    assert "try again; nothing was changed" in str(caught.value)
    assert names(tmp_path) == {"ckpt-1", "ckpt-2"}
    assert checkpointer.load().step == 2


def test_an_error_of_the_disk_while_reading_is_no_damage(tmp_path, monkeypatch):
    checkpointer = save(tmp_path, 1, 2)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoint_files.hashlib, "file_digest", fail)
    with pytest.raises(CheckpointError, match=r"Input/output error.*the disk"):
        checkpointer.load()
    monkeypatch.undo()
    assert names(tmp_path) == {"ckpt-1", "ckpt-2"}


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"),
    ],
)
def test_too_little_memory_is_no_damage(tmp_path, monkeypatch, error):
    checkpointer = save(tmp_path, 1, 2)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(checkpoint_data.torch, "load", fail)
    with pytest.raises(CheckpointError, match="not enough memory"):
        checkpointer.load()
    monkeypatch.undo()
    assert checkpointer.load().step == 2


def test_without_a_free_descriptor_nothing_is_renamed(tmp_path):
    checkpointer = save(tmp_path, 1, 2)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as file:
        resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno(), limits[1]))
        try:
            with pytest.raises(CheckpointError, match=r"Too many open files.*ulimit"):
                checkpointer.load()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert names(tmp_path) == {"ckpt-1", "ckpt-2"}


def test_a_checkpoint_of_a_newer_version_is_kept_and_no_older_one_taken(tmp_path):
    checkpointer = save(tmp_path, 1, 2)
    change_manifest(tmp_path / "ckpt-2", lambda manifest: manifest.update(schema=99))
    with pytest.raises(CheckpointError, match=r"schema 99.*Update alf_lite"):
        checkpointer.load()
    assert names(tmp_path) == {"ckpt-1", "ckpt-2"}
    checkpointer.save(3, {"algorithm": {}})  # what cannot be read is not pruned
    assert names(tmp_path) == {"ckpt-1", "ckpt-2", "ckpt-3"}


def test_the_newest_two_damaged_ones_are_kept_once_there_is_a_new_one(tmp_path):
    checkpointer = save(tmp_path, 1, 2, 3, 4)
    for step in (1, 2, 3, 4):
        (tmp_path / f"ckpt-{step}" / "algorithm.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        checkpointer.load()
    assert names(tmp_path) == {f"ckpt-{step}.corrupt" for step in (1, 2, 3, 4)}
    checkpointer.save(5, {"algorithm": {}})
    assert names(tmp_path) == {"ckpt-3.corrupt", "ckpt-4.corrupt", "ckpt-5"}


# Other things than files


@pytest.mark.parametrize("file_name", ["manifest.json", "algorithm.pt", "user.gin"])
@pytest.mark.parametrize("kind", ["pipe", "link to /dev/zero", "directory"])
def test_what_is_no_file_is_refused_at_once(tmp_path, file_name, kind):
    checkpointer = Checkpointer(tmp_path)
    for step in (1, 2):
        checkpointer.save(step, {"algorithm": {}}, {"user.gin": "x = 1\n"})
    file = tmp_path / "ckpt-2" / file_name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(DamagedCheckpointError):
        checkpoint_data.read(tmp_path / "ckpt-2", None, resumable=True)
    assert checkpointer.load().step == 1
    assert names(tmp_path) == {"ckpt-1", "ckpt-2.corrupt"}


def test_of_a_linked_checkpoint_only_the_link_is_deleted(tmp_path):
    save(tmp_path / "others", 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "ckpt-1").symlink_to(tmp_path / "others" / "ckpt-1")
    Checkpointer(tmp_path / "mine", keep_latest=1).save(2, {"algorithm": {}})
    assert names(tmp_path / "mine") == {"ckpt-2"}
    assert Checkpointer(tmp_path / "others").load().step == 1


# Right hashes, wrong content


@pytest.mark.parametrize(
    "change",
    [
        {"best_score": "5"},
        {"best_score": [1.0]},
        {"resumable": "yes"},
        {"resumable": 1},
        {"metadata": [1, 2]},
        {"metadata": None},
        {"metadata": {"env_steps": -1}},
    ],
)
def test_a_malformed_entry_of_the_manifest_is_named(tmp_path, change):
    checkpointer = save(tmp_path, 1)
    change_manifest(tmp_path / "ckpt-1", lambda manifest: manifest.update(change))
    with pytest.raises(CheckpointError, match=rf"manifest\.json: {next(iter(change))}"):
        checkpointer.load()
    assert names(tmp_path) == {"ckpt-1"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400"])
def test_scores_that_are_no_numbers_are_refused(tmp_path, number):
    checkpointer = save(tmp_path, 1)
    file = tmp_path / "ckpt-1" / "manifest.json"
    file.write_text(
        file.read_text().replace('"best_score": null', f'"best_score": {number}')
    )
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpointer.load()


def saved_bytes(value) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def compressed(content: bytes) -> bytes:
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    return file.getvalue()


def legacy(value) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def list_of_itself() -> list:
    value: list = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not plain data"),
        (b"no archive", "not plain data"),
        (legacy({"a": torch.zeros(3)}), "not plain data"),
        (compressed(saved_bytes({"a": torch.zeros(1000)})), "is compressed"),
        (saved_bytes({"a": {1, 2}}), r"algorithm\['a'\]: a set is no plain data"),
        (saved_bytes({(1, 2): 3}), "its keys are no strings or numbers"),
        (saved_bytes({"a": [torch.zeros(3).to_sparse()]}), r"algorithm\['a'\]\[0\]"),
        (saved_bytes({"a": torch.zeros(3, device="meta")}), r"algorithm\['a'\]"),
        (saved_bytes({"a": torch.nn.Parameter(torch.zeros(3))}), r"algorithm\['a'\]"),
        (
            saved_bytes({"a": torch.zeros(1).expand(30_000, 30_000)}),
            r"algorithm\['a'\]: a tensor \[30000, 30000\].*only 4 bytes",
        ),
    ],
)
def test_a_foreign_part_is_refused_with_its_entry(tmp_path, content, message):
    checkpointer = save(tmp_path, 1)
    put(tmp_path / "ckpt-1", "algorithm.pt", content)
    with pytest.raises(CheckpointError, match=rf"algorithm\.pt: .*{message}"):
        checkpointer.load()
    assert names(tmp_path) == {"ckpt-1"}  # it is as it was written


def test_a_list_that_contains_itself_ends(tmp_path):
    checkpointer = save(tmp_path, 1)
    put(tmp_path / "ckpt-1", "algorithm.pt", saved_bytes({"a": list_of_itself()}))
    assert list(checkpointer.load().state["algorithm"]) == ["a"]


@pytest.mark.ci
def test_gigabytes_that_a_few_bytes_declare_are_refused_before_they_are_taken(tmp_path):
    save(tmp_path, 1)
    content = saved_bytes({"weight": torch.zeros(1).expand(750, 1_000_000)})  # 3 GB
    assert len(content) < 50_000
    put(tmp_path / "ckpt-1", "algorithm.pt", content)
    code = (
        "import resource, sys\n"
        "from alf_lite.checkpoints.checkpointer import Checkpointer, load_prefix\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    load_prefix('@' + sys.argv[1])\n"
        "except ValueError as error:\n    assert 'only 4 bytes' in str(error), error\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout) < 100_000  # kB


def test_expanded_tensors_are_saved_with_all_their_elements(tmp_path):
    weight = torch.arange(3.0)[:, None].expand(3, 4)
    Checkpointer(tmp_path).save(1, {"algorithm": {"weight": weight}})
    loaded = Checkpointer(tmp_path).load().state["algorithm"]["weight"]
    assert torch.equal(loaded, weight)
