from __future__ import annotations

import functools
import re

import pytest
import torch
from gymnasium import spaces

import alf_lite
from alf_lite import nest
from alf_lite.algorithms.predictive_representation import PredictiveRepresentation
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.data_transformers.normalizing_transformers import ObservationNormalizer
from alf_lite.data_transformers.single_step_transformers import RewardClipping
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.masked_environment import ForbiddenActionEnv
from alf_lite.testing.probe_environments import IdentityEnv
from alf_lite.tools import player
from alf_lite.tools.shown_policy import words_of

COMPONENTS = functools.partial(IdentityEnv, spaces.MultiDiscrete([2, 3]))


def words_in(env_ctor, cls, settings=None, **arguments):
    """The algorithm, three first steps, and what it thinks of them."""
    env = alf_lite.create_environment(env_ctor, 3, seed=0)
    config = alf_lite.TrainerConfig(num_iterations=1, random_seed=0, **settings or {})
    algorithm = cls(env=env, config=config, **arguments)
    time_step = env.reset()
    before = torch.get_rng_state()
    lines = words_of(algorithm)(time_step)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(lines) == 3
    return algorithm, time_step.observation, lines


def test_values_begin_with_the_best_of_each_component():
    algorithm, observation, lines = words_in(COMPONENTS, alf_lite.DqnAlgorithm)
    q = algorithm._evaluate(observation, ())[0].detach()
    for line, values in zip(lines, q, strict=True):
        expected = [
            " ".join(f"{a}:{row[a]:.2f}" for a in row[:size].argsort(descending=True))
            for row, size in zip(values, (2, 3), strict=True)
        ]
        assert line == "Q " + " | ".join(expected)


def test_what_a_mask_rules_out_is_not_shown():
    arguments = {"action_mask_key": "action_mask"}
    _, observation, lines = words_in(
        ForbiddenActionEnv, alf_lite.DqnAlgorithm, **arguments
    )
    for line, mask in zip(lines, observation["action_mask"].tolist(), strict=True):
        shown = {int(a) for a in re.findall(r"(\d+):", line)}
        assert shown == {a for a, ok in enumerate(mask) if ok}


def test_distributions_are_probabilities_or_means_and_deviations():
    algorithm, observation, lines = words_in("CartPole-v1", alf_lite.PPOAlgorithm)
    probs = algorithm._policy(observation)[0].probs
    for line, row in zip(lines, probs.tolist(), strict=True):
        best = int(row[1] > row[0])
        assert line == f"pi {best}:{row[best]:.0%} {1 - best}:{row[1 - best]:.0%}"
    algorithm, observation, lines = words_in("Pendulum-v1", alf_lite.PPOAlgorithm)
    policy = algorithm._policy(observation)[0]
    for line, mean, std in zip(lines, policy.mean, policy.stddev, strict=True):
        shown = [float(number) for number in line.removeprefix("pi ").split("±")]
        assert shown == pytest.approx([mean.item(), std.item()], abs=0.4 * std.item())


def test_a_policy_sees_what_data_transformers_make_of_the_observation():
    settings = {"data_transformer_ctor": [ObservationNormalizer, RewardClipping]}
    algorithm, observation, _ = words_in("CartPole-v1", alf_lite.PPOAlgorithm, settings)
    with torch.no_grad():
        for parameter in algorithm._policy.parameters():
            parameter.mul_(9)
    time_step = algorithm.env.current_time_step
    algorithm.data_transformer.observe(nest.map_structure(lambda t: t[None], time_step))
    probs = algorithm.policy().distribution(observation.numpy()).probs
    unseen = algorithm._policy(observation)[0].probs
    assert not torch.allclose(probs, unseen, atol=0.01)
    for line, row in zip(words_of(algorithm)(time_step), probs.tolist(), strict=True):
        best = int(row[1] > row[0])
        assert line == f"pi {best}:{row[best]:.0%} {1 - best}:{row[1 - best]:.0%}"


def test_a_policy_sees_what_a_representation_learner_makes_of_the_observation():
    env = alf_lite.create_environment("CartPole-v1", 3, seed=0)
    algorithm = alf_lite.Agent(
        env=env,
        config=alf_lite.TrainerConfig(num_iterations=1, random_seed=0),
        rl_algorithm_ctor=alf_lite.PPOAlgorithm,
        representation_learner_ctor=functools.partial(
            PredictiveRepresentation, representation_size=4
        ),
        optimizer=Adam(lr=1e-3),
    )
    learner, policy = algorithm.parts["representation"], algorithm.parts["rl"]._policy
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(9)
    time_step = env.reset()
    probs = policy(learner.predict_step(time_step, ()).output)[0].probs
    assert not torch.allclose(probs, policy(time_step.observation)[0].probs, atol=0.01)
    shown = algorithm.policy().distribution(time_step.observation.numpy()).probs
    torch.testing.assert_close(shown, probs)
    lines = words_of(algorithm)(time_step)
    for line, row in zip(lines, probs.tolist(), strict=True):
        best = int(row[1] > row[0])
        assert line == f"pi {best}:{row[best]:.0%} {1 - best}:{row[1 - best]:.0%}"


@pytest.mark.parametrize(
    ("cls", "settings", "arguments", "message"),
    [
        (alf_lite.DdpgAlgorithm, {}, {}, "neither a distribution of its actions nor"),
        (
            alf_lite.PPOAlgorithm,
            {"data_transformer_ctor": [FrameStacker]},
            {},
            "remembers what it has seen",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(cls, settings, arguments, message):
    with pytest.raises(ConfigError, match=message):
        words_in("Pendulum-v1", cls, settings, **arguments)
    network = functools.partial(QNetwork, encoding_network_ctor=LSTMEncodingNetwork)
    with pytest.raises(ConfigError, match="DqnAlgorithm remembers what it has seen"):
        words_in("CartPole-v1", alf_lite.DqnAlgorithm, q_network_ctor=network)


def test_it_is_for_videos_of_all_episodes(trained):
    for arguments in ({}, {"record_file": "a.gif", "record": "worst_median_best"}):
        with pytest.raises(
            ConfigError, match="show_policy is for a record_file of all"
        ):
            player.play(trained, 1, show_policy=True, **arguments)
