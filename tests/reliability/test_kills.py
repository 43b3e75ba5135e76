"""SIGKILL of a whole run at random moments, again and again, until it finishes."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.replay_buffers.replay_file import ReplayFile
from tests.reliability.trainer_process import (
    Launcher,
    Trainer,
    newest_step,
    steps_of,
    wait_until,
)
from tests.trainers.run_comparison import assert_same_run, points


def kill_after(trainer: Trainer, checkpoints: int, seconds: float) -> bool:
    """Kills it that long after it wrote so many checkpoints; False if it has ended."""
    begin = max(steps_of(trainer.root_dir), default=0)

    def is_due() -> bool:
        steps = [step for step in steps_of(trainer.root_dir) if step > begin]
        return len(steps) >= checkpoints or trainer.exit_code is not None

    wait_until(is_due, "no new checkpoint")
    time.sleep(seconds)
    trainer.kill_all()
    code = trainer.wait()
    assert code in (0, -signal.SIGKILL), trainer.error
    assert "Traceback" not in trainer.error
    return code != 0


def check_remains(root_dir: Path, newest: int) -> int:
    """What a kill leaves: all checkpoints are whole, and none is lost."""
    if not (root_dir / "checkpoints").is_dir():
        assert newest == 0
        return 0
    checkpointer = Checkpointer(root_dir / "checkpoints", read_only=True)
    for info in checkpointer.list_checkpoints():
        checkpointer.load(info.step)
    found = newest_step(root_dir)
    assert found >= newest
    assert not list((root_dir / "checkpoints").glob("*.corrupt*"))
    for path in (root_dir / "replay").glob("replay-*"):
        ReplayFile(path)
    return found


def check_curves(root_dir: Path) -> None:
    """Every point once, in the order of training, as TensorBoard reads them."""
    accumulator = EventAccumulator(
        str(root_dir / "train"), size_guidance={"scalars": 0}
    )
    accumulator.Reload()
    for tag in accumulator.Tags()["scalars"]:
        steps = [event.step for event in accumulator.Scalars(tag)]
        # Several iterations can end without an episode, or no step, more than before.
        once = steps if "_vs_" in tag else sorted(set(steps))
        assert steps == sorted(once), tag


def kill_often(
    launcher: Launcher, root_dir: Path, conf: Path, rng: random.Random, at_most: int
) -> int:
    """Kills and restarts a run until it finishes; returns how often."""
    newest = 0
    for kills in range(at_most):
        trainer = launcher.start(root_dir, [f"--conf={conf}"])
        # While it starts, between two checkpoints, and while it writes one.
        if not kill_after(trainer, rng.choice((0, 1, 1, 2, 2, 3)), rng.random() / 10):
            return kills
        newest = check_remains(root_dir, newest)
    launcher.start(root_dir, [f"--conf={conf}"]).finish()
    return at_most


def kill_runs(
    launcher: Launcher, directory: Path, conf: Path, expected: Path | None, kills: int
) -> None:
    """As many kills, of as many runs as it takes."""
    rng = random.Random(conf.stem)
    total = runs = 0
    while total < kills:
        root_dir = directory / str(runs)
        total += kill_often(launcher, root_dir, conf, rng, kills - total)
        runs += 1
        check_remains(root_dir, newest=1)
        check_curves(root_dir)
        if expected is not None:
            # Hence steps are counted once, too.
            assert_same_run(expected, root_dir)
    print(f"{conf.stem}: {total} kills, {runs} runs")  # noqa: T201


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", [pytest.param("ppo", marks=pytest.mark.slow), "replay_saver"]
)
def test_a_run_that_is_killed_now_and_then_is_the_run_that_is_not(
    launcher, conf, tmp_path, straight, name
):
    kill_runs(launcher, tmp_path, conf[name], straight(conf[name]), kills=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "sac", "replay_saver"])
def test_a_run_that_is_killed_very_often_is_the_run_that_is_not(
    launcher, conf, tmp_path, straight, name
):
    kill_runs(launcher, tmp_path, conf[name], straight(conf[name]), kills=120)


@pytest.mark.slow
def test_a_run_with_workers_that_is_killed_often_loses_nothing_it_saved(
    launcher, conf, tmp_path
):
    kill_runs(launcher, tmp_path, conf["async"], None, kills=30)
    for root_dir in tmp_path.iterdir():
        curve = points(root_dir)["Metrics_vs_Iterations/EnvironmentSteps"]
        assert curve[-1][0] == 300
        steps = [value for _, value in curve]
        assert steps == sorted(set(steps))
