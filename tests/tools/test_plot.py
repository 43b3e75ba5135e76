"""Runs are grouped, aligned and drawn, and what was done is said."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from alf_lite.bin import compare, plot
from alf_lite.runs.curves import Curve
from alf_lite.tools import pictures, run_groups
from tests.logged_runs import RETURN, write_run


def curve(*points: tuple[float, float]) -> Curve:
    x, y = np.array(points, dtype=float).T
    return Curve(y, np.arange(len(x)), x, np.arange(len(x)), np.arange(len(x)))


@pytest.fixture
def runs(tmp_path):
    """Two learning rates with two seeds each, and another environment."""
    for seed in (0, 1):
        for lr in (0.1, 0.2):
            points = [(i * 10 + seed, 100 * lr * i + seed) for i in range(5)]
            write_run(tmp_path / f"lr{lr}-{seed}", points, Adam__lr=lr)
    write_run(tmp_path / "ant", [(0, 1.0), (50, 2.0)], env="Ant-v5", conf="sac")
    return tmp_path


def run(capsys, *arguments: object) -> list[str]:
    assert plot.main(list(map(str, arguments))) == 0
    return capsys.readouterr().out.splitlines()


def test_curves_are_aligned_where_all_of_them_are():
    aligned = run_groups.align(
        [curve((0, 0), (10, 10), (20, 20)), curve((5, 5), (15, 25))], "env_steps"
    )
    assert aligned.x.tolist() == [5, 10, 15]
    assert aligned.values.T.tolist() == [[5, 10, 15], [5, 15, 25]]
    assert aligned.note == (
        "2 runs, drawn from 5 to 15, where the first one ends (the last one at 20)"
    )


def test_of_several_values_at_a_place_the_last_one_counts():
    aligned = run_groups.align([curve((0, -9), (0, -5), (100, 3))], "env_steps")
    assert (aligned.x.tolist(), aligned.values.T.tolist()) == ([0, 100], [[-5, 3]])


def test_curves_without_a_common_stretch_are_their_ends():
    aligned = run_groups.align([curve((0, 1), (10, 2)), curve((20, 5))], "env_steps")
    assert aligned.is_flat
    assert aligned.values.tolist() == [[2.0, 5.0]]
    offline = run_groups.align([curve((0, 1), (0, 2))], "env_steps")
    assert offline.note == "1 run that took no step: the last value of each"


def test_long_curves_are_thinned_and_smoothing_looks_back():
    points = [(i, float(i % 2)) for i in range(5000)]
    assert run_groups.align([curve(*points)], "env_steps").x.shape == (200,)
    smooth = run_groups.align([curve((0, 0), (1, 3), (2, 6))], "env_steps", smooth=2)
    assert smooth.values.T.tolist() == [[0.0, 1.5, 4.5]]


def test_groups_are_told_apart_by_what_differs(runs):
    found, _ = run_groups.read_runs([str(runs)])
    groups = run_groups.group_runs(found, "auto")
    assert [(g.environment, g.label, len(g.runs)) for g in groups] == [
        ("Ant-v5", "sac", 1),
        ("CartPole-v1", "lr = 0.1", 2),
        ("CartPole-v1", "lr = 0.2", 2),
    ]
    for by, labels in {
        "conf": {"sac", "ppo"},
        "algorithm": {"PPOAlgorithm"},
        "lr": {"lr = -", "lr = 0.1", "lr = 0.2"},
        "Adam.lr": {"lr = -", "lr = 0.1", "lr = 0.2"},
        "run": {"ant", "lr0.1-0", "lr0.1-1", "lr0.2-0", "lr0.2-1"},
        "folder": {runs.name},
    }.items():
        assert {g.label for g in run_groups.group_runs(found, by)} == labels


@pytest.mark.parametrize("env_steps", [20, 25])
def test_without_evaluations_a_run_is_scored_at_its_end(tmp_path, capsys, env_steps):
    points = [(0, 1.0), (10, 2.0), (20, 3.0)]
    run_dir = write_run(tmp_path / "run", points, tag="charts/episodic_return")
    end = {
        "average_return": 7.0,
        "iterations": 2 if env_steps == 20 else 3,
        "env_steps": env_steps,
        "num_updates": 6,
        "seconds": 1.5,
    }
    (run_dir / "run.json").write_text(json.dumps({"conf": "ppo", **end}))
    table = tmp_path / "curves.csv"
    run(capsys, run_dir, f"--output={table}")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    last = [float(rows[-1][name]) for name in ("env_steps", "value")]
    # What was summarised at the end is there already.
    assert last == ([20, 3] if env_steps == 20 else [25, 7])
    assert len(rows) == (3 if env_steps == 20 else 4)
    assert compare.main([str(run_dir)]) == 0
    score = capsys.readouterr().out.splitlines()[2].split()
    assert float(score[3]) == last[1]


def test_the_table_says_how_good_each_group_is(runs, capsys, tmp_path):
    table = tmp_path / "out" / "curves.csv"
    lines = run(capsys, f"{runs}/lr*", f"--output={table}", "--threshold=45")
    assert lines[0] == "CartPole-v1: eval/AverageReturn over environment steps"
    assert lines[1].startswith("  lr = 0.1  mean 40 [40, 40], 45 never; 2 runs")
    assert lines[2].startswith("  lr = 0.2  mean 79.5 [79, 80], 45 at 40; 2 runs")
    # Places of runs lie between those of others: one lucky point of each is not three
    for seed in range(5):
        points = [(1000 * i + 7 * seed, 100.0 * (i in (0, 5))) for i in range(10)]
        write_run(runs / f"lucky/{seed}", points)
    for options, reached in ((["--threshold=90"], "90 never"), ([], "")):
        output = f"--output={tmp_path / 'lucky.csv'}"
        line = run(capsys, runs / "lucky", output, *options)[1]
        assert f"{reached}; 5 runs" in line
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["group"] == "lr = 0.1"
    assert float(rows[-1]["env_steps"]) == 40
    assert {row["runs"] for row in rows} == {"2"}
    lines = run(
        capsys, f"slow={runs}/lr0.1-*", f"fast={runs}/lr0.2-*", f"--output={table}"
    )
    assert [line.split()[0] for line in lines[1:3]] == ["slow", "fast"]


@pytest.mark.ci
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_table_that_cannot_be_printed_is_an_error(runs, tmp_path):
    command = [sys.executable, "-m", "alf_lite.bin.plot", str(runs / "ant")]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, f"--output={tmp_path / 'x.csv'}"], stdout=full)
    assert done.returncode == 1


@pytest.mark.parametrize("x", ["updates", "iterations", "time"])
def test_every_axis_can_be_drawn_over(runs, capsys, tmp_path, x):
    lines = run(capsys, runs / "ant", f"--x={x}", f"--output={tmp_path / 'x.csv'}")
    assert "1 run, drawn from 0 to" in lines[1]


@pytest.mark.ci
def test_pictures_are_written_alike_in_every_format(runs, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    write_run(runs / "offline", [(0, 5.0), (0, 6.0)], conf="cql")
    files = [tmp_path / f"{i}{kind}" for i in "ab" for kind in (".png", ".svg")]
    outputs = [f"--output={file}" for file in files]
    options = [
        "--show_runs",
        "--statistic=iqm",
        "--smooth=2",
        "--title=T",
        "--bottom=0",
    ]
    run(capsys, runs, *outputs, *options)
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert files[1].read_bytes() == files[3].read_bytes()
    assert "return, in evaluations" in files[1].read_text()  # not the tag
    flat = f"--flat=x {runs / 'ant'}"
    assert plot.main([str(runs), flat, *outputs[:1]]) == 2
    assert "no group is called so" in capsys.readouterr().err
    lines = run(capsys, f"x={runs / 'ant'}", "--flat=x", *outputs[:1])
    assert lines[1] == "  x  mean 1; 1 run, at 0"


@pytest.mark.parametrize("has_a_curve", [False, True])
def test_points_are_within_the_picture(tmp_path, capsys, monkeypatch, has_a_curve):
    figure = pytest.importorskip("matplotlib.figure").Figure
    shown = []
    monkeypatch.setattr(
        figure, "savefig", lambda self, *_, **__: shown.append(self.axes[0].get_xlim())
    )
    for seed in (0, 1):
        write_run(tmp_path / f"once-{seed}", [(20_000 + seed, 1.0)], Adam__lr=0.1)
    if has_a_curve:
        write_run(tmp_path / "often", [(0, 1.0), (5_000, 2.0)], Adam__lr=0.2)
    run(capsys, tmp_path, f"--output={tmp_path / 'x.png'}")
    ((low, high),) = shown
    assert low == 0
    assert high == pytest.approx(1.05 * 20_000.5)


def test_empty_runs_are_left_out_with_a_line(runs, capsys, tmp_path):
    write_run(runs / "empty", [])
    write_run(runs / "nan", [(0, None)], env="Ant-v5", conf="sac")
    lines = run(capsys, runs, f"--output={tmp_path / 'x.csv'}")
    notes = [line for line in lines if line.startswith("note: ")]
    assert f"{runs / 'empty'} has logged nothing" in notes[0]
    assert notes[1] == f"note: 1 of 2 runs of sac have no {RETURN}."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no RUN is given"),
        (["{runs}/none"], "there is no directory"),
        (["{runs}/none*"], "nothing matches"),
        (["{runs}", "--tag=eval/AverageRetrun"], "Did you mean 'eval/AverageReturn'"),
        (["{runs}", "--group_by=Adam.l"], "Did you mean 'Adam.lr'"),
        (["{runs}", "--output=x.gif"], "a picture is a file that ends with"),
        (["{runs}", "--smooth=0"], "--smooth"),
        (["{runs}", "--bottom=nan"], "expected a finite number"),
        (["{runs}", "--end=0"], "--end"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(runs, capsys, arguments, message):
    arguments = [argument.format(runs=runs) for argument in arguments]
    output = (
        [] if any("--output" in a for a in arguments) else [f"--output={runs}/a.csv"]
    )
    assert plot.main([*arguments, *output]) in (2, 3)
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_a_missing_extra_is_told_before_anything_is_read(capsys, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    assert plot.main(["runs", "--output=a.png"]) == 2
    assert "pip install 'alf_lite[plot]'" in capsys.readouterr().err
