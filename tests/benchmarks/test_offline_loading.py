"""The benchmark of loading recorded steps runs and measures all formats."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.source_code import ROOT


@pytest.mark.ci
def test_every_way_of_loading_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("offline_loading")
    monkeypatch.setattr(
        "sys.argv", ["offline_loading.py", "--steps=3000", "--rounds=1"]
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    assert len([x for x in lines if re.search(r"\d s +\d+ ns per step$", x)]) == 9
    assert re.search(r"of the reading speed$", lines[-2])


@pytest.mark.parametrize("num_steps", [1000, 2500])
def test_all_formats_hold_the_same_steps(monkeypatch, tmp_path, num_steps):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("offline_loading")
    env = benchmark.SpecsOnlyEnvironment(
        benchmark.box_space((2,)), benchmark.box_space((1,), -1.0, 1.0)
    )
    steps = benchmark.recorded_steps(env, num_steps)
    for name in ("own", "alf", "npz"):
        path = tmp_path / f"steps.{name}"
        getattr(benchmark, f"write_{name}")(steps, path.with_suffix(".npz"))
        buffer = benchmark.load_replay_buffer(str(path.with_suffix(".npz")), env)
        loaded, _ = buffer.gather_all()
        assert loaded.time_step.step_type[0].tolist() == (
            steps.time_step.step_type.tolist()
        )
        assert (loaded.time_step.observation[0] == steps.time_step.observation).all()
