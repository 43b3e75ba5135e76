"""Distillation: a student acts, and a teacher says what it should have done.

Ross, Gordon, Bagnell, "A Reduction of Imitation Learning and Structured Prediction to
No-Regret Online Learning" (DAgger), AISTATS 2011, arXiv:1011.0686. The states are those
to which the student has come, from all of its training, and the actions those that the
teacher takes there:

    min_θ E_{s from π_θ}[−log π_θ(π*(s)|s)]

or the squared error, see :mod:`~alf_lite.algorithms.bc_algorithm`. A teacher that sees
more, such as the true state of a simulation, makes a student of sensors of it.

Differences from the paper:

1. Those of behaviour cloning.
2. The student is trained while it acts, by batches of a replay buffer, and not anew
   with all states after every iteration.
3. The student acts from the start (β = 0); ``TrainerConfig.initial_collect_steps`` are
   random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from alf_lite import nest
from alf_lite.algorithms.acting import TrainedPolicy, without_memory
from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.config import configurable
from alf_lite.data_structures import BatchInfo, TimeStep
from alf_lite.data_transformers.data_transformer import (
    IdentityDataTransformer,
    TransformStage,
)
from alf_lite.errors import ConfigError

Nest = Any


@configurable
class DistillationAlgorithm(BcAlgorithm):
    """A student of a teacher, for any nest of actions."""

    default_settings = BcAlgorithm.default_settings._replace(updates_per_env_step=1.0)

    def __init__(
        self, *specs: Any, teacher_ctor: Callable[[], TrainedPolicy], **kwargs: Any
    ) -> None:
        """Builds the student, and for training the teacher.

        Args:
            *specs: see :class:`BcAlgorithm`.
            teacher_ctor: called without arguments; :func:`~alf_lite.load_policy`, with
                the directory of a run. A policy without memory, for the same actions
                and observations, as the environment gives them; of a dict of
                observations it may need some entries alone. It stays as it is, and is
                no part of checkpoints.
            **kwargs: see :class:`BcAlgorithm`.

        Raises:
            ConfigError: if the teacher has a memory.
        """
        super().__init__(*specs, **kwargs)
        if self._is_eval:
            return
        # In a tuple, which makes it no part of this module.
        self._teacher = (without_memory(teacher_ctor()),)

    def setup_training(self, *, is_resumed: bool = False) -> None:
        """Raises ConfigError, if the teacher is one of another environment."""
        super().setup_training(is_resumed=is_resumed)
        [teacher], transformer = self._teacher, self.data_transformer
        own = None if self.env is None else self.env.recorded_values
        if own is not None and own.action_space != teacher.action_space:
            raise ConfigError(
                f"{self._name}: the teacher chooses {teacher.action_space}, and the "
                f"environment takes {own.action_space}"
            )
        seen, needed = transformer.observation_spec, teacher.needed_spec
        if isinstance(seen, Mapping) and isinstance(needed, Mapping):
            seen = {key: seen[key] for key in needed if key in seen}
        if seen != needed:
            raise ConfigError(
                f"{self._name}: the teacher needs the observation {needed}, and the "
                f"environment gives {transformer.observation_spec}"
            )
        stages = {getattr(m, "stage", None) for m in transformer.modules()}
        is_raw = isinstance(transformer, IdentityDataTransformer)
        if not is_raw and TransformStage.KEEP_RAW not in stages:
            raise ConfigError(
                f"{self._name}: the teacher needs what the environment observes. Let "
                "TrainerConfig.data_transformer_ctor begin with @UntransformedTimeStep."
            )
        if stages & {TransformStage.HINDSIGHT, TransformStage.SYMMETRY}:
            raise ConfigError(
                f"{self._name}: the teacher labels what the environment observes, and "
                "hindsight and symmetries replace that by other steps. Leave them out "
                "of TrainerConfig.data_transformer_ctor."
            )

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Nest]:
        """All steps but the last, [B, T-1, ...], and what the teacher does there."""
        steps, _ = super().preprocess_experience(root_inputs, rollout_info, batch_info)
        raw = steps if steps.untransformed == () else steps.untransformed
        [teacher], shape = self._teacher, steps.step_type.shape
        rows = nest.map_structure(lambda x: x.flatten(0, 1), raw.observation)
        labels = nest.map_structure(
            lambda x: x.to(self.device).unflatten(0, shape), teacher.choose(rows)
        )
        return steps, self._recorded.clip(labels)
