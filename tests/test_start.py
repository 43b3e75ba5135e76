"""What is loaded until a run has begun, or begun anew: every start waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# The compiler of torch takes a second and 70 MiB, the others up to half a second.
SLOW = (
    *("torch._dynamo", "torch._inductor", "sympy"),
    *("cv2", "imageio", "IPython", "matplotlib", "mlflow", "onnx", "optuna"),
    *("pandas", "PIL", "ray", "rich", "scipy", "tensorflow", "wandb"),
)
TRAIN = """
import json, sys
sys.modules["numba"] = None  # who has it installed, wants it to compile loops
import alf_lite, alf_lite.optimizers
for name, env_name, settings, optimizer in json.loads(sys.argv[1]):
    for num_iterations in (1, 2):  # the second is resumed
        env = alf_lite.create_environment(env_name)
        config = alf_lite.TrainerConfig(num_iterations=num_iterations, **settings)
        kwargs = {}
        if optimizer:
            kwargs["optimizer"] = getattr(alf_lite.optimizers, optimizer)(lr=1e-3)
        algorithm = getattr(alf_lite, name)(env=env, config=config, **kwargs)
        alf_lite.Trainer(algorithm, root_dir=f"{sys.argv[2]}/{name}").train()
        assert algorithm.num_updates > 0
    print(json.dumps([name, *sys.modules]))
"""
OFF_POLICY = {"initial_collect_steps": 40, "mini_batch_size": 8, "unroll_length": 50}
RUNS = [
    ("PPOAlgorithm", "CartPole-v1", {"unroll_length": 16}, None),
    ("DqnAlgorithm", "CartPole-v1", OFF_POLICY, None),
    ("SacAlgorithm", "Pendulum-v1", OFF_POLICY, None),
    # Its first update leaves the actor without a gradient.
    ("Td3Algorithm", "Pendulum-v1", OFF_POLICY, None),
    # Torch makes the steps of the other optimizers.
    ("ActorCriticAlgorithm", "CartPole-v1", {"unroll_length": 16}, "RMSprop"),
    ("DdpgAlgorithm", "Pendulum-v1", OFF_POLICY, "SGD"),
]


@pytest.mark.ci
def test_training_begins_without_what_takes_long_to_load(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, json.dumps(RUNS), str(tmp_path)],
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(RUNS)
    for name, *loaded in map(json.loads, lines):
        assert not set(SLOW).intersection(loaded), name
