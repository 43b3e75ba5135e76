"""The programs and the notebook of examples/ run as they stand there."""

from __future__ import annotations

import runpy

import pytest

from tests.source_code import ROOT

EXAMPLES = ROOT / "examples"
# Small enough to take a second or two each
SETTINGS = {
    "own_environment": ["--num_env_steps=1000"],
    "own_algorithm": ["--num_env_steps=1000"],
    "own_network": ["--num_env_steps=1000"],
    "own_hook": ["--num_env_steps=1000"],
    "offline_to_online": ["--num_episodes=4", "--num_updates=4", "--num_env_steps=4"],
    "compare_settings": ["--num_env_steps=500", "--num_seeds=2"],
}
RESULTS = {  # printed at the end
    "own_environment": "Exported to",
    "own_algorithm": "Training episodes return",
    "own_network": "Mean return",
    "own_hook": "Success of 20 steps",
    "offline_to_online": "IqlAlgorithm",
    "compare_settings": "20 epochs:",
}
EXTRAS = {
    "own_environment": ["matplotlib", "onnx", "onnxscript", "onnxruntime"],
    "compare_settings": ["matplotlib"],
}
TESTED_ELSEWHERE = ["run_exported"]  # tests/bin/test_export.py: without alf_lite


def test_every_example_is_run():
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert names == sorted([*SETTINGS, *TESTED_ELSEWHERE])


@pytest.mark.parametrize("name", SETTINGS)
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    for module in EXTRAS.get(name, []):
        pytest.importorskip(module)
    path = EXAMPLES / f"{name}.py"
    monkeypatch.syspath_prepend(EXAMPLES)  # as python does
    arguments = [f"--root_dir={tmp_path / 'run'}", *SETTINGS[name]]
    monkeypatch.setattr("sys.argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")
    assert RESULTS[name] in capsys.readouterr().out
