"""Every file of a checkpoint damaged in every way: found, and the older one taken."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.errors import CheckpointError
from tests.reliability.disturbance import environ
from tests.reliability.trainer_process import newest_step
from tests.trainers.run_comparison import assert_same_run, differences

pytestmark = pytest.mark.ci

NEWEST, OLDER = 40, 35
MANIFEST = "manifest.json"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory):
    """Builds a run that was killed after 42 of 50 iterations; to be copied."""
    made: list[Path] = []

    def build(launcher, conf) -> Path:
        if not made:
            root_dir = tmp_path_factory.mktemp("killed") / "run"
            killing = environ(signals=[(43, "SIGKILL", 0)])
            arguments = [f"--conf={conf['sac']}"]
            assert launcher.start(root_dir, arguments, environ=killing).wait() == -9
            assert newest_step(root_dir) >= NEWEST
            made.append(root_dir)
        return made[0]

    return build


# What is done to a file; each gets the file and an intact copy elsewhere.

Damage = Callable[[Path, Path], object]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def flips(count: int) -> dict[str, Damage]:
    bits = random.Random(1).sample(range(10**9), count)
    return {f"bit {bit} flipped": lambda p, o, b=bit: flip(p, b) for bit in bits}


def replaced_by(make: Callable[[Path, Path], object]) -> Damage:
    def damage(path: Path, other: Path) -> None:
        path.unlink()
        make(path, other)

    return damage


CONTENT: dict[str, Damage] = {
    "one byte short": lambda path, other: os.truncate(path, path.stat().st_size - 1),
    "zeros in place of it": lambda path, other: path.write_bytes(
        bytes(path.stat().st_size)
    ),
    "deleted": lambda path, other: path.unlink(),
}
MORE: dict[str, Damage] = {
    "emptied": lambda path, other: os.truncate(path, 0),
    "cut in half": lambda path, other: os.truncate(path, path.stat().st_size // 2),
    "a link to itself": replaced_by(lambda path, other: path.symlink_to(path.name)),
    "a link to /dev/zero": replaced_by(
        lambda path, other: path.symlink_to("/dev/zero")
    ),
}
OTHER_KINDS: dict[str, Damage] = {
    "a link to the same": replaced_by(lambda path, other: path.symlink_to(other)),
    "a FIFO": replaced_by(lambda path, other: os.mkfifo(path)),
    "a directory": replaced_by(lambda path, other: path.mkdir()),
}


class Hang(BaseException):
    """Not to be taken for an error of the file."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raises Hang after that time."""

    def ring(number: int, frame: object) -> None:
        raise Hang

    previous = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def load_after(
    directory: Path, killed: Path, name: str, damage: Damage
) -> Checkpointer | None:
    """The checkpoint that is loaded after ``name`` of the newest was damaged."""
    shutil.copytree(killed / "checkpoints", directory / "checkpoints")
    other = directory / name
    shutil.copy(directory / "checkpoints" / f"ckpt-{NEWEST}" / name, other)
    before = other.read_bytes()
    damage(directory / "checkpoints" / f"ckpt-{NEWEST}" / name, other)
    with within(60):  # what hangs does so for ever
        loaded = Checkpointer(directory / "checkpoints").load(resumable=True)
    assert other.read_bytes() == before
    return loaded


def check_all(
    directory: Path, killed: Path, damages: dict[str, Damage]
) -> tuple[int, list[str]]:
    """How many cases there are, and those in which the damage was not found."""
    newest = killed / "checkpoints" / f"ckpt-{NEWEST}"
    expected = Checkpointer(killed / "checkpoints", read_only=True).load(NEWEST).state
    names = sorted(path.name for path in newest.iterdir())
    failures = []
    for name in names:
        for number, (text, damage) in enumerate(damages.items()):
            case = directory / f"{name}-{number}"
            case.mkdir()
            try:
                loaded = load_after(case, killed, name, damage)
            except (CheckpointError, Hang) as error:
                failures.append(f"{name} {text}: {error!r}")
                continue
            # Not all of the manifest is about what is loaded.
            is_same = name == MANIFEST and not differences(expected, loaded.state, "")
            if loaded.step != OLDER and not is_same:
                failures.append(f"{name} {text}: loaded {loaded.step}")
            shutil.rmtree(case)
    return len(names) * len(damages), failures


def test_wrong_content_of_any_file_is_found_and_the_older_checkpoint_taken(
    launcher, conf, killed, tmp_path
):
    damages = {**CONTENT, **flips(1)}
    tried, failures = check_all(tmp_path, killed(launcher, conf), damages)
    assert failures == []
    assert tried >= 30


@pytest.mark.slow
def test_every_one_of_many_flipped_bits_is_found(launcher, conf, killed, tmp_path):
    damages = {**MORE, **flips(200)}
    tried, failures = check_all(tmp_path, killed(launcher, conf), damages)
    assert failures == []
    assert tried >= 1500


def test_what_is_no_file_is_neither_followed_nor_waited_for(
    launcher, conf, killed, tmp_path
):
    root_dir = killed(launcher, conf)
    tried, failures = check_all(tmp_path, root_dir, OTHER_KINDS)
    assert failures == []
    assert tried >= 20


@pytest.mark.parametrize(
    "damage",
    [
        replaced_by(lambda path, other: os.mkfifo(path)),
        replaced_by(lambda path, other: path.symlink_to(other)),
        replaced_by(lambda path, other: path.write_text("not a checkpoint")),
    ],
    ids=["FIFO", "link", "file"],
)
def test_what_is_in_the_place_of_a_checkpoint_is_left_alone(
    launcher, conf, killed, tmp_path, damage
):
    shutil.copytree(killed(launcher, conf) / "checkpoints", tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / f"ckpt-{NEWEST}"
    other = tmp_path / "other"
    newest.rename(other)
    newest.touch()
    damage(newest, other)
    before = sorted(path.name for path in other.iterdir())
    with within(60):  # what hangs does so for ever
        loaded = Checkpointer(tmp_path / "checkpoints").load(resumable=True)
    # What a link leads to is a checkpoint, which may be elsewhere.
    assert loaded.step in (OLDER, NEWEST)
    assert sorted(path.name for path in other.iterdir()) == before


def test_a_run_goes_on_from_the_older_checkpoint_and_ends_as_if_nothing_was(
    launcher, straight, conf, killed, tmp_path
):
    arguments = [f"--conf={conf['sac']}"]
    root_dir = tmp_path / "run"
    shutil.copytree(killed(launcher, conf), root_dir)
    flip(root_dir / "checkpoints" / f"ckpt-{NEWEST}" / "algorithm.pt", 5000)
    resumed = launcher.start(root_dir, arguments)
    resumed.finish()
    assert "algorithm.pt" in resumed.error
    assert "does not match its sha256" in resumed.error
    assert_same_run(straight(conf["sac"]), root_dir)
