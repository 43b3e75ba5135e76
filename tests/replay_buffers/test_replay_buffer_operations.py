"""Any sequence of operations leaves the buffer valid and equal to a naive one."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
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


@dataclasses.dataclass
class Step:
    """What the naive buffer knows of a step."""

    is_known: bool = False  # whether it has a weight
    weight: float = 1.0
    num_uses: int = 0
    collected_in: float = 0  # inf: never stale
    is_dropped: bool = False


class ReplayBufferMachine(RuleBasedStateMachine):
    """The naive buffer: a dict of steps for each environment, by their positions."""

    # Whether it is prioritized, and how windows are drawn.
    kinds = (
        (True, SamplingOptions()),
        (True, SamplingOptions(max_staleness=0)),
    )

    @initialize(
        num_environments=st.integers(1, 3),
        max_length=st.sampled_from([1, 2, 3, 5, 8, 40]),
        num_ignored=st.integers(0, 2),
        data=st.data(),
    )
    def make(self, num_environments, max_length, num_ignored, data):
        self.is_prioritized, sampling = data.draw(st.sampled_from(self.kinds))
        self.arguments = {
            "num_environments": num_environments,
            "max_length": max_length,
            "prioritized_sampling": self.is_prioritized,
            "num_earliest_frames_ignored": num_ignored,
            "priority": PriorityOptions(alpha=1, beta=1, eps=0, normalization="none"),
            "sampling": sampling,
        }
        self.sampling = sampling
        self.buffer = make_buffer(**self.arguments)
        self.everyone = list(range(num_environments))
        self.stored: list[dict[int, Step]] = [{} for _ in self.everyone]
        self.ends = [0] * num_environments
        self.iteration = self.num_rules = 0
        self.length = 1  # of the last windows
        self.in_reach: set[tuple[int, int]] = set()  # that could be drawn then

    def _note(self, env_ids, num_steps, collected_in=None):
        for e in env_ids:
            stored = self.stored[e]
            for position in range(self.ends[e], self.ends[e] + num_steps):
                stored[position] = Step(collected_in=collected_in or -1)
            self.ends[e] += num_steps
            for position in list(stored)[: -self.arguments["max_length"]]:
                del stored[position]

    def _steps(self) -> Iterator[Step]:
        return (step for stored in self.stored for step in stored.values())

    def _starts(self) -> set[tuple[int, int]]:
        ignored, more = self.arguments["num_earliest_frames_ignored"], self.length - 1
        return {
            (e, position)
            for e, stored in enumerate(self.stored)
            for position in list(stored)[ignored : max(0, len(stored) - more)]
        }

    def _sync(self, length: int | None = None) -> None:
        """New steps get the largest weight of those that can be drawn, at least 1."""
        self.length = length or self.length
        starts = self._starts()
        still = [self.stored[e][p].weight for e, p in self.in_reach & starts]
        for step in self._steps():
            if not step.is_known:
                step.is_known = True
                step.weight = max([1.0, *still]) if self.is_prioritized else 1.0
                if step.collected_in == -1:
                    step.collected_in = self.iteration
        self.in_reach = starts

    def _drop(self, step: Step) -> None:
        step.is_dropped, step.weight = True, 0.0

    def _live(self, length: int) -> dict[tuple[int, int], Step]:
        """The windows that can be drawn."""
        self._sync(length)
        staleness = self.sampling.max_staleness
        for step in self._steps():
            age = self.iteration - step.collected_in
            if staleness is not None and age > staleness:
                self._drop(step)
        steps_of = {(e, p): self.stored[e][p] for e, p in self.in_reach}
        live = {key: step for key, step in steps_of.items() if not step.is_dropped}
        return live if any(step.weight for step in live.values()) else {}

    @rule(num_steps=st.sampled_from([1, 1, 2, 41, 50]))
    def add_steps(self, num_steps):
        for _ in range(num_steps):
            self.buffer.add_batch(steps(self.everyone, torch.tensor(self.ends)))
            self._note(self.everyone, 1)

    @rule(num_steps=st.sampled_from([1, 2, 5, 39, 40]))
    def add_unroll(self, num_steps):
        time = torch.arange(num_steps)[:, None]
        batch = steps(self.everyone, torch.tensor(self.ends) + time)
        self.buffer.add_batch(batch, time_major=True)
        self._note(self.everyone, num_steps)

    @rule(
        num_steps=st.integers(0, 9),  # 0: one, without a time dimension
        never_stale=st.booleans(),
        data=st.data(),
    )
    def add_steps_of_some(self, num_steps, never_stale, data):
        env_ids = data.draw(st.lists(st.sampled_from(self.everyone), unique=True))
        positions = torch.tensor([self.ends[e] for e in env_ids], dtype=torch.int64)
        if num_steps:
            positions = positions + torch.arange(num_steps)[:, None]
        self.buffer.add_batch(
            steps(torch.tensor(env_ids, dtype=torch.int64), positions),
            torch.tensor(env_ids, dtype=torch.int32),
            time_major=num_steps > 0,
            never_stale=never_stale,
        )
        age = float("inf") if never_stale else None
        self._note(env_ids, max(num_steps, 1), age)

    @rule(data=st.data())
    def clear(self, data):
        env_ids = data.draw(st.lists(st.sampled_from(self.everyone), unique=True))
        self.buffer.clear(torch.tensor(env_ids, dtype=torch.int64))
        for e in env_ids:
            self.stored[e] = {}

    @rule(
        batches=st.lists(
            st.tuples(st.integers(1, 6), st.sampled_from([1, 1, 2, 3, 4])),
            min_size=1,
            max_size=4,
        )
    )
    def draw(self, batches):
        for batch_size, length in batches:
            self._draw(batch_size, length)

    def _draw(self, batch_size, length):
        live = self._live(length)
        assert self.buffer.num_windows(length) == len(live)
        num_left, max_use = len(live), self.sampling.max_use
        if self.sampling.with_replacement:
            uses = (max_use or batch_size) * len(live)
            num_left = max(num_left, uses - sum(s.num_uses for s in live.values()))
            if max_use is None and live:
                num_left = batch_size
        assert self.buffer.can_draw(batch_size, length) == (num_left >= batch_size)
        if num_left < batch_size:
            with pytest.raises(ValueError, match=r"needs|max_use|windows"):
                self.buffer.get_batch(batch_size, length)
            return
        batch, info = self.buffer.get_batch(batch_size, length)
        pairs = list(zip(info.env_ids.tolist(), info.positions.tolist(), strict=True))
        assert set(pairs) <= live.keys()
        time = torch.arange(length)
        assert_steps(batch, info.env_ids[:, None], info.positions[:, None] + time)
        if not self.sampling.with_replacement:
            assert len(set(pairs)) == batch_size
        if self.is_prioritized:
            self._check_weights(live, pairs, info.importance_weights)
        for pair in pairs if self.sampling.has_limits else ():
            live[pair].num_uses += 1
        for step in live.values() if max_use else ():
            assert step.num_uses <= max_use
            if step.num_uses == max_use:
                self._drop(step)

    def _check_weights(self, live, pairs, found):
        """(n · P(i))^−1, of one draw from all windows."""
        if self.sampling.recent_data_ratio or self.sampling.max_use:
            assert (found > 0).all()
            return
        assert all(live[pair].weight for pair in pairs)
        mean = sum(step.weight for step in live.values()) / len(live)
        expected = [mean / live[pair].weight for pair in pairs]
        assert found.tolist() == pytest.approx(expected, rel=1e-5)

    @precondition(lambda self: self.is_prioritized)
    @rule(data=st.data())
    def prioritize(self, data):
        """Also twice, and steps that are gone, that never were or that wait."""
        near = [max(0, end + i) for end in self.ends for i in range(-4, 1)]
        update = st.tuples(
            st.sampled_from(self.everyone),
            st.sampled_from(near),
            st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0, 8.0]),
        )
        updates = data.draw(st.lists(update, min_size=1, max_size=6))
        env_ids, positions, priorities = zip(*updates, strict=True)
        self.buffer.update_priority(
            torch.tensor(env_ids), torch.tensor(positions), torch.tensor(priorities)
        )
        for e, position, priority in updates:
            step = self.stored[e].get(position)
            if step is not None and not step.is_dropped:
                step.weight = priority

    @rule(num=st.integers(1, 2))
    def next_iteration(self, num):
        self.iteration += num
        self.buffer.set_iteration(self.iteration)

    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as directory:
            file = saved(self.buffer, Path(directory))
        self.buffer = make_buffer(**self.arguments)
        self.buffer.load(file)

    @rule()
    def gather_all(self):
        ignored = self.arguments["num_earliest_frames_ignored"]
        sizes = {len(stored) - ignored for stored in self.stored}
        if len(sizes) > 1 or min(sizes) < 1:
            with pytest.raises(ValueError, match="the same number of steps"):
                self.buffer.gather_all()
            return
        batch, info = self.buffer.gather_all()
        first = torch.tensor([list(stored)[ignored] for stored in self.stored])
        assert info.positions.tolist() == first.tolist()
        time = torch.arange(*sizes)
        assert_steps(batch, torch.tensor(self.everyone)[:, None], first[:, None] + time)

    @invariant()
    def is_valid(self):
        if not hasattr(self, "buffer"):
            return
        self.buffer.check_valid()
        self._sync()
        sizes = [len(stored) for stored in self.stored]
        assert self.buffer.sizes.tolist() == sizes
        assert self.buffer.total_size == sum(sizes)
        assert self.buffer.end_positions.tolist() == self.ends
        env_ids = torch.tensor(np.repeat(np.arange(len(sizes)), sizes))
        positions = torch.tensor(
            [position for stored in self.stored for position in stored],
            dtype=torch.int64,
        )
        reward = self.buffer.get_field("time_step.reward", env_ids, positions)
        assert torch.equal(reward, steps(env_ids, positions).time_step.reward)
        self.num_rules += 1
        if self.num_rules % 3 == 0:  # not always: asking writes the weights back
            self._check_what_is_known(env_ids, positions)

    def _check_what_is_known(self, env_ids, positions):
        known = list(self._steps())
        rows = env_ids * self.arguments["max_length"]
        rows += positions % self.arguments["max_length"]
        arrays = self.buffer.sampling_state()["arrays"]
        if "weights" in arrays:
            weights = [step.weight for step in known]
            assert arrays["weights"][rows].tolist() == pytest.approx(weights, rel=1e-9)
            dropped = [step.is_dropped for step in known]
            assert arrays["dropped"][rows].tolist() == dropped
        if self.sampling.has_limits:
            num_uses = self.buffer.num_uses(env_ids, positions)
            assert num_uses.tolist() == [step.num_uses for step in known]


class OtherKinds(ReplayBufferMachine):
    kinds = (
        (False, SamplingOptions()),
        (False, SamplingOptions(with_replacement=False)),
        (False, SamplingOptions(with_replacement=False, max_use=1)),
        (False, SamplingOptions(recent_data_ratio=0.3)),
        (True, SamplingOptions(recent_data_ratio=0.3)),
        (True, SamplingOptions(max_use=2)),
        (False, SamplingOptions(max_use=3)),
        (True, SamplingOptions(max_staleness=1, max_use=4)),
    )


pytestmark = pytest.mark.ci

EXAMPLES = settings(max_examples=50, stateful_step_count=25)
TestPriorities = ReplayBufferMachine.TestCase
TestPriorities.settings = EXAMPLES
TestOtherKinds = OtherKinds.TestCase
TestOtherKinds.settings = EXAMPLES
