"""Tests of alf_lite.bin.program."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile

import pytest

from alf_lite.bin import play, program, train, verify_checkpoint
from alf_lite.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
    EnvError,
    WorkerError,
)

FLAGS = (
    program.Flag("count", "How many.", default=1),
    program.Flag("item", "One of them.", default=[]),
    program.Flag("fast", "Hurry.", default=False),
)


def make_program(run) -> program.Program:
    return program.Program("toy", "Does a thing.", ("--count=2",), FLAGS, run)


def test_runs_with_the_flags_and_returns_its_exit_code():
    def run(values) -> int:
        assert (values.count, values.item, values.fast) == (3, ["a", "b"], True)
        return 7

    arguments = ["--count=3", "--item=a", "--fast", "--item", "b"]
    assert make_program(run).main(arguments) == 7


def test_arguments_without_a_name_belong_to_the_operand():
    def run(values) -> int:
        assert (values.item, values.fast) == (["a", "b", "c"], True)
        return 7

    toy = make_program(run)._replace(operand="item")
    assert toy.main(["b", "--fast", "--item=a", "c"]) == 7
    assert "usage: python -m alf_lite.bin.toy ITEM... [flags]" in program.help_text(toy)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ConfigError, 2),
        (CheckpointError, 3),
        (EnvError, 4),
        (DivergedError, 5),
        (WorkerError, 6),
    ],
)
def test_typed_errors_are_one_message_with_their_notes(capsys, error, exit_code):
    def run(values) -> int:
        raised = error("100% {broken} é")
        raised.add_note("Kept: ckpt-4")
        raise raised

    assert make_program(run).main([]) == exit_code
    captured = capsys.readouterr()
    assert captured.err == "error: 100% {broken} é\nKept: ckpt-4\n"
    assert captured.out == ""


def test_calls_in_one_process_do_not_see_the_flags_of_each_other():
    seen = []
    toy = make_program(lambda values: seen.append(values.item) or 0)
    for item in "ab":
        assert toy.main([f"--item={item}"]) == 0
    assert seen == [["a"], ["b"]]


def test_interrupt_is_one_line_and_130(capsys):
    def run(values) -> int:
        raise KeyboardInterrupt

    assert make_program(run).main([]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def fail(values) -> int:
    return 1 // 0


def test_a_bug_is_a_line_that_names_the_file_with_its_traceback(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert make_program(fail).main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    (file,) = tmp_path.iterdir()
    assert line.startswith("error: ZeroDivisionError: integer division or modulo by ")
    assert __file__ in line
    assert str(file) in line
    assert "return 1 // 0" in file.read_text()


def test_the_traceback_of_a_bug_is_shown_on_demand(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert make_program(fail).main(["--traceback"]) == 1
    assert "return 1 // 0" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_bug_shows_its_traceback_where_no_file_can_be_written(capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert make_program(fail).main([]) == 1
    assert "return 1 // 0" in capsys.readouterr().err


def test_foreign_text_does_not_speak_to_the_terminal(capsys):
    def run(values) -> int:
        sys.stdout.write("\x1b[31mred\tand\n")
        raise ConfigError("\x9b2J")

    assert make_program(run).main([]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("\\x1b[31mred\tand\n", "error: \\x9b2J\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cuont=3"], "'cuont'. Did you mean: count"),
        (["--count=x"], "--count=x: invalid literal"),
        (["--count"], "Missing value for flag --count"),
        (["extra"], "unexpected argument 'extra'"),
        (["--count=1", "--", "extra"], "unexpected argument 'extra'"),
    ],
)
def test_wrong_flags_are_refused_before_anything_runs(capsys, arguments, message):
    toy = make_program(lambda values: pytest.fail("it ran"))
    assert toy.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "See python -m alf_lite.bin.toy --help" in error


@pytest.mark.parametrize("flag", ["--help", "-h", "-help"])
def test_help_shows_our_flags_only(capsys, flag):
    assert make_program(lambda values: 1).main(["--count=2", flag]) == 0
    assert capsys.readouterr().out == (
        "Does a thing.\n"
        "\n"
        "usage: python -m alf_lite.bin.toy [flags]\n"
        "\n"
        "flags:\n"
        "  --count=N\n"
        "      How many. Default: 1.\n"
        "  --item=TEXT\n"
        "      One of them. May be repeated.\n"
        "  --fast\n"
        "      Hurry.\n"
        "  --traceback\n"
        "      Show the traceback of a bug.\n"
        "\n"
        "examples:\n"
        "  python -m alf_lite.bin.toy --count=2\n"
    )


def test_help_says_a_default_of_zero():
    text = program.help_text(play.PROGRAM)
    assert "Seed of the environments and the sampling. Default: 0.\n" in text
    assert "False" not in text


@pytest.mark.parametrize("module", [train, play, verify_checkpoint])
def test_help_of_the_programs_fits_a_terminal(module):
    lines = program.help_text(module.PROGRAM).splitlines()
    assert all(len(line) <= 110 for line in lines)
    for name in module.PROGRAM.define_flags():
        assert any(line.startswith(f"  --{name}") for line in lines)


@pytest.mark.parametrize("name", ["train", "play", "verify_checkpoint"])
def test_help_and_wrong_flags_need_no_torch(name):
    code = (
        "import sys\n"
        f"from alf_lite.bin import {name}\n"
        f"assert {name}.main(['--help']) == 0\n"
        f"assert {name}.main(['--nonsense']) == 2\n"
        f"assert {name}.main([]) == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_log_lines_go_to_stderr_while_the_program_runs(capsys):
    logger = logging.getLogger("alf_lite.somewhere")
    handlers = list(logging.getLogger("alf_lite").handlers)

    def run(values) -> int:
        logger.info("for your information")
        logger.warning("100% {sure}")
        logger.debug("not this")
        return 0

    make_program(run).main([])
    error = capsys.readouterr().err
    assert error == "for your information\nWARNING: 100% {sure}\n"
    assert logging.getLogger("alf_lite").handlers == handlers
