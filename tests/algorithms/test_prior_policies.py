"""A policy that keeps near to another one, which another run has trained."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.distributions import functions as distributions
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.networks.value_networks import ValueNetwork
from tests.algorithms.actor_critics import Actor, make
from tests.replayed_steps import MIXED


def test_a_policy_keeps_near_to_its_prior():
    prior = functools.partial(SquashedActorNetwork, fc_layer_params=(4,))
    algorithm = make(prior_actor_ctor=prior, target_kld_per_dim=0.5)
    assert not any(p.requires_grad for p in algorithm._prior.parameters())
    assert algorithm._temperatures["continuous"].target_entropy == -1.0
    observation = torch.randn(2000, 3) * 0 + torch.randn(3)
    policy, _ = algorithm._policy(observation)
    known, _ = algorithm._prior(observation)
    relative = algorithm._sample(observation, policy).entropies.continuous
    kl = distributions.kl_divergence(policy, known)[0]
    assert relative.mean().item() == pytest.approx(-kl.item(), abs=0.1)
    # The own policy as prior: nothing to pay.
    algorithm._prior.forward = algorithm._policy.forward
    same = algorithm._sample(observation, policy).entropies.continuous
    torch.testing.assert_close(same, torch.zeros(2000), atol=1e-3, rtol=0.0)


def saved_run(path, **settings):
    """A run with parameters of its own, and the directory of its checkpoints."""
    other = make(**settings)
    Checkpointer(path).save(7, {"algorithm": other.state_dict()})
    return other


def test_a_prior_is_the_policy_of_another_run(tmp_path):
    other = saved_run(tmp_path)
    given = f"_policy@{tmp_path}"
    algorithm = make(prior_actor_ctor=Actor, prior_checkpoint=given)
    own = nest.map_structure(torch.clone, algorithm._policy.state_dict())
    algorithm.setup_training()
    expected = other._policy.state_dict()
    loaded = algorithm._prior.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[key], expected[key]) for key in expected)
    assert not any(p.requires_grad for p in algorithm._prior.parameters())
    # The policy itself begins as ever.
    own_now = algorithm._policy.state_dict()
    assert all(torch.equal(own_now[key], own[key]) for key in own)


def test_a_prior_below_another_algorithm_is_loaded_too(tmp_path):
    other = saved_run(tmp_path)
    given = f"_policy@{tmp_path}"
    sac = make(prior_actor_ctor=Actor, prior_checkpoint=given)
    parent = Algorithm(name="parent")
    parent.child = sac
    parent.load_checkpoint_parts()
    observation = torch.randn(4, 3)
    torch.testing.assert_close(
        sac._prior(observation)[0].loc, other._policy(observation)[0].loc
    )


def test_a_prior_that_cannot_be_loaded_is_an_error(tmp_path):
    saved_run(tmp_path)

    def load(prior_checkpoint, actor=Actor):
        make(prior_actor_ctor=actor, prior_checkpoint=prior_checkpoint).setup_training()

    with pytest.raises(CheckpointError, match=r"prior_checkpoint: .*Did you mean _pol"):
        load(f"_polcy@{tmp_path}")
    with pytest.raises(CheckpointError, match=r"prior_checkpoint: .*prefix@path"):
        load(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"prior from .* does not fit Prior"):
        load(f"_policy@{tmp_path}", functools.partial(Actor, fc_layer_params=(4,)))
    with pytest.raises(ConfigError, match="prior_checkpoint has no effect: there is"):
        make(prior_checkpoint=f"_policy@{tmp_path}")


def test_priors_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="prior_actor_ctor needs continuous actions"):
        make(action_spec=MIXED, prior_actor_ctor=Actor)
    memory = functools.partial(Actor, encoding_network_ctor=GRUEncodingNetwork)
    with pytest.raises(ConfigError, match="without memory"):
        make(prior_actor_ctor=memory)
    with pytest.raises(ConfigError, match=r"prior_actor_ctor: .* got ValueNetwork"):
        make(prior_actor_ctor=lambda observation, _: ValueNetwork(observation))
