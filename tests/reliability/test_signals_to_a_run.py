"""Signals at random moments: the right exit code, everything saved, nothing left."""

from __future__ import annotations

import random
import signal
import time

import pytest

from alf_lite.checkpoints.checkpointer import Checkpointer
from tests.reliability.trainer_process import (
    Trainer,
    living,
    newest_step,
    steps_of,
    wait_until,
)

ENDLESS = [
    "TrainerConfig.num_iterations = 10_000_000",
    "TrainerConfig.num_checkpoints = 0",
]
STOPPING = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def trains(run: Trainer) -> bool:
    files = (run.root_dir / "train").glob("*")
    return any(path.stat().st_size > 3000 for path in files)


def start_endless(launcher, conf, root_dir, name="ppo") -> Trainer:
    run = launcher.start(root_dir, [f"--conf={conf[name]}"], settings=ENDLESS)
    run.wait_for(lambda: trains(run), "it does not train")
    return run


def check_saved(run: Trainer) -> None:
    """The last iteration is in a checkpoint, and was said to be."""
    step = newest_step(run.root_dir)
    assert step > 0
    assert f"after {step} iterations" in run.output
    assert f"Saved {run.root_dir / 'checkpoints' / f'ckpt-{step}'}." in run.output
    assert steps_of(run.root_dir) == [step]


@pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)
def test_a_signal_saves_and_ends_with_its_exit_code(launcher, conf, tmp_path, number):
    run = start_endless(launcher, conf, tmp_path / "run")
    run.send(number)
    run.finish(expected=STOPPING[number])
    assert f"{number.name}: finishing this iteration, then saving." in run.error
    assert f"Stopped by {number.name}" in run.output
    check_saved(run)


@pytest.mark.ci
def test_a_checkpoint_is_written_when_asked_for_and_stacks_are_shown(
    launcher, conf, tmp_path
):
    run = start_endless(launcher, conf, tmp_path / "run")
    run.send(signal.SIGUSR2)
    run.wait_for_checkpoint()
    first = newest_step(run.root_dir)

    def shows_an_iteration() -> bool:
        run.send(signal.SIGUSR1)  # again if it was between two iterations
        time.sleep(0.05)
        return "train_iter" in run.error

    run.wait_for(shows_an_iteration, "no stack is shown")
    run.send(signal.SIGUSR2)
    run.wait_for_checkpoint(first + 1)
    run.send(signal.SIGTERM)
    assert run.wait() == 143
    assert newest_step(run.root_dir) > first


@pytest.mark.ci
def test_a_signal_while_it_starts_is_no_traceback(launcher, conf, tmp_path):
    rng = random.Random(0)
    for number, exit_code in STOPPING.items():
        root_dir = tmp_path / number.name
        run = launcher.start(root_dir, [f"--conf={conf['ppo']}"], settings=ENDLESS)
        time.sleep(rng.random() / 5)
        run.send(number)
        # What has not begun may be ended as any process is.
        assert run.wait() in (exit_code, -number), run.error
        assert "Traceback" not in run.error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "sac", "replay_saver", "async"])
def test_many_signals_at_random_moments(launcher, conf, tmp_path, name):
    rng = random.Random(name)
    moments = 0
    for number in range(5 if name == "async" else 20):
        root_dir = tmp_path / str(number)
        run = start_endless(launcher, conf, root_dir, name)
        asked = [rng.choice((signal.SIGUSR1, signal.SIGUSR2)) for _ in range(8)]
        for harmless in asked:
            run.send(harmless)
            time.sleep(rng.random() / 10)
        assert run.exit_code is None, run.error
        stopping = rng.choice(list(STOPPING))
        run.send(stopping)
        if rng.random() < 0.5:
            # Whatever else comes, the first one says how it ends.
            run.send(*asked[:2], stopping)
        assert run.wait(30) == STOPPING[stopping], run.error
        moments += len(asked) + 1
        if stopping != signal.SIGINT:  # the second of which stops at once
            assert newest_step(root_dir) > 0
        for step in steps_of(root_dir):
            Checkpointer(root_dir / "checkpoints", read_only=True).load(step)
    print(f"{name}: {moments} signals")  # noqa: T201


HUNG = [
    "create_environment.env_ctor = @FaultEnv",
    "create_environment.vectorization_mode = 'async'",
    "FaultEnv.mode = 'hang'",
    "FaultEnv.at_step = 40",
    *ENDLESS,
]


@pytest.mark.slow
@pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)
def test_a_run_whose_environments_hang_is_stopped_within_seconds(
    launcher, conf, tmp_path, number
):
    root_dir = tmp_path / "run"
    text = "import alf_lite.testing.fault_environment\n" + conf["ppo"].read_text()
    path = tmp_path / "hung.gin"
    path.write_text(text)
    run = launcher.start(root_dir, [f"--conf={path}"], settings=HUNG)
    run.wait_for(lambda: trains(run), "it does not train")
    time.sleep(3)
    begin = time.monotonic()
    run.send(number)
    if number == signal.SIGINT:
        time.sleep(0.5)
        run.send(number)
    code = run.wait(60)
    assert time.monotonic() - begin < 20  # ten on a quiet machine
    assert code == STOPPING[number], run.error
    assert "Traceback" not in run.error
    wait_until(lambda: not living(run.pid), "a process is left", 5)
    assert newest_step(root_dir) > 0
