"""Policies as files: python -m alf_lite.bin.export."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import gin
import gymnasium
import pytest
import torch

import alf_lite
from alf_lite.bin import export
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError, ExportError
from alf_lite.policies.exported_policy import ExportedPolicy
from alf_lite.tools import policy_export
from tests.source_code import ROOT


@pytest.mark.ci
def test_file_for_torch_and_its_specs(trained, tmp_path, capsys):
    out = tmp_path / "policy"
    flags = ["--format=torch", "--num_steps=20", "--checkpoint=best"]
    assert export.main([f"--root_dir={trained}", f"--out={out}", *flags]) == 0
    printed = capsys.readouterr().out
    assert "largest difference 0 of" in printed
    assert "20 steps of 2 environments CartPole-v1" in printed
    assert sorted(file.name for file in out.iterdir()) == ["policy.json", "policy.pt2"]
    specs = json.loads((out / "policy.json").read_text())
    [observation], [action] = specs["inputs"], specs["outputs"]
    assert observation["shape"] == ["batch", 4]
    assert observation["maximum"][1] is None  # JSON knows no infinity
    assert (action["minimum"], action["maximum"]) == (0, 1)
    assert specs["max_episode_steps"] == 500  # registered with the id
    assert "PPOAlgorithm" in specs["conf"]
    assert specs["checkpoint"]["path"] in printed
    # It acts as the policy that alf_lite loads.
    module = torch.export.load(out / "policy.pt2").module()
    observations = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    policy = alf_lite.load_policy(trained, "best")
    [acted] = module(observations)
    assert acted.tolist() == policy.predict(observations.numpy()).tolist()


@pytest.mark.ci
def test_environment_need_not_be_installed(trained, tmp_path):
    (checkpoint, *_) = sorted((trained / "checkpoints").glob("ckpt-*"))
    result = alf_lite.export_policy(
        checkpoint,
        tmp_path / "policy",
        file_format="torch",
        num_steps=0,
        gin_params=["create_environment.max_episode_steps = 7"],
    )
    assert "drawn from the space" in result.observations
    assert result.checkpoint == checkpoint
    specs = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert specs["max_episode_steps"] == 7


def test_what_is_stepped_is_as_evaluations_have_it(trained, tmp_path):
    # That of training may need the rest of the training, as games against snapshots do
    scopes = []

    def create(**kwargs):
        scopes.append(gin.current_scope())
        return create_environment(**kwargs)

    alf_lite.export_policy(
        trained,
        tmp_path / "policy",
        file_format="torch",
        num_steps=2,
        gin_params=["evaluation/create_environment.max_episode_steps = 9"],
        create_env=create,
    )
    assert scopes == [["evaluation"]]
    specs = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert specs["max_episode_steps"] == 500


@pytest.mark.ci
def test_policy_that_differs_is_refused(trained, tmp_path, monkeypatch, capsys):
    write = policy_export._WRITERS["torch"]

    def write_another(program, graph, path):
        for name, weight in program.state_dict.items():
            if "bias" in name:
                weight = weight + torch.arange(weight.numel()) * 10.0
                program.state_dict[name] = torch.nn.Parameter(weight)
        write(program, graph, path)

    monkeypatch.setitem(policy_export._WRITERS, "torch", write_another)
    out = tmp_path / "policy"
    flags = [f"--root_dir={trained}", f"--out={out}", "--format=torch"]
    assert export.main(flags) == ExportError.exit_code
    assert "acts otherwise than that of the run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_one_line(trained, tmp_path, capsys, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.setitem(sys.modules, "onnx", None)
    root = f"--root_dir={trained}"
    torch_format = "--format=torch"
    for flags, message in [
        ([], "--root_dir is missing"),
        ([f"--root_dir={tmp_path / 'none'}", torch_format], "holds no run"),
        ([root, "--format=onx"], "Did you mean 'onnx'?"),
        ([root, torch_format, f"--out={tmp_path / 'there'}"], "exists already"),
        ([root, torch_format, "--checkpoint=newest"], "--checkpoint must be"),
        ([root], "pip install 'alf_lite[export]'"),
    ]:
        assert export.main([*flags]) == ConfigError.exit_code, flags
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2, .*Update alf_lite"),
        ({"outputs": 3}, "outputs is 3, expected list"),
        ({"files": None}, r"has no \['files'\]"),
        ({"files": {}}, "names no file of a policy"),
        ({"files": {"onnx": "policy.onnx"}}, r"policy.onnx: cannot be read \(No such"),
        ({"files": {"torch": "damaged.pt2"}}, r"damaged.pt2: cannot be read"),
    ],
)
def test_specs_of_another_form_are_refused(tmp_path, change, message):
    specs = {"schema": 1, "files": {}, "inputs": [], "outputs": []} | change
    kept = {key: value for key, value in specs.items() if value is not None}
    (tmp_path / "policy.json").write_text(json.dumps(kept))
    (tmp_path / "damaged.pt2").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=message):
        ExportedPolicy(tmp_path)


_WITHOUT = """
import runpy, sys

class Missing:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("alf_lite", "torch"):
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
sys.argv = ["run_exported.py", *sys.argv[1:]]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.ci
def test_example_runs_without_torch_and_alf_lite(trained, tmp_path):
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    out = tmp_path / "policy"
    flags = ["--num_steps=100", "--sample"]
    assert export.main([f"--root_dir={trained}", f"--out={out}", *flags]) == 0
    example = ROOT / "examples" / "run_exported.py"
    command = [sys.executable, "-c", _WITHOUT, str(example), str(out), "CartPole-v1"]
    done = subprocess.run(
        [*command, "--num_episodes=2"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("return") == 3
    assert Path(out / "policy.onnx").stat().st_size < 100_000


class Endless(gymnasium.Env):
    """No episode ends by itself."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("name", "given", "limit"),
    [
        ("tests.tools.test_policy_export.Endless", None, 1000),
        ("tests.tools.test_policy_export.Endless", 3, 3),
        ("Pendulum-v1", None, 200),
        ("Pendulum-v1", 300, 300),
    ],
)
def test_episodes_of_the_example_end(name, given, limit):
    pytest.importorskip("onnxruntime")
    example = runpy.run_path(str(ROOT / "examples" / "run_exported.py"))
    with example["make_env"](name, given) as env:
        env.reset(seed=0)
        ends = [env.step(env.action_space.sample())[3] for _ in range(limit)]
    assert ends == [False] * (limit - 1) + [True]
