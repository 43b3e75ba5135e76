"""Conf files as text: where they are, and which statements they consist of."""

from __future__ import annotations

import importlib.resources
import io
import os
import stat
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from alf_lite.config.errors import did_you_mean
from alf_lite.errors import ConfigError

SUFFIX = ".gin"
MAX_SIZE = 500_000  # bytes of a conf with all that it includes


# Where


def conf_directories() -> list[Path]:
    """The directories with the confs that come with the library.

    Installed, they are part of the package; in a checkout they lie beside it.
    """
    package = Path(str(importlib.resources.files("alf_lite")))
    checkout = package.parent
    directories = [package / "confs"]
    if (checkout / "setup.py").is_file():
        directories.append(checkout / "confs")
    return [directory for directory in directories if directory.is_dir()]


def packaged_confs() -> list[str]:
    """Names of the confs that come with the library, as ``--conf`` takes them."""
    return sorted(
        {
            path.relative_to(directory).with_suffix("").as_posix()
            for directory in conf_directories()
            for path in directory.rglob(f"*{SUFFIX}")
        }
    )


def find_conf(name: str, folder: Path | None = None) -> Path:
    """The file that ``name`` stands for: a path, or the name of a packaged conf.

    ``.gin`` may be left out. A path is relative to ``folder``, which is the current
    directory for the command line and that of the including file for an include.

    Raises:
        ConfigError: if there is none, with the names that were meant perhaps.
    """
    if not name.strip():
        raise ConfigError("the name of the conf is empty. Give a path or a name.")
    folder = folder or Path()
    path = Path(name).expanduser()
    bases = [folder] if path.is_absolute() else [folder, *conf_directories()]
    candidates = [b / n for b in bases for n in (path, Path(f"{path}{SUFFIX}"))]
    try:
        for candidate in candidates:
            if candidate.exists() and not candidate.is_dir():
                return candidate
        raise ConfigError(_not_found(name, candidates[0], folder))
    except OSError as error:  # the name is too long, a directory is not readable
        raise ConfigError(f"conf {name[:80]!r}: {error.strerror}.") from error


def _not_found(name: str, path: Path, folder: Path) -> str:
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob(f"*{SUFFIX}"))[:10])
        return (
            f"conf {name!r} is a directory. Give one of the files in it: "
            f"{inside or f'it has no {SUFFIX} file'}."
        )
    packaged = packaged_confs()
    beside = [p.stem for p in path.parent.glob(f"*{SUFFIX}")]
    near = [*packaged, *(str(Path(name).parent / stem) for stem in beside)]
    suggestion = did_you_mean(name.removesuffix(SUFFIX), near)
    return (
        f"conf {name!r} not found in {folder.resolve()} or among the packaged ones."
        f"{suggestion}\n  Packaged: {', '.join(packaged) or 'none'}"
    )


def read_conf(path: Path) -> str:
    """The text of a conf.

    Raises:
        ConfigError: if it cannot be read, is no regular file (which may have no end),
            is far larger than any conf, or is not UTF-8.
    """
    try:
        content = _read_regular_file(path)
    except OSError as error:
        raise ConfigError(f"conf {str(path)!r}: {error.strerror}.") from error
    check_size(len(content), str(path))
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"conf {str(path)!r} is not UTF-8 text: byte "
            f"0x{error.object[error.start]:02x} at position {error.start}."
        ) from error


def check_size(size: int, name: str) -> None:
    """Refuses confs that would be read for minutes.

    Args:
        size: bytes.
        name: of what has them, for the message.

    Raises:
        ConfigError: if it is too much.
    """
    if size > MAX_SIZE:
        raise ConfigError(
            f"conf {name!r} has more than {MAX_SIZE:,} bytes, which cannot be a conf. "
            "Is it the right file?"
        )


def _read_regular_file(path: Path) -> bytes:
    # Not to wait for somebody to write into a FIFO.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(
                f"conf {str(path)!r} is no regular file but a "
                f"{_kind(os.fstat(descriptor).st_mode)}. Give a text file."
            )
        return file.read(MAX_SIZE + 1)


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "pipe"
    return "directory" if stat.S_ISDIR(mode) else "device"


# What


class Statement(NamedTuple):
    """A statement of a conf, or the comment lines between two of them."""

    line: int  # its first line in the text, from 1
    source: str  # as written; in a block the block's name is put in front
    is_comment: bool = False


def split_statements(text: str, name: str) -> Iterator[Statement]:
    """Splits the text of a conf, blocks resolved.

    ``TrainerConfig:`` with an indented ``num_iterations = 3`` becomes one statement
    ``TrainerConfig.num_iterations = 3``: then every binding has a line of its own, can
    be read on its own, and can be taken out of the text on its own.

    Args:
        text: of the conf.
        name: of the conf, for messages.

    Raises:
        ConfigError: naming the line, if brackets or indentation do not match.
    """
    lines = text.split("\n")
    block: Statement | None = None
    block_is_empty = False
    depth = 0
    for tokens in _logical_lines(text, name):
        first, last = tokens[0].start[0], tokens[-1].end[0]
        depth += sum(t.type == tokenize.INDENT for t in tokens)
        depth -= sum(t.type == tokenize.DEDENT for t in tokens)
        code = [t for t in tokens if t.type not in _LAYOUT]
        if not code:
            comment = "\n".join(line.strip() for line in lines[first - 1 : last])
            yield Statement(first, comment, is_comment=True)
            continue
        first = code[0].start[0]
        if block is not None and ((depth == 0 and block_is_empty) or depth > 1):
            raise ConfigError(
                f"{name}:{first}: expected the bindings of the block "
                f"`{block.source}:` indented by the same depth."
            )
        if depth == 0:
            block = None
        if code[-1].string == ":":
            header = "".join(t.string for t in code[:-1])
            block, block_is_empty = Statement(first, header), True
            continue
        block_is_empty = False
        source = "\n".join(lines[first - 1 : last]).strip()
        yield Statement(first, f"{block.source}.{source}" if block else source)
    if block is not None and block_is_empty:
        raise ConfigError(f"{name}:{block.line}: the block `{block.source}:` is empty.")


_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def _logical_lines(text: str, name: str) -> Iterator[list[tokenize.TokenInfo]]:
    """Tokens of one statement, or of one line without statement, at a time."""
    tokens: list[tokenize.TokenInfo] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.ENDMARKER:
                break
            tokens.append(token)
            is_statement = any(t.type not in _LAYOUT for t in tokens)
            if token.type == tokenize.NEWLINE or (
                token.type == tokenize.NL and not is_statement
            ):
                yield tokens
                tokens = []
    except (tokenize.TokenError, SyntaxError, ValueError) as error:
        code = [t for t in tokens if t.type not in _LAYOUT]
        line = code[0].start[0] if code else getattr(error, "lineno", None) or 1
        problem = str(error.args[0])
        if isinstance(error, IndentationError):
            problem = "the indentation does not match that of an earlier line"
        elif "EOF" in problem or "unterminated" in problem:
            problem = "a bracket or quote is never closed"
        raise ConfigError(f"{name}:{line}: {problem}.") from error
