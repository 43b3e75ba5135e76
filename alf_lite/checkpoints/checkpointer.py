"""Checkpoints: data, never code. Each appears whole or not at all.

A checkpoint is a directory ``ckpt-<step>`` with one file per part of the state (such as
``algorithm.pt``), the texts that describe the run, and a manifest. Playing reads one
part and needs no other. How a directory is written and read is in
:mod:`alf_lite.checkpoints.files`.
"""

from __future__ import annotations

import difflib
import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import alf_lite
from alf_lite.border import CHECKPOINT, border
from alf_lite.checkpoints import files as checkpoint_files
from alf_lite.checkpoints.data import (
    MAPPED_SUFFIX,
    NAME,
    PART_SUFFIX,
    CheckpointInfo,
    LoadedCheckpoint,
    check_is_state_dict,
    load_module_state,
    read,
    read_info,
    to_bytes,
)
from alf_lite.errors import CheckpointError, DamagedCheckpointError

__all__ = [
    "CheckpointInfo",
    "Checkpointer",
    "LoadedCheckpoint",
    "NoCheckpointError",
    "load_module_state",
    "load_prefix",
]

_logger = logging.getLogger(__name__)

# A reader without the lock may meet a checkpoint that is being replaced or deleted: it
# looks again for so many seconds, and so often where there is none.
_READ_SECONDS = 20.0
_READ_ATTEMPTS = 20
_CORRUPT = re.compile(r"ckpt-(\d+)\.corrupt(\d*)")
# How many of those are kept once there is a newer valid checkpoint.
_KEEP_CORRUPT = 2

State = Mapping[str, Any]


class NoCheckpointError(CheckpointError):
    """There is none that is wanted, or what there is is damaged."""


class Checkpointer:
    """The checkpoints of one run.

    Args:
        directory: where they are; created by the first ``save``.
        keep_latest: how many of the newest resumable checkpoints to keep. The one with
            the best score is kept too.
        read_only: for a process that does not own the run: nothing on disk is changed,
            and checkpoints that the owner replaces or deletes meanwhile are looked up
            again.
    """

    def __init__(
        self, directory: Path | str, keep_latest: int = 3, *, read_only: bool = False
    ) -> None:
        if keep_latest < 1:
            raise ValueError(f"keep_latest must be at least 1, got {keep_latest}")
        self.directory = Path(directory)
        self._keep_latest = keep_latest
        self._read_only = read_only
        if not read_only and self._entries():
            checkpoint_files.recover(self.directory)

    def save(
        self,
        step: int,
        state: State,
        texts: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        mapped_files: Mapping[str, checkpoint_files.Stream] | None = None,
        best_score: float | None = None,
        resumable: bool = True,
        prunes: bool = True,
    ) -> Path:
        """Writes ``ckpt-<step>``, then deletes those that need not be kept.

        Args:
            step: of training; replaces a checkpoint of the same step.
            state: part name -> nested dicts, lists and tuples of tensors, numbers and
                strings. Each part becomes a file.
            texts: file name -> content, such as the configuration.
            metadata: JSON data, kept in the manifest.
            mapped_files: file name -> content, of files too large to be read as a part
                of the state; their names end with ``MAPPED_SUFFIX``.
            best_score: the score, if it is the best so far.
            resumable: False for one that only serves to play, such as the best policy
                between two scheduled checkpoints.
            prunes: False keeps all others until :meth:`prune` is called.

        Returns:
            The directory.

        Raises:
            TypeError: if ``state`` holds anything but data; names its path.
            CheckpointError: if the disk refuses; earlier checkpoints are untouched.
        """
        if best_score is not None and not math.isfinite(best_score):
            raise ValueError(f"best_score must be finite, got {best_score}")
        contents: dict[str, checkpoint_files.Content] = {
            name + PART_SUFFIX: to_bytes(part, name) for name, part in state.items()
        }
        contents |= {name: text.encode() for name, text in (texts or {}).items()}
        for name, stream in (mapped_files or {}).items():
            assert name.endswith(MAPPED_SUFFIX), name
            contents[name] = stream
        manifest = {
            "alf_lite": alf_lite.__version__,
            "torch": torch.__version__,
            "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "step": step,
            "best_score": best_score,
            "resumable": resumable,
            "metadata": dict(metadata or {}),
        }
        path = self.directory / f"ckpt-{step}"
        checkpoint_files.write(path, contents, manifest)
        # Only now that the new one is safe.
        checkpoint_files.fault_point("before prune")
        if prunes:
            self.prune()
        return path

    def mark_best(self, step: int, score: float) -> bool:
        """Notes in a checkpoint that there is that it holds the best policy so far.

        One that training cannot continue from is of a part that was killed, and may
        hold another policy of this step.

        Returns:
            Whether there is one of this step.

        Raises:
            CheckpointError: if it cannot be read or the disk refuses.
        """
        path = self.directory / f"ckpt-{step}"
        if not path.is_dir() or not read_info(path).resumable:
            return False
        checkpoint_files.change_manifest(path, {"best_score": score})
        self.prune()
        return True

    def load(
        self,
        step: str | int = "latest",
        parts: Sequence[str] | None = None,
        *,
        resumable: bool = False,
    ) -> LoadedCheckpoint:
        """Reads and verifies a checkpoint.

        Asked for the latest or the best, a damaged one is reported as an error in the
        log, set aside as ``ckpt-<step>.corrupt`` and the next one is taken. The newest
        two of those are kept. One that is not damaged but cannot be read, for want of
        rights or memory or because a newer version wrote it, is an error: nothing is
        renamed, and no older one is taken without being asked for.

        Args:
            step: "latest", "best" or a step.
            parts: which parts of the state to read; None means all. Files of other
                parts may be missing or damaged.
            resumable: consider only checkpoints that training can continue from.

        Raises:
            CheckpointError: if there is none or none is valid, or one cannot be read.
                Never returns an empty state.
        """
        failures: list[str] = []
        deadline, num_empty = time.monotonic() + _READ_SECONDS, 0
        while True:
            failures.clear()
            candidates = self._preferred(step)
            num_empty = 0 if candidates else num_empty + 1
            # A writer may just be putting one checkpoint in place of another.
            changed = self._read_only and not candidates and self.directory.is_dir()
            for path in candidates:
                identity = identity_of(path)
                try:
                    loaded = read(path, parts, resumable=resumable)
                except CheckpointError as error:
                    is_there = identity is not None and identity_of(path) == identity
                    if self._read_only and not is_there:
                        changed = True
                        continue
                    if not isinstance(error, DamagedCheckpointError):
                        raise
                    failures.append(str(error))
                    self._report(path, error, set_aside=isinstance(step, str))
                    continue
                if loaded is not None:
                    return loaded
            is_over = num_empty == _READ_ATTEMPTS or time.monotonic() > deadline
            if is_over or not changed:
                break
            time.sleep(0.001 * num_empty)
        raise NoCheckpointError(self._explain_none(step, parts, resumable, failures))

    def drop_after(self, step: int) -> None:
        """Deletes checkpoints of later steps: the run goes on from an earlier one."""
        for later, path in self.paths():
            if later > step:
                checkpoint_files.remove(path)

    def set_aside_after(self, step: int) -> None:
        """Sets later ones aside that a run would be resumed from; policies stay."""
        for info in self.list_checkpoints():
            if info.step > step and info.resumable:
                self._set_aside(info.path)

    def has_checkpoint(self) -> bool:
        """Whether there is or was any checkpoint, damaged ones included."""
        return any(entry.name.startswith("ckpt-") for entry in self._entries())

    def score_at(self, step: int) -> float | None:
        """That of the checkpoint of a step; None if there is none, or it has none."""
        try:
            return read_info(self.directory / f"ckpt-{step}").best_score
        except CheckpointError:
            return None

    def make_room(self, step: int) -> None:
        """Copies the policy of a step to the nearest free one before it.

        Raises:
            CheckpointError: if there is none, it cannot be read or the disk refuses.
        """
        loaded = self.load(step, ("algorithm",))
        taken = {there for there, _ in self.paths()}
        free = next((s for s in reversed(range(step)) if s not in taken), None)
        if free is None:
            raise CheckpointError(
                f"{loaded.path} is replaced: no earlier step is free."
            )
        _logger.warning("%s is replaced, its policy is now ckpt-%d.", loaded.path, free)
        self.save(
            free,
            loaded.state,
            loaded.texts,
            loaded.metadata,
            best_score=self.score_at(step),
            resumable=False,
            prunes=False,  # it is twice there
        )

    def has_policies_only(self) -> bool:
        """Whether there are checkpoints, none damaged, but none to continue from."""
        infos = self.list_checkpoints()
        num_there = sum(entry.name.startswith("ckpt-") for entry in self._entries())
        return 0 < num_there == len(infos) and not any(i.resumable for i in infos)

    def list_checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints whose manifests are not damaged, oldest first.

        Raises:
            CheckpointError: if one cannot be read.
        """
        infos = []
        for _, path in self.paths():
            try:
                infos.append(read_info(path))
            except DamagedCheckpointError:
                continue
        return infos

    def paths(self) -> list[tuple[int, Path]]:
        """Step and directory of every checkpoint, damaged ones too, oldest first.

        Raises:
            CheckpointError: if the directory cannot be read.
        """
        matches = [(NAME.fullmatch(p.name), p) for p in self._entries()]
        return sorted((int(match[1]), path) for match, path in matches if match)

    def _entries(self) -> list[Path]:
        with border(self.directory, CHECKPOINT):
            try:
                return list(self.directory.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _preferred(self, step: str | int) -> list[Path]:
        """The candidates for ``load``, most wanted first."""
        if isinstance(step, int):
            return [path for s, path in self.paths() if s == step]
        if step == "latest":
            return [path for _, path in reversed(self.paths())]
        if step == "best":
            scored = [
                (info.best_score, info.step, info.path)
                for info in self.list_checkpoints()
                if info.best_score is not None
            ]
            return [path for _, _, path in sorted(scored, reverse=True)]
        raise ValueError(f"step must be 'latest', 'best' or a number, got {step!r}")

    def _report(self, path: Path, error: CheckpointError, *, set_aside: bool) -> None:
        _logger.error("Damaged checkpoint: %s", error)
        if set_aside and not self._read_only:
            self._set_aside(path)

    def _set_aside(self, path: Path) -> None:
        target = path.with_name(f"{path.name}.corrupt")
        number = 1
        while target.exists():
            number += 1
            target = path.with_name(f"{path.name}.corrupt{number}")
        try:
            path.rename(target)
        except OSError as rename_error:
            _logger.error("It could not be set aside: %s", rename_error)
        else:
            _logger.error("%s was set aside as %s", path.name, target.name)

    def _explain_none(
        self,
        step: str | int,
        parts: Sequence[str] | None,
        resumable: bool,
        failures: list[str],
    ) -> str:
        wanted = f"step {step}" if isinstance(step, int) else step
        lines = [f"no usable checkpoint ({wanted}) in {self.directory}"]
        lines += [f"damaged: {failure}" for failure in failures]
        try:
            infos = self.list_checkpoints()
            lines += [f"set aside as damaged: {path}" for path in self._corrupt_paths()]
        except CheckpointError as error:
            lines.append(f"another one: {error}")
            infos = []
        if not infos and len(lines) == 1:
            lines.append("there is none")
        if infos:
            found = ", ".join(str(info.step) for info in infos)
            lines.append(f"present: steps {found}")
            lines += self._explain_present(step, parts, resumable, bool(failures))
        return "\n  ".join(lines)

    def _explain_present(
        self,
        step: str | int,
        parts: Sequence[str] | None,
        resumable: bool,
        is_damaged: bool,
    ) -> list[str]:
        """Why none of those that are there will do."""
        if step == "best" and not is_damaged:
            return [
                "none has a score: it is the evaluation during training that gives one "
                "(TrainerConfig.evaluate), or the hook BestModel where the weights of "
                "the reward are learned. Policies that were pushed have none, either. "
                'The newest is "latest"'
            ]
        if resumable:
            return ["none of these holds what training needs to continue"]
        if parts is not None and not isinstance(step, int):
            return [f"none of these holds {', '.join(parts)}"]
        return []

    def prune(self) -> None:
        """Deletes those that need not be kept."""
        try:
            infos, corrupt = self.list_checkpoints(), self._corrupt_paths()
        except CheckpointError as error:
            _logger.warning("Old checkpoints are not deleted now: %s", error)
            return
        resumable = [info.path for info in infos if info.resumable]
        keep = set(resumable[-self._keep_latest :])
        scored = [info for info in infos if info.best_score is not None]
        if scored:
            keep.add(max(scored, key=lambda info: info.best_score or 0.0).path)
        for path in [
            *(info.path for info in infos if info.path not in keep),
            *corrupt[:-_KEEP_CORRUPT],
        ]:
            try:
                checkpoint_files.remove(path)
            except OSError as error:
                _logger.warning("Could not delete %s: %s", path, error)

    def _corrupt_paths(self) -> list[Path]:
        """What was set aside, oldest first."""
        matches = [(_CORRUPT.fullmatch(p.name), p) for p in self._entries()]
        found = [(int(m[1]), int(m[2] or 1), path) for m, path in matches if m]
        return [path for _, _, path in sorted(found)]


def load_prefix(prefix_at_path: str) -> dict[str, Any]:
    """The part of a checkpointed algorithm below a prefix, for one module.

    Args:
        prefix_at_path: ``"prefix@path"``. The prefix is the dotted path of the module
            within the algorithm, such as ``_policy``; it may start with
            ``algorithm.``, and empty means the whole algorithm. The path is one
            checkpoint, or the directory of a run or of its checkpoints, of which the
            latest is taken.

    Returns:
        A state dict whose keys are relative to the prefix.

    Raises:
        CheckpointError: if there is no such checkpoint or nothing below the prefix.
    """
    prefix, separator, location = prefix_at_path.partition("@")
    if not separator or not location:
        raise CheckpointError(
            f"expected checkpoint='prefix@path', got {prefix_at_path!r}"
        )
    loaded = _find(Path(location).expanduser())
    entries = loaded.state["algorithm"]
    check_is_state_dict(entries, f"{loaded.path / 'algorithm.pt'}")
    prefix = re.sub(r"^algorithm(\.|$)", "", prefix)
    if not prefix:
        return dict(entries)
    part = {
        key.removeprefix(f"{prefix}."): value
        for key, value in entries.items()
        if key.startswith(f"{prefix}.")
    }
    if not part:
        modules = {
            ".".join(names[:depth])
            for names in (key.split(".") for key in entries)
            for depth in range(1, len(names))
        }
        close = difflib.get_close_matches(prefix, modules, n=3)
        top = sorted({name.split(".")[0] for name in modules})
        hint = f"Did you mean {' or '.join(close)}?" if close else f"It holds {top}."
        raise CheckpointError(f"{loaded.path}: nothing below {prefix!r}. {hint}")
    return part


def _find(location: Path) -> LoadedCheckpoint:
    parts = ("algorithm",)
    match = NAME.fullmatch(location.name)
    if match:
        reader = Checkpointer(location.parent, read_only=True)
        return reader.load(int(match[1]), parts)
    for directory in (location / "checkpoints", location):
        reader = Checkpointer(directory, read_only=True)
        if reader.has_checkpoint():
            return reader.load("latest", parts)
    raise CheckpointError(
        f"no checkpoint at {location}: expected a directory ckpt-<step>, or one that "
        "holds such directories"
    )


def identity_of(path: Path) -> int | None:
    """Tells whether a checkpoint is replaced by another of the same name."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
