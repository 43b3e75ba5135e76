"""What is wrong with Ray is said within seconds, whether it is installed or not."""

from __future__ import annotations

import importlib.util
import socket
import threading
from concurrent.futures import Future

import pytest

from alf_lite.errors import ConfigError
from alf_lite.processes.ray_cluster import ActorLostError, answer_of, check_reachable


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
