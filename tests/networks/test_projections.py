"""Heads with peaks, tails and edges of their own; and what PPO learns with them."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    SquashedActorNetwork,
)
from alf_lite.networks.impala_networks import ImpalaEncodingNetwork
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing.probe_environments import ObservationPolicyEnv, TwoAnswersEnv
from alf_lite.testing.structured_environments import ImageEnv

VECTOR = TensorSpec((4,))
BOX = BoundedTensorSpec((2,), minimum=-2.0, maximum=3.0)
BETA = {"continuous_projection": "beta"}
NEW = ("cauchy", "mixture", "truncated_normal", "tanh_mixture")


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("kind", NEW)
def test_actions_of_any_shape_have_a_policy_with_a_gradient(kind, varies):
    torch.manual_seed(0)
    spec = {"a": BOX, "b": BoundedTensorSpec(()), "c": BoundedTensorSpec((2, 2))}
    network = ActorDistributionNetwork(
        VECTOR,
        spec,
        continuous_projection=kind,
        state_dependent_std=varies,
        initial_log_std=-0.5,
    )
    policy, _ = network(torch.randn(7, 4))
    actions = distributions.sample(policy)
    assert actions["a"].shape == (7, 2)
    assert actions["b"].shape == (7,)
    assert actions["c"].shape == distributions.mode(policy)["c"].shape == (7, 2, 2)
    assert policy["a"].scale.mean().item() == pytest.approx(0.6065, abs=0.05)
    if kind in ("truncated_normal", "tanh_mixture"):
        for action in (actions["a"], distributions.mode(policy)["a"]):
            assert action.min() >= -2.0
            assert action.max() <= 3.0
    log_prob, entropy = distributions.log_prob_and_entropy(policy, actions)
    (log_prob + entropy).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_components_of_a_mixture_start_apart():
    torch.manual_seed(0)
    network = ActorDistributionNetwork(
        VECTOR, BOX, continuous_projection="mixture", num_mixture_components=9
    )
    loc = network(torch.randn(3, 4))[0].loc
    assert loc.shape == (3, 9, 2)
    assert loc.std(1).min() > 0.2
    assert loc.std(0).max() < 0.1  # whatever is observed


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="'truncated_normal' needs finite bounds"):
        ActorDistributionNetwork(
            VECTOR, TensorSpec((2,)), continuous_projection="truncated_normal"
        )
    for kind in ("normal", "beta"):
        with pytest.raises(ConfigError, match="num_mixture_components has no effect"):
            ActorDistributionNetwork(
                VECTOR, BOX, continuous_projection=kind, num_mixture_components=2
            )
    with pytest.raises(ValueError, match="num_mixture_components must be a positive"):
        ActorDistributionNetwork(
            VECTOR, BOX, continuous_projection="mixture", num_mixture_components=0
        )
    with pytest.raises(ValueError, match="one_hot: no part of the action is a vector"):
        ActorDistributionNetwork(
            VECTOR, BoundedTensorSpec((), torch.int64, 0, 2), one_hot=True
        )


CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)


@pytest.mark.parametrize(
    ("cls", "action_spec", "options", "name"),
    [
        (ActorDistributionNetwork, CHOICE, {}, "continuous_projection"),
        (ActorDistributionNetwork, CHOICE, {}, "state_dependent_std"),
        (ActorDistributionNetwork, CHOICE, {}, "initial_log_std"),
        (SquashedActorNetwork, CHOICE, {}, "continuous_projection"),
        (SquashedActorNetwork, BOX, {"one_hot": True}, "initial_log_std"),
        (SquashedActorNetwork, BOX, BETA, "state_dependent_std"),
        (ActorDistributionNetwork, BOX, BETA, "initial_log_std"),
    ],
)
def test_options_of_distributions_that_an_action_does_not_have(
    cls, action_spec, options, name
):
    other = {
        "continuous_projection": "truncated_normal",
        "state_dependent_std": cls is ActorDistributionNetwork,
        "initial_log_std": -1.0,
    }
    cls(VECTOR, action_spec, **options)
    with pytest.raises(ConfigError, match=f"{name} has no effect"):
        cls(VECTOR, action_spec, **options, **{name: other[name]})
    mixed = {"arm": BOX, "hand": CHOICE}
    if options is not BETA:
        cls(VECTOR, mixed, **{name: other[name]})


def test_a_mask_rules_out_elements_of_a_one_hot_action():
    torch.manual_seed(0)
    action_spec = BoundedTensorSpec((3,), torch.int64, 0, 1)
    observation_spec = {
        "position": VECTOR,
        "action_mask": BoundedTensorSpec((3, 2), torch.bool, 0, 1),
    }
    algorithm = PPOAlgorithm(
        observation_spec,
        action_spec,
        actor_network_ctor=functools.partial(ActorDistributionNetwork, one_hot=True),
        action_mask_key="action_mask",
        optimizer=Adam(lr=1e-3),
    )
    mask = torch.tensor([[1, 1], [1, 0], [1, 1]]).bool().expand(200, 3, 2)
    zeros = torch.zeros(200)
    step = TimeStep(
        step_type=torch.full((200,), int(StepType.MID), dtype=torch.int32),
        reward=zeros,
        discount=zeros + 1,
        observation={"position": torch.randn(200, 4), "action_mask": mask},
        prev_action=torch.zeros(200, 3, dtype=torch.int64),
        env_id=torch.arange(200),
    )
    action = algorithm.rollout_step(step, algorithm.get_initial_rollout_state(200))
    assert action.output.sum(0)[1] == 0
    assert (action.output.sum(1) == 1).all()


def one_hot_sac(action_spec, **kwargs):
    return SacAlgorithm(
        VECTOR,
        action_spec,
        actor_network_ctor=functools.partial(ActorDistributionNetwork, one_hot=True),
        optimizer=Adam(lr=1e-3),
        **kwargs,
    )


def test_soft_actor_critic_knows_the_probabilities_of_one_hot_actions():
    binary = one_hot_sac(BoundedTensorSpec((3,), torch.int64, 0, 1))
    policy, _ = binary._policy(torch.randn(5, 4))
    sample = binary._actions.sample(policy)
    assert sample.probs.shape == (5, 2**3)
    torch.testing.assert_close(sample.probs.sum(-1), torch.ones(5))
    torch.testing.assert_close(sample.entropies.discrete, policy.entropy())
    box = BoundedTensorSpec((3,), torch.float32, -1.0, 1.0)
    with pytest.raises(ConfigError, match="Set target_entropy, such as"):
        one_hot_sac(box)
    one_hot_sac(box, target_entropy=0.3)


def learned_return(env_ctor, num_iterations, at_least, lr=3e-3, settings=None, **actor):
    """The return of PPO when it is enough, or after so many iterations."""
    torch.manual_seed(0)
    env = create_environment(env_ctor=env_ctor, num_parallel_environments=16, seed=0)
    encoder = {k: v for k, v in actor.items() if k == "encoding_network_ctor"}
    algorithm = PPOAlgorithm(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=TrainerConfig(
            num_iterations=num_iterations,
            unroll_length=16,
            num_updates_per_train_iter=4,
            mini_batch_length=1,
            mini_batch_size=64,
        ),
        optimizer=Adam(lr=lr, gradient_clipping=1.0),
        actor_network_ctor=functools.partial(ActorDistributionNetwork, **actor),
        value_network_ctor=functools.partial(ValueNetwork, **encoder),
        **(settings or {}),
    )
    for _ in range(num_iterations):
        algorithm.train_iter()
        result = algorithm.metrics.results().get("AverageReturn", -1.0)
        if result >= at_least:
            break
    return result


@pytest.mark.ci
def test_a_mixture_keeps_two_answers():
    found = learned_return(
        TwoAnswersEnv,
        60,
        0.8,
        settings={"gamma": 1.0, "entropy_regularization": 0.003},
        initial_log_std=-1.0,
        continuous_projection="tanh_mixture",
    )
    assert found >= 0.8  # with one peak 0.5


@pytest.mark.ci
@pytest.mark.parametrize(
    "kind", ["truncated_normal", pytest.param("cauchy", marks=pytest.mark.slow)]
)
def test_other_heads_learn_what_the_observation_asks_for(kind):
    env = functools.partial(ObservationPolicyEnv, "continuous")
    found = learned_return(
        env, 80, 0.8, continuous_projection=kind, initial_log_std=-1.0
    )
    assert found >= 0.8


@pytest.mark.ci
def test_the_impala_network_learns_from_images():
    encoder = functools.partial(
        ImpalaEncodingNetwork, channels=(4, 8), num_blocks=1, fc_layer_params=(32,)
    )
    env = functools.partial(ImageEnv, size=12)
    found = learned_return(env, 40, 3.6, encoding_network_ctor=encoder)
    assert found >= 3.6  # of 4; a random policy earns 1
