"""What every Environment must do, as tests to inherit.

    class TestMyEnvironment(EnvironmentContract):
        def make(self, num_environments, seed):
            return MyEnvironment(num_environments, seed)

Each test builds its own environments and closes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

Nest = Any


class EnvironmentContract:
    """Inherit it, name the class ``Test...`` and implement ``make``.

    Attributes:
        num_environments: B.
        num_steps: length of the trajectories that are looked at; long enough for some
            episodes to end.
        must_end: whether an episode must end within ``num_steps``.
        is_random: whether two environments, or two seeds, must differ at some step.
        checks_observation_bounds: whether observations must stay within the bounds of
            their spec.
    """

    num_environments = 3
    num_steps = 60
    must_end = True
    is_random = True
    checks_observation_bounds = True

    def make(self, num_environments: int, seed: int) -> Environment:
        """A new environment."""
        raise NotImplementedError

    # Specs

    def test_every_tensor_fits_its_spec(self) -> None:
        with self._open() as env:
            for time_step in self._run(env):
                self._check_fits(env, time_step)

    def test_a_batch_may_have_one_environment(self) -> None:
        env = self.make(1, 0)
        try:
            assert env.batch_size == 1
            self._check_fits(env, env.reset())
            self._check_fits(env, env.step(self._action(env, 0)))
        finally:
            env.close()

    def test_env_ids_count_the_rows(self) -> None:
        with self._open() as env:
            expected = list(range(env.batch_size))
            for time_step in self._run(env):
                assert time_step.env_id.tolist() == expected

    # Time convention

    def test_a_reset_gives_first_steps_in_all_environments(self) -> None:
        with self._open() as env:
            _check_first(env.reset(), torch.ones(env.batch_size, dtype=torch.bool))

    def test_an_end_is_followed_by_a_first_step(self) -> None:
        with self._open() as env:
            time_steps = self._run(env)
            ended = False
            for before, after in itertools.pairwise(time_steps):
                was_last = before.is_last()
                assert torch.equal(after.is_first(), was_last), (before, after)
                _check_first(after, was_last)
                ended |= bool(was_last.any())
            assert ended or not self.must_end, "no episode ended: raise num_steps"

    def test_only_terminal_steps_have_discount_zero(self) -> None:
        with self._open() as env:
            for time_step in self._run(env):
                discount, is_last = time_step.discount, time_step.is_last()
                assert ((discount == 0) | (discount == 1)).all(), discount
                assert (discount[~is_last] == 1).all(), time_step

    def test_prev_action_is_what_led_here(self) -> None:
        with self._open() as env:
            env.reset()
            for t in range(self.num_steps):
                action = self._action(env, t)
                time_step = env.step(action)
                rows = ~time_step.is_first()
                for given, stored in _pairs(action, time_step.prev_action):
                    assert torch.equal(given[rows], stored[rows].to(given.device))

    def test_current_time_step_is_the_last_one(self) -> None:
        with self._open() as env:
            assert env.reset() is env.current_time_step
            assert env.step(self._action(env, 0)) is env.current_time_step

    # Seeds

    def test_a_seed_fixes_the_trajectory(self) -> None:
        runs = []
        for _ in range(2):
            with self._open() as env:
                runs.append(self._run(env, seed=3))
        _assert_same(*runs)

    def test_a_seeded_reset_starts_all_over(self) -> None:
        with self._open() as env:
            first = self._run(env, seed=3)
            _assert_same(first, self._run(env, seed=3))

    def test_the_seed_of_the_constructor_is_that_of_the_first_reset(self) -> None:
        with self._open(seed=3) as env:
            implicit = self._run(env)
        with self._open(seed=4) as env:
            _assert_same(implicit, self._run(env, seed=3))

    def test_environments_and_seeds_differ(self) -> None:
        if not self.is_random:
            return
        with self._open() as env:
            runs = [self._run(env, seed=seed) for seed in (3, 4)]
        columns = [_columns(run) for run in runs]
        assert not torch.equal(columns[0], columns[1]), "two seeds, one trajectory"
        rows = [columns[0][:, i] for i in range(self.num_environments)]
        for i, row in enumerate(rows):
            for other in rows[:i]:
                assert not torch.equal(row, other), "two environments, one trajectory"

    # Memory

    def test_time_steps_belong_to_the_caller(self) -> None:
        with self._open() as env:
            kept, copies = [], []
            for time_step in self._iterate(env):
                kept.append(time_step)
                copies.append(nest.map_structure(Tensor.clone, time_step))
            _assert_same(kept, copies)

    def test_steps_written_to_rows_are_those_that_step_returns(self) -> None:
        with self._open() as env:
            expected = self._run(env, seed=3)
        with self._open() as env:
            first = env.reset(3)
            memory = nest.map_structure(
                lambda leaf: leaf.new_zeros(2, *leaf.shape), first
            )
            rows = env.rows_of(memory)
            if rows is None:
                return
            steps = [first]
            for t in range(self.num_steps):
                row = t % 2
                time_step = env.step_into(self._action(env, t), rows[row])
                assert time_step is env.current_time_step
                written = nest.map_structure(lambda leaf, i=row: leaf[i], memory)
                for leaf, kept in _pairs(time_step, written):
                    assert leaf.data_ptr() == kept.data_ptr()
                steps.append(nest.map_structure(Tensor.clone, time_step))
            _assert_same(expected, steps)

    def test_writing_to_time_steps_does_not_reach_the_environment(self) -> None:
        with self._open() as env:
            untouched = self._run(env, seed=3)
            written = []
            for time_step in self._iterate(env, seed=3):
                written.append(nest.map_structure(Tensor.clone, time_step))
                for leaf in nest.flatten(time_step._replace(env_id=())):
                    leaf.zero_()
            _assert_same(untouched, written)

    def test_the_memory_of_actions_stays_the_callers(self) -> None:
        with self._open() as env:
            env.reset(3)
            action = self._action(env, 0)
            given = nest.map_structure(Tensor.clone, action)
            time_step = env.step(action)
            _assert_same([given], [action])
            before = nest.map_structure(Tensor.clone, time_step.prev_action)
            for leaf in nest.flatten(action):
                leaf.zero_()
            _assert_same([before], [time_step.prev_action])

    # Mistakes and the end

    def test_a_step_before_a_reset_is_an_error(self) -> None:
        with self._open() as env:
            _assert_raises(RuntimeError, lambda: env.step(self._action(env, 0)))
        with self._open() as env:
            _assert_raises(RuntimeError, lambda: env.current_time_step)

    def test_an_action_of_a_wrong_shape_is_an_error(self) -> None:
        with self._open() as env:
            env.reset()
            action = self._action(env, 0)
            wrong = nest.map_structure(lambda leaf: leaf[:-1], action)
            _assert_raises(ValueError, lambda: env.step(wrong))
            _assert_raises(ValueError, lambda: env.step((action, action)))

    def test_close_may_be_called_twice(self) -> None:
        env = self.make(self.num_environments, 0)
        env.reset()
        env.close()
        env.close()
        self.make(self.num_environments, 0).close()  # before any reset

    # What the tests are made of

    @contextmanager
    def _open(self, seed: int = 0) -> Iterator[Any]:
        env = self.make(self.num_environments, seed)
        try:
            assert env.batch_size == self.num_environments, env.batch_size
            yield env
        finally:
            env.close()

    def _action(self, env: Environment, t: int) -> Nest:
        generator = torch.Generator().manual_seed(t)
        return nest.map_structure(
            lambda spec: spec.sample((env.batch_size,), generator), env.action_spec
        )

    def _iterate(self, env: Environment, seed: int | None = None) -> Iterator[TimeStep]:
        yield env.reset(seed)
        for t in range(self.num_steps):
            yield env.step(self._action(env, t))

    def _run(self, env: Environment, seed: int | None = None) -> list[TimeStep]:
        return list(self._iterate(env, seed))

    def _check_fits(self, env: Environment, time_step: TimeStep) -> None:
        batch = (env.batch_size,)
        scalar = TensorSpec(())
        expected = TimeStep(
            step_type=BoundedTensorSpec((), torch.int32, 0, 2),
            reward=env.reward_spec,
            discount=scalar,
            observation=env.observation_spec,
            prev_action=env.action_spec,
            env_id=TensorSpec((), torch.int32),
            env_info=env.env_info_spec,
        )
        assert time_step.untransformed == ()
        nest.assert_same_structure(expected, time_step)
        specs = nest.flatten(expected)
        for (path, leaf), spec in zip(
            nest.flatten_with_path(time_step), specs, strict=True
        ):
            assert isinstance(leaf, Tensor), (path, type(leaf))
            assert leaf.shape == (*batch, *spec.shape), (path, leaf.shape, spec)
            assert leaf.dtype == spec.dtype, (path, leaf.dtype, spec)
            assert not leaf.requires_grad, path
            if spec.is_continuous:
                assert leaf.isfinite().all(), (path, leaf)
            is_observation = path.startswith("observation")
            if is_observation and not self.checks_observation_bounds:
                continue
            if isinstance(spec, BoundedTensorSpec) and not path.startswith("prev_"):
                values = leaf.numpy(force=True)
                assert np.all(values >= spec.minimum), (path, values, spec)
                assert np.all(values <= spec.maximum), (path, values, spec)


def _check_first(time_step: TimeStep, rows: Tensor) -> None:
    """What holds at the FIRST step of an episode."""
    assert (time_step.step_type[rows] == 0).all(), time_step
    assert (time_step.reward[rows] == 0).all(), time_step
    assert (time_step.discount[rows] == 1).all(), time_step
    for leaf in nest.flatten(time_step.prev_action):
        assert (leaf[rows] == 0).all(), time_step


def _pairs(nest_a: Nest, nest_b: Nest) -> Iterator[tuple[Tensor, Tensor]]:
    nest.assert_same_structure(nest_a, nest_b)
    return zip(nest.flatten(nest_a), nest.flatten(nest_b), strict=True)


def _assert_same(run: list[Any], other: list[Any]) -> None:
    assert len(run) == len(other)
    for t, (one, two) in enumerate(zip(run, other, strict=True)):
        for leaf, other_leaf in _pairs(one, two):
            assert torch.equal(leaf, other_leaf), (t, one, two)


def _columns(run: list[TimeStep]) -> Tensor:
    """Everything that was observed and earned, [T, B, numbers]."""
    rows = []
    for time_step in run:
        leaves = [*nest.flatten(time_step.observation), time_step.reward]
        batch = time_step.step_type.shape[0]
        flat = [leaf.reshape(batch, -1).to(torch.float64) for leaf in leaves]
        rows.append(torch.cat(flat, dim=1))
    return torch.stack(rows)


def _assert_raises(kind: type[Exception], call: Callable[[], Any]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")
