"""Schedulers are pure functions of progress with known values."""

from __future__ import annotations

import math

import gin
import numpy as np
import pytest
import torch

from alf_lite.config.errors import called_configurables
from alf_lite.utils.progress import Progress
from alf_lite.utils.schedulers import (
    Coefficient,
    ConstantScheduler,
    CyclicalScheduler,
    ExponentialScheduler,
    LinearScheduler,
    StepScheduler,
    as_scheduler,
    extreme_values,
    set_coefficients,
    value_at_start,
)


def followed(scheduler):
    """The schedule of a run of its own, and the progress of that."""
    schedule, progress = as_scheduler(scheduler), Progress()
    schedule.follow(progress)
    return schedule, progress


DECAY = ExponentialScheduler(
    0.95, decay_time=10_000, end_value=0.1, progress_type="env_steps"
)


@pytest.mark.parametrize(
    ("scheduler", "values"),
    [
        (
            LinearScheduler([(0, 1.0), (10_000, 0.05)], "env_steps"),
            {0: 1.0, 2500: 0.7625, 5000: 0.525, 10_000: 0.05, 10**9: 0.05},
        ),
        (
            LinearScheduler([(0.2, 2.0), (0.4, 4.0), (0.8, 0.0)]),
            {0.0: 2.0, 0.2: 2.0, 0.3: 3.0, 0.4: 4.0, 0.6: 2.0, 0.8: 0.0, 1.0: 0},
        ),
        (DECAY, {0: 0.95, 1e3: 0.869112, 1e4: 0.412698, 1e5: 0.100039, 1e9: 0.1}),
        (
            ExponentialScheduler(8.0, decay_time=3, decay_rate=0.5),
            {0: 8, 3: 4, 6: 2, 9: 1},
        ),
        (
            StepScheduler([(0.5, 3.0), (1.0, 2.0)]),
            {0.0: 3.0, 0.49: 3.0, 0.5: 2.0, 0.99: 2.0, 1.0: 2.0},
        ),
        (CyclicalScheduler(1, 3, 10), {0: 1, 5: 2, 10: 3, 15: 2, 20: 1, 25: 2}),
        (CyclicalScheduler(1, 3, 10, "step"), {0: 1, 5: 1, 10: 3, 15: 3, 20: 1}),
        (
            CyclicalScheduler(1, 3, 10, "cosine"),
            {
                0: 1,
                0.1: 2 - math.cos(0.01 * math.pi),
                2.5: 2 - math.sqrt(0.5),
                5: 2,
                10: 3,
                15: 2,
            },
        ),
    ],
)
def test_values_are_known_and_depend_on_progress_only(scheduler, values):
    for points in (values, reversed(values)):
        for x in points:
            assert scheduler.value_at(x) == pytest.approx(values[x], abs=1e-6)


@pytest.mark.parametrize(
    "counter", ["percent", "iterations", "env_steps", "global_counter"]
)
def test_each_progress_type_reads_its_own_counter(counter):
    scheduler = LinearScheduler([(0, 0.0), (1, 1.0)], progress_type=counter)
    schedule, progress = followed(scheduler)
    assert schedule() == 0.0
    setattr(progress, counter, 1)
    assert schedule() == 1.0


def test_numbers_and_functions_become_schedulers():
    assert as_scheduler(3)() == 3.0
    points = [(0.0, 1.0), (1.0, 0.0)]
    assert as_scheduler(points).scheduler == LinearScheduler(points)
    assert as_scheduler(torch.tensor(0.5))() == 0.5
    scheduler = ConstantScheduler(1.0)
    assert as_scheduler(scheduler) is scheduler
    assert as_scheduler(lambda: 7.0)() == 7.0


def test_numbers_of_numpy_are_numbers():
    assert as_scheduler(np.float32(0.5))() == 0.5
    points = as_scheduler(((0.0, np.float32(1.0)), (np.float64(1.0), 0.0)))
    assert value_at_start(points) == 1.0

    class Learner:
        rate = Coefficient()

    learner = Learner()
    set_coefficients(learner, rate=np.float32(0.25))
    assert type(learner.rate) is float
    assert learner.rate == 0.25


def test_a_function_of_the_progress_is_refused_with_what_to_write():
    with pytest.raises(TypeError, match=r"without arguments.*'left'.* Give points"):
        as_scheduler(lambda left: 0.1 * left)


def test_wrong_points_are_not_blamed_on_the_schedulers_of_the_conf():
    try:
        gin.parse_config("LinearScheduler.schedule = [(0, 1.0), (1, 0.0)]")
        with pytest.raises(ValueError, match="must lie in") as error:
            as_scheduler(((0.0, 1.0), (100.0, 0.0)))
    finally:
        gin.clear_config()
    assert not called_configurables(error.value)


def test_a_scheduler_is_shared_by_runs_that_do_not_disturb_each_other():
    scheduler = LinearScheduler([(0.0, 1.0), (1.0, 0.0)])
    (first, progress), (second, _) = followed(scheduler), followed(scheduler)
    progress.percent = 0.25
    assert (first(), second()) == (0.75, 1.0)


@pytest.mark.parametrize(
    ("scheduled", "low", "high"),
    [
        (0.5, 0.5, 0.5),
        (((0.0, 0.5), (0.5, 3.0), (1.0, 0.1)), 0.1, 3.0),
        (StepScheduler([(0.5, 2.0), (1.0, -1.0)]), -1.0, 2.0),
        (CyclicalScheduler(1.0, 4.0, 0.25), 1.0, 4.0),
        (ExponentialScheduler(8.0, 0.5, decay_rate=0.5), 2.0, 8.0),
        (ExponentialScheduler(8.0, 5, decay_rate=1.0), 8.0, 8.0),
    ],
)
def test_all_values_lie_between_the_extreme_ones(scheduled, low, high):
    schedule = as_scheduler(scheduled)
    values = extreme_values(schedule)
    assert (min(values), max(values)) == (low, high)
    if not isinstance(schedule, ConstantScheduler):
        for percent in (0.0, 0.1, 0.25, 0.4, 0.5, 0.9, 1.0):
            assert low <= schedule.scheduler.value_at(percent) <= high


def test_a_decay_comes_near_to_its_end_and_never_there():
    decay = ExponentialScheduler(0.5, 100, progress_type="iterations")
    low, high = sorted(extreme_values(as_scheduler(decay)))
    assert high == 0.5
    assert 0 < low < 1e-300
    rise = ExponentialScheduler(0.5, 100, end_value=3.0, progress_type="iterations")
    assert max(extreme_values(as_scheduler(rise))) == pytest.approx(3.0)


def test_without_a_run_there_is_no_value_now():
    scheduler = LinearScheduler([(0.0, 1.0), (1.0, 0.0)])
    assert value_at_start(as_scheduler(scheduler)) == 1.0
    with pytest.raises(RuntimeError, match="follows the progress of no run yet"):
        as_scheduler(scheduler)()
    with pytest.raises(RuntimeError, match=r"Store as_scheduler\(...\) of it"):
        scheduler()


@pytest.mark.parametrize("value", [None, "1e-3", True, LinearScheduler, [0.1]])
def test_other_values_are_refused(value):
    with pytest.raises(TypeError, match="expected a number or a scheduler"):
        as_scheduler(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearScheduler([]), "schedule is empty"),
        (lambda: LinearScheduler(0.5), r"must be points .*, got 0\.5\. A value that"),
        (lambda: StepScheduler("0.5"), r"must be points .*, got '0\.5'"),
        (lambda: StepScheduler(None), r"must be points .*, got None"),
        (lambda: LinearScheduler([(0, 1), 2]), r"schedule\[1\] must be a pair .*got 2"),
        (lambda: LinearScheduler([(0, math.nan)]), r"schedule\[0\]"),
        (lambda: LinearScheduler([(0, "1e-3")]), "got .0, '1e-3'."),
        (lambda: LinearScheduler([(0.5, 1), (0.5, 2)]), r"must rise .*\[0.5, 0.5\]"),
        (lambda: StepScheduler([(0, 1), (1000, 2)]), r"in \[0, 1\], got \[0, 1000\]"),
        (lambda: StepScheduler([(-1, 1)], "iterations"), r"in \[0, inf\], got \[-1\]"),
        (lambda: LinearScheduler([(0, 1)], "steps"), "must be one of percent, .*steps"),
        (lambda: ExponentialScheduler(1.0, 0.0), "decay_time must be positive, got 0"),
        (lambda: ExponentialScheduler(1.0, 1.0, 1.5), "decay_rate .*got 1.5"),
        (lambda: ExponentialScheduler(math.inf, 1.0), "initial_value .*got inf"),
        (lambda: CyclicalScheduler(0, 1, -1), "half_cycle_size must be positive"),
        (lambda: CyclicalScheduler(0, 1, 1, "sine"), "shape .*got 'sine'"),
        (lambda: ConstantScheduler(math.nan), "value must be a number, got nan"),
    ],
)
def test_bad_parameters_are_errors_with_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_confs_configure_schedulers():
    try:
        gin.parse_config(
            """
            LinearScheduler.schedule = [(0, 3e-4), (1, 0.0)]
            CyclicalScheduler.shape = "step"
            """
        )
        assert LinearScheduler().value_at(0.5) == pytest.approx(1.5e-4)
        assert CyclicalScheduler(0, 1, 2).shape == "step"
    finally:
        gin.clear_config()


def test_the_value_follows_progress_in_both_directions():
    scheduler = LinearScheduler(((0.0, 1.0), (1.0, 0.0)))
    schedule, progress = followed(scheduler)
    for percent in (0.0, 0.5, 0.5, 0.25, 1.0, 0.0):
        progress.percent = percent
        assert schedule() == pytest.approx(1.0 - percent)
    assert scheduler == LinearScheduler(((0.0, 1.0), (1.0, 0.0)))
