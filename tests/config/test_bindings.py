"""What is bound, and what another process has used."""

import pickle

import gin
import pytest

from alf_lite.config import bindings as config_bindings
from alf_lite.config import configurable, configurables
from alf_lite.config.bindings import MACRO, BindingKey


@configurable
class Lamp:
    def __init__(self, watts=5, /, colour="white", *others, dimmed=False):
        self.watts = watts


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
    bound = config_bindings.bound()
    assert bound[BindingKey("a", f"{__name__}.Lamp", "dimmed")] is True
    assert sorted(config_bindings.macro_names()) == ["OTHER", "RATE"]
    assert config_bindings.macros_in(bound[BindingKey("RATE", MACRO, "value")]) == [
        "OTHER"
    ]


def test_a_statement_can_be_parsed_to_the_same_value():
    key = BindingKey("a", f"{__name__}.Lamp", "colour")
    for value in ("it's", [1, {"a": (2.5,)}], None, -3):
        gin.parse_config(config_bindings.statement(key, value))
        assert config_bindings.bound()[key] == value
    assert config_bindings.statement(key, float("inf")).startswith("# a/Lamp.colour")


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
    exported, text = config_bindings.export_use(), gin.operative_config_str()
    copied, hue = (
        pickle.loads(pickle.dumps(exported)),
        BindingKey("HUE", MACRO, "value"),
    )
    gin.clear_config()
    gin.parse_config(conf)
    assert config_bindings.why_unused(hue)
    config_bindings.import_use(copied)
    assert gin.operative_config_str() == text
    selector = f"{__name__}.Lamp"
    for key in (
        BindingKey("", selector, "colour"),
        BindingKey("a", selector, "dimmed"),
        hue,
    ):
        assert config_bindings.why_unused(key) is None
    assert config_bindings.why_unused(BindingKey("b", selector, "dimmed"))


def test_use_of_what_only_the_other_process_knows_is_left_out():
    config_bindings.import_use({("", "elsewhere.Lamp"): {"colour": "red"}})
    assert "elsewhere" not in gin.operative_config_str()


def test_the_text_of_what_was_used_follows_what_is_used_and_known():
    def text_after(value):
        gin.bind_parameter("Lamp.colour", value)
        Lamp()
        text = config_bindings.operative_text()
        assert text == config_bindings.operative_text()
        return text

    assert "\nLamp.colour = 'white'" in text_after("white")
    assert "\nLamp.colour = 'blue'" in text_after("blue")
    with gin.config_scope("a"):
        assert "\na/Lamp.colour = 'red'" in text_after("red")
    name = f"other.{__name__}.Lamp"
    gin.external_configurable(lambda: None, name)
    try:
        text = config_bindings.operative_text()
    finally:
        configurables.forget(name)
    assert f"\n{__name__}.Lamp.colour = 'blue'" in text
