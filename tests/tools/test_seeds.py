"""Seeds are trained side by side, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from alf_lite.bin import train
from alf_lite.runs.directory import read_run_record
from alf_lite.tools import run_processes
from alf_lite.tools.seeds import parse_seeds

# Stands for the program train: a run that ends as its seed says.
STUB = """
import json, os, pathlib, signal, sys, time
flags = dict(a[2:].split("=", 1) for a in sys.argv[1:])
seed, root = int(flags["seed"]), pathlib.Path(flags["root_dir"])
print(" 50%  iteration 5", os.environ["OMP_NUM_THREADS"], flush=True)
def stop(number, frame):
    print(f"Stopped by {number}.", flush=True)
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, stop)
(root / "began").write_text("")
if flags.get("conf") == "long":
    time.sleep(60)
if seed == 9:
    os.kill(os.getpid(), signal.SIGKILL)
if seed == 7:
    print("error: a pole fell", flush=True)
    sys.exit(4)
if seed == 8 or flags.get("conf") == "bad":
    print("error: --gin_param: no", flush=True)
    sys.exit(2)
record = {"evaluation": 10.0 * seed, "seconds": 3.0, "env_steps": 100,
          "stop_reason": "finished"}
(root / "run.json").write_text(json.dumps(record))
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    path = tmp_path / "stub.py"
    path.write_text(STUB)
    monkeypatch.setattr(run_processes, "_TRAIN", (sys.executable, "-S", str(path)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return path


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0-4", [0, 1, 2, 3, 4]), ("0,3,7", [0, 3, 7]), ("9, 0 - 1", [9, 0, 1])],
)
def test_seeds_are_numbers_and_ranges(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds=a"], "numbers and ranges, such as 0-4"),
        (["--seeds="], "numbers and ranges"),
        (["--seeds=-1"], "numbers and ranges"),
        (["--seeds=4-0"], "not a range"),
        (["--seeds=0-99999999"], "not a range of up to 1000"),
        (["--seeds=0-2,2"], "2 is named twice"),
        (
            ["--seeds=0-1", "--gin_param=TrainerConfig.random_seed = 4"],
            "random_seed cannot be set here: --seeds says it",
        ),
    ],
)
def test_wrong_flags_start_nothing(tmp_path, capsys, stub, flags, message):
    root_dir = tmp_path / "runs"
    assert train.main(["--conf=x", f"--root_dir={root_dir}", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not root_dir.exists()


def test_the_mean_over_the_seeds_ends_the_call(tmp_path, capsys, stub):
    root_dir = tmp_path / "runs"
    arguments = [f"--root_dir={root_dir}", "--seeds=1-3", "--jobs=2"]
    assert train.main([*arguments, "--conf=short"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in out[1:4]] == [
        ["seed", str(seed), f"{10 * seed}.00"] for seed in (1, 2, 3)
    ]
    mean = "Mean return of 3 runs: 20.00, 95 % interval over seeds [10.00, 30.00]"
    assert out[4] == mean
    log = (root_dir / "seed_2" / "output.log").read_text()
    assert log == " 50%  iteration 5 1\n"  # one thread


def test_a_seed_that_fails_stops_no_other_and_gives_the_exit_code(
    tmp_path, capsys, stub
):
    flags = [f"--root_dir={tmp_path}/runs", "--seeds=7,1,2", "--jobs=1"]
    assert train.main([*flags, "--conf=short"]) == 4
    captured = capsys.readouterr()
    assert "seed 7  exit code 4: a pole fell" in captured.err
    assert "output.log" in captured.out
    assert "Mean return of 2 runs: 15.00" in captured.out


def test_a_run_that_is_killed_is_said_to_be(tmp_path, capsys, stub):
    flags = [f"--root_dir={tmp_path}/runs", "--seeds=9,1", "--jobs=1", "--conf=short"]
    assert train.main(flags) == 137
    captured = capsys.readouterr()
    for text in (captured.err, captured.out):
        assert "exit code 137: was killed by SIGKILL (by hand, or by the sys" in text
    assert "Mean return of 1 run: 10.00" in captured.out


def test_what_is_wrong_for_all_is_said_once(tmp_path, capsys, stub):
    for seeds in ("1-3", "4"):
        flags = [f"--root_dir={tmp_path}/runs", f"--seeds={seeds}", "--jobs=1"]
        assert train.main([*flags, "--conf=bad"]) == 2
        assert capsys.readouterr().err.splitlines()[1:] == ["error: --gin_param: no"]
    assert not (tmp_path / "runs" / "seed_3").exists()


def test_what_one_run_alone_refuses_stops_no_other(tmp_path, capsys, stub):
    flags = [f"--root_dir={tmp_path}/runs", "--seeds=8,1,2", "--jobs=1"]
    assert train.main([*flags, "--conf=short"]) == 2
    out = capsys.readouterr().out
    assert "exit code 2: --gin_param: no" in out
    assert "Mean return of 2 runs: 15.00" in out


def test_the_directory_of_a_single_run_is_refused(tmp_path, capsys, stub):
    (tmp_path / "run.json").write_text("{}")
    assert train.main([f"--root_dir={tmp_path}", "--seeds=0-1"]) == 2
    assert "holds a run of its own" in capsys.readouterr().err


@pytest.mark.parametrize("below", ["seed_0", "trial_000", "trial_000/seed_0"])
def test_no_run_begins_above_others(tmp_path, capsys, conf, below):
    (tmp_path / below).mkdir(parents=True)
    (tmp_path / below / "run.json").write_text("{}")
    assert train.main([f"--conf={conf}", f"--root_dir={tmp_path}"]) == 2
    assert f"--root_dir={tmp_path / below}" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()


def test_ctrl_c_stops_all_runs_and_waits_for_them(tmp_path, capsys, stub):
    root_dir = tmp_path / "runs"

    def interrupt() -> None:
        began = [root_dir / f"seed_{seed}" / "began" for seed in (0, 1)]
        while not all(path.exists() for path in began):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    flags = [f"--root_dir={root_dir}", "--seeds=0-2", "--jobs=2", "--conf=long"]
    handler = signal.getsignal(signal.SIGINT)
    assert train.main(flags) == 130
    thread.join()
    assert signal.getsignal(signal.SIGINT) is handler
    captured = capsys.readouterr()
    assert "Stopping, 2 to be saved" in captured.err
    assert captured.out == "Stopped by SIGINT. The same command continues.\n"
    for seed in (0, 1):
        log = (root_dir / f"seed_{seed}" / "output.log").read_text()
        assert "Stopped by 2." in log
    assert not (root_dir / "seed_2").exists()


@pytest.mark.slow
def test_signals_that_stop_nothing_wait_for_runs_that_start(tmp_path, capsys, conf):
    root_dir = tmp_path / "runs"
    run, others = root_dir / "seed_0", [signal.SIGUSR2, signal.SIGUSR1]
    handlers = [signal.getsignal(number) for number in others]

    def send() -> None:
        while not (run / "output.log").exists():
            time.sleep(0.01)
        for number in others:  # of which a Python that starts would die
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    assert train.main([f"--conf={conf}", f"--root_dir={root_dir}", "--seeds=0"]) == 0
    thread.join()
    log = (run / "output.log").read_text()
    assert "SIGUSR2: saving after this" in log
    assert "Current thread 0x" in log
    assert [signal.getsignal(number) for number in others] == handlers
    assert "Stopping" not in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux")
def test_runs_end_with_the_call_that_started_them(tmp_path, stub):
    root_dir = tmp_path / "runs"
    code = (
        "from alf_lite.bin import train\nfrom alf_lite.tools import run_processes\n"
        f"run_processes._TRAIN = {run_processes._TRAIN!r}\n"
        f"train.main(['--root_dir={root_dir}', '--seeds=0', '--conf=long'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while not (root_dir / "seed_0" / "began").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 120
    log = root_dir / "seed_0" / "output.log"
    while "Stopped by 15." not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.ci
def test_a_real_run_is_resumed(tmp_path, capsys, conf):
    begun = [f"--conf={conf}", "--gin_param=TrainerConfig.num_iterations=1"]
    root_dir = tmp_path / "runs" / "seed_3"
    assert train.main([*begun, f"--root_dir={root_dir}", "--seed=3"]) == 0
    flags = [f"--conf={conf}", f"--root_dir={tmp_path}/runs", "--seeds=3"]
    assert train.main(flags) == 0
    assert "Mean return of 1 run:" in capsys.readouterr().out
    assert "Resuming from" in (root_dir / "output.log").read_text()
    assert read_run_record(root_dir)["iterations"] == 4
