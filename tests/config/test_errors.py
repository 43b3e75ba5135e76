"""Messages for what gin's parser refuses, and errors that pass through gin."""

import gin
import pytest

from alf_lite.config import configurable
from alf_lite.config import errors as config_errors
from alf_lite.config import files as config_files
from alf_lite.errors import CheckpointError, ConfigError, EnvError


@configurable
class Pump:
    def __init__(self, volume: float = 1.0, *, label: str = "p", sizes=(1, 2)):
        if volume < 0:
            raise ValueError(f"volume must be positive, got {volume}")
        self.volume, self.label, self.sizes = volume, label, sizes


@configurable
class BigPump(Pump):
    def __init__(self, engines: int = 2):
        super().__init__()
        self.engines = engines


@configurable
def connect(pump, hose=None):
    return pump, hose


@configurable
def needs_length(length=gin.REQUIRED):
    return length


@configurable
class Tap:
    def __init__(self, *, width, length, colour="grey"):
        self.width = width


@configurable
class Faucet(Tap):
    """Has no constructor of its own."""


@configurable
def fail_with(error):
    raise error


def refused(statement):
    """The message for a statement of the command line."""
    with pytest.raises(ConfigError) as error:
        config_files.parse_config(None, [statement])
    message = str(error.value)
    assert "gin/" not in message
    assert "object at 0x" not in message
    assert message.count("\n") <= 5
    return message


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        # The table of traps: what people write, and what they should have written.
        ("Pump.label=CartPole-v1", 'need quotes: `Pump.label = "CartPole-v1"`'),
        ("Pump.label = foo/bar", 'need quotes: `Pump.label = "foo/bar"`'),
        ("Pump.label = hello world", 'need quotes: `Pump.label = "hello world"`'),
        (
            "Pump.sizes = [a, 'b']",
            'inside of brackets, too, strings need quotes: `"a"`',
        ),
        ("Pump.label = true", "write `Pump.label = True`"),
        ("Pump.label = none", "write `Pump.label = None`"),
        ("Pump.label = null", "write `Pump.label = None`"),
        ("Pump.volume = float('inf')", "no infinity or NaN"),
        ("Pump.volume = inf", "no infinity or NaN"),
        ("Pump.volume = -nan", "no infinity or NaN"),
        ("Pump.volume = int(3)", "gin calls no functions"),
        ("Pump.volume = 1/3", "no arithmetic"),
        ("Pump.volume = 2*3", "no arithmetic"),
        ("Pump.volume = 10**6", "no arithmetic"),
        ("Pump.volume = 3 - 1", "no arithmetic"),
        ("Pump.sizes = 1, 2", "`Pump.sizes = (1, 2)`"),
        ("Pump.label = 'open", "quote is never closed"),
        ("Pump.label =", "the value is missing"),
        ("Pump.label = 'a' 3", "something after the value"),
        ("Pump.label = Pump", "`Pump.label = @Pump`"),
        ("Pump.label = Pump()", "`Pump.label = @Pump()`"),
        ("Pump.volume", "is no statement. Expected `Name.parameter = value`"),
        ("Pump.volume: 3", "is no statement. Expected"),
        ("Pump.volume 3", "is no statement. Expected"),
    ],
)
def test_a_statement_that_cannot_be_read(statement, advice):
    assert advice in refused(statement)


def test_a_macro_without_percent_sign():
    assert "`Pump.volume = %SIZE`" in refused("SIZE = 1\nPump.volume = SIZE")


def test_the_shell_form_of_a_quoted_string():
    message = refused("Pump.label=CartPole-v1")
    assert """In a shell: --gin_param='Pump.label="CartPole-v1"'""" in message


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("Pmp.volume = 1", "no configurable 'Pmp'. Did you mean 'Pump'"),
        ("pump.volume = 1", "no configurable 'pump'. Did you mean 'Pump'"),
        ("Pump.label = @Bigpump()", "Did you mean 'BigPump'"),
        ("Pump.sizes = [@a/Pumpp]", "Did you mean 'Pump'"),
        ("Qwertz.x = 1", "import the module that defines it"),
        ("Pump.volum = 1", "'Pump' has no parameter 'volum'. Did you mean 'volume'?"),
        ("Pump.zzz = 1", "no parameter 'zzz'. It has: volume, label, sizes."),
        ("BigPump.volume = 1", "'Pump' has it: bind `Pump.volume`"),
        ("a/b/Pump.volum = 1", "Did you mean 'volume'?"),
        ("import alf_lite.confiig", "no module 'alf_lite.confiig'. Did you mean"),
        ("import alf_lit.config", "no module 'alf_lit'"),
        ("import nonexistent_module", "current directory or on PYTHONPATH"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(statement, advice):
    assert advice in refused(statement)


def test_a_package_that_an_extra_installs_says_which():
    advice = "the module 'open_spiel' needs the games extra: pip install 'alf_lite[gam"
    assert advice in config_errors.unknown_module("open_spiel")


def test_a_name_that_several_configurables_have():
    configurable("Twin", module="first")(lambda: 1)
    configurable("Twin", module="second")(lambda: 2)
    message = refused("Pump.label = @Twin()")
    assert "'first.Twin' or 'second.Twin': write one in full" in message
    config_files.parse_config(None, ["Pump.label = @second.Twin()"])
    assert Pump().label == 2


def test_the_cause_is_kept():
    with pytest.raises(ConfigError) as error:
        config_files.parse_config(None, ["Pump.label = x"])
    assert isinstance(error.value.__cause__, SyntaxError)


def test_an_error_passes_configurables_as_it_is():
    original = EnvError("broken")
    original.add_note("a note")
    with pytest.raises(EnvError) as error:
        fail_with(original)
    assert error.value is original
    assert str(original) == "broken"
    assert original.__notes__ == ["a note"]
    assert config_errors.called_configurables(original) == ["fail_with"]


def build(function, *arguments):
    with config_files.gin_errors():
        return function(*arguments)


def test_a_bad_value_names_the_configurable_and_the_line(tmp_path):
    conf = tmp_path / "pump.gin"
    conf.write_text("# A pump\nPump.volume = -3\nPump.label = 'x'\n")
    config_files.parse_config(str(conf))
    with pytest.raises(ConfigError) as error:
        build(BigPump)
    assert str(error.value) == (
        f"Pump: volume must be positive, got -3\n  {conf}:2: Pump.volume = -3"
    )
    assert isinstance(error.value.__cause__, ValueError)


def test_a_message_that_begins_with_the_configurable_names_it_once():
    for text in ("fail_with: too much", "fail_with.a is too much", "too much"):
        with pytest.raises(ConfigError) as error:
            build(fail_with, ValueError(text))
        assert str(error.value).startswith(("fail_with: too", "fail_with.a is"))
        assert str(error.value).count("fail_with") == 1


def test_a_config_error_names_the_lines_of_all_wrong_fields():
    config_files.parse_config(
        None,
        [
            "TrainerConfig.num_iterations = 'abc'",
            "TrainerConfig.unroll_length = 0",
            "TrainerConfig.root_dir = 'runs'",
        ],
    )
    from alf_lite.config import TrainerConfig

    with pytest.raises(ConfigError) as error:
        build(TrainerConfig)
    message = str(error.value)
    assert "--gin_param: TrainerConfig.num_iterations = 'abc'" in message
    assert "--gin_param: TrainerConfig.unroll_length = 0" in message
    assert "root_dir" not in message
    assert "In call to configurable" not in message


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (connect, "connect.pump"),
        (needs_length, "length"),
        (Tap, "`Tap.width` and `Tap.length"),
        (Faucet, "Tap.length"),
    ],
)
def test_a_missing_value_is_named(function, parameter):
    with pytest.raises(ConfigError, match=rf"{parameter}` must be set") as error:
        build(function)
    assert str(error.value).count("\n") == 0


def test_a_missing_value_of_what_no_conf_can_bind_is_no_missing_value():
    message = "helper() missing 1 required keyword-only argument: 'size'"
    with pytest.raises(ConfigError, match="helper"):
        build(fail_with, TypeError(message))


def test_typed_errors_pass_without_gins_additions():
    original = CheckpointError("sha256 differs")
    with pytest.raises(CheckpointError) as error:
        build(fail_with, original)
    assert error.value is original


def test_what_is_built_within_itself_is_an_error_of_the_conf():
    with pytest.raises(ConfigError, match="is built by a parameter of its own"):
        build(fail_with, RecursionError())


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError):
        build(fail_with, ZeroDivisionError())
    with pytest.raises(KeyError):
        build(fail_with, KeyError("x"))


def test_a_value_error_outside_of_configurables_passes():
    with pytest.raises(ValueError, match="mine") as error, config_files.gin_errors():
        raise ValueError("mine")
    assert not isinstance(error.value, ConfigError)
