from __future__ import annotations

import itertools

import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import AlgStep, StepType, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.unrollers.sync_unroller import SyncUnroller

EPISODE_LENGTHS = (2, 4)  # number of steps after FIRST, per environment


class CountingEnvironment:
    """Observes 100·episode + step; the episodes of b last EPISODE_LENGTHS[b]."""

    batch_size = 2
    name = "Counting"
    num_restarts = 0
    current_time_step: TimeStep

    def __init__(self) -> None:
        self.actions: list[list[int]] = []

    def reset(self, seed: int | None = None) -> TimeStep:
        self._episode = [0, 0]
        self._step = [0, 0]
        return self._time_step(torch.zeros(2, dtype=torch.int64))

    def step(self, action: torch.Tensor) -> TimeStep:
        self.actions.append(action.tolist())
        for b, length in enumerate(EPISODE_LENGTHS):
            if self._step[b] == length:
                self._episode[b] += 1
                self._step[b] = 0
            else:
                self._step[b] += 1
        return self._time_step(action)

    def rows_of(self, memory: TimeStep) -> None:
        return None

    def _time_step(self, action: torch.Tensor) -> TimeStep:
        types = [
            StepType.FIRST
            if step == 0
            else StepType.LAST
            if step == length
            else StepType.MID
            for step, length in zip(self._step, EPISODE_LENGTHS, strict=True)
        ]
        position = [100 * e + s for e, s in zip(self._episode, self._step, strict=True)]
        self.current_time_step = TimeStep(
            step_type=torch.tensor(types, dtype=torch.int32),
            reward=torch.tensor([float(s > 0) for s in self._step]),
            discount=torch.ones(2),
            observation=torch.tensor(position, dtype=torch.float32),
            prev_action=action.clone(),
            env_id=torch.arange(2, dtype=torch.int32),
        )
        return self.current_time_step


class CountingPolicy:
    """The action is a counter kept in the recurrent state; the info is a parameter."""

    device = torch.device("cpu")
    overwrite_policy_output = False

    def __init__(self, *, transform: bool = False) -> None:
        self.weight = torch.tensor(1.0, requires_grad=True)
        self.saw: list[list[float]] = []
        self.saw_state: list[list[int]] = []
        self._transform = transform

    def rollout_step(self, inputs: TimeStep, state: torch.Tensor) -> AlgStep:
        self.saw.append(inputs.observation.tolist())
        self.saw_state.append(state.tolist())
        info = {"scaled": self.weight * inputs.observation}
        return AlgStep(output=state.clone(), state=state + 1, info=info)

    def transform_timestep(self, time_step, state):
        if self._transform:
            return time_step._replace(observation=-time_step.observation), state
        return time_step, state

    def get_initial_rollout_state(self, batch_size: int) -> torch.Tensor:
        return torch.zeros(batch_size, dtype=torch.int64)

    def get_initial_transform_state(self, batch_size: int) -> tuple:
        return ()


def unroller(policy: CountingPolicy | None = None, **kwargs) -> SyncUnroller:
    return SyncUnroller(CountingEnvironment(), policy or CountingPolicy(), **kwargs)


EXPECTED = [[0, 0], [1, 1], [2, 2], [100, 3], [101, 4], [102, 100], [200, 101]]


@pytest.mark.parametrize("with_grad", [False, True])
def test_consecutive_unrolls_share_exactly_the_bootstrap_row(with_grad):
    collector = unroller(with_grad=with_grad)
    first = collector.unroll(3, bootstrap=True)
    observations = first.experience.time_step.observation.tolist()
    second = collector.unroll(3, bootstrap=True)
    assert observations == EXPECTED[:4]
    assert second.experience.time_step.observation.tolist() == EXPECTED[3:7]
    assert second.time_steps.observation.tolist() == EXPECTED[3:7]
    assert (first.is_first_unroll, second.is_first_unroll) == (True, False)


@pytest.mark.parametrize("with_grad", [False, True])
def test_without_bootstrap_row_every_step_appears_once(with_grad):
    collector = unroller(with_grad=with_grad)
    rows = []
    for _ in range(2):
        result = collector.unroll(3, bootstrap=False)
        rows += result.experience.time_step.observation.tolist()
        assert result.time_steps.observation.shape == (4, 2)
    assert rows == EXPECTED[:6]


def test_recurrent_state_is_zero_at_first_and_stored_as_it_was_passed_in():
    policy = CountingPolicy()
    result = unroller(policy).unroll(6, bootstrap=True)
    expected = [[0, 0], [1, 1], [2, 2], [0, 3], [1, 4], [2, 0], [0, 1]]
    assert policy.saw_state == expected
    assert result.experience.state.tolist() == expected
    assert result.experience.action.tolist() == expected


def test_state_continues_across_unrolls_and_the_bootstrap_row_does_not_advance_it():
    policy = CountingPolicy()
    collector = unroller(policy)
    collector.unroll(1, bootstrap=True)
    collector.unroll(1, bootstrap=True)
    assert policy.saw_state == [[0, 0], [1, 1], [1, 1], [2, 2]]


def test_actions_of_the_bootstrap_row_are_not_executed():
    env = CountingEnvironment()
    SyncUnroller(env, CountingPolicy()).unroll(3, bootstrap=True)
    assert env.actions == [[0, 0], [1, 1], [2, 2]]


def test_the_policy_sees_transformed_steps_and_the_metrics_raw_ones():
    policy = CountingPolicy(transform=True)
    result = unroller(policy).unroll(2, bootstrap=True)
    assert policy.saw == [[0, 0], [-1, -1], [-2, -2]]
    assert result.experience.time_step.observation.tolist() == policy.saw
    assert result.time_steps.observation.tolist() == EXPECTED[:3]


def test_gradient_reaches_the_policy_only_with_grad():
    policy = CountingPolicy()
    collector = unroller(policy, with_grad=True)
    for _ in range(2):  # the second unroll does not reach into the first one's graph
        result = collector.unroll(2, bootstrap=True)
        result.experience.rollout_info["scaled"].sum().backward()
    assert policy.weight.grad.item() == sum(map(sum, EXPECTED[:3] + EXPECTED[2:5]))
    plain = unroller(policy).unroll(2, bootstrap=True)
    assert not plain.experience.rollout_info["scaled"].requires_grad


def test_executed_actions_replace_the_policys_when_asked():
    class Expert(CountingEnvironment):
        def step(self, action: torch.Tensor) -> TimeStep:
            return super().step(action)._replace(prev_action=torch.tensor([7, 9]))

    policy = CountingPolicy()
    policy.overwrite_policy_output = True
    collector = SyncUnroller(Expert(), policy)
    result = collector.unroll(2, bootstrap=False)
    assert result.experience.action.tolist() == [[7, 9], [7, 9]]


def test_reset_starts_new_episodes():
    policy = CountingPolicy()
    collector = unroller(policy)
    collector.unroll(1, bootstrap=True)
    collector.reset(seed=3)
    result = collector.unroll(1, bootstrap=True)
    assert result.is_first_unroll
    assert result.time_steps.observation.tolist() == EXPECTED[:2]
    assert policy.saw_state[-2:] == [[0, 0], [1, 1]]


class HoldingPolicy:
    """Everything that it returns shares memory with what it has seen."""

    device = torch.device("cpu")
    overwrite_policy_output = False

    def rollout_step(self, inputs: TimeStep, state: torch.Tensor) -> AlgStep:
        info = {"now": inputs.observation, "before": state}
        action = (inputs.observation[:, 0] > state[:, 2]).long()
        return AlgStep(output=action, state=inputs.observation, info=info)

    def transform_timestep(self, time_step, state):
        difference = time_step.observation - state
        return time_step._replace(observation=difference), time_step.observation

    def get_initial_rollout_state(self, batch_size: int) -> torch.Tensor:
        return torch.zeros(batch_size, 4)

    def get_initial_transform_state(self, batch_size: int) -> torch.Tensor:
        return torch.zeros(batch_size, 4)


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1, 1, 1), (5, 1, 3, 7, 2, 30)])
def test_an_environment_that_writes_the_rows_makes_no_difference(bootstrap, lengths):
    def collected(env):
        collector = SyncUnroller(env, HoldingPolicy())
        collector.reset(3)
        for length in lengths:
            unroll = collector.unroll(length, bootstrap)
            yield nest.map_structure(
                torch.clone, (unroll.experience, unroll.time_steps)
            )

    copied = create_environment("CartPole-v1", 2)
    copied.rows_of = lambda memory: None
    written = create_environment("CartPole-v1", 2)
    written.step = None
    for a, b in zip(collected(copied), collected(written), strict=True):
        for (path, x), y in zip(
            nest.flatten_with_path(a), nest.flatten(b), strict=True
        ):
            assert torch.equal(x, y), path


@pytest.mark.parametrize("period", [1, 2])
def test_a_policy_may_write_into_the_same_memory_again(period):
    memory = itertools.cycle([torch.zeros(2, 4) for _ in range(period)])

    class ReusingPolicy(HoldingPolicy):
        def rollout_step(self, inputs, state):
            step = super().rollout_step(inputs, state)
            now = next(memory).copy_(step.info["now"])
            return step._replace(info={**step.info, "now": now})

    collector = SyncUnroller(create_environment("CartPole-v1", 2), ReusingPolicy())
    for length in (40, 40):
        unroll = collector.unroll(length, bootstrap=False)
        info = unroll.experience.rollout_info
        assert torch.equal(info["now"], unroll.experience.time_step.observation)


def test_an_unroll_that_failed_leaves_nothing_to_the_next_one():
    policy = HoldingPolicy()
    collector = SyncUnroller(create_environment("CartPole-v1", 2), policy)
    collector.unroll(20, bootstrap=False)
    act = collector._rollout_step
    collector._rollout_step = fails_at(3, act)
    with pytest.raises(RuntimeError, match="at step 3"):
        collector.unroll(20, bootstrap=False)
    collector._rollout_step = act
    unroll = collector.unroll(20, bootstrap=False)
    info = unroll.experience.rollout_info
    assert torch.equal(info["now"], unroll.experience.time_step.observation)


def fails_at(step, act):
    steps = itertools.count(1)

    def rollout_step(inputs, state):
        if next(steps) == step:
            raise RuntimeError(f"at step {step}")
        return act(inputs, state)

    return rollout_step


def test_steps_are_written_where_the_rows_are_kept():
    env = create_environment("CartPole-v1", 2)
    collector = SyncUnroller(env, HoldingPolicy())
    unroll = collector.unroll(3, bootstrap=False)
    last = env.current_time_step.observation
    assert last.data_ptr() == unroll.time_steps.observation[3].data_ptr()


def test_an_environment_is_not_shared():
    env = CountingEnvironment()
    first, second = (SyncUnroller(env, CountingPolicy()) for _ in range(2))
    first.unroll(3, bootstrap=True)
    second.unroll(3, bootstrap=True)  # begins new episodes, as an evaluation does
    with pytest.raises(ConfigError, match="environment Counting was reset or stepped"):
        first.unroll(3, bootstrap=True)
    first.reset()
    first.unroll(3, bootstrap=True)
