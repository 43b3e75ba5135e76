"""Which bodies have twins, and who never meets one."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch
from torch import Tensor

from alf_lite import fast
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils import losses
from tests.fast.twins import watched, without_twins
from tests.source_code import PACKAGE, ROOT

ROW = "ValueNetwork.forward"
MEAN = "losses._masked_mean"


class Derived(ValueNetwork):
    pass


def value_network(cls=ValueNetwork) -> ValueNetwork:
    return cls(TensorSpec((3,)))


def test_every_row_names_a_body_and_a_twin():
    modules: dict[str, str] = {}  # by their names, and by those of their classes
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names = re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.M)
        modules |= dict.fromkeys([path.stem, *names], module)
    for row in fast.TWINS:
        assert callable(fast._load(row)), row
        module, owner, name = f".{row}".rsplit(".", 2)
        found = importlib.import_module(module.lstrip(".") or modules[owner])
        body = getattr(getattr(found, owner, found), name)
        if name not in ("preprocess_experience", "step"):  # asked for by twin_of
            assert fast.torch_body(body) is not body, row


def test_only_the_very_type_has_a_twin():
    with watched() as ran, torch.no_grad():
        value_network()(torch.zeros(2, 3))
        assert ran == {ROW: 1}
        value_network(Derived)(torch.zeros(2, 3))
        valid = torch.ones(4, dtype=torch.bool)
        losses.masked_mean(torch.zeros(4), valid)
        losses.masked_mean(torch.zeros(4).as_subclass(torch.nn.Buffer), valid)
    assert ran == {ROW: 1, MEAN: 1}


def test_an_object_of_which_a_method_was_replaced_has_none():
    network = value_network()
    assert fast.twin_of(network, "forward") is not None
    network.number = 3
    assert fast.twin_of(network, "forward") is not None
    network.initial_state = lambda batch_size: ()
    assert fast.twin_of(network, "forward") is None
    del network.initial_state
    assert fast.twin_of(network, "forward") is not None
    assert fast.is_exactly(network, ValueNetwork, Derived)
    assert not fast.is_exactly(value_network(Derived), ValueNetwork)


def test_other_devices_and_precisions_have_none():
    valid = torch.ones(4, dtype=torch.bool)
    with watched() as ran:
        losses.masked_mean(torch.zeros(4).double(), valid)
        losses.masked_mean(torch.zeros(4, device="meta"), valid.to("meta"))
        with torch.no_grad():
            value_network().to("meta")(torch.zeros(2, 3, device="meta"))
            value_network().bfloat16()(torch.zeros(2, 3, dtype=torch.bfloat16))
    assert not any(ran.values())


def test_arguments_may_be_given_by_name():
    network, x = value_network(), torch.randn(2, 3)
    with torch.no_grad():
        found, state = network(x, state=())
        with without_twins():
            expected, _ = network(inputs=x)
    torch.testing.assert_close(found, expected)
    assert state == ()


@pytest.mark.parametrize(("value", "is_empty"), [("0", True), ("1", False)])
def test_the_table_is_empty_where_the_environment_says_so(monkeypatch, value, is_empty):
    monkeypatch.setenv("ALF_LITE_FAST", value)
    spec = importlib.util.spec_from_file_location("another_fast", fast.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (not module.TWINS) is is_empty


def test_a_compiled_body_is_torchs_own():
    def body(x: Tensor) -> Tensor:
        return x if fast.twin_of(network, "forward") is None else x + 1

    network = value_network()
    compiled = torch.compile(body, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), torch.zeros(2))
