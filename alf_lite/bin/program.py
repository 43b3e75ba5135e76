"""What all programs share: flags, help, log lines and exit codes."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import shlex
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from absl import flags
from absl.flags import FlagValues

from alf_lite.bin import EXIT_INTERRUPTED, main_program
from alf_lite.errors import AlfLiteError, ConfigError, exception_text, failure_text
from alf_lite.tools.invocation import invocation
from alf_lite.utils.output_streams import best_effort_output, printable

_HELP_WIDTH = 88
# What is wrong with the name of a file itself, whatever is done with it
_OF_A_NAME = (errno.ENAMETOOLONG, errno.ELOOP)


class Flag(NamedTuple):
    """A flag of a program."""

    name: str
    help: str  # without the default, which is added
    default: Any = None  # a list: it may be repeated
    kind: type | None = None  # of the value, if the default is None: str, int, float
    low: float | None = None
    high: float | None = None
    choices: Sequence[str] = ()
    alias: str = ""  # another name
    required: str = ""  # what to ask where it is missing
    needs: str = ""  # another flag, or "flag=value", without which it has no effect
    excludes: str = ""  # another flag, or "flag=value", beside which it cannot be

    def define(self, values: FlagValues) -> None:
        """Adds it to the flags of a program."""
        kind = self.kind or (str if self.default is None else type(self.default))
        define, options = _DEFINE[kind], dict[str, Any]()
        if self.choices:
            define, options["enum_values"] = flags.DEFINE_enum, self.choices
        elif kind in (int, float):
            options = {"lower_bound": self.low, "upper_bound": self.high}
        text = self.help
        # Of a number 0 is a default, too, though it equals False.
        if self.default not in (None, []) and self.default is not False:
            text += f" Default: {self.default}."
        define(self.name, self.default, help=text, flag_values=values, **options)
        if kind is float:
            flags.register_validator(
                self.name, _is_finite, "expected a finite number", flag_values=values
            )
        if self.alias:
            flags.DEFINE_alias(self.alias, self.name, flag_values=values)


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


_DEFINE: dict[type, Callable[..., Any]] = {
    str: flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
    list: flags.DEFINE_multi_string,
}


# Flags of several programs

CHECKPOINT = Flag(
    "checkpoint",
    "Which policy of the run: latest, best (by the evaluations during training), or "
    "the step of a checkpoint; or the path of a checkpoint as --root_dir.",
    default="latest",
)
DEVICE = Flag("device", "Where the networks are. Default: as in the training.")
SEED = Flag("seed", "Of all that is random.", default=0, low=0, high=2**32 - 1)
GIN_PARAM = Flag(
    "gin_param", "A setting that overrides the configuration of the run.", default=[]
)
_TRACEBACK = Flag("traceback", "Show the traceback of a bug.", default=False)


class Program(NamedTuple):
    """A command: what it is called, what it does, and what does it.

    Flags have a registry of their own, so that ``--help`` shows these and no others and
    several programs can be used in one process.
    """

    name: str  # as in alf_lite NAME and python -m alf_lite.bin.NAME
    summary: str
    examples: Sequence[str]  # arguments
    flags: Sequence[Flag]
    run: Callable[[Any], int]  # flag values -> exit code
    operand: str = ""  # the multi flag that arguments without a name belong to
    prints_result: bool = False  # rather than files, so that it must get through
    operands: Sequence[str] = ()  # what they may be, if that is known

    def define_flags(self) -> FlagValues:
        """The flags with their defaults."""
        values = FlagValues()
        for flag in (*self.flags, _TRACEBACK):
            flag.define(values)
        return values

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Runs it and returns its exit code.

        Errors that are the user's to solve become one message without a traceback.
        Others are bugs, here or in a class of the user's: one line, with the traceback
        in a file. What is printed is best effort: a full disk or a closed pipe changes
        nothing, unless what is printed is the result. What files of others hold cannot
        move the cursor.

        Args:
            arguments: of the command line, without the program's name.
        """
        arguments = sys.argv[1:] if arguments is None else arguments
        with best_effort_output(), main_program():
            vars(sys.stdout)["is_plain"] = True
            exit_code = _run(self, arguments)
            sys.stdout.flush()
            error = getattr(sys.stdout, "error", None)
            # Who closes a pipe has read enough.
            is_lost = error is not None and not isinstance(error, BrokenPipeError)
            if exit_code == 0 and self.prints_result and is_lost:
                print(f"error: stdout cannot be written: {error}", file=sys.stderr)
                return 1
            return exit_code


def _run(program: Program, arguments: Sequence[str]) -> int:
    if any(argument in ("--help", "-help", "-h") for argument in arguments):
        print(help_text(program))
        return 0
    try:
        values = parse_flags(program, arguments)
        with _log_lines():
            exit_code = program.run(values)
        _leave_ranks()
        return exit_code
    except AlfLiteError as error:
        if _is_told_by_another_rank():
            return error.exit_code
        notes = getattr(error, "__notes__", [])
        _tell("\n".join([f"error: {error}", *notes]))
        return error.exit_code
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_A_NAME:
            _tell(f"error: {error.filename}: {error.strerror}")
            return ConfigError.exit_code
        if not _is_told_by_another_rank():
            _tell(_bug_text(program.name, error, show="--traceback" in arguments))
        return 1


def _tell(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _bug_text(name: str, error: Exception, *, show: bool) -> str:
    """What, where and what to do; the traceback there or in a file."""
    traceback_text = failure_text(error)
    if show:
        return f"{traceback_text}\nerror: {exception_text(error)}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = exception_text(error).splitlines()[0]
    line = f"error: {what} ({place.filename}:{place.lineno})"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"alf_lite-{name}-", suffix=".txt", delete=False
        ) as file:
            file.write(f"{shlex.join(sys.orig_argv)}\n\n{traceback_text}\n")
    except OSError:
        return f"{traceback_text}\n{line}"
    return (
        f"{line}. It is a bug, of alf_lite or of what it was given. The traceback, to "
        f"report it, is in {file.name}; --traceback shows it at once."
    )


def _is_told_by_another_rank() -> bool:
    """Whether this is one of several ranks, and not the first to say what is wrong."""
    if not is_rank():
        return False
    from alf_lite.utils.ranks import ranks

    return not ranks.speaks_first()


def _leave_ranks() -> None:
    if is_rank():
        from alf_lite.utils.ranks import ranks

        ranks.leave()


def is_rank() -> bool:
    """Whether torchrun has started this process beside others."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") not in ("0", "1")


def parse_flags(program: Program, arguments: Sequence[str]) -> FlagValues:
    """The flags of ``program`` with the values that ``arguments`` give them.

    Raises:
        ConfigError: if a flag is unknown or its value wrong, or for an argument that is
            no flag if the program takes none.
    """
    usage = f"See {invocation(program.name)} --help"
    values = program.define_flags()
    values.set_gnu_getopt(True)  # flags may follow other arguments
    try:
        _, *rest = values([program.name, *arguments])
    except flags.Error as error:
        said = str(error).rstrip(" ?.")  # absl suggests with a blank before its "?"
        raise ConfigError(f"{said}. {usage}") from error
    if rest and not program.operand:
        raise ConfigError(f"unexpected argument {rest[0]!r}. {usage}")
    if rest:
        values[program.operand].value = [*getattr(values, program.operand), *rest]
    for flag in program.flags:
        _check(flag, program, values)
    return values


def _check(flag: Flag, program: Program, values: FlagValues) -> None:
    """Raises ConfigError if a flag cannot be beside the others, or without them."""
    name, given = flag.name, values[flag.name]
    if flag.required and not given.value:
        is_operand = name == program.operand
        missing = (
            f"no {name.upper()} is given" if is_operand else f"--{name} is missing"
        )
        raise ConfigError(f"{missing}: {flag.required}")
    if not given.present or given.value is False:
        return
    if flag.needs and not _holds(flag.needs, values):
        raise ConfigError(f"--{name} needs --{flag.needs}")
    if flag.excludes and _holds(flag.excludes, values):
        raise ConfigError(
            f"--{name} and --{flag.excludes} exclude each other: give one of them"
        )


def _holds(flag: str, values: FlagValues) -> bool:
    """Whether ``name`` is given, or ``name=value`` is so."""
    name, equals, wanted = flag.partition("=")
    value = values[name].value
    if equals:
        return str(value) == wanted
    return value is not None and value is not False and value not in ("", [])


def help_text(program: Program) -> str:
    """What the program does, its flags, and examples."""
    command = invocation(program.name)
    operand = f" {program.operand.upper()}..." if program.operand else ""
    lines = [program.summary, "", f"usage: {command}{operand} [flags]", "", "flags:"]
    values = program.define_flags()
    for name in values:
        flag = values[name]
        suffixes = {"bool": "", "string": "=TEXT", "int": "=N"}
        suffix = suffixes.get(flag.flag_type().removeprefix("multi "), "=VALUE")
        lines.append(f"  --{name}{suffix}")
        # absl's own remark about repetition is said in other words.
        text, is_multi, _ = (flag.help or "").partition(";\n")
        lines += textwrap.wrap(
            f"{text} May be repeated." if is_multi else text,
            _HELP_WIDTH,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
            break_on_hyphens=False,
            break_long_words=False,
        )
    lines += ["", "examples:"]
    lines += [f"  {command} {example}" for example in program.examples]
    return "\n".join(lines)


def checkpoint_of_flag(value: str) -> str | int:
    """The value of a flag ``--checkpoint``: latest, best or a step.

    Raises:
        ConfigError: if it is none of these.
    """
    if value in ("latest", "best"):
        return value
    if value.isdecimal():
        return int(value)
    raise ConfigError(f"--checkpoint must be latest, best or a step, got {value!r}")


def run_of_flags(values: FlagValues) -> tuple[str, str | int]:
    """The run of ``--root_dir``, which may be one of its checkpoints, and which one.

    Raises:
        ConfigError: if ``--checkpoint`` is none, or another one.
    """
    from alf_lite.policies.trained_policy import run_and_checkpoint

    checkpoint = checkpoint_of_flag(values.checkpoint)
    return run_and_checkpoint(values.root_dir, checkpoint, "--root_dir")


class _StderrHandler(logging.Handler):
    """Writes to what is stderr now: a progress bar puts its own in place of it."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.levelno <= logging.INFO else f"{record.levelname}: "
        text = f"{prefix}{record.getMessage()}"
        if record.exc_info:
            lines = traceback.format_exception(*record.exc_info)
            text += "\n" + "".join(lines).rstrip()
        _tell(text)


@contextlib.contextmanager
def _log_lines() -> Iterator[None]:
    """The library's log goes to stderr while a program runs."""
    logger = logging.getLogger("alf_lite")
    handler, level = _StderrHandler(), logger.level
    logger.addHandler(handler)
    # What all ranks say is said by the first one.
    is_other_rank = is_rank() and os.environ["RANK"] != "0"
    logger.setLevel(logging.ERROR if is_other_rank else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
