"""Files from outside, hostile ones, to everything that reads some: a table.

Each is held: read, left out with a word, or refused in one typed error that names it;
within seconds, without gigabytes, and without letting it speak to the terminal.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from alf_lite.bin import compare, inspect_buffer, plot, program, verify_checkpoint
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import files as config_files
from alf_lite.datasets.formats import open_source
from alf_lite.errors import AlfLiteError
from alf_lite.policies import run_policy
from alf_lite.runs import record
from alf_lite.runs.curves import read_curves
from alf_lite.runs.directory import RunDirectory
from alf_lite.tools import seeds, step_statistics, sweep_methods, sweep_trials
from alf_lite.tools.run_processes import Run, RunInProgress
from alf_lite.tools.search_space import read_space
from tests.logged_runs import write_run

SECONDS = 20
BYTES = 2 * 2**30  # beside what a process has mapped before
ESCAPE = "\x1b]0;owned\x07\x1b[31m"

# What a file is, or what is in it


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened, contextlib.chdir(path.parent):
        opened.bind(path.name)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 10**9)


def half(path: Path) -> None:
    content = (path.parent / f".whole-{path.name}").read_bytes()
    path.write_bytes(content[: len(content) // 2])


KINDS = {
    "a pipe": fifo,
    "a link to /dev/zero": endless,
    "a directory": Path.mkdir,
    "a link to itself": loop,
    "a socket": listening,
    "50 GB of nothing": sparse,
    "half of itself": half,
}
CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "zeros": bytes(4096),
    "noise": np.random.default_rng(0).bytes(4096),
    "no UTF-8": b"\xff\xfe = \xff\n",
    "deep nesting": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a list": b"[1, 2]\n",
    "a number": b"5\n",
    "escapes": json.dumps({"conf": ESCAPE, "setup": ESCAPE}).encode() + b"\n",
    "raw escapes": f'{{"conf": "{ESCAPE}"}}\n'.encode(),
    "many digits": b'{"iterations": ' + b"9" * 10_000 + b"}\n",
    "a huge number": b'{"iterations": 1e999, "evaluation": -1e999}\n',
}
AXES = '"iteration": 1, "env_steps": 9, "updates": 1, "seconds": 1.0'
TAG = "eval/AverageReturn"
OF_RUN = {
    "conf is 5": {"conf": 5},
    "conf is a list": {"conf": [["a"]]},
    "score is text": {"evaluation": "abc", "exit_code": 0},
    "score is a list": {"average_return": [1], "exit_code": 0},
    "times are text": {"seconds": "x", "env_steps": [1], "exit_code": 0},
    "end is text": {"average_return": 1, "iterations": "9", "env_steps": {}},
    "earlier is 5": {"earlier": 5},
    "earlier has texts": {"earlier": ["ab", "cd"]},
    "folders are 5": {"module_folders": 5, "script": 7},
    "reason is escapes": {"stop_reason": ESCAPE, "exit_code": 0, "conf": ESCAPE},
}
OF_METRICS = {
    "text": f'{{{AXES}, "{TAG}": "abc"}}',
    "a list": f'{{{AXES}, "{TAG}": [1, 2]}}',
    "an object": f'{{{AXES}, "{TAG}": {{"a": 1}}}}',
    "many digits": f'{{{AXES}, "{TAG}": {"9" * 400}}}',
    "steps of many digits": f'{{"iteration": 1, "env_steps": {"9" * 400}, '
    f'"updates": 1, "seconds": 1, "{TAG}": 1}}',
    "endless steps": f'{{"iteration": Infinity, "env_steps": 1, "updates": 1, '
    f'"seconds": NaN, "{TAG}": 1}}',
    "an escape as a tag": f'{{{AXES}, "{TAG}": 1.0, "\\u001b[31m": 1.0}}',
}
SETUP = sweep_trials.Setup(
    "ppo", [], ["Adam.lr = log_uniform(1e-5, 1e-2)"], "random", [0], "", *[False] * 2,
    0, 3,
)  # fmt: skip
OF_SWEEP = {
    "an unknown field": {"setup": {**SETUP._asdict(), "new": 1}, "trials": []},
    "an unknown field of a trial": {
        "setup": SETUP._asdict(),
        "trials": [{"number": 0, "settings": {}, "new": 1}],
    },
    "trials are an object": {"setup": SETUP._asdict(), "trials": {"a": 1}},
    "a trial is text": {"setup": SETUP._asdict(), "trials": ["abc"]},
    "a number is text": {
        "setup": SETUP._asdict(),
        "trials": [{"number": "0", "settings": {}, "score": 1.0}],
    },
    "a score is text": {
        "setup": SETUP._asdict(),
        "trials": [{"number": 0, "settings": {}, "score": "1"}],
    },
    "settings are a list": {
        "setup": SETUP._asdict(),
        "trials": [{"number": 0, "settings": ["a"], "score": 1.0}],
    },
    "the setup is a list": {"setup": [1], "trials": []},
    "no setup": {"trials": []},
}


# What reads them: name of the file -> how it is read


class Ended(RunInProgress):
    """A run of which only its record is left."""

    def poll(self) -> int:
        return 0

    def signal(self, number: int) -> None: ...

    def wait(self) -> None: ...


def two_runs(folder: Path) -> Path:
    write_run(folder / "good", [(0, 1.0), (10, 2.0), (20, 3.0)])
    write_run(folder / "bad", [(0, 4.0), (10, 5.0), (20, 6.0)])
    (folder / "bad/user.gin").write_text("PPOAlgorithm.gamma = 0.9\n")
    return folder / "bad"


def call(module, *arguments) -> None:
    assert module.main(arguments) in (0, 2, 3)


def draw(bad: Path) -> None:
    call(plot, str(bad.parent), f"--output={bad.parent}/curves.csv", "--group_by=run")
    assert "good" in (bad.parent / "curves.csv").read_text()


def compared(bad: Path) -> None:
    call(compare, str(bad.parent), f"--output={bad.parent}/scores.csv")
    assert "3.0" in (bad.parent / "scores.csv").read_text()


def read_all(bad: Path) -> None:
    curves = read_curves(bad)
    repr((curves, curves.record, curves.settings, curves.episodes))


def resume(bad: Path) -> None:
    directory = RunDirectory(bad)
    with directory:
        directory.note_modules()
        record.conf_of(directory)
        begun = record.RunRecord(directory, "cpu")
        begun.begin()


def tell_end(bad: Path) -> None:
    def run(values) -> int:
        lines = seeds.table([Ended(Run("seed 0", bad, [])).end()])
        sys.stdout.write("\n".join(lines))
        return 0

    assert program.Program("toy", "", (), (), run).main([]) == 0


def go_on(folder: Path) -> None:
    trials = sweep_trials.Trials(folder, SETUP)
    trials.save()
    trials.write_table()


def study(folder: Path) -> None:
    dimensions = read_space(None, SETUP.space)
    sweep_methods.OptunaMethod(dimensions, 0, folder, False).propose(0)


def checkpoint(folder: Path) -> Path:
    path = Checkpointer(folder / "checkpoints").save(
        3, {"algorithm": {"a": torch.zeros(3)}}, {"user.gin": "A.b = 1\n"}
    )
    return path


def load(path: Path) -> None:
    Checkpointer(path.parent, read_only=True).load(3)


def inspect(path: Path) -> None:
    step_statistics.summarize(open_source(path))


def episodes(folder: Path) -> Path:
    arrays = {
        "observation": np.zeros((4, 2), np.float32),
        "action": np.zeros((3, 1), np.float32),
        "reward": np.zeros(3),
        "terminated": np.array([False, False, True]),
        "truncated": np.zeros(3, bool),
    }
    np.savez(folder / "a.npz", **arrays)
    return folder


def minari(folder: Path) -> Path:
    for name in ("metadata.json", "main_data.hdf5"):
        (folder / name).write_text("{}")
    return folder


def as_is(folder: Path) -> Path:
    return folder


def conf(path: Path) -> None:
    with config_files.own_config():
        config_files.parse_config(str(path / "a.gin"))


READERS = {  # name: what is there, the file that is hostile, what reads it
    **{
        f"{what.__name__} {name}": (two_runs, name, what)
        for what in (draw, compared, read_all)
        for name in ("run.json", "metrics.jsonl", "operative.gin", "user.gin")
    },
    "read_all episodes": (two_runs, "evaluation_episodes.jsonl", read_all),
    "resume run.json": (two_runs, "run.json", resume),
    "resume .lock": (two_runs, ".lock", resume),
    "policy user.gin": (two_runs, "user.gin", run_policy.read_run_config),
    "policy run.json": (two_runs, "run.json", run_policy.read_run_config),
    "end run.json": (two_runs, "run.json", tell_end),
    "sweep.json": (as_is, "sweep.json", go_on),
    "study.db": (as_is, "study.db", study),
    "space": (as_is, "space.txt", lambda path: read_space(path / "space.txt")),
    "conf": (as_is, "a.gin", conf),
    "checkpoint manifest": (checkpoint, "manifest.json", load),
    "checkpoint part": (checkpoint, "algorithm.pt", load),
    "checkpoint text": (checkpoint, "user.gin", load),
    "verify manifest": (
        checkpoint,
        "manifest.json",
        lambda path: call(verify_checkpoint, str(path)),
    ),
    "episodes": (episodes, "a.npz", inspect),
    "inspect_buffer": (episodes, "a.npz", lambda path: call(inspect_buffer, str(path))),
    "hdf5": (as_is, "a.hdf5", lambda path: inspect(path / "a.hdf5")),
    "minari metadata": (minari, "metadata.json", inspect),
    "minari data": (minari, "main_data.hdf5", inspect),
    "a torch file": (as_is, "ckpt-1-replay_buffer", inspect),
    "a replay file": (as_is, "replay-7", inspect),
}
SPECIAL = {
    "run.json": {name: json.dumps(value) for name, value in OF_RUN.items()},
    "metrics.jsonl": OF_METRICS,
    "sweep.json": {name: json.dumps(value) for name, value in OF_SWEEP.items()},
}


# Of which there is one that is good.
WHOLE = ("run.json", "metrics.jsonl", "operative.gin", "user.gin", "a.npz")
WHOLE += ("manifest.json", "algorithm.pt")


def cases():
    for reader, (_, name, _) in READERS.items():
        for kind, make in KINDS.items():
            if kind != "half of itself" or name in WHOLE:
                yield reader, kind, make
        contents = {k: v.encode() + b"\n" for k, v in SPECIAL.get(name, {}).items()}
        for kind, content in {**CONTENTS, **contents}.items():
            yield reader, kind, content


CASES = list(cases())


def attempt(folder: Path, reader: str, hostile) -> str:
    """What happens, in a process of its own: "" if it is held."""
    make, name, read = READERS[reader]
    place = make(folder)
    file = place / name
    with contextlib.suppress(FileNotFoundError):
        file.rename(place / f".whole-{name}")
    if callable(hostile):
        hostile(file)
    else:
        file.write_bytes(hostile)
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads that there may be
        child = os.fork()
    if child == 0:
        os.close(receiver)
        with os.fdopen(sender, "wb") as answer:
            pickle.dump(_attempt(place, name, read), answer)
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as answer:
        content = answer.read()
    os.waitpid(child, 0)
    return pickle.loads(content) if content else "the process died or hung"


def _attempt(place: Path, name: str, read) -> str:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            read(place)
        except AlfLiteError as error:
            if name not in str(error) and str(place) not in str(error):
                return f"does not name the file: {error}"
        except AssertionError:
            return f"{traceback.format_exc()}\n{told.getvalue()}"
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
    if "\x1b" in told.getvalue():
        return "it speaks to the terminal"
    return "it ends in a traceback" if "Traceback" in told.getvalue() else ""


# Packages that readers want
EXTRAS = {"hdf5": "h5py", "minari data": "h5py", "study.db": "optuna"}
# One of each kind: a record, a log, a conf, steps, and a checkpoint.
QUICK = ["draw run.json", "read_all metrics.jsonl", "conf", "episodes"]
QUICK += ["checkpoint manifest"]


@pytest.mark.ci
@pytest.mark.parametrize(
    "reader",
    [pytest.param(r, marks=() if r in QUICK else pytest.mark.slow) for r in READERS],
)
@pytest.mark.filterwarnings("ignore")
def test_hostile_files_are_held(tmp_path, reader):
    if reader in EXTRAS:
        pytest.importorskip(EXTRAS[reader])
    failed = {}
    for number, (name, kind, hostile) in enumerate(CASES):
        if name == reader:
            folder = tmp_path / str(number)
            folder.mkdir()
            failed[kind] = attempt(folder, reader, hostile)
            shutil.rmtree(folder)
    assert len(failed) >= len(KINDS) + len(CONTENTS) - 1
    assert {kind: said for kind, said in failed.items() if said} == {}


def main() -> None:
    """Counts what is held: ``python -m tests.reliability.test_hostile_files``."""
    import tempfile

    held = 0
    for reader, kind, hostile in CASES:
        folder = Path(tempfile.mkdtemp())
        said = attempt(folder, reader, hostile)
        shutil.rmtree(folder)
        held += not said
        if said:
            line = said.strip().splitlines()[-1][:150]
            sys.stdout.write(f"{reader} | {kind} | {line}\n")
    sys.stdout.write(f"{held} of {len(CASES)} held\n")


if __name__ == "__main__":
    sys.exit(main())
