"""The programs and the notebook of examples/ run as they stand there."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

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
TESTED_ELSEWHERE = ["run_exported"]  # test_policy_export.py: without alf_lite


def test_every_example_is_run():
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert names == sorted([*SETTINGS, *TESTED_ELSEWHERE])


@pytest.mark.ci
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


@pytest.mark.ci
def test_the_notebook_runs(tmp_path):
    for module in ("nbclient", "ipykernel", "matplotlib", "pygame"):
        pytest.importorskip(module)
    path = EXAMPLES / "quick_start.ipynb"
    assert path.stat().st_size < 200_000  # its outputs are stored
    run = [
        sys.executable,
        *("-W", "ignore::DeprecationWarning", "-c", _RUN_NOTEBOOK, str(path)),
    ]
    done = subprocess.run(
        run,
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 pictures" in done.stdout


# In a process of its own, since a kernel is no child of the tests
_RUN_NOTEBOOK = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
for cell in notebook.cells:
    cell.source = cell.source.replace("= 50_000", "= 3_000")
client = NotebookClient(notebook, kernel_name="python3", timeout=300)
client.execute()
outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
print(sum("image/png" in output.get("data", {}) for output in outputs), "pictures")
"""
