"""Tests of alf_lite.trainers.progress_display."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import types

import pytest

from alf_lite.trainers import progress_display, progress_measures
from alf_lite.trainers.progress_display import (
    ProgressBar,
    ProgressDisplay,
    ProgressLines,
    cells,
    choose_display,
    create_progress_display,
)
from alf_lite.trainers.progress_measures import (
    Measures,
    Status,
    TimeToGo,
    few_losses,
    format_seconds,
)

LOSSES = {
    "loss": 0.25,
    "policy_loss": -0.01,
    "value_loss": 1.0,
    "entropy": 0.6931,
    "approx_kl": 0.00321,
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (progress_display, progress_measures):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_terminal_gets_a_bar_and_everything_else_lines():
    assert isinstance(create_progress_display(Terminal()), ProgressBar)
    assert isinstance(create_progress_display(io.StringIO()), ProgressLines)


@pytest.mark.parametrize("terminal", ["stdout", "stderr"])
def test_a_program_of_ones_own_shows_progress_where_somebody_looks(
    monkeypatch, terminal
):
    assert type(choose_display(None)) is ProgressDisplay
    assert isinstance(choose_display(True), ProgressLines)
    monkeypatch.setattr(sys, terminal, Terminal())
    assert isinstance(choose_display(None), ProgressBar)
    assert type(choose_display(False)) is ProgressDisplay
    given = ProgressDisplay()
    assert choose_display(given) is given


def test_a_notebook_shows_progress_below_the_cell(monkeypatch):
    kernel = types.SimpleNamespace(initialized=lambda: True)
    modules = {"ipykernel": types.ModuleType("ipykernel")}
    modules["ipykernel.kernelapp"] = types.SimpleNamespace(IPKernelApp=kernel)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert isinstance(choose_display(None), ProgressLines)
    kernel.initialized = lambda: False  # a program that has merely imported it
    assert type(choose_display(None)) is ProgressDisplay


def test_line_tells_speed_return_and_time_to_go(clock):
    stream = io.StringIO()
    display = ProgressLines(stream)
    display.start(Status(0.5, 50, 5000, math.nan))  # resumed half-way
    clock.now += 10
    display.show(Status(0.6, 60, 6000, 123.456))
    clock.now += 10
    display.show(Status(0.7, 70, 8000, math.nan, evaluation=0.25))
    assert stream.getvalue().splitlines() == [
        " 60%  iteration 60  6000 steps  100 steps/s  return 123.5  ETA 0:00:40",
        " 70%  iteration 70  8000 steps  200 steps/s  return -  evaluation 0.25  "
        "ETA 0:00:30",
    ]


def test_line_of_training_on_recorded_steps_tells_updates(clock):
    stream = io.StringIO()
    display = ProgressLines(stream)
    display.start(Status(0.0, 0, 0, math.nan))
    clock.now += 50  # until workers have started, data is loaded, …
    display.begin_measuring(Status(0.1, 1, 0, math.nan, 10))
    display.show(Status(0.1, 1, 0, math.nan, 10))
    clock.now += 10
    display.show(Status(0.2, 20, 0, math.nan, 200))
    clock.now += 10
    display.show(Status(0.3, 30, 40, math.nan, 300))  # now with own steps
    assert stream.getvalue().splitlines() == [
        " 10%  iteration 1  0 steps  - steps/s  return -  ETA -",
        " 20%  iteration 20  200 updates  19 updates/s  ETA 0:01:20",
        " 30%  iteration 30  40 steps  4 steps/s  return -  300 updates  10 updates/s  "
        "ETA 0:01:10",
    ]


def test_line_tells_the_few_losses_that_say_most(clock):
    stream = io.StringIO()
    display = ProgressLines(stream)
    display.start(Status(0.0, 0, 0, math.nan))
    clock.now += 10
    display.show(Status(0.5, 5, 500, 20.0, 50, LOSSES))
    assert stream.getvalue() == (
        " 50%  iteration 5  500 steps  50 steps/s  return 20  50 updates  5 updates/s  "
        "loss 0.25  entropy 0.6931  approx_kl 0.00321  ETA 0:00:10\n"
    )
    assert few_losses({"critic_loss": 1.0}) == {}


def test_evaluations_are_seen_to_go_on(clock):
    stream, terminal = io.StringIO(), Terminal()
    lines, bar = ProgressLines(stream), ProgressBar(terminal)
    for display in (lines, bar):
        display.start(Status(1.0, 0, 0, math.nan))
        for i in range(30):
            clock.now += 1
            display.show_evaluation(100 * i, i // 10, 4)
        display.close()
    assert stream.getvalue().splitlines() == [
        f"      evaluating, {n // 1000} of 4 episodes, {n} steps"
        for n in (900, 1900, 2900)
    ]
    assert "evaluating, 2 of 4 episodes, 2900 steps" in terminal.getvalue()


def test_an_evaluation_does_not_count_as_slow_training(clock):
    measures = Measures(Status(0.0, 0, 0, math.nan))
    clock.now += 1
    for _ in range(50):
        measures.pause()
        clock.now += 1
    measures.pause()
    clock.now += 1
    assert measures.fields(Status(0.1, 10, 200, 1.0))["steps/s"] == "100"


def test_the_time_to_go_forgets_a_begin_that_was_unlike_the_rest(clock):
    time_to_go = TimeToGo(0.0)
    for _ in range(10):  # steps that are collected before the updates begin
        clock.now += 0.1
        time_to_go.estimate(0.1)
    estimates = []
    for i in range(100):
        clock.now += 1
        estimates.append(time_to_go.estimate(0.1 + 0.001 * i))
    assert 780 < estimates[-1] < 820  # at 0.001 a second
    assert len(time_to_go._marks) < 200


def test_trouble_of_the_terminal_is_not_that_of_the_run(clock):
    lost = []

    class Gone(Terminal):
        def write(self, text):
            lost.append(text)
            raise OSError(5, "Input/output error")

    for display in (ProgressLines(Gone()), ProgressBar(Gone())):
        display.start(Status(0.0, 0, 0, math.nan))
        clock.now += 10
        display.show(Status(0.5, 1, 10, 1.0))
        display.show_evaluation(3, 0, 1)
        display.close()
        assert lost
        lost.clear()


def test_lines_come_at_every_tenth_and_after_five_seconds(clock):
    display = ProgressLines(io.StringIO())
    display.start(Status(0.0, 0, 0, math.nan))
    assert not display.is_due(0.09)
    assert display.is_due(0.1)
    display.show(Status(0.1, 1, 1, math.nan))
    assert not display.is_due(0.15)
    clock.now += 5
    assert display.is_due(0.15)


def test_long_runs_print_at_most_a_line_per_minute(clock):
    display = ProgressLines(io.StringIO())
    display.start(Status(0.0, 0, 0, math.nan))
    clock.now += 36_000
    display.show(Status(0.05, 1, 1, math.nan))
    clock.now += 59
    assert not display.is_due(0.05)
    clock.now += 1
    assert display.is_due(0.05)


def test_bar_shows_the_status_and_is_redrawn_a_few_times_a_second(clock):
    stream = Terminal()
    display = create_progress_display(stream)
    display.start(Status(0.0, 0, 0, math.nan))
    assert display.is_due(0.0)
    clock.now += 1
    display.show(Status(0.25, 10, 10_000, 20.0, 40, LOSSES, evaluation=7.5))
    assert not display.is_due(0.3)
    clock.now += 0.4
    assert display.is_due(0.3)
    display.close()
    display.close()
    last = stream.getvalue().rpartition(" 25%")[2]
    words = last.replace("\x1b[?25h", "").split("ETA ")[1].split()
    assert words == [
        "0:00:03",
        *("return", "20", "evaluation", "7.5", "iteration", "10"),
        *("steps", "10,000", "steps/s", "10000", "updates", "40", "updates/s", "40"),
        *("loss", "0.25", "policy_loss", "-0.01", "value_loss", "1"),
        *("entropy", "0.6931", "approx_kl", "0.00321"),
    ]


def test_bar_of_training_on_recorded_steps_shows_updates_and_losses(clock):
    stream = Terminal()
    display = create_progress_display(stream)
    display.start(Status(0.0, 0, 0, math.nan))
    clock.now += 1
    display.show(Status(0.25, 10, 0, math.nan, 50, {"loss": 0.5}))
    text = stream.getvalue()
    assert "updates/s" in text
    assert "loss" in text
    assert "steps/s" not in text
    assert "return" not in text


def test_cells_fill_the_width_that_there_is():
    fields = {"return": "1", "loss": "0.5", "entropy": "0.25"}
    assert len(cells(fields, 200)) == 1
    assert len(cells(fields, 50)) == 2
    assert len(cells(fields, 10)) == 3
    assert cells({}, 80) == []


def test_unknown_time_is_a_dash():
    assert format_seconds(math.nan) == "-"
    assert format_seconds(3725.4) == "1:02:05"


def test_rich_is_not_imported_without_a_bar():
    code = (
        "import sys; from alf_lite.trainers import progress_display as p; "
        "p.create_progress_display(); assert 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.PIPE)
