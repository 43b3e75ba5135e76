"""Names and parameters of what gin knows."""

import inspect

from alf_lite.config import configurable, configurables
from alf_lite.config import names as config_names


@configurable
class Kettle:
    def __init__(self, litres=5, /, colour="white", *others, dimmed=False):
        self.litres = litres


def test_a_configurable_is_found_by_any_unambiguous_name():
    selector = f"{__name__}.Kettle"
    assert configurables.matches("Kettle") == [selector]
    assert configurables.matches(selector) == [selector]
    assert configurables.matches("Kett") == []
    assert selector in configurables.names()
    assert configurables.short_name(selector) == "Kettle"
    assert configurables.target(selector) is Kettle
    assert configurables.target("missing.Kettle") is None


def test_gins_own_configurables_are_not_offered():
    assert not any(name.startswith("gin.") for name in configurables.names())


def test_only_parameters_with_a_name_can_be_bound():
    assert configurables.parameter_names(Kettle) == ["colour", "dimmed"]
    assert configurables.parameter_names(lambda a, **kwargs: a) is None
    assert configurables.parameter_names(object) == []
    assert configurables.parameter_names(min) is None


def test_a_class_built_by_new_has_its_parameters():
    class Pair(tuple):
        def __new__(cls, first, second):
            return super().__new__(cls, (first, second))

    assert configurables.parameter_names(Pair) == ["first", "second"]


class Firewood:
    """Only known in this module."""


@configurable
class Stove:
    def __init__(self, *, fuel: "Firewood | None" = None, power: "int" = 1, free=None):
        self.fuel, self.power = fuel, power


@configurable(defaults={"power": 2})
class GasStove(Stove):
    pass


@configurable
class LoudGasStove(GasStove):
    def __init__(self, *, power: float = 3.0, volume: "Missing" = 1, **kwargs):  # noqa: F821
        super().__init__(**kwargs)


def test_the_annotation_of_a_parameter_is_that_of_the_class_which_wrote_it():
    unknown = inspect.Parameter.empty
    assert configurables.annotation(Stove, "fuel") == Firewood | None
    assert configurables.annotation(GasStove, "power") is int
    assert configurables.annotation(LoudGasStove, "power") is float
    assert configurables.annotation(LoudGasStove, "fuel") == Firewood | None
    assert configurables.annotation(LoudGasStove, "free") is unknown
    assert configurables.annotation(LoudGasStove, "volume") is unknown
    assert configurables.annotation(LoudGasStove, "kwargs") is unknown


def test_every_annotation_of_the_library_is_known():
    unknown = [
        f"{name}.{parameter.name}"
        for name in config_names.shipped()
        for target in [configurables.target(config_names.complete_name(name))]
        for parameter in configurables.parameters(target)
        if configurables.annotation(target, parameter.name) is parameter.empty
    ]
    assert unknown == []
