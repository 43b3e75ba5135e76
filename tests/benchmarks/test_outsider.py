"""The second comparison trains, goes on where it was, and reports what there is."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from tests.source_code import ROOT


@pytest.fixture
def outsider():
    spec = importlib.util.spec_from_file_location(
        "outsider", ROOT / "benchmarks" / "outsider.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tiny_task_is_trained_and_rated(outsider):
    clock = outsider.HalfClock(256)
    settings = outsider.PPO | {"T": 16, "batch": 32, "epochs": 1}
    outsider.train_alf_lite(clock, "PPO", "CartPole-v1", 2, 256, settings)
    (half, _), (last, _) = clock.first, clock.last
    assert 128 <= half < last
    assert last >= 256
    assert clock.rate() > 0


def test_finished_runs_are_not_made_again(outsider, tmp_path, monkeypatch):
    made = []

    def run(python, library, name):
        made.append((library, name))
        if len(made) == 3:
            raise SystemExit("broken off")
        return 2.0

    monkeypatch.setattr(outsider, "run", run)
    results = tmp_path / "runs.jsonl"
    pythons = {"alf_lite": sys.executable, "sb3": sys.executable}
    with pytest.raises(SystemExit):
        outsider.measure(["dqn"], 1, pythons, results)
    with results.open("a") as file:
        file.write('{"task": "dqn", "tu')  # the machine went down
    outsider.measure(["dqn"], 1, pythons, results)
    order = ["alf_lite", "sb3", "sb3", "sb3", "alf_lite"]  # A B B A, one of them twice
    assert made == [(library, "dqn") for library in order]
    assert len(outsider.read(results)) == 4


def test_the_report_has_medians_and_quartiles_of_pairs(outsider, tmp_path):
    results = tmp_path / "runs.jsonl"
    rates = {"alf_lite": [200.0, 300.0, 400.0, 900.0], "sb3": [100.0] * 3}
    results.write_text(
        "".join(
            json.dumps(
                {"task": "a2c", "turn": i, "library": library, "rate": rate, "load": i}
            )
            + "\n"
            for library, values in rates.items()
            for i, rate in enumerate(values)
        )
    )
    text = outsider.report(outsider.read(results))
    # The fourth of ours has no peer yet.
    assert "| a2c | 300 | 100 | 3.00 (2.50 to 3.50) | 3 |" in text
    assert "Load: 1.0, at most 3.0." in text
