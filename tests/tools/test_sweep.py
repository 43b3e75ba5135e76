"""Searching for settings: python -m alf_lite.bin.sweep."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from alf_lite.bin import sweep
from alf_lite.errors import ConfigError
from alf_lite.runs.lock import RunLock
from alf_lite.tools import run_processes, sweep_trials
from tests import rank_processes

# Stands for the program train: its score is known from its settings.
STUB = """
import json, math, pathlib, signal, sys, time
flags, settings = {}, {}
for argument in sys.argv[1:]:
    name, _, value = argument[2:].partition("=")
    flags[name] = value
    if name == "gin_param":
        key, _, text = value.partition("=")
        settings[key.strip()] = text.strip()
root, seed = pathlib.Path(flags["root_dir"]), int(flags["seed"])
def stop(number, frame):
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, stop)
if (root / "busy").exists():
    print("error: another run is training in here: process 1. Wait for it.")
    sys.exit(2)
with (root / "began").open("a") as file:
    file.write("x")
unused = "DqnAlgorithm.gamma = 0.9" if "DqnAlgorithm.gamma" in settings else ""
(root / "inoperative.gin").write_text("# Bound but never used\\n" + unused)
gamma = float(settings.get("PPOAlgorithm.gamma", 0.9))
score = -abs(math.log10(float(settings.get("Adam.lr", 1e-3))) + 3) + gamma + 0.1 * seed
with (root / "metrics.jsonl").open("a") as file:
    for step in range(3):
        row = {"iteration": step, "env_steps": step, "eval/AverageReturn": score}
        row |= {"other": -score, "shaky": None if step == 2 else score}
        file.write(json.dumps(row) + "\\n")
if gamma == 0.5:
    print("error: a pole fell", flush=True)
    sys.exit(4)
if gamma < 0.2 and (root / "began").read_text() == "x":
    time.sleep(300)
record = {"evaluation": score, "exit_code": 0}
(root / "run.json").write_text(json.dumps(record))
"""
LR = "--search=Adam.lr = log_uniform(1e-5, 1e-1)"
GAMMAS = "--search=PPOAlgorithm.gamma = choice(0.9, 0.5, 0.99)"


@pytest.fixture
def stub(tmp_path, monkeypatch):
    path = tmp_path / "stub.py"
    path.write_text(STUB)
    monkeypatch.setattr(run_processes, "_TRAIN", (sys.executable, "-S", str(path)))
    return path


@pytest.fixture
def search(tmp_path, conf, stub):
    def call(*flags: str) -> int:
        return sweep.main(
            [f"--conf={conf}", f"--root_dir={tmp_path / 'sweep'}", *flags]
        )

    return call


def saved(tmp_path: Path) -> list[dict]:
    return json.loads((tmp_path / "sweep" / "sweep.json").read_text())["trials"]


def table(tmp_path: Path) -> list[dict]:
    text = (tmp_path / "sweep" / "trials.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.ci
def test_grid_tries_all_and_a_failure_stops_nothing(tmp_path, search, capsys):
    flags = [GAMMAS, "--method=grid", "--seeds=0-1", "--jobs=3"]
    assert search(*flags) == 0
    trials = saved(tmp_path)
    assert [trial["state"] for trial in trials] == ["finished", "failed", "finished"]
    assert "a pole fell" in trials[1]["message"]
    assert trials[2]["score"] == pytest.approx(0.99 + 0.05)  # mean of two seeds
    printed = capsys.readouterr().out
    assert printed.split("\n")[1].split()[:3] == ["2", "1.04", "0.99"]
    assert "3 trials: 2 finished, 1 failed" in printed
    assert "trial_002/seed_0" in printed
    assert [row["trial"] for row in table(tmp_path)] == ["2", "0", "1"]
    # All is known: the same command trains nothing.
    assert search(*flags) == 0
    began = tmp_path / "sweep" / "trial_000" / "seed_0" / "began"
    assert began.read_text() == "x"
    # More of it goes on; something else does not.
    assert search(*flags, "--minimize") == ConfigError.exit_code
    assert "with another minimize: False, now True" in capsys.readouterr().err


@pytest.mark.ci
def test_another_curve_is_minimized(tmp_path, search, capsys):
    flags = [LR, "--num_trials=5", "--metric=other", "--minimize"]
    assert search(*flags) == 0
    trials = saved(tmp_path)
    shown = capsys.readouterr().err
    assert f"finished: other {trials[0]['score']:.4g}" in shown
    assert "return" not in shown
    assert len(trials) == 5
    assert all(trial["score"] > -0.9 for trial in trials)  # the best lr is 1e-3
    assert float(table(tmp_path)[0]["score"]) == min(trial["score"] for trial in trials)
    # More trials, of which the first ones are there already.
    assert search(*flags, "--num_trials=7") == 0
    assert saved(tmp_path)[:5] == trials
    assert len(saved(tmp_path)) == 7


def test_a_metric_that_ends_with_nan_is_no_score(tmp_path, search):
    search(LR, "--num_trials=1", "--metric=shaky")
    (trial,) = saved(tmp_path)
    assert (trial["state"], trial["score"]) == ("failed", None)
    assert "its last shaky is no finite number" in trial["message"]


@pytest.mark.ci
def test_ctrl_c_stops_all_and_the_same_command_goes_on(tmp_path, search, capsys):
    slow = "--search=PPOAlgorithm.gamma = choice(0.9, 0.1, 0.11)"
    flags = [slow, "--method=grid", "--jobs=2"]
    waits_for = [tmp_path / "sweep" / f"trial_00{i}" / "metrics.jsonl" for i in (1, 2)]

    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while not all(map(Path.exists, waits_for)) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert search(*flags) == 130
    thread.join()
    states = [trial["state"] for trial in saved(tmp_path)]
    assert states == ["finished", "open", "open"]
    assert "The same command continues" in capsys.readouterr().out
    assert search(*flags) == 0
    assert {trial["state"] for trial in saved(tmp_path)} == {"finished"}
    assert (tmp_path / "sweep" / "trial_000" / "began").read_text() == "x"
    assert (tmp_path / "sweep" / "trial_001" / "began").read_text() == "xx"


def test_a_sweep_has_its_directory_for_itself(tmp_path, search, capsys):
    assert search(LR, "--num_trials=1") == 0
    lock = RunLock(tmp_path / "sweep")
    lock.acquire()
    try:
        assert search(LR, "--num_trials=2") == ConfigError.exit_code
    finally:
        lock.release()
    assert "another sweep is searching in" in capsys.readouterr().err
    assert len(saved(tmp_path)) == 1


@pytest.mark.ci
def test_trials_that_other_processes_train_are_tried_again(
    tmp_path, search, monkeypatch
):
    monkeypatch.setattr(sweep_trials, "_WAITS", (0.2, 0.4))
    first, second, third = (tmp_path / "sweep" / f"trial_00{i}" for i in range(3))
    for folder in (first, second):
        folder.mkdir(parents=True)
        (folder / "busy").touch()

    def end_others() -> None:
        deadline = time.monotonic() + 120
        while not (third / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        # One finishes, one is killed.
        (first / "run.json").write_text('{"evaluation": 81.85, "exit_code": 0}')
        (second / "busy").unlink()

    thread = threading.Thread(target=end_others)
    thread.start()
    flags = [GAMMAS.replace("0.5", "0.95"), "--method=grid", "--jobs=2"]
    assert search(*flags) == 0
    thread.join()
    trials = saved(tmp_path)
    assert [trial["state"] for trial in trials] == ["finished"] * 3
    assert [trial["score"] for trial in trials] == [81.85, 0.95, 0.99]
    assert not (first / "began").exists()


def test_optuna_learns_and_its_study_goes_on(tmp_path, search):
    optuna = pytest.importorskip("optuna")
    tmp_path /= "q?x #1 50%41 {a}"
    flags = [LR, GAMMAS.replace("0.5", "0.95"), "--method=optuna", "--jobs=2"]
    flags.append(f"--root_dir={tmp_path / 'sweep'}")
    assert search(*flags, "--num_trials=3") == 0
    assert search(*flags, "--num_trials=5") == 0
    trials = saved(tmp_path)
    path = tmp_path / "sweep" / "study.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(
        study_name="sweep", storage=f"sqlite:///{path.as_uri()}?uri=true"
    )
    assert [t.value for t in study.trials] == [trial["score"] for trial in trials]
    assert len({trial["settings"]["Adam.lr"] for trial in trials}) == 5
    names = {"PPOAlgorithm.gamma", "Adam.lr"}
    assert all(set(t.params) == names for t in study.trials)
    pytest.importorskip("matplotlib")
    pictures = {file.stem for file in (tmp_path / "sweep").glob("*.png")}
    assert pictures == {"history", "slices", "importances"}


def test_pruned_trials_are_stopped_and_noted(tmp_path, search):
    pytest.importorskip("optuna")
    gammas = ", ".join(["0.9", "0.91", "0.92", "0.93", "0.94", "0.1"])
    flags = [
        f"--search=PPOAlgorithm.gamma = choice({gammas})",
        "--gin_param=TrainerConfig.eval_interval=1",
        "--method=optuna",
        "--prune",
        "--jobs=1",
    ]
    # Nothing is pruned before five have finished, and the last one would take long.
    from alf_lite.tools import sweep_methods

    class InOrder(sweep_methods.OptunaMethod):
        def propose(self, number):
            super().propose(number)
            return {"PPOAlgorithm.gamma": gammas.split(", ")[number]}

        def should_prune(self, number, step, score):
            return score < 0.5

    patch = pytest.MonkeyPatch()
    patch.setattr(sweep_methods, "OptunaMethod", InOrder)
    begin = time.monotonic()
    assert search(*flags, "--num_trials=6") == 0
    patch.undo()
    assert time.monotonic() - begin < 200
    assert [trial["state"] for trial in saved(tmp_path)] == ["finished"] * 5 + [
        "pruned"
    ]
    assert saved(tmp_path)[5]["message"] == "after 1 evaluations"


def test_wrong_searches_train_nothing(tmp_path, search, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for flags, message in [
        (["--search=Adm.lr = uniform(0, 1)"], "Did you mean 'Adam'"),
        (["--search=Adam.lrr = uniform(0, 1)"], "Did you mean 'lr'"),
        (["--search=Adam.lr = choice(0.1, x)"], "strings need quotes"),
        (["--search=TrainerConfig.num_iterations = choice(5, -1)"], "num_iterations"),
        (["--search=TrainerConfig.random_seed = choice(3, 4)"], "cannot be set here"),
        ([LR, "--method=optun"], "Did you mean 'optuna'"),
        ([LR, "--method=optuna"], "pip install 'alf_lite[tune]'"),
        ([LR, "--prune"], "--prune needs --method=optuna"),
        ([LR, "--seeds=x"], "numbers and ranges"),
        ([LR, "--conf="], "--conf is missing"),
        ([f"--space={tmp_path / 'none'}"], "cannot be read"),
        ([LR, "--grid_points=3"], "--grid_points needs --method=grid"),
        ([LR, "--method=grid", "--sampler_seed=1"], "--sampler_seed and --method=grid"),
        ([LR, "--method=grid", "--num_trials=99"], "--num_trials=99: the grid has"),
        ([LR, "--gin_param=Adam.lr = 0.1"], "Adam.lr is searched"),
        ([], "nothing to search"),
    ]:
        assert search(*flags) == ConfigError.exit_code, flags
        assert message in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_a_rank_searches_nothing(tmp_path, search, capsys, monkeypatch):
    for name, value in rank_processes.variables(0, 2, port=1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("alf_lite.utils.ranks.ranks.join", lambda: None)
    monkeypatch.setattr("alf_lite.utils.ranks.ranks.speaks_first", lambda: True)
    assert search(LR) == ConfigError.exit_code
    assert "leave torchrun out" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_setting_that_nothing_uses_ends_the_search(tmp_path, search, capsys):
    unused = "--search=DqnAlgorithm.gamma = uniform(0.9, 0.99)"
    assert search(unused, "--jobs=1") == ConfigError.exit_code
    error = capsys.readouterr().err
    assert "nothing in" in error
    assert "uses DqnAlgorithm.gamma" in error
    assert not (tmp_path / "sweep" / "trial_001").exists()


def test_metric_that_nothing_logs_ends_the_search(tmp_path, search, capsys):
    assert search(LR, "--metric=otter", "--jobs=1") == ConfigError.exit_code
    error = capsys.readouterr().err
    assert "trial_000 has logged no otter. Did you mean 'other'?" in error
    assert not (tmp_path / "sweep" / "trial_001").exists()


def test_runs_of_another_search_are_no_scores_of_this_one(tmp_path, search, capsys):
    search(LR, "--metric=otter", "--jobs=1")  # a run finishes, and its trial does not
    assert search(GAMMAS, "--jobs=1") == ConfigError.exit_code
    assert "holds a sweep with another space" in capsys.readouterr().err
    (tmp_path / "sweep" / "sweep.json").unlink()
    assert search(GAMMAS, "--jobs=1") == ConfigError.exit_code
    assert "holds trials of another sweep, but no sweep.json" in capsys.readouterr().err
    assert not (tmp_path / "sweep" / "sweep.json").exists()
