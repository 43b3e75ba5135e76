"""Shipped confs with a mistake in them train, or are refused with one message."""

from __future__ import annotations

import math
import random
import re
import threading
import warnings
from pathlib import Path

import pytest

from alf_lite.bin import train
from alf_lite.config import files as config_files
from tests.source_code import ROOT

# Confs that need no extra and no data.
CONFS = sorted(
    path
    for path in (ROOT / "confs").glob("*.gin")
    if re.search("(cart_pole|pendulum)$", path.stem)
    and not re.search("^(async|impala|bc|cql|iql|td3bc|hybrid|sqil|collect)", path.stem)
)
# Whatever a mutation does, two short iterations are trained.
SHORT = [
    "TrainerConfig.num_iterations = 2",
    "TrainerConfig.num_env_steps = 0",
    "TrainerConfig.evaluate = False",
    "TrainerConfig.random_seed = 0",
]
# Left as mutated unless training would take minutes by right.
QUICK = [
    "TrainerConfig.num_updates_per_train_iter = 1",
    "TrainerConfig.unroll_length = 8",
    "TrainerConfig.initial_collect_steps = 0",
]
WILD = ["-1", "0", "1e10", "10_000_000_000", "1e-30", "3.7", "-0.5", "1e999", "None"]
WRONG = ["'text'", "True", "[1, 2]", "()", "{'a': 1}", "@Adam", "@Adam()", "%NOTHING"]


def mutated(text: str, rng: random.Random) -> tuple[str, str]:
    """The text with one or two mistakes, and what they are called."""
    names = []
    for _ in range(rng.choice([1, 1, 2])):
        if not bindings(text.split("\n")):
            break  # the first mistake left nothing
        mutate = rng.choice(MUTATIONS)
        names.append(mutate.__name__)
        text = mutate(text, rng)
    return text, "+".join(names)


def bindings(lines: list[str]) -> list[int]:
    return [i for i, line in enumerate(lines) if re.match(r"[^#]*\S ?= ?\S", line)]


def on_binding(change):
    """Changes the value of a random binding."""

    def mutate(text, rng):
        lines = text.split("\n")
        i = rng.choice(bindings(lines))
        key, value = lines[i].split("=", 1)
        lines[i] = change(key, value, rng)
        return "\n".join(lines)

    mutate.__name__ = change.__name__
    return mutate


@on_binding
def misspelt_name(key, value, rng):
    i = rng.randrange(len(key))
    return key[:i] + rng.choice("abxyz_./ ") + key[i + rng.randrange(2) :] + "=" + value


@on_binding
def misspelt_value(key, value, rng):
    i = rng.randrange(len(value))
    return key + "=" + value[:i] + rng.choice("abxyz_@%'\"([,") + value[i + 1 :]


@on_binding
def wrong_type(key, value, rng):
    return f"{key}= {rng.choice(WRONG)}"


@on_binding
def wild_number(key, value, rng):
    return f"{key}= {rng.choice(WILD)}"


@on_binding
def quotes_changed(key, value, rng):
    if '"' in value:
        return f"{key}={value.replace(chr(34), '', rng.choice([1, 2]))}"
    return f'{key}="{value}"' if rng.random() < 0.5 else f'{key}={value}"'


def dropped_line(text, rng):
    lines = text.split("\n")
    del lines[rng.choice([i for i, line in enumerate(lines) if line.strip()])]
    return "\n".join(lines)


def doubled_line(text, rng):
    lines = text.split("\n")
    i = rng.choice(bindings(lines))
    return "\n".join([*lines[: i + 1], *lines[i:]])


def swapped_values(text, rng):
    lines = text.split("\n")
    i, j = rng.choice(bindings(lines)), rng.choice(bindings(lines))
    (a, x), (b, y) = lines[i].split("=", 1), lines[j].split("=", 1)
    lines[i], lines[j] = f"{a}={y}", f"{b}={x}"
    return "\n".join(lines)


def cut_off(text, rng):
    return text[: rng.randrange(len(text))]


def indented(text, rng):
    lines = text.split("\n")
    i = rng.choice([i for i, line in enumerate(lines) if line.strip()])
    lines[i] = rng.choice([" ", "   ", "\t"]) + lines[i]
    return "\n".join(lines)


def deleted_macro(text, rng):
    macros = re.findall(r"^[A-Z_]+ = .*\n", text, re.MULTILINE)
    return text.replace(rng.choice(macros), "", 1) if macros else text


MUTATIONS = [
    misspelt_name,
    misspelt_value,
    wrong_type,
    wild_number,
    quotes_changed,
    dropped_line,
    doubled_line,
    swapped_values,
    cut_off,
    indented,
    deleted_macro,
]
# 1 is what a bug would give.
EXIT_CODES = {0, 2, 3, 4, 5, 6}


def outcome(seed: int, folder: Path, capsys: pytest.CaptureFixture) -> str:
    """What became of mutation ``seed``; empty if all is well."""
    rng = random.Random(seed)
    path = rng.choice(CONFS)
    text, what = mutated(path.read_text(encoding="utf-8"), rng)
    conf, root_dir = folder / f"{seed}.gin", folder / f"run_{seed}"
    conf.write_text(text, encoding="utf-8")
    short = SHORT + QUICK * ("1e10" not in text and "10_000_000_000" not in text)
    config_files.reset()
    where = f"seed {seed}, {path.stem}, {what}"
    try:
        code = train.main(
            [
                f"--conf={conf}",
                f"--root_dir={root_dir}",
                *(f"--gin_param={setting}" for setting in short),
            ]
        )
    except BaseException as error:
        return f"{where}: {type(error).__name__}: {str(error)[:300]}"
    finally:
        config_files.reset()
    shown = capsys.readouterr().err
    message = shown[shown.find("error:") :] if code else ""
    if code not in EXIT_CODES:
        return f"{where}: exit code {code}: {shown[-300:]}"
    if code and shown.count("error:") != 1:
        return f"{where}: expected one message: {shown[-500:]}"
    if "Traceback" in message or " object at 0x" in message:
        return f"{where}: {message[:500]}"
    if code == 2 and list(root_dir.glob("checkpoints/*")):
        return f"{where}: refused, but left {list(root_dir.rglob('*'))}"
    return ""


def tried(seeds: range, folder: Path, capsys: pytest.CaptureFixture) -> None:
    threads = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failures = [f for seed in seeds if (f := outcome(seed, folder, capsys))]
    assert not failures, f"{len(failures)} of {len(seeds)}:\n" + "\n".join(failures)
    assert threading.active_count() <= threads + 1


@pytest.mark.ci
def test_mistakes_are_told_in_one_message(tmp_path, capsys):
    tried(range(10_000, 10_030), tmp_path, capsys)


@pytest.mark.slow
def test_three_hundred_mistakes(tmp_path, capsys):
    assert math.prod((len(CONFS), len(MUTATIONS))) > 50
    tried(range(300), tmp_path, capsys)
