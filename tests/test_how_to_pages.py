"""What pages show works as it stands there: files, commands, lines of Python.

A block after a line that ends in a file's name is that file; commands are indented.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator

import pytest

from alf_lite import networks
from alf_lite.bin import command
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils import random_state
from tests.source_code import ROOT

PAGES = [
    *sorted((ROOT / "docs/how_to").glob("*.md")),
    *(
        ROOT / "docs/coming_from" / f"{name}.md"
        for name in ("cleanrl", "stable_baselines3")
    ),
    ROOT / "docs/troubleshooting.md",
]
_PART = re.compile(
    r"(?:^`(?P<file>\w+\.\w+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$"
    r"|^    (?P<command>alf_lite [^\n]*)$",
    re.MULTILINE | re.DOTALL,
)
# What is longer than a test may be
SHORT = {
    "train": [
        "--gin_param=TrainerConfig.num_env_steps = 0",
        "--gin_param=TrainerConfig.num_iterations = 1",
        "--gin_param=TrainerConfig.unroll_length = 16",
        "--gin_param=TrainerConfig.mini_batch_size = 16",
        "--gin_param=TrainerConfig.initial_collect_steps = 0",
        "--gin_param=TrainerConfig.evaluate = True",
        "--gin_param=TrainerConfig.num_eval_episodes = 2",
        "--gin_param=TrainerConfig.num_eval_environments = 1",
    ],
    "check_env": ["--seconds=0"],
    "play": [],
}
SHORT_GIN = {
    r"eval_interval = \d[\d_]*": "eval_interval = 1",
    r"num_eval_episodes = \d+": "num_eval_episodes = 2",
    r"epochs = \d+": "epochs = 1",
}
SHORT_PYTHON = {
    r"\bunroll_length=\d+,?": "",
    r"num_eval_episodes=\d+": "num_eval_episodes=1",
    r"num_env_steps=[\d_]+": "num_iterations=1, unroll_length=8, "
    "initial_collect_steps=0",
    r"range\(\d+\)": "range(1)",
    r"\(50_000, 100_000\)": "(512, 1024)",  # limits of one run after the other
}


def shortened(text: str, replacements: dict[str, str]) -> str:
    for long, short in replacements.items():
        text = re.sub(long, short, text)
    return text


@pytest.fixture(autouse=True)
def _process_state(monkeypatch, tmp_path) -> Iterator[None]:
    """A folder as a reader has it; nothing stays of what was imported from there."""
    modules = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config_files.reset()
    with random_state.preserved():
        yield
    config_files.reset()
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.ci
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_works_as_it_stands(page, tmp_path):
    names: dict = {"__name__": page.stem}
    num_done = 0
    for part in _PART.finditer(page.read_text(encoding="utf-8")):
        if part["language"] in (
            "bash",
            "py",
            "text",
        ):  # wants an extra, or is of others
            continue
        config_files.reset()
        num_done += 1
        if part["command"]:
            _, *arguments = shlex.split(part["command"])
            done = command.main([*arguments, *SHORT[arguments[0]]])
            assert done == 0, part["command"]
        elif part["file"]:
            text = shortened(part["text"], SHORT_GIN)
            (tmp_path / part["file"]).write_text(text, encoding="utf-8")
        elif part["language"] == "gin":
            config_files.parse_config(None, [part["text"]])
        else:
            assert part["language"] == "python"
            exec(shortened(part["text"], SHORT_PYTHON), names)
    assert num_done


def test_encoders_of_the_page_serve_every_network(tmp_path):
    page = (ROOT / "docs/how_to/network.md").read_text(encoding="utf-8")
    files = {part["file"]: part["text"] for part in _PART.finditer(page)}
    names: dict = {}
    exec(files["my_networks.py"], names)
    observation, action = TensorSpec((3,)), BoundedTensorSpec((1,))
    for encoder in (names["Waves"], names["Averages"]):
        for network in (
            networks.ActorDistributionNetwork(
                observation, action, encoding_network_ctor=encoder
            ),
            networks.SquashedActorNetwork(
                observation, action, encoding_network_ctor=encoder
            ),
            networks.NormalActorNetwork(
                observation, action, encoding_network_ctor=encoder
            ),
            networks.ActorNetwork(observation, 1, encoding_network_ctor=encoder),
            networks.ValueNetwork(observation, encoding_network_ctor=encoder),
            networks.CriticNetwork(observation, 1, 2, encoding_network_ctor=encoder),
            networks.QNetwork(observation, [2], encoding_network_ctor=encoder),
        ):
            assert isinstance(network._encoder, encoder)


def test_gin_in_ten_lines_is_a_conf_of_ten_lines(tmp_path):
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    _, after = page.split("## Gin in ten lines")
    (conf, *_) = re.findall(r"^```gin\n(.*?)^```$", after, re.MULTILINE | re.DOTALL)
    assert len(conf.splitlines()) == 10
    (tmp_path / "my_module.py").write_text("")
    (tmp_path / "my.gin").write_text(conf, encoding="utf-8")
    config_files.parse_config("my.gin", [])
    assert TrainerConfig().num_env_steps == 200_000
    assert TrainerConfig().algorithm_ctor is not None
