from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import distributions as td

from alf_lite import nest
from alf_lite.algorithms.parts.policy import (
    DeterministicPolicy,
    Policy,
    masked_actor_network,
)
from alf_lite.config import files as config_files
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.action_vectors import BoxActions
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    ActorNetwork,
    SquashedActorNetwork,
)
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.network import Network
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

STATE = TensorSpec((2,))
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
OBSERVATION = {"mask": BoundedTensorSpec((3,), torch.int8, 0, 1), "state": STATE}
MASK = ActionMask(OBSERVATION, CHOICE, "mask")
NO_MASK = ActionMask(STATE, CHOICE, None)
Recurrent = functools.partial(GRUEncodingNetwork, hidden_size=(4,))


def observe(batch_size: int = 5, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    mask = torch.randint(0, 2, (batch_size, 3), dtype=torch.int8)
    mask[:, 1] = 1
    return {"mask": mask, "state": torch.randn(batch_size, 2)}


def masked_policy(**kwargs) -> Policy:
    ctor = functools.partial(ActorDistributionNetwork, **kwargs)
    return Policy(ctor, CHOICE, MASK)


def test_without_a_mask_the_policy_is_that_of_the_network():
    policy = Policy(ActorDistributionNetwork, CHOICE, NO_MASK)
    state = torch.randn(5, 2)
    expected, _ = policy._network(state)
    assert torch.equal(policy(state)[0].logits, expected.logits)


def test_acting_is_greedy_or_samples():
    policy = masked_policy()
    observation = observe(1000)
    distribution, _ = policy(observation)
    greedy, state = policy.act(observation, ())
    assert torch.equal(greedy, distributions.mode(distribution))
    assert state == ()
    torch.manual_seed(3)
    sample, _ = policy.sample(observation, ())
    torch.manual_seed(3)
    assert torch.equal(sample, distributions.sample(distribution))
    explored, _ = policy.act(observation, (), epsilon=0.5)
    assert 0 < (explored != greedy).float().mean() < 0.5


def test_a_deterministic_policy_stretches_its_vectors_to_the_bounds():
    spec = BoundedTensorSpec((2,), torch.float32, -2.0, 6.0)
    boxes = BoxActions(spec)
    policy = DeterministicPolicy(ActorNetwork, ActionMask(STATE, spec, None), boxes)
    state = torch.randn(5, 2)
    vector, _ = policy(state)
    assert vector.abs().max() < 1
    for action, _ in (policy.act(state, (), 1.0), policy.sample(state, ())):
        torch.testing.assert_close(action, 2 + 4 * vector)


def test_an_actor_keeps_the_proportions_of_what_is_allowed():
    masked = masked_policy()
    assert masked.input_spec == OBSERVATION
    observation = observe()
    policy, state = masked(observation)
    assert state == ()
    free, _ = masked._network({"state": observation["state"]})
    expected = free.probs * observation["mask"]
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(policy.probs, expected)
    assert (policy.probs[observation["mask"] == 0] == 0).all()


def test_the_gradient_of_a_masked_actor_is_finite_and_reaches_all_parameters():
    masked = masked_policy()
    policy, _ = masked(observe())
    loss = distributions.log_prob(policy, policy.mode) + distributions.entropy(policy)
    loss.sum().backward()
    for parameter in masked.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_recurrent_networks_keep_their_state():
    masked = masked_policy(encoding_network_ctor=Recurrent)
    assert masked.state_spec == masked._network.state_spec
    state = expected = masked.initial_state(5)
    for step in range(3):
        observation = observe(seed=step)
        policy, state = masked(observation, state)
        free, expected = masked._network({"state": observation["state"]}, expected)
    nest.map_structure(torch.testing.assert_close, state, expected)
    ruled_out = observation["mask"] == 0
    torch.testing.assert_close(policy.logits[~ruled_out], free.logits[~ruled_out])
    assert (policy.probs[ruled_out] == 0).all()


def test_a_conf_masks_the_actor_of_an_algorithm_that_knows_no_masks():
    config_files.parse_config_text(
        """
        masked_actor_network.action_mask_key = "mask"
        masked_actor_network.actor_network_ctor = @ActorDistributionNetwork
        ActorDistributionNetwork.fc_layer_params = (8,)
        """
    )
    actor = masked_actor_network(OBSERVATION, CHOICE)
    observation = observe()
    policy, _ = actor(observation)
    assert ((policy.probs == 0) == (observation["mask"] == 0)).all()


@pytest.mark.ci
def test_a_compiled_actor_is_masked():
    masked = masked_policy()
    compiled = torch.compile(masked, fullgraph=True, backend="eager")
    observation = observe()
    torch.testing.assert_close(
        compiled(observation)[0].logits, masked(observation)[0].logits
    )


# What is known of a policy before it acts

BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
MIXED = {"gear": CHOICE, "move": BOX}


def policy_of(action_spec, observation_spec=STATE, **kwargs) -> Policy:
    ctor = functools.partial(ActorDistributionNetwork, **kwargs)
    return Policy(ctor, action_spec, ActionMask(observation_spec, action_spec, None))


class TorchActor(Network):
    """Whose policy is one of torch.distributions."""

    def __init__(self, make, observation_spec, action_spec):
        super().__init__(observation_spec)
        self._make = make

    def forward(self, inputs, state=()):
        zeros = torch.zeros(len(inputs), 2)
        return td.Independent(self._make(zeros, zeros + 1), 1), state


@pytest.mark.parametrize("kind", ["tanh_normal", "truncated_normal", "beta"])
def test_the_largest_entropy_of_boxes_is_the_log_of_their_volume(kind):
    boxes = policy_of(MIXED, continuous_projection=kind).differentiable_boxes()
    assert boxes.max_entropy == pytest.approx(math.log(2 * 10))
    assert not boxes.has_choices


def test_a_choice_of_an_element_has_the_entropy_of_a_choice():
    boxes = policy_of((BOX, BOX), one_hot=True).differentiable_boxes()
    assert boxes == (pytest.approx(2 * math.log(2)), True)


def test_discrete_parts_need_no_gradient():
    assert policy_of(CHOICE).differentiable_boxes() == (0.0, False)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("normal", "DiagonalNormal leaves the bounds"),
        ("cauchy", "DiagonalCauchy leaves the bounds"),
        ("mixture", "NormalMixture has no reparametrised sample"),
        ("tanh_mixture", "NormalMixture has no reparametrised sample"),
    ],
)
def test_samples_that_critics_cannot_judge_are_refused(kind, problem):
    policy = policy_of(MIXED, continuous_projection=kind)
    message = rf"actor_network_ctor: action\.move: {problem}.* SquashedActorNetwork"
    with pytest.raises(ConfigError, match=message):
        policy.differentiable_boxes()


def test_distributions_of_torch_are_known_as_far_as_they_tell():
    def squashed(loc, scale):
        transforms = [td.TanhTransform(), td.AffineTransform(5.0, 5.0)]
        return td.TransformedDistribution(td.Normal(loc, scale), transforms)

    mask = ActionMask(STATE, BOX, None)
    Policy(functools.partial(TorchActor, squashed), BOX, mask).differentiable_boxes()
    for make in (td.Normal, td.Laplace):
        policy = Policy(functools.partial(TorchActor, make), BOX, mask)
        with pytest.raises(ConfigError, match="Independent leaves the bounds"):
            policy.differentiable_boxes()


def test_what_gives_no_distributions_is_no_policy():
    mask = ActionMask(STATE, MIXED, None)
    ctor = lambda spec, _: ActorNetwork(spec, 2)  # noqa: E731
    with pytest.raises(ConfigError, match=r"my_ctor: expected .*, got ActorNetwork"):
        Policy(ctor, MIXED, mask, "my_ctor")
    with pytest.raises(ConfigError, match="a distribution for each part"):
        Policy(lambda o, _: SquashedActorNetwork(o, BOX), MIXED, mask)


class AloneActor(TorchActor):
    def forward(self, inputs, state=()):
        together, state = super().forward(inputs, state)
        return together.base_dist, state


def test_numbers_of_one_action_belong_together():
    ctor = functools.partial(AloneActor, td.Normal)
    with pytest.raises(ConfigError, match=r"action: .*Independent\(\.\.\., 1\)"):
        Policy(ctor, BOX, ActionMask(STATE, BOX, None))


def test_looking_at_a_policy_changes_nothing():
    observation = BoundedTensorSpec((), torch.int64, 1, 3)  # zeros are none
    encoder = functools.partial(EncodingNetwork, batch_norm=True)
    policy = policy_of(CHOICE, observation, encoding_network_ctor=encoder)
    frozen = policy.network._encoder.eval()
    before = nest.map_structure(torch.clone, policy.state_dict())
    random_state = torch.get_rng_state()
    policy.parts()
    assert policy.training
    assert not frozen.training
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(policy.state_dict()[key], before[key]) for key in before)
