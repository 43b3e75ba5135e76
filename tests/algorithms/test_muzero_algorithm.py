"""MuZero: its loss, gradients through the model, what it learns and refuses."""

from __future__ import annotations

import functools
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from alf_lite import nest
from alf_lite.algorithms.muzero_algorithm import MuzeroAlgorithm, MuzeroRolloutInfo
from alf_lite.algorithms.parts.return_heads import TwoHotHead
from alf_lite.algorithms.parts.search_model import LearnedModel
from alf_lite.algorithms.parts.tree_search import TreeSearch
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, TimeStep
from alf_lite.environments import create_environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing.learning_contract import (
    GAMMA,
    Feature,
    OffPolicyLearningContract,
)
from alf_lite.utils.diagnostics import diagnostics_if
from tests.algorithms.slow_probes import slow_but_for

NAN = float("nan")
OBSERVATION = TensorSpec((3,))
ACTION = BoundedTensorSpec((), dtype=torch.int64, minimum=0, maximum=1)
SMALL = functools.partial(LearnedModel, latent_size=8, fc_layer_params=(16,))


def muzero(**kwargs) -> MuzeroAlgorithm:
    arguments = {"num_unroll_steps": 3, "n_step": 2, "model_ctor": SMALL, **kwargs}
    arguments = {"search": TreeSearch(4), **arguments}
    return MuzeroAlgorithm(OBSERVATION, ACTION, **arguments)


def windows(step_types, discounts, beyond=0.0):
    """Two windows of 6 steps; behind the first LAST stands ``beyond``."""
    torch.manual_seed(0)
    size, last = len(step_types), step_types.index(2)
    reward, observation = torch.randn(2, size), torch.randn(2, size, 3)
    reward[:, last + 1 :] = beyond
    observation[:, last + 1 :] = beyond
    policy = torch.rand(2, size, 2).softmax(-1)
    policy[:, last:] = beyond
    steps = TimeStep(
        step_type=torch.tensor([step_types] * 2, dtype=torch.int32),
        reward=reward,
        discount=torch.tensor([discounts] * 2),
        observation=observation,
        prev_action=torch.randint(2, (2, size)),
        env_id=torch.zeros(2, size),
    )
    return steps, MuzeroRolloutInfo(policy)


def loss_and_gradients(algorithm, steps, info):
    with torch.no_grad():
        inputs, window = algorithm.preprocess_experience(steps, info, BatchInfo())
    flat = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, window))
    step = algorithm.train_step(flat[0], (), flat[1])
    found = nest.map_structure(lambda t: t.unsqueeze(0), step.info)
    loss = algorithm.calc_loss(found).loss
    algorithm.zero_grad()
    loss.sum().backward()
    return loss.detach(), [p.grad for p in algorithm._model.parameters()]


def test_what_is_masked_may_be_nan():
    # A time limit at step 2 of windows of 3 + 2 + 1.
    ends = [0, 1, 2, 0, 1, 1], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    found = []
    for beyond in (0.0, NAN):
        torch.manual_seed(1)
        algorithm = muzero(consistency_loss_weight=1.0)
        found.append(loss_and_gradients(algorithm, *windows(*ends, beyond=beyond)))
    assert found[0][0].isfinite().all()
    torch.testing.assert_close(found[1], found[0])


def test_the_share_of_targets_beyond_the_atoms_is_logged():
    narrow = functools.partial(LearnedModel, reward_head=TwoHotHead("h", -0.5, 0.5))
    algorithm = muzero(model_ctor=narrow)
    steps, info = windows([0, 1, 1, 1, 1, 2], [1.0] * 6)
    steps.reward[:] = 0
    steps.reward[1, 2:4] = 9.0
    with torch.no_grad():
        inputs, window = algorithm.preprocess_experience(steps, info, BatchInfo())
        flat = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, window))
        found = algorithm.train_step(flat[0], (), flat[1]).info
        found = nest.map_structure(lambda t: t.unsqueeze(0), found)
        extra = algorithm.calc_loss(found).extra
        assert extra.clipped_rewards.tolist() == [[0, pytest.approx(2 / 3)]]
        assert extra.clipped_values.tolist() == [[0, 0]]
        with diagnostics_if(False):
            assert algorithm.calc_loss(found).extra == ()


def test_the_loss_is_that_of_a_loop():
    torch.manual_seed(1)
    algorithm = muzero(consistency_loss_weight=0.7)
    for p in algorithm.parameters():
        nn.init.normal_(p, std=0.3)
    steps, info = windows([0, 1, 1, 1, 2, 0], [1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    loss, _ = loss_and_gradients(algorithm, steps, info)
    model, gamma = algorithm._model, 0.99
    with torch.no_grad():
        value = algorithm._target_model.value(steps.observation.flatten(0, 1))
    value = value.unflatten(0, (2, 6))
    value[:, 4] = 0
    r = steps.reward
    with torch.no_grad():
        for b in range(2):
            z, expected = model.encode(steps.observation[b : b + 1, 0]), 0.0
            for k in range(4):
                weight = 1.0 if k == 0 else 1 / 3
                if k:
                    action = one_hot(steps.prev_action[b : b + 1, k], 2).float()
                    z, step = model.step(z, action)
                    reward = model.reward_head.fit(step.reward, r[b : b + 1, k])
                    goes_on = step.continues.sigmoid().log()  # LAST is step 4
                    expected += weight * (reward - goes_on)
                    seen = model.encode(steps.observation[b : b + 1, k])
                    similarity = torch.cosine_similarity(z, seen, dim=-1)
                    expected -= 0.7 * similarity / 3
                target = r[b, k + 1] + gamma * value[b, k + 1]
                if k + 2 <= 4:
                    target = r[b, k + 1] + gamma * r[b, k + 2]
                    target = target + gamma**2 * value[b, k + 2]
                elif k == 3:
                    target = r[b, 4]
                found = model.predict(z)
                of_value = model.value_head.fit(found.value, target[None])
                of_policy = -(info.policy[b, k] * found.policy.log_softmax(-1)).sum()
                expected += weight * (of_policy + 0.25 * of_value)
            torch.testing.assert_close(loss[0, b], expected[0], rtol=1e-4, atol=1e-5)


class Passing(LearnedModel):
    """Its latent state is the observation, and every step passes it on."""

    def encode(self, observation):
        self.root = observation.clone().requires_grad_()
        return self.root

    def step(self, latent, action):
        return latent, super().step(latent.detach(), action)[1]


def test_the_gradient_is_halved_from_step_to_step():
    passing = functools.partial(Passing, latent_size=3)
    algorithm = muzero(model_ctor=passing, consistency_loss_weight=0.0)
    steps, info = windows([0, 1, 1, 1, 1, 2], [1.0] * 6)
    with torch.no_grad():
        inputs, window = algorithm.preprocess_experience(steps, info, BatchInfo())
    flat = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, window))
    nn.init.normal_(algorithm._model._value.weight)
    value = algorithm.train_step(flat[0], (), flat[1]).info.value
    root = algorithm._model.root
    slopes = [
        torch.autograd.grad(value[:, k].square().sum(), root, retain_graph=True)[0]
        for k in range(4)
    ]
    torch.testing.assert_close(slopes[1], slopes[0])
    torch.testing.assert_close(slopes[2], slopes[0] / 2)
    torch.testing.assert_close(slopes[3], slopes[0] / 4)


def test_a_share_of_the_windows_is_searched_again():
    algorithm = muzero(reanalyze_ratio=0.5)
    steps, info = windows([0, 1, 1, 1, 1, 2], [1.0] * 6)
    before = info.policy.clone()
    with torch.no_grad():
        _, window = algorithm.preprocess_experience(steps, info, BatchInfo())
    changed = (window.found.policy[:, 0] != before[:, :4]).any(-1)
    assert changed.all(-1).sum() == 1
    assert changed.any(-1).sum() == 1
    torch.testing.assert_close(window.found.policy.sum(-1), torch.ones(2, 1, 4))
    assert torch.equal(info.policy, before)


def test_a_share_below_one_window_is_searched_again_now_and_then():
    algorithm = muzero(reanalyze_ratio=0.1)
    steps, info = windows([0, 1, 1, 1, 1, 2], [1.0] * 6)
    num_searched = 0
    for _ in range(100):
        with torch.no_grad():
            _, window = algorithm.preprocess_experience(steps, info, BatchInfo())
        changed = (window.found.policy[:, 0] != info.policy[:, :4]).any(-1)
        num_searched += int(changed.any(-1).sum())
    assert 8 <= num_searched <= 35  # 0.1 of 2 windows, 100 times


def test_it_predicts_without_noise():
    algorithm = muzero()
    for p in algorithm.parameters():
        nn.init.normal_(p)
    steps, _ = windows([0, 1, 1, 1, 1, 2], [1.0] * 6)
    inputs = nest.map_structure(lambda t: t[:, 0], steps)
    with torch.no_grad():
        actions = [algorithm.predict_step(inputs, ()).output for _ in range(5)]
    assert all(torch.equal(action, actions[0]) for action in actions)


def on_cart_pole(num_iterations, **settings):
    settings = {"mini_batch_size": 32, "initial_collect_steps": 64} | settings
    algorithm = MuzeroAlgorithm(
        env=create_environment("CartPole-v1", 8, seed=0),
        config=TrainerConfig(
            num_iterations=num_iterations, random_seed=0, unroll_length=4, **settings
        ),
        search=TreeSearch(4),
        model_ctor=SMALL,
        n_step=3,
    )
    for _ in range(num_iterations):
        algorithm.train_iter()
    return algorithm


@pytest.mark.ci
def test_the_same_seed_gives_the_same_parameters():
    one, other = (on_cart_pole(6, priority_replay=True) for _ in range(2))
    assert one.num_updates > 0
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    one.finish_train()
    other.finish_train()


def test_a_policy_that_searches_has_no_distribution():
    env = create_environment("CartPole-v1", 1, seed=0)
    config = TrainerConfig(num_iterations=1, random_seed=0)
    policy = MuzeroAlgorithm(env=env, config=config, search=TreeSearch(2)).policy()
    with pytest.raises(ConfigError, match="has no distribution of its actions"):
        policy.distribution(env.reset().observation.numpy())


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="num_unroll_steps \\+ n_step"):
        muzero(config=TrainerConfig(mini_batch_length=5, num_iterations=1))
    with pytest.raises(ValueError, match="MuzeroAlgorithm cannot handle these"):
        several = BoundedTensorSpec((2,), dtype=torch.int64, minimum=0, maximum=1)
        MuzeroAlgorithm(OBSERVATION, several)
    with pytest.raises(ValueError, match="num_unroll_steps must be a positive"):
        muzero(num_unroll_steps=0)
    env = create_environment("CartPole-v1", 1)
    with pytest.raises(ConfigError, match="two_players = False"):
        MuzeroAlgorithm(
            env=env, config=TrainerConfig(num_iterations=1), two_players=True
        )
    env.close()


def test_a_model_that_gives_nan_is_said():
    algorithm = muzero()
    nn.init.constant_(algorithm._model._reward.weight, NAN)
    steps, _ = windows([0, 1, 1, 1, 1, 2], [1.0] * 6)
    inputs = nest.map_structure(lambda t: t[:, 0], steps)
    with torch.no_grad(), pytest.raises(ValueError, match="model returned a reward"):
        algorithm.rollout_step(inputs, ())


@pytest.mark.slow
def test_the_model_learns_which_action_is_rewarded():
    """Episodes of one step whose reward is 1 if action and sign agree, else -1."""
    torch.manual_seed(0)
    size, length = 32, 5
    algorithm = MuzeroAlgorithm(
        TensorSpec((1,)), ACTION, num_unroll_steps=2, n_step=2, search=TreeSearch(4)
    )
    model = algorithm._model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    step_type = torch.tensor([0, 2, 0, 2, 0], dtype=torch.int32).expand(size, length)
    for _ in range(300):
        sign = torch.randint(2, (size, length)) * 2 - 1.0
        action = torch.randint(2, (size, length))
        agrees = (2 * action[:, 1:] - 1) * sign[:, :-1]
        reward = torch.where(step_type[:, 1:] == 2, agrees, 0.0)
        steps = TimeStep(
            step_type=step_type,
            reward=torch.nn.functional.pad(reward, (1, 0)),
            discount=(step_type != 2).float(),
            observation=torch.where(step_type == 0, sign, 0.0).unsqueeze(-1),
            prev_action=action,
            env_id=torch.zeros(size, length),
        )
        policy = torch.full((size, length, 2), 0.5)
        with torch.no_grad():
            inputs, window = algorithm.preprocess_experience(
                steps, MuzeroRolloutInfo(policy), BatchInfo()
            )
        flat = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, window))
        step = algorithm.train_step(flat[0], (), flat[1])
        info = nest.map_structure(lambda t: t.unsqueeze(0), step.info)
        loss = algorithm.calc_loss(info)
        optimizer.zero_grad()
        loss.loss.mean().backward()
        optimizer.step()
    observation = torch.tensor([1.0, 1.0, -1.0, -1.0]).unsqueeze(-1)
    with torch.no_grad():
        _, expected = model.step(
            model.encode(observation), one_hot(torch.tensor([0, 1, 0, 1])).float()
        )
    reward = model.reward_head.mean(expected.reward)
    assert reward.tolist() == pytest.approx([-1, 1, 1, -1], abs=0.3)
    assert (expected.continues.sigmoid() < 0.05).all()
    # What is left is the entropy of two hot atoms of h(±1), of two steps the first
    p = model.reward_head.two_hot(torch.tensor(1.0))
    floor = -(p * p.clamp(min=1e-9).log()).sum() / 2
    info = nest.map_structure(lambda t: t.squeeze(0), info)
    assert info.reward.shape[:2] == (size, 2)
    of_first = model.reward_head.fit(
        info.reward, window.targets.reward.flatten(0, 1)[:, 1:]
    )
    assert of_first.mean().item() == pytest.approx(floor.item(), abs=0.08)


@pytest.mark.ci
@slow_but_for("test_learns_a_value_that_depends_on_the_observation")
class TestDiscreteActions(OffPolicyLearningContract):
    features = Feature.DISCRETE_ACTIONS
    num_iterations, num_policy_iterations = 120, 60
    settings: ClassVar = {"mini_batch_length": 4}

    def make(self, env, config, *, recurrent):
        return MuzeroAlgorithm(
            env=env,
            config=config,
            gamma=GAMMA,
            search=TreeSearch(8),
            model_ctor=functools.partial(
                LearnedModel, latent_size=32, fc_layer_params=(64,)
            ),
            num_unroll_steps=2,
            n_step=1,
            optimizer=Adam(lr=3e-3),
        )

    def value(self, algorithm, observation):
        return algorithm._model.value(observation)


@pytest.mark.ci
@slow_but_for("test_learns_continuous_actions")
class TestSampledActions(TestDiscreteActions):
    features = Feature.CONTINUOUS_ACTIONS
    # Of those with discrete actions it is a slow one
    test_learns_continuous_actions = (
        OffPolicyLearningContract.test_learns_continuous_actions
    )

    def test_learns_a_nest_of_continuous_actions(self):
        self.num_policy_iterations = 200  # three numbers, hit by 16 samples
        super().test_learns_a_nest_of_continuous_actions()
