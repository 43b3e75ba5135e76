"""Networks act and learn in numpy as they do in torch."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.fast import chains
from alf_lite.fast.chains import NumpyChain
from alf_lite.networks.actor_networks import ActorDistributionNetwork, ActorNetwork
from alf_lite.networks.containers import Sequential
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.input_encoders import NumberEncoder
from alf_lite.networks.projections import CategoricalProjection
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((5,))
NEST = {
    "arm": (TensorSpec((2,)), TensorSpec((1,))),
    "eye": TensorSpec((2,)),
}
KINDS = {
    "grid": BoundedTensorSpec((2, 2), torch.uint8, 0, 255),
    "number": TensorSpec(()),
    "kind": BoundedTensorSpec((2,), torch.int64, 1, 3),
    "flags": BoundedTensorSpec((3,), torch.bool, 0, 1),
}
normalizing = functools.partial(EncodingNetwork, layer_norm=True, activation="elu")


def box(shape):
    return BoundedTensorSpec(shape, minimum=-2.0, maximum=3.0)


def actor(action_spec, **options):
    return ActorDistributionNetwork(OBSERVATION, action_spec, **options)


def discrete(shape, maximum):
    return BoundedTensorSpec(shape, torch.int64, 0, maximum)


NETWORKS = {
    "categorical": lambda: actor(discrete((), 3)),
    "several categories": lambda: actor(discrete((3,), 2), activation="relu"),
    "binary": lambda: actor(BoundedTensorSpec((4,), torch.bool, 0, 1)),
    "normal": lambda: actor(box((2,))),
    "one number": lambda: actor(box(()), fc_layer_params=()),
    "beta": lambda: actor(box((2, 2)), continuous_projection="beta"),
    "squashed": lambda: actor(box((2,)), continuous_projection="tanh_normal"),
    "truncated": lambda: actor(box((2,)), continuous_projection="truncated_normal"),
    "cauchy": lambda: actor(box(()), continuous_projection="cauchy"),
    "mixture": lambda: actor(box((2, 2)), continuous_projection="tanh_mixture"),
    "one hot": lambda: actor(box((3,)), one_hot=True),
    "deterministic": lambda: ActorNetwork(OBSERVATION, 3, fc_layer_params=(9,)),
    "nest": lambda: actor({"a": box((2,)), "b": discrete((), 2), "c": discrete((), 4)}),
    "value": lambda: ValueNetwork(OBSERVATION, activation="relu"),
    "values": lambda: QNetwork(OBSERVATION, (4, 2), 3, head_fc_layer_params=(7,)),
    "elu": lambda: actor(box((2,)), activation="elu"),
    "gelu": lambda: actor(box((2,)), activation="gelu"),
    "leaky relu": lambda: ValueNetwork(OBSERVATION, activation="leaky_relu"),
    "silu": lambda: QNetwork(OBSERVATION, (3,), activation="silu"),
    "normalized": lambda: ValueNetwork(OBSERVATION, encoding_network_ctor=normalizing),
    "dueling": lambda: QNetwork(
        OBSERVATION, (4, 2), 3, dueling=True, encoding_network_ctor=normalizing
    ),
    "dueling streams": lambda: QNetwork(
        OBSERVATION, (3,), dueling=True, head_fc_layer_params=(7,)
    ),
    "parts": lambda: QNetwork(NEST, (3,), dueling=True),
    "kinds of parts": lambda: ValueNetwork(KINDS),
    "product of parts": lambda: ValueNetwork(
        {"a": OBSERVATION, "b": OBSERVATION},
        encoding_network_ctor=functools.partial(EncodingNetwork, combiner="multiply"),
    ),
    "parts in a container": lambda: ValueNetwork(
        NEST,
        encoding_network_ctor=functools.partial(
            Sequential, parts=[normalizing, EncodingNetwork]
        ),
    ),
}


@pytest.fixture
def evaluated(monkeypatch):
    """Batch sizes that were evaluated in numpy."""
    sizes = []
    call = NumpyChain.__call__

    def recorded(self, inputs):
        outputs = call(self, inputs)
        if outputs is not None:
            sizes.append(nest.batch_size(inputs))
        return outputs

    monkeypatch.setattr(NumpyChain, "__call__", recorded)
    return sizes


def in_torch(network):
    """A copy without a chain."""
    other = copy.deepcopy(network)
    vars(other)["_chain"] = NumpyChain([], other)
    return other


def assert_close(tree, expected, atol=1e-5):
    for a, b in zip(nest.flatten(tree), nest.flatten(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=atol)


def some_observations(network, batch_size):
    return nest.map_structure(
        lambda spec: (
            torch.randn(batch_size, *spec.shape)
            if spec.is_continuous
            else spec.sample((batch_size,))
        ),
        network.input_spec,
    )


def assert_alike(network, batch_size=6):
    observations = some_observations(network, batch_size)
    with torch.inference_mode():
        outputs, _ = network(observations)
    assert_close(outputs, in_torch(network)(observations)[0])


def loss_of(network, observations):
    outputs, _ = network(observations)
    return sum((leaf**2 * leaf.detach().cos()).sum() for leaf in nest.flatten(outputs))


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_outputs_are_those_of_torch(kind, evaluated):
    network = NETWORKS[kind]()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    for batch_size in (1, 6, 600):
        assert_alike(network, batch_size)
    assert evaluated == [1, 6, 600]


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_gradients_are_those_of_torch(kind, evaluated):
    network = NETWORKS[kind]()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    other = in_torch(network)
    cases = [(1, True, 0), (150, False, 0), (7, True, 2)]
    for batch_size, needs_input, frozen in cases:
        for net in (network, other):
            for i, parameter in enumerate(net.parameters()):
                parameter.requires_grad_(i >= frozen)
        observations = some_observations(network, batch_size)
        needs_input = needs_input and isinstance(observations, torch.Tensor)
        if needs_input:
            observations.requires_grad_()
        gradients = []
        for net in (network, other):
            wanted = [p for p in net.parameters() if p.requires_grad]
            if needs_input:
                wanted.append(observations)
            gradients.append(torch.autograd.grad(loss_of(net, observations), wanted))
        assert_close(*gradients, atol=1e-3)
    assert evaluated == [1, 150, 7]


class Doubling(EncodingNetwork):
    def forward(self, inputs, state=()):
        features, state = super().forward(inputs, state)
        return 2 * features, state


class Shifting(CategoricalProjection):
    def forward(self, features):
        return super().forward(features + 1)


def with_other_layer(network):
    network(torch.zeros(1, 5))
    network._advantage[0] = nn.Linear(64, 12)
    return network


def with_other_encoder(network):
    network(torch.zeros(1, 5))
    network._encoder = EncodingNetwork(OBSERVATION, fc_layer_params=(5,))
    if network._encoder.output_size != 64 and isinstance(network, QNetwork):
        network._encoder = EncodingNetwork(OBSERVATION)
    return network


def with_weight_norm(spec):
    return nn.utils.parametrizations.weight_norm(nn.Linear(spec.shape[0], 4))


def with_other_stream(network):
    network(some_observations(network, 1))
    network._value = nn.Sequential(nn.Linear(64, 1), nn.ReLU())
    return network


def with_other_part(network):
    network(some_observations(network, 1))
    network._encoder._encoders[0] = Halving(TensorSpec((2,)))
    return network


class Halving(NumberEncoder):
    def forward(self, x):
        return super().forward(x) / 2


class OwnElu(nn.ELU):
    def forward(self, x):
        return super().forward(x) + 1


def with_other_head(network):
    network._head = Shifting(64, discrete((), 3))
    return network


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueNetwork(OBSERVATION, encoding_network_ctor=Doubling),
        lambda: ValueNetwork(
            OBSERVATION,
            encoding_network_ctor=lambda spec: Sequential(spec, [Doubling]),
        ),
        lambda: with_other_head(NETWORKS["categorical"]()),
        lambda: with_other_layer(QNetwork(OBSERVATION, (4,), 3)),
        lambda: with_other_encoder(QNetwork(OBSERVATION, (4,), 3)),
        lambda: with_other_encoder(ValueNetwork(OBSERVATION, fc_layer_params=())),
        lambda: with_other_stream(QNetwork(NEST, (4,), dueling=True)),
        lambda: with_other_part(QNetwork(NEST, (4,), dueling=True)),
        lambda: ValueNetwork(
            OBSERVATION,
            encoding_network_ctor=functools.partial(EncodingNetwork, dropout=0.5),
        ).eval(),
        lambda: ValueNetwork(
            OBSERVATION,
            encoding_network_ctor=functools.partial(EncodingNetwork, batch_norm=True),
        ).eval(),
        lambda: ValueNetwork(OBSERVATION, activation="mish"),
        lambda: ValueNetwork(
            OBSERVATION,
            encoding_network_ctor=functools.partial(
                Sequential, parts=[EncodingNetwork, with_weight_norm]
            ),
        ),
        lambda: ValueNetwork(OBSERVATION, activation=OwnElu),
        lambda: ValueNetwork({"a": BoundedTensorSpec((), torch.int64, 0, 999)}),
        lambda: ValueNetwork(
            NEST,
            encoding_network_ctor=functools.partial(
                EncodingNetwork, combiner=lambda parts: torch.cat(parts, -1) ** 2
            ),
        ),
    ],
)
def test_what_is_not_a_chain_any_more_is_asked_itself(make, evaluated):
    network = make()
    evaluated.clear()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    for each in (network, copy.deepcopy(network)):
        assert_alike(each)
    assert evaluated == []


def first_linear(network):
    return next(m for m in network.modules() if isinstance(m, nn.Linear))


@pytest.mark.parametrize("norm", ["parametrization", "hook"])
@pytest.mark.parametrize("is_used_before", [False, True])
def test_a_weight_that_is_made_of_others_is_made_anew(norm, is_used_before, evaluated):
    network = ValueNetwork(OBSERVATION)
    if is_used_before:
        network(torch.randn(3, 5))
    evaluated.clear()
    layer = first_linear(network)
    if norm == "hook":
        with pytest.warns(FutureWarning, match="deprecated"):
            nn.utils.weight_norm(layer)
        gain = layer.weight_g
    else:
        nn.utils.parametrizations.weight_norm(layer)
        gain = layer.parametrizations.weight.original0
    observations = torch.randn(3, 5)
    network(observations)[0].sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    with torch.no_grad():
        before, _ = network(observations)
        gain.mul_(3)
        after, _ = network(observations)
    assert not torch.allclose(before, after)
    assert evaluated == []


def test_hooks_of_layers_are_called(evaluated):
    network = QNetwork(NEST, (3,), dueling=True, encoding_network_ctor=normalizing)
    observations = some_observations(network, 3)
    layers = network._encoder._mlp
    for module in (
        *(first_linear(network), layers[1], layers[2], network._value[0]),
        *(network._advantage[0], network._encoder._encoders[1]),
    ):
        seen = []
        handle = module.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        network(observations)
        with torch.no_grad():
            network(observations)
        handle.remove()
        assert seen == [1, 1]
    assert evaluated == []
    network(observations)
    assert evaluated == [3]


@pytest.mark.parametrize(
    ("layer", "setting", "value"),
    [
        (nn.ELU(), "alpha", 0.3),
        (nn.LeakyReLU(), "negative_slope", 0.4),
        (nn.LeakyReLU(), "negative_slope", -0.4),
        (nn.GELU(), "approximate", "tanh"),
        (nn.LayerNorm(64), "eps", 0.5),
    ],
    ids=str,
)
def test_settings_of_layers_may_change(layer, setting, value):
    encoder = functools.partial(Sequential, parts=[EncodingNetwork, layer])
    network = ValueNetwork(OBSERVATION, encoding_network_ctor=encoder)
    if not isinstance(layer, nn.LayerNorm):
        network = ValueNetwork(OBSERVATION, activation=layer)
    assert_alike(network)
    for module in network.modules():
        if type(module) is type(layer):
            setattr(module, setting, value)
    assert_alike(network)


def test_parts_with_a_gradient_get_it():
    network = QNetwork(NEST, (3,))
    other = in_torch(network)
    observations = some_observations(network, 4)
    leaves = nest.flatten(observations)
    for leaf in leaves:
        leaf.requires_grad_()
    slopes = [
        torch.autograd.grad(loss_of(net, observations), leaves)
        for net in (network, other)
    ]
    assert_close(*slopes)


def test_activations_overwrite_nothing_that_others_have(evaluated):
    """What was put together in another order is torch's."""
    for parts in (
        [nn.ReLU(), EncodingNetwork],
        [nn.Tanh()],
        [nn.ELU(), nn.LayerNorm(5)],
    ):
        encoder = functools.partial(Sequential, parts=parts)
        network = ValueNetwork(OBSERVATION, encoding_network_ctor=encoder)
        observations = torch.randn(3, 5)
        before = observations.clone()
        with torch.no_grad():
            network(observations)
        assert torch.equal(observations, before)
    assert not evaluated


@pytest.mark.parametrize("kind", ["normal", "elu", "dueling", "dueling streams"])
def test_gradients_have_gradients(kind):
    network = NETWORKS[kind]()
    observations = torch.randn(3, 5, requires_grad=True)
    penalties = []
    for net in (network, in_torch(network)):
        loss = loss_of(net, observations)
        (slope,) = torch.autograd.grad(loss, observations, create_graph=True)
        wanted = [p for p in net.parameters() if p.ndim > 1]
        penalties.append(torch.autograd.grad(slope.square().sum(), wanted))
    assert_close(*penalties, atol=1e-3)


def test_parameters_that_changed_before_the_gradient_are_noticed():
    network = ValueNetwork(OBSERVATION)
    values, _ = network(torch.randn(3, 5))
    with torch.no_grad():
        next(network.parameters()).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values.sum().backward()


def test_a_layer_that_is_appended_later_is_seen(evaluated):
    network = QNetwork(OBSERVATION, (4,), 3)
    assert_alike(network)
    network._encoder._mlp.append(nn.Tanh())
    evaluated.clear()
    assert_alike(network)
    assert evaluated == []


def test_autocast_is_left_to_torch(evaluated):
    network = QNetwork(OBSERVATION, (4,), 3)
    observations = torch.randn(6, 5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs, _ = network(observations)
    assert outputs.dtype == torch.bfloat16
    assert not evaluated


def test_transforms_of_functions_are_left_to_torch(evaluated):
    network = actor(box((2,)))

    def mean(observation):
        return network(observation.unsqueeze(0))[0].loc.sum()

    observations = torch.randn(3, 5)
    slopes = torch.func.vmap(torch.func.grad(mean))(observations)
    assert slopes.shape == (3, 5)
    assert not evaluated


@pytest.mark.parametrize(
    "network",
    [
        actor({"a": box((2,)), "b": discrete((), 2)}, state_dependent_std=True),
        actor(box((2,)), state_dependent_std=True),
        actor(box((2,)), activation="mish"),
        actor(box((2,))).double().float().bfloat16().float().double(),
    ],
    ids=["nest", "two layers", "mish", "double"],
)
def test_other_networks_are_left_to_torch(network, evaluated):
    dtype = next(network.parameters()).dtype
    with torch.no_grad():
        network(torch.randn(3, 5, dtype=dtype))
    assert not evaluated


def test_nothing_is_said_of_numbers_that_are_not_finite(evaluated):
    network = actor(box((2,)))
    for number in (torch.nan, torch.inf):
        with torch.no_grad():
            distribution, _ = network(torch.full((3, 5), number))
        assert distribution.loc.isnan().any()
    assert evaluated == [3, 3]


def test_observations_with_a_gradient_are_left_to_torch(evaluated):
    network = actor(box((2,)))
    with torch.no_grad():
        network(torch.randn(3, 5, requires_grad=True))
    assert not evaluated


def test_what_is_large_is_left_to_torch_where_there_are_threads(evaluated, monkeypatch):
    monkeypatch.setattr(chains, "is_single_threaded", lambda: False)
    network = actor(box((2,)), fc_layer_params=(512, 512))
    with torch.no_grad():
        network(torch.randn(chains._MAX_ROWS + 1, 5))
        network(torch.randn(2, 5))
        network(torch.randn(3, 2, 5))
    assert not evaluated


def test_it_follows_the_parameters_wherever_they_go(evaluated):
    network = actor(discrete((), 3))
    assert_alike(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3)
    assert_alike(network)
    network.share_memory()
    assert_alike(network)
    last = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    last.bias = nn.Parameter(last.bias.detach() + 1)
    assert_alike(network)
    network.load_state_dict(NETWORKS["categorical"]().state_dict(), assign=True)
    assert_alike(network)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.5)
        assert_alike(other)
        assert_alike(network)
    assert len(evaluated) == 9
