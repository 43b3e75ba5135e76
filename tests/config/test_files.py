"""Reading confs, the texts that are saved, unused bindings and child processes."""

import logging
import multiprocessing
import os
import re
import subprocess
import sys
import threading

import gin
import pytest

from alf_lite.config import TrainerConfig, configurable
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.errors import ConfigError
from tests.other_process import fork_server_of_its_own


@configurable
class ToyNet:
    def __init__(self, width=8, *, depth=1, bound=float("inf"), inner_ctor=None):
        self.width, self.depth, self.bound = width, depth, bound
        self.inner = inner_ctor() if inner_ctor else None

    def settings(self):
        inner = self.inner.settings() if self.inner else None
        return self.width, self.depth, self.bound, inner


@configurable
class DeepToyNet(ToyNet):
    """Passes ``width`` on, so that ``ToyNet.width`` has no effect on it."""

    def __init__(self, width=16):
        super().__init__(width=width)


@configurable
def describe_toy(net, note="", unprintable=object()):  # noqa: B008
    return net.settings(), note


def write(folder, **texts):
    """Writes ``<name>.gin`` files and returns the path of the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / f"{name}.gin"
        path.write_text(text, encoding="utf-8")
    return str(path)


def refused(conf, *gin_params):
    with pytest.raises(ConfigError) as error:
        config_files.parse_config(conf, gin_params)
    return str(error.value)


# Reading


def test_the_command_line_overrides_the_conf(tmp_path):
    conf = write(tmp_path, main="ToyNet:\n  width = 1\n  depth = 2\n")
    config_files.parse_config(conf, ["ToyNet.width = 7", "ToyNet.width = 9"])
    assert (ToyNet().width, ToyNet().depth) == (9, 2)


def test_neither_conf_nor_parameters_are_needed():
    config_files.parse_config(None)
    assert ToyNet().width == 8
    assert config_files.user_config_text() == ""


def test_an_include_is_relative_to_the_including_file(tmp_path, monkeypatch):
    write(tmp_path / "confs" / "parts", width="ToyNet.width = 3\n")
    write(tmp_path / "confs" / "parts", both="include 'width'\nToyNet.depth = 4\n")
    conf = write(tmp_path / "confs", main="include 'parts/both.gin'\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config_files.parse_config(conf)
    assert (ToyNet().width, ToyNet().depth) == (3, 4)


def test_a_missing_include_names_the_line_that_includes(tmp_path):
    write(tmp_path, base="ToyNet.width = 3\n")
    conf = write(tmp_path, main="# Header\ninclude 'bse.gin'\n")
    message = refused(conf)
    assert message.startswith(f"{conf}:2: conf 'bse.gin' not found in {tmp_path}")
    assert "Did you mean 'base'?" in message


def test_an_error_in_an_included_file_names_that_file(tmp_path):
    base = write(tmp_path, base="\nToyNet.widthh = 3\n")
    conf = write(tmp_path, main="include 'base'\n")
    assert refused(conf).startswith(
        f"{base[:-4]}.gin:2: 'ToyNet' has no parameter 'widthh'"
    )


def test_a_conf_that_includes_itself(tmp_path):
    write(tmp_path, a="include 'b'\n", b="include 'a'\n")
    assert "includes itself: a.gin → b.gin → a.gin" in refused(str(tmp_path / "a.gin"))


def test_a_conf_that_includes_what_has_no_end(tmp_path):
    conf = write(tmp_path, main="include '/dev/zero'\n")
    assert "/dev/zero: expected a regular file" in refused(conf)


def test_small_files_that_make_a_huge_conf(tmp_path, monkeypatch):
    monkeypatch.setattr(config_names, "MAX_SIZE", 10_000)
    conf = write(tmp_path, conf_0="# " + 99 * "x" + "\nToyNet.width = 1\n")
    for i in range(30):
        conf = write(tmp_path, **{f"conf_{i + 1}": f"include 'conf_{i}'\n" * 2})
    assert f"conf {conf!r} has more than 10,000 bytes" in refused(conf)


def test_an_empty_conf(tmp_path):
    assert "this conf is empty" in refused(write(tmp_path, main="# Nothing\n"))
    assert "binds nothing" in refused(None, "# Nothing")


def test_gins_own_reader_reports_a_missing_file_too():
    program = (
        "import alf_lite.config, gin\n"
        "try: gin.parse_config_file('nope.gin')\n"
        "except OSError as error: print('Unable to open' in str(error))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "True"


def test_a_binding_repeated_in_one_file_is_an_error(tmp_path):
    conf = write(tmp_path, main="ToyNet.width = 1\nToyNet:\n  depth = 3\n  width = 2\n")
    message = refused(conf)
    assert message.startswith(f"{conf}:4: 'ToyNet.width' is bound twice in this file")
    assert f"first in `{conf}:1: ToyNet.width = 1`" in message
    assert "'LR' is bound twice" in refused(write(tmp_path, m="LR = 1\nLR = 2\n"))


def test_the_same_parameter_in_two_scopes_is_no_repetition(tmp_path):
    conf = write(tmp_path, main="ToyNet.width = 1\na/ToyNet.width = 2\n")
    config_files.parse_config(conf)
    with gin.config_scope("a"):
        assert ToyNet().width == 2


def test_an_override_across_files_is_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    base = write(tmp_path, base="ToyNet.width = 1\nToyNet.depth = 5\n")
    conf = write(tmp_path, main="include 'base'\nToyNet.width = 2\nToyNet.depth = 5\n")
    config_files.parse_config(conf)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{conf}:2: ToyNet.width = 2, instead of 1 ({base}:1)"
    )


def test_an_override_of_a_shipped_conf_is_short_and_what_it_includes_its_own(caplog):
    caplog.set_level(logging.INFO)
    parameters = ["TrainerConfig.num_env_steps = 7", "TrainerConfig.unroll_length = 8"]
    config_files.parse_config("async_sac_pendulum", parameters)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) <= 2
    assert re.fullmatch(
        r"--gin_param: TrainerConfig.num_env_steps = 7, instead of \d+ "
        r"\((async_)?sac_pendulum.gin:\d+\)",
        messages[0],
    )


def test_unknown_names_are_errors_even_where_nothing_uses_them(tmp_path):
    assert "no configurable 'Unused'" in refused(None, "Unused.x = 1")
    assert "no configurable 'Unused'" in refused(None, "LATER = @Unused")
    assert "no module 'missing_module'" in refused(None, "import missing_module")


def test_a_module_that_fails_to_import_says_why(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_extra.py").write_text("import surely_not_installed\n")
    (tmp_path / "is_broken.py").write_text("raise RuntimeError('no licence')\n")
    message = refused(None, "import needs_extra")
    assert "importing 'needs_extra' failed: ModuleNotFoundError" in message
    assert "surely_not_installed" in message
    assert "RuntimeError: no licence" in refused(None, "import is_broken")


def test_dynamic_registration_is_refused():
    message = refused(None, "from __gin__ import dynamic_registration")
    assert "gin's dynamic registration is not supported" in message


def test_values_are_data_and_never_run():
    assert "calls no functions" in refused(
        None, "ToyNet.width = __import__('os').getpid()"
    )


def test_nothing_stays_bound_after_an_error():
    refused(None, "ToyNet.width = 3", "ToyNet.widthh = 3")
    assert ToyNet().width == 8
    config_files.parse_config(None, ["ToyNet.width = 4"])
    assert ToyNet().width == 4


def test_bindings_are_locked_once_read():
    config_files.parse_config(None, ["ToyNet.width = 3"])
    with pytest.raises(RuntimeError, match="locked"):
        gin.bind_parameter("ToyNet.width", 4)
    with gin.unlock_config():
        gin.bind_parameter("ToyNet.width", 4)
    assert ToyNet().width == 4


def test_a_second_configuration_needs_a_reset():
    config_files.parse_config(None, ["ToyNet.width = 3"])
    assert "Call reset()" in refused(None, "ToyNet.width = 4")
    assert ToyNet().width == 3
    config_files.reset()
    config_files.parse_config(None)
    assert ToyNet().width == 8


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_test_finds_no_bindings_of_an_earlier_one(attempt):
    assert not gin.config_is_locked()
    assert ToyNet().width == 8
    config_files.parse_config(None, ["ToyNet.width = 3"])


# Texts


def test_the_users_text_has_files_inlined_and_can_be_read_again(tmp_path):
    write(tmp_path, base="# Base\nToyNet:\n  width = 1  # narrow\n  depth = 2\n")
    conf = write(tmp_path, main="# Main\ninclude 'base'\n\nToyNet.depth = [3,\n  4]\n")
    config_files.parse_config(conf, ["ToyNet.width = 9"])
    text = config_files.user_config_text()
    lines = text.splitlines()
    assert "# overridden: ToyNet.width = 1  # narrow" in lines
    assert "# overridden: ToyNet.depth = 2" in lines
    assert [line for line in lines if line and line[0] not in "#i"] == [
        "ToyNet.depth = [3,",
        "  4]",
        "ToyNet.width = 9",
    ]
    assert "include" not in text
    assert {"# Main", "# Base", "# From the command line:"} <= set(lines)
    config_files.reset()
    config_files.parse_config_text(text)
    assert (ToyNet().width, ToyNet().depth) == (9, [3, 4])
    assert config_files.user_config_text() == text


def test_the_users_text_holds_what_was_bound_in_python():
    config_files.parse_config(None, ["ToyNet.width = 1"])
    with gin.unlock_config():
        gin.bind_parameter("ToyNet.width", 2)
        gin.bind_parameter("a/ToyNet.depth", 3)
        gin.bind_parameter("ToyNet.bound", float("inf"))
    text = config_files.user_config_text()
    assert "# overridden: ToyNet.width = 1\n" in text
    assert "# ToyNet.bound = inf cannot be written in a conf\n" in text
    config_files.parse_config_text(text)
    with gin.config_scope("a"):
        assert (ToyNet().width, ToyNet().depth) == (2, 3)


def test_the_users_text_imports_what_the_program_had_imported():
    config_files.parse_config(None, ["ToyNet.inner_ctor = @DeepToyNet"])
    assert config_files.user_config_text().startswith(f"import {__name__}\n")


def test_the_operative_config_gives_the_same_objects(tmp_path):
    conf = write(
        tmp_path,
        main=(
            "WIDTH = 5\n"
            "SCOPED = @a/ToyNet()\n"
            "ToyNet.depth = 2\n"
            "a/ToyNet.width = %WIDTH\n"
            "a/ToyNet.inner_ctor = @b/DeepToyNet\n"
            "b/DeepToyNet.width = 6\n"
            "describe_toy.net = %SCOPED\n"
            "describe_toy.note = 'it\\'s \"long\" " + "text " * 40 + "\\n'\n"
        ),
    )
    config_files.parse_config(conf)
    first = describe_toy()
    assert first[0] == (5, 2, float("inf"), (6, 2, float("inf"), None))
    operative = config_files.operative_config_text()
    config_files.reset()
    config_files.parse_config(write(tmp_path, operative=operative))
    assert describe_toy() == first
    assert config_files.operative_config_text() == operative


def test_the_operative_config_keeps_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pond.py").write_text(
        "from alf_lite.config import configurable\n"
        "@configurable\ndef pond(fish=1):\n    return fish\n"
    )
    config_files.parse_config(None, ["import pond", "pond.fish = 3"])
    assert gin.get_configurable("pond")() == 3
    text = config_files.operative_config_text()
    assert text.startswith("import pond\n")
    assert "pond.fish = 3" in text


def test_the_operative_config_of_a_run_reproduces_its_settings():
    config_files.parse_config(
        None,
        [
            "STEPS = 100",
            "TrainerConfig.num_env_steps = %STEPS",
            "TrainerConfig.algorithm_ctor = @DeepToyNet",
        ],
    )
    first = TrainerConfig(root_dir="runs/x")
    operative = config_files.operative_config_text()
    assert "TrainerConfig.unroll_length = 8" in operative
    config_files.parse_config_text(operative)
    assert TrainerConfig(root_dir="runs/x") == first


# Unused bindings


def test_a_binding_that_nothing_reads_is_listed_with_its_reason(tmp_path):
    conf = write(
        tmp_path,
        main=(
            "ToyNet.width = 1\n"
            "DeepToyNet.width = 2\n"
            "describe_toy.note = 'x'\n"
            "a/DeepToyNet.width = 3\n"
            "UNUSED = 4\n"
        ),
    )
    config_files.parse_config(conf)
    DeepToyNet()
    assert config_files.unused_bindings() == [
        f"{conf}:1: ToyNet.width = 1  (every caller passed its own value)",
        f"{conf}:3: describe_toy.note = 'x'  (describe_toy was not called)",
        f"{conf}:4: a/DeepToyNet.width = 3  (DeepToyNet was not called in scope 'a')",
        f"{conf}:5: UNUSED = 4  (the macro is never referred to)",
    ]
    text = config_files.inoperative_config_text()
    assert "# describe_toy was not called\ndescribe_toy.note = 'x'\n" in text
    assert "DeepToyNet.width = 2" not in text


def test_an_explicit_argument_beats_the_binding():
    config_files.parse_config(None, ["ToyNet.width = 1"])
    assert ToyNet(width=2).width == 2
    assert len(config_files.unused_bindings()) == 1
    assert ToyNet().width == 1
    assert config_files.unused_bindings() == []


def test_a_binding_of_a_deeper_scope_replaces_the_outer_one():
    config_files.parse_config(None, ["ToyNet.width = 1", "a/ToyNet.width = 2"])
    with gin.config_scope("a"):
        ToyNet()
    (unused,) = config_files.unused_bindings()
    assert "ToyNet.width = 1  (bindings of deeper scopes replaced it)" in unused
    ToyNet()
    assert config_files.unused_bindings() == []


def test_macros_and_inherited_constructors_count_as_used():
    config_files.parse_config(
        None,
        [
            "A = 3",
            "B = %A",
            "ToyNet.width = %B",
            "describe_toy.net = @x/ToyNet()",
            "x/ToyNet.depth = 2",
        ],
    )
    describe_toy()
    assert config_files.unused_bindings() == []
    assert "# None." in config_files.inoperative_config_text()


def test_unused_bindings_are_a_warning_or_with_strict_an_error(caplog):
    config_files.parse_config(None, ["ToyNet.width = 1"])
    config_files.check_unused_bindings()
    (record,) = caplog.records
    assert (
        "no effect:\n  --gin_param: ToyNet.width = 1  (ToyNet was"
        in record.getMessage()
    )
    config_files.reset()
    config_files.parse_config(None, ["ToyNet.width = 1"], strict=True)
    with pytest.raises(
        ConfigError, match=r"no effect:\n  --gin_param: ToyNet.width = 1"
    ):
        config_files.check_unused_bindings()
    ToyNet()
    config_files.check_unused_bindings()


# Child processes

ENGINE = """
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.config import configurable

@configurable
class Engine:
    def __init__(self, power=1, fuel_ctor=None):
        self.power = power
        self.fuel = fuel_ctor() if fuel_ctor else None

@configurable
class Fuel:
    def __init__(self, octane=90):
        self.octane = octane

def powers(text):
    unconfigured = Engine().power
    config_files.parse_config_text(text)
    engine = Engine()
    return unconfigured, engine.power, engine.fuel.octane
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A user's module, imported by a conf with an include and a scoped reference."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "engine_module.py").write_text(ENGINE)
    write(tmp_path, base="import engine_module\nFUEL = 95\nEngine.power = 2\n")
    conf = write(
        tmp_path,
        main="include 'base'\na/Fuel.octane = %FUEL\nEngine.fuel_ctor = @a/Fuel\n",
    )
    config_files.parse_config(conf, ["Engine.power = 7"])
    return sys.modules["engine_module"]


@pytest.mark.ci
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_process_has_the_bindings_once_it_read_the_text(engine, method):
    context = multiprocessing.get_context(method)
    with fork_server_of_its_own(), context.Pool(1) as pool:
        result = pool.apply(engine.powers, [config_files.user_config_text()])
        # Not by a signal: the server may have been started by one that blocks it.
        pool.close()
        pool.join()
    assert result == (1, 7, 95)


def test_another_program_reads_the_text_in_any_directory(engine, tmp_path):
    program = "import sys, engine_module; print(engine_module.powers(sys.stdin.read()))"
    (tmp_path / "elsewhere").mkdir()
    result = subprocess.run(
        [sys.executable, "-c", program],
        input=config_files.user_config_text(),
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "(1, 7, 95)"


def test_a_process_that_has_the_configuration_keeps_it(engine):
    before = engine.Engine
    config_files.parse_config_text(config_files.user_config_text())
    gin_config = gin.config_str()
    config_files.parse_config_text(config_files.user_config_text())
    assert gin.config_str() == gin_config
    assert before().power == 7


def test_instances_of_scoped_references_are_plain_and_can_be_sent(engine):
    fuel = engine.Engine().fuel
    assert type(fuel) is engine.Fuel
    queue = multiprocessing.SimpleQueue()
    queue.put(fuel)
    assert queue.get().octane == 95
    queue.close()


def test_reading_in_another_thread_configures_the_process():
    thread = threading.Thread(
        target=config_files.parse_config, args=[None, ["ToyNet.width = 3"]]
    )
    thread.start()
    thread.join()
    assert ToyNet().width == 3
