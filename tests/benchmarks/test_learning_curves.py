"""Curves are means over seeds at common steps, and say when they get far."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest

from alf_lite.utils import summary
from tests.source_code import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs the plot extra"
)


@pytest.fixture
def curves(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("learning_curves")


def write_run(root_dir, evaluations):
    with summary.writer_to(root_dir / "train"):
        for step, value in evaluations:
            summary.scalar_at("eval_vs_EnvironmentSteps/AverageReturn", value, step)


def test_the_last_evaluation_without_a_step_counts(curves, tmp_path):
    write_run(tmp_path, [(0, -9.0), (0, -5.0), (100, -3.0)])
    assert curves.read_run(tmp_path) == [(0, -5.0), (100, -3.0)]


def test_a_run_without_evaluations_is_named(curves, tmp_path):
    with summary.writer_to(tmp_path / "train"):
        summary.scalar("loss", 1.0)
    with pytest.raises(SystemExit, match="no evaluations"):
        curves.read_run(tmp_path)
    with pytest.raises(SystemExit, match="there is no run"):
        curves.read_run(tmp_path / "elsewhere")


def test_runs_are_compared_at_the_steps_that_all_have_reached(curves):
    runs = [[(0, 0.0), (100, 10.0), (200, 20.0)], [(0, 0.0), (150, 30.0)]]
    curve = curves.make_curve("x", runs, is_flat=False)
    assert curve.env_steps.tolist() == [0, 100]
    assert curve.returns.tolist() == [[0.0, 0.0], [10.0, 20.0]]
    assert curve.mean.tolist() == [0.0, 15.0]


def test_a_flat_curve_is_the_return_before_the_first_step(curves):
    runs = [[(0, 3.0)], [(0, 5.0), (100, 7.0)]]
    curve = curves.make_curve("x", runs, is_flat=True)
    assert curve.returns.tolist() == [[3.0, 5.0]]
    low, high = curve.interval
    assert (low[0], high[0]) == (3.0, 5.0)


def test_one_lucky_evaluation_reaches_nothing(curves):
    returns = np.array([0.0, 0.0, 10.0, 0.0, 9.0, 10.0, 11.0])[:, None]
    curve = curves.Curve("x", np.arange(7) * 100, returns, is_flat=False)
    assert curves.steps_to_reach(curve, 9.5) == 600
    assert curves.steps_to_reach(curve, 12.0) is None


def test_a_picture_is_drawn_and_every_kind_has_a_line(
    curves, tmp_path, monkeypatch, capsys
):
    for seed in (0, 1):
        points = [(step + seed, step - 100.0) for step in (0, 50, 100)]
        write_run(tmp_path / "online" / str(seed), points)
        write_run(tmp_path / "offline" / str(seed), points[:1])
    output = tmp_path / "curves.png"
    arguments = ["--title=T", f"--output={output}", "--bottom=-200"]
    for kind, name in (("curve", "online"), ("flat", "offline")):
        runs = [str(tmp_path / name / seed) for seed in "01"]
        arguments += [f"--{kind}", name, *runs]
    monkeypatch.setattr("sys.argv", ["learning_curves.py", *arguments])
    curves.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["online", "offline"]
    assert output.read_bytes().startswith(b"\x89PNG")
