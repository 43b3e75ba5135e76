"""Small environments and an algorithm for the tests of the training loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.data_structures import AlgStep, LossInfo, StepType, TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.errors import EnvError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils import summary


class ScriptedEnvironment(Environment):
    """Environment b plays episode i as ``scripts[b](i)`` says: (length, return).

    The whole return comes with the LAST step. env_info is 10 t in step t.
    """

    def __init__(
        self, scripts: Sequence[Callable[[int], tuple[int, Any]]], reward_dims: int = 0
    ) -> None:
        self._scripts = scripts
        self._reward_dims = reward_dims
        self.num_step_calls = 0
        self.seeds: list[int | None] = []
        self.closed = False

    @property
    def batch_size(self) -> int:
        return len(self._scripts)

    @property
    def observation_spec(self) -> TensorSpec:
        return TensorSpec((2,))

    @property
    def action_spec(self) -> BoundedTensorSpec:
        return BoundedTensorSpec((), torch.int64, 0, 1)

    @property
    def reward_spec(self) -> TensorSpec:
        return TensorSpec((self._reward_dims,) if self._reward_dims else ())

    @property
    def env_info_spec(self) -> dict:
        return {"height": TensorSpec(())}

    @property
    def current_time_step(self) -> TimeStep:
        return self._time_step

    def reset(self, seed: int | None = None) -> TimeStep:
        self.seeds.append(seed)
        self._episode = np.zeros(self.batch_size, dtype=int)
        self._t = np.zeros(self.batch_size, dtype=int)
        return self._emit([0.0] * self.batch_size)

    def step(self, action: Tensor) -> TimeStep:
        self.num_step_calls += 1
        was_last = self._is_last()
        self._episode[was_last] += 1
        self._t = np.where(was_last, 0, self._t + 1)
        rewards = [
            script(episode)[1] if last else 0.0
            for script, episode, last in zip(
                self._scripts, self._episode, self._is_last(), strict=True
            )
        ]
        return self._emit(rewards)

    def close(self) -> None:
        self.closed = True

    def _is_last(self) -> np.ndarray:
        lengths = [s(e)[0] for s, e in zip(self._scripts, self._episode, strict=True)]
        return self._t == np.array(lengths)

    def _emit(self, rewards: list[Any]) -> TimeStep:
        is_last = self._is_last()
        step_type = np.where(self._t == 0, StepType.FIRST, StepType.MID)
        step_type[is_last] = StepType.LAST
        t = torch.from_numpy(self._t).float()
        shape = (self.batch_size, *self.reward_spec.shape)
        reward = torch.zeros(shape)
        for b, value in enumerate(rewards):
            reward[b] = torch.as_tensor(value, dtype=torch.float32)
        self._time_step = TimeStep(
            step_type=torch.from_numpy(step_type.astype(np.int32)),
            reward=reward,
            discount=torch.from_numpy((~is_last).astype(np.float32)),
            observation=torch.stack([t, torch.ones_like(t)], dim=1),
            prev_action=torch.zeros(self.batch_size, dtype=torch.int64),
            env_id=torch.arange(self.batch_size, dtype=torch.int32),
            env_info={"height": t * 10},
        )
        return self._time_step


class NoiseEnvironment(Environment):
    """Random observations and episode ends, one seeded stream per environment.

    The reward is 1 where the action is the sign of the first number of the observation.

    Args:
        batch_size: number of environments.
        seed: of the streams until ``reset`` is given one.
        fail_at: raise EnvError at this step, counted over all instances.
    """

    steps_of_all_instances = 0

    def __init__(
        self, batch_size: int = 2, seed: int | None = None, fail_at: int | None = None
    ) -> None:
        self._batch_size = batch_size
        self._fail_at = fail_at
        self._seed(seed)

    def _seed(self, seed: int | None) -> None:
        sequences = np.random.SeedSequence(seed).spawn(self._batch_size)
        self._streams = [np.random.default_rng(sequence) for sequence in sequences]

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def observation_spec(self) -> TensorSpec:
        return TensorSpec((2,))

    @property
    def action_spec(self) -> BoundedTensorSpec:
        return BoundedTensorSpec((), torch.int64, 0, 1)

    @property
    def current_time_step(self) -> TimeStep:
        return self._time_step

    def reset(self, seed: int | None = None) -> TimeStep:
        if seed is not None:
            self._seed(seed)
        self._step_type = np.zeros(self._batch_size, dtype=np.int32)
        reward = np.zeros(self._batch_size)
        return self._emit(reward, torch.zeros(self._batch_size, dtype=torch.int64))

    def episode_state(self) -> dict[str, Any]:
        streams = [json.dumps(s.bit_generator.state) for s in self._streams]
        return {"streams": streams, "time_step": nest.flatten(self._time_step)}

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        like = self.reset()
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.bit_generator.state = json.loads(saved)
        self._time_step = nest.pack_sequence_as(like, state["time_step"])
        self._step_type = self._time_step.step_type.numpy().copy()
        return {}

    def step(self, action: Tensor) -> TimeStep:
        NoiseEnvironment.steps_of_all_instances += 1
        if self._fail_at == NoiseEnvironment.steps_of_all_instances:
            raise EnvError("environment 1 fell over")
        positive = self._time_step.observation[:, 0].numpy() > 0
        starts = self._step_type == StepType.LAST
        ends = np.array([stream.random() < 0.1 for stream in self._streams])
        reward = (action.numpy() == positive) & ~starts
        self._step_type = np.where(
            starts, StepType.FIRST, np.where(ends, StepType.LAST, StepType.MID)
        ).astype(np.int32)
        return self._emit(reward, action)

    def _emit(self, reward: np.ndarray, action: Tensor) -> TimeStep:
        observation = [stream.normal(size=2) for stream in self._streams]
        self._time_step = TimeStep(
            step_type=torch.from_numpy(self._step_type.copy()),
            reward=torch.from_numpy(reward.astype(np.float32)),
            discount=torch.from_numpy(
                (self._step_type != StepType.LAST).astype(np.float32)
            ),
            observation=torch.from_numpy(np.array(observation, dtype=np.float32)),
            prev_action=action.clone(),
            env_id=torch.arange(self._batch_size, dtype=torch.int32),
        )
        return self._time_step


class ToyAlgorithm(RLAlgorithm):
    """REINFORCE without a baseline: one linear layer, and dropout to have a mode.

    Predicting does what an evaluation has to keep away from training: it draws random
    numbers and writes summaries.
    """

    trains_on_rollout_info = True

    def __init__(self, observation_spec, action_spec, *, learning_rate=0.05, **kwargs):
        super().__init__(
            observation_spec,
            action_spec,
            is_on_policy=True,
            optimizer=Adam(lr=learning_rate),
            **kwargs,
        )
        self._policy = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
        self.poison: str | None = None  # "loss" or "parameter"
        self.recorded_in_predict_step: set[bool] = set()

    def predict_step(self, inputs: TimeStep, state: Any) -> AlgStep:
        self.recorded_in_predict_step.add(summary.should_record())
        np.random.rand()  # noqa: NPY002
        return self.rollout_step(inputs, state)

    def rollout_step(self, inputs: TimeStep, state: Any) -> AlgStep:
        logits = self._policy(inputs.observation)
        action = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        log_prob = logits.log_softmax(-1).gather(1, action[:, None])[:, 0]
        return AlgStep(output=action, info=(log_prob, inputs.reward))

    def calc_loss(self, info: Any) -> LossInfo:
        log_prob, reward = info
        loss = -log_prob[:-1] * (reward[1:] - 0.5)
        if self.poison == "loss":
            loss = loss * float("nan")
        return LossInfo(loss=loss, extra={"policy": loss})

    def after_update(self, root_inputs: TimeStep, info: Any) -> None:
        if self.poison == "parameter":
            with torch.no_grad():
                self._policy[1].bias.fill_(float("nan"))
