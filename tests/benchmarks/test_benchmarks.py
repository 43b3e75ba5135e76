"""The benchmarks run, and their arithmetic is right."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys

import gin
import pytest
import torch

from alf_lite.config import DefaultSettings, TrainerConfig, default_settings
from alf_lite.config import files as config_files
from alf_lite.config.trainer_config import UPDATE_COUNTS
from tests.source_code import ROOT

BENCHMARKS = ROOT / "benchmarks"
CONFS = sorted(BENCHMARKS.glob("*.gin"))
SLOW = pytest.mark.slow  # one of these programs runs whenever the tests do


@pytest.fixture
def run(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("run")


@pytest.fixture
def measuring(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the module sets them; this puts them back
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("measuring")


def measure(script: str, library: str, num_env_steps: int, *sizes: str) -> dict:
    """What a benchmark prints about one library."""
    done = subprocess.run(
        [
            sys.executable,
            BENCHMARKS / script,
            f"--library={library}",
            f"--num_env_steps={num_env_steps}",
            *sizes,
        ],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "library", "num_env_steps"),
    [
        pytest.param("ppo_cartpole.py", "alf_lite_native", 6_144, marks=SLOW),
        pytest.param("ppo_cartpole.py", "bare_eager", 6_144, marks=SLOW),
        ("a2c_cartpole.py", "alf_lite", 1_600),
    ],
)
def test_a_benchmark_counts_and_rates_its_steps(script, library, num_env_steps):
    record = measure(script, library, num_env_steps)
    # An unroll overshoots; the steps that an automatic reset swallows are left out.
    assert 0.95 * num_env_steps <= record["env_steps"] <= num_env_steps + 1024
    assert record["steps_per_second"] > 0
    assert record["steps_per_cpu_second"] > 0
    assert record["peak_memory_mib"] > 50


@SLOW
@pytest.mark.parametrize(
    ("script", "num_env_steps", "sizes", "updates_per_step"),
    [
        ("ppo_cartpole.py", 12_288, ["--sequence_length=16"], 16 / 1024),
        ("ppo_cartpole.py", 12_288, ["--env=Acrobot-v1"], 16 / 1024),
        ("ppo_cartpole.py", 12_288, ["--activation=elu", "--dict"], 16 / 1024),
        ("dqn_frames.py", 1_400, [], 1 / 4),
        ("ppo_frames.py", 640, ["--num_envs=2"], 8 / 64),
    ],
)
def test_a_variant_makes_the_updates_it_is_said_to_make(
    script, num_env_steps, sizes, updates_per_step
):
    record = measure(script, "alf_lite", num_env_steps, *sizes)
    assert record["updates_per_step"] == pytest.approx(updates_per_step, rel=0.05)


@SLOW
def test_one_update_is_counted_for_each_training_of_off_policy_data():
    record = measure("dqn_cartpole.py", "alf_lite", 5_000)
    updates_per_step = record["updates_per_second"] / record["steps_per_second"]
    # Ours trains after ten rows, and the first step of an episode is a row, too.
    assert 0.1 <= updates_per_step <= 0.12


def test_an_update_is_a_step_of_every_parameter(measuring):
    large = torch.nn.Parameter(torch.zeros(30))
    small = torch.nn.Parameter(torch.zeros(10))
    optimizers = [torch.optim.SGD([large], lr=0.1), torch.optim.SGD([small], lr=0.1)]
    counter = measuring.UpdateCounter()
    for num_steps, optimizer in zip((3, 1), optimizers, strict=True):
        for _ in range(num_steps):
            optimizer.step()
    assert counter.count() == 0  # without gradients nothing moves
    large.grad, small.grad = torch.ones(30), torch.ones(10)
    for num_steps, optimizer in zip((3, 1), optimizers, strict=True):
        for _ in range(num_steps):
            optimizer.step()
    assert counter.count() == (3 * 30 + 1 * 10) / 40


def test_steps_before_the_learning_are_not_rated(measuring):
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    counter = measuring.StepCounter()
    counter.start(steps_per_iteration=10, learning_starts=100)
    for step in range(151):
        counter.add()
        if step >= 100:
            optimizer.step()
    rates = counter.rates(skip=0)
    assert rates["env_steps"] == 151
    assert rates["updates_per_second"] == pytest.approx(rates["steps_per_second"])


@pytest.mark.parametrize("conf", CONFS, ids=lambda conf: conf.stem)
def test_a_conf_leaves_nothing_to_what_its_algorithm_declares(conf):
    # The same work as the peers', whatever is declared one day.
    given_by_the_script = [
        "TrainerConfig.num_env_steps = 10_000",
        "TrainerConfig.initial_collect_steps = 0",
    ]
    config_files.parse_config(str(conf), given_by_the_script)
    config = TrainerConfig()
    usual, declared = DefaultSettings(), default_settings(config.algorithm_ctor)
    taken = [n for n in config.left_unset if n not in UPDATE_COUNTS]
    assert [n for n in taken if getattr(declared, n) != getattr(usual, n)] == []
    assert set(UPDATE_COUNTS) - set(config.left_unset), "how many updates"
    for target in ("create_environment.num_parallel_environments", "Adam.lr"):
        gin.query_parameter(target)  # raises where it is not bound


def test_options_are_passed_on_and_refused_where_they_mean_nothing(measuring):
    options = argparse.Namespace(library="bare", hidden_sizes=(256, 256))
    measuring.refuse(options, hidden_sizes=(256, 256))
    with pytest.raises(SystemExit, match="bare has no --hidden_sizes"):
        measuring.refuse(options, hidden_sizes=(64, 64))


def test_other_networks_are_the_same_in_both_libraries(measuring, monkeypatch):
    variants = importlib.import_module("network_variants")
    command_line = ["script", "--library=sb3", "--activation=elu", "--dict"]
    monkeypatch.setattr(sys, "argv", command_line)
    options = measuring.parse_options("", ("sb3",), 1, None, **variants.Q_NETWORK)
    assert not options.layer_norm
    variants.check(options)
    assert variants.bindings(options, ("QNetwork",)) == [
        f"create_environment.env_name = '{measuring.DICT_CART_POLE}'",
        "QNetwork.activation = 'elu'",
    ]
    assert variants.sb3_arguments(options, (120, 84), "relu") == {
        "policy": "MultiInputPolicy",
        "policy_kwargs": {"net_arch": [120, 84], "activation_fn": torch.nn.ELU},
    }
    options.layer_norm = options.dueling = True
    assert variants.bindings(options, ())[1:] == [
        "EncodingNetwork.layer_norm = True",
        "QNetwork.dueling = True",
    ]
    options.activation = "elo"
    with pytest.raises(SystemExit, match="one of"):
        variants.check(options)
    options.activation, options.library = "elu", "alf_lite_native"
    with pytest.raises(SystemExit, match="no --dict"):
        variants.check(options)


def test_a_script_gets_other_layers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    peers = importlib.import_module("peers")
    assert peers.resize("Linear(64, 64), 640", 64, (256, 256)) == (
        "Linear(256, 256), 640"
    )
    with pytest.raises(SystemExit, match="two layers"):
        peers.resize("Linear(64, 64)", 64, (256,))


def test_a_ratio_is_the_median_of_the_rounds(run):
    ours = [{"rate": 10.0}, {"rate": 30.0}, {"rate": 40.0}]
    theirs = [{"rate": 10.0}, {"rate": 10.0}, {"rate": 20.0}]
    assert run.median_ratio(ours, theirs, "rate") == 2.0


def test_the_table_has_a_row_for_each_library(run):
    def record(rate: float) -> dict:
        return {
            "steps_per_second": rate,
            "updates_per_second": rate / 100,
            "steps_per_cpu_second": rate,
            "peak_memory_mib": 300.0,
        }

    records = {
        "alf_lite": [record(3000), record(2000)],
        "sb3": [record(1000), record(1000)],
    }
    assert run.table(records, baseline="sb3").splitlines()[2:] == [
        "| alf_lite | 2,500 | 25.0 | 2,000 / 2,500 / 3,000 | 2.50 | 300 |",
        "| sb3 | 1,000 | 10.0 | 1,000 / 1,000 / 1,000 | 1.00 | 300 |",
    ]


def test_a_peer_that_is_not_there_is_asked_for(run):
    nowhere = run.Peers(python=None, checkouts={"cleanrl": None, "leanrl": None})
    with pytest.raises(SystemExit, match="--peer_python"):
        nowhere.command("ppo_cartpole", "sb3")
    no_checkout = run.Peers("python", {"cleanrl": None, "leanrl": None})
    with pytest.raises(SystemExit, match="--cleanrl"):
        no_checkout.command("ppo_cartpole", "cleanrl")
