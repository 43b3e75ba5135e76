"""Tests of alf_lite.trainers.signals."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from alf_lite.trainers.signals import StopSignals


@pytest.fixture(autouse=True)
def default_handlers():
    """A test run started in the background ignores SIGINT; these tests need it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_only_noted(number, caplog):
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number
    assert f"{number.name}: finishing this iteration, then saving" in caplog.text


def test_second_sigint_stops_at_once_whatever_the_first_was():
    for first in (signal.SIGINT, signal.SIGTERM):
        with StopSignals() as signals:
            os.kill(os.getpid(), first)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            assert signals.received == first


def test_second_sigterm_changes_nothing():
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM


def test_handlers_are_restored():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ValueError, match="x"), StopSignals():
        raise ValueError("x")
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_install_nothing():
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with StopSignals() as signals:
                assert signals.received is None
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
