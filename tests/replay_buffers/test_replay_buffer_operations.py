"""Any sequence of operations leaves the buffer valid and equal to a naive one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from alf_lite.replay_buffers.priority_options import PriorityOptions
from alf_lite.replay_buffers.window_sampler import SamplingOptions
from tests.replay_buffers.marked_steps import assert_steps, make_buffer, saved, steps


class ReplayBufferMachine(RuleBasedStateMachine):
    """The naive buffer: the positions that are stored, and the priorities given."""

    @initialize(
        num_environments=st.integers(1, 3),
        max_length=st.sampled_from([1, 2, 3, 5, 40]),
        num_ignored=st.integers(0, 2),
        prioritized=st.booleans(),
        sampling=st.sampled_from(
            [
                SamplingOptions(),
                SamplingOptions(max_use=2),
                SamplingOptions(max_staleness=1, max_use=4),
                SamplingOptions(recent_data_ratio=0.3),
            ]
        ),
    )
    def make(self, num_environments, max_length, num_ignored, prioritized, sampling):
        self.arguments = {
            "num_environments": num_environments,
            "max_length": max_length,
            "prioritized_sampling": prioritized,
            "num_earliest_frames_ignored": num_ignored,
            "priority": PriorityOptions(alpha=1, eps=0),
            "sampling": sampling,
        }
        self.has_limits = sampling.has_limits
        self.buffer = make_buffer(**self.arguments)
        self.stored: list[list[int]] = [[] for _ in range(num_environments)]
        self.ends = [0] * num_environments
        self.iteration = 0

    def _note(self, env_ids, num_steps):
        for e in env_ids:
            new = range(self.ends[e], self.ends[e] + num_steps)
            self.ends[e] += num_steps
            kept = [*self.stored[e], *new][-self.arguments["max_length"] :]
            self.stored[e] = kept

    @rule(num_steps=st.sampled_from([1, 1, 2, 41, 50]))
    def add_steps(self, num_steps):
        everyone = range(self.arguments["num_environments"])
        for _ in range(num_steps):
            self.buffer.add_batch(steps(list(everyone), torch.tensor(self.ends)))
            self._note(everyone, 1)

    @rule(num_steps=st.sampled_from([1, 2, 5, 39, 40]))
    def add_unroll(self, num_steps):
        everyone = range(self.arguments["num_environments"])
        time = torch.arange(num_steps)[:, None]
        batch = steps(list(everyone), torch.tensor(self.ends) + time)
        self.buffer.add_batch(batch, time_major=True)
        self._note(everyone, num_steps)

    @rule(num_steps=st.integers(1, 9), never_stale=st.booleans(), data=st.data())
    def add_unroll_of_some(self, num_steps, never_stale, data):
        everyone = range(self.arguments["num_environments"])
        env_ids = data.draw(st.lists(st.sampled_from(everyone), unique=True))
        time = torch.arange(num_steps)[:, None]
        batch = steps(
            torch.tensor(env_ids, dtype=torch.int64),
            torch.tensor([self.ends[e] for e in env_ids], dtype=torch.int64) + time,
        )
        self.buffer.add_batch(
            batch,
            torch.tensor(env_ids, dtype=torch.int32),
            time_major=True,
            never_stale=never_stale,
        )
        self._note(env_ids, num_steps)

    @rule(data=st.data())
    def clear(self, data):
        everyone = range(self.arguments["num_environments"])
        env_ids = data.draw(st.lists(st.sampled_from(everyone), unique=True))
        self.buffer.clear(torch.tensor(env_ids, dtype=torch.int64))
        for e in env_ids:
            self.stored[e] = []

    @rule(batch_size=st.integers(1, 6), length=st.integers(1, 4))
    def draw(self, batch_size, length):
        ignored = self.arguments["num_earliest_frames_ignored"]
        allowed = {
            (e, position)
            for e, positions in enumerate(self.stored)
            for position in positions[ignored : max(0, len(positions) - length + 1)]
        }
        try:
            batch, info = self.buffer.get_batch(batch_size, length)
        except ValueError:
            assert not allowed or self.has_limits or self._all_zero
            return
        pairs = list(zip(info.env_ids.tolist(), info.positions.tolist(), strict=True))
        assert set(pairs) <= allowed
        time = torch.arange(length)
        assert_steps(batch, info.env_ids[:, None], info.positions[:, None] + time)
        if self.arguments["prioritized_sampling"]:
            weights = info.importance_weights
            assert ((weights > 0) & (weights <= 1.0001)).all()

    _all_zero = False

    @precondition(lambda self: self.arguments["prioritized_sampling"])
    @rule(data=st.data())
    def prioritize(self, data):
        everyone = range(self.arguments["num_environments"])
        updates = data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from(everyone), st.integers(0, 60), st.integers(0, 9)
                ),
                min_size=1,
                max_size=6,
            )
        )
        self._all_zero |= any(priority == 0 for _, _, priority in updates)
        env_ids, positions, priorities = torch.tensor(updates).T
        self.buffer.update_priority(env_ids, positions, priorities)

    @rule()
    def next_iteration(self):
        self.iteration += 1
        self.buffer.set_iteration(self.iteration)

    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as directory:
            file = saved(self.buffer, Path(directory))
        self.buffer = make_buffer(**self.arguments)
        self.buffer.load(file)

    @invariant()
    def is_valid(self):
        if not hasattr(self, "buffer"):
            return
        self.buffer.check_valid()
        sizes = [len(positions) for positions in self.stored]
        assert self.buffer.sizes.tolist() == sizes
        assert self.buffer.total_size == sum(sizes)
        assert self.buffer.end_positions.tolist() == self.ends
        env_ids = torch.tensor(np.repeat(np.arange(len(sizes)), sizes))
        positions = torch.tensor(
            [position for positions in self.stored for position in positions],
            dtype=torch.int64,
        )
        reward = self.buffer.get_field("time_step.reward", env_ids, positions)
        assert torch.equal(reward, steps(env_ids, positions).time_step.reward)


TestReplayBufferOperations = ReplayBufferMachine.TestCase
TestReplayBufferOperations.settings = settings(max_examples=60, stateful_step_count=25)
