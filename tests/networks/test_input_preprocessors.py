from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.config import files as config_files
from alf_lite.errors import ConfigError
from alf_lite.fast.chains import layers_of
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.impala_networks import ImpalaEncodingNetwork
from alf_lite.networks.input_preprocessors import SelectedElements, output_spec_of
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

IMAGE = BoundedTensorSpec((16, 16, 3), torch.uint8, 0, 255)
SPEC = {
    "arm": {"position": TensorSpec((3,)), "velocity": TensorSpec((2,))},
    "image": IMAGE,
    "kind": BoundedTensorSpec((), torch.int64, 2, 4),
}
Small = functools.partial(EncodingNetwork, fc_layer_params=(6,))


class Doubled(nn.Module):
    """A module of one's own, which does not say how many features it gives."""

    def __init__(self, spec):
        super().__init__()
        self.ndim = spec.ndim

    def forward(self, x):
        return 2 * x.float().flatten(x.ndim - self.ndim) if self.ndim else x[..., None]


def sample(*outer):
    return nest.map_structure(lambda spec: spec.sample(outer), SPEC)


@pytest.mark.parametrize("outer", [(5,), (2, 3)])
def test_leaves_are_encoded_by_what_is_named_for_them(outer):
    network = EncodingNetwork(
        SPEC,
        fc_layer_params=(),
        input_preprocessors={"arm.velocity": Doubled, "image": Small},
    )
    x = sample(*outer)
    features, _ = network(x)
    position, velocity, image, kind = features.split([3, 2, 6, 3], dim=-1)
    assert position.equal(x["arm"]["position"])
    assert velocity.equal(2 * x["arm"]["velocity"])
    assert image.equal(network._encoders[2]._module(x["image"])[0])
    assert kind.equal(torch.eye(3)[x["kind"] - 2])


@pytest.mark.parametrize(
    ("combiner", "join"),
    [
        ("sum", lambda parts: sum(parts)),
        ("multiply", lambda parts: torch.stack(parts).prod(0)),
        (torch.cat, None),
        (lambda parts: torch.stack(parts).amax(0), lambda p: torch.stack(p).amax(0)),
    ],
)
def test_features_are_joined_as_the_combiner_says(combiner, join):
    names = ["arm.position", "arm.velocity", "image", "kind"]
    make = functools.partial(
        EncodingNetwork,
        SPEC,
        fc_layer_params=(),
        input_preprocessors=dict.fromkeys(names, Small),
        combiner=combiner,
    )
    if join is None:
        with pytest.raises(
            ValueError, match=r"combiner: expected features .* \(8, 6\)"
        ):
            make()
        return
    network, x = make(), sample(5)
    parts = [
        encoder(leaf)
        for encoder, leaf in zip(network._encoders, nest.flatten(x), strict=True)
    ]
    torch.testing.assert_close(network(x)[0], join(parts))
    assert network.output_size == 6


def test_an_observation_that_is_one_leaf_is_called_observation():
    network = EncodingNetwork(
        TensorSpec((3,)),
        fc_layer_params=(4,),
        input_preprocessors={"observation": Doubled},
    )
    x = torch.randn(5, 3)
    assert network(x)[0].equal(network._mlp(2 * x))
    assert layers_of(network) is None


def test_a_conf_chooses_preprocessors():
    with config_files.own_config():
        config_files.parse_config_text(
            """
            ValueNetwork.encoding_network_ctor = @all/EncodingNetwork
            all/EncodingNetwork.input_preprocessors = {
                "image": @ImpalaEncodingNetwork, "kind": @kind/EncodingNetwork}
            kind/EncodingNetwork.fc_layer_params = (7,)
            ImpalaEncodingNetwork.channels = (4, 5)
            ImpalaEncodingNetwork.fc_layer_params = (8,)
            """
        )
        network = ValueNetwork(SPEC)
    sizes = [encoder.output_size for encoder in network._encoder._encoders]
    assert sizes == [3, 2, 8, 7]
    assert network(sample(5))[0].shape == (5,)


def test_mistakes_are_named():
    with pytest.raises(
        ConfigError, match=r"no leaf 'arm.positions'.* Did you mean 'arm.position'"
    ):
        EncodingNetwork(SPEC, input_preprocessors={"arm.positions": Small})
    with pytest.raises(ConfigError, match=r"\['image'\] must build a network .* int"):
        EncodingNetwork(SPEC, input_preprocessors={"image": lambda spec: 3})
    with pytest.raises(ConfigError, match=r"\['kind'\] has a state"):
        EncodingNetwork(SPEC, input_preprocessors={"kind": LSTMEncodingNetwork})
    with pytest.raises(ConfigError, match=r"\['image'\] must give features .*16, 3"):
        EncodingNetwork(SPEC, input_preprocessors={"image": lambda spec: nn.Identity()})
    with pytest.raises(ValueError, match=r"'sum': .*'observation.arm.position': 3"):
        EncodingNetwork(SPEC, combiner="sum")
    with pytest.raises(ValueError, match=r"'summ'. Did you mean 'sum'\?"):
        EncodingNetwork(SPEC, combiner="summ")


def test_asking_for_the_output_leaves_modes_and_random_numbers_alone():
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    module[0].eval()
    before = torch.random.get_rng_state()
    assert output_spec_of(module, TensorSpec((3,))) == TensorSpec((4,))
    assert torch.random.get_rng_state().equal(before)
    assert [module.training, module[0].training, module[1].training] == [1, 0, 1]


def test_the_impala_network_is_that_of_a_naive_forward_pass():
    torch.manual_seed(0)
    network = ImpalaEncodingNetwork(IMAGE, channels=(4, 5), fc_layer_params=(7,))
    x = IMAGE.sample((2, 3))
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 10
    following = iter(convolutions)
    y = x.flatten(0, 1).movedim(-1, 1) / 255
    for _ in range(2):
        y = nn.functional.max_pool2d(next(following)(y), 3, 2, 1)
        for _ in range(2):
            first, second = next(following), next(following)
            y = y + second(first(y.relu()).relu())
    expected = network._mlp(y.relu().flatten(1)).unflatten(0, (2, 3))
    torch.testing.assert_close(network(x)[0], expected)
    assert (y.shape[1:], network.output_size) == ((5, 4, 4), 7)
    with pytest.raises(ValueError, match=r"expected one image.*input_preprocessors"):
        ImpalaEncodingNetwork(SPEC)


def test_an_element_that_is_not_selected_is_not_seen():
    network = EncodingNetwork(
        SPEC,
        fc_layer_params=(),
        input_preprocessors={
            "arm.position": functools.partial(SelectedElements, indices=[2, 0]),
            "arm.velocity": SelectedElements,
            "kind": functools.partial(SelectedElements, indices=[0]),
            "image": Small,
        },
    )
    x = sample(5)
    features, _ = network(x)
    position, _image, kind = features.split([2, 6, 1], dim=-1)
    assert position.equal(x["arm"]["position"][:, [2, 0]])
    assert kind[:, 0].equal(x["kind"].float())


@pytest.mark.parametrize("indices", [[2], [-1]])
def test_elements_that_are_not_there_are_refused(indices):
    with pytest.raises(ConfigError, match="from 0 to 1, got"):
        SelectedElements(SPEC["arm"]["velocity"], indices)
