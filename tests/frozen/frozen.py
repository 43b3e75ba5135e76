"""What the library does to the bit, kept in a file.

Three nets: every conf trained for some iterations, the time steps of environments of
all kinds, and what is said to confs with mistakes. A change of the code that is meant
to change nothing keeps them; one that changes a part on purpose writes that part anew,
and says so.

    python -m tests.frozen compare
    python -m tests.frozen write runs/ppo_cart_pole time_steps/torch_

The bits of a run are those of one kind of processor and one version of torch: on
another machine, write those of the code before the change to another ``--file``. What
is new is written there with the name of the machine, and compared on such ones only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from alf_lite import nest
from alf_lite.checkpoints import data
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments.creation import create_environment
from alf_lite.tensor_specs import BoundedTensorSpec
from alf_lite.trainers.trainer import Trainer
from tests.frozen.environments import ENVIRONMENTS
from tests.reliability import test_conf_mutations as mutations
from tests.short_confs import CONFS, full_text, missing_extras, shortened
from tests.source_code import ROOT

FILE = Path(__file__).parent / "frozen.json"
NUM_ITERATIONS = 40
NUM_TIME_STEPS = 500
NUM_MUTATIONS = 400
# Steps of workers come in an order of their own.
_ORDERED_BY_CHANCE = "async_unroll = True"
# What the clock and the machine say, and which files the logs are in.
_MEASURED = re.compile(
    "^(time|memory|system)/|^(seconds|event_files)$|per_second|_sec$"
)

Outcome = dict[str, Any]


def names() -> list[str]:
    """Of all that can be frozen where this runs."""
    runs = [f"runs/{conf.stem}" for conf in CONFS if _is_repeatable(conf)]
    time_steps = [f"time_steps/{name}" for name, env in ENVIRONMENTS.items() if env]
    refusals = [f"refusals/{seed}" for seed in range(NUM_MUTATIONS)]
    return [*runs, *time_steps, *refusals]


def outcome(name: str) -> Outcome:
    """What is frozen of one of the ``names``."""
    kind, _, which = name.partition("/")
    compute: Callable[[str], Outcome] = {
        "runs": _run,
        "time_steps": _time_steps,
        "refusals": _refusal,
    }[kind]
    config_files.reset()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with _silence():
        found = compute(which)
    config_files.reset()
    return found


def named_outcome(name: str) -> tuple[str, Outcome]:
    """The name and what is frozen of it, or the error that there was."""
    try:
        return name, outcome(name)
    except Exception as error:
        return name, {"error": f"{type(error).__name__}: {error}"[:300]}


def has_bits(name: str) -> bool:
    """Whether it is numbers of a machine: what is refused is the same on all."""
    return not name.startswith("refusals/")


def machine() -> str:
    """What the bits depend on beside the code."""
    levels = torch.backends.cpu.get_cpu_capability()
    path = Path("/proc/cpuinfo")  # two generations of one level may round otherwise
    models = re.findall(r"model\s*: (\d+)", path.read_text() if path.exists() else "")
    model = f", model {models[0]}" if models else ""
    return f"{platform.machine()}{model}, {levels}, torch {torch.__version__}"


def read(path: Path = FILE) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def differences(kept: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The parts in which two outcomes differ."""
    keys = [key for key in kept if key != "machine" and kept[key] != found.get(key)]
    return [
        *(f"{key}: {kept[key]} -> {found.get(key)}" for key in keys),
        *(f"{key}: new" for key in found if key not in kept),
    ]


# Runs


def _is_repeatable(conf: Path) -> bool:
    text = full_text(ROOT / conf)
    return _ORDERED_BY_CHANCE not in text and not missing_extras(text)


def _run(stem: str) -> Outcome:
    """Hashes of the newest checkpoint, part by part, and of what was logged."""
    conf = next(conf for conf in CONFS if conf.stem == stem)
    with tempfile.TemporaryDirectory() as folder:
        bindings = shortened(conf, Path(folder), NUM_ITERATIONS)
        config_files.parse_config(str(ROOT / conf), bindings)
        result = Trainer(TrainerConfig(), Path(folder) / "run").train()
        assert result.checkpoint is not None
        loaded = data.read(result.checkpoint, None, resumable=True)
        assert loaded is not None
        logged = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8")
        # Of stored steps the size alone: what was never written has any bits.
        sizes = {n: path.stat().st_size for n, path in loaded.mapped_files.items()}
    hashes = {part: hashed(_timeless(value)) for part, value in loaded.state.items()}
    rows = [_timeless(json.loads(line)) for line in logged.splitlines()]
    return {**hashes, **sizes, "logs": hashed(rows)}


def _timeless(value: Any) -> Any:
    """A copy without what the clock and the machine say."""
    if isinstance(value, Mapping):
        return {k: _timeless(v) for k, v in value.items() if not _MEASURED.search(k)}
    if isinstance(value, list | tuple):
        return [_timeless(v) for v in value]
    return value


def hashed(value: Any) -> str:
    """Of nested dicts, sequences, tensors, arrays, numbers, texts; keys are sorted."""
    digest = hashlib.sha256()
    for piece in _pieces(value):
        digest.update(piece)
    return digest.hexdigest()[:16]


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield f"{key}:".encode()
            yield from _pieces(value[key])
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}".encode()
        for item in value:
            yield from _pieces(item)
    elif isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous()
        yield f"{array.dtype}{tuple(array.shape)}".encode()
        yield array.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, bytes):
        yield value
    else:
        yield repr(value).encode()


# Time steps


def _time_steps(name: str) -> Outcome:
    """Hashes of the specs and of all time steps; actions are drawn from the spec."""
    make = ENVIRONMENTS[name]
    assert make is not None
    digest = hashlib.sha256()
    with create_environment(seed=0, **make()) as env:
        step = env.reset()
        for _ in range(NUM_TIME_STEPS):
            digest.update(hashed(nest.flatten(step)).encode())
            step = env.step(nest.map_structure(_drawn(env.batch_size), env.action_spec))
        specs = (env.observation_spec, env.action_spec, env.reward_spec)
        return {"specs": hashed(repr(specs)), "time_steps": digest.hexdigest()[:16]}


def _drawn(batch_size: int) -> Callable[[BoundedTensorSpec], torch.Tensor]:
    return lambda spec: spec.sample((batch_size,))


# Refusals


def _refusal(seed: str) -> Outcome:
    """Exit code of a conf with mistakes, and the settings that the message names."""
    rng = mutations.random.Random(int(seed))
    path = rng.choice(mutations.CONFS)
    text, what = mutations.mutated(path.read_text(encoding="utf-8"), rng)
    is_long = "1e10" in text or "10_000_000_000" in text
    bindings = mutations.SHORT + mutations.QUICK * (not is_long)
    with tempfile.TemporaryDirectory() as folder:
        conf = Path(folder) / f"{path.stem}.gin"
        conf.write_text(text, encoding="utf-8")
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = mutations.train.main(
                [
                    f"--conf={conf}",
                    f"--root_dir={folder}/run",
                    *(f"--gin_param={binding}" for binding in bindings),
                ]
            )
    message = said.getvalue()
    message = message[message.find("error:") :] if code else ""
    named = sorted(set(re.findall(r"\b[A-Za-z_]\w*\.[a-z_]+\b", message)))
    return {
        "conf": f"{path.stem}, {what}, {hashed(text)}",
        "exit_code": code,
        "named": [name for name in named if not name.endswith((".gin", ".py"))],
    }


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Messages and warnings are no part of an outcome."""
    with (
        warnings.catch_warnings(),
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        warnings.simplefilter("ignore")
        yield
