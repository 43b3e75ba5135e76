"""Observations are scaled by the statistics of the unrolls before, and only by them."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.data_transformers.normalizing_transformers import (
    ObservationNormalizer,
    RewardNormalizer,
)
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.ranks import ranks

SPEC = {
    "camera": BoundedTensorSpec((2, 2), torch.uint8, 0, 255),
    "position": TensorSpec((3,)),
    "speed": TensorSpec(()),
}
FIRST, MID, LAST = 0, 1, 2
GAMMA = 0.9
OBSERVATION_SPEC = TensorSpec((1,))


def observations(*outer_dims, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sample = {k: s.sample(outer_dims, generator) for k, s in SPEC.items()}
    return sample | {"speed": sample["speed"] * 5 + 2}


def unroll(observation):
    return TimeStep(observation=observation)


def normalized(data, x):
    """By the statistics of ``data`` [T, B, ...]."""
    rows = data.flatten(0, 1).double()
    return ((x - rows.mean(0)) / rows.std(0, correction=0)).float()


def test_floating_parts_are_normalized_and_others_passed_on():
    normalizer = ObservationNormalizer(SPEC)
    data = observations(20, 4)
    normalizer.observe(unroll(data))
    x = observations(4, seed=1)
    time_step, state = normalizer.transform_timestep(unroll(x), ())
    assert state == ()
    assert time_step.observation["camera"] is x["camera"]
    for name in ("position", "speed"):
        torch.testing.assert_close(
            time_step.observation[name], normalized(data[name], x[name])
        )


def test_only_the_named_fields_are_normalized():
    normalizer = ObservationNormalizer(SPEC, fields=["speed"])
    normalizer.observe(unroll(observations(20, 4)))
    x = observations(4, seed=1)
    outputs = normalizer.transform(unroll(x)).observation
    assert outputs["position"] is x["position"]
    assert not torch.equal(outputs["speed"], x["speed"])
    assert normalizer.transformed_observation_spec["position"] == SPEC["position"]


def test_an_observation_that_is_one_tensor():
    normalizer = ObservationNormalizer(TensorSpec((2,)))
    data = torch.randn(10, 3, 2) * 4 + 1
    normalizer.observe(unroll(data))
    torch.testing.assert_close(
        normalizer.transform(unroll(data[0])).observation, normalized(data, data[0])
    )


def test_all_other_fields_of_the_time_step_are_kept():
    time_step = TimeStep(
        step_type=torch.zeros(4),
        reward=torch.ones(4),
        discount=torch.ones(4),
        observation=observations(4),
        prev_action=torch.ones(4),
        env_id=torch.arange(4),
        env_info={"x": torch.ones(4)},
    )
    outputs = ObservationNormalizer(SPEC).transform(time_step)
    for name in TimeStep._fields:
        if name != "observation":
            assert getattr(outputs, name) is getattr(time_step, name)


def test_stored_experience_is_transformed_like_single_steps():
    normalizer = ObservationNormalizer(SPEC)
    normalizer.observe(unroll(observations(20, 4)))
    stored = observations(5, 6)
    experience = normalizer.transform_experience(
        Experience(time_step=unroll(stored), action=torch.zeros(5, 6))
    )
    for t in range(6):
        step = unroll({k: v[:, t] for k, v in stored.items()})
        for name, value in normalizer.transform(step).observation.items():
            outputs = experience.time_step.observation[name]
            assert torch.equal(outputs[:, t], value)


def test_outputs_obey_their_spec():
    normalizer = ObservationNormalizer(SPEC, clipping=0.5)
    spec = normalizer.transformed_observation_spec["position"]
    assert spec == BoundedTensorSpec((3,), torch.float32, -0.5, 0.5)
    for _ in range(2):  # before and after the first update
        outputs = normalizer.transform(unroll(observations(50))).observation
        assert outputs["position"].abs().max() == 0.5
        normalizer.observe(unroll(observations(20, 4)))


def test_before_the_first_unroll_nothing_is_scaled():
    normalizer = ObservationNormalizer(SPEC, clipping=None)
    x = observations(4)
    outputs = normalizer.transform(unroll(x)).observation
    assert torch.equal(outputs["position"], x["position"])
    assert normalizer.transformed_observation_spec["position"] == SPEC["position"]


def test_transforming_never_changes_the_statistics():
    normalizer = ObservationNormalizer(SPEC)
    normalizer.observe(unroll(observations(20, 4)))
    before = copy.deepcopy(normalizer.state_dict())
    for seed in range(20):
        normalizer.transform_timestep(unroll(observations(4, seed=seed)), ())
        stored = Experience(time_step=unroll(observations(5, 6, seed=seed)))
        normalizer.transform_experience(stored)
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, before[name])


def test_one_unroll_is_counted_once():
    normalizer = ObservationNormalizer(SPEC)
    normalizer.observe(unroll(observations(20, 4)))
    assert normalizer.normalizer.count == 80


def test_statistics_are_in_the_state_of_the_module():
    trained = ObservationNormalizer(SPEC)
    trained.observe(unroll(observations(20, 4)))
    loaded = ObservationNormalizer(SPEC)
    loaded.load_state_dict(trained.state_dict())
    x = unroll(observations(4, seed=3))
    assert torch.equal(
        loaded.transform(x).observation["position"],
        trained.transform(x).observation["position"],
    )


def test_update_mode_never_keeps_the_statistics():
    normalizer = ObservationNormalizer(SPEC, update_mode="never")
    assert not normalizer.has_statistics
    normalizer.observe(unroll(observations(20, 4)))
    assert normalizer.normalizer.count == 0


def test_a_nan_is_refused_with_its_step_and_environment():
    normalizer = ObservationNormalizer(SPEC)
    data = observations(20, 4)
    data["position"][7, 2, 1] = float("nan")
    with pytest.raises(EnvError, match=r"position: nan at index \(7, 2, 1\)"):
        normalizer.observe(unroll(data))
    assert normalizer.normalizer.count == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": ["camera"]}, "'camera' must be floating point"),
        ({"clipping": 0.0}, "clipping must be above 0 or None, got 0.0"),
        ({"update_mode": "replay"}, r"update_mode must be one of.*got 'replay'"),
        ({"mode": "em"}, "mode must be one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ObservationNormalizer(SPEC, **arguments)


def make(reward_shape=(), **arguments):
    arguments = {"gamma": GAMMA, "clipping": None} | arguments
    return RewardNormalizer(OBSERVATION_SPEC, TensorSpec(reward_shape), **arguments)


def random_steps(seed, num_steps=30, num_envs=3, reward_shape=()):
    rng = np.random.default_rng(seed)
    step_types = np.zeros((num_steps, num_envs), dtype=int)
    for t in range(1, num_steps):
        drawn = rng.choice([MID, LAST], num_envs, p=[0.8, 0.2])
        step_types[t] = np.where(step_types[t - 1] == LAST, FIRST, drawn)
    reward = rng.normal(size=(num_steps, num_envs, *reward_shape)) + 1
    reward[step_types == FIRST] = 0
    return TimeStep(
        step_type=torch.tensor(step_types),
        reward=torch.tensor(reward, dtype=torch.float32),
        discount=torch.ones(num_steps, num_envs),
        env_id=torch.tensor([[2, 0, 1][:num_envs]] * num_steps),
    )


def naive_returns(steps):
    """R of all steps that are not FIRST, in one list."""
    found, running = [], {}
    for t, row in enumerate(steps.step_type.tolist()):
        for b, step_type in enumerate(row):
            reward = steps.reward[t, b].double().numpy()
            if step_type == FIRST:
                running[b] = np.zeros_like(reward)
            else:
                running[b] = GAMMA * running[b] + reward
                found.append(running[b])
    return np.stack(found)


@pytest.mark.parametrize("reward_shape", [(), (2,)])
@pytest.mark.parametrize("cuts", [[], [10, 20], [1, 2, 3], list(range(1, 30))])
@pytest.mark.parametrize("is_split", [False, True])
def test_equals_a_loop_over_steps_however_they_come(cuts, reward_shape, is_split):
    steps = random_steps(len(cuts), reward_shape=reward_shape)
    normalizer = make(reward_shape)
    for begin, end in itertools.pairwise([0, *cuts, 30]):
        for columns in [[2], [0, 1]] if is_split else [[0, 1, 2]]:
            rows = slice(begin, end)
            part = nest.map_structure(lambda x, r=rows, c=columns: x[r, c], steps)
            normalizer.observe(part)
    returns = naive_returns(steps)
    assert normalizer.normalizer.count == len(returns)
    expected = steps.reward / torch.tensor(returns.std(0)).float()
    torch.testing.assert_close(normalizer.transform(steps).reward, expected)


@pytest.mark.parametrize("max_return", [0.5, 100.0])
@pytest.mark.parametrize("on_device", [False, True])
def test_scaled_returns_stay_within_their_bound(max_return, on_device, monkeypatch):
    steps = random_steps(4, reward_shape=(2,))
    normalizer = make((2,), max_return=max_return)
    update = normalizer._update_on_device if on_device else normalizer.observe
    for rows in (slice(0, 12), slice(12, 30)):
        update(nest.map_structure(lambda x, r=rows: x[r, [1, 2, 0]], steps))
    returns = naive_returns(steps)
    divisor = np.maximum(returns.std(0), np.abs(returns).max(0) / max_return)
    assert (divisor > returns.std(0)).all() == (max_return < 1)
    expected = steps.reward / torch.tensor(divisor).float()
    torch.testing.assert_close(normalizer.transform(steps).reward, expected)
    restored = make((2,), max_return=max_return)
    restored.load_state_dict(normalizer.state_dict())
    torch.testing.assert_close(restored.transform(steps).reward, expected)
    if max_return < 1:
        assert np.abs(returns / divisor).max() == pytest.approx(max_return)


def test_the_bound_of_returns_is_that_of_all_ranks(monkeypatch):
    largest = make(max_return=1.0)._largest
    monkeypatch.setattr(ranks, "size", 2)
    largest.update(torch.tensor([1.0, -7.0]))
    largest.update(torch.tensor([3.0]))
    assert largest.value == 0  # until all share
    largest.take_in(torch.stack([largest.take_pending(), torch.tensor([9.0])]))
    assert largest.value == 9
    assert largest.take_pending().tolist() == [9.0]  # nothing new


def test_a_bound_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="max_return must be above 0"):
        make(max_return=0.0)


def test_by_hand():
    steps = TimeStep(
        step_type=torch.tensor([[FIRST], [MID], [LAST], [FIRST], [LAST]]),
        reward=torch.tensor([[0.0], [1.0], [1.0], [0.0], [3.0]]),
        discount=torch.ones(5, 1),
    )
    normalizer = make(gamma=0.5)
    normalizer.observe(steps)
    # R = 1, 1.5, 3: mean 11/6, variance 13/18
    scale = (18 / 13) ** 0.5
    outputs = normalizer.transform(steps).reward.flatten().tolist()
    assert outputs == pytest.approx([0.0, scale, scale, 0.0, 3 * scale])


def test_before_the_first_unroll_rewards_are_only_clipped():
    steps = random_steps(0)
    assert torch.equal(make().transform(steps).reward, steps.reward)
    outputs = make(clipping=0.5).transform(steps).reward
    assert torch.equal(outputs, steps.reward.clamp(-0.5, 0.5))


@pytest.mark.parametrize("reward", [0.0, 2.0])
def test_returns_without_spread_leave_the_reward_as_it_is(reward):
    step_types = torch.tensor([[FIRST], [LAST]] * 5)
    rewards = (step_types == LAST) * reward
    steps = TimeStep(step_types, rewards, torch.ones(10, 1))
    normalizer = make()
    normalizer.observe(steps)
    assert torch.equal(normalizer.transform(steps).reward, rewards)


def test_the_raw_reward_is_left_as_it_was():
    steps = random_steps(0)
    before = steps.reward.clone()
    normalizer = make()
    normalizer.observe(steps)
    normalizer.transform(steps)
    assert torch.equal(steps.reward, before)


def test_a_restored_normalizer_continues_exactly():
    steps = random_steps(1)
    before, after = (
        nest.map_structure(lambda x, s=s: x[s], steps)
        for s in (slice(0, 13), slice(13, None))
    )
    original, restored = make(), make()
    original.observe(before)
    restored.load_state_dict(original.state_dict())
    restored.load_training_state_dict(original.training_state_dict())
    original.observe(after)
    restored.observe(after)
    for name, value in original.state_dict().items():
        assert torch.equal(value, restored.state_dict()[name])


def test_the_state_of_the_module_does_not_depend_on_the_number_of_environments():
    many, one = make(), make()
    many.observe(random_steps(0))
    one.load_state_dict(many.state_dict())
    single = random_steps(0, num_envs=1)._replace(env_id=())
    assert torch.equal(one.transform(single).reward, many.transform(single).reward)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_rewards_are_refused_and_nothing_changes(bad):
    steps = random_steps(0)
    normalizer, other = make(), make()
    for n in (normalizer, other):
        n.observe(steps)
    spoilt = steps.reward.clone()
    spoilt[4, 2] = bad
    with pytest.raises(EnvError, match=rf"reward: {bad} at index \(4, 2\)"):
        normalizer.observe(steps._replace(reward=spoilt))
    for n in (normalizer, other):
        n.observe(random_steps(1))
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


def test_an_unroll_of_first_steps_only():
    steps = nest.map_structure(lambda x: x[:1], random_steps(0))
    normalizer = make()
    normalizer.observe(steps)
    assert normalizer.normalizer.count == 0


def test_bad_gamma_is_refused():
    with pytest.raises(ConfigError, match=r"gamma must be in \[0, 1\], got 1.1"):
        make(gamma=1.1)
