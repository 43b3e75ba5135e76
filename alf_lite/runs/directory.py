"""The directory of one run: who owns it, and where its files are."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import re
from pathlib import Path
from typing import Any

from alf_lite.border import (
    CONFIG,
    RefusalError,
    check_types,
    read_record,
    read_text,
)
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.checkpoints.files import new_output
from alf_lite.config import names as config_names
from alf_lite.errors import CheckpointError, ConfigError, DataError
from alf_lite.runs.lock import RunLock
from alf_lite.utils.row_log import KEYS

_logger = logging.getLogger(__name__)

# What the user gave (rebuilds the run), what of it was used, and what was not.
USER_CONFIG = "user.gin"
OPERATIVE_CONFIG = "operative.gin"
INOPERATIVE_CONFIG = "inoperative.gin"
RUN_FILE = "run.json"
# In it: where modules of the user were, and what was `__main__`.
MODULE_FOLDERS = "module_folders"
SCRIPT = "script"
GIVEN_IN_PYTHON = "given_in_python"
# Of its entries those that are read again
_ENTRIES = {
    MODULE_FOLDERS: [str],
    SCRIPT: str | None,
    GIVEN_IN_PYTHON: [str],
    "run_id": str | None,
    "conf": str | None,
    "stop_reason": str,
    "exit_code": int,
    "iterations": int,
    "env_steps": int,
    "num_updates": int,
    **dict.fromkeys(("seconds", "average_return", "evaluation"), int | float | None),
    "earlier": [dict],
}

# What a process that was killed had begun to write in the place of a file of a run
_LEFTOVER = re.compile(
    rf"\.tmp-\d+-(run\.json|\w+\.gin|({'|'.join(KEYS)})\.(jsonl|csv))"
)


class RunDirectory:
    """``root_dir`` and its lock, which only one training process can hold.

    Args:
        root_dir: created if it does not exist; ``path`` is absolute.

    Raises:
        ConfigError: if it is not a directory that can be written.
    """

    def __init__(self, root_dir: str | os.PathLike[str]) -> None:
        if not os.fspath(root_dir):
            raise ConfigError("no root_dir given: where should the run be stored?")
        try:
            # Once and for all: an environment may change the working directory.
            self.path = Path(os.path.abspath(Path(root_dir).expanduser()))
        except OSError as error:
            raise ConfigError(
                f"root_dir {os.fspath(root_dir)!r} is relative to a working directory "
                "that does not exist any more"
            ) from error
        self.lock = RunLock(self.path)
        self.checkpoints = self.path / "checkpoints"
        self.train_summaries = self.path / "train"
        self.run_file = self.path / RUN_FILE
        # Name -> JSON lines, see alf_lite.utils.row_log
        self.logs = {name: self.path / f"{name}.jsonl" for name in KEYS}

    def acquire(self) -> None:
        """Takes the lock, and deletes what a run that was killed left half written.

        Raises:
            ConfigError: naming the holder, if another process trains here; or naming
                the reason, if nothing can be written here.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
            for file in self.path.iterdir():
                if _LEFTOVER.fullmatch(file.name):
                    file.unlink()
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"root_dir {str(self.path)!r} cannot be used: {reason}"
            ) from error
        if self.checkpoints.is_symlink():
            self.lock.release()
            raise ConfigError(
                f"{self.checkpoints} is a link. The run deletes what is old there, "
                "which may be another run's. Make root_dir itself the link, or remove "
                "it."
            )

    def __enter__(self) -> RunDirectory:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    @property
    def earlier_record(self) -> dict[str, Any]:
        """What ``run.json`` says of the process before this one."""
        return read_run_record(self.path)

    def note_modules(self) -> None:
        """Lets the modules and the script be found that made this run."""
        for folder in self.earlier_record.get(MODULE_FOLDERS, ()):
            if os.path.isabs(folder):
                config_names.note_conf_folder(Path(folder))
        script = self.earlier_record.get(SCRIPT)
        config_names.note_script(script if os.path.isabs(script or "") else None)

    def write_run_file(self, text: str) -> None:
        """Records what runs here, see :mod:`alf_lite.runs.record`."""
        self._write(self.run_file, text)

    def write_config_texts(
        self, texts: dict[str, str], *, required: bool = True
    ) -> None:
        """Writes the texts of the configuration.

        What the user gave is compared with that of the previous run in this directory,
        and the difference is logged.

        Args:
            texts: file name -> content.
            required: False to go on if they cannot be written; checkpoints hold them
                too.

        Raises:
            ConfigError: if they cannot be written.
        """
        previous = None
        if USER_CONFIG in texts:
            with contextlib.suppress(ConfigError):  # it is replaced
                previous = self._user_text()
        if previous:
            changes = changed_lines(previous, texts[USER_CONFIG])
            if changes:
                _logger.warning(
                    "The configuration differs from that of the earlier run in %s:\n%s",
                    self.path,
                    "\n".join(changes),
                )
        try:
            for name, text in texts.items():
                self._write(self.path / name, text)
        except ConfigError as error:
            if required:
                raise
            _logger.error("%s", error)

    def read_user_config(self) -> str:
        """What the user gave to the run in this directory; restored if it was lost.

        Raises:
            ConfigError: if there is no run.
        """
        self.restore_user_config()
        text = self._user_text()
        if text is None:
            raise ConfigError(
                f"{self.path} holds no run: there is no {USER_CONFIG}{self._nearby()}"
            )
        return text

    def _nearby(self) -> str:
        """Goes on about runs that may be meant instead."""
        place = self.path.parent
        if self.path.name == self.checkpoints.name and (place / USER_CONFIG).is_file():
            return f". Give the run, {place}"
        inside = sorted(file.parent.name for file in self.path.glob(f"*/{USER_CONFIG}"))
        if not inside:
            return ""
        shown = ", ".join(inside[:3]) + (", …" if len(inside) > 3 else "")
        return f". Give one of the runs in it: {shown}"

    def restore_user_config(self) -> None:
        """Puts ``user.gin`` back from the newest checkpoint if a crash has cost it.

        Of a file that never reached the disk there is only the name, or zeros.

        Raises:
            ConfigError: if it cannot be written, or is something else than a file.
        """
        text, user_file = self._user_text(), self.path / USER_CONFIG
        if text and "\0" not in text:
            return
        try:
            loaded = Checkpointer(self.checkpoints, read_only=True).load(parts=())
        except CheckpointError:
            return  # nothing to restore it from
        saved = loaded.texts.get(USER_CONFIG)
        if saved:
            self._write(user_file, saved)
            _logger.warning(
                "%s was %s; it is restored from %s.",
                user_file,
                "missing" if text is None else "empty or damaged",
                loaded.path,
            )

    def _user_text(self) -> str | None:
        file = self.path / USER_CONFIG
        return read_text(file, CONFIG, errors="replace") if file.exists() else None

    def _write(self, path: Path, text: str) -> None:
        # Whole and on the disk, or not at all; a link is replaced, not followed.
        with new_output(path, replace_file=True) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read_run_record(root_dir: Path) -> dict[str, Any]:
    """What ``run.json`` says; {} without one. The log says what of it is left out.

    Nothing that is trained depends on it.
    """
    path = root_dir / RUN_FILE
    try:
        record = read_record(path, {}) if path.exists() else {}
    except DataError as error:
        _logger.warning("%s. It is left out.", error)
        return {}
    for name in _ENTRIES.keys() & record.keys():
        try:
            check_types(record[name], _ENTRIES[name], name)
        except RefusalError as error:
            _logger.warning("%s: %s. It is left out.", path, error)
            del record[name]
    return record


def changed_lines(previous: str, current: str) -> list[str]:
    """The lines that were removed (-) and added (+), without context or comments."""

    def settings(text: str) -> list[str]:
        lines = [line.rstrip() for line in text.splitlines()]
        return [line for line in lines if line and not line.lstrip().startswith("#")]

    difference = difflib.unified_diff(settings(previous), settings(current), n=0)
    return [
        f"  {line[0]} {line[1:]}"
        for line in difference
        if line[0] in "+-" and not line.startswith(("+++", "---"))
    ]
