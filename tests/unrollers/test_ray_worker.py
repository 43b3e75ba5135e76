"""The worker of an actor, in this process: no Ray is needed."""

from __future__ import annotations

import sys
import threading
from multiprocessing import reduction

import numpy as np
import pytest
import torch

from alf_lite.errors import EnvError
from alf_lite.processes.child_main import error_of
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers import actor_copy, ray_worker
from alf_lite.unrollers.actor_copy import create_remote_environment
from alf_lite.unrollers.ray_worker import ArrivedParameters, RayWorker
from alf_lite.unrollers.unroll_worker import (
    PoolOptions,
    UnrollReport,
    WorkerDescription,
    WorkerSettings,
)
from alf_lite.unrollers.worker_memory import UnrollSlots, flat_parameters
from alf_lite.utils import random_state
from tests.trainers.async_toys import async_config, env_fn

T = 2


@pytest.fixture
def build(monkeypatch):
    """A worker as it is built from the recipe of a run, and its answer."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(ray_worker, "set_num_threads", lambda number: None)
    monkeypatch.setattr(actor_copy, "warm_up", lambda module: None)

    def build(mode="", **specs):
        create_env = env_fn(mode, num_parallel_environments=2)
        env = create_remote_environment(async_config(), create_env, seed=0)
        env.release()
        tensors = {
            "numbers": TensorSpec((5,), dtype=torch.float64),
            "weights": TensorSpec((1000,)),
            **specs,
        }
        options = PoolOptions(2, T, False, 3, 0.0, 60.0, 3)
        settings = WorkerSettings(1, env.recipe, 5, options, tensors)
        worker = RayWorker()
        with random_state.preserved():
            answer = worker.build(bytes(reduction.ForkingPickler.dumps(settings)), [])
        return worker, tensors, answer

    return build


def parameters(specs, weight: float) -> np.ndarray:
    memory = flat_parameters(specs.values())
    tensors = dict(zip(specs, memory.tensors(), strict=True))
    tensors["weights"].fill_(weight)
    return memory.bytes_of_all.copy()


def test_unrolls_with_the_newest_parameters_that_have_arrived(build):
    worker, specs, (words, content, *_) = build()
    assert words == b""
    description: WorkerDescription = reduction.ForkingPickler.loads(content)
    assert description.batch_size == 2
    for version, weight in ((1, 1.0), (3, 3.0), (2, 2.0)):
        worker.refresh(version, parameters(specs, weight))
    words, content, number, values = worker.unroll(2, version=2)
    assert number == 1
    assert words == b""
    report = UnrollReport.unpack(content)
    assert (report.slot, report.version, report.is_first) == (2, 3, True)
    slots = UnrollSlots(description.rows, 1, T, bootstrap=False)
    slots.create_here()
    slots.bytes_of_all[:] = values
    experience, time_steps = slots.read(0)
    assert experience.rollout_info.first_weight.eq(3.0).all()
    assert experience.rollout_info.last_weight.eq(3.0).all()
    assert time_steps.env_id.tolist() == [[2, 3]] * (T + 1)
    signs = worker.look()
    assert signs.heartbeat == 1 + T
    assert "test_ray_worker" in signs.stack  # this thread is the one that works


def test_a_fault_is_said_as_text(build):
    _, _, (words, content, _, values) = build(other=TensorSpec((2,)))
    assert (content, values) == (b"", None)
    assert "built alike" in str(error_of(words, "worker 1", EnvError))


def test_modules_are_found_where_the_trainer_finds_them(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_worker, "set_num_threads", lambda number: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "cart_of_ones_own.py").write_text("class Cart: pass\n")
    dumped = b"ccart_of_ones_own\nCart\n."  # the class, by its name
    words, *_ = RayWorker().build(dumped, [])
    assert b"No module named 'cart_of_ones_own'" in words
    words, *_ = RayWorker().build(dumped, [str(tmp_path)])
    assert b"'Cart' has no attribute 'options'" in words
    monkeypatch.delitem(sys.modules, "cart_of_ones_own")


def test_it_stops_at_the_next_step(build):
    worker, specs, _ = build()
    worker.refresh(1, parameters(specs, 1.0))
    worker.stop()
    assert b"StopRequested" in worker.unroll(0, 1)[0]
    worker.close()


def test_waits_for_the_parameters_that_were_published_before_it_was_asked(monkeypatch):
    arrived = ArrivedParameters()
    arrived.arrive(1, np.zeros(1, np.uint8))
    timer = threading.Timer(0.05, arrived.arrive, (2, np.ones(1, np.uint8)))
    timer.start()
    arrived.wait_for(2)
    timer.join()
    monkeypatch.setattr(ray_worker, "_NEWS_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"version 3 .* newest is 2"):
        arrived.wait_for(3)
