"""Learned rewards and their losses are what their papers say, step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.diayn_reward import DiaynReward
from alf_lite.algorithms.gail_reward import GailReward
from alf_lite.algorithms.icm_reward import IcmReward
from alf_lite.algorithms.parts.novelty import NormalizedObservations, ReturnScale
from alf_lite.algorithms.rnd_reward import RndReward
from alf_lite.data_structures import BatchInfo, Experience, StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from tests.replayed_steps import BOX, CHOICE, MIXED, OBSERVATION, windows

FIRST, MID, LAST = (int(t) for t in StepType)
OWN = BatchInfo()
LENGTH = 4
SKILL_OBSERVATION = {"observation": OBSERVATION, "goal": TensorSpec((5,))}
REWARDS = {
    "rnd": lambda: RndReward(OBSERVATION, MIXED, predictor_update_period=1),
    "icm": lambda: IcmReward(OBSERVATION, MIXED),
    "diayn": lambda: DiaynReward(SKILL_OBSERVATION, MIXED),
    "gail": lambda: GailReward(OBSERVATION, MIXED),
}
of_each = pytest.mark.parametrize("name", REWARDS)


def steps_for(name: str, action_spec=MIXED, length: int = LENGTH) -> TimeStep:
    steps = windows(action_spec, length)
    if name != "diayn":
        return steps
    skill = torch.eye(5)[torch.randint(5, steps.step_type.shape)]
    observation = {"observation": steps.observation, "goal": skill}
    return steps._replace(observation=observation)


def flat(values):
    return nest.map_structure(lambda t: t.transpose(0, 1).flatten(0, 1), values)


def train_info(reward, steps, batch_info=OWN):
    """What ``calc_loss`` gets of windows, [T-1, B, ...]."""
    inputs, info = reward.preprocess_experience(steps, (), batch_info)
    assert inputs is steps
    first_steps = nest.narrow(steps, 0, steps.step_type.shape[1] - 1, dim=1)
    step = reward.train_step(flat(first_steps), (), flat(info))
    shape = (steps.step_type.shape[1] - 1, steps.step_type.shape[0])
    return nest.map_structure(lambda t: t.unflatten(0, shape), step.info)


def sources(batch_size: int) -> BatchInfo:
    """Every other row is from the first offline buffer."""
    return BatchInfo(source=torch.arange(batch_size) % 2)


@of_each
def test_a_reward_belongs_to_arriving_and_to_nothing_else(name):
    torch.manual_seed(0)
    reward, steps = REWARDS[name](), steps_for(name)
    before = nest.map_structure(torch.clone, steps)
    values = reward.reward_of(steps, sources(len(steps.step_type)))
    assert values.shape == steps.step_type.shape
    assert not values.requires_grad
    assert (values[:, 0] == 0).all()
    assert (values[steps.step_type == FIRST] == 0).all()
    arrived = steps.step_type != FIRST
    arrived[:, 0] = False
    assert (values[arrived] != 0).all()
    nest.map_structure(torch.testing.assert_close, steps, before)


@of_each
def test_the_loss_has_one_entry_for_each_transition_and_trains_the_reward(name):
    torch.manual_seed(0)
    reward, steps = REWARDS[name](), steps_for(name)
    info = sources(len(steps.step_type))
    loss = reward.calc_loss(train_info(reward, steps, info)).loss
    assert loss.shape == (LENGTH - 1, len(steps.step_type))
    parameters = [p for p in reward.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        current = reward.calc_loss(train_info(reward, steps, info)).loss.mean()
        current.backward()
        optimizer.step()
    assert current < 0.5 * loss.mean()
    assert all(p.grad is not None for p in parameters)


# RND and the statistics


def test_rnd_is_the_scaled_error_of_the_predictor():
    torch.manual_seed(0)
    reward = RndReward(OBSERVATION, CHOICE, predictor_update_period=1)
    steps = windows(CHOICE, LENGTH)
    values = reward.train().reward_of(steps, OWN)
    rows = steps.observation.flatten(0, 1)
    normal = (rows - rows.mean(0)) / rows.std(0, correction=0)
    normal = normal.clamp(-5, 5).view_as(steps.observation)
    every = torch.zeros(values.shape)
    for b in range(len(every)):
        for t in range(LENGTH):
            difference = reward._predictor(normal[b, t])[0]
            difference = difference - reward._target(normal[b, t])[0]
            every[b, t] = difference.square().mean()
    arrived = steps.step_type != FIRST
    arrived[:, 0] = False
    error = torch.where(arrived, every, 0.0)
    returns = []
    for row in error:
        total = 0.0
        for r in row[1:].tolist():
            total = 0.99 * total + r
            returns.append(total)
    expected = error / np.std(returns)
    torch.testing.assert_close(values, expected.detach())
    # Once more in evaluation: nothing has changed but what training changed.
    again = reward.eval().reward_of(steps, OWN)
    torch.testing.assert_close(again, values)
    loss = reward.calc_loss(train_info(reward, steps)).loss
    torch.testing.assert_close(loss.T, every[:, 1:])
    # So that it learns of every step that it rewards, also where an episode ends.
    is_trained = valid_steps(steps.step_type[:, :-1])
    assert torch.equal(is_trained, arrived[:, 1:])
    is_end = steps.step_type[:, 1:] == StepType.LAST
    assert is_end.any()
    assert is_trained[is_end].all()


def test_the_random_features_of_what_was_rewarded_are_not_computed_twice(monkeypatch):
    reward, steps = RndReward(OBSERVATION, CHOICE), windows(CHOICE, LENGTH)
    others = windows(CHOICE, LENGTH)
    forward, calls = reward._target.forward, []
    monkeypatch.setattr(
        reward._target, "forward", lambda x, s=(): calls.append(0) or forward(x, s)
    )
    reward.reward_of(steps, OWN)
    _, info = reward.preprocess_experience(steps, (), OWN)
    assert len(calls) == 1
    _, again = reward.preprocess_experience(steps, (), OWN)
    assert len(calls) == 2
    torch.testing.assert_close(info.target, again.target)
    reward.reward_of(steps, OWN)
    _, info = reward.preprocess_experience(others, (), OWN)
    assert len(calls) == 4
    expected, _ = forward(reward._observations(others.observation[:, 1:]).flatten(0, 1))
    torch.testing.assert_close(info.target.flatten(0, 1), expected)


def test_the_predictor_is_trained_in_every_fourth_update():
    reward, steps = RndReward(OBSERVATION, CHOICE), windows(CHOICE, LENGTH)
    trained = []
    for _ in range(8):
        reward.reward_of(steps, OWN)
        loss = reward.calc_loss(train_info(reward, steps)).loss
        trained.append(isinstance(loss, torch.Tensor))
        reward.after_update((), ())
    assert trained == [False, False, False, True] * 2
    with pytest.raises(ValueError, match="predictor_update_period must be a positive"):
        RndReward(OBSERVATION, CHOICE, predictor_update_period=0)


@pytest.mark.ci
def test_rnd_rewards_what_it_has_not_seen():
    torch.manual_seed(0)
    reward = RndReward(OBSERVATION, CHOICE, predictor_update_period=1)
    optimizer = torch.optim.Adam(reward._predictor.parameters(), lr=1e-3)
    assert not any(p.requires_grad for p in reward._target.parameters())
    for _ in range(200):
        steps = windows(CHOICE, 2, 64)
        steps = steps._replace(observation=torch.randn(64, 2, 3))
        reward.train().reward_of(steps, OWN)
        optimizer.zero_grad()
        reward.calc_loss(train_info(reward, steps)).loss.mean().backward()
        optimizer.step()
    mid = torch.full((64, 2), StepType.MID, dtype=torch.int32)
    known = steps._replace(step_type=mid, observation=torch.randn(64, 2, 3))
    new = known._replace(observation=known.observation + 4)
    rewards = [reward.eval().reward_of(s, OWN)[:, 1] for s in (known, new)]
    assert rewards[1].mean() > 3 * rewards[0].mean()


def test_categories_are_not_normalized_and_other_numbers_are():
    torch.manual_seed(0)
    specs = {
        "category": BoundedTensorSpec((), torch.int64, 0, 3),
        "picture": BoundedTensorSpec((2, 2, 1), torch.uint8, 0, 255),
        "speed": TensorSpec((2,)),
    }
    normalized = NormalizedObservations(specs, clip=1.5)
    observation = nest.map_structure(lambda s: s.sample((100,)), specs)
    normalized.update(observation)
    result = normalized(observation)
    assert torch.equal(result["category"], observation["category"])
    assert normalized.spec["category"] == specs["category"]
    for name in ("picture", "speed"):
        assert result[name].dtype == normalized.spec[name].dtype == torch.float32
        assert result[name].shape[1:] == normalized.spec[name].shape
        assert result[name].abs().max() <= 1.5
        assert result[name].mean().abs() < 0.2
    only = NormalizedObservations(specs["category"])
    only.update(observation["category"])
    assert only(observation["category"]) is observation["category"]


def test_the_scale_of_windows_of_two_steps_is_that_of_the_rewards():
    torch.manual_seed(0)
    scale, reward = ReturnScale(0.9), torch.rand(5, 2)
    steps = windows(CHOICE)
    scale.update(reward, steps)
    reward[steps.is_first()] = 0.0
    expected = reward / reward[:, 1].std(correction=0)
    torch.testing.assert_close(scale(reward), expected)


def test_steps_in_which_an_agent_waits_change_neither_the_scale_nor_the_reward():
    torch.manual_seed(0)
    steps, kept = windows(CHOICE, 6), [0, 1, 2, 5]
    steps.step_type[:] = torch.tensor([FIRST, MID, LAST, LAST, LAST, FIRST])
    scale, other, reward = ReturnScale(0.9), ReturnScale(0.9), torch.rand(5, 6)
    scale.update(reward, steps)
    other.update(reward[:, kept], nest.map_structure(lambda t: t[:, kept], steps))
    torch.testing.assert_close(scale(reward), other(reward))
    values = IcmReward(OBSERVATION, CHOICE).reward_of(steps, OWN)
    assert (values != 0).tolist() == [[False, True, True, False, False, False]] * 5


# ICM


@pytest.mark.parametrize("action_spec", [CHOICE, BOX, MIXED])
def test_icm_is_the_error_of_the_forward_model(action_spec):
    torch.manual_seed(0)
    reward = IcmReward(
        OBSERVATION, action_spec, normalize_reward=False, forward_loss_weight=0.3
    )
    steps = windows(action_spec, LENGTH)
    values = reward.reward_of(steps, OWN)
    loss_info = reward.calc_loss(train_info(reward, steps))
    phi = reward._features(reward._observations(steps.observation))[0]
    for b in range(values.shape[0]):
        for t in range(LENGTH - 1):
            action = nest.map_structure(
                lambda a, b=b, t=t: a[b, t + 1].unsqueeze(0), steps.prev_action
            )
            leaves = dict(zip(("gear", "move"), nest.flatten(action), strict=False))
            if action_spec is not MIXED:
                leaves = {"gear" if action_spec is CHOICE else "move": action}
            vector, parts = [], []
            predicted = reward._inverse_model(torch.cat([phi[b, t], phi[b, t + 1]]))[0]
            if "move" in leaves:  # bounds [-1, 1] and [0, 10]
                x, y = leaves["move"][0].tolist()
                vector += [x, y / 5 - 1]
                error = predicted[:2] - torch.tensor(vector)
                parts.append(error.square().mean())
            if "gear" in leaves:
                gear = int(leaves["gear"])
                vector += [float(i == gear) for i in range(3)]
                parts.append(-predicted[-3:].log_softmax(0)[gear])
            inputs = torch.cat([phi[b, t], torch.tensor(vector)])
            error = reward._forward_model(inputs)[0] - phi[b, t + 1]
            forward = 0.5 * error.square().mean()
            if steps.step_type[b, t + 1] != FIRST:
                torch.testing.assert_close(values[b, t + 1], forward.detach())
            expected = 0.7 * sum(parts) + 0.3 * forward
            torch.testing.assert_close(loss_info.loss[t, b], expected)


def test_the_features_of_icm_are_learned_by_the_inverse_model_alone():
    torch.manual_seed(0)
    reward, steps = IcmReward(OBSERVATION, CHOICE), windows(CHOICE, LENGTH)
    info = train_info(reward, steps)
    info.forward.mean().backward(retain_graph=True)
    assert all(p.grad is None for p in reward._features.parameters())
    info.inverse.mean().backward()
    assert all(p.grad is not None for p in reward._features.parameters())


# DIAYN


def test_diayn_tells_how_likely_the_skill_is():
    torch.manual_seed(0)
    reward, steps = DiaynReward(SKILL_OBSERVATION, CHOICE), steps_for("diayn")
    values = reward.reward_of(steps, OWN)
    loss_info = reward.calc_loss(train_info(reward, steps))
    for b in range(values.shape[0]):
        for t in range(LENGTH - 1):
            logits = reward._discriminator(steps.observation["observation"][b, t + 1])
            skill = int(steps.observation["goal"][b, t].argmax())
            log_q = logits[0].log_softmax(0)[skill]
            torch.testing.assert_close(loss_info.loss[t, b], -log_q)
            if steps.step_type[b, t + 1] != FIRST:
                expected = log_q.detach() - math.log(1 / 5)
                torch.testing.assert_close(values[b, t + 1], expected)


# GAIL


@pytest.mark.parametrize("form", ["gail", "airl", "log"])
def test_the_rewards_of_gail(form):
    torch.manual_seed(0)
    reward = GailReward(OBSERVATION, CHOICE, reward_form=form).eval()
    steps = windows(CHOICE, LENGTH)
    values = reward.reward_of(steps, OWN)
    for b in range(values.shape[0]):
        for t in range(1, LENGTH):
            if steps.step_type[b, t] == FIRST:
                continue
            action = torch.eye(3)[steps.prev_action[b, t]]
            h = reward._h(torch.cat([steps.observation[b, t - 1], action]))
            d = torch.sigmoid(h)
            expected = {
                "gail": -torch.log(1 - d),
                "airl": torch.log(d) - torch.log(1 - d),
                "log": torch.log(d),
            }[form]
            torch.testing.assert_close(values[b, t : t + 1], expected.detach())


@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_the_loss_of_gail_by_rows_of_a_batch_and_by_pairs(weight):
    torch.manual_seed(0)
    reward = GailReward(OBSERVATION, BOX, gradient_penalty=weight)
    steps = windows(BOX, LENGTH)
    batch_size = len(steps.step_type)

    def loss_of(observation, action, is_expert):
        scaled = action / torch.tensor([1.0, 5.0]) - torch.tensor([0.0, 1.0])
        inputs = torch.cat([observation, scaled]).requires_grad_()
        h = reward._h(inputs)
        (gradient,) = torch.autograd.grad(h, inputs, retain_graph=True)
        d = torch.sigmoid(h.squeeze())
        return -torch.log(d if is_expert else 1 - d) + weight * gradient.square().sum()

    mixed = reward.calc_loss(train_info(reward, steps, sources(batch_size))).loss
    expert = windows(BOX, 2, batch_size * (LENGTH - 1))
    expert = expert._replace(observation=expert.observation + 1)
    reward.recorded_steps = lambda n, length: Experience(
        time_step=nest.map_structure(lambda t: t[:n], expert)
    )
    paired = reward.calc_loss(train_info(reward, steps)).loss
    # What begins at the end of an episode is no transition: others take its place.
    last = expert.step_type[:, 0] == StepType.LAST
    order = torch.cat([(~last).nonzero(), last.nonzero()]).squeeze(1)
    rows = order[torch.arange(len(last)) % int((~last).sum())].tolist()
    assert last.any()
    for b in range(batch_size):
        for t in range(LENGTH - 1):
            own = steps.observation[b, t], steps.prev_action[b, t + 1]
            expected = loss_of(*own, is_expert=b % 2 == 1)
            torch.testing.assert_close(mixed[t, b], expected)
            n = rows[b * (LENGTH - 1) + t]
            other = expert.observation[n, 0], expert.prev_action[n, 1]
            expected = 0.5 * (loss_of(*own, False) + loss_of(*other, True))
            torch.testing.assert_close(paired[t, b], expected)


@pytest.mark.parametrize("name", ["gail", "icm"])
def test_an_action_beyond_its_bounds_counts_as_the_bound(name):
    reward = REWARDS[name]().eval()
    steps = windows(MIXED, LENGTH)
    values = []
    for beyond in (0.0, 7.0):
        high = torch.tensor(BOX.maximum)
        steps.prev_action["move"][:] = high + beyond * high
        values.append(reward.reward_of(steps, OWN))
    torch.testing.assert_close(*values)


def test_spectral_normalisation_stretches_nothing():
    torch.manual_seed(0)
    options = {"use_spectral_norm": True, "gradient_penalty": 0.0}
    reward = GailReward(OBSERVATION, BOX, activation="relu", **options).eval()
    x = torch.randn(500, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(reward._h(x).sum(), x)
    assert gradient.norm(dim=-1).max() < 1.05


# Bad input


def test_what_a_learned_reward_cannot_do_is_said_at_once():
    unbounded, video = TensorSpec((2,)), TensorSpec((2, 2, 2, 2))
    for cls in (IcmReward, GailReward):
        with pytest.raises(ValueError, match="bounds"):
            cls(OBSERVATION, {"arm": unbounded})
    for cls in (RndReward, IcmReward, GailReward):
        with pytest.raises(ValueError, match=r"observation\.video: .*3 dimensions"):
            cls({"video": video}, CHOICE)
    with pytest.raises(ValueError, match="has a memory"):
        RndReward(OBSERVATION, CHOICE, encoding_network_ctor=LSTMEncodingNetwork)
    with pytest.raises(ValueError, match="has a memory"):
        GailReward(OBSERVATION, CHOICE, encoding_network_ctor=LSTMEncodingNetwork)
    for spec in (OBSERVATION, {"observation": OBSERVATION}):
        with pytest.raises(ValueError, match="goal_generator_ctor = @RandomGoal"):
            DiaynReward(spec, CHOICE)
    with pytest.raises(ConfigError, match="reward_gamma has no effect: normalize_rew"):
        IcmReward(OBSERVATION, CHOICE, normalize_reward=False, reward_gamma=0.9)
    with pytest.raises(ValueError, match="reward_form must be one of"):
        GailReward(OBSERVATION, CHOICE, reward_form="fail")
    with pytest.raises(ConfigError, match="offline_buffer_dir"):
        train_info(GailReward(OBSERVATION, CHOICE), windows(CHOICE, LENGTH))
