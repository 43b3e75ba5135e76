"""A trained policy that acts on observations: numpy in, numpy out."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.checkpointer import LoadedCheckpoint
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.config.reader import split_statements
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.environments.specs_only_environment import (
    SpecsOnlyEnvironment,
    from_saved_spaces,
)
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.nest import path_parts
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.trainers import run_policy
from alf_lite.trainers.evaluator import PredictActor
from alf_lite.trainers.run_record import TrainResult

Nest = Any

_OF_THE_LOOP = tuple(
    f"TrainerConfig.{name}" for name in ("hook_ctors", "metric_ctors", "data_metrics")
)


def load_policy(
    run: str | os.PathLike[str] | TrainResult,
    checkpoint: str | int = "latest",
    *,
    device: str | None = None,
    gin_params: Sequence[str] = (),
    config: TrainerConfig | None = None,
) -> TrainedPolicy:
    """The policy of a run. The environment need not be installed.

    The configuration of the run is read and executed: load only runs that you trust.

    Args:
        run: the directory of the run.
        checkpoint: "latest", "best" or a step.
        device: of the networks; that of the training by default.
        gin_params: override the configuration of the run.
        config: what the run was built with in Python, where no conf can say it: with
            ``algorithm_ctor``.

    Raises:
        ConfigError: if there is no run, or it cannot be built again.
        CheckpointError: if the checkpoint cannot be used.
    """
    with config_files.own_config():
        algorithm, env, _ = build_to_predict(
            directory_of(run, "load_policy"),
            checkpoint,
            device=device,
            gin_params=gin_params,
            config=config,
        )
    return TrainedPolicy(algorithm, env)


def directory_of(run: str | os.PathLike[str] | TrainResult, asks: str) -> str:
    """The directory of a run.

    Args:
        run: or its result.
        asks: the function that was called, for messages.

    Raises:
        ConfigError: if there is none.
    """
    if isinstance(run, TrainResult):
        if run.checkpoint is None:
            raise ConfigError(
                f"{asks}: this run kept nothing. Give Trainer a root_dir."
            )
        run = run.root_dir
    if not isinstance(run, str | os.PathLike):
        raise ConfigError(f"{asks}: expected the directory of a run, got {run!r}")
    return os.fspath(run)


def build_to_predict(
    root_dir: str,
    checkpoint: str | int,
    *,
    device: str | None = None,
    gin_params: Sequence[str] = (),
    config: TrainerConfig | None = None,
) -> tuple[RLAlgorithm, SpecsOnlyEnvironment, LoadedCheckpoint]:
    """A policy, the spaces of its environment, and the checkpoint; see above.

    What is bound in this process becomes what the run has bound.
    """
    loaded = run_policy.load_policy_checkpoint(root_dir, checkpoint)
    saved = loaded.metadata.get("environment")
    if not isinstance(saved, dict):
        raise CheckpointError(
            f"{loaded.path} does not say what its environment is like: it was written "
            "by an older version. Train on for an iteration."
        )
    env = from_saved_spaces(saved)
    if config is None:
        _read_config(root_dir, gin_params)
        config = run_policy.acting_config()
    elif gin_params:
        raise ConfigError("gin_params override a conf: change config instead")
    config = dataclasses.replace(config, device=device or config.device)
    algorithm = run_policy.build_policy(config, env, loaded)
    algorithm.eval()
    return algorithm, env, loaded


def _read_config(root_dir: str, gin_params: Sequence[str]) -> None:
    """Reads the conf of a run but for what only its environment needs."""
    conf = run_policy.run_conf(root_dir, gin_params, run_policy.TO_PREDICT)
    if conf is None:
        config_files.parse_config(None, gin_params)
        return
    lines: list[str] = []
    for statement in split_statements(Path(conf).read_text(encoding="utf-8"), conf):
        if _is_needed(statement.source):
            lines += [""] * (statement.line - 1 - len(lines))  # for messages
            lines += statement.source.split("\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(conf).name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            config_files.parse_config(str(path), gin_params)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(path), conf)) from error


def _is_needed(statement: str) -> bool:
    """Whether a policy may need it: not what is of the environment or the loop."""
    if statement.startswith("import "):
        module = statement.split()[1].partition(".")[0]
        return config_names.is_importable(module)
    name = statement.partition("=")[0].strip().rpartition("/")[2]
    module, *names = name.split(".")
    if module == "create_environment" or name in _OF_THE_LOOP:
        return False
    # Of a class that is given in full; one of the algorithm is named elsewhere, too.
    return len(names) < 2 or config_names.is_importable(module)


class TrainedPolicy:
    """Acts as an algorithm has learned to; made by :func:`load_policy`.

    What a recurrent network remembers, and what frames were stacked, is kept here from
    call to call; :meth:`reset` begins new episodes. A policy that remembers nothing
    takes batches of any size at any time.

    Args:
        algorithm: built for acting.
        env: the spaces of its environment.
    """

    def __init__(self, algorithm: RLAlgorithm, env: SpecsOnlyEnvironment) -> None:
        assert env.recorded_values is not None, env
        self._algorithm = algorithm
        self._env = env
        self._values = env.recorded_values
        self._remembers = algorithm.acts_on_prev_action or not all(
            nest.is_empty(spec)
            for spec in (
                algorithm.predict_state_spec,
                algorithm.data_transformer.state_spec,
            )
        )
        self._batch_size: int | None = None
        self._is_first = torch.ones(0, dtype=torch.bool)
        self._actor: PredictActor | None = None
        self._prev_action: Nest = ()
        self._leaves = [
            (path, spec) for path, spec in nest.flatten_with_path(env.observation_spec)
        ]

    @property
    def observation_spec(self) -> NestedTensorSpec:
        """Of one observation, as the environment gives it."""
        return self._env.observation_spec

    @property
    def action_spec(self) -> NestedTensorSpec:
        """Of one action as the networks choose it; see ``action_space``."""
        return self._env.action_spec

    @property
    def observation_space(self) -> Any:
        """That of the environment."""
        return self._values.observation_space

    @property
    def action_space(self) -> Any:
        """That of the environment, in which the actions are."""
        return self._values.action_space

    def reset(self, done: Any = None) -> None:
        """New episodes begin with the next observation.

        Args:
            done: [B] bool, in which rows of the batch; None: in all, and the next batch
                may have another size.
        """
        if done is None or self._batch_size is None:
            self._batch_size = None
            return
        is_done = np.asarray(done, bool)
        if is_done.shape != (self._batch_size,):
            raise ValueError(
                f"reset: expected done [{self._batch_size}], got {list(is_done.shape)}"
            )
        self._is_first = self._is_first | torch.from_numpy(is_done)

    def predict(self, observation: Nest, deterministic: bool = True) -> Nest:
        """The action for one observation, or one for each of a batch.

        Args:
            observation: as the environment gives it, with or without [B, ...] in front.
            deterministic: the best action; False draws it from the policy.

        Returns:
            what the environment's ``step`` takes, with [B, ...] if the observation has.

        Raises:
            ValueError: if the shape or the keys are others than those of the spec.
            TypeError: if it is not numbers, or these are of another kind.
        """
        tensors, batch_size = self._to_tensors(observation)
        rows = 1 if batch_size is None else batch_size
        self._begin(rows)
        self._algorithm.predict_epsilon = 0.0 if deterministic else 1.0
        assert self._actor is not None
        with torch.inference_mode():
            action = self._actor.act(self._time_step(tensors, rows))
        self._prev_action = action
        self._is_first = torch.zeros(rows, dtype=torch.bool)
        return self._to_environment(action, is_batch=batch_size is not None)

    def _begin(self, rows: int) -> None:
        is_other = rows != self._batch_size
        if self._batch_size is None or (is_other and not self._remembers):
            algorithm = self._algorithm
            self._batch_size = rows
            self._is_first = torch.ones(rows, dtype=torch.bool)
            self._actor = PredictActor(algorithm, rows)
            self._prev_action = nest.map_structure(
                lambda spec: spec.zeros((rows,)).to(algorithm.device),
                algorithm.action_spec,
            )
        elif is_other:
            raise ValueError(
                f"observation: a batch of {rows} follows batches of "
                f"{self._batch_size}, whose episodes are open. Call reset() first."
            )

    def _time_step(self, observation: Nest, rows: int) -> TimeStep:
        device = self._algorithm.device
        is_first = self._is_first.to(device)
        kinds = (int(StepType.FIRST), int(StepType.MID))
        return TimeStep(
            step_type=torch.where(is_first, *kinds).to(torch.int32),
            reward=self._algorithm.reward_spec.zeros((rows,)).to(device),
            discount=torch.ones(rows, device=device),
            observation=observation,
            prev_action=self._prev_action,
            env_id=torch.arange(rows, dtype=torch.int32, device=device),
        )

    # Between numpy and tensors

    def _to_tensors(self, observation: Nest) -> tuple[Nest, int | None]:
        """The observation [B, ...], and B; None if it was a single one."""
        spec = self._env.observation_spec
        if isinstance(spec, TensorSpec):
            arrays = [observation]
        else:
            try:
                nest.assert_same_structure(spec, observation)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"observation: expected the structure of {spec}: {error}"
                ) from error
            arrays = nest.flatten(observation)
        tensors, sizes = [], {}
        for (path, leaf), array in zip(self._leaves, arrays, strict=True):
            keys = tuple(path_parts(path))
            name = "".join(["observation", *(f"[{key!r}]" for key in keys)])
            array, sizes[name] = self._checked(name, leaf, keys, array)
            recorded = self._values.observations[keys]
            values = np.array(recorded.to_agent(array))
            tensors.append(torch.from_numpy(values).to(leaf.dtype))
        if len(set(sizes.values())) > 1:
            raise ValueError(
                f"observation: the parts are of different batches: {sizes}"
            )
        device = self._algorithm.device
        tensors = [tensor.to(device) for tensor in tensors]
        size = next(iter(sizes.values()), None)
        return nest.pack_sequence_as(spec, tensors), size

    def _checked(
        self, name: str, spec: TensorSpec, keys: tuple[str, ...], value: Any
    ) -> tuple[np.ndarray, int | None]:
        """One part as [B, ...], and B; None if it was a single one."""
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{name}: expected numbers, got {array.dtype}")
        if array.dtype.kind == "f" and not spec.dtype.is_floating_point:
            raise TypeError(
                f"{name}: expected integers ({spec.dtype}), got {array.dtype}"
            )
        shape = tuple(spec.shape)
        if array.shape == shape:
            return array[None], None
        if array.shape[1:] == shape and array.ndim == len(shape) + 1 and len(array):
            return array, len(array)
        raise ValueError(
            f"{name}: expected shape {list(shape)}, or {['B', *shape]} for a batch, "
            f"got {list(array.shape)}"
        )

    def _to_environment(self, action: Nest, *, is_batch: bool) -> Nest:
        def convert(path: str, leaf: Tensor) -> Any:
            recorded = self._values.actions[tuple(path_parts(path))]
            array = recorded.to_environment(leaf.numpy(force=True))
            return array if is_batch else array[0]

        leaves = [convert(*item) for item in nest.flatten_with_path(action)]
        return nest.pack_sequence_as(action, leaves)
