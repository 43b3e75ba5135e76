from __future__ import annotations

import os
from multiprocessing import reduction
from typing import Any, NamedTuple

import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import AlgStep, Experience, StepType, TimeStep
from alf_lite.distributions.continuous import DiagonalNormal
from alf_lite.distributions.discrete import Categorical
from alf_lite.processes import shared_memory
from alf_lite.unrollers.sync_unroller import SyncUnroller
from alf_lite.unrollers.unroll import Unroll
from alf_lite.unrollers.worker_memory import UnrollSlots, row_specs

B = 3


class Info(NamedTuple):
    distributions: Any = ()
    nothing: Any = ()


class Environment:
    """Random nested observations; every seventh step is a FIRST one."""

    batch_size = B
    num_restarts = 0
    current_time_step: TimeStep

    def reset(self, seed: int | None = None) -> TimeStep:
        self._generator = torch.Generator().manual_seed(5)
        self._t = 0
        return self._time_step()

    def step(self, action: Any) -> TimeStep:
        self._t += 1
        return self._time_step()

    def rows_of(self, memory: TimeStep) -> None:
        return None

    def _time_step(self) -> TimeStep:
        draw = self._generator
        first = self._t % 7 == 0
        self.current_time_step = TimeStep(
            step_type=torch.full(
                (B,), StepType.FIRST if first else StepType.MID, dtype=torch.int32
            ),
            reward=torch.rand(B, generator=draw),
            discount=torch.ones(B),
            observation={
                "image": torch.randint(
                    256, (B, 4, 5), generator=draw, dtype=torch.uint8
                ),
                "sensors": (torch.rand(B, 2, generator=draw), torch.rand(B) > 0.5),
            },
            prev_action={"move": torch.zeros(B, 2), "gear": torch.zeros(B).long()},
            env_id=torch.arange(B, dtype=torch.int32),
            env_info={"lives": torch.full((B,), float(self._t))},
        )
        return self.current_time_step


class ActingPolicy:
    device = torch.device("cpu")
    overwrite_policy_output = False

    def __init__(self, *, transforms: bool) -> None:
        self._transforms = transforms

    def rollout_step(self, inputs: TimeStep, state: Any) -> AlgStep:
        mean = state[0][:, :2] + inputs.observation["sensors"][0]
        distributions = {
            "move": DiagonalNormal(mean, torch.ones(B, 2)),
            "gear": Categorical(torch.rand(B, 4)),
        }
        action = {"move": mean, "gear": torch.ones(B, dtype=torch.int64)}
        return AlgStep(
            action, (state[0] + 1, state[1]), Info(distributions=distributions)
        )

    def transform_timestep(self, time_step: TimeStep, state: Any) -> Any:
        if not self._transforms:
            return time_step, state
        observation = dict(time_step.observation)
        observation["image"] = observation["image"].float() / 255
        return time_step._replace(observation=observation), state

    def get_initial_rollout_state(self, batch_size: int) -> Any:
        return (torch.zeros(batch_size, 6), torch.ones(batch_size, 1).half())

    def get_initial_transform_state(self, batch_size: int) -> Any:
        return ()


def first_row(env: Environment, policy: ActingPolicy) -> tuple[Experience, TimeStep]:
    time_step = env.reset()
    inputs, _ = policy.transform_timestep(time_step, ())
    state = policy.get_initial_rollout_state(B)
    step = policy.rollout_step(inputs, state)
    return Experience(inputs, step.output, step.info, state), time_step


def build(*, transforms: bool, bootstrap: bool, length: int = 4, num_slots: int = 3):
    """Source of unrolls, and the slots as worker and trainer have them."""
    env, policy = Environment(), ActingPolicy(transforms=transforms)
    specs = row_specs(*first_row(env, policy))
    # As they travel.
    sent = reduction.ForkingPickler.loads(reduction.ForkingPickler.dumps(specs))
    worker = UnrollSlots(specs, num_slots, length, bootstrap)
    trainer = UnrollSlots(sent, num_slots, length, bootstrap)
    descriptor = trainer.create(num_copies=1)
    worker.attach(descriptor)
    os.close(descriptor)
    return SyncUnroller(env, policy), worker, trainer


def clone(unroll: Unroll) -> Unroll:
    return unroll._replace(
        experience=nest.map_structure(torch.clone, unroll.experience),
        time_steps=nest.map_structure(torch.clone, unroll.time_steps),
    )


def assert_same(a: Any, b: Any) -> None:
    nest.assert_same_structure(a, b)
    for (path, x), (_, y) in zip(
        nest.flatten_with_path(a), nest.flatten_with_path(b), strict=True
    ):
        assert x.dtype == y.dtype, path
        assert torch.equal(x, y), path


@pytest.mark.parametrize("transforms", [False, True])
@pytest.mark.parametrize("bootstrap", [False, True])
def test_what_the_worker_writes_is_what_the_trainer_reads(transforms, bootstrap):
    source, worker, trainer = build(transforms=transforms, bootstrap=bootstrap)
    written = {}
    for slot in (0, 2, 1):
        written[slot] = clone(source.unroll(4, bootstrap, worker.rows(slot)))
    for slot, unroll in written.items():
        experience, time_steps = trainer.read(slot)
        assert_same(experience, unroll.experience)
        assert_same(time_steps, unroll.time_steps)
        assert experience.time_step.reward.shape == (4 + bootstrap, B)
        assert time_steps.reward.shape == (5, B)
        info = experience.rollout_info
        assert isinstance(info.distributions["move"], DiagonalNormal)
        assert isinstance(info.distributions["gear"], Categorical)
        assert info.distributions["gear"].sample().shape == (4 + bootstrap, B)


def test_what_the_environment_and_the_policy_say_reaches_the_trainer():
    for bootstrap in (False, True):
        reference = build(transforms=False, bootstrap=bootstrap)[0]
        source, worker, trainer = build(transforms=False, bootstrap=bootstrap)
        for slot in (1, 0):
            torch.manual_seed(slot)
            kept_elsewhere = clone(reference.unroll(4, bootstrap))
            torch.manual_seed(slot)
            source.unroll(4, bootstrap, worker.rows(slot))
            experience, time_steps = trainer.read(slot)
            assert_same(experience, kept_elsewhere.experience)
            assert_same(time_steps, kept_elsewhere.time_steps)


def test_a_slot_is_overwritten_and_the_others_stay():
    source, worker, trainer = build(transforms=False, bootstrap=True)
    for slot in range(3):
        source.unroll(4, True, worker.rows(slot))
    kept = nest.map_structure(torch.clone, trainer.read(0))
    newest = clone(source.unroll(4, True, worker.rows(1)))
    assert_same(trainer.read(1)[1], newest.time_steps)
    assert_same(trainer.read(0), kept)


def test_what_is_read_of_a_slot_is_the_same_each_time():
    # Whoever has looked at it knows it again.
    source, worker, trainer = build(transforms=False, bootstrap=True)
    for slot in (0, 1, 0):
        source.unroll(4, True, worker.rows(slot))
        assert trainer.read(slot) is trainer.read(slot)
        assert trainer.rows(slot).read_time_steps(0, 5) is trainer.read(slot)[1]
    other = build(transforms=False, bootstrap=True)[2]
    assert other.read(0) is not trainer.read(0)


@pytest.mark.parametrize("transforms", [False, True])
def test_raw_steps_that_serve_as_inputs_too_are_stored_once(transforms):
    _, _, slots = build(transforms=transforms, bootstrap=True)
    experience, time_steps = slots.read(0)
    shared = experience.time_step.reward.data_ptr() == time_steps.reward.data_ptr()
    assert shared != transforms


def test_what_is_read_is_a_view_that_can_be_trained_on():
    source, worker, trainer = build(transforms=False, bootstrap=False)
    experience, _ = trainer.read(0)
    with torch.inference_mode():
        source.unroll(4, False, worker.rows(0))
    weight = torch.ones(4, B, requires_grad=True)
    (weight * experience.time_step.reward).sum().backward()
    torch.testing.assert_close(weight.grad, experience.time_step.reward)


def test_no_memory_is_refused_with_what_to_lower(monkeypatch):
    monkeypatch.setattr(shared_memory, "free_ram", lambda: 100)
    with pytest.raises(
        ValueError,
        match=r"3 unrolls of an unroll worker: .*unroll_queue_size, "
        r"unroll_length or num_unroll_workers",
    ):
        build(transforms=False, bootstrap=False)


def test_all_workers_are_counted_when_the_memory_is(monkeypatch):
    specs = row_specs(*first_row(Environment(), ActingPolicy(transforms=False)))
    slots = UnrollSlots(specs, 2, 4, False)
    monkeypatch.setattr(shared_memory, "free_ram", lambda: 3 * slots.num_bytes)
    os.close(slots.create(num_copies=3))
    with pytest.raises(ValueError, match="4 times 2 unrolls"):
        slots.create(num_copies=4)
