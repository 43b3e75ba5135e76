"""What a run has logged is read back: curves, episodes, settings."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import alf_lite
from alf_lite.errors import ConfigError, DataError
from tests.logged_runs import RETURN, write_run
from tests.trainers.conftest import build_trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root_dir = tmp_path_factory.mktemp("runs") / "toy"
    evaluation = {"evaluate": True, "eval_interval": 3, "num_eval_episodes": 2}
    build_trainer(root_dir, num_iterations=6, **evaluation).train()
    return root_dir


def test_curves_of_a_run_have_every_axis(run):
    curves = alf_lite.read_curves(run)
    curve = curves["eval/AverageReturn"]
    assert curve.iterations.tolist() == [0, 3, 6]
    assert curve.updates.tolist() == [0, 3, 6]
    assert curve.env_steps[0] == 0
    assert (np.diff(curve.env_steps) > 0).all()
    assert (np.diff(curve.seconds) > 0).all()
    assert curve.values.shape == (3,)
    assert curves["Metrics/EnvironmentSteps"].values.tolist() == (
        curves["Metrics/EnvironmentSteps"].env_steps.tolist()
    )
    assert curves.episodes["return"].reshape(3, 2).mean(axis=1) == pytest.approx(
        curve.values
    )
    assert curves.episodes["length"].shape == (6,)
    assert curves.settings["TrainerConfig.unroll_length"] == 5
    assert curves.record["stop_reason"] == "finished"
    with pytest.raises(KeyError, match="Did you mean 'eval/AverageReturn'"):
        curves["eval/AverageRetrun"]


def test_what_was_read_is_shown_in_a_few_lines(tmp_path):
    for seed in range(3):
        run = tmp_path / f"seed{seed}"
        write_run(run, [(i, float(i)) for i in range(300)])
        rows = [{"iteration": 1, "env_steps": 1, "updates": 1, "seconds": 1.0}]
        rows[0] |= {f"a/long/name/of/a/curve/{i}": 1.0 for i in range(100)}
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(rows[0]) + "\n")
    curves = alf_lite.read_curves(tmp_path)
    assert repr(curves) == "Curves of 3 runs: seed0, seed1, seed2"
    one = curves["seed1"]
    assert repr(one).startswith(f"{len(one)} curves of {tmp_path / 'seed1'}: ")
    assert len(one) > 100
    assert len(repr(one)) < 500 + len(str(tmp_path))
    assert repr(one[RETURN]).startswith("Curve of 300 values, 299 after ")


def test_settings_that_were_given_in_python_are_known(tmp_path):
    run = write_run(tmp_path, [(0, 1.0)])
    (run / "operative.gin").write_text("TrainerConfig.algorithm_ctor = None\n")
    (run / "user.gin").write_text("TrainerConfig.algorithm_ctor = @PPOAlgorithm\n")
    settings = alf_lite.read_curves(run).settings
    assert settings["TrainerConfig.algorithm_ctor"] == "@PPOAlgorithm"


def test_a_folder_gives_its_runs_and_leaves_empty_ones_out(run, tmp_path, caplog):
    write_run(tmp_path / "a" / "seed0", [(0, 1.0), (10, None), (20, 3.0)])
    write_run(tmp_path / "a" / "seed1", [(0, 2.0)])
    write_run(tmp_path / "b", [])
    curves = alf_lite.read_curves(tmp_path)
    assert list(curves) == ["a/seed0", "a/seed1"]
    values = curves["a/seed0"][RETURN].values
    assert values[[0, 2]].tolist() == [1.0, 3.0]
    assert np.isnan(values[1])
    assert f"{tmp_path / 'b'} has logged nothing" in caplog.text
    with pytest.raises(DataError, match="has logged nothing"):
        alf_lite.read_curves(tmp_path / "b")


def test_what_holds_no_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        alf_lite.read_curves(tmp_path)
    with pytest.raises(ConfigError, match="there is no directory"):
        alf_lite.read_curves(tmp_path / "nothing")


def test_damaged_lines_and_late_evaluations_do_no_harm(tmp_path):
    run = write_run(tmp_path, [(0, 1.0), (10, 2.0), (20, 3.0)])
    late = {"iteration": 1, "env_steps": 10, "updates": 2, "seconds": 0.5, "x": 7.0}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(late) + '\n[1]\n{"x": 3.0}\n{"iterat')
    curves = alf_lite.read_curves(run)
    assert curves["x"].env_steps.tolist() == [10]
    assert curves[RETURN].values.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("place", ["null", "NaN", "Infinity"])
def test_a_row_at_a_place_that_is_no_number_is_left_out(tmp_path, caplog, place):
    write_run(tmp_path, [(i, float(i)) for i in range(5)])
    log = tmp_path / "metrics.jsonl"
    log.write_text(log.read_text().replace('"env_steps": 3', f'"env_steps": {place}'))
    curve = alf_lite.read_curves(tmp_path)[RETURN]
    assert curve.env_steps.tolist() == [0, 1, 2, 4]
    assert "1 rows tell no place: left out" in caplog.text


@pytest.mark.ci
def test_a_dataframe_has_a_row_per_iteration(run):
    pandas = pytest.importorskip("pandas")
    frame = alf_lite.read_curves(run).to_dataframe()
    table = pandas.read_csv(run / "metrics.csv")
    pandas.testing.assert_frame_equal(frame, table, check_dtype=False)
    assert list(frame.columns[:4]) == ["iteration", "env_steps", "updates", "seconds"]
    frame = alf_lite.read_curves(run.parent).to_dataframe()
    assert list(frame.columns[:2]) == ["run", "iteration"]
    assert set(frame["run"]) == {"toy"}


def test_without_pandas_the_install_line_is_told(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        alf_lite.read_curves(run).to_dataframe()


def test_a_log_of_nobody_is_not_added_to(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("not a run's\n")
    with pytest.raises(ConfigError, match="no run that has written it"):
        build_trainer(tmp_path).train()
    assert (tmp_path / "metrics.jsonl").read_text() == "not a run's\n"
