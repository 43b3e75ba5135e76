"""The decorator: what it refuses, what it leaves alone, scopes and enums."""

import ast
import copy
import inspect
import pickle

import gin
import pytest

from alf_lite.config import configurable
from alf_lite.config import files as config_files
from tests.source_code import parse_package

PER_STEP = {
    "calc_loss",
    "forward",
    "predict_step",
    "preprocess_experience",
    "rollout_step",
    "step",
    "train_step",
}


@configurable
class Motor:
    def __init__(self, power=1.0, *, name="m"):
        self.power, self.name = power, name


@configurable
class QuietMotor(Motor):
    pass


@configurable
def hand_on(load):
    def of_another():
        """Has no parameters."""

    return of_another(load=load)


@configurable("tuned_gain")
def gain(factor=2.0, offset=0.0):
    return factor + offset


def test_it_is_used_with_and_without_arguments():
    gin.parse_config("Motor.power = 3.0\ntuned_gain.factor = 5.0")
    assert Motor().power == 3.0
    assert gain() == 5.0


def test_a_class_stays_the_same_class():
    assert isinstance(Motor(), Motor)
    assert list(inspect.signature(Motor).parameters) == ["power", "name"]
    assert pickle.loads(pickle.dumps(Motor)) is Motor
    assert pickle.loads(pickle.dumps(Motor(4.0))).power == 4.0
    assert copy.deepcopy(Motor(4.0)).power == 4.0


def test_methods_are_not_wrapped():
    class Plain:
        def step(self):
            return 1

    step = Plain.step
    assert configurable(Plain).step is step


def test_any_keyword_is_refused_because_it_accepts_every_misspelling():
    with pytest.raises(TypeError, match=r"takes \*\*options"):

        @configurable
        def build(size=1, **options):
            return size, options

    with pytest.raises(TypeError, match=r"takes \*\*kwargs"):

        @configurable("wide")
        class Wide:
            def __init__(self, **kwargs):
                self.kwargs = kwargs


def test_any_keyword_of_an_inherited_constructor_is_refused():
    class Parent:
        def __init__(self, **kwargs):
            self.kwargs = kwargs

    with pytest.raises(TypeError, match="Name the parameters"):

        @configurable
        class Child(Parent):
            pass


def test_a_class_without_constructor_has_no_parameters():
    @configurable
    class Bare:
        pass

    assert isinstance(Bare(), Bare)
    with pytest.raises(ValueError, match=r"no parameter 'x'. It has: none"):
        config_files.parse_config(None, ["Bare.x = 1"])


def test_a_subclass_without_constructor_inherits_the_bindings():
    gin.parse_config("Motor.power = 3.0\nQuietMotor.name = 'quiet'")
    assert (QuietMotor().power, QuietMotor().name) == (3.0, "quiet")
    assert (Motor().power, Motor().name) == (3.0, "m")


def test_a_callee_cannot_change_what_is_bound():
    @configurable
    def consume(items=()):
        return [items.pop() for _ in range(len(items))]

    gin.parse_config("consume.items = [1, 2]")
    assert consume() == [2, 1]
    assert consume() == [2, 1]


def test_defining_a_class_again_replaces_it():
    def cell(default):
        @configurable("Cell")
        class Cell:
            def __init__(self, size=default):
                self.size = size

        return Cell

    cell(1)
    second = cell(2)
    assert second().size == 2
    gin.parse_config("Cell.size = 7")
    assert second().size == 7


def test_two_configurables_of_one_name_are_an_error():
    configurable("Taken")(lambda: 1)

    def other():
        return 2

    with pytest.raises(ValueError, match=r"\.Taken' exists already"):
        configurable("Taken")(other)


def test_late_imports_may_register_while_bindings_are_locked():
    config_files.parse_config(None, ["Motor.power = 3.0"])

    @configurable
    def defined_late(x=1):
        return x

    assert defined_late() == 1
    assert gin.config_is_locked()


def _configurables(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [ast.unparse(d).partition("(")[0] for d in node.decorator_list]
            if any(name.endswith("configurable") for name in names):
                yield node


@pytest.mark.ci
def test_nothing_that_runs_once_per_step_is_configurable():
    costly = [
        f"{module}:{node.lineno} {node.name}"
        for module, tree in parse_package().items()
        for node in _configurables(tree)
        if node.name in PER_STEP
    ]
    assert costly == []


@pytest.mark.ci
def test_programs_define_no_configurables():
    """A program is __main__ and, when imported, a second module of another name."""
    defined = [
        f"{module}:{node.lineno} {node.name}"
        for module, tree in parse_package().items()
        if module.startswith("alf_lite.bin.")
        for node in _configurables(tree)
    ]
    assert defined == []


@pytest.mark.ci
def test_the_library_uses_its_own_decorator_and_skips_nothing_unknown():
    misused = [
        f"{module}:{node.lineno} {ast.unparse(node)[:60]}"
        for module, tree in parse_package().items()
        if module != "alf_lite.config.configurables"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == "gin.configurable")
        or (isinstance(node, ast.keyword) and node.arg == "skip_unknown")
    ]
    assert misused == []


def test_the_lint_finds_a_decorated_step():
    tree = ast.parse("class A:\n  @configurable('x')\n  def step(self): pass")
    assert [node.name for node in _configurables(tree)] == ["step"]


@configurable
class Vehicle:
    def __init__(self, wheels, *, speed=1.0, color=None, doors=3):
        self.facts = (wheels, speed, color, doors)


@configurable
class Truck(Vehicle):
    def __init__(self, wheels, *, color="grey", load=4.0, **kwargs):
        super().__init__(wheels, color=color, **kwargs)
        self.load = load


@configurable
class Tipper(Truck):
    def __init__(self, *args, angle=30.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.angle = angle


def test_keyword_arguments_stand_for_the_parameters_of_the_base_class():
    assert str(inspect.signature(Truck)) == (
        "(wheels, *, color='grey', load=4.0, speed=1.0, doors=3)"
    )
    assert str(inspect.signature(Tipper)) == (
        "(wheels, *, angle=30.0, color='grey', load=4.0, speed=1.0, doors=3)"
    )
    assert Truck(6, speed=2.0).facts == (6, 2.0, "grey", 3)
    assert Tipper(6, load=9.0, color="red").facts == (6, 1.0, "red", 3)
    assert Tipper(wheels=6, angle=1.0).facts[0] == 6


def test_inherited_parameters_can_be_bound_for_every_class_of_the_line():
    gin.parse_config("Vehicle.speed = 10.0\nTruck.load = 7.0\nTipper.color = 'red'")
    assert Vehicle(4).facts == (4, 10.0, None, 3)
    assert Truck(6).facts == (6, 10.0, "grey", 3)
    tipper = Tipper(6)
    assert tipper.facts == (6, 10.0, "red", 3)
    assert tipper.load == 7.0
    gin.parse_config("Tipper.speed = 20.0")
    assert Tipper(6).facts[1] == 20.0
    assert Truck(6).facts[1] == 10.0


def test_the_operative_config_repeats_what_was_inherited():
    gin.parse_config("Vehicle.speed = 10.0\nTipper.color = 'red'")
    expected = Tipper(6).facts
    text = gin.operative_config_str()
    assert "Tipper.speed" not in text  # it would replace what Vehicle is given
    gin.clear_config()
    gin.parse_config(text)
    assert Tipper(6).facts == expected


def test_a_class_without_a_constructor_leaves_the_values_to_its_base_class():
    gin.parse_config("Motor.power = 3.0\nQuietMotor.name = 'q'")
    motor = QuietMotor()
    assert (motor.power, motor.name) == (3.0, "q")
    text = gin.operative_config_str()
    assert "QuietMotor.power" not in text
    gin.clear_config()
    gin.parse_config(text)
    motor = QuietMotor()
    assert (motor.power, motor.name) == (3.0, "q")


@configurable(defaults={"speed": 5.0, "color": "white"})
class Van(Vehicle):
    """Differs from its base by its defaults alone."""


@configurable(defaults={"color": "pink", "doors": 2})
class IceCreamVan(Van):
    def __init__(self, *args, flavours=3, **kwargs):
        super().__init__(*args, **kwargs)
        self.flavours = flavours


def test_a_subclass_may_change_defaults_without_a_constructor():
    assert str(inspect.signature(Van)) == (
        "(wheels, *, speed=5.0, color='white', doors=3)"
    )
    assert Van(4).facts == (4, 5.0, "white", 3)
    assert Van(4, speed=2.0).facts == (4, 2.0, "white", 3)
    assert IceCreamVan(4).facts == (4, 5.0, "pink", 2)
    gin.parse_config("Vehicle.speed = 10.0\nVehicle.doors = 5\nVan.color = 'blue'")
    assert Van(4).facts == (4, 5.0, "blue", 5)
    assert IceCreamVan(4).facts == (4, 5.0, "pink", 2)
    with pytest.raises(TypeError, match="Did you mean 'speed'"):
        Van(4, speedd=5)
    with pytest.raises(ValueError, match="sped"):
        gin.parse_config("Van.sped = 5")


def test_the_operative_config_repeats_changed_defaults():
    gin.parse_config("Vehicle.speed = 10.0\nVan.color = 'blue'")
    expected = Van(4).facts
    text = gin.operative_config_str()
    assert "Van.speed = 5.0" in text
    assert "Van.doors" not in text  # left to Vehicle
    gin.clear_config()
    gin.parse_config(text)
    assert Van(4).facts == expected


def test_a_default_of_no_inherited_parameter_is_refused():
    with pytest.raises(TypeError, match=r"'sped'.*Did you mean 'speed'"):

        @configurable(defaults={"sped": 1.0})
        class Lorry(Vehicle):
            pass


def test_a_parameter_that_no_base_class_offers_is_an_error():
    with pytest.raises(ValueError, match="sped_up"):
        gin.parse_config("Truck.sped_up = 5")
    with pytest.raises(TypeError, match="'Truck' has no parameter 'sped_up'"):
        Truck(6, sped_up=5)


def test_a_misspelt_keyword_is_told_the_one_that_was_meant():
    with pytest.raises(TypeError, match="Did you mean 'speed'"):
        Tipper(6, speedd=5)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'load'$"):
        hand_on(load=5)  # to what does not take it
