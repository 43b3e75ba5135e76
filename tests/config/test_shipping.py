"""What travels to another process by its name, and what by the configuration."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections.abc import Callable
from typing import Any

import gin
import pytest

from alf_lite.config import configurable
from alf_lite.config import files as config_files
from alf_lite.config import shipping as config_shipping
from alf_lite.config.shipping import dump, load


@configurable
class Gearbox:
    def __init__(self, power: int = 1) -> None:
        self.power = power


@configurable
@dataclasses.dataclass(frozen=True)
class Machine:
    motor_ctor: Callable[..., Gearbox] | None = None
    motor_ctors: Any = ()
    name: str = ""

    def powers(self) -> list[int]:
        ctors = [self.motor_ctor] if self.motor_ctor else []
        return [ctor().power for ctor in (*ctors, *self.motor_ctors)]


FIELDS = {
    "motor_ctor": "Machine.motor_ctor",
    "motor_ctors": "Machine.motor_ctors",
}
CONF = """
Gearbox.power = 2
strong/Gearbox.power = 30
weak/Gearbox.power = 4
"""


def shipped(value, bound_fields=None, **kwargs):
    """What another process makes of it, which has read nothing so far."""
    dumped = dump(value, bound_fields, **kwargs)
    config_files.reset()
    return load(dumped)


def test_what_has_a_name_brings_its_bindings():
    config_files.parse_config_text(CONF)
    arrived = shipped(functools.partial(Machine, Gearbox))
    assert arrived.value().powers() == [2]
    assert arrived.has_config


def test_without_the_configuration_there_are_defaults():
    config_files.parse_config_text(CONF)
    arrived = shipped(Machine(Gearbox), with_config=False)
    assert arrived.value.powers() == [1]
    assert not arrived.has_config
    assert arrived.config_scope == ""


def test_nothing_configured_is_sent_as_it_is():
    arrived = shipped(Machine(Gearbox, name="a"))
    assert arrived.value == Machine(Gearbox, name="a")
    assert not arrived.has_config


@pytest.mark.parametrize("scope", ["", "left", "left/inner"])
def test_references_with_a_scope_are_taken_from_the_configuration(scope):
    prefix = f"{scope}/" if scope else ""
    config_files.parse_config_text(
        CONF
        + f"{prefix}Machine.motor_ctor = @strong/Gearbox\n"
        + f"{prefix}Machine.motor_ctors = [@weak/Gearbox, @Gearbox]\n"
    )
    with gin.config_scope(scope or None):
        machine = Machine(name="a")
        assert machine.powers() == [30, 4, 2]
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pickle.dumps(machine)
        arrived = shipped(machine, FIELDS)
    assert arrived.config_scope == scope
    assert arrived.value.name == "a"
    assert arrived.value.powers() == [30, 4, 2]


def test_the_binding_of_an_outer_scope_is_found():
    config_files.parse_config_text(CONF + "left/Machine.motor_ctor = @strong/Gearbox\n")
    with gin.config_scope("left/inner"):
        machine = Machine()
        arrived = shipped(machine, FIELDS)
    assert arrived.value.powers() == [30]


def test_only_what_the_configuration_binds_is_taken_from_there():
    config_files.parse_config_text(CONF + "Machine.motor_ctor = @strong/Gearbox\n")
    machine = Machine(motor_ctors=(lambda: Gearbox(5),))
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        dump(machine, FIELDS)


def test_what_was_bound_but_not_used_is_not_sent_in_its_place():
    config_files.parse_config_text(CONF + "Machine.motor_ctor = @strong/Gearbox\n")
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        dump(Machine(motor_ctor=lambda: Gearbox(5)), FIELDS)
    # A name travels although something else is bound.
    assert shipped(Machine(motor_ctor=Gearbox), FIELDS).value.powers() == [2]


def test_lambdas_are_refused_by_pickle_itself():
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        dump(Machine(lambda: Gearbox(3)), FIELDS)


def test_what_this_process_has_read_already_is_not_read_again(monkeypatch):
    config_files.parse_config_text(CONF)
    dumped = dump(Machine(Gearbox))
    monkeypatch.setattr(config_files, "reset", lambda: pytest.fail("reset"))
    assert load(dumped).value.powers() == [2]


def test_another_configuration_is_replaced():
    config_files.parse_config_text(CONF)
    dumped = dump(Machine(Gearbox))
    config_files.reset()
    config_files.parse_config_text("Gearbox.power = 9\nMachine.name = 'old'\n")
    assert load(dumped).value.powers() == [2]
    assert Machine().name == ""


def test_what_the_other_process_used_is_not_reported_as_forgotten():
    config_files.parse_config_text(CONF)
    dumped = dump(Machine(Gearbox))
    config_files.reset()
    load(dumped).value.powers()  # in the other process
    used = config_shipping.export_config_use()
    config_files.reset()
    config_files.parse_config_text(CONF)
    assert any("Gearbox.power" in name for name in config_files.unused_bindings())
    config_shipping.import_config_use(pickle.loads(pickle.dumps(used)))
    forgotten = " ".join(config_files.unused_bindings())
    assert "strong/Gearbox.power" in forgotten
    assert len(config_files.unused_bindings()) == 2
    config_shipping.import_config_use(None)  # it had read none


@pytest.mark.parametrize("name", ["__main__", "other"])
def test_only_what_is_defined_in_the_main_module_needs_it(name):
    assert config_shipping.needs_main_module(f"x{name}x".encode()) == (
        name == "__main__"
    )
