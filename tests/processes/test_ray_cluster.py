"""What is wrong with Ray is said within seconds, whether it is installed or not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import socket
import sys
import threading
import types
from concurrent.futures import Future
from pathlib import Path

import pytest

from alf_lite.errors import ConfigError, WorkerError
from alf_lite.processes import ray_cluster
from alf_lite.processes.ray_cluster import (
    ActorLostError,
    Head,
    answer_of,
    check_reachable,
)


@pytest.fixture
def installed(monkeypatch):
    """As if Ray were installed, which is found without importing it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


def test_ray_that_is_not_installed_is_said_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'alf_lite\[ray\]'"):
        check_reachable(None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("version", ["1.13.0", "2.9", "2.51.1"])
def test_a_ray_without_tokens_is_refused(version, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ConfigError, match=rf"Ray {version} .* 2\.52 .*\n?pip install"):
        check_reachable(None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("version", ["2.52.0", "2.60.0rc1", "3.0.0.dev0", "unknown"])
def test_a_ray_with_tokens_is_the_one_that_is_installed(version, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    check_reachable(None)
    least = ".".join(map(str, ray_cluster._LEAST_VERSION))
    assert (
        f'"ray>={least}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("address", [None, "auto", "local"])
def test_without_an_address_nothing_is_looked_for(address):
    check_reachable(address)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "address", ["ray://a:1", "a", "a:b", ":6379", "a:99999", "http://a:80"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match=r"expected HOST:PORT.*ray start"):
        check_reachable(address)


def serve_once(answer: bytes) -> str:
    """The address of something that answers the first who comes."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(100)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.usefixtures("installed")
def test_nobody_at_the_address_is_said(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match=r"no Ray at 127.*refused.*ray start --head"):
        check_reachable(address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match="no Ray at"):
        check_reachable(None)


@pytest.mark.usefixtures("installed")
def test_somebody_else_at_the_address_is_said():
    address = serve_once(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ConfigError, match="something else"):
        check_reachable(address)
    check_reachable(serve_once(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))))  # as gRPC does


def test_a_head_that_is_lost_for_a_while_is_said(monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(ray_cluster, "time", clock)
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = Head(f"127.0.0.1:{server.getsockname()[1]}")
        hidden = Head(f"127.0.0.1:{server.getsockname()[1]}")
        seen_once = Head(f"127.0.0.1:{server.getsockname()[1]}")
        seen_once.check()
        for clock.now in (10.0, 20.0):
            head.check()
    for clock.now in (30.0, 50.0):
        head.check()
    clock.now = 60.0
    hidden.check()  # never seen
    for lost in (head, seen_once):
        with pytest.raises(WorkerError, match=r"head of Ray, 127.*for 35 s .*refused"):
            lost.check()


def answered(result=None, error=None) -> Future:
    future: Future = Future()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
    return future


def test_an_answer_is_what_was_returned_or_raised():
    assert answer_of(answered(3)) == 3
    with pytest.raises(ActorLostError):
        answer_of(answered(error=ActorLostError("gone")))
    with pytest.raises(KeyError):
        answer_of(answered(error=KeyError("x")))


LOSS = """The actor died unexpectedly before finishing this task.
\tclass_name: RayWorker
\tactor_id: 6fa867cc47a13cddc56ee5d301000000
\tpid: 11004
\tnamespace: 3db3169c-1f41-430b-883d-52004769809b
\tip: 127.0.0.1
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"""


@pytest.mark.parametrize("is_start", [False, True])
def test_what_is_said_of_a_lost_actor_is_a_line(monkeypatch, is_start):
    ray = types.ModuleType("ray")
    kinds = {name: type(name, (Exception,), {}) for name in ("RayError", "Task", "Set")}
    ray.exceptions = types.SimpleNamespace(
        RayError=kinds["RayError"],
        RayTaskError=kinds["Task"],
        RuntimeEnvSetupError=kinds["Set"],
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    error = kinds["RayError"](LOSS + " exit detail" * 80)
    error.actor_init_failed = is_start
    with pytest.raises(ActorLostError) as lost:
        answer_of(answered(error=error))
    said = str(lost.value)
    if is_start:  # with the traceback
        assert said == str(error)
        return
    assert said.startswith(
        "The actor died unexpectedly before finishing this task. The"
    )
    assert "has died. Worker exit type: SYSTEM_ERROR exit" in said
    assert (len(said) <= 400, said[-1], "\n" in said) == (True, "…", False)


class Raylet(types.ModuleType):
    """As much of it as decides who is let in, which it reads when it is told to."""

    class AuthenticationMode:
        DISABLED, TOKEN = 0, 1

    def __init__(self, name: str, follows: bool) -> None:
        super().__init__(name)
        self._mode, self._follows = 0, follows
        self.Config = self

    def initialize(self, settings: str) -> None:
        if self._follows:
            self._mode = int(os.environ.get("RAY_AUTH_MODE") == "token")

    def get_authentication_mode(self) -> int:
        return self._mode


@pytest.mark.parametrize("follows", [True, False])
def test_a_ray_that_was_imported_before_takes_to_its_token_or_is_refused(
    follows, monkeypatch
):
    """The contract with Ray's own modules is kept by test_ray_training."""
    for name in (*ray_cluster._LOCAL_VARIABLES, ray_cluster._CLUSTERS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    constants = types.ModuleType("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = True
    seen = []

    def init(**options):
        seen.append((raylet._mode, constants.ENABLE_RAY_CLUSTER, options["address"]))

    raylet = Raylet("ray._raylet", follows)
    ray = types.ModuleType("ray")
    ray.__version__, ray.init = "2.52.0", init
    for module in (ray, raylet, constants):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    if follows:
        ray_cluster._connect(ray, "local", 1.0)
        assert seen == [(Raylet.AuthenticationMode.TOKEN, False, "local")]
    else:
        with pytest.raises(ConfigError, match="cannot be kept to this machine"):
            ray_cluster._connect(ray, "local", 1.0)
        assert not seen
    ray_cluster._connect(ray, "10.0.0.1:6379", 1.0)  # is as it was
    assert seen[-1][1:] == (True, "10.0.0.1:6379")
    assert ray_cluster._CLUSTERS not in os.environ
