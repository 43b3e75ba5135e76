"""Which values a search tries for which settings, written like the settings themselves.

Adam.lr = log_uniform(1e-5, 1e-2)
PPOAlgorithm.gamma = choice(0.98, 0.99, 0.999)
TrainerConfig.epochs = int_uniform(2, 20)
PPOAlgorithm.optimizer = choice(@Adam(), @SGD())
"""

from __future__ import annotations

import io
import itertools
import math
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from alf_lite.border import CONFIG, read_text
from alf_lite.config.reader import split_statements
from alf_lite.errors import ConfigError, did_you_mean

CHOICE = "choice"
KINDS = (CHOICE, "uniform", "log_uniform", "int_uniform", "log_int_uniform")

_DIMENSION = re.compile(r"\s*([\w./]+)\s*=\s*(\w+)\s*(?=\()")
_OPENING, _CLOSING = "([{", ")]}"
_LAYOUT = (tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.COMMENT)


class Dimension(NamedTuple):
    """One setting and its values; values are texts as in a conf."""

    name: str  # Adam.lr
    kind: str  # one of KINDS
    choices: tuple[str, ...] = ()  # of a choice
    low: float = 0.0  # of all others
    high: float = 0.0  # included

    @property
    def is_integer(self) -> bool:
        return "int" in self.kind

    @property
    def is_log(self) -> bool:
        return self.kind.startswith("log")

    def at(self, part: float) -> str:
        """The value at a part in [0, 1] of the range."""
        if self.kind == CHOICE:
            return self.choices[
                min(int(part * len(self.choices)), len(self.choices) - 1)
            ]
        low, high = self.low, self.high
        if self.is_integer:  # every integer has a stretch of its own, of length 1
            low, high = low - 0.5, high + 0.5
        if self.is_log:
            value = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        else:
            value = low + part * (high - low)
        return self.text_of(min(max(value, self.low), self.high))

    def text_of(self, value: float) -> str:
        """The value as a conf writes it, with six digits."""
        if self.is_integer:
            return str(round(value))
        return repr(min(max(float(f"{value:.6g}"), self.low), self.high))

    def points(self, number: int) -> list[str]:
        """What a grid tries: all choices; else so many values from end to end."""
        if self.kind == CHOICE:
            return list(self.choices)
        if self.low == self.high:
            return [self.text_of(self.low)]
        space = np.geomspace if self.is_log else np.linspace
        values = map(self.text_of, space(self.low, self.high, max(number, 2)).tolist())
        return list(dict.fromkeys(values))

    def examples(self) -> list[str]:
        """Values that should be checked."""
        if self.kind == CHOICE:
            return list(self.choices)
        return [self.text_of(self.low), self.text_of(self.high)]

    def __str__(self) -> str:
        given = self.choices
        if self.kind != CHOICE:
            given = (self.text_of(self.low), self.text_of(self.high))
        return f"{self.name} = {self.kind}({', '.join(given)})"


def draw(space: Sequence[Dimension], seed: Sequence[int]) -> dict[str, str]:
    """A value of every dimension, the same for the same seed."""
    generator = np.random.default_rng(seed)
    return {dimension.name: dimension.at(generator.random()) for dimension in space}


def grid(space: Sequence[Dimension], num_points: int) -> Iterator[dict[str, str]]:
    """All combinations; the last dimension changes first."""
    names = [dimension.name for dimension in space]
    columns = [dimension.points(num_points) for dimension in space]
    for row in itertools.product(*columns):
        yield dict(zip(names, row, strict=True))


def read_space(
    path: str | Path | None, statements: Sequence[str] = ()
) -> list[Dimension]:
    """The dimensions of a file, then those of statements, which replace them.

    Args:
        path: of the file; None for none.
        statements: such as ``"Adam.lr = log_uniform(1e-5, 1e-2)"``.

    Raises:
        ConfigError: naming what is no dimension and what was expected, or if there is
            none at all.
    """
    found: dict[str, Dimension] = {}
    texts: list[tuple[str, str]] = []
    if path is not None:
        texts.append((str(path), read_text(Path(path), CONFIG)))
    texts += [("--search", statement) for statement in statements]
    for where, text in texts:
        for statement in split_statements(text, where):
            if not statement.is_comment:
                dimension = _dimension(statement.source, where)
                found[dimension.name] = dimension
    if not found:
        raise ConfigError(
            f"there is nothing to search{'' if path is None else f' in {path}'}: give "
            "--search='Adam.lr = log_uniform(1e-5, 1e-2)', or more of them in a file, "
            "--space=FILE"
        )
    return list(found.values())


def _dimension(statement: str, where: str) -> Dimension:
    match = _DIMENSION.match(statement)
    arguments = None if match is None else _arguments(statement[match.end() :])
    if match is None or arguments is None:
        raise ConfigError(
            f"{where}: expected NAME = choice(...) or one of {', '.join(KINDS[1:])}, "
            f"got {statement!r}"
        )
    name, kind = match.groups()
    if kind not in KINDS:
        raise ConfigError(
            f"{where}: {kind} is none of {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}"
        )
    if kind == CHOICE:
        if not arguments:
            raise ConfigError(f"{where}: {name} has nothing to choose from")
        return Dimension(name, kind, tuple(dict.fromkeys(arguments)))
    return _range(name, kind, arguments, where)


def _range(name: str, kind: str, arguments: list[str], where: str) -> Dimension:
    try:
        low, high = map(float, arguments)
        is_range = math.isfinite(low) and math.isfinite(high) and low <= high
        is_range &= low > 0 or not kind.startswith("log")
        is_range &= "int" not in kind or (low.is_integer() and high.is_integer())
    except ValueError:
        is_range = False
    if not is_range:
        numbers = "integers" if "int" in kind else "numbers"
        above = " above 0" if kind.startswith("log") else ""
        raise ConfigError(
            f"{where}: {name} = {kind}(LOW, HIGH) wants two {numbers}{above}, LOW not "
            f"above HIGH, got ({', '.join(arguments)})"
        )
    return Dimension(name, kind, (), low, high)


def _arguments(text: str) -> list[str] | None:
    """The texts between the commas of ``(…)``, which a comment may follow.

    Commas in brackets and strings do not count. None if anything else follows.
    """
    parts: list[list[str]] = [[]]
    depth = 0
    # The statement was tokenized before: its brackets are closed.
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _LAYOUT:
            continue
        if depth == 0 and parts != [[]]:
            return None
        is_operator = token.type == tokenize.OP
        depth += is_operator and token.string in _OPENING
        depth -= is_operator and token.string in _CLOSING
        if is_operator and token.string == "," and depth == 1:
            parts.append([])
        else:
            parts[-1].append(token.string)
    del parts[0][0], parts[-1][-1]  # the brackets around all
    return [_joined(part) for part in parts if part]


def _joined(tokens: list[str]) -> str:
    """Tokens as one text, with a blank after each comma."""
    return "".join(", " if token == "," else token for token in tokens)
