from __future__ import annotations

import math

import pytest
import torch

from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.replay_buffers.episode_returns import EpisodeReturns
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
GAMMA, MAX_LENGTH = 0.9, 13
SPEC = Experience(
    time_step=TimeStep(
        step_type=BoundedTensorSpec((), torch.int32, 0, 2),
        reward=TensorSpec(()),
        discount=TensorSpec(()),
    )
)


def random_steps(num_steps: int) -> Experience:
    """[T, 2]: episodes of 1 to 5 steps that terminate or run into a limit."""
    step_type = torch.full((num_steps, 2), MID, dtype=torch.int32)
    discount = torch.ones(num_steps, 2)
    for e in range(2):
        t = 0
        while t < num_steps:
            step_type[t, e] = FIRST
            t += int(torch.randint(1, 6, ()))
            if t < num_steps:
                step_type[t, e] = LAST
                discount[t, e] = float(torch.rand(()) < 0.4)
            t += 1
    steps = TimeStep(step_type, torch.randn(num_steps, 2), discount)
    return Experience(steps)


def naive(steps: TimeStep, t: int, e: int, end: int) -> float:
    """R of step t, if steps up to ``end`` are known."""
    total, weight = 0.0, 1.0
    while t < end and steps.step_type[t, e] != LAST:
        t += 1
        if t == end:
            break
        total += weight * 2 * steps.reward[t, e].item()
        weight *= GAMMA * steps.discount[t, e].item()
        if steps.step_type[t, e] == LAST and weight == 0:
            return total
    return -math.inf


@pytest.mark.parametrize("seed", range(3))
def test_they_are_those_of_a_naive_loop_however_steps_come_and_go(seed):
    torch.manual_seed(seed)
    steps = random_steps(60).time_step
    buffer = ReplayBuffer(SPEC, 2, MAX_LENGTH)
    returns = EpisodeReturns(buffer, GAMMA, lambda rewards: 2 * rewards)
    end, known = 0, 0
    while end < 60:
        size = min(int(torch.randint(1, 20, ())), 60 - end)
        rows = TimeStep(*(leaf[end : end + size] for leaf in steps[:3]))
        for t in range(size):  # a block longer than the buffer is no block
            row = TimeStep(*(leaf[t] for leaf in rows[:3]))
            buffer.add_batch(Experience(row))
        end += size
        begin = max(0, end - MAX_LENGTH)
        if end - begin < 3:
            continue
        env_ids = torch.arange(2).repeat_interleave(end - begin - 2)
        positions = torch.arange(begin, end - 2).repeat(2)
        windows = returns.windows(env_ids, positions, 3)
        assert windows.shape == (len(env_ids), 3)
        for i, (e, position) in enumerate(zip(env_ids, positions, strict=True)):
            for k in range(3):
                expected = naive(steps, int(position) + k, int(e), end)
                assert windows[i, k].item() == pytest.approx(expected, abs=1e-5)
        known += windows.isfinite().sum().item()
    assert known > 20


def test_an_end_that_is_put_on_later_is_a_time_limit():
    buffer = ReplayBuffer(SPEC, 1, MAX_LENGTH)
    returns = EpisodeReturns(buffer, GAMMA, lambda rewards: rewards)
    ones = torch.ones(1)
    for step_type in (FIRST, MID):
        kind = torch.tensor([step_type], dtype=torch.int32)
        buffer.add_batch(Experience(TimeStep(kind, ones, ones)))
    buffer.mark_truncated_end()
    where = torch.tensor([0]), torch.tensor([0])
    assert returns.windows(*where, 2).tolist() == [[-math.inf, -math.inf]]
