"""The contract finds environments that break it; the tests that pass are elsewhere."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.data_structures import TimeStep
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.environments.serial_vector_env import SerialVectorEnv
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.structured_environments import NestedEnv


class Good(GymnasiumEnvironment):
    def __init__(self, num_environments, seed):
        make = functools.partial(NestedEnv, 4)
        super().__init__(SerialVectorEnv([make] * num_environments), seed=seed)

    def change(self, time_step: TimeStep) -> TimeStep:
        return time_step

    def reset(self, seed=None):
        self._current = self.change(super().reset(seed))
        return self._current

    def step(self, action):
        self._current = self.change(super().step(action))
        return self._current


class WrongDtype(Good):
    def change(self, time_step):
        return time_step._replace(reward=time_step.reward.double())


class WrongShape(Good):
    def change(self, time_step):
        return time_step._replace(discount=time_step.discount[:, None])


class WrongIds(Good):
    def change(self, time_step):
        return time_step._replace(env_id=time_step.env_id + 1)


class TimeLimitsWithDiscountZero(Good):
    def change(self, time_step):
        discount = (time_step.step_type == 0).float()
        return time_step._replace(discount=discount)


class EndsWithoutFirst(Good):
    def change(self, time_step):
        return time_step._replace(step_type=time_step.step_type.clamp(min=1))


class RewardAtFirst(Good):
    def change(self, time_step):
        return time_step._replace(reward=torch.ones_like(time_step.reward))


class ForgetsActions(Good):
    def change(self, time_step):
        zeros = {
            "move": torch.zeros_like(time_step.prev_action["move"]),
            "grip": time_step.prev_action["grip"],
        }
        return time_step._replace(prev_action=zeros)


class KeepsActions(Good):
    def step(self, action):
        time_step = super().step(action)
        self._current = time_step._replace(prev_action=action)
        return self._current


class ReusesMemory(Good):
    def change(self, time_step):
        if not hasattr(self, "buffer"):
            self.buffer = torch.zeros_like(time_step.reward)
        self.buffer.copy_(time_step.reward)
        return time_step._replace(reward=self.buffer)


class IgnoresSeeds(Good):
    def reset(self, seed=None):
        return super().reset(int(torch.randint(2**31, ())))


class AllTheSame(Good):
    def change(self, time_step):
        observation = {
            "target": torch.zeros_like(time_step.observation["target"]),
            "state": (
                torch.zeros_like(time_step.observation["state"][0]),
                {"flags": torch.zeros_like(time_step.observation["state"][1]["flags"])},
            ),
        }
        reward = torch.zeros_like(time_step.reward)
        return time_step._replace(observation=observation, reward=reward)


class StepsBeforeReset(Good):
    def step(self, action):
        if self._current is None:
            self.reset()
        return super().step(action)


class ClosesOnce(Good):
    def close(self):
        if self._closed:
            raise RuntimeError("closed")
        super().close()


class AcceptsAnyAction(Good):
    def step(self, action):
        if not isinstance(action, dict) or len(action["move"]) != self.batch_size:
            action = {
                "move": torch.zeros(self.batch_size, 2),
                "grip": (torch.zeros(self.batch_size, dtype=torch.int64),),
            }
        return super().step(action)


def failures(env_class):
    """The names of the contract's tests that fail."""

    class Contract(EnvironmentContract):
        num_steps = 12

        def make(self, num_environments, seed):
            return env_class(num_environments, seed)

    contract, failed = Contract(), set()
    for name in dir(contract):
        if name.startswith("test_"):
            try:
                getattr(contract, name)()
            except (AssertionError, RuntimeError, ValueError):
                failed.add(name.removeprefix("test_"))
    return failed


@pytest.mark.ci
def test_a_good_environment_passes():
    assert failures(Good) == set()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("env_class", "found_by"),
    [
        (WrongDtype, "every_tensor_fits_its_spec"),
        (WrongShape, "every_tensor_fits_its_spec"),
        (WrongIds, "env_ids_count_the_rows"),
        (TimeLimitsWithDiscountZero, "only_terminal_steps_have_discount_zero"),
        (EndsWithoutFirst, "an_end_is_followed_by_a_first_step"),
        (RewardAtFirst, "a_reset_gives_first_steps_in_all_environments"),
        (ForgetsActions, "prev_action_is_what_led_here"),
        (KeepsActions, "the_memory_of_actions_stays_the_callers"),
        (ReusesMemory, "time_steps_belong_to_the_caller"),
        (IgnoresSeeds, "a_seed_fixes_the_trajectory"),
        (AllTheSame, "environments_and_seeds_differ"),
        (StepsBeforeReset, "a_step_before_a_reset_is_an_error"),
        (ClosesOnce, "close_may_be_called_twice"),
        (AcceptsAnyAction, "an_action_of_a_wrong_shape_is_an_error"),
    ],
)
def test_a_broken_environment_is_found(env_class, found_by):
    assert found_by in failures(env_class)
