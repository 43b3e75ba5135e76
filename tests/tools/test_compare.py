"""Groups are compared by scores, probability of improvement and profiles."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from alf_lite.bin import compare
from alf_lite.runs.curves import find_runs
from tests.logged_runs import write_run


@pytest.fixture
def runs(tmp_path):
    """Two confs in two environments, three seeds each; "b" is better."""
    for conf, gain in (("a", 1.0), ("b", 2.0)):
        for env, size in (("Small-v1", 1.0), ("Large-v1", 1000.0)):
            for seed in range(3):
                points = [(0, 0.0), (100, (gain + seed / 2) * size)]
                name = f"{conf}-{env}-{seed}"
                write_run(tmp_path / name, points, conf=conf, env=env)
    return tmp_path


def run(capsys, *arguments: object) -> list[str]:
    assert compare.main(list(map(str, arguments))) == 0
    return capsys.readouterr().out.splitlines()


def test_one_environment_is_compared_in_its_own_units(runs, capsys, tmp_path):
    table = tmp_path / "scores.csv"
    lines = run(capsys, f"{runs}/*Large*", f"--output={table}")
    assert lines[0] == "Score: eval/AverageReturn, the last point of each run"
    assert lines[2].split()[:4] == ["Large-v1", "a", "3", "1500"]
    assert lines[2].split()[-2:] == ["1000", "2000"]
    assert lines[4] == "Probability that a run is better:"
    # 2, 2.5, 3 against 1, 1.5, 2: one tie of nine pairs.
    assert lines[5].split()[:4] == ["b", ">", "a", "0.9444"]
    with table.open(newline="") as file:
        scores = [float(row["score"]) for row in csv.DictReader(file)]
    assert scores == [1000, 1500, 2000, 2000, 2500, 3000]


def test_a_run_is_one_by_whatever_path(runs, capsys, monkeypatch):
    (runs / "A-latest").symlink_to("b-Large-v1-2")
    (runs / "more").mkdir()
    (runs / "more/best").symlink_to("../b-Large-v1-1")
    assert [p.name for p in find_runs(runs)[:2]] == ["a-Large-v1-0", "a-Large-v1-1"]
    assert len(find_runs(runs)) == 12
    monkeypatch.chdir(runs)
    lines = run(capsys, "b-Large-v1-0", runs / "b-Large-v1-0", "b-*Large*", "more")
    assert lines[2].split()[:3] == ["Large-v1", "b", "3"]


def test_several_environments_are_put_on_one_scale(runs, capsys):
    lines = run(capsys, runs, "--range=Large-v1=0:2000", "--last=2")
    scaled = [line.split() for line in lines if line.startswith("scaled")]
    assert [row[1:3] for row in scaled] == [["a", "6"], ["b", "6"]]
    # The mean of the last two points is half of the end: of 0 to 2000 in Large-v1, and
    # between 0.5 and 1.5 in Small-v1.
    large = np.array([500, 750, 1000]) / 2000
    small = np.array([0.5, 0.75, 1.0]) - 0.5
    assert float(scaled[0][3]) == pytest.approx(np.mean([large, small]), rel=1e-3)
    assert "note: Large-v1: 0 counts as 0 and 2000 as 1." in lines
    assert "note: Small-v1: 0.5 counts as 0 and 1.5 as 1." in lines


def test_ends_that_do_not_compare_are_told(runs, capsys):
    assert not [x for x in run(capsys, runs) if "end" in x and x.startswith("note")]
    write_run(runs / "c-0", [(0, 1.0), (500, 2.0)], conf="c", env="Small-v1")
    write_run(runs / "c-1", [(0, 1.0), (500, None)], conf="c", env="Small-v1")
    lines = "\n".join(run(capsys, runs))
    assert "The runs in Small-v1 end between 100 and 500 environment steps." in lines
    assert "1 of 2 runs of c end with NaN: earlier points count in its place." in lines


def test_a_single_run_has_no_interval_and_a_single_group_no_pair(runs, capsys):
    lines = run(capsys, runs / "a-Small-v1-0")
    assert lines[2].split() == ["Small-v1", "a", "1", "1", "1", "1", "1"]
    assert len(lines) == 3


@pytest.mark.ci
def test_a_picture_is_drawn(runs, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    for name, operands in {
        "all.png": [runs],
        "one.png": [runs / "a-Small-v1-0"],
    }.items():
        run(capsys, *operands, f"--output={tmp_path / name}")
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no RUN is given"),
        (["{runs}", "--range=5"], "expected NAME=LOW:HIGH"),
        (["{runs}", "--range=Large-v1=3:2"], "expected NAME=LOW:HIGH"),
        (["{runs}", "--range=Huge-v1=0:1"], "the runs are in Large-v1, Small-v1"),
        (["{runs}", "--tag=eval/AverageRetrun"], "Did you mean 'eval/AverageReturn'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(runs, capsys, arguments, message):
    arguments = [argument.format(runs=runs) for argument in arguments]
    assert compare.main(arguments) in (2, 3)
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
