"""Tests of alf_lite.trainers.signals; more with a run in test_trainer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from alf_lite.trainers import signals
from alf_lite.trainers.signals import BrokenOffError, StopSignals
from alf_lite.utils.interruption import interruption

STOP = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
ALL = [*STOP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG]


@pytest.fixture(autouse=True)
def default_handlers():
    """A test run started in the background ignores SIGINT; these tests need it."""
    interruption.end_iteration()
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
    interruption.end_iteration()


@contextlib.contextmanager
def handled():
    with StopSignals() as stop:
        stop.install()
        stop.start_is_over()
        yield stop


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)
        time.sleep(0.02)


@pytest.mark.parametrize("number", STOP)
def test_first_signal_is_only_noted(number, caplog):
    with handled() as stop:
        assert stop.received is None
        send(number)
        assert stop.received == number
    assert f"{number.name}: finishing this iteration, then saving" in caplog.text


@pytest.mark.parametrize(
    "numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGHUP)]
)
def test_second_signal_breaks_off_what_waits(numbers):
    with handled() as stop:
        with pytest.raises(BrokenOffError):
            send(*numbers)
            time.sleep(30)
        assert stop.received == numbers[0]
        assert stop.num_broken_off == 1


@pytest.mark.ci
def test_updates_and_saving_are_not_broken_off_at_once(monkeypatch):
    monkeypatch.setattr(signals, "_UPDATE_SECONDS", 0.5)
    with handled() as stop:
        interruption.begin_iteration()
        send(signal.SIGINT, signal.SIGINT)
        with stop.held_off():
            time.sleep(1.0)
        with pytest.raises(BrokenOffError):
            time.sleep(30)


def test_a_signal_that_arrives_twice_counts_once(monkeypatch):
    # Longer than a busy machine takes to deliver the second one.
    monkeypatch.setattr(signals, "_SAME_SIGNAL_SECONDS", 60.0)
    with handled() as stop:
        send(signal.SIGTERM, signal.SIGTERM)
        time.sleep(0.3)
        assert stop.received == signal.SIGTERM


def test_patience_ends_after_sigterm_but_not_after_ctrl_c(monkeypatch):
    monkeypatch.setattr(signals, "PATIENCE_SECONDS", 0.1)
    with handled():
        send(signal.SIGINT)
        time.sleep(0.5)
    with handled(), pytest.raises(BrokenOffError):
        send(signal.SIGTERM)
        time.sleep(30)


def test_checkpoint_request_is_taken_once():
    with handled() as stop:
        assert not stop.take_checkpoint_request()
        send(signal.SIGUSR2)
        assert stop.take_checkpoint_request()
        assert not stop.take_checkpoint_request()
        assert stop.received is None


def test_handlers_are_restored():
    before = [signal.getsignal(n) for n in ALL]
    with pytest.raises(ValueError, match="x"), handled():
        assert [signal.getsignal(n) for n in ALL] != before
        raise ValueError("x")
    assert [signal.getsignal(n) for n in ALL] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_what_nohup_and_user_code_have_decided_stays():
    taken = []
    for number, handler in (
        (signal.SIGHUP, signal.SIG_IGN),
        (signal.SIGUSR2, lambda *_: taken.append("mine")),
    ):
        previous = signal.signal(number, handler)
        try:
            with handled() as stop:
                send(number)
                assert stop.received is None
                assert not stop.take_checkpoint_request()
        finally:
            signal.signal(number, previous)
    assert taken == ["mine"]


def test_other_threads_install_nothing():
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with handled() as stop:
                assert stop.received is None
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors


def test_forked_processes_can_be_terminated():
    with handled() as stop:
        child = multiprocessing.get_context("fork").Process(
            target=time.sleep, args=[60]
        )
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM
        time.sleep(0.1)
        assert stop.received is None


class Finalized:
    """Sends a signal from where Python keeps what is raised."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        send(self._number)


def in_a_finalizer(number: signal.Signals) -> None:
    Finalized(number)


def in_a_weakref_callback(number: signal.Signals) -> None:
    event = threading.Event()
    watched = weakref.ref(event, lambda _: send(number))
    del event
    assert watched() is None


def in_code_that_handles_everything(number: signal.Signals) -> None:
    with contextlib.suppress(BaseException):
        send(number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", STOP)
@pytest.mark.parametrize(
    "lose", [in_a_finalizer, in_a_weakref_callback, in_code_that_handles_everything]
)
def test_a_signal_at_the_start_is_not_lost(lose, number):
    usual = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    begin = time.monotonic()
    with pytest.raises(usual) as end, StopSignals() as stop:
        stop.install()
        lose(number)
        time.sleep(60)
    assert time.monotonic() - begin < 30
    assert end.value.args == (() if usual is KeyboardInterrupt else (128 + number,))
    with pytest.raises(usual), StopSignals() as stop:
        stop.install()
        lose(number)
        stop.start_is_over()


def test_a_signal_while_the_watch_is_started_is_told_afterwards(monkeypatch):
    start = signals._Watch.start

    def interrupted(watch) -> None:
        send(signal.SIGTERM)
        start(watch)

    monkeypatch.setattr(signals._Watch, "start", interrupted)
    with pytest.raises(SystemExit, match="143"), StopSignals() as stop:
        stop.install()
        time.sleep(60)


def test_what_is_closed_because_of_a_signal_is_not_disturbed():
    closed = []
    with pytest.raises(KeyboardInterrupt) as end, StopSignals() as stop:
        stop.install()
        try:
            send(signal.SIGINT)
            time.sleep(60)
        except BrokenOffError:
            time.sleep(0.5)
            closed.append(stop.received)
            raise ImportError("as a library says it") from None
    assert closed == [signal.SIGINT]
    assert isinstance(end.value.__cause__, ImportError)


HANGS = """
import ctypes, os, signal, sys, time
from alf_lite.trainers import signals
signals._EXIT_SECONDS = 1.0
with signals.StopSignals() as stop:
    stop.install()
    START
    print("ready", flush=True)
    HANG
"""


# Python code that keeps every exception.
SWALLOWS = (
    "\n    while True:\n        try:\n            time.sleep(60)\n"
    "        except BaseException:\n            pass"
)
# A library: no Python handler can run.
DEADLOCK = (
    "lock = ctypes.create_string_buffer(64)\n    m = ctypes.CDLL(None)\n"
    "    m.pthread_mutex_lock(lock)\n    m.pthread_mutex_lock(lock)"
)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("hang", "is_starting"),
    [
        pytest.param(SWALLOWS, False, id="swallows", marks=pytest.mark.slow),
        pytest.param(DEADLOCK, False, id="deadlock", marks=pytest.mark.slow),
        pytest.param(DEADLOCK, True, id="deadlock at the start"),
    ],
)
def test_a_process_that_hangs_anywhere_ends_after_a_second_signal_or_at_the_start(
    hang, is_starting
):
    start = "pass" if is_starting else "stop.start_is_over()"
    program = HANGS.replace("HANG", hang).replace("START", start)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.3)
            for _ in range(1 if is_starting else 2):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.6)
            assert process.wait(20) == 143
            assert "The run does not end" in process.stderr.read()
        finally:
            process.kill()
