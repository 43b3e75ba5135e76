"""Tests of alf_lite.checkpoints.checkpointer and its files."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import random
import shutil
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from alf_lite.checkpoints import checkpointer as checkpointer_module
from alf_lite.checkpoints import files as checkpoint_files
from alf_lite.checkpoints.checkpointer import Checkpointer, load_prefix
from alf_lite.errors import CheckpointError


def state_of(value: float) -> dict:
    return {
        "algorithm": {"weight": torch.full((3, 2), value), "bias": torch.zeros(2)},
        "training": {"optimizer": {0: {"step": torch.tensor(value)}}, "count": [1, 2]},
    }


def value_of(loaded) -> float:
    return float(loaded.state["algorithm"]["weight"][0, 0])


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


# The best one


def test_one_that_there_is_may_be_said_to_be_the_best(directory, monkeypatch):
    checkpointer = Checkpointer(directory, keep_latest=1)
    for step in (1, 2):
        checkpointer.save(step, state_of(step), best_score=3.0 if step == 1 else None)
    assert checkpointer.load("best").step == 1

    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "_write_file", full)
        with pytest.raises(CheckpointError, match="ckpt-2"):
            checkpointer.mark_best(2, 5.0)
    assert checkpointer.load("best").step == 1
    assert checkpointer.mark_best(2, 5.0)
    assert not checkpointer.mark_best(3, 7.0)
    # What was the best before is of no use any more.
    assert names(directory) == {"ckpt-2"}
    loaded = checkpointer.load("best", resumable=True)
    assert (loaded.step, value_of(loaded)) == (2, 2.0)


def test_the_best_policy_of_a_part_that_was_killed_has_its_own_score(directory):
    checkpointer = Checkpointer(directory)
    checkpointer.save(2, state_of(2), best_score=3.0, resumable=False)
    assert not checkpointer.mark_best(2, 5.0)
    [info] = checkpointer.list_checkpoints()
    assert info.best_score == 3


# Round trip


def test_loads_what_was_saved(directory):
    generator = random.Random(1)
    state = {
        "algorithm": OrderedDict(weight=torch.randn(3, 2, dtype=torch.float64)),
        "rest": {
            "numbers": [1, 2.5, True, None, "text", b"bytes", 2**70],
            "tuple": (torch.tensor([1, 2], dtype=torch.uint8), ()),
            "integer keys": {0: torch.tensor(float("inf"))},
            "python_random": generator.getstate(),
            "bfloat16": torch.ones(2, dtype=torch.bfloat16),
            "dtype": torch.float16,
        },
    }
    path = Checkpointer(directory).save(
        7, state, {"user.gin": "a = 'é'\n"}, {"algorithm": "X"}
    )
    loaded = Checkpointer(directory).load()
    assert loaded.path == path == directory / "ckpt-7"
    assert loaded.step == 7
    assert loaded.metadata == {"algorithm": "X"}
    assert loaded.texts == {"user.gin": "a = 'é'\n"}
    weight = loaded.state["algorithm"]["weight"]
    assert weight.dtype == torch.float64
    assert torch.equal(weight, state["algorithm"]["weight"])
    rest = loaded.state["rest"]
    assert rest["numbers"] == state["rest"]["numbers"]
    assert rest["tuple"][0].tolist() == [1, 2]
    assert rest["tuple"][1] == ()
    assert rest["integer keys"][0] == float("inf")
    assert rest["python_random"] == generator.getstate()
    assert rest["bfloat16"].dtype == torch.bfloat16
    assert rest["dtype"] == torch.float16


def test_view_is_saved_without_the_storage_it_belongs_to(directory):
    large = torch.zeros(1_000_000)
    path = Checkpointer(directory).save(0, {"algorithm": {"row": large[10:20]}})
    assert (path / "algorithm.pt").stat().st_size < 10_000


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.zeros(2), "ndarray"),
        (np.complex64(1.0), "complex64"),
        (namedtuple("Pair", "a b")(1, 2), "Pair"),
        (Path("x"), "Path"),
        ({1, 2}, "set"),
        (print, "builtin_function_or_method"),
    ],
)
def test_refuses_to_save_what_is_not_data_and_names_its_path(directory, value, kind):
    with pytest.raises(TypeError, match=rf"training\['a'\]\[1\].*{kind}"):
        Checkpointer(directory).save(0, {"training": {"a": [0, value]}})
    assert not directory.exists() or not names(directory)


def test_saving_a_step_again_replaces_it(directory):
    checkpointer = Checkpointer(directory)
    checkpointer.save(5, state_of(1.0))
    checkpointer.save(5, state_of(2.0))
    assert value_of(checkpointer.load()) == 2.0
    assert names(directory) == {"ckpt-5"}


# Which one


def test_latest_best_and_a_step_are_found(directory):
    checkpointer = Checkpointer(directory, keep_latest=10)
    for step, score in ((9, 1.0), (10, 3.0), (100, 2.0)):
        checkpointer.save(step, state_of(step), best_score=score)
    assert value_of(checkpointer.load()) == 100.0  # by number, not by spelling
    assert value_of(checkpointer.load("best")) == 10.0
    assert value_of(checkpointer.load(9)) == 9.0
    assert [info.step for info in checkpointer.list_checkpoints()] == [9, 10, 100]
    with pytest.raises(CheckpointError, match="present: steps 9, 10, 100"):
        checkpointer.load(11)


def test_without_a_score_there_is_no_best(directory):
    checkpointer = Checkpointer(directory)
    checkpointer.save(1, state_of(1.0))
    with pytest.raises(CheckpointError, match=r'none has a score.*evaluate.*"latest"'):
        checkpointer.load("best")


def test_keeps_the_newest_and_the_best(directory):
    checkpointer = Checkpointer(directory, keep_latest=2)
    scores = {1: 5.0, 2: 7.0}
    for step in range(1, 7):
        checkpointer.save(step, state_of(step), best_score=scores.get(step))
    assert names(directory) == {"ckpt-2", "ckpt-5", "ckpt-6"}


def test_others_stay_until_they_are_pruned(directory):
    checkpointer = Checkpointer(directory, keep_latest=1)
    for step in (1, 2):
        checkpointer.save(step, state_of(step), prunes=False)
    assert names(directory) == {"ckpt-1", "ckpt-2"}
    checkpointer.prune()
    assert names(directory) == {"ckpt-2"}


def test_later_ones_are_set_aside(directory):
    checkpointer = Checkpointer(directory)
    for step in (1, 2, 3):
        checkpointer.save(step, state_of(step))
    checkpointer.save(4, state_of(4), best_score=1.0, resumable=False)
    checkpointer.set_aside_after(1)
    assert names(directory) == {
        *("ckpt-1", "ckpt-2.corrupt", "ckpt-3.corrupt", "ckpt-4"),
    }
    assert checkpointer.load("best").step == 4
    assert checkpointer.load(resumable=True).step == 1


def test_playable_only_checkpoints_are_neither_resumed_nor_count_as_latest(directory):
    checkpointer = Checkpointer(directory, keep_latest=2)
    checkpointer.save(10, state_of(10.0))
    checkpointer.save(20, state_of(20.0))
    for step, score in ((23, 1.0), (25, 2.0), (27, 3.0)):
        policy = {"algorithm": state_of(step)["algorithm"]}
        checkpointer.save(step, policy, best_score=score, resumable=False)
    assert names(directory) == {"ckpt-10", "ckpt-20", "ckpt-27"}
    assert checkpointer.load(resumable=True).step == 20
    assert checkpointer.load(parts=["algorithm"]).step == 27
    assert checkpointer.load(parts=["algorithm", "training"]).step == 20


def test_playing_needs_only_its_own_part(directory):
    checkpointer = Checkpointer(directory)
    path = checkpointer.save(1, state_of(4.0))
    (path / "training.pt").unlink()
    reader = Checkpointer(directory, read_only=True)
    assert value_of(reader.load(parts=["algorithm"])) == 4.0
    with pytest.raises(CheckpointError, match=r"training\.pt"):
        reader.load()


def test_empty_directory_is_an_error_and_never_an_empty_state(directory):
    checkpointer = Checkpointer(directory)
    assert not checkpointer.has_checkpoint()
    with pytest.raises(CheckpointError, match="there is none"):
        checkpointer.load()


def test_a_reader_finds_what_is_replaced_again_and_again(directory, monkeypatch):
    """As by a trainer that saves in every iteration, on a busy machine."""
    writer = Checkpointer(directory, keep_latest=1)
    writer.save(1, state_of(1.0))
    reader, steps = Checkpointer(directory, read_only=True), []
    read = checkpointer_module.read

    def read_too_late(path, *args, **kwargs):
        if len(steps) < 100:
            steps.append(len(steps) + 2)
            writer.save(steps[-1], state_of(steps[-1]))
        return read(path, *args, **kwargs)

    monkeypatch.setattr(checkpointer_module, "read", read_too_late)
    assert value_of(reader.load()) == steps[-1]
    assert len(steps) == 100


# Damage


FILES = ("manifest.json", "algorithm.pt", "training.pt", "user.gin")


def save_two(directory: Path) -> Checkpointer:
    checkpointer = Checkpointer(directory)
    checkpointer.save(1, state_of(1.0), {"user.gin": "x = 1\n"})
    checkpointer.save(2, state_of(2.0), {"user.gin": "x = 1\n"})
    return checkpointer


@pytest.mark.parametrize("file_name", FILES)
@pytest.mark.parametrize("eighths", [0, 1, 4, 7, 8])
def test_truncated_file_is_reported_and_the_previous_checkpoint_used(
    directory, caplog, file_name, eighths
):
    checkpointer = save_two(directory)
    file = directory / "ckpt-2" / file_name
    size = file.stat().st_size
    os.truncate(file, min(size * eighths // 8, size - 1))
    assert value_of(checkpointer.load()) == 1.0
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert file_name in errors[0].getMessage()
    assert names(directory) == {"ckpt-1", "ckpt-2.corrupt"}


@pytest.mark.parametrize("file_name", ["algorithm.pt", "training.pt", "user.gin"])
def test_every_flipped_bit_is_detected(directory, file_name):
    save_two(directory)
    reader = Checkpointer(directory, read_only=True)
    file = directory / "ckpt-2" / file_name
    intact = file.read_bytes()
    generator = random.Random(0)
    for position in generator.choices(range(len(intact)), k=60):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << generator.randrange(8)
        file.write_bytes(damaged)
        assert reader.load().step == 1, position
    file.write_bytes(intact)
    assert reader.load().step == 2


def test_flipped_bit_in_the_manifest_never_changes_what_is_loaded(directory):
    save_two(directory)
    reader = Checkpointer(directory, read_only=True)
    file = directory / "ckpt-2" / "manifest.json"
    intact = file.read_bytes()
    for position in range(0, len(intact), 7):
        damaged = bytearray(intact)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        loaded = reader.load(parts=["algorithm"])
        assert value_of(loaded) == float(loaded.step)


def test_all_damaged_is_an_error_also_the_next_time(directory):
    checkpointer = save_two(directory)
    for path in directory.iterdir():
        (path / "algorithm.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="0 bytes, the manifest says"):
        checkpointer.load()
    again = Checkpointer(directory)
    assert again.has_checkpoint()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        again.load()


def test_reader_leaves_a_damaged_checkpoint_in_place(directory):
    save_two(directory)
    (directory / "ckpt-2" / "algorithm.pt").unlink()
    assert Checkpointer(directory, read_only=True).load().step == 1
    assert names(directory) == {"ckpt-1", "ckpt-2"}


def test_damaged_step_asked_for_by_number_is_not_silently_another(directory):
    checkpointer = save_two(directory)
    (directory / "ckpt-2" / "algorithm.pt").unlink()
    with pytest.raises(CheckpointError, match=r"ckpt-2/algorithm\.pt: cannot be read"):
        checkpointer.load(2)


# Hostile content


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return (open, (str(self._path), "w"))


def rewrite_manifest(path: Path, change) -> None:
    """Applies ``change`` to the manifest and makes it match the files again."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def put(path: Path, name: str, content: bytes) -> None:
    """Replaces a file as an attacker would: with a manifest that fits."""
    (path / name).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite_manifest(path, lambda manifest: manifest["files"].update({name: entry}))


@pytest.mark.parametrize("forced", [False, True])
def test_hostile_pickle_runs_no_code(directory, tmp_path, monkeypatch, forced):
    if forced:
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = Checkpointer(directory).save(1, state_of(1.0))
    trace = tmp_path / "executed"
    file = io.BytesIO()
    torch.save({"weight": Hostile(trace)}, file)
    put(path, "algorithm.pt", file.getvalue())
    with pytest.raises(
        CheckpointError, match=r"not plain data \(it wants to call .*\)$"
    ):
        Checkpointer(directory).load()
    assert not trace.exists()


@pytest.mark.parametrize(
    "name", ["../evil.pt", "/etc/passwd", "a/b.pt", ".hidden", "", "x\x00.pt", "é.pt"]
)
def test_file_names_that_lead_elsewhere_are_refused(directory, name):
    path = Checkpointer(directory).save(1, state_of(1.0))
    entry = {"bytes": 0, "sha256": ""}
    rewrite_manifest(path, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(CheckpointError, match="refused the file name"):
        Checkpointer(directory).load()


def test_symbolic_link_is_refused(directory, tmp_path):
    path = Checkpointer(directory).save(1, state_of(1.0))
    outside = tmp_path / "outside.pt"
    shutil.move(path / "algorithm.pt", outside)
    (path / "algorithm.pt").symlink_to(outside)
    with pytest.raises(CheckpointError, match=r"algorithm\.pt: cannot be read"):
        Checkpointer(directory).load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "alf_lite-checkpoint", "format": "x"}', "a key appears twice"),
        ("[" * 200_000, "not valid JSON"),
        ("[]", "expected dict"),
        ('{"format": "other"}', "not a manifest"),
        ('{"format": "alf_lite-checkpoint", "schema": "1"}', "unknown schema"),
        ('{"format": "alf_lite-checkpoint", "schema": 1}', "lists no files"),
        (
            '{"format": "alf_lite-checkpoint", "schema": 99, "alf_lite": "9.0"}',
            r"written by alf_lite 9\.0.*Update",
        ),
    ],
)
def test_malformed_manifest_is_refused_with_its_reason(directory, text, message):
    path = Checkpointer(directory).save(1, state_of(1.0))
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(directory).load()


def test_manifest_that_claims_terabytes_is_refused_before_reading(directory):
    path = Checkpointer(directory).save(1, state_of(1.0))
    rewrite_manifest(
        path, lambda m: m["files"]["algorithm.pt"].update(bytes=40 * 10**12)
    )
    with pytest.raises(CheckpointError, match="the manifest says 40000000000000"):
        Checkpointer(directory).load()


def test_huge_manifest_is_refused_before_reading(directory):
    path = Checkpointer(directory).save(1, state_of(1.0))
    os.truncate(path / "manifest.json", 10**12)  # sparse
    with pytest.raises(CheckpointError, match="expected at most"):
        Checkpointer(directory).load()


def test_renamed_checkpoint_is_refused(directory):
    path = Checkpointer(directory).save(1, state_of(1.0))
    path.rename(directory / "ckpt-9")
    with pytest.raises(CheckpointError, match="renamed"):
        Checkpointer(directory).load()


# Failing disks


def test_full_disk_says_so_and_leaves_the_old_checkpoint(directory, monkeypatch):
    checkpointer = Checkpointer(directory, keep_latest=1)
    checkpointer.save(1, state_of(1.0))

    def fail(name: str) -> None:
        if name == "before fsync of training.pt":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "fault_point", fail)
    with pytest.raises(
        CheckpointError, match=r"ckpt-2: No space left.*needed .* MB, free .* MB"
    ):
        checkpointer.save(2, state_of(2.0))
    assert names(directory) == {"ckpt-1"}
    assert value_of(checkpointer.load()) == 1.0
    monkeypatch.undo()
    checkpointer.save(2, state_of(2.0))
    assert names(directory) == {"ckpt-2"}


@pytest.mark.ci
def test_error_at_every_point_of_saving_keeps_a_loadable_checkpoint(
    directory, monkeypatch
):
    reached: list[str] = []
    monkeypatch.setattr(checkpoint_files, "fault_point", reached.append)
    save_two(directory)
    Checkpointer(directory, keep_latest=1).save(2, state_of(2.0))
    assert "before replacing" in reached
    assert "before delete" in reached
    shutil.rmtree(directory)

    for failing in range(len(reached)):
        count = 0

        def fail(name: str, failing=failing) -> None:
            nonlocal count
            count += 1
            if count == failing + 1:
                raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(checkpoint_files, "fault_point", lambda name: None)
        Checkpointer(directory).save(0, state_of(0.0))
        monkeypatch.setattr(checkpoint_files, "fault_point", fail)
        try:
            save_two(directory)
            Checkpointer(directory, keep_latest=1).save(2, state_of(3.0))
        except (CheckpointError, OSError):
            pass
        monkeypatch.setattr(checkpoint_files, "fault_point", lambda name: None)
        checkpointer = Checkpointer(directory)
        assert value_of(checkpointer.load()) in (0.0, 1.0, 2.0, 3.0)
        left = {n for n in names(directory) if not n.startswith("ckpt-")}
        assert not left
        shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory_is_reported(directory):
    checkpointer = Checkpointer(directory)
    checkpointer.save(1, state_of(1.0))
    directory.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            checkpointer.save(2, state_of(2.0))
    finally:
        directory.chmod(0o700)


# A reader beside the writer


def test_reader_takes_another_when_its_checkpoint_is_pruned_meanwhile(
    directory, monkeypatch
):
    writer = Checkpointer(directory, keep_latest=1)
    writer.save(1, state_of(1.0))
    original = checkpoint_files.open_verified
    calls = 0

    def prune_in_between(path, manifest, name):
        nonlocal calls
        calls += 1
        if calls == 1:
            writer.save(2, state_of(2.0))
        return original(path, manifest, name)

    monkeypatch.setattr(checkpoint_files, "open_verified", prune_in_between)
    assert value_of(Checkpointer(directory, read_only=True).load()) == 2.0


def test_reader_never_mixes_two_checkpoints_of_one_step(directory, monkeypatch):
    writer = Checkpointer(directory)
    writer.save(1, state_of(1.0))
    original = checkpoint_files.open_verified
    calls = 0

    def replace_in_between(path, manifest, name):
        nonlocal calls
        calls += 1
        if calls == 2:
            writer.save(1, state_of(2.0))
        return original(path, manifest, name)

    monkeypatch.setattr(checkpoint_files, "open_verified", replace_in_between)
    loaded = Checkpointer(directory, read_only=True).load()
    assert value_of(loaded) == 2.0
    assert loaded.state["training"]["optimizer"][0]["step"] == 2.0


# Parts for other algorithms


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._actor_network = nn.Linear(2, 3)
        self._value_network = nn.Sequential(nn.Linear(2, 1))


@pytest.mark.parametrize("prefix", ["_actor_network", "algorithm._actor_network"])
@pytest.mark.parametrize("where", ["", "checkpoints", "checkpoints/ckpt-3"])
def test_prefix_loads_one_module(tmp_path, prefix, where):
    agent = Agent()
    Checkpointer(tmp_path / "checkpoints").save(3, {"algorithm": agent.state_dict()})
    part = load_prefix(f"{prefix}@{tmp_path / where}")
    assert set(part) == {"weight", "bias"}
    assert torch.equal(part["weight"], agent._actor_network.weight)


def test_empty_prefix_loads_the_whole_algorithm(tmp_path):
    agent = Agent()
    Checkpointer(tmp_path).save(3, {"algorithm": agent.state_dict()})
    assert set(load_prefix(f"@{tmp_path}")) == set(agent.state_dict())


def test_unknown_prefix_suggests_the_nearest(tmp_path):
    Checkpointer(tmp_path).save(3, {"algorithm": Agent().state_dict()})
    with pytest.raises(CheckpointError, match="Did you mean _actor_network"):
        load_prefix(f"_actor_netwrok@{tmp_path}")
    with pytest.raises(CheckpointError, match=r"holds \['_actor_network', '_value"):
        load_prefix(f"zzz@{tmp_path}")


def test_prefix_without_path_or_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="prefix@path"):
        load_prefix("_actor_network")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_prefix(f"x@{tmp_path / 'nowhere'}")


# Files that are mapped


def stream_of(content: bytes) -> checkpoint_files.Stream:
    pieces = [content[i : i + 3] for i in range(0, len(content), 3)]
    return checkpoint_files.Stream(len(content), lambda: iter(pieces))


def test_mapped_files_are_written_piece_by_piece_and_not_read(directory):
    content = bytes(range(100))
    path = Checkpointer(directory).save(
        1, state_of(1.0), mapped_files={"steps.safetensors": stream_of(content)}
    )
    loaded = Checkpointer(directory).load()
    assert loaded.mapped_files == {"steps.safetensors": path / "steps.safetensors"}
    assert loaded.mapped_files["steps.safetensors"].read_bytes() == content
    assert loaded.texts == {}
    entry = json.loads((path / "manifest.json").read_text())["files"]
    assert entry["steps.safetensors"] == {
        "bytes": 100,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def test_damaged_mapped_file_is_found_unless_only_parts_are_read(directory):
    path = Checkpointer(directory).save(
        1, state_of(1.0), mapped_files={"steps.safetensors": stream_of(b"123456")}
    )
    (path / "steps.safetensors").write_bytes(b"123756")
    loaded = Checkpointer(directory, read_only=True).load(parts=["algorithm"])
    assert value_of(loaded) == 1.0
    with pytest.raises(CheckpointError, match="does not match its sha256"):
        Checkpointer(directory).load()


def test_full_disk_says_how_much_a_mapped_file_needs(directory):
    def fill_up():
        yield b"1"
        raise OSError(errno.ENOSPC, "No space left on device")

    stream = checkpoint_files.Stream(3_000_000, fill_up)
    with pytest.raises(CheckpointError, match=r"No space left.*needed 3\.0 MB"):
        Checkpointer(directory).save(1, {}, mapped_files={"a.safetensors": stream})
    assert names(directory) == set()
