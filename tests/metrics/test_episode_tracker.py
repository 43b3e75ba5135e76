"""The tracker agrees with a plain loop over steps, however the steps are cut."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.errors import CheckpointError
from alf_lite.metrics.episode_tracker import EpisodeTracker
from alf_lite.tensor_specs import TensorSpec

FIRST, MID, LAST = 0, 1, 2
GAMMA = 0.9
INFO_SPEC = {"speed": TensorSpec((2,)), "success": TensorSpec((), torch.bool)}


def random_step_types(rng, num_steps, num_envs):
    """Episodes of length 1 and longer, interrupted by a FIRST, all ending at once, and
    whose begin is missing."""
    rows = [rng.integers(0, 3, num_envs)]
    for _ in range(num_steps - 1):
        following = rng.choice([FIRST, MID, LAST], num_envs, p=[0.05, 0.65, 0.3])
        if rng.random() < 0.1:
            following[:] = LAST
        rows.append(np.where(rows[-1] == LAST, FIRST, following))
    return np.stack(rows)


def random_steps(seed, num_steps=40, num_envs=3, reward_shape=()):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    return TimeStep(
        step_type=torch.tensor(random_step_types(rng, *shape), dtype=torch.int32),
        reward=torch.tensor(rng.normal(size=(*shape, *reward_shape))).float(),
        discount=torch.tensor(rng.choice([0.0, 0.5, 1.0], shape)).float(),
        env_id=torch.tensor(np.tile(rng.permutation(num_envs), (num_steps, 1))).int(),
        env_info={
            "speed": torch.tensor(rng.normal(size=(*shape, 2))).float(),
            "success": torch.tensor(rng.random(shape) < 0.5),
        },
    )


def make_tracker(reward_shape=(), num_envs=3, buffer_size=6):
    return EpisodeTracker(
        TensorSpec(reward_shape),
        INFO_SPEC,
        batch_size=num_envs,
        buffer_size=buffer_size,
        gamma=GAMMA,
    )


def naive_discounted_returns(rewards, discounts):
    """G_0 ... G_{L-1} of one episode from its steps 1 ... L."""
    following, found = 0.0, []
    for reward, discount in zip(reversed(rewards), reversed(discounts), strict=True):
        # G_t = r_{t+1} + γ d_{t+1} G_{t+1}
        following = reward + GAMMA * discount * following
        found.append(following)
    return found[::-1]


def naive_results(steps, buffer_size):
    """Step by step: what the tracker must say after ``steps`` [T, B, ...]."""
    fields = [f.double().numpy() for f in (steps.reward, steps.discount)]
    speed = steps.env_info["speed"].double().numpy()
    success = steps.env_info["success"].double().numpy()
    open_episodes, records = {}, []
    num_env_steps = num_episodes = 0
    for t, row in enumerate(steps.step_type.tolist()):
        for b, step_type in enumerate(row):
            env_id = steps.env_id[t, b].item()
            num_env_steps += step_type != FIRST
            num_episodes += step_type == LAST
            if step_type == FIRST:
                open_episodes[env_id] = []
                continue
            if env_id not in open_episodes:
                continue
            step = [f[t, b] for f in fields] + [speed[t, b], success[t, b]]
            open_episodes[env_id].append(step)
            if step_type == LAST:
                episode = list(zip(*open_episodes.pop(env_id), strict=True))
                rewards, discounts, speeds, successes = episode
                returns = naive_discounted_returns(rewards, discounts)
                records.append(
                    [
                        float(len(rewards)),
                        sum(rewards),
                        sum(returns) / len(returns),
                        sum(rewards) / len(rewards),
                        returns[0],
                        sum(speeds) / len(speeds),
                        sum(successes) / len(successes),
                        speeds[-1],
                        successes[-1],
                    ]
                )
    means = [
        np.mean(np.stack(column), axis=0)
        for column in zip(*records[-buffer_size:], strict=True)
    ]
    return num_env_steps, num_episodes, means


def results(tracker):
    return tracker.num_env_steps, tracker.num_episodes, nest.flatten(tracker.means())


def assert_equal_results(actual, expected):
    assert actual[:2] == expected[:2]
    for a, e in zip(actual[2], expected[2], strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reward_shape", [(), (2,)])
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_equals_a_loop_over_steps_however_they_come(seed, is_split, reward_shape):
    steps = random_steps(seed, reward_shape=reward_shape)
    rng = np.random.default_rng(seed)
    cuts = [0, *sorted(rng.integers(0, 41, size=seed * 5).tolist()), 40]
    # Of environments that come one after the other, others are the last ones.
    size = 1000 if is_split else 6
    tracker = make_tracker(reward_shape, buffer_size=size)
    for begin, end in itertools.pairwise(cuts):
        for columns in [[2], [0, 1]] if is_split else [[0, 1, 2]]:
            rows = slice(begin, end)
            part = nest.map_structure(lambda x, r=rows, c=columns: x[r, c], steps)
            tracker.observe(part)
    expected = naive_results(steps, buffer_size=size)
    assert expected[1] > 6
    assert_equal_results(results(tracker), expected)


def test_reward_of_first_steps_is_ignored():
    step_types = torch.tensor([[FIRST], [LAST]])
    tracker = EpisodeTracker(TensorSpec(()), (), batch_size=1, buffer_size=3, gamma=1.0)
    reward = torch.tensor([[float("nan")], [2.0]])
    tracker.observe(TimeStep(step_types, reward, torch.ones(2, 1)))
    assert tracker.means().episode_return == 2.0


def test_results_are_nan_until_an_episode_has_ended():
    tracker = make_tracker()
    assert all(np.isnan(m).all() for m in nest.flatten(tracker.means()))


def test_counters_do_not_lose_precision():
    tracker = make_tracker()
    state = tracker.state_dict()
    tracker.load_state_dict(state | {"num_env_steps": 2**53 + 1})
    tracker.observe(random_steps(0, num_steps=1)._replace(step_type=torch.ones(1, 3)))
    assert tracker.num_env_steps == 2**53 + 4


@pytest.mark.parametrize("cut", [1, 17, 33])
def test_a_restored_tracker_continues_exactly(cut):
    steps = random_steps(3)
    before, after = (
        nest.map_structure(lambda x, s=s: x[s], steps)
        for s in (slice(0, cut), slice(cut, None))
    )
    original = make_tracker()
    original.observe(before)
    file = io.BytesIO()
    torch.save(original.state_dict(), file)
    original.observe(after)

    file.seek(0)
    restored = make_tracker()
    restored.load_state_dict(torch.load(file, weights_only=True))
    restored.observe(after)
    for a, b in zip(
        nest.flatten(original.state_dict()),
        nest.flatten(restored.state_dict()),
        strict=True,
    ):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_saved_state_does_not_change_with_the_tracker():
    tracker = make_tracker()
    tracker.observe(random_steps(0))
    state = tracker.state_dict()
    recorded = state["recorded"].clone()
    tracker.observe(random_steps(1))
    assert torch.equal(state["recorded"], recorded)


def test_state_of_other_environments_is_refused_and_nothing_changes():
    tracker = make_tracker()
    tracker.observe(random_steps(0))
    before = results(tracker)
    with pytest.raises(CheckpointError, match="'open_sums' was saved with the shape"):
        tracker.load_state_dict(make_tracker(num_envs=4).state_dict())
    with pytest.raises(CheckpointError, match="expected the entries"):
        tracker.load_state_dict({"num_env_steps": 1})
    assert_equal_results(results(tracker), before)


def test_reset_forgets_everything():
    tracker = make_tracker()
    tracker.observe(random_steps(0))
    tracker.reset()
    steps = random_steps(1)
    tracker.observe(steps)
    assert_equal_results(results(tracker), naive_results(steps, buffer_size=6))


def test_dropped_episodes_do_not_count_but_their_steps_did():
    tracker = make_tracker()
    step_types = torch.tensor([[FIRST] * 3, [MID] * 3])
    steps = random_steps(0, num_steps=2)._replace(step_type=step_types)
    tracker.observe(steps)
    tracker.drop_open_episodes()
    ends = random_steps(0, num_steps=1)._replace(step_type=torch.full((1, 3), LAST))
    tracker.observe(ends)
    assert tracker.num_env_steps == 6
    assert np.isnan(tracker.means().length)


def test_a_refused_unroll_changes_nothing():
    tracker = make_tracker()
    tracker.observe(random_steps(0))
    before = tracker.state_dict()
    with pytest.raises(ValueError, match="reward: expected the shape"):
        tracker.observe(random_steps(1)._replace(reward=torch.zeros(40, 2)))
    for name, value in tracker.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(before[name]))
