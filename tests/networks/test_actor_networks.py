from __future__ import annotations

import math

import pytest
import torch

from alf_lite import nest
from alf_lite.config.files import parse_config, reset
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.continuous import (
    DiagonalNormal,
    ScaledBeta,
    SquashedNormal,
)
from alf_lite.distributions.discrete import (
    Categorical,
    MultiBernoulli,
    MultiCategorical,
)
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    ActorNetwork,
    NormalActorNetwork,
    SquashedActorNetwork,
    make_projection,
)
from alf_lite.networks.continuous_projections import NormalProjection
from alf_lite.networks.encoding_networks import EncoderNetwork
from alf_lite.networks.recurrent_networks import (
    GRUEncodingNetwork,
    LSTMEncodingNetwork,
)
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

VECTOR = TensorSpec((4,))
DISCRETE = BoundedTensorSpec((), torch.int64, 0, 1)
NESTED_ACTION = {
    "move": BoundedTensorSpec((2,), torch.float32, -1, 1),
    "buttons": (BoundedTensorSpec((3,), torch.int8, 0, 1), DISCRETE),
}
BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
UNIT_BOX = BoundedTensorSpec((2,), torch.float32, -1.0, 1.0)


def test_nested_action_gives_a_nest_of_its_structure():
    network = ActorDistributionNetwork(
        VECTOR, NESTED_ACTION, continuous_projection="tanh_normal"
    )
    policy, _ = network(torch.randn(8, 4))
    assert type(policy["move"]) is SquashedNormal
    assert type(policy["buttons"][0]) is MultiBernoulli
    assert type(policy["buttons"][1]) is Categorical
    actions = distributions.sample(policy)
    assert nest.map_structure(lambda t: TensorSpec(t.shape[1:], t.dtype), actions) == (
        nest.map_structure(lambda s: TensorSpec(s.shape, s.dtype), NESTED_ACTION)
    )
    log_prob = distributions.log_prob(policy, actions)
    assert log_prob.shape == (8,)
    (log_prob + distributions.entropy(policy)).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name


def test_action_nest_with_one_part_stays_a_nest():
    policy, _ = ActorDistributionNetwork(VECTOR, [DISCRETE])(torch.randn(8, 4))
    assert isinstance(policy, list)


@pytest.mark.parametrize("encoder", [LSTMEncodingNetwork, GRUEncodingNetwork])
@pytest.mark.parametrize(
    ("kind", "action"), [(ActorDistributionNetwork, DISCRETE), (ActorNetwork, 3)]
)
def test_recurrent_policy_passes_its_state_on(encoder, kind, action):
    network = kind(VECTOR, action, encoding_network_ctor=encoder)
    state = network.initial_state(8)
    assert not nest.is_empty(network.state_spec)
    x = torch.randn(8, 4)
    first, state = network(x, state)
    second, _ = network(x, state)
    for a, b in zip(nest.flatten(first), nest.flatten(second), strict=True):
        assert not torch.equal(a, b)


def test_stored_policy_reproduces_the_rollout():
    torch.manual_seed(0)
    network = ActorDistributionNetwork(VECTOR, DISCRETE)
    x = torch.randn(5, 3, 4)  # [T, B, ...]
    with torch.inference_mode():
        steps = [network(x[t])[0] for t in range(5)]
        stored = nest.stack(steps)
    policy, _ = network(x.reshape(15, 4))
    torch.testing.assert_close(stored.logits.reshape(15, 2), policy.logits.detach())


def test_policy_head_is_small_and_hidden_layers_are_not():
    network = ActorDistributionNetwork(VECTOR, DISCRETE)
    weights = [p for n, p in network.named_parameters() if n.endswith("weight")]
    norms = [torch.linalg.matrix_norm(w, 2).item() for w in weights]
    assert norms == pytest.approx([2**0.5, 2**0.5, 0.01], rel=1e-4)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()


def test_options_reach_encoder_and_heads():
    image = BoundedTensorSpec((20, 20, 3), torch.uint8, 0, 255)
    network = ActorDistributionNetwork(
        image,
        BoundedTensorSpec((2,), torch.float32, -1, 1),
        fc_layer_params=(12,),
        activation="relu",
        conv_layer_params=((4, 4, 4),),
        state_dependent_std=True,
        initial_log_std=-1.0,
    )
    text = str(network)
    assert "Conv2d(3, 4, kernel_size=(4, 4), stride=(4, 4))" in text
    assert "in_features=100, out_features=12" in text
    assert "Tanh" not in text
    policy, _ = network(torch.zeros(1, 20, 20, 3, dtype=torch.uint8))
    torch.testing.assert_close(policy.scale, torch.full((1, 2), -1.0).exp())


def test_conf_binds_the_actor_or_its_encoder():
    parse_config(
        None,
        [
            "ActorDistributionNetwork.encoding_network_ctor = @LSTMEncodingNetwork",
            "ActorDistributionNetwork.continuous_projection = 'beta'",
            "LSTMEncodingNetwork.fc_layer_params = (12,)",
            "LSTMEncodingNetwork.hidden_size = (7,)",
        ],
        strict=True,
    )
    try:
        network = ActorDistributionNetwork(VECTOR, NESTED_ACTION)
        explicit = ActorDistributionNetwork(VECTOR, NESTED_ACTION, fc_layer_params=(5,))
    finally:
        reset()
    assert "in_features=4, out_features=12" in str(network)
    assert "LSTMCell(12, 7)" in str(network)
    assert "BetaProjection" in str(network)
    assert "LSTMCell(5, 7)" in str(explicit)


def test_own_encoder_needs_no_options():
    class Double(EncoderNetwork):
        output_size = 4

        def forward(self, inputs, state=()):
            return 2 * inputs, state

    network = ActorDistributionNetwork(VECTOR, DISCRETE, encoding_network_ctor=Double)
    x = torch.randn(2, 4)
    policy, _ = network(x)
    torch.testing.assert_close(policy.logits, network._head._linear(2 * x))


@pytest.mark.parametrize(
    ("observation_spec", "action_spec", "message"),
    [
        (VECTOR, (), "action_spec: expected at least one TensorSpec"),
        (VECTOR, {"arm": TensorSpec((), torch.int64)}, r"^action\.arm: expected b"),
        (VECTOR, TensorSpec((), torch.int64), "^action: expected bounds"),
        ({"x": TensorSpec((), torch.int64)}, DISCRETE, r"^observation\.x: expect"),
    ],
)
def test_unsupported_specs_are_named(observation_spec, action_spec, message):
    with pytest.raises(ValueError, match=message):
        ActorDistributionNetwork(observation_spec, action_spec)


@pytest.mark.ci
def test_acting_traces_without_a_graph_break():
    network = ActorDistributionNetwork(VECTOR, NESTED_ACTION)

    def act(x):
        policy, _ = network(x)
        action = distributions.sample(policy)
        return policy, action, distributions.log_prob(policy, action)

    compiled = torch.compile(act, fullgraph=True, backend="eager")
    x = torch.randn(8, 4)
    policy, action, log_prob = compiled(x)
    expected, _ = network(x)
    torch.testing.assert_close(policy["move"].loc, expected["move"].loc)
    torch.testing.assert_close(log_prob, distributions.log_prob(expected, action))


def test_continuous_actions_stay_between_their_bounds():
    network = SquashedActorNetwork(VECTOR, BOX)
    policy, _ = network(10 * torch.randn(500, 4))
    assert isinstance(policy, SquashedNormal)
    assert policy.scale.std(0).min() > 0  # depends on the observation
    action = distributions.sample(policy)
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0])
    assert ((low <= action) & (action <= high)).all()
    assert action.std(0).min() > 0.1


def test_the_deviation_does_not_depend_on_the_observation():
    network = NormalActorNetwork(VECTOR, UNIT_BOX, initial_log_std=-1.0)
    policy, _ = network(5 * torch.randn(20, 4))
    assert isinstance(policy, DiagonalNormal)
    torch.testing.assert_close(policy.scale, torch.full((20, 2), -1.0).exp())
    assert policy.loc.std(0).min() > 0
    policy.log_prob(torch.ones(20, 2)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_discrete_parts_are_categorical_and_actions_may_be_unbounded():
    network = NormalActorNetwork(VECTOR, {"move": TensorSpec((2,)), "gear": CHOICE})
    policy, _ = network(torch.randn(3, 4))
    assert isinstance(policy["gear"], Categorical)
    assert isinstance(policy["move"], DiagonalNormal)


def test_actions_are_the_tanh_of_a_linear_layer():
    torch.manual_seed(0)
    network = ActorNetwork(VECTOR, 3)
    x = 100 * torch.randn(8, 4)
    action, state = network(x)
    assert action.shape == (8, 3)
    assert state == ()
    torch.testing.assert_close(action, network._linear(network._encoder(x)[0]).tanh())


def test_actions_start_close_to_the_middle_and_never_leave_the_box():
    network = ActorNetwork(VECTOR, 3)
    assert network(torch.randn(100, 4))[0].abs().max() < 0.1
    with torch.no_grad():
        network._linear.weight.mul_(1e4)
    assert network(torch.randn(100, 4))[0].abs().max() <= 1


FEATURES = 16


def bounded(shape, dtype, minimum, maximum):
    return BoundedTensorSpec(shape, dtype, minimum, maximum)


DISCRETE_PARTS = [
    (bounded((), torch.int64, 0, 1), Categorical),
    (bounded((), torch.int64, 5, 6), Categorical),
    (bounded((), torch.int32, -1, 3), Categorical),
    (bounded((), torch.int64, 0, 0), Categorical),
    (bounded((3,), torch.int64, 0, [1, 4, 2]), MultiCategorical),
    (bounded((2, 2), torch.int64, 1, 3), MultiCategorical),
    (bounded((1,), torch.int64, 5, 6), MultiCategorical),
    (bounded((4,), torch.int8, 0, 1), MultiBernoulli),
    (bounded((2, 3), torch.int64, 0, 1), MultiBernoulli),
    (TensorSpec((4,), torch.bool), MultiBernoulli),
    (TensorSpec((), torch.bool), MultiBernoulli),
]
CONTINUOUS = [
    bounded((), torch.float32, -1, 1),
    bounded((1,), torch.float32, -1, 1),
    bounded((3,), torch.float32, [-1, 0, -5], [1, 5, -4]),
    bounded((2, 2), torch.float32, -1, 1),
]
PROJECTIONS = {
    "normal": DiagonalNormal,
    "tanh_normal": SquashedNormal,
    "beta": ScaledBeta,
}


def check_action(action, spec, batch_shape):
    assert action.shape == (*batch_shape, *spec.shape)
    assert action.dtype == spec.dtype
    if isinstance(spec, BoundedTensorSpec):
        assert (action >= torch.tensor(spec.minimum)).all()
        assert (action <= torch.tensor(spec.maximum)).all()


@pytest.mark.parametrize("batch_shape", [(200,), (7, 30)])
@pytest.mark.parametrize(("spec", "expected"), DISCRETE_PARTS)
def test_discrete_actions_lie_in_the_spec(spec, expected, batch_shape):
    torch.manual_seed(0)
    distribution = make_projection("a", spec, FEATURES)(
        torch.randn(*batch_shape, FEATURES)
    )
    assert type(distribution) is expected
    assert distribution.batch_shape == batch_shape
    assert distribution.event_shape == spec.shape
    action = distribution.sample()
    check_action(action, spec, batch_shape)
    check_action(distribution.mode, spec, batch_shape)
    if isinstance(spec, BoundedTensorSpec):
        flat = action.reshape(-1, spec.numel)
        low, high = spec.minimum.reshape(-1), spec.maximum.reshape(-1)
        for i in range(spec.numel):
            assert set(flat[:, i].tolist()) == set(range(low[i], high[i] + 1))
    assert distribution.log_prob(action).shape == batch_shape
    assert distribution.entropy().shape == batch_shape


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("spec", CONTINUOUS)
@pytest.mark.parametrize("batch_shape", [(20,), (3, 20)])
def test_continuous_actions_have_the_shape_and_bounds(projection, spec, batch_shape):
    torch.manual_seed(0)
    head = make_projection("a", spec, FEATURES, continuous_projection=projection)
    distribution = head(torch.randn(*batch_shape, FEATURES))
    assert type(distribution) is PROJECTIONS[projection]
    assert distribution.batch_shape == batch_shape
    assert distribution.event_shape == spec.shape
    action = distribution.sample()
    assert action.shape == (*batch_shape, *spec.shape)
    if projection != "normal":
        check_action(action, spec, batch_shape)
        check_action(distribution.mode, spec, batch_shape)
    assert distribution.log_prob(action).shape == batch_shape
    assert distribution.entropy().shape == batch_shape
    (distribution.log_prob(action) + distribution.entropy()).sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


def test_discrete_policy_starts_nearly_uniform():
    head = make_projection("a", bounded((), torch.int64, 0, 3), FEATURES)
    probs = head(torch.randn(100, FEATURES)).probs
    torch.testing.assert_close(probs, torch.full((100, 4), 0.25), atol=0.02, rtol=0)


def test_std_is_a_parameter_or_a_function_of_the_features():
    spec = bounded((2,), torch.float32, -1, 1)
    features = torch.randn(5, FEATURES)
    fixed = make_projection("a", spec, FEATURES, initial_log_std=-0.5)
    scale = fixed(features).scale
    torch.testing.assert_close(scale, torch.full((5, 2), math.exp(-0.5)))
    assert {n for n, _ in fixed.named_parameters()} == {
        "_log_std",
        "_loc.weight",
        "_loc.bias",
    }
    varying = make_projection(
        "a", spec, FEATURES, initial_log_std=-0.5, state_dependent_std=True
    )
    scale = varying(features * 10).scale
    assert (scale.std(0) > 0).all()
    torch.testing.assert_close(scale.log().mean(), torch.tensor(-0.5), atol=0.2, rtol=0)


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize(("scale", "log_std"), [(1e4, 0.0), (1.0, -100), (1.0, 100)])
def test_extreme_features_and_parameters_stay_finite(projection, scale, log_std):
    spec = bounded((2,), torch.float32, -1, 1)
    head = make_projection("a", spec, FEATURES, continuous_projection=projection)
    if projection != "beta":
        head._log_std.data.fill_(log_std)
    distribution = head(torch.randn(5, FEATURES) * scale)
    at_edge = torch.tensor([[1.0, -0.5]]).expand(5, 2)
    loss = distribution.log_prob(distribution.sample()) + distribution.entropy()
    loss = loss + distribution.log_prob(at_edge)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert all(p.grad.isfinite().all() for p in head.parameters())


# Bad input


@pytest.mark.parametrize("projection", ["tanh_normal", "beta"])
@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((2,)),
        bounded((2,), torch.float32, [-1, -math.inf], 1),
        bounded((2,), torch.float32, [-1, 1], 1),
    ],
)
def test_bounded_projections_refuse_specs_without_a_box(projection, spec):
    with pytest.raises(ValueError, match=f"arm: '{projection}' needs finite bounds"):
        make_projection("arm", spec, 4, continuous_projection=projection)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TensorSpec((), torch.int64), "arm: expected bounds for a discrete action"),
        (bounded((), torch.int64, 0, 10**6), "arm: expected at most 100000"),
        (bounded((2,), torch.int64, -(2**62), 2**62), "arm: expected at most 100000"),
        (TensorSpec((0,)), "arm: expected at least one element"),
    ],
)
def test_unsupported_specs_are_refused_by_name(spec, message):
    with pytest.raises(ValueError, match=message):
        make_projection("arm", spec, 4)


def test_other_bad_arguments_are_refused():
    spec = TensorSpec((2,))
    for any_spec in (spec, bounded((), torch.int64, 0, 1)):
        with pytest.raises(ValueError, match="continuous_projection must be one of"):
            make_projection("arm", any_spec, 4, continuous_projection="gaussian")
    with pytest.raises(ValueError, match="initial_log_std: expected a value within"):
        NormalProjection(4, spec, initial_log_std=3.0)


def test_the_heads_of_a_nest_give_what_each_would_give_alone():
    specs = {
        "a": BoundedTensorSpec((), torch.int64, 0, 2),
        "b": BOX,
        "c": BoundedTensorSpec((2,), torch.int64, 1, 3),
        "d": BoundedTensorSpec((), torch.int64, 5, 6),
    }
    observation = torch.randn(3, 4)
    for options in ({}, {"state_dependent_std": True}):
        torch.manual_seed(0)
        network = ActorDistributionNetwork(VECTOR, specs, **options)
        policy, _ = network(observation)
        features, _ = network._encoder(observation)
        torch.manual_seed(0)
        type(network._encoder)(VECTOR)  # draws its weights before the heads do
        for name, spec in specs.items():
            head = make_projection(name, spec, network._encoder.output_size, **options)
            expected = head(features)
            for ours, theirs in zip(
                nest.flatten(policy[name]), nest.flatten(expected), strict=True
            ):
                torch.testing.assert_close(ours, theirs)
