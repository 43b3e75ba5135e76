"""Updates as CUDA graphs: a whole gradient step is started by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.critics import UpdateCounter
from alf_lite.data_structures import BatchInfo, LossInfo
from alf_lite.errors import ConfigError
from alf_lite.utils.device_graphs import CapturedFunction, check_captures
from alf_lite.utils.interruption import interruption
from alf_lite.utils.ranks import ranks
from alf_lite.utils.schedulers import Schedule, find_schedules, scheduled

Nest = Any
# The batches of an update, of which some are absent → what was computed of the others
UpdateFunction = Callable[
    [Sequence[TrainingBatch | None]], Sequence[tuple[LossInfo, Nest]]
]


class CapturedUpdate:
    """Makes updates by graphs that were captured: ``TrainerConfig.cuda_graphs``.

    A graph holds the loss, its gradient, the look whether they are finite and the steps
    of the optimizers. What comes after an update, such as moving targets, is done as
    without graphs. A graph repeats what attributes in Python were when it was captured,
    but for what optimizers are told: another one is captured for that.

    Args:
        algorithm: the root of the run.
        update: makes an update and neither records nor reads anything.

    Raises:
        ConfigError: if the device has no graphs, or the updates of the algorithm cannot
            be captured.
    """

    def __init__(self, algorithm: Algorithm, update: UpdateFunction) -> None:
        check_captures(algorithm.device)
        reason = _why_not(algorithm)
        if reason:
            raise ConfigError(
                f"TrainerConfig.cuda_graphs: updates of {algorithm.name} cannot be "
                f"captured: {reason}. Leave cuda_graphs out."
            )
        self._algorithm = algorithm
        self._update = update
        self._counters = [
            m for m in algorithm.modules() if isinstance(m, UpdateCounter)
        ]
        self._captured = CapturedFunction(
            self._run,
            f"an update of {algorithm.name}",
            variant=self._variant,
            schedules=lambda: schedules_of(algorithm),
        )
        self._has_checked_optimizers = False
        self._beginnings: list[int] = []  # of each optimizer

    @property
    def num_graphs(self) -> int:
        """How many were captured."""
        return self._captured.num_graphs

    def __call__(
        self, batches: Sequence[TrainingBatch | None]
    ) -> Sequence[tuple[LossInfo, Nest]]:
        """As ``update``; the result is overwritten by the next call."""
        if not self._has_checked_optimizers:
            self._check_optimizers()
            self._has_checked_optimizers = True
        beginnings = [o.num_beginnings for _, o in self._algorithm.optimizers()]
        if beginnings != self._beginnings:  # the graphs move forgotten moments
            self._captured.forget()
            self._beginnings = beginnings
        interruption.parameters_changed = True
        results = self._captured(tuple(map(_essentials, batches)))
        guard = self._algorithm.update_guard
        assert guard is not None, "there are no graphs on a CPU"
        guard.glance(self._algorithm.name)
        return results

    def _run(self, batches: Sequence[Nest]) -> Sequence[tuple[LossInfo, Nest]]:
        results = self._update([None if batch == () else batch for batch in batches])
        # The graph of autograd may go.
        return nest.map_structure(
            lambda t: t.detach() if isinstance(t, Tensor) else t, list(results)
        )

    def _variant(self) -> tuple[Any, ...]:
        """What Python decides: which parts are due, and what optimizers are told."""
        due = tuple(counter.is_due for counter in self._counters)
        fixed = tuple(o.fixed_by_capture for _, o in self._algorithm.optimizers())
        return due, fixed

    def _check_optimizers(self) -> None:
        for name, optimizer in self._algorithm.optimizers():
            if not optimizer.can_be_captured:
                raise ConfigError(
                    f"TrainerConfig.cuda_graphs: steps of {type(optimizer).__name__}, "
                    f"the optimizer of {name}, cannot be captured, those of Adam and "
                    "AdamW can, without parameter_options. Take one of these, or leave "
                    "cuda_graphs out."
                )


def schedules_of(algorithm: Algorithm) -> Iterator[Schedule]:
    """All schedules of an algorithm and of its optimizers."""
    for module in algorithm.modules():
        yield from find_schedules(vars(module).values())
    yield from find_schedules([optimizer for _, optimizer in algorithm.optimizers()])


def _why_not(algorithm: Any) -> str:
    """Why this algorithm cannot act and be updated by graphs; "" if it can."""
    if ranks.size > 1:
        return "ranks average their gradients"
    if algorithm.config.gradient_accumulation > 1:
        return "gradient_accumulation cuts their batches into parts"
    if algorithm.on_policy and algorithm.unrolls_with_grad:
        return "they reach back into rollout_step"
    if any(
        not isinstance(schedule, Schedule)
        for module in algorithm.modules()
        for schedule in scheduled(module).values()
    ):
        return "a coefficient is a function, which a graph cannot ask, and no Scheduler"
    if any(
        getattr(part, "draws_on_host", False)
        for module in algorithm.modules()
        for part in vars(module).values()
    ):
        return "its search draws random numbers on the host"
    if not algorithm.is_temporally_independent:
        return "a network with memory asks where episodes begin"
    return ""


def _essentials(batch: TrainingBatch | None) -> Nest:
    """What a loss is computed from, once each."""
    if batch is None:
        return ()
    weights = batch.batch_info.importance_weights
    return batch._replace(flat=(), batch_info=BatchInfo(importance_weights=weights))
