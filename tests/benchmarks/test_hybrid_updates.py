"""The benchmark of hybrid updates compares the same total batch."""

from __future__ import annotations

import importlib

import pytest

from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from tests.source_code import ROOT


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("hybrid_updates")
    monkeypatch.setattr(module, "_NUM_STEPS", 300)
    yield module
    config_files.reset()


@pytest.mark.ci
def test_it_runs(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["hybrid_updates.py", "dqn_cart_pole", "--rounds=2", "--updates=2"]
    )
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == [
        "dqn_cart_pole, 1",
        "dqn_cart_pole, 2",
    ]


@pytest.mark.ci
def test_both_train_on_as_many_steps(benchmark):
    config_files.parse_config("dqn_cart_pole")
    online, hybrid = (benchmark.build(TrainerConfig()) for _ in range(2))
    hybrid.add_offline_replay_buffer(benchmark.recorded_steps())
    assert online.train_from_replay_buffer() == hybrid.train_from_replay_buffer()
