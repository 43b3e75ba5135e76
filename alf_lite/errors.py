"""Typed errors. Each says what happened and carries the exit code of the programs."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from alf_lite.exports import nearest


class AlfLiteError(Exception):
    """An error whose message is written for the user and needs no traceback."""

    exit_code = 1


class ConfigError(AlfLiteError, ValueError):
    """A configuration, flag or path cannot be used."""

    exit_code = 2


class CheckpointError(AlfLiteError, ValueError):
    """A checkpoint cannot be read or written, or does not fit the algorithm."""

    exit_code = 3


class DamagedCheckpointError(CheckpointError):
    """The files of a checkpoint are not those that were written.

    One is missing, has another size or hash, or is something else than a file. Trouble
    of the machine (rights, descriptors, memory, the disk) is a plain CheckpointError:
    the checkpoint may be as good as ever.
    """


class DataError(AlfLiteError, ValueError):
    """Recorded steps are damaged, missing or do not fit the environment."""

    exit_code = 3


class EnvError(AlfLiteError, RuntimeError):
    """An environment failed or contradicted its own specification."""

    exit_code = 4


class DivergedError(AlfLiteError, RuntimeError):
    """Training produced a NaN or infinite loss, gradient or parameter."""

    exit_code = 5


class WorkerError(AlfLiteError, RuntimeError):
    """A worker process of the library died or stopped answering."""

    exit_code = 6


class ExportError(AlfLiteError, RuntimeError):
    """A policy has no graph, or acts in it otherwise than it did."""


def failure_text(error: BaseException) -> str:
    """Type, message and traceback: where in the user's code it went wrong."""
    try:
        lines = traceback.format_exception(error)
    except Exception:  # the exception's own __str__ raises
        lines = traceback.format_tb(error.__traceback__)
    return f"{exception_text(error)}\n\n{''.join(lines).rstrip()}"


def exception_text(error: BaseException) -> str:
    """``Type: message``, whatever the exception's own ``__str__`` does."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (its message cannot be shown)"


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`` Did you mean …?`` with the nearest names, or an empty string."""
    near = nearest(name, candidates)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
