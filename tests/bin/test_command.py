"""Tests of the console script: alf_lite.bin.command, list and completion."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

from alf_lite.bin import command, completion, program
from alf_lite.config.names import packaged_confs, shipped
from alf_lite.exports import public_names
from alf_lite.tools import listing, report
from tests.source_code import ROOT

NAMES = command.command_names()


def test_help_has_one_line_for_every_command(capsys):
    assert command.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == NAMES
    assert {"train", "play", "collect", "inspect_buffer", "list"} <= set(NAMES)
    assert all(len(line) <= 100 for line in lines)
    assert command.main([]) == 2  # nothing was asked for
    for name in NAMES:
        loaded = command.load(name)
        assert (loaded.name, loaded.summary) == (name, command.summaries()[name])


def test_the_version_is_that_of_the_package(capsys):
    assert command.main(["--version"]) == 0
    version = re.search(
        r'__version__ = "(.+)"', (ROOT / "alf_lite/__init__.py").read_text()
    )
    assert capsys.readouterr().out == f"alf_lite {version.group(1)}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainx"], "Did you mean 'train'?"),
        (["xyzzy"], "There are train, play"),
        (["--conf=ppo_cart_pole"], "the command comes before its flags"),
        (["list", "conf"], "Did you mean 'confs'?"),
        (["list"], "confs, algorithms, environments"),
        (["list", "confs", "sac_pendulm"], "Did you mean 'sac_pendulum'"),
        (["completion", "bashh"], "Did you mean 'bash'"),
        (["completion"], "in ~/.bashrc"),
        (["play", "--rot_dir=x"], "Did you mean"),
    ],
)
def test_what_is_not_there_is_one_line_and_2(capsys, arguments, message):
    assert command.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_every_command_shows_its_help_without_torch():
    code = (
        "import sys\n"
        "from alf_lite.bin import command\n"
        "assert command.main(['--help']) == 0\n"
        "assert not {'numpy', 'absl'} & set(sys.modules)\n"
        "for name in command.command_names():\n"
        "    assert command.main([name, '--help']) == 0\n"
        "assert command.main(['completion', '--line=alf_lite train --conf=']) == 0\n"
        "assert command.main(['list', 'confs']) == 0\n"
        "assert not {'torch', 'gymnasium'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_programs_call_each_other_as_they_were_called(monkeypatch):
    assert "python -m alf_lite.bin.play [" in program.help_text(command.load("play"))
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/alf_lite", "play"])
    assert "usage: alf_lite play [flags]" in program.help_text(command.load("play"))
    assert report.invocation("play") == "alf_lite play"


# list


def test_confs_are_listed_with_what_they_train_need_and_reach(capsys):
    assert command.main(["list", "confs", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert sorted(rows) == packaged_confs()
    for row in rows.values():
        assert row["environment"], row["name"]
        assert row["algorithm"] in shipped(), row["name"]
        assert row["description"].endswith(".") or len(row["description"]) > 20
    table = re.findall(
        r"^\| `(\w+)` \| ([^|]*) \|([^|]*)\|([^|]*)\|([^|]*)\|",
        (ROOT / "confs/README.md").read_text(encoding="utf-8").split("\n## ")[0],
        re.MULTILINE,
    )
    assert {cells[0] for cells in table} == set(rows)
    for name, steps, goal, seeds, each in table:
        row = rows[name]
        assert (row["steps"], row["goal"]) == (steps, goal.strip())
        assert (row["seeds"], row["scores"]) == (seeds.strip(), each.strip())
        # Of every conf that was run to its end.
        assert (row["score"] != "") == (row["seeds"] != "") == (seeds.strip() != "")
    cheetah, hybrid = rows["rlpd_half_cheetah"], rows["hybrid_sac_pendulum"]
    assert cheetah["steps"] == "25k own"  # of the table of scores, not of others
    assert cheetah["extra"] == "mujoco"
    assert cheetah["data"] == "yes"
    assert hybrid["environment"] == "Pendulum-v1"  # of the conf that it includes
    assert hybrid["score"] == "-145.5"


def test_words_choose_the_lines_and_a_name_shows_its_header(capsys):
    assert command.main(["list", "confs", "lunar", "PPO"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("ppo_lunar_lander  LunarLander-v3  PPOAlgorithm  box2d")
    assert command.main(["list", "confs", "dqn_lunar_lander"]) == 0
    assert "Override most often:" in capsys.readouterr().out
    assert command.main(["list", "environments", "CartPole-v1"]) == 0
    assert "gymnasium.envs.classic_control" in capsys.readouterr().out


def test_every_algorithm_is_listed_with_its_paper():
    rows = {row["name"]: row for row in listing.algorithms()}
    bases = {"OffPolicyAlgorithm", "OffPolicyActorCriticAlgorithm"}
    bases |= {"PathwiseActorCriticAlgorithm", "QLearningAlgorithm", "PlanningAlgorithm"}
    defined = {
        name for name in public_names("alf_lite.algorithms") if name in shipped()
    }
    # What is missing here has to be added to the table of the README.
    assert set(rows) == {n for n in defined if n.endswith("Algorithm")} - bases
    for row in rows.values():
        assert row["type"], row["name"]
        assert row["links"], row["name"]
    assert rows["DqnAlgorithm"]["type"] == "off-policy, discrete actions"
    assert "sqil_cart_pole" in rows["DqnAlgorithm"]["confs"]


# Completion


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("alf_lite tr", ["train"]),
        ("alf_lite train --root", ["--root_dir="]),
        ("alf_lite train --strict", ["--strict_config"]),
        ("alf_lite train --conf=sac_p", ["--conf=sac_pendulum", "--conf=sac_pong"]),
        ("alf_lite play --checkpoint=b", ["--checkpoint=best"]),
        ("alf_lite list co", ["confs"]),
        ("alf_lite train --gin_param='A.b = 1' --dev", ["--device="]),
        ("alf_lite train --gin_param='A.b", []),
        ("alf_lite nonsense --", []),
        ("alf_lite play --root_dir=ru", []),  # files are the shell's matter
    ],
)
def test_candidates_fit_what_is_written(line, expected):
    assert completion.candidates(line) == expected


def test_all_commands_are_offered_at_first():
    assert set(NAMES) < set(completion.candidates("alf_lite "))
    assert "--conf=" in completion.candidates("alf_lite train --conf=x --")


@pytest.mark.ci
def test_bash_completes_by_the_script(tmp_path):
    """In bash itself, which splits words at =."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    stub = tmp_path / "alf_lite"
    run = f'exec {sys.executable} -m alf_lite.bin.command "$@"'
    stub.write_text(f"#!/bin/sh\n{run}\n")
    stub.chmod(0o755)
    code = f"""
        PATH={tmp_path}:$PATH
        compopt() {{ echo "compopt $@"; }}
        eval "$(alf_lite completion bash)"
        COMP_LINE='alf_lite train --conf=ppo_ca'; COMP_POINT=${{#COMP_LINE}}
        COMP_WORDS=(alf_lite train --conf = ppo_ca); COMP_CWORD=4
        _alf_lite; echo "${{COMPREPLY[@]}}"
        COMP_LINE='alf_lite train --con'; COMP_POINT=${{#COMP_LINE}}
        COMP_WORDS=(alf_lite train --con); COMP_CWORD=2
        _alf_lite; echo "${{COMPREPLY[@]}}"
        COMP_LINE='alf_lite pla'; COMP_POINT=${{#COMP_LINE}}
        COMP_WORDS=(alf_lite pla); COMP_CWORD=1
        _alf_lite; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == [
        "ppo_cart_pole",
        "compopt -o nospace",
        "--conf=",
        "play",
        "",
    ], done.stderr
