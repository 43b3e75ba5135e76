"""The lock of a directory: one process that trains, or searches, per directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import stat
import time
import weakref
from pathlib import Path
from typing import Any

from alf_lite.errors import CheckpointError, ConfigError

_logger = logging.getLogger(__name__)

IN_TRAINING = "another run is training in"  # said of a directory that is locked
_NAME = ".lock"
# Two processes may replace a lock that was left behind at the same time.
_ATTEMPTS = 50
_CHECK_SECONDS = 1.0
_NAMING_SECONDS = 1.0


class RunLock:
    """A file in the directory, locked by the kernel, which names its holder.

    The lock ends with the process, however that dies. Children that the process forks
    do not keep it; should one that was forked behind Python's back do so all the same,
    the next run finds that the process named in the file is dead, and puts a file of
    its own in that place.

    The directory may be deleted and made anew while the run lives. Then the file there
    is another one, which :meth:`check` notices.

    Args:
        directory: that is locked; it exists.
        what: the holder does, for others who come.
    """

    def __init__(self, directory: Path, what: str = IN_TRAINING) -> None:
        self._directory = directory
        self._what = what
        self._path = directory / _NAME
        self._descriptor: int | None = None
        self._checked_at = 0.0

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            ConfigError: naming the holder.
            OSError: if there can be no file.
        """
        for _ in range(_ATTEMPTS):
            descriptor = self._open()
            try:
                if not _lock(descriptor):
                    self._refuse_if_held(descriptor)
                    _close(descriptor)
                    descriptor = -1
                    descriptor = self._replace()
                if descriptor >= 0 and _is_file(self._path, descriptor):
                    self._hold(descriptor)
                    return
            except BaseException:
                _close(descriptor)
                raise
            # Somebody else was faster.
            _close(descriptor)
            time.sleep(0.02)
        raise ConfigError(f"{self._path} cannot be locked: it changes all the time")

    def check(self, *, at_once: bool = True) -> None:
        """Makes sure that the directory is still this run's.

        Args:
            at_once: False looks once in a second at most.

        Raises:
            CheckpointError: if the directory was deleted, or is another run's now.
        """
        if self._descriptor is None:
            return
        now = time.monotonic()
        if not at_once and now - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = now
        if self.is_lost():
            raise CheckpointError(
                f"{self._directory} is no longer the directory of this run: it was "
                "deleted or replaced while the run was training. Nothing more is "
                "written there. Another run may train in it now; give each its own "
                "root_dir."
            )

    def is_lost(self) -> bool:
        """Whether the file that was locked is gone from the directory."""
        if self._descriptor is None:
            return False
        try:
            return not _is_file(self._path, self._descriptor)
        except OSError as error:
            _logger.warning("%s cannot be checked: %s", self._path, error)
            return False

    def release(self) -> None:
        """Gives the lock back. A second call does nothing."""
        _held.discard(self)
        if self._descriptor is not None:
            _close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _open(self) -> int:
        # A link could lead to any file, and a pipe would block.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise ConfigError(f"{self._path} is a link. Remove it.") from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise ConfigError(f"{self._path} is a link, a pipe or a device. Remove it.")
        return descriptor

    def _refuse_if_held(self, descriptor: int) -> None:
        deadline = time.monotonic() + _NAMING_SECONDS
        while True:
            text = os.pread(descriptor, 4096, 0).decode("utf-8", errors="replace")
            holder, _, identity = text.partition("\n")
            is_named = bool(holder) and not _is_dead(identity)
            if is_named or time.monotonic() > deadline:
                break
            # Who has just taken the lock writes its name in a moment.
            time.sleep(0.02)
        if is_named or not holder:
            raise ConfigError(
                f"{self._what} {self._directory}: "
                f"{holder.strip() or 'process unknown'}. Wait for it, stop it, or use "
                "another root_dir."
            )
        _logger.warning(
            "A child of %s, which is dead, still holds the lock of %s: it is taken "
            "from it.",
            holder.strip(),
            self._directory,
        )

    def _replace(self) -> int:
        """Puts a new file, locked, in the place of one whose holder is dead.

        Returns:
            Its descriptor; -1 if another process did the same.
        """
        directory = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not _lock(directory):
                return -1
            # Whose it is may have changed before the directory was locked.
            with open(self._path, "rb") as file:
                if _lock(file.fileno()):
                    return -1
                identity = file.read(4096).partition(b"\n")[2]
            if not _is_dead(identity.decode("utf-8", errors="replace")):
                return -1
            temporary = self._path.with_name(f"{_NAME}-{os.getpid()}")
            temporary.unlink(missing_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o644)
            _lock(descriptor)
            temporary.rename(self._path)
            return descriptor
        finally:
            os.close(directory)

    def _hold(self, descriptor: int) -> None:
        line = (
            f"process {os.getpid()} on {socket.gethostname()}, "
            f"since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        )
        with contextlib.suppress(OSError):  # a full disk; it is the lock that counts
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{line}\n{json.dumps(_identity())}\n".encode(), 0)
        self._descriptor = descriptor
        _held.add(self)


def _lock(descriptor: int) -> bool:
    """Whether the lock is ours now; True, too, where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        _logger.warning("no file locks here: %s", error)
    return True


def _is_file(path: Path, descriptor: int) -> bool:
    """Whether the file of the descriptor is at ``path``."""
    mine = os.fstat(descriptor)
    try:
        there = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


# Which process this is, for processes that can look it up


def _identity() -> dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "started": _state_of(pid)[1], "machine": _machine()}


def _is_dead(identity: str) -> bool:
    """Whether the process has ended for sure; False if nobody can know that here."""
    try:
        fields = json.loads(identity)
        pid, started = int(fields["pid"]), fields["started"]
        if not started or fields["machine"] != _machine():
            return False
    except (ValueError, KeyError, TypeError):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    state, its_start = _state_of(pid)
    return bool(state) and (state in "ZX" or its_start != started)


def _machine() -> list[str]:
    """What process numbers mean: this boot of this machine, and this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [boot, os.readlink("/proc/self/ns/pid")]
    except OSError:
        return []


def _state_of(pid: int) -> tuple[str, str]:
    """The state of a process, and when it began; both empty if that is unknown."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


# What forked children must let go
_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _release_in_fork() -> None:
    for lock in list(_held):
        lock.release()  # closes a copy: the parent's lock stays


os.register_at_fork(after_in_child=_release_in_fork)
