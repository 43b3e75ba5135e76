"""What only a GPU can tell: that captures work there, and that torch sees nobody wait.

The same is tested with ``StandInDevice`` on every machine.
"""

from __future__ import annotations

import warnings

import pytest
import torch

import alf_lite
from alf_lite import DqnAlgorithm, PPOAlgorithm, SacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.config import files as config_files
from alf_lite.errors import DivergedError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.utils.device_graphs import CapturedFunction

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

ON_POLICY = {
    "unroll_length": 8,
    "epochs": 2,
    "mini_batch_size": 8,
    "mini_batch_length": 1,
}
OFF_POLICY = {
    "unroll_length": 4,
    "num_updates_per_train_iter": 4,
    "initial_collect_steps": 16,
    "mini_batch_size": 32,
    "replay_buffer_length": 1000,
}
CASES = {
    "PPO": (PPOAlgorithm, "CartPole-v1", ON_POLICY),
    "SAC": (SacAlgorithm, "Pendulum-v1", OFF_POLICY),
    "TD3": (Td3Algorithm, "Pendulum-v1", OFF_POLICY),
    "DQN": (DqnAlgorithm, "CartPole-v1", OFF_POLICY),
    "DQN, priorities": (
        DqnAlgorithm,
        "CartPole-v1",
        {**OFF_POLICY, "priority_replay": True},
    ),
}


def make(name, **settings):
    algorithm, env, config = CASES[name]
    if "priorities" in name:
        config_files.parse_config(None, ["StorageOptions.device = 'cuda'"])
    return algorithm(
        env=alf_lite.create_environment(env, 2),
        config=alf_lite.TrainerConfig(
            random_seed=1, num_iterations=50, device="cuda", **{**config, **settings}
        ),
        optimizer=Adam(lr=1e-3, gradient_clipping=0.5),
    )


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_torch_sees_nobody_wait_but_for_actions(name, cuda_graphs):
    algorithm = make(name, cuda_graphs=cuda_graphs)
    for _ in range(12):
        algorithm.train_iter()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            algorithm.train_iter()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    others = [w for w in caught if "numpy_time_steps" not in w.filename]
    assert [f"{w.filename}:{w.lineno}" for w in others] == []


@pytest.mark.parametrize("name", ["PPO", "TD3", "DQN"])
def test_captured_updates_learn_what_others_do(name):
    results = []
    for cuda_graphs in (False, True):
        algorithm = make(name, cuda_graphs=cuda_graphs)
        for _ in range(6):
            algorithm.train_iter()
        results.append([p.detach().clone() for p in algorithm.parameters()])
        if cuda_graphs:
            assert algorithm.training_run.updates.num_graphs == (
                2 if name == "TD3" else 1
            )
    for plain, captured in zip(*results, strict=True):
        assert captured.isfinite().all()
        torch.testing.assert_close(captured, plain, rtol=0.05, atol=0.01)


def test_a_graph_computes_what_the_function_does():
    layer = torch.nn.Linear(3, 3, device="cuda")
    captured = CapturedFunction(lambda x: layer(x).relu(), "a layer")
    for i in range(8):
        x = torch.full((5, 3), float(i), device="cuda")
        torch.testing.assert_close(captured(x), layer(x).relu())
    assert captured.num_graphs == 1


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_updates_that_diverge_change_nothing(cuda_graphs):
    algorithm = make("SAC", cuda_graphs=cuda_graphs, check_finite_interval=8)
    for _ in range(12):
        algorithm.train_iter()
    before = [
        p.detach().clone() for _, o in algorithm.optimizers() for p in o.parameters
    ]
    algorithm.optimizers()[0][1].parameters[0].data.fill_(float("inf"))
    with pytest.raises(DivergedError, match="not finite"):
        for _ in range(12):
            algorithm.train_iter()
    after = [p.detach() for _, o in algorithm.optimizers() for p in o.parameters]
    assert all(map(torch.equal, after[1:], before[1:]))
