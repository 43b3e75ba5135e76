"""How a run ended, and what ``run.json`` says about it: with what it was trained.

No environment variables: they may hold secrets.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

import alf_lite
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.errors import AlfLiteError, CheckpointError, ConfigError, DivergedError
from alf_lite.trainers import rebuilding, train_summaries
from alf_lite.trainers.evaluator import EvalResult
from alf_lite.trainers.run_checkpoints import RunCheckpoints, config_texts
from alf_lite.trainers.run_directory import (
    MODULE_FOLDERS,
    SCRIPT,
    USER_CONFIG,
    RunDirectory,
)
from alf_lite.trainers.run_plan import RunPlan
from alf_lite.trainers.signals import BrokenOffError
from alf_lite.trainers.training_state import RunState
from alf_lite.utils import summary
from alf_lite.utils.interruption import interruption
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)
# Recorded even before they are imported.
_CORE_PACKAGES = ("torch", "numpy", "gymnasium", "gin-config", "optree", "tensorboard")
_GIT_SECONDS = 5.0
_MAX_EARLIER = 50
# Of the process before, what is kept in the record of the next one.
_SHORT = (
    "pid",
    "host",
    "started",
    "ended",
    "alf_lite",
    "resumed_iterations",
    "iterations",
    "stop_reason",
    "exit_code",
    "error",
)
# What ended the run would end the saving, too, or is in the parameters already.
_NOT_TO_BE_SAVED = (DivergedError, CheckpointError)


class RunRecord:
    """``run.json`` of a run, from its begin in this process to its end.

    What the file said of the process before is kept in short in the list ``earlier``.

    Args:
        directory: of the run.
        device: of the networks.
        **entries: more of it.
    """

    def __init__(self, directory: RunDirectory, device: str, **entries: Any) -> None:
        package = Path(alf_lite.__file__).resolve().parent
        self._directory = directory
        self._record = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": _now(),
            "command": [sys.executable, *sys.orig_argv[1:]],
            "working_directory": _working_directory(),
            MODULE_FOLDERS: config_names.module_folders(),
            **entries,
            "alf_lite": {"version": alf_lite.__version__, **_library(package)},
            "repository": _repository(package.parent),
            "packages": _packages(),
            "machine": _machine(device),
            "earlier": earlier_processes(directory.read_run_file()),
        }

    def begin(self) -> None:
        """Writes what is known when the run begins.

        Raises:
            ConfigError: if nothing can be written.
        """
        self._directory.write_run_file(to_text(self._record))

    def end(self, entries: Mapping[str, Any]) -> None:
        """Adds how the run ended; packages that it has loaded are added, too."""
        if self._directory.lock.is_lost():
            return
        self._record |= {"packages": _packages(), "ended": _now(), **entries}
        self._record["earlier"] = self._record.pop("earlier")  # the last entry again
        try:
            self._directory.write_run_file(to_text(self._record))
        except ConfigError as error:
            _logger.error("%s", error)


def to_text(record: Mapping[str, Any]) -> str:
    """As JSON. A NaN is null, so that every tool can read it."""
    return json.dumps(_without_nan(record), indent=1, default=str) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _working_directory() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was deleted
        return None


def earlier_processes(previous: str | None) -> list[dict[str, Any]]:
    """Those that trained this run before, the last one at the end.

    Args:
        previous: the text of the record of the last one.
    """
    try:
        record = json.loads(previous or "")
        earlier = [dict(one) for one in record.get("earlier", [])]
        short = {key: record[key] for key in _SHORT if key in record}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []  # damaged: the run does not depend on it
    return [*earlier, short][-_MAX_EARLIER:]


def _packages() -> dict[str, str]:
    """The versions of Python, of the core, and of everything that is imported."""
    found = {"python": platform.python_version()}
    for name in _CORE_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    for name, module in sorted(sys.modules.items()):
        if "." in name or name in sys.stdlib_module_names or name.startswith("_"):
            continue
        # Not getattr: some modules import others when they are asked.
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str) and name not in ("alf_lite", "__main__"):
            found.setdefault(name, version)
    return found


def _machine(device: str) -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    machine: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "usable_cpus": usable,
        "threads": torch.get_num_threads(),
        "device": device,
    }
    if torch.device(device).type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
        machine["cuda"] = torch.version.cuda
    return machine


# Version control


def _library(package: Path) -> dict[str, Any]:
    """The commit of the library: of its checkout, or what pip has recorded."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is not None:
        return _commit(package)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        text = importlib.metadata.distribution("alf_lite").read_text("direct_url.json")
        vcs = json.loads(text or "{}").get("vcs_info", {})
        if "commit_id" in vcs:
            return {"commit": vcs["commit_id"], "changed": False}
    return {"commit": None, "changed": None}


def _repository(except_for: Path) -> dict[str, Any] | None:
    """The repository that the command was given in; None if it is the library's."""
    root = _git(Path("."), "rev-parse", "--show-toplevel")
    if not root or Path(root) == except_for:
        return None
    return {"path": root, **_commit(Path(root))}


def _commit(directory: Path) -> dict[str, Any]:
    """The commit, and whether tracked files differ from it; None if unknown."""
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": _git(directory, "rev-parse", "HEAD"),
        "changed": None if changes is None else bool(changes),
    }


def _git(directory: Path, *arguments: str) -> str | None:
    """What git prints; None if there is no git, no repository, or no answer."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


class TrainResult(NamedTuple):
    """How a run ended."""

    root_dir: Path
    iterations: int  # of the whole run, earlier processes included
    env_steps: int
    num_updates: int  # of gradients
    seconds: float  # of the whole run
    seconds_now: float  # of them, in this process
    stop_reason: str
    stop_signal: signal.Signals | None  # SIGINT, SIGTERM or SIGHUP, if that ended it
    was_finished: bool  # there was nothing left to do
    evaluation: EvalResult | None  # the final one
    average_return: float  # of the latest training episodes; NaN if there was none
    best_score: float | None
    checkpoint: Path | None  # the last one
    note: str  # what is kept, if the last iteration was broken off

    @property
    def exit_code(self) -> int:
        """Of a program that did nothing but train."""
        return 0 if self.stop_signal is None else 128 + self.stop_signal


def open_files(
    stack: contextlib.ExitStack,
    checkpoints: RunCheckpoints,
    run: RunState,
    plan: RunPlan,
    result: Callable[[], TrainResult],
) -> None:
    """Writes down what runs here, and how it ends; opens the summaries.

    Args:
        stack: closes everything.
        checkpoints: of the run, the last one of them resumed.
        run: its counters.
        plan: what is trained.
        result: of the run, to be called at its end.
    """
    directory = checkpoints.run_directory
    checkpoints.check_logs()
    if checkpoints.last_path is not None:
        _logger.info(
            "Resuming from %s: iteration %d, %d environment steps, seed %d.",
            checkpoints.last_path,
            run.iterations,
            run.env_steps,
            run.seed,
        )
    elif directory.run_file.exists():
        _logger.warning(
            "%s holds a run that ended before its first checkpoint: starting from the "
            "beginning.",
            directory.path,
        )
    record = RunRecord(
        directory,
        plan.config.device,
        run_id=checkpoints.run_id,
        conf=conf_of(directory),
        seed=run.seed,
        resumed_iterations=run.iterations,
        **{
            SCRIPT: script_of(directory, plan),
            rebuilding.GIVEN_IN_PYTHON: plan.given.left_out,
        },
    )
    record.begin()
    stack.push(lambda kind, error, traceback: record.end(end_entries(result(), error)))
    directory.write_config_texts(config_texts(plan.given.statements))
    checkpoints.rewind_summaries()
    stack.enter_context(
        summary.writer_to(
            directory.train_summaries,
            plan.config.summaries_flush_secs,
            checkpoints.run_id,
            log_directory=directory.path,
            axis=train_summaries.axis(plan.config),
        )
    )


def conf_of(directory: RunDirectory) -> str | None:
    """The name of the conf of a run; a run that goes on may read its own copy."""
    name = config_files.conf_name()
    if name is not None and f"{name}.gin" != USER_CONFIG:
        return name
    return _earlier(directory, "conf")


def script_of(directory: RunDirectory, plan: RunPlan) -> str | None:
    """The program that a class of ``__main__`` is of; kept when another one goes on."""
    if rebuilding.defined_here(plan.given.statements):
        return config_names.this_program()
    return _earlier(directory, SCRIPT)


def _earlier(directory: RunDirectory, key: str) -> Any:
    try:
        return json.loads(directory.read_run_file() or "")[key]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


class Save(Protocol):
    """Writes a checkpoint of the last whole iteration."""

    def __call__(self, *, required: bool, with_hooks: bool = True) -> None: ...


def keep_what_is_whole(
    error: BaseException, iterations: int, checkpoints: RunCheckpoints, save: Save
) -> str:
    """Saves the last whole iteration if it is still there.

    Args:
        error: what ended the run; gets a note that says what is kept.
        iterations: that are complete.
        checkpoints: of the run.
        save: see there.

    Returns:
        The note.
    """
    text = f"Stopped in iteration {iterations + 1}."
    if isinstance(error, _NOT_TO_BE_SAVED) or iterations == 0 or ranks.size > 1:
        pass  # ranks save together or not at all
    elif interruption.parameters_changed:
        text += " Its updates had begun, and half of them cannot be saved."
    else:
        text += _try_to(save)
    kept = checkpoints.last_path
    if kept is not None and kept.is_dir():
        text += f" Kept: {kept}. The same command continues from there."
    else:
        text += " There is no checkpoint."
    error.add_note(text)
    return text


def _try_to(save: Save) -> str:
    """Returns what failed, after a space."""
    try:
        save(required=True)
    except (CheckpointError, DivergedError) as error:
        return f" Saving failed: {error}"
    except Exception as error:
        # Perhaps the state of a hook, which is worth less than the rest.
        with contextlib.suppress(Exception):
            save(required=True, with_hooks=False)
            return f" Saved without the states of the hooks: {error}"
        return f" Saving failed: {type(error).__name__}: {error}"
    return ""


def end_entries(result: TrainResult, error: BaseException | None) -> dict[str, Any]:
    """What ``run.json`` says about the end.

    Args:
        result: what there is at the end.
        error: that ended the run, if one did.
    """
    evaluation = result.evaluation
    if error is None or isinstance(error, BrokenOffError):
        exit_code = result.exit_code
        stop_reason = result.stop_reason
        if result.stop_signal is not None:
            stop_reason = result.stop_signal.name
    else:
        exit_code = error.exit_code if isinstance(error, AlfLiteError) else 1
        stop_reason = type(error).__name__
    return {
        "stop_reason": stop_reason,
        "exit_code": exit_code,
        "error": None if error is None else str(error) or None,
        "note": result.note or None,
        "iterations": result.iterations,
        "env_steps": result.env_steps,
        "num_updates": result.num_updates,
        "seconds": result.seconds,
        "average_return": result.average_return,
        "evaluation": None if evaluation is None else evaluation.mean,
        "best_score": result.best_score,
        "checkpoint": result.checkpoint,
    }
