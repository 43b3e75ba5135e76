"""What editors and type checkers are told."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

import alf_lite
from tests import stubs
from tests.source_code import ROOT

# What a user writes → what a type checker says, "" for nothing.
CALLS = {
    "alf_lite.PPOAlgorithm(env=env, config=config, gamma=0.9, is_eval=True)": "",
    "alf_lite.PPOAlgorithm(envv=3)": '"envv" for "PPOAlgorithm"; did you mean "env"',
    'alf_lite.PPOAlgorithm(td_lambda="x")': 'incompatible type "str"',
    "alf_lite.SarsaAlgorithm(double=True)": 'Unexpected keyword argument "double"',
    "alf_lite.NoSuchThing": 'no attribute "NoSuchThing"',
    "alf_lite.TrainerConfig(num_env_step=1)": 'did you mean "num_env_steps"',
    "alf_lite.create_environment(env_nam='x')": 'did you mean "env_name"',
    "alf_lite.Adam(lrr=0.1)": 'Unexpected keyword argument "lrr"',
    "alf_lite.SacAlgorithm(num_critic=2)": 'did you mean "num_critics"',
    "networks.ValueNetwork(spec, fc_layer_parms=())": 'did you mean "fc_layer_params"',
    "networks.ValueNetwork()": 'Missing positional argument "observation_spec"',
    "environments.NoSuchThing": 'no attribute "NoSuchThing"',
    "Mine(env=env, gama=1)": 'did you mean "gamma"',
    "trained(alf_lite.PPGAlgorithm())": "",
    "alf_lite.read_curves('runs/ppo')['loss'].env_steps[-1]": "",
    "[c.settings for c in alf_lite.read_curves('runs').values()]": "",
}


def test_the_stubs_say_what_the_constructors_take():
    for path, text in stubs.stubs().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path.relative_to(ROOT)} is not up to date: python -m tests.stubs"
        )


def test_the_stub_of_the_library_offers_what_it_offers():
    for node in ast.parse((ROOT / "alf_lite/__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                offered = getattr(alf_lite, alias.name)
                assert getattr(module, alias.name) is offered, alias.name


@pytest.mark.ci
def test_a_type_checker_knows_every_parameter_and_name(tmp_path):
    api = pytest.importorskip("mypy.api")
    lines = [
        "from typing import Any",
        "import alf_lite",
        "from alf_lite import environments, networks, optimizers, metrics",
        "env: Any; config: Any; spec: Any",
        "class Mine(alf_lite.PPOAlgorithm): ...",
        "def trained(algorithm: alf_lite.PPOAlgorithm) -> None: ...",
    ]
    program = tmp_path / "program.py"
    program.write_text("\n".join([*lines, *CALLS]))
    # These alone, without what they import, are read in a second.
    sources = ["config/__init__", "config/trainer_config", "config/configurables"]
    sources += [
        "runs/curves",
        "environments/creation",
        "optimizers/optimizers",
        "utils/schedulers",
    ]
    output, _, _ = api.run(
        [
            *("--follow-imports=skip", "--no-site-packages", "--cache-dir=/dev/null"),
            *(str(path) for path in stubs.stubs()),
            *(str(ROOT / f"alf_lite/{name}.py") for name in sources),
            str(program),
        ]
    )
    said = dict(re.findall(r"program\.py:(\d+): error: (.*)", output))
    for number, (call, expected) in enumerate(CALLS.items(), len(lines) + 1):
        answer = said.get(str(number), "")
        assert expected in answer, (call, answer)
        assert bool(expected) == bool(answer), (call, answer)
