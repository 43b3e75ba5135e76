"""Every setting is of use somewhere: in a conf, a benchmark or an example."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.trainers.trainer import Trainer
from tests.short_confs import shortened
from tests.source_code import ROOT

EXAMPLES = ROOT / "examples/settings"
UNUSED = {
    "unroll_with_grad": "of algorithms of one's own: those here say it themselves",
    "overwrite_policy_output": "of environments of one's own, with an expert inside",
}


def test_every_setting_is_used():
    texts = [
        path.read_text(encoding="utf-8")
        for folder in ("confs", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".gin", ".py", ".ipynb")
    ]
    words = set(re.findall(r"\w+", "\n".join(texts)))
    names = {field.name for field in dataclasses.fields(TrainerConfig)}
    assert names - words == UNUSED.keys()


@pytest.mark.parametrize(
    ("name", "base", "given"),
    [
        ("fitted", "dqn_cart_pole", ["eval_interval = 2"]),
        ("looking_closely", "ppo_cart_pole", []),
        pytest.param(
            "own_pace",
            "async_sac_pendulum",
            ["unroll_length = 0"],
            marks=pytest.mark.slow,
        ),
        ("weighted_data", "hybrid_sac_pendulum", []),
    ],
)
def test_an_example_of_settings_trains(name, base, given, tmp_path):
    bindings = shortened(Path(f"confs/{base}.gin"), tmp_path, num_iterations=4)
    bindings += [f"TrainerConfig.{setting}" for setting in given]
    bindings += [b.replace("DATA", "HELD_OUT", 1) for b in bindings if "DATA" in b]
    config_files.parse_config(str(EXAMPLES / f"{name}.gin"), bindings, strict=True)
    assert Trainer(TrainerConfig(), tmp_path / "run").train().iterations == 4


def test_an_example_of_settings_on_ray_is_read():
    config_files.parse_config(str(EXAMPLES / "on_ray.gin"))
    assert TrainerConfig().ray_address == "head:6379"
