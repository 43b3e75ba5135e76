"""Exports the policy of a run as a file that needs neither the run nor alf_lite."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import alf_lite
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.checkpointer import LoadedCheckpoint
from alf_lite.checkpoints.files import check_is_new, new_output
from alf_lite.config import TrainerConfig, bindings
from alf_lite.config import files as config_files
from alf_lite.config.bindings import evaluation_scope
from alf_lite.environments import env_ids
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.environments.space_specs import RecordedValues
from alf_lite.environments.specs_only_environment import from_saved_spaces, saved_spaces
from alf_lite.errors import ConfigError, ExportError, did_you_mean, needs_extra
from alf_lite.policies import run_policy
from alf_lite.policies.exported_policy import SCHEMA, SPECS_FILE
from alf_lite.policies.trained_policy import build_to_predict, run_and_checkpoint
from alf_lite.tools.policy_check import Comparison, compare, watch
from alf_lite.tools.policy_graph import PolicyGraph, Port

_FORMATS = {"onnx": ("onnx",), "torch": ("torch",), "both": ("onnx", "torch")}
_FILES = {"onnx": "policy.onnx", "torch": "policy.pt2"}


class ExportResult(NamedTuple):
    """What was written, and how close it is to the policy of the run."""

    directory: Path
    files: list[Path]
    checkpoint: Path
    comparisons: dict[str, Comparison]  # by format
    observations: str  # what was compared on

    @property
    def largest_difference(self) -> float:
        return max(one.largest_difference for one in self.comparisons.values())


def export_policy(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    checkpoint: str | int | os.PathLike[str] = "latest",
    file_format: str = "onnx",
    sample: bool = False,
    num_steps: int = 500,
    tolerance: float = 1e-4,
    seed: int = 0,
    gin_params: Sequence[str] = (),
    config: TrainerConfig | None = None,
    create_env: Callable[..., Environment] = create_environment,
) -> ExportResult:
    """Writes the policy of a run as ONNX, for torch.export, or both.

    Everything between the observation that the environment returns and the action that
    it takes is inside. What is written is read again and compared with the policy of
    the run on steps of the environment; if it acts otherwise, nothing is written. The
    configuration of the run is read and executed: export only runs that you trust.

    Args:
        run: the directory of the run, or the path of a checkpoint.
        out: a new directory; ``export`` in that of the run by default.
        checkpoint: "latest", "best", a step or the path of a checkpoint of the run.
        file_format: "onnx", "torch" or "both".
        sample: draw actions from the policy, with noise that goes in, instead of the
            best ones.
        num_steps: to compare on, of two environments side by side; 0: on observations
            drawn from the space, for which the environment need not be installed.
        tolerance: the largest difference of two actions, as a part of half of their
            range or, where there is none, of the larger one of 1 and the action.
        seed: of what is compared on.
        gin_params: override the configuration of the run.
        config: what the run was built with in Python, instead of its conf.
        create_env: builds the environments, see :class:`Trainer`.

    Raises:
        ConfigError: if there is no such run, the extra is missing, or ``out`` exists.
        CheckpointError: if the checkpoint cannot be used.
        ExportError: if a part of the policy has no graph, or the graph acts otherwise.
    """
    root_dir, which = run_and_checkpoint(run, checkpoint, "export_policy")
    target = Path(root_dir) / "export" if out is None else Path(out).expanduser()
    formats = _formats(file_format)
    if num_steps < 0 or not tolerance >= 0:
        raise ConfigError("num_steps and tolerance must not be negative")
    check_is_new(target)
    with config_files.own_config(), contextlib.ExitStack() as stack:
        algorithm, env, loaded = _build(
            root_dir, which, num_steps, seed, gin_params, config, create_env
        )
        stack.callback(env.close)
        values = _recorded_values(env)
        algorithm.predict_epsilon = 1.0 if sample else 0.0
        graph = PolicyGraph(algorithm, values)
        if sample and not any(port.role == "noise" for port in graph.inputs):
            raise ConfigError(
                f"{type(algorithm).__name__} draws nothing: its policy is the best "
                "action. Export it without sample."
            )
        program = graph.traced()
        watched, observations = watch(graph, env, values, num_steps or 500, seed)
        with new_output(target) as folder:
            folder.mkdir()
            comparisons = {}
            for name in formats:
                path = folder / _FILES[name]
                _WRITERS[name](program, graph, path)
                comparisons[name] = compare(graph, path, watched)
                _check(comparisons[name], name, tolerance, observations)
            report = {"observations": observations, "tolerance": tolerance}
            report |= {name: one._asdict() for name, one in comparisons.items()}
            specs = _specs(graph, loaded, sample, report, formats)
            specs["max_episode_steps"] = _time_limit(env)
            text = json.dumps(specs, indent=2, allow_nan=False) + "\n"
            (folder / SPECS_FILE).write_text(text, encoding="utf-8")
            names = sorted(file.name for file in folder.iterdir())
    files = [target / name for name in names]
    return ExportResult(target, files, loaded.path, comparisons, observations)


def _formats(file_format: str) -> tuple[str, ...]:
    if file_format not in _FORMATS:
        raise ConfigError(
            f"there is no format {file_format!r}, only {', '.join(_FORMATS)}."
            f"{did_you_mean(file_format, _FORMATS)}"
        )
    formats = _FORMATS[file_format]
    if "onnx" in formats:
        for module in ("onnx", "onnxscript", "onnxruntime"):
            with needs_extra("the format onnx, unlike torch,", "export"):
                importlib.import_module(module)
    return formats


def _recorded_values(env: Environment) -> RecordedValues:
    """What turns observations into the network's; of a run without its environment."""
    values = env.recorded_values
    if values is None:
        values = from_saved_spaces(saved_spaces(env) or {}).recorded_values
    assert values is not None, env
    return values


def _build(
    root_dir: str,
    checkpoint: str | int,
    num_steps: int,
    seed: int,
    gin_params: Sequence[str],
    config: TrainerConfig | None,
    create_env: Callable[..., Environment],
) -> tuple[RLAlgorithm, Environment, LoadedCheckpoint]:
    """The policy on the CPU, and what it is compared in."""
    if num_steps == 0:
        return build_to_predict(
            root_dir, checkpoint, device="cpu", gin_params=gin_params, config=config
        )
    is_named = create_env is create_environment
    asks = run_policy.TO_EXPORT if is_named else run_policy.TO_PREDICT
    config = run_policy.read_run_config(root_dir, gin_params, asks, config)
    loaded = run_policy.load_policy_checkpoint(root_dir, checkpoint)
    config = dataclasses.replace(config, device="cpu")
    with config_files.gin_errors(), evaluation_scope():  # that of training may need it
        try:
            env = create_env(num_parallel_environments=2, seed=seed)
        except ConfigError:  # it may be that there is another number of them only
            env = create_env(seed=seed)
    try:
        algorithm = run_policy.build_policy(config, env, loaded)
    except BaseException:
        env.close()
        raise
    algorithm.eval()
    return algorithm, env, loaded


def _check(
    comparison: Comparison, name: str, tolerance: float, observations: str
) -> None:
    if not comparison.largest_difference <= tolerance:
        raise ExportError(
            f"the exported policy ({name}) acts otherwise than that of the run: "
            f"{comparison.worst} differs by {comparison.largest_difference:.3g} of its "
            f"range, more than the tolerance of {tolerance:g}, on {observations}. "
            "Nothing was written. What reads rewards or earlier actions, or remembers "
            "in attributes, cannot be exported."
        )


# Files


def _write_torch(
    program: torch.export.ExportedProgram, graph: PolicyGraph, path: Path
) -> None:
    torch.export.save(program, path)


def _write_onnx(
    program: torch.export.ExportedProgram, graph: PolicyGraph, path: Path
) -> None:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it misses packages that nothing here needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own names and of torch's trees
            written: Any = torch.onnx.export(
                program,
                input_names=[port.name for port in graph.inputs],
                output_names=[port.name for port in graph.outputs],
                dynamic_shapes={"tensors": tuple({0: "batch"} for _ in graph.inputs)},
                dynamo=True,
                verbose=False,
            )
        written.save(path)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ExportError(
            f"{type(graph.algorithm).__name__} cannot be written as ONNX: "
            f"{type(error).__name__}: {first_line}"
        ) from error
    finally:
        logger.setLevel(level)


_WRITERS: dict[str, Callable[..., None]] = {
    "onnx": _write_onnx,
    "torch": _write_torch,
}


def _specs(
    graph: PolicyGraph,
    loaded: LoadedCheckpoint,
    sample: bool,
    report: dict[str, Any],
    formats: Sequence[str],
) -> dict[str, Any]:
    """What the file of specs says; see docs/export.md."""
    versions = {"alf_lite": alf_lite.__version__, "torch": torch.__version__}
    if "onnx" in formats:
        for name in ("onnx", "onnxscript", "onnxruntime"):
            versions[name] = importlib.import_module(name).__version__
    return {
        "schema": SCHEMA,
        "files": {name: _FILES[name] for name in formats},
        "action": "sampled" if sample else "greedy",
        "inputs": [_as_json(port) for port in graph.inputs],
        "outputs": [_as_json(port) for port in graph.outputs],
        "algorithm": type(graph.algorithm).__name__,
        "environment": (loaded.metadata.get("environment") or {}).get("name", ""),
        "checkpoint": {
            "path": str(loaded.path),
            "iterations": loaded.step,
            "env_steps": loaded.metadata.get("env_steps"),
        },
        "comparison": report,
        "versions": versions,
        "conf": loaded.texts.get("user.gin", ""),
    }


def _time_limit(env: Environment) -> int | None:
    """Steps of an episode, as the run says or its id is registered; None for no limit.

    A program that makes an environment by itself would not know it, and never end.
    """
    bound = bindings.bound_value(create_environment, "max_episode_steps")
    if env.created_with is None:
        return bound or None
    limit, name = (env.created_with[key] for key in ("max_episode_steps", "env_name"))
    with evaluation_scope():
        if bindings.bound_value(create_environment, "max_episode_steps") != bound:
            limit = bound  # the one of evaluations is another
    if limit is None and env.created_with["env_ctor"] is None:
        with contextlib.suppress(ConfigError):
            limit = env_ids.find_spec(name).max_episode_steps
    return limit or None


def _as_json(port: Port) -> dict[str, Any]:
    dtype = str(port.dtype).removeprefix("torch.")
    result: dict[str, Any] = {
        "name": port.name,
        "role": port.role,
        "path": list(port.path),
        "shape": ["batch", *port.shape],
        "dtype": dtype,
    }
    if port.role == "noise":
        result["distribution"] = port.distribution
    if port.space is not None:
        result["environment_dtype"] = str(port.space.dtype)
        result["minimum"], result["maximum"] = _bounds(port.space.space)
    return result


def _bounds(space: Any) -> tuple[Any, Any]:
    """Lowest and highest values, one number if all are alike; None for no bound."""
    if hasattr(space, "low"):
        return _shortened(space.low), _shortened(space.high)
    if hasattr(space, "nvec"):
        start = np.asarray(space.start)
        return _shortened(start), _shortened(start + space.nvec - 1)
    if hasattr(space, "start"):
        return int(space.start), int(space.start + space.n - 1)
    return 0, 1


def _shortened(bound: np.ndarray) -> Any:
    if bound.size and (bound == bound.flat[0]).all():
        bound = bound.flat[0]
    return _without_infinity(np.asarray(bound).tolist())


def _without_infinity(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_infinity(item) for item in value]
    return value if np.isfinite(value) else None
