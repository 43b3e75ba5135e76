"""Reads confs into gin, statement by statement, and remembers where each came from.

gin could read a file by itself. Doing it here, with gin's parser for the single
statement, is what makes the file and the line of every binding known, includes relative
to the including file, and one text of all files that another process can read again.
"""

from __future__ import annotations

import io
import logging
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gin
from gin import config as gin_config
from gin import config_parser

from alf_lite.config import bindings as config_bindings
from alf_lite.config import configurables
from alf_lite.config import errors as config_errors
from alf_lite.config import names as config_names
from alf_lite.config import values as config_values
from alf_lite.config.bindings import MACRO, Binding, BindingKey
from alf_lite.errors import ConfigError
from alf_lite.exports import current_name

COMMAND_LINE = "--gin_param"

_logger = logging.getLogger(__name__)


class Statement(NamedTuple):
    """A statement of a conf, or the comment lines between two of them."""

    line: int  # its first line in the text, from 1
    source: str  # as written; in a block the block's name is put in front
    is_comment: bool = False


class ConfigReader:
    """Binds what confs say, in order, and keeps a record of it.

    ``bindings`` holds what is in force: a later binding replaces an earlier one of
    another file; twice in one file is an error.

    Attributes:
        bindings: see above.
        conf_name: of the conf that was read, if one was.
    """

    def __init__(self) -> None:
        self.bindings: dict[BindingKey, Binding] = {}
        self.conf_name: str | None = None
        self._size = 0  # of all files
        # The whole text: what was read and, for a binding, its record.
        self._pieces: list[tuple[str, Binding | None]] = []
        # TrainerConfig needs no import in any process.
        self._imported = {"alf_lite.config"}

    def read_file(self, path: Path, including: tuple[Path, ...] = ()) -> None:
        """Reads a conf and what it includes.

        Args:
            path: of the conf.
            including: the confs that are being read, outermost first.
        """
        resolved = path.resolve()
        if resolved in including:
            chain = " → ".join(p.name for p in (*including, resolved))
            raise ConfigError(f"{path}: this conf includes itself: {chain}.")
        text, inside = config_names.read_conf(path), (*including, resolved)
        config_names.note_conf_folder(resolved.parent)
        # Included twice, it is read twice: a few small files could make a huge text.
        self._size += len(text)
        config_names.check_size(self._size, str((including or inside)[0]))
        if not self.read_text(text, str(path), path.parent, inside):
            raise ConfigError(f"{path}: this conf is empty, it binds nothing.")

    def read_text(
        self, text: str, name: str, folder: Path, including: tuple[Path, ...] = ()
    ) -> int:
        """Reads statements and returns how many there were.

        Args:
            text: the statements.
            name: of the text, for messages.
            folder: to which its includes are relative.
            including: the confs that are being read, outermost first.
        """
        bound_here: dict[BindingKey, Binding] = {}
        count = 0
        for statement in split_statements(text, name):
            if statement.is_comment:
                self._pieces.append((statement.source, None))
                continue
            count += 1
            where = name if name == COMMAND_LINE else f"{name}:{statement.line}"
            included = None
            try:
                parsed = self._parse(statement, name)
                if isinstance(parsed, config_parser.IncludeStatement):
                    included = config_names.find_conf(parsed.filename, folder)
                elif isinstance(parsed, config_parser.ImportStatement):
                    self._import(statement.source, parsed.module)
                else:
                    self._bind(parsed, statement.source, where, bound_here)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error.__cause__
            if included is not None:
                self.add_comment(f"{parsed.filename}:")
                self.read_file(included, including)
                self.add_comment(f"end of {parsed.filename}")
        return count

    def add_comment(self, comment: str) -> None:
        """Adds a line to the text that this reader returns."""
        self._pieces.append((f"# {comment}", None))

    def _parse(self, statement: Statement, name: str) -> Any:
        """The statement as gin's parser sees it."""
        try:
            parser = config_parser.ConfigParser(statement.source, _Delegate())
            return parser.parse_statement()
        except ConfigError:  # of a name in the value
            raise
        except Exception as error:
            message = config_errors.unreadable_statement(
                statement.source,
                is_macro=config_bindings.is_macro,
                in_shell=name == COMMAND_LINE,
                said=str(getattr(error, "msg", error)),
            )
            raise ConfigError(message) from error

    def _import(self, source: str, module: str) -> None:
        if module.startswith("__gin__"):
            raise ConfigError(
                "gin's dynamic registration is not supported. Write the full name "
                "instead: `@some.module.name`."
            )
        now = current_name(module)
        source, module = source.replace(module, now), now
        config_names.import_module(module)
        gin.parse_config(source)  # remembers it for the operative config
        self._imported.add(module)
        self._pieces.append((source, None))

    def _bind(
        self,
        parsed: Any,
        source: str,
        where: str,
        bound_here: dict[BindingKey, Binding],
    ) -> None:
        if parsed.arg_name:
            key = _binding_key(parsed.scope, parsed.selector, parsed.arg_name)
        else:
            name = f"{parsed.scope}/{parsed.selector}".lstrip("/")
            key = BindingKey(name, MACRO, "value")
        binding = Binding(key, parsed.value, where, source)
        if key in bound_here:
            raise ConfigError(
                f"{str(key)!r} is bound twice in this file, first in "
                f"`{bound_here[key]}`. Remove one of them."
            )
        try:
            gin.bind_parameter(key, parsed.value)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        earlier = self.bindings.get(key)
        if earlier is not None and repr(earlier.value) not in (
            repr(binding.value),
            "%gin.REQUIRED",
        ):
            _log_override(binding, earlier)
        bound_here[key] = self.bindings[key] = binding
        self._pieces.append((source, binding))

    def text(self, given: Mapping[str, str] = MappingProxyType({})) -> str:
        """Everything that was read, as one conf without includes.

        Bindings that were overridden are comments, so that the text can be read by the
        same rules. Added are what was bound in Python and the imports of modules that
        this process had imported by itself.

        Args:
            given: what was given in Python instead of bindings, as a conf writes it.
        """
        bound = config_bindings.bound()
        lines = []
        for source, binding in self._pieces:
            if binding is not None and (
                str(binding.key) in given or not self._is_in_force(binding, bound)
            ):
                source = "\n".join(f"# overridden: {s}" for s in source.split("\n"))
            lines.append(source)
        in_python = {
            key: value
            for key, value in bound.items()
            if key not in self.bindings
            or not self._is_in_force(self.bindings[key], bound)
        }
        if in_python:
            lines += ["", "# Bound in Python:"]
            lines += [config_bindings.statement(*item) for item in in_python.items()]
        if given:
            lines += ["", "# Given in Python:"]
            lines += [f"{key} = {value}" for key, value in given.items()]
        modules = sorted(config_bindings.modules_of(bound) - self._imported)
        if modules:
            lines = [*(f"import {module}" for module in modules), "", *lines]
        return "\n".join([*lines, ""]).lstrip() if lines else ""

    def _is_in_force(self, binding: Binding, bound: dict[BindingKey, Any]) -> bool:
        return (
            self.bindings[binding.key] is binding
            and binding.key in bound
            and repr(bound[binding.key]) == repr(binding.value)
        )


class _Delegate(gin_config.ParserDelegate):
    """Makes the references of a value while gin parses it, with our messages."""

    def configurable_reference(self, scoped_name: str, evaluate: bool) -> Any:
        scope, slash, name = scoped_name.rpartition("/")
        selector = config_names.complete_name(name)
        if not configurables.is_understood(name, selector):
            name = selector
        reference = super().configurable_reference(f"{scope}{slash}{name}", evaluate)
        stand_in = reference.scoped_configurable_fn
        config_names.copy_signature(stand_in, reference.configurable.wrapped)
        return reference


def _binding_key(scope: str, name: str, parameter: str) -> BindingKey:
    selector = config_names.complete_name(name)
    known = configurables.parameter_names(configurables.target(selector))
    if known is not None and parameter not in known:
        owner = configurables.short_name(selector)
        new = current_name(f"{owner}.{parameter}").removeprefix(f"{owner}.")
        if new not in known:
            raise ConfigError(config_errors.unknown_parameter(selector, parameter))
        parameter = new
    return BindingKey(scope, selector, parameter)


# Statements


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
        depth += _indentation(tokens)
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


def _indentation(tokens: Sequence[tokenize.TokenInfo]) -> int:
    kinds = [token.type for token in tokens]
    return kinds.count(tokenize.INDENT) - kinds.count(tokenize.DEDENT)


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


def _log_override(binding: Binding, earlier: Binding) -> None:
    """Says what there was before, unless a conf of the library overrides another."""
    here, there = map(_shipped_place, (binding.where, earlier.where))
    if here and there:
        return
    before = config_values.shorten(earlier.value)
    now = f"{here or binding.where}: {binding.short_source}"
    _logger.info("%s, instead of %s (%s)", now, before, there or earlier.where)


def _shipped_place(where: str) -> str:
    """File and line of a conf that comes with the library, else ""."""
    for directory in config_names.conf_directories():
        if where.startswith(f"{directory}/"):
            return where.removeprefix(f"{directory}/")
    return ""
