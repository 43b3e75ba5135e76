"""``run.json``: by what a run was trained, with which versions, on which machine.

No environment variables: they may hold secrets.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import logging
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import alf_lite
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.errors import ConfigError
from alf_lite.runs import rebuilding
from alf_lite.runs.directory import (
    MODULE_FOLDERS,
    SCRIPT,
    USER_CONFIG,
    RunDirectory,
)

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
            "earlier": earlier_processes(directory.earlier_record),
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


def earlier_processes(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those that trained this run before, the last one, of ``record``, at the end."""
    short = {key: record[key] for key in _SHORT if key in record}
    return [*record.get("earlier", ()), short][-_MAX_EARLIER:] if record else []


def _packages() -> dict[str, str]:
    """The versions of Python, of the core, and of everything that is imported."""
    found = {"python": platform.python_version(), **_core_packages()}
    for name in sorted(name for name in list(sys.modules) if "." not in name):
        if name in sys.stdlib_module_names or name.startswith("_"):
            continue
        # Not getattr: some modules import others when they are asked.
        version = getattr(sys.modules.get(name), "__dict__", {}).get("__version__")
        if isinstance(version, str) and name not in ("alf_lite", "__main__"):
            found.setdefault(name, version)
    return found


@functools.cache
def _core_packages() -> dict[str, str]:
    found = {}
    for name in _CORE_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
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


@functools.cache
def _library(package: Path) -> dict[str, Any]:
    """The commit of the library: of its checkout, or what pip has recorded.

    Asked once: a process goes on with the code that it has imported.
    """
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


def conf_of(directory: RunDirectory) -> str | None:
    """The name of the conf of a run; a run that goes on may read its own copy."""
    name = config_files.conf_name()
    if name is not None and f"{name}.gin" != USER_CONFIG:
        return name
    return directory.earlier_record.get("conf")


def script_of(directory: RunDirectory, statements: Mapping[str, str]) -> str | None:
    """The program that a class of ``__main__`` is of; kept when another one goes on."""
    if rebuilding.defined_here(statements):
        return config_names.this_program()
    return directory.earlier_record.get(SCRIPT)
