"""A connection to Ray: actors on the machines of a cluster, or on this one.

Ray is imported when a connection is made: without it everything else works.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import math
import os
import re
import signal
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import numpy as np

from alf_lite.errors import ConfigError, WorkerError, exception_text, missing_extra

_logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 5.0  # between two looks at the head
# Without a head, after which Ray is given up: after 60 it ends every program at once,
# which has saved nothing.
_HEAD_SECONDS = 35.0
_MAX_SHOWN = 400  # letters of what Ray says of a loss
_LOCAL = "local"  # a Ray of this machine alone, as Ray names it
_AUTHENTICATION = "RAY_AUTH_MODE"
_LEAST_VERSION = (2, 52)  # with tokens
_LOCAL_VARIABLES = {
    # Whoever reaches a port of it may run code: only with its token.
    _AUTHENTICATION: "token",
    # Otherwise 15: actors would get hardly any time beside anything else that runs.
    "RAY_worker_niceness": "0",
}
# Without clusters, as on a Mac, all ports of a Ray are those of the loopback interface.
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# What a client of HTTP/2, on which Ray's services talk, says first, and the type of
# frame that is answered.
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_HTTP2_SETTINGS = 4
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ActorLostError(Exception):
    """An actor is gone, with its process or with its machine.

    Args:
        message: what Ray says about it.
        is_start: whether it could not be started, because its class cannot be loaded.
    """

    def __init__(self, message: str, *, is_start: bool = False) -> None:
        super().__init__(message)
        self.is_start = is_start


class RayActor:
    """An object in a process somewhere in the cluster.

    Calls of one group are carried out one at a time, in their order.

    Args:
        handle: Ray's.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._methods: dict[tuple[str, str, int], Any] = {}

    def ask(
        self,
        method: str,
        *arguments: Any,
        group: str,
        then: Callable[[Future[Any]], None],
    ) -> None:
        """Calls a method; ``then`` is called with the answer, by another thread.

        Args:
            method: its name.
            *arguments: plain data; what :meth:`RayCluster.put` returned arrives as the
                array itself.
            group: in which it is carried out.
            then: gets a future whose result is there, see :func:`answer_of`.
        """
        reference = self._method(method, group, 1).remote(*arguments)
        reference.future().add_done_callback(then)

    def tell(self, method: str, *arguments: Any, group: str) -> None:
        """Calls a method that returns nothing; whether it works is seen elsewhere."""
        self._method(method, group, 0).remote(*arguments)

    def kill(self) -> None:
        """Ends the process now."""
        with contextlib.suppress(Exception):  # it is gone already, as may be Ray
            importlib.import_module("ray").kill(self._handle, no_restart=True)

    def _method(self, name: str, group: str, num_returns: int) -> Any:
        key = name, group, num_returns
        if key not in self._methods:
            self._methods[key] = getattr(self._handle, name).options(
                concurrency_group=group, num_returns=num_returns
            )
        return self._methods[key]


def answer_of(future: Future[Any]) -> Any:
    """What an actor has answered.

    Raises:
        ActorLostError: if it is gone.
        Exception: what the method raised.
    """
    error = future.exception()
    if error is None:
        return future.result()
    errors = getattr(sys.modules.get("ray"), "exceptions", None)
    if errors is None or not isinstance(error, errors.RayError):
        raise error
    if isinstance(error, errors.RayTaskError):
        raise error
    is_start = bool(getattr(error, "actor_init_failed", False)) or isinstance(
        error, errors.RuntimeEnvSetupError
    )
    text = str(error).strip()
    raise ActorLostError(text if is_start else _shortened(text), is_start=is_start)


def _shortened(text: str) -> str:
    """A line of what Ray says of a loss: no numbers of its own, the first reasons."""
    lines = [line for line in text.split("\n") if not line.startswith("\t")]
    return textwrap.shorten(" ".join(lines), _MAX_SHOWN, placeholder=" …")


class RayCluster:
    """A connection of this process to Ray; all that are open at a time are one.

    If Ray is connected already, by the program around, that is used and left as it is.

    Args:
        address: of the cluster, ``host:port``; None for the one that the environment
            variable ``RAY_ADDRESS`` names, or else a Ray of this machine alone, which
            ends with the last connection, or with this process.
        num_cpus: that a Ray of this machine shall offer, at least.

    Raises:
        ConfigError: if Ray is not installed, or the cluster cannot be reached.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _num_open: ClassVar[int] = 0
    _is_ours: ClassVar[bool] = False

    def __init__(self, address: str | None, num_cpus: float = 1.0) -> None:
        check_reachable(address)
        address = address or os.environ.get("RAY_ADDRESS") or _LOCAL
        self._ray: Any = importlib.import_module("ray")
        self._is_open = False
        self._classes: dict[type, Any] = {}  # as Ray has made them actors
        with RayCluster._lock:
            if not self._ray.is_initialized():
                _connect(self._ray, address, num_cpus)
                RayCluster._is_ours, RayCluster._num_open = True, 0
            RayCluster._num_open += 1
            self._is_open = True
        self.head = Head(self._ray.get_runtime_context().gcs_address)

    def start_actor(
        self,
        cls: type,
        *,
        num_cpus: float,
        num_gpus: float = 0.0,
        groups: Sequence[str],
    ) -> RayActor:
        """Starts an actor as soon as a machine has room for it, wherever that is.

        It ends with this process, and is not started again by Ray.

        Args:
            cls: at the top level of a module, which all machines have.
            num_cpus: of a machine, that nobody else may take.
            num_gpus: likewise.
            groups: of calls.
        """
        if cls not in self._classes:
            make = self._ray.remote(
                max_restarts=0,
                max_task_retries=0,
                concurrency_groups=dict.fromkeys(groups, 1),
                scheduling_strategy="SPREAD",
            )
            self._classes[cls] = make(cls)
        return RayActor(
            self._classes[cls].options(num_cpus=num_cpus, num_gpus=num_gpus).remote()
        )

    def put(self, array: np.ndarray) -> Any:
        """Stores a copy once, for all actors: see :meth:`RayActor.ask`."""
        return self._ray.put(array)

    def resources_text(self) -> str:
        """The CPUs of the cluster and how many are free."""
        total = self._ray.cluster_resources().get("CPU", 0.0)
        free = self._ray.available_resources().get("CPU", 0.0)
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        return f"{len(nodes)} machines with {total:g} CPUs, of which {free:g} are free"

    def num_places(self, wanted: Mapping[str, float]) -> int:
        """How many actors that take ``wanted``, by resource, there is room for in all.

        Machines that are busy now count like those that are free.
        """
        places = 0
        for node in self._ray.nodes():
            resources = node["Resources"] if node["Alive"] else {}
            counts = [
                int(resources.get(name, 0.0) / amount)
                for name, amount in wanted.items()
                if amount > 0
            ]
            places += min(counts, default=0)
        return places

    def close(self) -> None:
        """Ends the connection; may be called more than once."""
        with RayCluster._lock:
            if not self._is_open:
                return
            self._is_open = False
            RayCluster._num_open -= 1
            if RayCluster._is_ours and not RayCluster._num_open:
                RayCluster._is_ours = False
                with contextlib.suppress(Exception):  # the cluster is gone
                    self._ray.shutdown()


class Head:
    """What a cluster cannot be without: where Ray was started with --head.

    Args:
        address: ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._looked_at = -math.inf  # the first time at once: it may not last
        self._seen_at = math.inf  # one that was never seen may be hidden from here

    def check(self) -> None:
        """Looks at it from time to time.

        Raises:
            WorkerError: if it is lost: whatever asks Ray for something now, waits.
        """
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 1.0).close()
        except OSError as error:
            if now - self._seen_at > _HEAD_SECONDS:
                raise WorkerError(
                    f"the head of Ray, {self._address}, has not answered for "
                    f"{_HEAD_SECONDS:g} s ({error}). Start it again (ray start "
                    "--head), and the run goes on from its last checkpoint."
                ) from error
        else:
            self._seen_at = now
        self._looked_at = time.monotonic()


def check_reachable(address: str | None) -> None:
    """Finds within seconds that Ray cannot be used.

    Args:
        address: see ``RayCluster``.

    Raises:
        ConfigError: if Ray is not installed or too old, or nothing answers at the
            address.
    """
    if importlib.util.find_spec("ray") is None:
        raise missing_extra("Ray", "ray")
    _check_version()
    address = address or os.environ.get("RAY_ADDRESS")
    if not address or address in ("auto", _LOCAL):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"the address of Ray is {address!r}, expected HOST:PORT, such as "
            "10.0.0.1:6379, of a cluster that this machine has joined with "
            "ray start --address=HOST:PORT"
        )
    why = _why_unreachable(host.strip("[]"), int(port))
    if why:
        raise ConfigError(
            f"there is no Ray at {address}: {why}. Start it with ray start --head "
            "--port=PORT, or correct TrainerConfig.ray_address or RAY_ADDRESS."
        )


def _check_version() -> None:
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:  # built in place
        return
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and tuple(map(int, numbers.groups())) < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION))
        raise ConfigError(
            f"Ray {version} is installed, but {least} is the first that lets in only "
            "those who have its token: pip install --upgrade 'alf_lite[ray]'"
        )


def _why_unreachable(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), _CONNECT_SECONDS) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            connection.sendall(_HTTP2_HELLO)
            frame = connection.recv(9)
    except OSError as error:
        return f"{error}"
    if len(frame) < 4 or frame[3] != _HTTP2_SETTINGS:
        return "what answers there is something else"
    return ""


def _connect(ray: Any, address: str, num_cpus: float) -> None:
    options: dict[str, Any] = {}
    if address == _LOCAL:
        cores = os.cpu_count() or 1
        options = {
            "num_cpus": max(cores, math.ceil(num_cpus)),
            "include_dashboard": False,
        }
    kept = _for_this_machine(ray) if address == _LOCAL else contextlib.nullcontext()
    try:
        with _kept_signals(), kept:
            ray.init(
                address=address,
                logging_level=logging.ERROR,
                log_to_driver=False,
                configure_logging=True,
                **options,
            )
    except ConfigError:
        raise
    except Exception as error:
        hint = (
            "A cluster wants this machine to have joined it (ray start --address=...), "
            "the same versions of Ray and Python, and its token (RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH)."
        )
        if address == _LOCAL:
            hint = (
                "If the machine was too busy to start it in time, try again. The logs "
                "are in /tmp/ray/session_latest/logs."
            )
        raise ConfigError(
            f"Ray at {address!r} cannot be used: {exception_text(error)}. {hint}"
        ) from error


@contextlib.contextmanager
def _for_this_machine(ray: Any) -> Iterator[None]:
    """A Ray that starts in the block is reached from here alone, with its token.

    Ray has read the environment when it was imported, perhaps long ago.
    """
    for variable, value in _LOCAL_VARIABLES.items():
        os.environ.setdefault(variable, value)
    try:
        raylet = importlib.import_module("ray._raylet")
        constants: Any = importlib.import_module("ray._private.ray_constants")
        before = constants.ENABLE_RAY_CLUSTER
        raylet.Config.initialize("")
        wants_token = os.environ[_AUTHENTICATION].lower() == "token"
        is_token = raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN
        if is_token != wants_token:
            raise AttributeError("the mode stays as it was")
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"Ray {ray.__version__} cannot be kept to this machine and its token any "
            f"more, now that it is imported ({error}). Set RAY_AUTH_MODE=token and run "
            "ray start --head, or install Ray 2.60."
        ) from error
    if _CLUSTERS in os.environ:
        yield
        return
    # Ray reads the one here, and its processes the other.
    constants.ENABLE_RAY_CLUSTER = False
    os.environ[_CLUSTERS] = "0"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        del os.environ[_CLUSTERS]


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """Ray handles some signals its own way: what is there shall stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
