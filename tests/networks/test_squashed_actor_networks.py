from __future__ import annotations

import torch

from alf_lite.distributions import functions as distributions
from alf_lite.distributions.continuous import SquashedNormal
from alf_lite.distributions.discrete import Categorical
from alf_lite.networks.squashed_actor_networks import SquashedActorNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

VECTOR = TensorSpec((4,))
BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)


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
