import functools
from typing import NamedTuple

import gin
import pytest
import torch

from alf_lite import nest
from alf_lite.config import files as config_files
from alf_lite.errors import ConfigError
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec


class Observation(NamedTuple):
    camera: object = ()
    joints: object = ()


NESTED = {
    "z": Observation(
        camera=BoundedTensorSpec((40, 40, 3), torch.uint8, 0, 255),
        joints=TensorSpec((5,)),
    ),
    "room": BoundedTensorSpec((), torch.int64, 1, 4),
    "tools": (BoundedTensorSpec((2,), torch.int64, 0, [2, 3]), TensorSpec(())),
    "switches": BoundedTensorSpec((2, 2), torch.int8, 0, 1),
}


def test_plain_vector_goes_straight_into_the_mlp():
    network = EncodingNetwork(TensorSpec((4,)), fc_layer_params=(8, 6))
    x = torch.randn(3, 4)
    features, state = network(x)
    torch.testing.assert_close(features, network._mlp(x))
    assert features.shape == (3, network.output_size) == (3, 6)
    assert state == network.state_spec == ()
    assert len(list(network.parameters())) == 4


@pytest.mark.parametrize("outer", [(3,), (2, 3)])
def test_nested_observation_of_every_kind(outer):
    network = EncodingNetwork(NESTED, fc_layer_params=(16,))
    observation = nest.map_structure(lambda spec: spec.sample(outer), NESTED)
    features, _ = network(observation)
    assert features.shape == (*outer, 16)
    features.sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()


def test_features_are_joined_in_the_order_of_the_leaves():
    spec = {"b": TensorSpec((2,)), "a": BoundedTensorSpec((), torch.int64, 0, 2)}
    network = EncodingNetwork(spec, fc_layer_params=())
    features, _ = network({"b": torch.tensor([[5.0, 6.0]]), "a": torch.tensor([1])})
    assert features.tolist() == [[0.0, 1.0, 0.0, 5.0, 6.0]]
    assert network.output_size == 5


def test_every_leaf_influences_the_features():
    torch.manual_seed(0)
    network = EncodingNetwork(NESTED)
    observation = nest.map_structure(lambda spec: spec.zeros((1,)), NESTED)
    observation["room"] += 1
    before, _ = network(observation)
    for path, leaf in nest.flatten_with_path(observation):
        leaf += 1
        after, _ = network(observation)
        assert not torch.allclose(before, after), path
        before = after


def test_float64_input_leaves_the_parameters_float32():
    network = EncodingNetwork(TensorSpec((3,), torch.float64))
    features, _ = network(torch.randn(2, 3, dtype=torch.float64))
    assert features.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in network.parameters())


def test_image_alone_is_encoded_for_rollout_under_inference_mode():
    network = EncodingNetwork(BoundedTensorSpec((4, 84, 84), torch.uint8, 0, 255))
    with torch.inference_mode():
        features, _ = network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    assert features.shape == (2, 64)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ((), "input_spec: expected at least one TensorSpec"),
        (TensorSpec((), torch.int64), "^observation: expected bounds"),
        ({"arm": [TensorSpec((0,))]}, r"^observation\.arm\.0: expected at least"),
        (
            Observation(TensorSpec((), torch.int64)),
            r"^observation\.camera: expected bounds",
        ),
    ],
)
def test_unsupported_leaves_are_named(spec, message):
    with pytest.raises(ValueError, match=message):
        EncodingNetwork(spec)


def test_initial_state_of_a_network_without_memory_is_empty():
    assert EncodingNetwork(TensorSpec((4,))).initial_state(3) == ()


@pytest.mark.parametrize("encoder", [EncodingNetwork, LSTMEncodingNetwork])
def test_convolutions_without_an_image_are_refused(encoder):
    # An image of floats has its channels for a third dimension.
    for shape in ((4,), (12, 12)):
        with pytest.raises(ConfigError, match="conv_layer_params has no effect: no"):
            ValueNetwork(
                {"a": TensorSpec(shape)},
                conv_layer_params=((4, 3, 2),),
                encoding_network_ctor=encoder,
            )
    ValueNetwork(TensorSpec((12, 12, 1)), conv_layer_params=((4, 3, 2),))


IMAGE = BoundedTensorSpec((12, 12, 1), torch.uint8, 0, 255)
ROOM = BoundedTensorSpec((), torch.int64, 0, 3)


@pytest.mark.parametrize(
    ("binding", "with_use"),
    [
        ("conv_layer_params = ((4, 3, 2),)", IMAGE),
        ("conv_activation = 'tanh'", IMAGE),
        ("embedding_size = 8", ROOM),
        ("combiner = 'sum'", (TensorSpec((4,)), TensorSpec((4,)))),
    ],
)
def test_what_no_encoder_has_a_use_for_is_told_as_unused(binding, with_use):
    vector = TensorSpec((4,))
    for specs in ([vector, vector], [vector, with_use], [with_use, vector]):
        with config_files.own_config():
            config_files.parse_config_text(f"EncodingNetwork.{binding}")
            for spec in specs:
                EncodingNetwork(spec)
            told = config_files.unused_bindings()
        if with_use in specs:
            assert not told
        else:
            assert "nothing that was built has a use for it" in told[0]
    assert not config_files.unused_bindings()


def test_a_body_without_layers_to_take_the_place_of_is_none():
    vector, image = TensorSpec((4,)), TensorSpec((12, 12, 1))
    without_layers = functools.partial(EncodingNetwork, fc_layer_params=())
    for spec in (vector, image):
        for network, *more, options in (
            (EncodingNetwork, {"fc_layer_params": ()}),
            (ValueNetwork, {"fc_layer_params": ()}),
            (QNetwork, [3], {"encoding_network_ctor": without_layers}),
        ):
            with pytest.raises(ConfigError, match="body has no effect: fc_layer"):
                network(spec, *more, body="simba", **options)
        with pytest.raises(ConfigError, match="body has no effect: fc_layer"):
            body = functools.partial(EncodingNetwork, body="simba")
            CriticNetwork(spec, 2, encoding_network_ctor=body)
    for setting in ("body = 'simba'", "dropout = 0.1"):
        for with_layers in (False, True):
            with config_files.own_config():
                config_files.parse_config_text(f"EncodingNetwork.{setting}")
                CriticNetwork(vector, 2)
                LSTMEncodingNetwork(vector, fc_layer_params=(8,) * with_layers)
                assert len(config_files.unused_bindings()) == (not with_layers)


@pytest.mark.parametrize(
    "option", [{"layer_norm": True}, {"dropout": 0.1}, {"noise_std": 0.5}]
)
def test_no_layer_has_what_it_is_not_built_with(option):
    EncodingNetwork(ROOM, fc_layer_params=(8,), **option)
    with pytest.raises(ConfigError, match="has no effect: fc_layer_params is"):
        EncodingNetwork(ROOM, fc_layer_params=(), **option)


def test_a_use_in_another_scope_is_none():
    with config_files.own_config():
        config_files.parse_config_text("critic/EncodingNetwork.embedding_size = 8")
        EncodingNetwork(ROOM)
        with gin.config_scope("critic"):
            EncodingNetwork(TensorSpec((4,)))
        told = [line for line in config_files.unused_bindings() if "critic/Enc" in line]
        assert "nothing that was built" in told[0]
