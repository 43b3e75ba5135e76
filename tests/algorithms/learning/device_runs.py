"""Small runs on a device that is none, which counts who waits for it."""

from __future__ import annotations

import functools
from typing import Any

import alf_lite
from alf_lite.optimizers.optimizers import Adam

ON_POLICY = {
    "unroll_length": 4,
    "epochs": 1,
    "mini_batch_size": 4,
    "mini_batch_length": 1,
}
OFF_POLICY = {
    "unroll_length": 4,
    "num_updates_per_train_iter": 2,
    "initial_collect_steps": 8,
    "mini_batch_size": 4,
    "replay_buffer_length": 100,
}


def make(
    algorithm: Any,
    device: str,
    settings: dict[str, Any],
    *,
    env: str = "Pendulum-v1",
    **kwargs: Any,
) -> Any:
    """The root of a run in two environments."""
    config = alf_lite.TrainerConfig(
        random_seed=1, num_iterations=20, device=device, **settings
    )
    kwargs.setdefault("optimizer", Adam(lr=1e-3, gradient_clipping=0.5))
    return algorithm(env=alf_lite.create_environment(env, 2), config=config, **kwargs)


CART_POLE = functools.partial(make, env="CartPole-v1")
