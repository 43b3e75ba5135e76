from __future__ import annotations

import pytest
import torch

from alf_lite import nest
from alf_lite.config.files import parse_config, reset
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.continuous import DiagonalNormal, SquashedNormal
from alf_lite.distributions.discrete import Categorical, MultiBernoulli
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    ActorNetwork,
    NormalActorNetwork,
    SquashedActorNetwork,
)
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


def test_single_action_gives_one_distribution():
    network = ActorDistributionNetwork(VECTOR, DISCRETE)
    distribution, state = network(torch.randn(8, 4))
    assert type(distribution) is Categorical
    assert distribution.logits.shape == (8, 2)
    assert state == ()


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
def test_recurrent_policy_passes_its_state_on(encoder):
    network = ActorDistributionNetwork(VECTOR, DISCRETE, encoding_network_ctor=encoder)
    state = network.initial_state(8)
    assert not nest.is_empty(network.state_spec)
    x = torch.randn(8, 4)
    first, state = network(x, state)
    second, _ = network(x, state)
    assert not torch.equal(first.logits, second.logits)


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
        (VECTOR, {"arm": TensorSpec((), torch.int64)}, r"^action\['arm'\]: expected b"),
        (VECTOR, TensorSpec((), torch.int64), "^action: expected bounds"),
        ({"x": TensorSpec((), torch.int64)}, DISCRETE, r"^observation\['x'\]: expect"),
    ],
)
def test_unsupported_specs_are_named(observation_spec, action_spec, message):
    with pytest.raises(ValueError, match=message):
        ActorDistributionNetwork(observation_spec, action_spec)


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
    action = distributions.sample(policy)
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0])
    assert ((low <= action) & (action <= high)).all()
    assert action.std(0).min() > 0.1


def test_the_deviation_depends_on_the_observation():
    network = SquashedActorNetwork(VECTOR, BOX, initial_log_std=-1.0)
    policy, _ = network(5 * torch.randn(20, 4))
    assert policy.scale.std(0).min() > 0


def test_discrete_parts_are_categorical():
    network = SquashedActorNetwork(VECTOR, {"move": BOX, "gear": CHOICE})
    policy, _ = network(torch.randn(3, 4))
    assert isinstance(policy["gear"], Categorical)
    assert isinstance(policy["move"], SquashedNormal)


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


def test_the_encoder_may_be_recurrent():
    network = ActorNetwork(VECTOR, 2, encoding_network_ctor=GRUEncodingNetwork)
    x = torch.randn(3, 4)
    first, state = network(x, network.initial_state(3))
    second, _ = network(x, state)
    assert not torch.equal(first, second)
