"""What off-policy training keeps and draws from: the run's own steps and recorded ones.

With offline buffers the same run pre-trains, fine-tunes and mixes: the first
``TrainerConfig.rl_train_after_update_steps`` iterations train on them alone and take no
step in the environment; after that own steps join them in the batches.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.replay_batches import ReplayBatches, read_windows
from alf_lite.algorithms.learning.training_batches import with_executed_action
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, TimeStep
from alf_lite.datasets.offline_buffers import OfflineBuffers
from alf_lite.datasets.step_assembly import experience_spec
from alf_lite.environments.environment import Environment
from alf_lite.replay_buffers.own_replay import OwnReplay, ReplayMonitor
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.row_layout import numpy_dtype
from alf_lite.unrollers.rate_limiter import TrainingPace
from alf_lite.unrollers.unroll import Unroll
from alf_lite.utils import random_state, summary
from alf_lite.utils.ranks import ranks

Nest = Any


class TrainingReplay:
    """The buffers of a run, its batches, and how far an iteration may go.

    Args:
        algorithm: the root of the run.
        config: of the run.
        num_environments: that it trains in.
    """

    def __init__(
        self, algorithm: RLContract, config: TrainerConfig, num_environments: int
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        num_history_steps = algorithm.data_transformer.num_history_steps
        self.own = OwnReplay(
            config,
            num_history_steps,
            num_environments,
            algorithm.rl_algorithm.default_settings,
        )
        if self.own.options.priority is not None:
            self.own.options.priority.follow(algorithm.progress)
        self.offline = OfflineBuffers(config, self.own, num_environments)
        self._monitor = ReplayMonitor()
        self.batches = ReplayBatches(
            algorithm, config, self.own, self.offline, self._monitor
        )
        # Of a fractional unroll_length; the sum of floats would fall behind.
        length = Fraction(config.unroll_length).limit_denominator(10**9)
        self._numerator, self._denominator = length.as_integer_ratio()
        self._remainder = 0  # of the denominator's parts of a step
        self.pace: TrainingPace | None = None  # where the workers or a ratio decide
        if config.unroll_length == 0 or config.samples_per_insert is not None:
            self.pace = TrainingPace(
                config,
                num_environments,
                self.own.mini_batch_size * config.num_updates,
                self.own.least_length,
            )
        # What was stored last, and the same as arrays if it has come again.
        self._last_parts: tuple = (None,) * 4
        self._arrays: Experience | None = None
        self._all_can_train = False  # for good; not asked alone
        self._num_iterations = 0

    # One iteration

    def begin_iteration(self) -> int:
        """Its number, from 0."""
        self.own.set_iteration(self._num_iterations)
        return self._num_iterations

    def end_iteration(self) -> None:
        """Counts it; not if it was broken off."""
        self._num_iterations += 1
        self._monitor.write(self.own)

    def next_unroll_length(self) -> int:
        """Steps to collect now; a fraction of one is left for a later iteration."""
        num_parts = self._remainder + self._numerator
        length, self._remainder = divmod(num_parts, self._denominator)
        return length

    def can_train(self) -> bool:
        """Whether there is enough to draw from, on all ranks of the run."""
        if ranks.size == 1:
            return self.own.can_train
        if not self._all_can_train:
            can_train = ranks.all(self.own.can_train)
            # What may be used up, or become too old, is asked for each time.
            self._all_can_train = can_train and self.own.stays_trainable
            return can_train
        return True

    # Own steps

    def store(self, unroll: Unroll) -> None:
        """Appends the steps of an unroll to the run's own buffer."""
        num_rows, num_columns = unroll.time_steps.step_type.shape
        device = self.own.device
        info = unroll.experience.rollout_info
        experience = self._stored(
            # The last row is the first one of the next unroll.
            unroll.rows_on(device, 0, num_rows - 1),
            unroll.action_on(device),
            info,
            unroll.experience.state,
        )
        buffer = self.own.buffer_for(experience)
        steps = self._arrays_of(experience, info)
        if unroll.is_first_unroll:
            # What was stored does not go on, as when a worker was replaced.
            buffer.mark_truncated_end(unroll.env_ids)
        elif unroll.new_columns:
            buffer.mark_truncated_end(np.array(unroll.new_columns))
        if self._algorithm.prioritizes_new_steps:
            num_before = buffer.end_positions
            buffer.add_batch(steps, unroll.env_ids, time_major=True)
            self._prioritize_since(num_before, buffer)
        else:
            buffer.add_batch(steps, unroll.env_ids, time_major=True)
        self._monitor.add((num_rows - 1) * num_columns)

    def _stored(
        self, time_step: TimeStep, action: Nest, info: Nest, state: Nest
    ) -> Experience:
        """What is kept of some steps."""
        return Experience(
            time_step=time_step,
            action=action,
            rollout_info=with_executed_action(info, ()),  # no need to store it twice
            state=state if self._config.use_rollout_state else (),
        )

    def restore_steps(self, env: Environment) -> None:
        """Has the steps of a checkpoint at hand if the next unroll may be far away.

        That is so with a fraction of a step per iteration: several train on what there
        is. How the steps are nested nobody knows before ``rollout_step`` was called, as
        the file holds no types. It is called for one of them, and nothing is left of
        that.
        """
        file, length = self.own.waiting_steps, self._config.unroll_length
        if file is None or not 0 < length < 1 or not file.lengths.any():
            return
        algorithm, num_environments = self._algorithm, env.batch_size
        structure = Experience(time_step=experience_spec(env).time_step)
        try:
            first = file.read(int(file.lengths.argmax()), 0, 1, structure).time_step
        except ValueError:
            return  # the first unroll will tell all that is different
        steps: TimeStep = nest.map_structure(
            lambda t: t.expand(num_environments, *t.shape[1:]).to(algorithm.device),
            first,
        )
        before = copy.deepcopy(algorithm.state_dict())
        algorithm.set_training(False)
        with random_state.preserved(), summary.disabled(), torch.inference_mode():
            state = algorithm.get_initial_rollout_state(num_environments)
            transform_state = algorithm.get_initial_transform_state(num_environments)
            inputs, _ = algorithm.transform_timestep(steps, transform_state)
            step = algorithm.rollout_step(inputs, state)
        algorithm.load_state_dict(before)
        experience = self._stored(steps, step.output, step.info, state)
        self.own.buffer_for(nest.map_structure(lambda t: t.unsqueeze(0), experience))

    def _arrays_of(self, experience: Experience, info: Nest) -> Experience:
        """The same as arrays, if it is that of the last unroll: in the same memory.

        Arrays are moved in half of the time of tensors, but to make them takes longer.

        Args:
            experience: of an unroll, without the action in its info.
            info: with it.
        """
        parts = (experience.time_step, experience.action, info, experience.state)
        if not all(map(operator.is_, parts, self._last_parts)):
            self._last_parts, self._arrays = parts, None
            return experience
        if self._arrays is None:
            has_arrays = self.own.device.type == "cpu" and all(
                leaf.is_cpu and numpy_dtype(leaf.dtype) is not None
                for leaf in nest.flatten(experience)
            )
            self._arrays = (
                nest.map_structure(Tensor.numpy, experience)
                if has_arrays
                else experience
            )
        return self._arrays

    def _prioritize_since(self, ends: Tensor, buffer: ReplayBuffer) -> None:
        """Gives the windows that have become complete their first priorities.

        Args:
            ends: [E], of the steps that were stored before.
            buffer: the run's own.
        """
        algorithm, length = self._algorithm, self.own.mini_batch_length
        if not buffer.num_windows(length):
            return
        num_history_steps = algorithm.data_transformer.num_history_steps
        first = torch.maximum(
            ends - length + 1, buffer.begin_positions + num_history_steps
        )
        counts = (buffer.end_positions - length + 1 - first).clamp(min=0)
        env_ids = torch.arange(len(ends)).repeat_interleave(counts)
        offsets = torch.cat([torch.arange(count) for count in counts.tolist()])
        info = BatchInfo(env_ids, first[env_ids] + offsets)
        if not len(env_ids):
            return
        with torch.no_grad():
            experience = read_windows(buffer, info, length, algorithm)
            burn_in = self._config.burn_in_length
            trained = nest.narrow(experience, burn_in, None, dim=1)
            priority = algorithm.priority_of_new_steps(trained)
        buffer.update_priority(env_ids, info.positions, priority)

    # Recorded steps

    def load_recorded(self, env: Environment) -> None:
        """Those that ``TrainerConfig.offline_buffer_dir`` names; nothing if done."""
        for buffer in self.offline.load(env):
            self.add_recorded(buffer, is_named=True)

    def add_recorded(self, buffer: ReplayBuffer, *, is_named: bool = False) -> None:
        """Adds one more source, which the data transformer observes first."""
        transformer = self._algorithm.data_transformer
        observe = transformer.observe if transformer.has_statistics else None
        with ranks.alone():  # all have the same recorded steps
            self.offline.add(buffer, observe, is_named=is_named)
        self.batches.note_sources()

    @property
    def num_recorded_sources(self) -> int:
        """How many offline buffers there are."""
        return len(self.offline)

    # State

    def state_dict(self) -> dict[str, Any]:
        """All but the steps that are stored."""
        return {
            "collection": {
                "remainder": self._remainder / self._denominator,
                "limiter": {} if self.pace is None else self.pace.state_dict(),
            },
            "num_iterations": self._num_iterations,
            **self.offline.state_dict(),
            "replay": self.own.state_dict(),
            "monitor": self._monitor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned.

        Raises:
            CheckpointError: if the offline buffers are not those of then.
        """
        self.offline.load_state_dict(state)
        remainder = state["collection"]["remainder"]
        self._remainder = round(remainder * self._denominator)
        limiter = state["collection"]["limiter"]
        if self.pace is not None:
            self.pace.load_state_dict(limiter)
        self._num_iterations = state["num_iterations"]
        self.own.load_state_dict(state["replay"])
        self._monitor.load_state_dict(state["monitor"])

    def load_files(self, files: Mapping[str, Path]) -> None:
        """Restores what ``own.files`` returned: name -> where it is."""
        self.batches.forget_returns()
        self.own.load_files(files)
