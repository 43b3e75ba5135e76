"""What alf_lite learns beside Stable-Baselines3: many runs, and the page about them.

    python benchmarks/scores.py run --suite=core --hours=12 --cores=0,1 \
        --peer_python=PEERS/bin/python
    python benchmarks/scores.py report

A line of ``benchmarks/scores/SUITE.jsonl`` is a finished run. ``run`` makes those that
are missing, one process on each core, the longest first; broken off, it leaves nothing
of those that were under way, and started again it goes on. ``report`` writes
``docs/score_benchmark.md`` and its pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import score_run
import score_tasks
from score_tasks import Job

STORE = Path(__file__).parent / "scores"
# Of the lines that count, and of the runs that are made. Versions that stand together
# learn alike: the frozen runs of the tests are the same. Another wants new runs.
VERSIONS = {"alf_lite": ("0.1.0", "0.2.0"), "stable_baselines3": ("2.9.2",)}
_LOOK = """
import importlib.metadata, importlib.util, json, sys
library, *names = sys.argv[1:]
try:
    version = importlib.metadata.version(library)
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps([version, [n for n in names if not importlib.util.find_spec(n)]]))
"""


class Run(NamedTuple):
    """One that is to be made."""

    job: Job
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.job.task, self.job.method, self.seed

    def __str__(self) -> str:
        return " ".join(map(str, self.key))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# Stored lines


def read(store: Path, suite: str) -> list[dict[str, Any]]:
    """All lines of a suite; a last one that was broken off is none.

    One that cannot be read is empty.
    """
    file = store / f"{suite}.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    return [_parsed(line) for line in whole.splitlines() if line.strip()]


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def hash_of(job: Job) -> str | None:
    """Of the settings; None if the conf is not there."""
    return _hash_of(job.suite, job.task, job.method)


@functools.cache
def _hash_of(suite: str, task: str, method: str) -> str | None:
    from alf_lite.errors import ConfigError

    try:
        return score_tasks.settings_hash(score_tasks.find(suite, task, method))
    except ConfigError:
        return None


def why_not(line: dict[str, Any]) -> str | None:
    """Why a line does not count; None if it does."""
    if not line:
        return "it is no line of JSON"
    if line.get("format") != score_run.FORMAT:
        return f"format {line.get('format')}, expected {score_run.FORMAT}"
    job = score_tasks.find(line["suite"], line["task"], line["method"])
    if job is None or line["seed"] not in job.seeds:
        return "the suite does not have it"
    if wrong := _wrong_version(job, line["versions"].get(job.library)):
        return wrong
    if line["settings"] != hash_of(job):
        return f"settings {line['settings']}, the conf has {hash_of(job)} now"
    if not line["scores"] or line["steps"][-1] < job.num_steps:
        return "it ended without its last evaluation"
    if not all(map(math.isfinite, line["scores"])):
        return "a score of it is no number"
    return None


def _wrong_version(job: Job, version: str | None) -> str | None:
    expected = VERSIONS[job.library]
    if version in expected:
        return None
    return f"{job.library} {version}, not {' or '.join(expected)}"


def counted(store: Path, suite: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of a suite that count, and one sentence about each other one."""
    found: dict[Any, dict[str, Any]] = {}
    notes = []
    for line in [*read(store, suite), *_of_others(store, suite)]:
        key = tuple(line.get(name) for name in ("task", "method", "seed"))
        reason = why_not(line)
        if reason is None and key in found:
            reason = "an earlier line has it"
        if reason is None:
            found[key] = line
        else:
            notes.append(f"skipped: {' '.join(map(str, key))}: {reason}")
    return list(found.values()), notes


def _of_others(store: Path, suite: str) -> Iterator[dict[str, Any]]:
    """Runs of the other suites with settings that this one has, too."""
    names = {hash_of(job): job for job in score_tasks.SUITES[suite]}
    for other in score_tasks.SUITES:
        for line in read(store, other) if other != suite else ():
            job = names.get(line.get("settings"))
            if job is not None and line["seed"] in job.seeds:
                of = {"suite": suite, "task": job.task, "method": job.method}
                yield line | of


# The queue


def missing(
    suite: str, store: Path, peer_python: str | None, notes: list[str]
) -> list[Run]:
    """The runs that can be made here and are not stored; why not is noted."""
    lines, skipped = counted(store, suite)
    notes += skipped
    done = {(line["task"], line["method"], line["seed"]) for line in lines}
    jobs = score_tasks.SUITES[suite]
    runs = []
    found = _found_here(jobs, peer_python)
    for job in jobs:
        reason = _why_not_here(job, found)
        if reason is None:
            runs += [Run(job, seed) for seed in job.seeds]
        else:
            notes.append(f"skipped: {job.task} {job.method}: {reason}")
    return [run for run in runs if run.key not in done]


Found = dict[str, tuple[str | None, list[str]]]  # library → version, absent modules


def _found_here(jobs: Sequence[Job], peer_python: str | None) -> Found:
    """Of each library whose interpreter there is."""
    names = sorted({name for job in jobs for name in job.needs})
    found: Found = {}
    for library, python in zip(VERSIONS, (sys.executable, peer_python), strict=True):
        if python is None:
            continue
        command = [python, "-c", _LOOK, library, *names, "sb3_contrib"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"--peer_python={python}: {error}") from error
        found[library] = tuple(json.loads(done.stdout))
    return found


def _why_not_here(job: Job, found: Found) -> str | None:
    if job.library not in found:
        return "no --peer_python"
    version, absent = found[job.library]
    needs = [*job.needs, *(["sb3_contrib"] if not job.is_ours else [])]
    if away := [name for name in needs if name in absent]:
        return f"{', '.join(away)} not installed"
    if hash_of(job) is None:
        return f"no conf {job.conf}"
    return _wrong_version(job, version)


def in_order(runs: list[Run], shortest_first: bool = False) -> list[Run]:
    """The longest tasks first; of a task seed by seed, so that its methods compare."""
    cost: dict[str, int] = {}
    for job, _ in runs:
        cost[job.task] = max(cost.get(job.task, 0), job.seconds)
    sign = 1 if shortest_first else -1
    return sorted(
        runs, key=lambda r: (sign * cost[r.job.task], r.job.task, r.seed, r.job.method)
    )


class Queue:
    """One process on each core.

    Args:
        store: folder of the lines.
        cores: numbers of the cores.
        python: of ours and of the peers.
        seconds: until no run is under way any more. One that is not expected to end by
            then does not begin; how slow the machine is, the runs before it tell.
    """

    def __init__(
        self,
        store: Path,
        cores: Sequence[int],
        python: tuple[str, str | None],
        seconds: float,
    ) -> None:
        self._store = store
        self._python = python
        self._deadline = time.monotonic() + seconds
        self._running: dict[int, tuple[subprocess.Popen, Run, Any]] = {}
        self._free = list(cores)
        self._slowness = [1.0]  # wall seconds of one that a run was said to take
        self.num_failed = 0

    def work(self, runs: list[Run]) -> int:
        """Makes them; returns the exit code."""
        waiting = list(runs)
        try:
            while waiting or self._running:
                while self._free and (run := self._next(waiting)) is not None:
                    self._start(run)
                if not self._running:
                    break
                if time.monotonic() > self._deadline:
                    say("the time is over")
                    break
                time.sleep(0.2)
                self._collect()
        except KeyboardInterrupt:
            say("stopped")
            return 130
        finally:
            self._end_all()
        if waiting:
            say(f"{len(waiting)} runs are left; the same command goes on")
        return 1 if self.num_failed else 0

    def _next(self, waiting: list[Run]) -> Run | None:
        """The first one that is expected to end in time."""
        left = self._deadline - time.monotonic()
        slowness = statistics.median(self._slowness)
        for run in waiting:
            if run.job.seconds * slowness < left:
                waiting.remove(run)
                return run
        return None

    def _start(self, run: Run) -> None:
        core, job = self._free.pop(0), run.job
        script = str(Path(score_run.__file__))
        command = [
            *(str(self._python[0 if job.is_ours else 1]), script),
            *(job.suite, job.task, job.method, f"--seed={run.seed}", f"--core={core}"),
            f"--settings={hash_of(job)}",
        ]
        if job.data:
            command.append(f"--data={self._data(job.data)}")
        root = str(Path(__file__).parents[1])
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when it has ended
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": root, "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours
        )
        self._running[core] = process, run, log
        say(f"begins: {run} on core {core}, about {job.seconds} s of CPU")

    def _data(self, conf: str) -> Path:
        """The recorded steps of a conf, which are collected once."""
        folder = (self._store / "data" / conf).resolve()
        if not folder.exists():
            say(f"collects {conf}")
            part = folder.with_suffix(".part")
            command = [self._python[0], "-m", "alf_lite.bin.train", f"--conf={conf}"]
            done = subprocess.run(
                [*command, f"--root_dir={part}", "--seed=100"],
                cwd=Path(__file__).parents[1],
                stdout=subprocess.DEVNULL,
            )
            if done.returncode:
                raise SystemExit(f"{conf} ended with exit code {done.returncode}")
            part.rename(folder)
        return folder

    def _collect(self) -> None:
        for core, (process, run, log) in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[core]
            self._free.append(core)
            with log:
                log.seek(0)
                output = [line for line in log.read().splitlines() if line.strip()]
            found = [text for text in output if text.startswith('{"format"')]
            if process.returncode or not found:
                self.num_failed += 1
                last = output[-1] if output else f"exit code {process.returncode}"
                say(f"failed: {run}: {last}")
                continue
            line = json.loads(found[-1])  # what comes after it are warnings
            self._slowness.append(line["wall_seconds"] / max(run.job.seconds, 1))
            append(self._store, line)
            score, seconds = line["scores"][-1], line["cpu_seconds"]
            say(f"done: {run}: {score:,.1f} in {seconds:.0f} s of CPU")

    def _end_all(self) -> None:
        for process, run, log in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            log.close()
            say(f"broken off: {run}")
        self._running = {}


def append(store: Path, line: dict[str, Any]) -> None:
    """One whole line, after the last whole one."""
    file = store / f"{line['suite']}.jsonl"
    store.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as stream:
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.write(json.dumps(line).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def alone(store: Path) -> Iterator[None]:
    """In the block no other queue writes there."""
    store.mkdir(parents=True, exist_ok=True)
    with (store / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"{store}: another queue is at work there") from None
        yield


def run(options: argparse.Namespace) -> int:
    notes: list[str] = []
    runs = missing(options.suite, options.store, options.peer_python, notes)
    for note in notes:
        say(note)
    for flag, values, of in (
        ("tasks", options.tasks, lambda r: r.job.task),
        ("methods", options.methods, lambda r: r.job.method),
        ("seeds", options.seeds, lambda r: r.seed),
    ):
        known = {
            of(Run(j, s)) for j in score_tasks.SUITES[options.suite] for s in j.seeds
        }
        if unknown := set(values or ()) - known:
            raise SystemExit(
                f"--{flag} {unknown.pop()}: {options.suite} has "
                f"{', '.join(map(str, sorted(known)))}"
            )
        runs = [r for r in runs if not values or of(r) in values]
    seconds = sum(r.job.seconds for r in runs)
    say(f"{len(runs)} runs are missing, about {seconds / 3600:.1f} h of CPU")
    with alone(options.store):
        python = sys.executable, options.peer_python
        queue = Queue(options.store, options.cores, python, options.hours * 3600)
        return queue.work(in_order(runs, options.shortest_first))


def _cores(text: str) -> list[int]:
    cores, there = [int(part) for part in text.split(",")], os.sched_getaffinity(0)
    if not there.issuperset(cores):
        named = ", ".join(map(str, sorted(there)))
        raise argparse.ArgumentTypeError(f"{text}: this machine has {named}")
    return cores


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run", help="the runs that are missing")
    run_parser.add_argument("--suite", choices=score_tasks.SUITES, default="core")
    run_parser.add_argument("--hours", type=float, default=float("inf"))
    run_parser.add_argument("--cores", type=_cores, default=[0], help="as in 0,1")
    run_parser.add_argument("--tasks", nargs="+")
    run_parser.add_argument("--methods", nargs="+")
    run_parser.add_argument("--seeds", nargs="+", type=int)
    run_parser.add_argument("--shortest_first", action="store_true")
    run_parser.add_argument(
        "--peer_python", help="where Stable-Baselines3 is installed"
    )
    report_parser = commands.add_parser("report", help="writes the page")
    for each in (run_parser, report_parser):
        each.add_argument("--store", type=Path, default=STORE, help="folder of lines")
    options = parser.parse_args()
    if options.command == "run":
        return run(options)
    import score_report

    from alf_lite.errors import ConfigError

    try:
        return score_report.write(options.store)
    except ConfigError as error:  # the plot extra is missing
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    # What ends a program ends its runs, too.
    # A shell has what runs in its background ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
