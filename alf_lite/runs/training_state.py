"""Everything a resumed run needs, as the parts of a checkpoint and back."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.checkpointer import LoadedCheckpoint
from alf_lite.checkpoints.data import check_module_state, non_finite_entries
from alf_lite.checkpoints.files import MANIFEST_NAME
from alf_lite.errors import AlfLiteError, CheckpointError, DivergedError
from alf_lite.nest import path_parts
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec
from alf_lite.utils import random_state
from alf_lite.utils.plain_data import check_like, to_plain
from alf_lite.utils.progress import Progress

# The parts. Playing needs only the first.
ALGORITHM = "algorithm"  # parameters, buffers, normalizers
TRAINING = "training"  # optimizers, metrics
TRAINER = "trainer"  # counters, progress of the schedulers, lengths of the event files
RANDOM = "random"  # every random number generator


class EvaluatedPolicy(NamedTuple):
    """The algorithm as it was when its evaluation began."""

    iterations: int
    env_steps: int
    state: Mapping[str, Any]  # its state_dict


@dataclasses.dataclass
class RunState:
    """The counters of a run and what its evaluations have found."""

    seed: int
    iterations: int = 0  # completed
    env_steps: int = 0  # of all training environments, FIRST steps not counted
    seconds: float = 0.0  # of training, over all processes that continued this run
    best_score: float | None = None  # highest mean return, or what ``Hook.score`` says
    best_iteration: int | None = None  # when that was
    last_eval_iteration: int | None = None
    early_stop_score: float | None = None  # the mean return that ended the run
    num_evals_without_better: int = 0  # since the best one, or since the begin


def capture(
    algorithm: RLAlgorithm,
    run: RunState,
    event_files: dict[str, Any],
    hooks: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """The state of a run between two iterations, part by part."""
    return {
        ALGORITHM: algorithm.state_dict(),
        TRAINING: algorithm.training_run.state_dict(),
        TRAINER: {
            "run": dataclasses.asdict(run),
            "progress": algorithm.progress.state_dict(),
            "event_files": event_files,
            "hooks": dict(hooks),
        },
        RANDOM: random_state.get_state(),
    }


def restore(algorithm: RLAlgorithm, loaded: LoadedCheckpoint) -> RunState:
    """Puts back what :func:`capture` returned; the generators come last.

    Raises:
        CheckpointError: if the checkpoint belongs to another algorithm or other specs,
            or something in it is not as expected; nothing has changed then.
    """
    check_fingerprint(algorithm, loaded)
    run = check_parts(loaded)
    policy = _check_policy(algorithm, loaded, part_of(loaded, ALGORITHM))
    _load_training(algorithm, loaded)
    algorithm.load_state_dict(policy)
    algorithm.progress.load_state_dict(part_of(loaded, TRAINER)["progress"])
    random_state.set_state(part_of(loaded, RANDOM))
    return run


def check_parts(loaded: LoadedCheckpoint) -> RunState:
    """Checks what can be checked without the algorithm.

    Returns:
        The counters of the run.

    Raises:
        CheckpointError: naming the entry that is not as expected.
    """
    for name in (ALGORITHM, TRAINING):
        part_of(loaded, name)
    what = entry(loaded, TRAINER, "progress")
    check_like(part_of(loaded, TRAINER).get("progress"), Progress().state_dict(), what)
    random_state.check_state(part_of(loaded, RANDOM), entry(loaded, RANDOM))
    return _run_state(loaded)


def part_of(loaded: LoadedCheckpoint, name: str) -> dict[str, Any]:
    """A part of a checkpoint.

    Raises:
        CheckpointError: if it is missing, or no dict.
    """
    part = loaded.state.get(name)
    if not isinstance(part, dict):
        raise CheckpointError(
            f"{entry(loaded, name)}: expected a dict, got {type(part).__name__}"
        )
    return part


def entry(loaded: LoadedCheckpoint, part: str, *keys: str) -> str:
    """The file of a part, and an entry of it, for errors."""
    path = "".join(f"[{key!r}]" for key in keys)
    return f"{loaded.path / part}.pt: {part}{path}"


def _run_state(loaded: LoadedCheckpoint) -> RunState:
    """The counters of the run."""
    found, what = part_of(loaded, TRAINER).get("run"), entry(loaded, TRAINER, "run")
    if not isinstance(found, dict) or not {"seed", "iterations"} <= found.keys():
        raise CheckpointError(f"{what}: expected the counters of a run")
    new, later = RunState(0), RunState(0, 0, 0, 0.0, None, 0, 0)
    examples = {
        field.name: getattr(new if found.get(field.name) is None else later, field.name)
        for field in dataclasses.fields(RunState)
    }
    known = {name: value for name, value in found.items() if name in examples}
    check_like(known, examples, what, all_keys=False)
    run = RunState(**known)
    if run.iterations != loaded.step:
        raise CheckpointError(
            f"{what}['iterations']: expected {loaded.step}, got {run.iterations}"
        )
    return run


def _load_training(algorithm: RLAlgorithm, loaded: LoadedCheckpoint) -> None:
    """Loads what only training needs: all of it, or nothing."""
    state, what = part_of(loaded, TRAINING), entry(loaded, TRAINING)
    before = copy.deepcopy(to_plain(algorithm.training_run.state_dict(), TRAINING))
    # Types and numbers only: who loads it knows better what is missing.
    check_like(state, before, what, all_keys=False)
    try:
        algorithm.training_run.load_state_dict(state)
        algorithm.training_run.load_files(loaded.mapped_files)
    except Exception as error:  # whatever it is, nothing may have changed
        algorithm.training_run.load_state_dict(before)
        if isinstance(error, AlfLiteError) and not isinstance(error, CheckpointError):
            raise
        reason = error if isinstance(error, ValueError) else repr(error)
        raise CheckpointError(f"{what} does not fit this run: {reason}") from error


def load_policy(algorithm: RLAlgorithm, loaded: LoadedCheckpoint) -> None:
    """Loads the parameters and buffers that acting needs.

    Args:
        algorithm: built for that, perhaps without some networks of the checkpoint.
        loaded: a checkpoint with its algorithm part.

    Raises:
        CheckpointError: naming what does not fit, or non-finite parameters.
    """
    wanted, saved = algorithm.state_dict().keys(), part_of(loaded, ALGORITHM)
    state_dict = {name: value for name, value in saved.items() if name in wanted}
    algorithm.load_state_dict(_check_policy(algorithm, loaded, state_dict))


def _check_policy(
    algorithm: RLAlgorithm, loaded: LoadedCheckpoint, state_dict: dict[str, Any]
) -> dict[str, Any]:
    """The parameters and buffers if they fit and are finite, else CheckpointError."""
    # Shapes first: looking at the numbers takes memory.
    check_module_state(algorithm, state_dict, f"{loaded.path / ALGORITHM}.pt")
    names = dict(algorithm.named_parameters()).keys()
    bad = non_finite_entries({name: state_dict[name] for name in names})
    if bad:
        raise CheckpointError(f"{loaded.path} holds non-finite parameters: {bad[:5]}")
    # Buffers may be infinite for a reason, or NaN from the beginning.
    buffers = {k: v for k, v in algorithm.state_dict().items() if k not in names}
    bad = [k for k, v in buffers.items() if _has_nan(state_dict[k]) and not _has_nan(v)]
    if bad:
        raise CheckpointError(f"{loaded.path} holds buffers that are NaN: {bad[:5]}")
    return state_dict


def _has_nan(value: Any) -> bool:
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return is_float and bool(value.isnan().any())


def check_finite(algorithm: RLAlgorithm) -> None:
    """Raises DivergedError naming the parameters that are not finite, if any."""
    parameters: dict[str, Tensor] = dict(algorithm.named_parameters())
    bad = non_finite_entries(parameters)
    if bad:
        raise DivergedError(
            f"{len(bad)} parameters are NaN or infinite: {', '.join(bad[:5])}. Likely "
            "causes: a too large learning rate, unscaled rewards or observations."
        )


def fingerprint(algorithm: RLAlgorithm) -> dict[str, Any]:
    """What a checkpoint must have in common with the algorithm that loads it."""
    specs = {
        "observation": algorithm.observation_spec,
        "action": algorithm.action_spec,
        "reward": algorithm.reward_spec,
    }
    return {
        "algorithm": type(algorithm).__name__,
        "specs": described_specs(specs),
    }


def described_specs(specs: Mapping[str, NestedTensorSpec]) -> dict[str, str]:
    """Path of every leaf → its spec, as checkpoints hold it."""
    return {
        "/".join((name, *path_parts(path))): _describe(spec)
        for name, nested in specs.items()
        for path, spec in nest.flatten_with_path(nested)
    }


def _describe(spec: TensorSpec) -> str:
    """The spec in words that no version of a library changes."""
    text = f"{tuple(spec.shape)} {str(spec.dtype).removeprefix('torch.')}"
    if not isinstance(spec, BoundedTensorSpec):
        return text
    bounds = [np.unique(bound) for bound in (spec.minimum, spec.maximum)]
    if all(bound.size == 1 for bound in bounds):
        low, high = (bound[0].item() for bound in bounds)
        return f"{text} in [{low}, {high}]"
    digest = hashlib.sha256(spec.minimum.tobytes() + spec.maximum.tobytes())
    return f"{text} with bounds {digest.hexdigest()[:8]}"


def check_fingerprint(algorithm: RLAlgorithm, loaded: LoadedCheckpoint) -> None:
    """Raises CheckpointError if ``loaded`` is of another algorithm or other specs."""
    expected, found = fingerprint(algorithm), loaded.metadata
    advice = (
        "Use another root_dir, or the configuration that this run was started with "
        "(user.gin in its root_dir)."
    )
    if found.get("algorithm") != expected["algorithm"]:
        raise CheckpointError(
            f"{loaded.path} was written by {found.get('algorithm')}; this run trains "
            f"{expected['algorithm']}. {advice}"
        )
    found_specs = found.get("specs")
    if not isinstance(found_specs, dict):
        raise CheckpointError(f"{loaded.path / MANIFEST_NAME}: it lists no specs")
    lines = [
        f"  {key}: expected {expected['specs'].get(key, '-')}, "
        f"found {found_specs.get(key, '-')}"
        for key in sorted({*expected["specs"], *found_specs})
        if expected["specs"].get(key) != found_specs.get(key)
    ]
    if lines:
        text = "\n".join(lines[:20])
        raise CheckpointError(
            f"{loaded.path} was written for other specs; {len(lines)} differ:\n{text}\n"
            f"{advice}"
        )
