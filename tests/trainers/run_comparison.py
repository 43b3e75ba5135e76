"""Compares two runs to the bit, and lets one die."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.trainers.hooks import Hook
from alf_lite.utils.row_log import AXES, KEYS, read_rows


class Dies(Hook):
    """Ends the process, as far as the trainer can tell, without saving anything."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self._iteration = iteration

    def before_iter(self, training) -> None:
        if training.run.iterations == self._iteration:
            training._checkpoints.save = lambda *args, **kwargs: None
            raise KeyboardInterrupt


class Stops(Hook):
    """Requests the end of the run after some iterations."""

    def __init__(self, *iterations: int) -> None:
        super().__init__()
        self._iterations = iterations

    def after_iter(self, training) -> None:
        if training.run.iterations in self._iterations:
            training.request_stop("asked to")


def differences(expected: Any, got: Any, path: str) -> list[str]:
    """The paths at which two nested states are not equal to the bit."""
    if type(expected) is not type(got):
        return [f"{path}: {type(expected)} and {type(got)}"]
    if isinstance(expected, dict):
        if expected.keys() != got.keys():
            return [f"{path}: {expected.keys()} and {got.keys()}"]
        return [
            text
            for key in expected
            for text in differences(expected[key], got[key], f"{path}[{key!r}]")
        ]
    if isinstance(expected, list | tuple):
        if len(expected) != len(got):
            return [f"{path}: lengths {len(expected)} and {len(got)}"]
        return [
            text
            for i, (e, g) in enumerate(zip(expected, got, strict=True))
            for text in differences(e, g, f"{path}[{i}]")
        ]
    if isinstance(expected, torch.Tensor):
        same = expected.dtype == got.dtype and torch.equal(
            torch.nan_to_num(expected.double(), nan=1e300),
            torch.nan_to_num(got.double(), nan=1e300),
        )
        return [] if same else [f"{path}: {expected} and {got}"]
    return [] if expected == got else [f"{path}: {expected} and {got}"]


def final_state(root: Path) -> dict[str, Any]:
    """The last checkpoint without what tells the time."""
    loaded = Checkpointer(root / "checkpoints").load()
    state = loaded.state
    state["files"] = {n: p.read_bytes() for n, p in loaded.mapped_files.items()}
    del state["trainer"]["event_files"]
    del state["trainer"]["run"]["seconds"]
    return state


def learned_state(root: Path) -> dict[str, Any]:
    """Of the last checkpoint what training depends on, nothing of the evaluations."""
    state = final_state(root)
    run = state.pop("trainer")["run"]
    state["counters"] = {
        name: run[name] for name in ("seed", "iterations", "env_steps")
    }
    return state


def points(root: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(root / "train"), size_guidance={"scalars": 0})
    accumulator.Reload()
    # Sorted, because files that were begun in the same second are read in any order.
    return {
        tag: sorted((event.step, event.value) for event in accumulator.Scalars(tag))
        for tag in accumulator.Tags()["scalars"]
        if not _tells_time(tag)
    }


def log_rows(root: Path, name: str) -> dict[tuple[int, ...], dict[str, float]]:
    """The rows of a log by what tells them apart; the table holds the same."""
    rows: dict[tuple[int, ...], dict[str, float]] = {}
    for row in read_rows((root / f"{name}.jsonl").read_bytes().splitlines(True)):
        key = tuple(row[column] for column in KEYS[name])
        rows[key] = rows.get(key, {}) | row
    if rows:
        with (root / f"{name}.csv").open(newline="") as file:
            table = list(csv.DictReader(file))
        filled = [{k: float(v) for k, v in row.items() if v} for row in table]
        numbers = [
            {k: v for k, v in row.items() if v is not None} for row in rows.values()
        ]
        assert filled == numbers, name
    kept = {
        key: {k: v for k, v in row.items() if not _tells_time(k)}
        for key, row in rows.items()
    }
    return {key: row for key, row in kept.items() if not row.keys() <= set(AXES)}


def _tells_time(tag: str) -> bool:
    is_speed = tag.endswith("_per_second")
    return tag == "seconds" or tag.startswith("time/") or is_speed


def assert_same_run(expected: Path, got: Path) -> None:
    assert differences(final_state(expected), final_state(got), "") == []
    assert points(expected) == points(got)
    for name in KEYS:
        assert log_rows(expected, name) == log_rows(got, name)
