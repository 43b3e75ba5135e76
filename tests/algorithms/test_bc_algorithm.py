from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.data_structures import TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.networks.actor_networks import (
    ActorNetwork,
    NormalActorNetwork,
    SquashedActorNetwork,
)
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing import probe_environments as probes
from tests.replayed_steps import (
    BOX,
    CHOICE,
    LAST,
    MIXED,
    OBSERVATION,
    batch_of,
    info_of,
    randomise,
    trained_on_random_steps,
    windows,
)

PAIR = BoundedTensorSpec((2,), torch.int64, [1, 5], [2, 7])  # zeros are no actions
SWITCHES = BoundedTensorSpec((2,), torch.int8, 0, 1)
FREE = TensorSpec((2,))
EVERYTHING = {"pair": PAIR, "rest": (SWITCHES, FREE), "mixed": MIXED}

Actor = functools.partial(NormalActorNetwork, fc_layer_params=(16,))
Squashed = functools.partial(SquashedActorNetwork, fc_layer_params=(16,))
Mean = functools.partial(ActorNetwork, fc_layer_params=(16,))


def bc(action_spec=BOX, *, observation_spec=OBSERVATION, **kwargs) -> BcAlgorithm:
    arguments = {
        "actor_network_ctor": Mean if kwargs.get("deterministic") else Actor,
        "optimizer": Adam(lr=3e-3),
        **kwargs,
    }
    torch.manual_seed(0)
    algorithm = BcAlgorithm(observation_spec, action_spec, **arguments)
    randomise(algorithm)
    return algorithm


def log_density(spec, policy, action) -> float:
    """Of a single row, from the detached parameters of the policy."""
    if isinstance(spec, dict):
        return sum(log_density(spec[k], policy[k], action[k]) for k in spec)
    if isinstance(spec, tuple):
        parts = zip(spec, policy, action, strict=True)
        return sum(log_density(*part) for part in parts)
    if spec.is_continuous:
        total = 0.0
        for x, mean, std in zip(action, policy.loc[0], policy.scale[0], strict=True):
            z = ((x - mean) / std).item()
            total += -0.5 * z * z - math.log(std) - 0.5 * math.log(2 * math.pi)
        return total
    if spec is SWITCHES:
        probs = policy.logits[0].sigmoid()
        return sum(
            math.log(p if a else 1 - p) for p, a in zip(probs, action, strict=True)
        )
    if spec is CHOICE:
        return policy.logits[0].softmax(-1)[action].log().item()
    first, second = policy.logits[0].split([2, 3])
    return (
        first.softmax(-1)[action[0] - 1].log() + second.softmax(-1)[action[1] - 5].log()
    ).item()


# The loss


def test_the_loss_is_the_negative_log_likelihood_of_every_part_of_a_nest():
    spec = EVERYTHING
    algorithm = bc(spec, entropy_regularization=0.1, action_margin=0.0)
    steps = windows(spec, length=4)
    info = info_of(algorithm, steps)
    loss = algorithm.calc_loss(info)
    assert loss.loss.shape == (3, 5)
    num_compared = 0
    for t in range(3):
        for b in range(5):
            if steps.step_type[b, t] == LAST:
                continue
            policy, _ = algorithm._policy(steps.observation[b, t][None])
            policy = distributions.detach(policy)
            following = nest.map_structure(lambda a, t=t, b=b: a[b, t + 1], steps)
            expected = -log_density(spec, policy, following.prev_action)
            assert info.imitation_loss[t, b].item() == pytest.approx(expected, abs=1e-4)
            with_bonus = info.imitation_loss - 0.1 * info.entropy
            assert loss.loss[t, b] == with_bonus[t, b]
            num_compared += 1
    assert num_compared == 12


def test_the_margin_decides_how_far_out_an_action_on_the_bound_is():
    steps = windows(BOX)
    steps.prev_action[:] = torch.tensor(BOX.maximum)
    losses = [
        info_of(
            bc(BOX, actor_network_ctor=Squashed, action_margin=margin), steps
        ).imitation_loss.max()
        for margin in (0.0, 1e-3, 0.1)
    ]
    assert losses[0] > losses[1] > losses[2]


# Acting


def many(spec) -> TimeStep:
    return nest.map_structure(
        lambda t: t[:1, 0].expand(400, *t.shape[2:]), windows(spec)
    )


def test_a_deterministic_policy_acts_between_the_bounds_and_always_alike():
    algorithm = bc(BOX, deterministic=True)
    rollout = algorithm.rollout_step(many(BOX), ()).output
    assert torch.equal(rollout, algorithm.predict_step(many(BOX), ()).output)
    vector, _ = algorithm._policy(many(BOX).observation)
    expected = torch.stack([vector[:, 0], 5 + 5 * vector[:, 1]], dim=1)
    torch.testing.assert_close(rollout, expected)


# Learning


def script(share: float, wanted):
    """A controller that does the right thing most of the time, else anything."""

    def random_action(self, inputs):
        action = BcAlgorithm.__mro__[1].random_action(self, inputs)
        leaves = zip(nest.flatten(wanted(inputs)), nest.flatten(action), strict=True)
        keeps = torch.rand(len(inputs.reward)) < share
        chosen = [
            torch.where(keeps.reshape(-1, *[1] * (drawn.ndim - 1)), right, drawn)
            for right, drawn in leaves
        ]
        return nest.pack_sequence_as(action, chosen)

    return random_action


def check_cloned(
    env_ctor, wanted, num_updates, at_least, monkeypatch, *, share=0.7, **options
):
    """Trains a policy that sees nothing but the script to a greedy return."""
    monkeypatch.setattr(BcAlgorithm, "random_action", script(share, wanted))
    settings = {"mini_batch_length": options.pop("mini_batch_length", 2)}

    def make(env, config):
        return BcAlgorithm(
            env.observation_spec,
            env.action_spec,
            env=env,
            config=config,
            optimizer=Adam(lr=3e-3),
            **options,
        )

    trained_on_random_steps(make, env_ctor, num_updates, at_least=at_least, **settings)


def test_the_majority_of_discrete_actions_is_imitated(monkeypatch):
    def wanted(inputs):
        return (inputs.observation[:, 0] > 0).long()

    env_ctor = probes.ObservationPolicyEnv
    check_cloned(env_ctor, wanted, 200, 1.0, monkeypatch, actor_network_ctor=Actor)


@pytest.mark.parametrize("network", ["normal", "squashed", "deterministic"])
def test_continuous_actions_are_imitated(network, monkeypatch):
    def wanted(inputs):
        return 0.5 * inputs.observation

    options = {
        "normal": {"actor_network_ctor": Actor},
        "squashed": {"actor_network_ctor": Squashed},
        "deterministic": {"deterministic": True, "actor_network_ctor": Mean},
    }[network]
    ctor = functools.partial(probes.ObservationPolicyEnv, "continuous")
    # Half of the range is a mean of random actions away from the mean of the script.
    check_cloned(ctor, wanted, 400, 0.9, monkeypatch, share=0.95, **options)


@pytest.mark.ci
@pytest.mark.parametrize(
    "space",
    [
        pytest.param(spaces.MultiDiscrete([2, 3]), marks=pytest.mark.slow),
        pytest.param(spaces.MultiBinary(3), marks=pytest.mark.slow),
        spaces.Dict(
            {
                "choice": spaces.Discrete(3),
                "force": spaces.Box(-1.0, 1.0, (1,), np.float32),
            }
        ),
    ],
    ids=["multi", "binary", "mixed"],
)
def test_nests_of_actions_are_imitated(space, monkeypatch):
    def wanted(inputs):
        return inputs.observation

    ctor = functools.partial(probes.IdentityEnv, space)
    check_cloned(
        ctor, wanted, 400, 3.8, monkeypatch, share=0.9, actor_network_ctor=Actor
    )


# Bad input


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match=r"expected a continuous.*deterministic = Fal"):
        bc(MIXED, deterministic=True)
    with pytest.raises(ValueError, match=r"finite bounds.*deterministic = False"):
        bc(FREE, deterministic=True)
    with pytest.raises(ValueError, match="deterministic policy has no entropy"):
        bc(BOX, deterministic=True, entropy_regularization=0.1)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        bc(BOX, entropy_regularization=-1)
    with pytest.raises(ValueError, match="action_margin must lie"):
        bc(BOX, action_margin=1.5)
    with pytest.raises(ValueError, match="expected bounds for a discrete action"):
        bc(TensorSpec((), torch.int64))
    with pytest.raises(ValueError, match="windows of at least 2 steps"):
        batch_of(bc(BOX), nest.map_structure(lambda t: t[:, :1], windows(BOX)))
