"""Lets an algorithm act, in this process or in others, and shows all what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.acting_state import ActingState
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, Experience, TimeStep
from alf_lite.data_transformers.data_transformer import DataTransformer
from alf_lite.environments.environment import Environment
from alf_lite.environments.worker_environments import RemoteEnvironment
from alf_lite.metrics.metrics import MetricSet
from alf_lite.unrollers.async_unroller import AsyncUnroller
from alf_lite.unrollers.sync_unroller import SyncUnroller
from alf_lite.unrollers.unroll import Policy, Unroll, UnrollJoiner
from alf_lite.utils import summary
from alf_lite.utils.interruption import interruption

Nest = Any


class UnrolledAlgorithm(Policy, Protocol):
    """The part of ``RLAlgorithm`` that is used here; its docstrings are there."""

    data_transformer: DataTransformer
    overwrite_policy_output: bool

    @property
    def on_policy(self) -> bool: ...

    @property
    def unrolls_with_grad(self) -> bool: ...

    @property
    def acts_randomly(self) -> bool: ...

    def acting_state(self) -> ActingState: ...


class Unrolling:
    """The unroller of a training run and those who look at what it collects.

    Args:
        algorithm: acts.
        config: of the run.
        env: to act in; a ``RemoteEnvironment`` is stepped by unroll workers.
        act: the algorithm's ``rollout_step`` as it shall be called in this process.
        metrics: observe the untransformed steps.
        store: puts an unroll into the replay buffer; None on-policy.
    """

    def __init__(
        self,
        algorithm: UnrolledAlgorithm,
        config: TrainerConfig,
        env: Environment,
        *,
        act: Callable[[TimeStep, Nest], AlgStep],
        metrics: MetricSet,
        store: Callable[[Unroll], None] | None,
    ) -> None:
        self._algorithm = algorithm
        self._metrics = metrics
        self._store = store
        self._joiner = UnrollJoiner()
        self._in_workers: AsyncUnroller | None = None
        self._here: SyncUnroller | None = None
        if isinstance(env, RemoteEnvironment):
            self._in_workers = AsyncUnroller(
                config,
                env,
                algorithm.acting_state().capture,
                on_policy=algorithm.on_policy,
            )
        else:
            self._here = SyncUnroller(
                env,
                algorithm,
                rollout_step=act,
                with_grad=algorithm.unrolls_with_grad,
                overwrite_policy_output=algorithm.overwrite_policy_output,
            )

    def reset(self, seed: int | None = None) -> bool:
        """Starts new episodes everywhere, or the workers.

        Returns:
            False if nothing was done: workers that run are not disturbed.
        """
        if self._here is not None:
            self._here.reset(seed)
            return True
        assert self._in_workers is not None
        if self._in_workers.is_started:
            return False
        self._in_workers.reset(seed)
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on; nothing where it begins anew."""
        return {} if self._here is None else self._here.state_dict()

    def resume(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        """Continues where ``state_dict`` was taken; see ``SyncUnroller``."""
        assert self._here is not None, "workers have no state"
        return self._here.load_state_dict(state, seed)

    @property
    def has_workers(self) -> bool:
        return self._in_workers is not None

    def unroll(self, length: int) -> Experience:
        """See ``RLAlgorithm.unroll``."""
        if self._here is not None:
            with interruption.harmless():
                unroll = self._here.unroll(length, bootstrap=self._algorithm.on_policy)
            return self._show([unroll])
        assert self._in_workers is not None
        with interruption.harmless():
            unrolls = self._in_workers.unroll(length)
        return self._show(unrolls)

    def unroll_what_is_there(self, at_least: int, at_most: int) -> Experience | None:
        """See ``RLAlgorithm.unroll_what_is_there``."""
        assert self._in_workers is not None, "checked by TrainerConfig"
        with interruption.harmless():
            unrolls = self._in_workers.collect(at_least, at_most)
        return self._show(unrolls) if unrolls else None

    def close(self) -> None:
        """Ends the workers, if there are some; may be called more than once."""
        if self._in_workers is not None:
            self._in_workers.close()

    def _show(self, unrolls: list[Unroll]) -> Experience:
        """Gives the unrolls, in their order, to all who want to see them."""
        for unroll in unrolls:
            # Row 0 was the last row of the previous unroll, except after a reset.
            first_row = 0 if unroll.is_first_unroll else 1
            if unroll.new_columns:
                self._observe(_first_steps(unroll, list(unroll.new_columns)))
            self._observe(nest.narrow(unroll.time_steps, first_row, None))
            if self._store is not None:
                self._store(unroll)
        seconds = sum(unroll.env_step_seconds for unroll in unrolls)
        summary.scalar("time/unroll_env_step", seconds)
        return self._joiner.join(unrolls)

    def _observe(self, new_steps: TimeStep) -> None:
        if self._algorithm.unrolls_with_grad:
            new_steps = nest.map_structure(Tensor.detach, new_steps)
        self._metrics.observe(new_steps)
        self._algorithm.data_transformer.observe(new_steps)


def _first_steps(unroll: Unroll, columns: list[int]) -> TimeStep:
    """Row 0 of some columns, [1, len(columns), ...]."""
    return nest.map_structure(lambda t: t[:1, columns], unroll.time_steps)
