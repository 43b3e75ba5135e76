"""SIGKILL while a checkpoint is being written, at every point and at random times.

One subprocess imports torch and forks a child per case, because importing torch in
every victim would take longer than all the rest. A line of what it prints is the result
of a case.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import logging, os, random, signal, sys, time
from pathlib import Path
import torch
from alf_lite.checkpoints import files as checkpoint_files
from alf_lite.checkpoints.checkpointer import Checkpointer


def state_of(value):
    return {"algorithm": {"w": torch.full((200,), float(value))},
            "training": {"count": value}}

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

def check(directory, allowed):
    unfinished = [p for p in directory.iterdir() if p.name.startswith(".tmp-")]
    assert len(unfinished) <= 1, unfinished
    checkpointer = Checkpointer(directory, keep_latest=2)
    loaded = checkpointer.load()
    value = loaded.state["training"]["count"]
    assert value in allowed, (value, allowed)
    assert (loaded.state["algorithm"]["w"] == value).all()
    names = [p.name for p in directory.iterdir()]
    assert all(n.startswith("ckpt-") and "corrupt" not in n for n in names), names
    return value
"""

EVERY_POINT = """
root = Path(sys.argv[1])

def save_some(directory):
    checkpointer = Checkpointer(directory, keep_latest=2)
    checkpointer.save(2, state_of(2))
    checkpointer.save(3, state_of(3))  # prunes step 1
    checkpointer.save(3, state_of(4))  # replaces step 3

def prepare(directory):
    Checkpointer(directory).save(0, state_of(0))
    Checkpointer(directory).save(1, state_of(1))

counted = []
checkpoint_files.fault_point = counted.append
prepare(root / "count")
counted.clear()
save_some(root / "count")

for victim in range(len(counted)):
    directory = root / str(victim)
    checkpoint_files.fault_point = lambda name: None
    prepare(directory)
    remaining = victim

    def die(name):
        global remaining
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        remaining -= 1

    checkpoint_files.fault_point = die
    pid = in_child(lambda: save_some(directory))
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), (victim, counted[victim], status)
    checkpoint_files.fault_point = lambda name: None
    last = check(directory, {1, 2, 3, 4})
    # Work goes on where it stopped.
    Checkpointer(directory).save(9, state_of(9))
    assert check(directory, {9}) == 9
print(len(counted))
"""

RANDOM_TIMES = """
trials, directory = int(sys.argv[2]), Path(sys.argv[1]) / "run"
generator = random.Random(0)
checkpointer = Checkpointer(directory, keep_latest=2)
begin = time.monotonic()
for step in range(5):
    checkpointer.save(step, state_of(step))
seconds_per_save = (time.monotonic() - begin) / 5

def save_forever():
    checkpointer = Checkpointer(directory, keep_latest=2)
    step = checkpointer.load().step
    while True:
        step += 1
        checkpointer.save(step, state_of(step))
        checkpointer.save(step, state_of(step))

previous = 4
for trial in range(trials):
    pid = in_child(save_forever)
    time.sleep(generator.uniform(0.0, 8 * seconds_per_save))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    value = check(directory, range(previous, previous + 10_000))
    previous = value
print(previous)
"""


WHILE_WRITING = """
directory = Path(sys.argv[1]) / "read"
Checkpointer(directory, keep_latest=1).save(1, state_of(1))

def save_forever():
    checkpointer = Checkpointer(directory, keep_latest=1)
    for step in range(2, 10**9):
        checkpointer.save(step, state_of(step))
        checkpointer.save(step, state_of(step))  # replaces it

pid = in_child(save_forever)
try:
    reader, seen = Checkpointer(directory, read_only=True), []
    for _ in range(300):
        loaded = reader.load()
        value = loaded.state["training"]["count"]
        assert loaded.step == value
        assert (loaded.state["algorithm"]["w"] == value).all()
        seen.append(value)
finally:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
assert seen == sorted(seen)
print(len(set(seen)))
"""


def run(script: str, *arguments: str) -> list[int]:
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return [int(line) for line in result.stdout.splitlines()]


@pytest.mark.ci
def test_what_is_killed_while_it_saves_leaves_complete_checkpoints(tmp_path: Path):
    script = EVERY_POINT + RANDOM_TIMES + WHILE_WRITING
    num_points, survived, different = run(script, str(tmp_path), "25")
    assert num_points >= 25
    assert survived > 10
    assert different > 1  # the writer did replace what was read


@pytest.mark.slow
def test_killed_many_times_at_random(tmp_path: Path):
    run(RANDOM_TIMES, str(tmp_path), "300")
