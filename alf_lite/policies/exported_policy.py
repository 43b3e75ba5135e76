"""Policies that were exported, which need neither their run nor its code."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alf_lite.border import CONFIG, border, check_regular, read_record
from alf_lite.errors import ConfigError, needs_extra

SPECS_FILE = "policy.json"
SCHEMA = 1
_TYPES = {
    "schema": int,
    "files": {"onnx": str, "torch": str},
    "inputs": [dict],
    "outputs": [dict],
}

# What goes in, by name → what comes out
Graph = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


class ExportedPolicy:
    """Acts as what :func:`export_policy` has written; docs/export.md says what that is.

    What it remembers is kept by whoever asks, so rows need not be those of the last
    call.

    Args:
        directory: with ``policy.json``; ``policy.onnx`` is taken if onnxruntime is
            installed, else ``policy.pt2``. Only one that you trust.

    Raises:
        ConfigError: if there is none, a newer version has written it, or its file
            cannot be read.
        MissingExtraError: if it is ONNX, and onnxruntime is not installed.
    """

    def __init__(self, directory: str | Path) -> None:
        folder = Path(directory)
        if not (folder / SPECS_FILE).is_file():
            raise ConfigError(
                f"{folder} holds no exported policy: there is no {SPECS_FILE}. Write "
                "one with alf_lite export --root_dir=RUN --out=DIRECTORY."
            )
        specs = _read_specs(folder / SPECS_FILE)
        files = specs["files"]
        has_runtime = importlib.util.find_spec("onnxruntime") is not None
        kind = "onnx" if has_runtime or "torch" not in files else "torch"
        name = files.get(kind) or files.get("torch")
        if not name:
            raise ConfigError(
                f"{folder / SPECS_FILE} names no file of a policy, onnx or torch, but "
                f"{files}. Export the policy again."
            )
        self._graph = read_graph(folder / name)
        self.inputs: list[dict[str, Any]] = specs["inputs"]
        self.actions = [port for port in specs["outputs"] if port["role"] == "action"]
        self._states = [port for port in self.inputs if port["role"] == "state"]

    def new_memory(self, rows: int) -> list[np.ndarray]:
        """[rows, ...]: what it remembers where an episode begins; [] if nothing."""
        states = [
            np.zeros((rows, *port["shape"][1:]), port["dtype"]) for port in self._states
        ]
        return [np.ones(rows, bool), *states] if states else []

    def predict_with(
        self, observation: Any, memory: list[np.ndarray], rng: np.random.Generator
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The actions [B, ...], part by part, and what is remembered afterwards.

        Args:
            observation: a nest of arrays [B, ...], as the environment gives it.
            memory: of :meth:`new_memory`, or of the step before.
            rng: of the noise of a policy that draws its actions.
        """
        kept, inputs = iter(memory), {}
        num_rows = 0
        for port in self.inputs:
            if port["role"] == "observation":
                value = observation
                for key in port["path"]:
                    value = value[key]
                num_rows = len(value)
            elif port["role"] == "noise":
                shape = (num_rows, *port["shape"][1:])
                is_normal = port["distribution"] == "normal"
                draw = rng.standard_normal if is_normal else rng.random
                value = draw(shape, np.float32)
            else:
                value = next(kept)
            inputs[port["name"]] = np.asarray(value, port["dtype"])
        outputs = self._graph(inputs)
        actions = [
            output.astype(port["environment_dtype"])
            for output, port in zip(outputs, self.actions, strict=False)
        ]
        states = outputs[len(actions) :]
        return actions, [np.zeros(num_rows, bool), *states] if states else []


def _read_specs(path: Path) -> dict[str, Any]:
    specs = read_record(path, _TYPES, CONFIG)
    if specs.get("schema", SCHEMA) > SCHEMA:
        written_by = (specs.get("versions") or {}).get("alf_lite")
        raise ConfigError(
            f"{path}: schema {specs['schema']}, written by alf_lite {written_by}; this "
            f"version reads up to schema {SCHEMA}. Update alf_lite."
        )
    if missing := _TYPES.keys() - specs:
        raise ConfigError(f"{path} has no {sorted(missing)}. Export the policy again.")
    return specs


def read_graph(path: Path) -> Graph:
    """Of ``policy.onnx`` or ``policy.pt2``.

    Raises:
        ConfigError: if it cannot be read.
        MissingExtraError: if onnxruntime is needed and not installed.
    """
    check_regular(path, CONFIG)
    if path.suffix == ".onnx":
        with needs_extra(f"{path.name}, which was exported as ONNX,", "export"):
            import onnxruntime
        with border(path, CONFIG):
            session = onnxruntime.InferenceSession(
                path, providers=["CPUExecutionProvider"]
            )
        names = {value.name for value in session.get_inputs()}
        # What the policy does not look at may be missing in the graph
        return lambda inputs: session.run(
            None, {name: inputs[name] for name in inputs if name in names}
        )
    with border(path, CONFIG):
        module = torch.export.load(path).module()

    def call(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        tensors = [torch.from_numpy(np.array(array)) for array in inputs.values()]
        with torch.no_grad():
            return [output.numpy() for output in module(*tensors)]

    return call
