"""The first code that runs in the process of an environment.

Its own imports are light: the numerical libraries, which read some of the environment
variables set here when they are imported, come after that.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from alf_lite.environments.worker_settings import WorkerSettings
from alf_lite.processes import child_process


def main(settings: WorkerSettings, requests: Connection, stacks: Connection) -> None:
    """Serves the requests of the parent process until it closes the pipe.

    Args:
        settings: what to serve.
        requests: see ``worker_loop``.
        stacks: where the Python stack goes if the process crashes, or is asked with
            SIGUSR1 why it does not answer.
    """
    child_process.prepare_child(stacks)
    if settings.dies_with_parent:
        child_process.die_with_parent(settings.parent_pid)

    from alf_lite.environments.worker_loop import serve

    serve(settings, requests)
    child_process.exit_now()
