"""Names and parameters of what gin knows."""

from alf_lite.config import configurable, configurables


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
