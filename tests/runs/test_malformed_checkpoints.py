"""Checkpoints with right hashes and wrong content: one error, nothing has changed."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.checkpoints.array_file import decode_header
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.data_transformers.normalizing_transformers import (
    ObservationNormalizer,
    RewardNormalizer,
)
from alf_lite.environments.creation import create_environment
from alf_lite.errors import CheckpointError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.replay_buffers.replay_file import FILE_NAME, ReplayFile
from alf_lite.runs import training_state
from alf_lite.runs.checkpoints import RunCheckpoints
from alf_lite.runs.directory import RunDirectory
from alf_lite.trainers.hooks import Hooks
from tests.trainers.conftest import build_trainer
from tests.trainers.run_comparison import differences

PARTS = ("algorithm", "training", "trainer", "random")
WRONG = {
    "nothing": None,
    "text": "x",
    "negative": -1,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "huge": 10**5000,
    "empty": {},
    "list": [],
    "dict": {"x": 1},
    "tensor": torch.full((2, 3, 4), -5, dtype=torch.int16),
}
# What else may stand there, or is not looked at.
ALLOWED = (
    # There may have been no evaluation, and a return may be negative.
    r"trainer\['run'\]\['(best|early|last).*= (nothing|negative|missing)",
    r"trainer\['run'\]\['(env_steps|seconds|num_evals_without_better)'\] = missing",
    r"trainer\['run'\]\['seconds'\] = negative",
    r"trainer\['event_files'\]",  # tested below
    r"trainer\['hooks'\] = (empty|missing)",
    r"trainer\['ranks'\] = missing",  # it is older than ranks
    r"random\['python'\]\[2\] = (nothing|negative)",
    r"random\['numpy'\]\['cached_gaussian'\] = negative",
    # What was never updated has no moments.
    r"training\['optimizers'\]\['root'\]\['state'\]\['[^']*'\] = empty",
    # Nothing is expected there, and nothing is looked at.
    r"training\['data_transformer'\]\['0'\] = (empty|dict)",
    r"training\['path'\]\['collection'\]\['limiter'\] = (empty|dict|missing)",
    r"training\['path'\]\['offline_\w+'\] = list",
    r"training\['metrics'\]\['waiting(_ids)?'\] = missing",
)


def make_env(*, seed, num_parallel_environments=2):
    return create_environment(
        "CartPole-v1", num_parallel_environments, seed, max_episode_steps=20
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trainer after its run, and its last checkpoint."""
    trainer = build_trainer(
        tmp_path_factory.mktemp("malformed") / "run",
        algorithm_ctor=functools.partial(DqnAlgorithm, optimizer=Adam(lr=0.01)),
        create_env=make_env,
        data_transformer_ctor=[ObservationNormalizer, RewardNormalizer],
        num_iterations=4,
        num_checkpoints=2,
        unroll_length=8,
        mini_batch_length=2,
        mini_batch_size=8,
        initial_collect_steps=16,
        checkpoint_replay_buffer=True,
        priority_replay=True,
    )
    trainer.train()
    return trainer, Checkpointer(trainer.root_dir / "checkpoints").load()


def entries(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all entries, but only of the ends where there are many alike."""
    yield path
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    else:
        return
    if len(items) > 4 and len({type(item) for _, item in items}) == 1:
        items = [items[0], items[-1]]
    for key, item in items:
        yield from entries(item, (*path, key))


def changed(value: Any, path: tuple, wrong: Any) -> Any:
    """``value`` with another entry at ``path``; without it if ``wrong`` is ``...``."""
    if not path:
        return wrong
    key, *rest = path
    if isinstance(value, dict):
        if not rest and wrong is ...:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(value[key], tuple(rest), wrong)}
    items = list(value)
    items[key] = changed(items[key], tuple(rest), wrong)
    return type(value)(items)


def state_of(trainer) -> dict[str, Any]:
    return copy.deepcopy(training_state.capture(trainer.algorithm, trainer.run, {}, {}))


def resume(trainer, loaded) -> None:
    checkpoints = RunCheckpoints(
        RunDirectory(trainer.root_dir),
        3,
        uninterrupted=contextlib.nullcontext,
        is_kept=True,
    )
    checkpoints._checkpointer.load = lambda *_, **__: loaded
    checkpoints.resume(trainer.algorithm, Hooks([]))


def error_of(trainer, loaded) -> str | None:
    try:
        resume(trainer, loaded)
    except CheckpointError as error:
        return str(error)
    return None


@pytest.mark.ci
@pytest.mark.parametrize("part", PARTS)
def test_every_wrong_entry_is_one_error_and_changes_nothing(run, part):
    trainer, loaded = run
    resume(trainer, loaded)
    before = state_of(trainer)
    num_refused, accepted = 0, []
    for path in entries(loaded.state[part]):
        if path[:1] == ("unroll",):  # looked at later, tested below
            continue
        wrongs = {**WRONG, "missing": ...} if path else WRONG
        for name, wrong in wrongs.items():
            state = {**loaded.state, part: changed(loaded.state[part], path, wrong)}
            message = error_of(trainer, loaded._replace(state=state))
            if message is None:
                entry = "".join(f"[{key!r}]" for key in path)
                accepted.append(f"{part}{entry} = {name}")
                resume(trainer, loaded)
            else:
                num_refused += 1
                assert str(loaded.path / part) in message, (path, name)
                assert len(message) < 3000
            assert differences(before, state_of(trainer), "") == [], (path, name)
    unexpected = [
        text for text in accepted if not any(re.match(p, text) for p in ALLOWED)
    ]
    assert not unexpected
    assert num_refused > 20


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"run_id": "../x", "sizes": {}},
        {"run_id": 5, "sizes": {}},
        {"run_id": "0" * 16, "sizes": {"a": -1}},
        {"run_id": "0" * 16, "sizes": {"a": 1.5}},
        {"run_id": "0" * 16, "sizes": [1]},
        {"run_id": "0" * 16},
    ],
)
def test_wrong_event_files_are_refused(run, wrong):
    trainer, loaded = run
    state = changed(loaded.state, ("trainer", "event_files"), wrong)
    with pytest.raises(CheckpointError, match=r"trainer\.pt: trainer\['event_files'\]"):
        resume(trainer, loaded._replace(state=state))


def test_a_normalizer_that_is_nan_is_refused(run):
    trainer, loaded = run
    before = state_of(trainer)
    name = next(n for n in loaded.state["algorithm"] if n.endswith(".mean"))
    wrong = torch.full_like(loaded.state["algorithm"][name], float("nan"))
    state = changed(loaded.state, ("algorithm", name), wrong)
    with pytest.raises(CheckpointError, match=rf"ckpt-4 holds buffers.*{name}"):
        resume(trainer, loaded._replace(state=state))
    assert differences(before, state_of(trainer), "") == []


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_named(run, part):
    trainer, loaded = run
    state = {name: value for name, value in loaded.state.items() if name != part}
    with pytest.raises(CheckpointError, match=rf"{part}\.pt: {part}: expected a dict"):
        resume(trainer, loaded._replace(state=state))


@pytest.mark.parametrize(
    "metadata",
    [
        {"algorithm": 5},
        {"specs": [1]},
        {"specs": None},
        {"specs": {"observation": 3}},
        {"specs": {"x": {"y": [1]}}},
    ],
)
def test_wrong_metadata_are_refused(run, metadata):
    trainer, loaded = run
    changed_one = loaded._replace(metadata={**loaded.metadata, **metadata})
    with pytest.raises(CheckpointError, match=str(loaded.path)):
        resume(trainer, changed_one)


def with_header(content: bytes, change) -> bytes:
    """A file of steps whose header ``change`` has changed."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    return len(text).to_bytes(8, "little") + text + content[end:]


NUMBERS = [
    '[1]', '5', 'null', '{"iteration": -1}', '{"iteration": NaN}', "[" * 100_000,
    '{"weight_unit": Infinity}', '{"batch_length": 1e999}', '"text"', "{",
]  # fmt: skip
LEAVES = [
    "{}", "5", "null", "[5]", "[[]]", '[["a", [1], "float32", -4]]', "[" * 100_000,
    '[["a", [-1], "float32", 0]]', '[["a", [1], "float33", 0]]',
    '[["a", ["x"], "float32", 0]]', '[["a", [1], "float32", 1e99]]',
    '[["a", [99999999999999999999], "float32", 0]]', '[["a", 1, "float32", 0]]',
    '[["a", [1], ["float32"], 0]]', '[["a", [1], "float32", "0"]]',
]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "text"),
    [*(("numbers", x) for x in NUMBERS), *(("leaves", x) for x in LEAVES)],
)
def test_a_wrong_header_of_a_buffer_is_refused(run, tmp_path, entry, text):
    _, loaded = run
    content = loaded.mapped_files[FILE_NAME].read_bytes()
    path = tmp_path / FILE_NAME
    path.write_bytes(
        with_header(content, lambda h: h["__metadata__"].update({entry: text}))
    )
    with pytest.raises(CheckpointError, match=str(path)):
        ReplayFile(path)


@pytest.mark.parametrize("name", ["weights", "begin", "end"])
@pytest.mark.parametrize("byte", [0xFF, 0x80])
def test_wrong_arrays_of_a_buffer_are_refused(run, tmp_path, name, byte):
    _, loaded = run
    content = bytearray(loaded.mapped_files[FILE_NAME].read_bytes())
    place = decode_header(content, "file").arrays[name]
    content[place.begin : place.end] = bytes([byte]) * (place.end - place.begin)
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=str(path)):
        ReplayFile(path)


@pytest.mark.ci
def test_wrong_open_episodes_are_one_error_or_begin_anew(run):
    trainer, loaded = run
    training = loaded.state["training"]
    assert training["unroll"]
    env = make_env(seed=1)
    ctor = functools.partial(DqnAlgorithm, optimizer=Adam(lr=0.01))
    config = dataclasses.replace(trainer.config, algorithm_ctor=ctor)
    algorithm = create_algorithm(config, env)
    algorithm.setup_training()
    num_refused = 0
    for path in list(entries(training["unroll"]))[1:]:
        for wrong in WRONG.values():
            unroll = changed(training["unroll"], path, wrong)
            algorithm.training_run.load_state_dict({**training, "unroll": unroll})
            try:
                algorithm.training_run.resume_environment(1)
            except CheckpointError:
                num_refused += 1
    assert num_refused > 50
    algorithm.training_run.load_state_dict(training)
    assert algorithm.training_run.resume_environment(1) == ""
    env.close()
