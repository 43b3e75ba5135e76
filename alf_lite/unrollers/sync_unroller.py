"""Collects experience from one batched environment in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import AlgStep, Experience, TimeStep
from alf_lite.environments.environment import Environment, StepRow
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.unrollers.staged_rows import StagedRows
from alf_lite.unrollers.unroll import (
    ActingPolicy,
    PreallocatedRows,
    RowsWithGradient,
    Unroll,
)
from alf_lite.utils.tensor_utils import reset_state

Nest = Any
UnrollRows = PreallocatedRows | RowsWithGradient


class SyncUnroller:
    """Steps ``policy`` and ``env`` in turn, in the calling process.

    Args:
        env: the batched environment; closed by its owner.
        policy: acts, under inference mode unless ``with_grad``, so that no autograd
            bookkeeping is done.
        rollout_step: the policy's, perhaps compiled.
        with_grad: keep the graph of ``rollout_step`` for a later backward pass.
    """

    def __init__(
        self,
        env: Environment,
        policy: ActingPolicy,
        *,
        rollout_step: Callable[[TimeStep, Nest], AlgStep] | None = None,
        with_grad: bool = False,
    ) -> None:
        self._env = env
        self._policy = policy
        self._rollout_step = rollout_step or policy.rollout_step
        self._with_grad = with_grad
        self._rows: UnrollRows | None = None
        self._time_step: Any = None  # TimeStep, after reset
        self._is_fresh = True
        self._new_columns: tuple[int, ...] = ()  # see Unroll
        self._is_unrolling = False  # or has failed while it was
        # Zeros for all environments, once they are asked for; () if there is none.
        self._initial_states: tuple[Nest, Nest] | None = None
        self._has_policy_state = self._has_transform_state = True
        self._policy_state: Nest = ()
        self._transform_state: Nest = ()

    def reset(self, seed: int | None = None) -> None:
        """Starts new episodes in all environments, with zero recurrent states."""
        with torch.inference_mode(not self._with_grad):
            self._time_step = self._env.reset(seed)
            self._policy_state, self._transform_state = self._zeros()
        self._is_fresh, self._new_columns = True, ()
        self._is_unrolling = False

    def unroll(
        self, length: int, bootstrap: bool, rows: UnrollRows | None = None
    ) -> Unroll:
        """Collects ``length`` steps of every environment.

        Args:
            length: T, the number of environment steps.
            bootstrap: whether the experience ends with one more row for the step that
                the last action led to. The next unroll starts with that step again.
            rows: where to keep them; None means the unroller's own memory.

        Raises:
            ConfigError: if the environment was reset or stepped by somebody else.
        """
        if self._time_step is None:
            self.reset()
        if self._env.current_time_step is not self._time_step:
            self._refuse_company()
        is_first_unroll, self._is_fresh = self._is_fresh, False
        new_columns, self._new_columns = self._new_columns, ()
        self._is_unrolling = True
        num_restarts = self._env.num_restarts
        if rows is None:
            rows = self._rows = self._rows or self._make_rows()
        with torch.inference_mode(not self._with_grad):
            env_seconds = self._run(length, bootstrap, rows)
            # Without a bootstrap row, nobody acted on the last step yet.
            time_steps, experience = rows.end(None if bootstrap else self._time_step)
        self._is_unrolling = False
        return Unroll(
            experience,
            time_steps,
            env_seconds,
            is_first_unroll,
            new_columns=() if is_first_unroll else new_columns,
            kept_rows=rows.read_time_steps,
            taken_steps=rows.read_taken(length + 1) if rows.moves else (),
            may_have_restarts=self._env.num_restarts != num_restarts,
        )

    def _refuse_company(self) -> NoReturn:
        """After a step of somebody else, what comes next does not follow from ours."""
        raise ConfigError(
            f"the environment {self._env.name} was reset or stepped by another "
            "algorithm or by an evaluation. Give each one of its own: "
            "alf_lite.create_environment(...)"
        )

    def _make_rows(self) -> UnrollRows:
        device = self._policy.device
        moves = self._time_step.reward.device != device
        if self._with_grad:
            return RowsWithGradient(device, moves)
        return StagedRows(device) if moves else PreallocatedRows()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on from the last step, as plain data.

        Returns:
            Nothing if there was no step yet, in the middle of an unroll that failed,
            and if the environment cannot be resumed.
        """
        if self._time_step is None or self._is_unrolling:
            return {}
        environment = self._env.episode_state()
        if environment is None:
            return {}
        return {
            "environment": environment,
            "is_fresh": self._is_fresh,
            "new_columns": list(self._new_columns),
            "policy_state": nest.flatten(self._policy_state),
            "transform_state": nest.flatten(self._transform_state),
        }

    def load_state_dict(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        """Continues where ``state_dict`` was taken; instead of :meth:`reset`.

        Args:
            state: not empty.
            seed: of new episodes where the open ones cannot be resumed.

        Returns:
            Where that is so: environment → reason.

        Raises:
            CheckpointError: if the state does not fit.
        """
        policy_state, transform_state = (
            _unpack(state[name], like, self._policy.device)
            for name, like in zip(
                ("policy_state", "transform_state"), self._zeros(), strict=True
            )
        )
        reasons = self._env.restore_episodes(state["environment"], seed)
        self._time_step = self._env.current_time_step
        self._policy_state, self._transform_state = policy_state, transform_state
        self._is_fresh = state["is_fresh"]
        self._new_columns = tuple(sorted({*state["new_columns"], *reasons}))
        return reasons

    def _run(self, length: int, bootstrap: bool, rows: UnrollRows) -> float:
        """Lets policy and environment act in turn.

        Returns:
            The seconds spent in the environment.
        """
        policy, env, act = self._policy, self._env, self._rollout_step
        transform, moves = policy.transform_timestep, rows.moves
        initial_state, _ = self._zeros()
        has_state = self._has_policy_state
        overwrites_action = policy.overwrite_policy_output
        env_seconds = 0.0
        next_step = self._time_step
        step_rows = self._begin(length, rows, next_step)
        if moves:
            next_step = rows.take(0, next_step)
        elif step_rows is not None:
            next_step = step_rows[0].time_step
        for t in range(length + bootstrap):
            time_step, state = next_step, self._policy_state
            if has_state:
                state = reset_state(state, initial_state, time_step.is_first())
            inputs, transform_state = transform(time_step, self._transform_state)
            step = act(inputs, state)
            action = step.output
            if t < length:
                begin = time.perf_counter()
                if step_rows is not None:
                    next_step = env.step_into(action, step_rows[t + 1])
                else:
                    next_step = env.step(
                        _detached(action) if self._with_grad else action
                    )
                env_seconds += time.perf_counter() - begin
                self._time_step = next_step
                if moves:
                    next_step = rows.take(t + 1, next_step)
                self._policy_state = step.state
                self._transform_state = transform_state
                if overwrites_action:
                    action = next_step.prev_action
            seen = () if inputs is time_step else inputs
            rows.add(time_step, Experience(seen, action, step.info, state))
        if self._with_grad and has_state:
            # The next unroll has its own graph.
            self._policy_state = _detached(self._policy_state)
        return env_seconds

    def _begin(
        self, length: int, rows: UnrollRows, first_step: TimeStep
    ) -> Sequence[StepRow] | None:
        """Begins the rows; the states that go on shall not change when they do."""
        if not self._with_grad:
            if self._has_policy_state:
                self._policy_state = _cloned(self._policy_state)
            if self._has_transform_state:
                self._transform_state = _cloned(self._transform_state)
        return rows.begin(length, self._env, first_step)

    def _zeros(self) -> tuple[Nest, Nest]:
        """The initial states of policy and transformers, not to be changed."""
        if self._initial_states is None:
            policy, batch_size = self._policy, self._env.batch_size
            states = (
                policy.get_initial_rollout_state(batch_size),
                policy.get_initial_transform_state(batch_size),
            )
            self._initial_states = states
            self._has_policy_state = not nest.is_empty(states[0])
            self._has_transform_state = not nest.is_empty(states[1])
        return self._initial_states


def _unpack(leaves: Sequence[Tensor], like: Nest, device: torch.device) -> Nest:
    expected = nest.flatten(like)
    if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in expected]:
        raise CheckpointError(
            "the recurrent state of the policy or the state of the data transformers "
            f"was saved as {[tuple(x.shape) for x in leaves]}, now it is "
            f"{[tuple(x.shape) for x in expected]}"
        )
    return nest.pack_sequence_as(like, [leaf.to(device) for leaf in leaves])


def _cloned(values: Nest) -> Nest:
    """The same nest of tensors in memory of their own."""
    return nest.map_structure(torch.clone, values)


def _detached(values: Nest) -> Nest:
    """The same nest of tensors without gradient."""
    return nest.map_structure(torch.Tensor.detach, values)
