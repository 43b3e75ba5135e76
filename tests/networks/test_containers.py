from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.config import files as config_files
from alf_lite.errors import ConfigError
from alf_lite.fast.chains import chain_of
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.containers import Branch, Parallel, Residual, Sequential
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.network import whole_sequences
from alf_lite.networks.recurrent_networks import (
    GRUEncodingNetwork,
    LSTMEncodingNetwork,
)
from alf_lite.networks.transformer_networks import GTrXLEncodingNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from tests.fast.twins import without_twins

VECTOR = TensorSpec((4,))
NEST = {"a": VECTOR, "b": {"c": TensorSpec((2,)), "d": TensorSpec((3,))}}
Small = functools.partial(EncodingNetwork, fc_layer_params=(6,))
Lstm = functools.partial(LSTMEncodingNetwork, hidden_size=(5,), fc_layer_params=())
Gru = functools.partial(GRUEncodingNetwork, hidden_size=(6,), fc_layer_params=())
Transformer = functools.partial(GTrXLEncodingNetwork, size=6, num_heads=2)


def of(spec, *shape):
    return nest.map_structure(lambda s: torch.randn(*shape, *s.shape), spec)


def test_sequential_feeds_each_part_with_what_the_one_before_gives():
    network = Sequential(VECTOR, [Small, lambda spec: nn.Linear(spec.shape[0], 3)])
    x = torch.randn(5, 4)
    first, second = network._parts
    assert network(x)[0].equal(second(first(x)[0]))
    assert (network.output_size, network.state_spec) == (3, ())
    assert network(x)[1] == ()


def test_side_by_side_parts_are_joined_as_the_combiner_says():
    x = torch.randn(5, 4)
    joins = {
        "concat": lambda a, b: torch.cat([a, b], -1),
        "sum": torch.add,
        "multiply": torch.mul,
        None: lambda a, b: (a, b),
    }
    for combiner, join in joins.items():
        network = Branch(VECTOR, [Small, Small], combiner)
        parts = [part(x)[0] for part in network._parts]
        output, _ = network(x)
        for a, b in zip(nest.flatten(output), nest.flatten(join(*parts)), strict=True):
            assert a.equal(b)
        assert nest.extract_spec(output) == network.output_spec
    named = Branch(VECTOR, {"x": Small, "y": Small}, None)
    assert set(named(x)[0]) == {"x", "y"}
    inputs = of(NEST, 5)
    network = Parallel(NEST, {"b": Small, "a": Small}, combiner=lambda parts: parts[0])
    assert network(inputs)[0].equal(network._parts[0](inputs["b"])[0])
    assert network.output_size == 6
    pair = Parallel((VECTOR, VECTOR), [Small, Small])
    assert pair((x, x))[0].shape == (5, 12)


def test_a_residual_adds_its_input():
    part = functools.partial(EncodingNetwork, fc_layer_params=(7, 4))
    network = Sequential(VECTOR, [functools.partial(Residual, parts=[part])] * 2)
    x = torch.randn(5, 4)
    expected = x
    for block in network._parts:
        expected = expected + block._parts[0](expected)[0]
    assert network(x)[0].equal(expected)
    with pytest.raises(ValueError, match=r"shape of the input, got .*\(6,\)"):
        Residual(VECTOR, [Small])


def deep(spec):
    """Memories within containers within containers."""
    branch = functools.partial(Branch, parts={"m": Gru, "f": Small}, combiner="sum")
    residual = functools.partial(Residual, parts=[Transformer])
    parts = {"a": Lstm, "b": functools.partial(Sequential, parts=[Small, branch])}
    return Sequential(
        spec,
        [functools.partial(Parallel, parts=parts, combiner="concat"), Small, residual],
    )


def test_states_of_all_parts_are_the_state_and_sequences_equal_steps():
    torch.manual_seed(0)
    network = deep(NEST)
    state = network.initial_state(3)
    nest.assert_same_structure(state, network.state_spec)
    xs = of(NEST, 7, 3)
    is_first = torch.rand(7, 3) < 0.3
    outputs, after = [], state
    for t in range(7):
        first = is_first[t]
        after = nest.map_structure(
            lambda s, first=first: torch.where(
                first.view(-1, *[1] * (s.ndim - 1)), 0.0, s
            ),
            after,
        )
        output, after = network(nest.map_structure(lambda x, t=t: x[t], xs), after)
        outputs.append(output)
    with whole_sequences(is_first):
        flat = nest.map_structure(lambda x: x.flatten(0, 1), xs)
        found, last = network(flat, state)
    torch.testing.assert_close(found, torch.cat(outputs))
    nest.map_structure(torch.testing.assert_close, last, after)
    found.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_containers_are_encoders_of_actors_values_and_critics():
    value = ValueNetwork(NEST, encoding_network_ctor=deep)
    output, state = value(of(NEST, 5), value.initial_state(5))
    assert output.shape == (5,)
    assert not nest.is_empty(state)
    # What the network says of sizes is for the first part.
    two = functools.partial(Sequential, parts=[EncodingNetwork, Small])
    network = ActorDistributionNetwork(
        VECTOR,
        BoundedTensorSpec((2,)),
        fc_layer_params=(9,),
        activation="relu",
        encoding_network_ctor=two,
    )
    sizes = [m.out_features for m in network.modules() if isinstance(m, nn.Linear)]
    assert sizes == [9, 6, 2]
    # Simple layers are a chain in numpy, whoever put them together.
    x = torch.randn(3, 4)
    with torch.no_grad():
        quick = network(x)[0].loc
        assert chain_of(network).prepared(x) is not None
    with torch.no_grad(), without_twins():
        torch.testing.assert_close(network(x)[0].loc, quick)


def test_a_conf_composes_networks():
    with config_files.own_config():
        config_files.parse_config_text(
            """
            QNetwork.encoding_network_ctor = @Sequential
            Sequential.parts = [@first/EncodingNetwork, @Residual, @Branch]
            first/EncodingNetwork.fc_layer_params = (8,)
            Residual.parts = [@same/EncodingNetwork]
            same/EncodingNetwork.fc_layer_params = (8,)
            Branch.parts = [@GRUEncodingNetwork, @first/EncodingNetwork]
            GRUEncodingNetwork.hidden_size = (5,)
            """
        )
        network = QNetwork(VECTOR, (3,))
    output, state = network(torch.randn(2, 4), network.initial_state(2))
    assert output.shape == (2, 1, 3, 1)
    assert [s.shape for s in nest.flatten(state)] == [(2, 5)]


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"no entry 'bb'. Did you mean 'b'\?"):
        Parallel(NEST, {"a": Small, "bb": Small})
    with pytest.raises(ConfigError, match="parts: there is none for b"):
        Parallel(NEST, {"a": Small})
    with pytest.raises(ValueError, match=r"combiner 'sum'.*'0': 6, '1': 5"):
        Branch(VECTOR, [Small, Lstm], "sum")
    with pytest.raises(ValueError, match=r"'maen'"):
        Branch(VECTOR, [Small], "maen")
    with pytest.raises(ConfigError, match=r"parts\[1\] must build .* got int"):
        Sequential(VECTOR, [Small, lambda spec: 3])
    with pytest.raises(
        ConfigError, match=r"parts\[0\] is a module already .* activation"
    ):
        Sequential(VECTOR, [nn.Linear(4, 3)], activation="relu")
    with pytest.raises(
        ConfigError, match=r"parts\[0\]: .*keyword argument 'activation'"
    ):
        Sequential(VECTOR, [lambda spec: nn.Linear(4, 3)], activation="relu")
    with pytest.raises(ConfigError, match="must build a network with an output_size"):
        ValueNetwork(
            VECTOR,
            encoding_network_ctor=lambda spec: Branch(spec, [Small], combiner=None),
        )
