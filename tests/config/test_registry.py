"""What is read from gin's private tables."""

import pickle

import gin
import pytest

from alf_lite.config import configurable
from alf_lite.config import registry as config_registry
from alf_lite.config.registry import BindingKey


@configurable
class Lamp:
    def __init__(self, watts=5, /, colour="white", *others, dimmed=False):
        self.watts = watts


def test_a_configurable_is_found_by_any_unambiguous_name():
    selector = f"{__name__}.Lamp"
    assert config_registry.matches("Lamp") == [selector]
    assert config_registry.matches(selector) == [selector]
    assert config_registry.matches("Lam") == []
    assert selector in config_registry.names()
    assert config_registry.short_name(selector) == "Lamp"
    assert config_registry.target(selector) is Lamp
    assert config_registry.target("missing.Lamp") is None


def test_gins_own_configurables_are_not_offered():
    assert not any(name.startswith("gin.") for name in config_registry.names())


def test_only_parameters_with_a_name_can_be_bound():
    assert config_registry.parameter_names(Lamp) == ["colour", "dimmed"]
    assert config_registry.parameter_names(lambda a, **kwargs: a) is None
    assert config_registry.parameter_names(object) == []
    assert config_registry.parameter_names(min) is None


def test_a_class_built_by_new_has_its_parameters():
    class Pair(tuple):
        def __new__(cls, first, second):
            return super().__new__(cls, (first, second))

    assert config_registry.parameter_names(Pair) == ["first", "second"]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (BindingKey("", f"{__name__}.Lamp", "colour"), "Lamp.colour"),
        (BindingKey("a/b", f"{__name__}.Lamp", "colour"), "a/b/Lamp.colour"),
        (BindingKey("RATE", "gin.macro", "value"), "RATE"),
    ],
)
def test_a_key_as_written_in_a_conf(key, text):
    assert str(key) == text


def test_what_is_bound_in_python_is_seen():
    gin.bind_parameter("a/Lamp.dimmed", True)
    gin.parse_config("RATE = [1, %OTHER]\nOTHER = 2")
    bound = config_registry.bound()
    assert bound[BindingKey("a", f"{__name__}.Lamp", "dimmed")] is True
    assert sorted(config_registry.macro_names()) == ["OTHER", "RATE"]
    assert config_registry.macros_in(bound[config_registry.macro_key("RATE")]) == [
        "OTHER"
    ]


def test_a_statement_can_be_parsed_to_the_same_value():
    key = BindingKey("a", f"{__name__}.Lamp", "colour")
    for value in ("it's", [1, {"a": (2.5,)}], None, -3):
        gin.parse_config(config_registry.statement(key, value))
        assert config_registry.bound()[key] == value
    assert config_registry.statement(key, float("inf")).startswith("# a/Lamp.colour")


def test_what_another_process_used_counts_as_used_here():
    conf = """
        Lamp.colour = %HUE
        HUE = "red"
        a/Lamp.dimmed = True
        b/Lamp.dimmed = True
    """
    gin.parse_config(conf)
    with gin.config_scope("a"):
        Lamp()
    exported, text = config_registry.export_use(), gin.operative_config_str()
    copied = pickle.loads(pickle.dumps(exported))
    gin.clear_config()
    gin.parse_config(conf)
    assert config_registry.why_unused(config_registry.macro_key("HUE"))
    config_registry.import_use(copied)
    assert gin.operative_config_str() == text
    selector = f"{__name__}.Lamp"
    for key in (
        BindingKey("", selector, "colour"),
        BindingKey("a", selector, "dimmed"),
        config_registry.macro_key("HUE"),
    ):
        assert config_registry.why_unused(key) is None
    assert config_registry.why_unused(BindingKey("b", selector, "dimmed"))


def test_use_of_what_only_the_other_process_knows_is_left_out():
    config_registry.import_use({("", "elsewhere.Lamp"): {"colour": "red"}})
    assert "elsewhere" not in gin.operative_config_str()
