"""A child answers, or it is said within a deadline why it does not; none is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver

import pytest

from alf_lite.errors import ConfigError, DataError, EnvError, WorkerError
from alf_lite.processes import child_process
from alf_lite.processes.child_main import StopRequested, error_of
from alf_lite.processes.child_process import (
    ChildDiedError,
    ChildGroup,
    ChildProcess,
    ChildSilentError,
    start_server,
)
from tests.other_process import fork_server_of_its_own, is_alive
from tests.source_code import ROOT


class HardError(Exception):
    """Cannot be pickled, and its text is none that can be encoded."""

    def __init__(self, one, other):
        super().__init__("100% %d {x} \ud800 é")


def serve(settings, parent):
    """Does what it is told, in a process of its own."""
    actions = {
        b"config": lambda: throw(ConfigError("no such name")),
        b"data": lambda: throw(DataError("no such file")),
        b"env": lambda: throw(EnvError("bad shape")),
        b"raise": lambda: throw(HardError(1, 2)),
        b"eof": lambda: throw(EOFError("of its own")),
        b"exit": lambda: throw(SystemExit(3)),
        b"die": lambda: os.kill(os.getpid(), signal.SIGKILL),
        b"vanish": lambda: os._exit(5),
        b"hang": hang,
        b"quiet": lambda: None,
    }
    parent.send(repr(settings).encode())
    try:
        while True:
            message = parent.receive()
            if message in actions:
                actions[message]()
            else:
                parent.send(message[::-1])
    except StopRequested:
        if settings == "stubborn":
            hang()
        raise


def throw(error):
    raise error


def hang():
    while True:
        time.sleep(0.05)


@pytest.fixture(scope="module", autouse=True)
def _light_server():
    with fork_server_of_its_own():
        yield


@pytest.fixture
def group():
    """(settings of the children) → a group of them, of which each has said them."""
    groups = []

    def start(*settings, method="forkserver"):
        if method == "forkserver":
            start_server([__name__])
        group = ChildGroup(serve, name="test", method=method)
        groups.append(group)
        for i, one in enumerate(settings):
            group.start(one, i)
        heard = dict(group.receive(range(len(settings)), 60))
        assert heard == {i: repr(one).encode() for i, one in enumerate(settings)}
        return group

    yield start
    for group in groups:
        group.kill()
        assert not any(map(is_alive, group.pids))


@pytest.mark.ci
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_answer_those_who_were_asked(group, method):
    children = group("a", "b", method=method)
    pids = children.pids
    children.children[1].send(b"abc")
    assert list(children.receive([1], 60)) == [(1, b"cba")]
    for i, child in enumerate(children.children):
        child.send(b"xy%d" % i)
    assert sorted(children.receive([0, 1], 60)) == [(0, b"0yx"), (1, b"1yx")]
    children.close()
    assert not any(map(is_alive, pids))
    children.close()  # does no harm


@pytest.mark.parametrize(
    ("request_", "error_type", "text"),
    [
        (b"config", ConfigError, "here: no such name"),
        (b"data", DataError, "here: no such file"),
        (b"env", EnvError, "here: bad shape"),
        (b"raise", WorkerError, "here raised HardError: 100% %d {x} \\ud800 é"),
        (b"eof", WorkerError, "here raised EOFError: of its own"),
        (b"exit", WorkerError, "here raised SystemExit: 3"),
    ],
)
def test_last_words_arrive_before_slow_answers_as_errors_of_their_kind(
    group, request_, error_type, text
):
    children = group("slow", "a")
    children.children[0].send(b"hang")
    children.children[1].send(request_)
    index, message = next(children.receive([0, 1], 60))
    assert index == 1
    error = error_of(message, "here", WorkerError)
    assert type(error) is error_type
    assert str(error).startswith(text)
    assert ("Traceback" in str(error)) == (error_type is WorkerError)


@pytest.mark.parametrize("message", [b"", b"\x80pickled"])
def test_other_messages_are_no_last_words(message):
    assert error_of(message, "here", WorkerError) is None


@pytest.mark.parametrize(
    ("request_", "end"),
    [(b"die", "was killed by SIGKILL"), (b"vanish", "exited with code 5")],
)
def test_a_death_is_noticed_at_once_whoever_else_is_waited_for(group, request_, end):
    children = group("a", "b")
    children.children[0].send(b"hang")
    children.children[1].send(request_)
    with pytest.raises(ChildDiedError, match=f"the process {end}") as error:
        list(children.receive([0, 1], 60))
    assert error.value.child is children.children[1]


@pytest.mark.ci
def test_children_that_end_with_their_server_say_so_and_others_take_their_place(group):
    children = group("a")
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    with pytest.raises(ChildDiedError, match="killed together with the server"):
        list(children.receive([0], 60))
    start_server([__name__])
    children.start("b", 0)
    assert list(children.receive([0], 60)) == [(0, b"'b'")]


def test_silence_ends_with_the_deadline_and_shows_where_the_child_is(group):
    children = group("a", "b")
    children.children[0].send(b"quiet")
    children.children[1].send(b"hang")
    begin = time.monotonic()
    with pytest.raises(ChildSilentError) as error:
        list(children.receive([1], 0.3))
    assert time.monotonic() - begin < 30
    assert "Its Python stack:" in str(error.value)
    assert "in hang" in str(error.value)


def test_a_child_takes_the_place_of_one_that_hangs(group):
    children = group("a", "b")
    old = children.pids
    children.children[1].send(b"hang")
    children.start("c", 1)
    assert list(children.receive([1], 60)) == [(1, b"'c'")]
    assert children.pids[0] == old[0]
    assert not is_alive(old[1])


def test_close_ends_children_whatever_they_do(group, monkeypatch):
    monkeypatch.setattr(child_process, "CLOSE_SECONDS", 0.2)
    children = group("a", "stubborn")
    children.children[0].send(b"hang")
    begin = time.monotonic()
    children.close()
    assert time.monotonic() - begin < 30
    assert not any(map(is_alive, children.pids))


def test_signals_of_a_terminal_are_the_parents_affair(group):
    children = group("a")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(children.pids[0], number)
    children.children[0].send(b"abc")
    assert list(children.receive([0], 60)) == [(0, b"cba")]


@pytest.mark.slow
def test_a_child_that_cannot_close_is_ended_by_the_system_when_nobody_kills_it(group):
    (child,) = group("stubborn").children
    child.hang_up()
    child.join(60)
    assert not is_alive(child.pid)


KILLED_PROGRAM = """
import os
from multiprocessing import forkserver, resource_tracker
from alf_lite.processes.child_process import ChildGroup, start_server
from tests.processes.test_child_process import serve

start_server([serve.__module__])
group = ChildGroup(serve, name="test", method="forkserver")
children = [group.start("a", i) for i in range(2)]
dict(group.receive([0, 1], 60))
children[0].send(b"hang")
server, tracker = forkserver._forkserver, resource_tracker._resource_tracker
print(server._forkserver_pid, tracker._pid, *group.pids, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.ci
def test_a_child_that_hangs_does_not_survive_a_program_that_is_killed():
    command = [sys.executable, "-c", KILLED_PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as program:
        assert program.stdout is not None
        pids = list(map(int, program.stdout.readline().split()))
        assert program.wait(60) == -signal.SIGKILL
    assert len(pids) == 4
    deadline = time.monotonic() + 10
    while left := list(filter(is_alive, pids)):
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"{left} of {pids} are left")
        time.sleep(0.05)


def test_a_child_that_cannot_be_sent_is_refused_before_it_starts():
    with pytest.raises(Exception, match="pickle"):
        ChildProcess(serve, lambda: 0, name="test", index=0, method="spawn")


def test_other_children_of_the_server_hear_the_signals_that_end_them(group):
    group("a")
    pool = multiprocessing.get_context("forkserver").Pool(2)
    assert pool.map(abs, [-1, 2]) == [1, 2]
    pool.map_async(time.sleep, [600, 600])
    ending = threading.Thread(target=pool.terminate, daemon=True)  # by SIGTERM
    ending.start()
    ending.join(20)
    assert not ending.is_alive()


@pytest.mark.ci
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows():
    code = (
        "import resource\n"
        "from alf_lite.processes import child_process\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "child_process.raise_descriptor_limit()\n"
        "soft, after = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "assert after == hard\n"
        "assert soft == (65536 if hard < 0 else min(hard, 65536)), (soft, hard)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
