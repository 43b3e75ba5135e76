"""Values that change in the course of training: learning rates, ε, loss weights.

A scheduler is called without arguments and returns a float. It is a pure function of
the training progress: two calls at the same progress return the same, whatever
happened in between. So it has nothing to save, may be shared by runs, and follows when
progress jumps, as it does when a run is resumed with more iterations and 100 percent
become 50.

The progress is that of the run whose algorithm holds the schedule: what stores a number
or a scheduler passes it through :func:`as_scheduler`, and the root algorithm has all of
these follow its progress, which ``train_iter`` moves. A ``progress_type`` names one of
its counters: "percent" in [0, 1], "iterations", "env_steps" or "global_counter".
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import inspect
import itertools
import math
import numbers
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Annotated, Any

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.config.values import as_number
from alf_lite.utils.progress import FollowsProgress, Progress, followers

_PROGRESS_TYPES = ("percent", "iterations", "env_steps", "global_counter")
_progress_of_point = itemgetter(0)


class Scheduler(abc.ABC):
    """A function of the training progress."""

    progress_type: str

    def __call__(self) -> float:
        """Refused: of itself, a scheduler does not know of any run."""
        raise RuntimeError(
            f"{self!r} belongs to no run. Store as_scheduler(...) of it in the "
            "algorithm, whose progress that follows, or ask for value_at(x)."
        )

    @abc.abstractmethod
    def value_at(self, x: float) -> float:
        """The value when the counter is at ``x``."""

    def extremes(self) -> tuple[float, ...]:
        """Values between which all others lie, as far as the type tells.

        Where it tells nothing, the value at the start.
        """
        return (self.value_at(0),)

    def _check(self, condition: bool, message: str) -> None:
        if not condition:
            raise ValueError(f"{type(self).__name__}: {message}")

    def _check_progress_type(self) -> None:
        self._check(
            self.progress_type in _PROGRESS_TYPES,
            f"progress_type must be one of {', '.join(_PROGRESS_TYPES)}, "
            f"got {self.progress_type!r}",
        )

    def _check_finite(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            self._check(
                _is_finite_number(value), f"{name} must be a number, got {value!r}"
            )


class _ScheduleScheduler(Scheduler):
    """Base of those that are given by a list of points."""

    schedule: Sequence[tuple[float, float]]

    def __post_init__(self) -> None:
        self._check_progress_type()
        self._check(
            isinstance(self.schedule, Sequence) and not isinstance(self.schedule, str),
            "schedule must be points (progress, value), as ((0.0, 0.1), (1.0, 0.0)), "
            f"got {self.schedule!r}. A value that stays needs no scheduler: give the "
            "number itself.",
        )
        self._check(len(self.schedule) > 0, "schedule is empty")
        for i, point in enumerate(self.schedule):
            self._check(
                isinstance(point, tuple | list)
                and len(point) == 2
                and all(map(_is_finite_number, point)),
                f"schedule[{i}] must be a pair of numbers (progress, value), "
                f"got {point!r}",
            )
        xs = [x for x, _ in self.schedule]
        self._check(
            all(a < b for a, b in itertools.pairwise(xs)),
            f"the progress of a schedule must rise from point to point, got {xs}",
        )
        upper = 1 if self.progress_type == "percent" else math.inf
        self._check(
            xs[0] >= 0 and xs[-1] <= upper,
            f"the progress of a schedule over {self.progress_type!r} must lie in "
            f"[0, {upper}], got {xs}",
        )

    def extremes(self) -> tuple[float, ...]:
        return tuple(value for _, value in self.schedule)


@dataclasses.dataclass(frozen=True)
class ConstantScheduler(Scheduler):
    """The same value always. In a conf, the number itself is enough."""

    value: float

    def __post_init__(self) -> None:
        self._check_finite("value")

    def __call__(self) -> float:
        return self.value

    def value_at(self, x: float) -> float:
        return self.value


@configurable
@dataclasses.dataclass(frozen=True)
class StepScheduler(_ScheduleScheduler):
    """Constant between jumps.

    Args:
        schedule: (progress, value) pairs in rising order: ``value`` holds as long as
            the counter is below ``progress``. The last value holds for ever.
        progress_type: see the top of this module.
    """

    schedule: Sequence[tuple[float, float]]
    progress_type: str = "percent"

    def value_at(self, x: float) -> float:
        index = bisect_right(self.schedule, x, key=_progress_of_point)
        return self.schedule[min(index, len(self.schedule) - 1)][1]


@configurable
@dataclasses.dataclass(frozen=True)
class LinearScheduler(_ScheduleScheduler):
    """Straight lines between points, constant before the first and after the last.

    Args:
        schedule: (progress, value) points in rising order of progress.
        progress_type: see the top of this module.
    """

    schedule: Sequence[tuple[float, float]]
    progress_type: str = "percent"

    def value_at(self, x: float) -> float:
        index = bisect_right(self.schedule, x, key=_progress_of_point)
        if index == 0 or index == len(self.schedule):
            return self.schedule[max(index - 1, 0)][1]
        (x0, value0), (x1, value1) = self.schedule[index - 1 : index + 1]
        fraction = (x - x0) / (x1 - x0)
        return (1 - fraction) * value0 + fraction * value1


@configurable
@dataclasses.dataclass(frozen=True)
class ExponentialScheduler(Scheduler):
    """Approaches ``end_value``: end + (initial − end) · decay_rate^(x / decay_time).

    Args:
        initial_value: at progress 0.
        decay_time: progress after which ``decay_rate`` of the distance is left.
        decay_rate: in (0, 1]; 1/e by default.
        end_value: what the value decays to.
        progress_type: see the top of this module.
    """

    initial_value: float
    decay_time: float
    decay_rate: float = math.exp(-1)
    end_value: float = 0.0
    progress_type: str = "percent"

    def __post_init__(self) -> None:
        self._check_progress_type()
        self._check_finite("initial_value", "decay_time", "decay_rate", "end_value")
        self._check(
            self.decay_time > 0, f"decay_time must be positive, got {self.decay_time}"
        )
        self._check(
            0 < self.decay_rate <= 1,
            f"decay_rate must lie in (0, 1], got {self.decay_rate}",
        )

    def value_at(self, x: float) -> float:
        left = self.decay_rate ** (x / self.decay_time)
        return self.end_value + (self.initial_value - self.end_value) * left

    def extremes(self) -> tuple[float, ...]:
        if self.progress_type == "percent" or self.decay_rate == 1:
            return self.initial_value, self.value_at(1)
        # It comes as near to its end as one likes, and never there.
        return self.initial_value, math.nextafter(self.end_value, self.initial_value)


@configurable
@dataclasses.dataclass(frozen=True)
class CyclicalScheduler(Scheduler):
    """Goes from ``base_value`` to ``bound_value`` and back, again and again.

    Args:
        base_value: at progress 0 and after every full cycle.
        bound_value: after every half cycle.
        half_cycle_size: progress from one to the other.
        shape: "linear", "cosine" (flat at both values), or "step" (half a cycle each).
        progress_type: see the top of this module.
    """

    base_value: float
    bound_value: float
    half_cycle_size: float
    shape: str = "linear"
    progress_type: str = "percent"

    def __post_init__(self) -> None:
        self._check_progress_type()
        self._check_finite("base_value", "bound_value", "half_cycle_size")
        self._check(
            self.half_cycle_size > 0,
            f"half_cycle_size must be positive, got {self.half_cycle_size}",
        )
        self._check(
            self.shape in ("linear", "cosine", "step"),
            f"shape must be 'linear', 'cosine' or 'step', got {self.shape!r}",
        )

    def value_at(self, x: float) -> float:
        phase = x / self.half_cycle_size % 2  # 0 … 1 to the bound, 1 … 2 back
        if self.shape == "step":
            fraction = float(phase >= 1)
        elif self.shape == "cosine":
            fraction = 0.5 * (1 - math.cos(math.pi * phase))
        else:
            fraction = 1 - abs(1 - phase)
        return (1 - fraction) * self.base_value + fraction * self.bound_value

    def extremes(self) -> tuple[float, ...]:
        return self.base_value, self.bound_value


class Schedule(FollowsProgress):
    """The value of a scheduler at the progress of one run.

    Args:
        scheduler: may be that of other schedules, too.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._progress: Progress | None = None
        self._last = (math.nan, math.nan)

    def follow(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self) -> float:
        """The value now; [] float32 on a GPU, while what asks for it is captured."""
        if self._progress is None:
            raise RuntimeError(
                f"{self.scheduler!r} follows the progress of no run yet. An algorithm "
                "has its attributes and those of its modules follow its own when it "
                "is built; elsewhere call follow(progress)."
            )
        if _tensors is not None:
            captured: Any = _tensors.of(self)
            return captured
        return self.value()

    def value(self) -> float:
        """The value now, whoever asks."""
        x = getattr(self._progress, self.scheduler.progress_type)
        # Some are asked at every step, while progress is made once per iteration.
        if self._last[0] != x:
            self._last = (x, float(self.scheduler.value_at(x)))
        return self._last[1]

    def __repr__(self) -> str:
        return repr(self.scheduler)


class ScheduleTensors:
    """The values of schedules on a device, for operations that are repeated there.

    Args:
        schedules: all that may be asked for.
        device: where the values are.
    """

    def __init__(self, schedules: Iterable[Schedule], device: torch.device) -> None:
        self._filled: dict[int, tuple[Schedule, Tensor, float]] = {}
        for schedule in schedules:
            value = schedule.value()
            with torch.inference_mode(False):
                tensor = torch.full((), value, device=device)
            self._filled[id(schedule)] = schedule, tensor, value

    def of(self, schedule: Schedule) -> Tensor:
        """[], filled with the value of the schedule, now and by :meth:`refresh`."""
        return self._filled[id(schedule)][1]

    def refresh(self) -> None:
        """Fills the tensors with what the schedules say now."""
        for key, (schedule, tensor, last) in self._filled.items():
            value = schedule.value()
            if value != last:
                tensor.fill_(value)
                self._filled[key] = schedule, tensor, value


# Of what is captured now, if anything is.
_tensors: ScheduleTensors | None = None


@contextlib.contextmanager
def schedules_as_tensors(tensors: ScheduleTensors) -> Iterator[None]:
    """In it, schedules are tensors on a device."""
    global _tensors
    _tensors = tensors
    try:
        yield
    finally:
        _tensors = None


def find_schedules(values: Iterable[Any]) -> Iterator[Schedule]:
    """Those that ``follow_progress`` reaches."""
    for value in followers(values):
        if isinstance(value, Schedule):
            yield value
        else:
            yield from find_schedules(vars(value).values())


def value_at_start(value: Callable[[], float]) -> float:
    """Of what :func:`as_scheduler` returned, the value before the first iteration."""
    if isinstance(value, Schedule):
        return float(value.scheduler.value_at(0))
    return float(value())


def extreme_values(value: Callable[[], float]) -> tuple[float, ...]:
    """Of what :func:`as_scheduler` returned, those that a range has to hold.

    All values lie between them, as far as the scheduler tells. Another function is
    asked for the value now.
    """
    if isinstance(value, Schedule):
        return value.scheduler.extremes()
    return (float(value()),)


# A number, the (percent, value) points of a LinearScheduler, or any scheduler.
Scheduled = Annotated[
    float | Sequence[tuple[float, float]] | Callable[[], float],
    "a number or a schedule",  # to users
]


def as_scheduler(value: Scheduled | Tensor) -> Callable[[], float]:
    """A number as a constant, a scheduler as a schedule, another function as it is.

    Points are those of a linear one over the run: ``((0.0, 0.001), (1.0, 0.0))``.

    Raises:
        ValueError: if the number is not finite.
        TypeError: if ``value`` is neither.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        value = float(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return ConstantScheduler(float(value))
    if isinstance(value, list | tuple) and any(_is_point(point) for point in value):
        return Schedule(_linear(value))
    if isinstance(value, type) or not callable(value):
        raise TypeError(
            f"expected a number or a scheduler, got {value!r}. In a conf, a scheduler "
            "is written @LinearScheduler(), with parentheses."
        )
    if isinstance(value, Scheduler) and not isinstance(value, ConstantScheduler):
        return Schedule(value)
    _check_asks_for_nothing(value)
    return value


class Coefficient:
    """An attribute that is a number: the one that was given, or a schedule's of now.

    The constructor gives it by :func:`set_coefficients`, in a class whose attributes
    follow the progress of a run. Reading a constant costs what reading any attribute
    does: it is one, and Python asks here only where there is none.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        schedule = scheduled(instance).get(self._name)
        if schedule is None:
            raise AttributeError(f"{type(instance).__name__} has no {self._name!r} yet")
        return schedule()

    def given(self, instance: Any) -> Any:
        """The number, or the schedule, to be handed on."""
        return scheduled(instance).get(self._name) or vars(instance)[self._name]


def scheduled(instance: Any) -> Mapping[str, Callable[[], float]]:
    """The coefficients of ``instance`` that change, by the names of attributes."""
    return vars(instance).get("_scheduled", {})


def set_coefficients(instance: Any, **values: Scheduled | None) -> None:
    """Gives each :class:`Coefficient` of ``instance`` its value.

    Raises:
        ValueError: if a number is not finite.
        TypeError: if one is neither a number nor a scheduler, nor None.
    """
    for name, value in values.items():
        schedule = None if value is None else as_scheduler(value)
        if schedule is None or isinstance(schedule, ConstantScheduler):
            # One of numpy's would decide the type of what it is multiplied by.
            vars(instance)[name] = as_number(value)
        else:
            vars(instance).setdefault("_scheduled", {})[name] = schedule


def is_zero(coefficient: Any) -> bool:
    """Whether it is 0, so that what it multiplies may be left out.

    A tensor, into which a schedule is filled while operations are repeated, may become
    another number.
    """
    return not isinstance(coefficient, Tensor) and not coefficient


def initial_value(instance: Any, name: str) -> Any:
    """That of a coefficient at the start of a run, wherever this one is now."""
    schedule = scheduled(instance).get(name)
    return getattr(instance, name) if schedule is None else value_at_start(schedule)


def _check_asks_for_nothing(function: Callable[..., Any]) -> None:
    """Raises TypeError if it needs arguments, as schedules of other libraries do."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(
            f"{function!r}: a function that gives a value is called without arguments: "
            f"{error}. Give points over the run, ((0.0, 0.001), (1.0, 0.0)), or a "
            "scheduler."
        ) from None


def _linear(points: Sequence[tuple[float, float]]) -> LinearScheduler:
    """Without a configurable call, whose errors name the conf's ``LinearScheduler``."""
    scheduler = object.__new__(LinearScheduler)
    vars(scheduler).update(schedule=points, progress_type="percent")
    scheduler.__post_init__()
    return scheduler


def _is_point(value: object) -> bool:
    return isinstance(value, list | tuple)


def _is_finite_number(value: object) -> bool:
    return (
        isinstance(value, numbers.Real)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )
