"""Runs of a sweep in actors; but for the last test with actors of our own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from alf_lite.bin import sweep
from alf_lite.errors import ConfigError
from alf_lite.processes.ray_cluster import ActorLostError
from alf_lite.runs.lock import RunLock
from alf_lite.tools import run_processes, sweep_ray
from alf_lite.tools.run_processes import Run
from alf_lite.tools.sweep_ray import RunOnRay, TrialProcess


class FakeTrial:
    """An actor that answers when it is told to."""

    def __init__(self) -> None:
        self.signals = []
        self.is_killed = False

    def ask(self, method, *arguments, group, then):
        assert method == "train"
        self.arguments = arguments
        self.future: Future = Future()
        self.future.add_done_callback(then)

    def tell(self, method, *arguments, group):
        assert method == "signal"
        self.signals += arguments

    def kill(self):
        self.is_killed = True


@pytest.fixture
def actors():
    return []


@pytest.fixture
def run(tmp_path, actors):
    def start_actor():
        actors.append(FakeTrial())
        return actors[-1]

    run = Run("trial 3", tmp_path / "trial_003", ["--conf=x", "--seed=1"])
    return RunOnRay(run, start_actor)


def lose(actor, **options):
    actor.future.set_exception(ActorLostError("the node\nis dead", **options))


def test_a_run_ends_as_its_process_does(run, actors, tmp_path):
    assert actors[0].arguments == (
        str(tmp_path / "trial_003"),
        ["--conf=x", "--seed=1"],
        os.getcwd(),
    )
    assert run.end() is None
    (tmp_path / "trial_003" / "run.json").write_text('{"evaluation": 3.0}')
    actors[0].future.set_result(0)
    end = run.end()
    assert end.exit_code == 0
    assert end.score == 3.0
    assert actors[0].is_killed
    assert run.end().exit_code == 0


def test_a_killed_process_is_said_as_a_shell_does(run, actors):
    actors[0].future.set_result(-9)
    assert run.end().exit_code == 137


def test_a_lost_machine_is_followed_by_another_one(run, actors):
    lose(actors[0])
    assert run.end() is None
    assert actors[1].arguments == actors[0].arguments
    actors[1].future.set_result(0)
    assert run.end().exit_code == 0


def test_a_run_that_loses_every_machine_has_failed(run, actors):
    for _ in range(3):
        assert run.end() is None
        lose(actors[-1])
    end = run.end()
    assert end.exit_code == 6
    assert end.message == "its machine was lost 3 times: the node is dead"
    assert len(actors) == 3


def test_what_cannot_be_loaded_there_is_not_tried_again(run, actors):
    lose(actors[0], is_start=True)
    assert run.end().exit_code == 6
    assert len(actors) == 1


def test_a_run_that_is_stopped_and_lost_has_stopped(run, actors):
    run.signal(15)
    assert actors[0].signals == [15]
    lose(actors[0])
    assert run.end().exit_code == 143


def test_a_directory_that_is_not_shared_is_said(run, actors, tmp_path):
    answer = TrialProcess().train(str(tmp_path / "elsewhere"), [], "/")
    actors[0].future.set_result(answer)
    end = run.end()
    assert end.exit_code == ConfigError.exit_code
    assert "must be a directory that all machines share" in end.message


def test_a_run_waits_for_an_earlier_process_of_it_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(run_processes, "_TRAIN", (sys.executable, "-S", "-c", ""))
    lock = RunLock(tmp_path)
    lock.acquire()
    released = []

    def release(seconds):
        released.append(seconds)
        lock.release()

    monkeypatch.setattr(
        sweep_ray, "time", SimpleNamespace(monotonic=time.monotonic, sleep=release)
    )
    assert TrialProcess().train(str(tmp_path), [], "/") == 0
    assert len(released) == 1


def test_the_process_of_a_trial_hears_signals_also_before_it_begins(
    tmp_path, monkeypatch
):
    code = "import signal, sys, time; time.sleep(60)"
    monkeypatch.setattr(run_processes, "_TRAIN", (sys.executable, "-S", "-c", code))
    trial = TrialProcess()
    trial.signal(15)
    assert trial.train(str(tmp_path), [], "/") == -15


def test_paths_are_from_where_the_sweep_is_not_from_where_ray_was_started(
    tmp_path, monkeypatch
):
    code = "import os; print(os.getcwd())"
    monkeypatch.setattr(run_processes, "_TRAIN", (sys.executable, "-S", "-c", code))
    root_dir, directory = tmp_path / "trial_000", tmp_path / "project"
    root_dir.mkdir()
    directory.mkdir()
    assert TrialProcess().train(str(root_dir), [], str(directory)) == 0
    # Where there is none, nothing is found by accident.
    assert TrialProcess().train(str(root_dir), [], str(tmp_path / "none")) == 0
    printed = (root_dir / run_processes.OUTPUT_FILE).read_text().split()
    assert printed == [str(directory), str(root_dir)]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--ray_address=a:1", "--ray_address needs --engine=ray"),
        ("--cpus_per_trial=2", "--cpus_per_trial needs --engine=ray"),
        ("--gpus_per_trial=1", "--gpus_per_trial needs --engine=ray"),
    ],
)
def test_settings_of_ray_need_the_engine(tmp_path, capsys, flag, message):
    flags = ["--conf=x", f"--root_dir={tmp_path / 'sweep'}", flag]
    assert sweep.main(flags) == ConfigError.exit_code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_ray_that_is_not_there_is_said_before_anything_begins(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    flags = ["--conf=x", f"--root_dir={tmp_path / 'sweep'}", "--engine=ray"]
    assert sweep.main(flags) == ConfigError.exit_code
    assert "pip install 'alf_lite[ray]'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra ray"
)
def test_a_sweep_on_ray_goes_on_when_a_trial_is_killed(tmp_path):
    root = tmp_path / "sweep"
    command = [
        *(sys.executable, "-m", "alf_lite.bin.sweep", "--conf=ac_cart_pole"),
        *(f"--root_dir={root}", "--engine=ray", "--method=grid", "--jobs=1"),
        "--search=ActorCriticAlgorithm.gamma = choice(0.98, 0.99)",
        "--gin_param=TrainerConfig.num_env_steps = 4_000",
        "--gin_param=TrainerConfig.num_eval_episodes = 1",
    ]
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        # The actor of the first trial dies as with its machine.
        killed = kill_parent_of(root / "trial_000" / "run.json", process)
        assert process.wait(500) == 0, (tmp_path / "log").read_text()
    trials = json.loads((root / "sweep.json").read_text())["trials"]
    assert killed
    assert "goes on elsewhere" in (tmp_path / "log").read_text()
    assert [trial["state"] for trial in trials] == ["finished", "finished"]


def kill_parent_of(record: Path, process: subprocess.Popen) -> int:
    """Kills the actor that has started the run of ``record``; returns its pid."""
    deadline = time.monotonic() + 400
    while process.poll() is None and time.monotonic() < deadline:
        try:
            pid = json.loads(record.read_text())["pid"]
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            time.sleep(0.2)
            continue
        os.kill(int(status[1]), 9)
        return int(status[1])
    return 0
