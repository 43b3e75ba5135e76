"""Typed errors. Each says what happened and carries the exit code of the programs."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterable, Iterator

from alf_lite.exports import nearest


class AlfLiteError(Exception):
    """An error whose message is written for the user and needs no traceback."""

    exit_code = 1


class ConfigError(AlfLiteError, ValueError):
    """A configuration, flag or path cannot be used."""

    exit_code = 2


class MissingExtraError(ConfigError):
    """A package is missing that an extra of this library installs."""


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


def missing_extra(what: str, extra: str, reason: object = "") -> MissingExtraError:
    """Says in one line what to install.

    Args:
        what: needs it.
        extra: of pyproject.toml.
        reason: the error of the import.
    """
    # Others go on with advice of their own.
    why = re.split("[\n,;]", str(reason))[0]
    why = f" ({why})" if why else ""
    return MissingExtraError(
        f"{what} needs the {extra} extra{why}: pip install 'alf_lite[{extra}]'"
    )


@contextlib.contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Around imports of packages that an extra installs.

    Raises:
        MissingExtraError: if one is missing.
    """
    try:
        yield
    except ImportError as error:
        raise missing_extra(what, extra, error) from error


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
